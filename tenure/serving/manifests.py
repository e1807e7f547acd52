"""`tenure manifests ...`: what a cluster is told of Tenure, as YAML to apply."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

import typer

from ledger.domain.errors import InputError
from tenure.commands import Commands
from tenure.exits import warn, with_next

MANIFESTS = typer.Typer(
    cls=Commands,
    name="manifests",
    help="Print objects to apply to a cluster.",
    no_args_is_help=True,
)

Config = Annotated[
    Path | None, typer.Option("--config", help="AdmissionConfiguration file to write them for.")
]
Name = Annotated[
    str,
    typer.Option("--name", help="What the objects are called; another one for a second release."),
]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of our own.")]
Image = Annotated[str, typer.Option("--image", help="The image that has `tenure`.")]
ApiCa = Annotated[
    Path, typer.Option("--api-ca", metavar="FILE", help="The authority of the service's API.")
]
Keys = Annotated[
    list[str],
    typer.Option(
        "--proof-key",
        metavar="VKEY",
        help="Public key of proofs, or the file that holds one; may be given again.",
    ),
]
Api = Annotated[
    str,
    typer.Option(
        "--service", metavar="URL", help="The service's API. Default: the Service tenure-api."
    ),
]
KubeletCa = Annotated[
    str,
    typer.Option(
        "--kubelet-ca",
        metavar="PATH",
        help="The nodes' file with the authority of kubelet's listener; empty: the cluster's.",
    ),
]

_NAMESPACE = "tenure-system"
_KUBELET_CA = "/var/lib/kubelet/pki/kubelet.crt"


class Action(StrEnum):
    """What a violation of a policy does; to warn is to let through and say what it would refuse."""

    ENFORCE = "enforce"
    WARN = "warn"


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    MANIFESTS.command("webhook")(webhook)
    MANIFESTS.command("policies")(policies)
    MANIFESTS.command("rbac")(rbac)
    MANIFESTS.command("scheduler")(scheduler)
    MANIFESTS.command("dra")(dra)
    MANIFESTS.command("agent")(agent)
    MANIFESTS.command("cpus")(cpus)
    MANIFESTS.command("crds")(crds)
    app.add_typer(MANIFESTS)


def webhook(
    *,
    config: Config = None,
    name: Name = "tenure",
    url: Annotated[
        str, typer.Option(help="Base URL of a server outside the cluster, instead of the Service.")
    ] = "",
    namespace: Namespace = _NAMESPACE,
    service: Annotated[str, typer.Option(help="Service of the webhook.")] = "tenure-webhook",
    cert_manager: Annotated[
        str, typer.Option(help="NAMESPACE/NAME of the Certificate whose CA cert-manager injects.")
    ] = "",
) -> None:
    """
    Print the webhook configurations; the caBundle is written by rotation or by cert-manager.

    Example: tenure manifests webhook | kubectl apply -f -
    """
    values = {**locals()}
    from tenure.settings import admission_settings
    from webhook.manifests.hooks import expressions, never_sent

    if cert_manager and not re.fullmatch(r"[^/\s]+/[^/\s]+", cert_manager):
        raise InputError(f"expected NAMESPACE/NAME: value={cert_manager!r}", field="--cert-manager")
    base, settings = _base(url, "8443"), admission_settings(config)
    more = {
        "url": base,
        "never_sent": never_sent(namespace),
        "vocabulary": settings.vocabulary.digest,
        **expressions(settings),
    }
    _print("webhook", values | more)


def policies(
    *,
    config: Config = None,
    name: Name = "tenure",
    namespace: Namespace = _NAMESPACE,
    action: Annotated[Action, typer.Option(help="What a violation does.")] = Action.ENFORCE,
) -> None:
    """
    Print the ValidatingAdmissionPolicies, which hold while our own Pods are down.

    Example: tenure manifests policies --action warn | kubectl apply -f -
    """
    from tenure.serving.rendering import dump
    from tenure.settings import admission_settings
    from webhook.manifests.policies import policies
    from webhook.manifests.policy import PolicyOptions

    actions = ("Warn", "Audit") if action is Action.WARN else ("Deny",)
    settings = admission_settings(config)
    options = PolicyOptions(name=name, namespace=namespace, actions=actions, settings=settings)
    typer.echo(dump(policies(options)), nl=False)


def rbac(
    *,
    name: Name = "tenure",
    namespace: Namespace = _NAMESPACE,
    secret: Annotated[
        str, typer.Option(help="Secret that holds the certificates.")
    ] = "tenure-webhook-certs",  # noqa: S107 - the name of a Secret is none
) -> None:
    """
    Print the webhook's service account with exactly the rights it needs.

    Example: tenure manifests rbac | kubectl apply -f -
    """
    _print("webhook-rights", locals())


def scheduler(
    *,
    version: Annotated[
        str, typer.Option("--kube-version", help="The cluster's own version, such as v1.36.3.")
    ],
    name: Name = "tenure",
    namespace: Namespace = _NAMESPACE,
    service: Annotated[str, typer.Option(help="Service of the extender.")] = "tenure-scheduler",
    secret: Annotated[
        str, typer.Option(help="Secret with kube-scheduler's tls.crt, tls.key and our ca.crt.")
    ] = "tenure-kube-scheduler-certs",  # noqa: S107 - the name of a Secret is none
    image: Annotated[str, typer.Option(help="Also run it: the image that has `tenure`.")] = "",
    replicas: Annotated[
        int, typer.Option(min=1, help="With --image: more than one need --ledger-secret.")
    ] = 1,
    ledger_secret: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With --image: Secret whose `url` is the ledger's on Postgres. Default: SQLite.",
        ),
    ] = "",
    config_map: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With --image: ConfigMap whose `config.yaml` is the SchedulerConfiguration.",
        ),
    ] = "",
    api: Annotated[
        bool, typer.Option("--api", help="Also what `tenure serve scheduler --api` needs.")
    ] = False,
    api_service: Annotated[
        bool,
        typer.Option(
            "--api-service",
            help="Also the APIService, for several replicas: no namespace of the cluster is deleted"
            " while it is unavailable.",
        ),
    ] = False,
    api_ca: Annotated[
        Path | None,
        typer.Option(
            "--api-ca", metavar="FILE", help="With --api-service: the listener's authority."
        ),
    ] = None,
    drivers: Annotated[
        list[str] | None,
        typer.Option(
            "--driver",
            help="DRA driver whose claims it guards (`manifests dra`); may be given again.",
        ),
    ] = None,
    gate_port: Annotated[
        int,
        typer.Option(
            min=1, max=65_535, help="With --driver: port of the gate, of Pods and Service."
        ),
    ] = 8445,
    gate_client_ca: Annotated[
        str,
        typer.Option(
            "--gate-client-ca",
            metavar="NAME",
            help="With --image and --driver: Secret whose `ca.crt` is the authority of the API"
            " server's certificate.",
        ),
    ] = "",
    gate_open: Annotated[
        bool,
        typer.Option(
            "--gate-open", help="Instead of --gate-client-ca: whoever reaches the port may ask."
        ),
    ] = False,
    control_plane: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="With --driver, not with --host-network: addresses of the API servers, who alone"
            " reach the gate's port; may be given again.",
        ),
    ] = None,
    untold_devices: Annotated[
        Literal["refuse", "record"],
        typer.Option(help="With --image: as the option of `tenure serve scheduler`."),
    ] = "refuse",
    host_network: Annotated[
        bool,
        typer.Option(
            "--host-network", help="With --image: replicas listen on their nodes' addresses."
        ),
    ] = False,
    evict_partial_gangs: Annotated[
        bool,
        typer.Option(
            "--evict-partial-gangs",
            help="Also what `tenure serve scheduler --evict-partial-gangs` needs.",
        ),
    ] = False,
    preemption: Annotated[
        Literal["off", "dry-run", "on"],
        typer.Option(help="Also what `tenure serve scheduler --preemption` needs."),
    ] = "off",
) -> None:
    """
    Print a second kube-scheduler that asks `tenure serve scheduler`, and the rights of both.

    With --image also the Deployment that is asked.

    Example: tenure manifests scheduler --kube-version v1.36.3 | kubectl apply -f -
    """
    values = {**locals()}
    from tenure.sources.text import content_of

    if not re.fullmatch(r"v1\.[0-9]+\.[0-9]+", version):
        fact = f"expected a version of Kubernetes: value={version!r}"
        raise with_next(InputError(fact, field="--kube-version"), "give one such as v1.36.3")
    if replicas > 1 and not ledger_secret:
        fact = "several replicas share a ledger on Postgres: a file has one"
        step = "give --ledger-secret the Secret with its URL"
        raise with_next(InputError(fact, field="--replicas"), step)
    of_image = {
        "--replicas": replicas > 1,
        "--ledger-secret": ledger_secret,
        "--config-map": config_map,
        "--gate-client-ca": gate_client_ca,
        "--gate-open": gate_open,
        "--untold-devices": untold_devices != "refuse",
        "--host-network": host_network,
    }
    option = next((name for name, is_given in of_image.items() if is_given), "")
    if option and not image:
        raise with_next(InputError("nothing is run without an image", field=option), "give --image")
    of_gate = {
        "--gate-client-ca": gate_client_ca,
        "--gate-open": gate_open,
        "--control-plane": control_plane,
    }
    option = next((name for name, is_given in of_gate.items() if is_given), "")
    if option and not drivers:
        error = InputError("nobody asks a gate without drivers", field=option)
        raise with_next(error, "give --driver")
    if image and drivers and bool(gate_client_ca) == gate_open:
        error = InputError("who may ask the gate?", field="--gate-client-ca")
        raise with_next(error, "give the Secret of callers' authority, or --gate-open")
    if drivers and not (control_plane or host_network):
        error = InputError("who reaches the gate's port?", field="--control-plane")
        raise with_next(error, "give the addresses of the API servers, such as 10.0.0.0/28")
    if control_plane and host_network:
        error = InputError("no NetworkPolicy has force on nodes' addresses", field="--host-network")
        raise with_next(error, "leave --control-plane out, and close the port by nodes' firewalls")
    for addresses in control_plane or ():
        try:
            ip_network(addresses)
        except ValueError as error:
            raise InputError(f"expected addresses: {error}", field="--control-plane") from error
    if api_service != (api_ca is not None):
        fact = "an APIService goes with the authority that it believes"
        option = "--api-ca" if api_service else "--api-service"
        raise InputError(fact, field=option)
    more = {"api": api or api_service, "api_ca": _encoded(content_of(api_ca)) if api_ca else ""}
    _print("scheduler", values | more)


def dra(
    *,
    drivers: Annotated[
        list[str],
        typer.Option(
            "--driver",
            help="DRA driver whose devices are guarded; may be given again.",
        ),
    ],
    ca: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Authority of the certificate that the gate shows."),
    ],
    name: Annotated[str, typer.Option("--name", help="What the configuration is called.")] = (
        "tenure-dra"
    ),
    namespace: Namespace = _NAMESPACE,
    service: Annotated[
        str, typer.Option(help="Service that selects the active replica.")
    ] = "tenure-scheduler",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of that Service.")] = 8445,
    url: Annotated[
        str, typer.Option(help="Base URL of a server outside the cluster, instead of the Service.")
    ] = "",
    releasers: Annotated[
        list[str],
        typer.Option(
            "--releaser",
            metavar="USER",
            help="Another kube-scheduler's user, who may let go of allocated claims too; may be"
            " given again.",
        ),
    ] = [],  # noqa: B006 - typer's, never changed
) -> None:
    """
    Print the gate of `tenure serve scheduler --gate` before every claim: it fails closed.

    And a policy: nobody but Kubernetes itself takes the finalizer off an allocated claim.

    The drivers are those that the service is started with. Remove it before the service.

    Example: tenure manifests dra --driver gpu.nvidia.com --ca tls/ca.crt | kubectl apply -f -
    """
    values = {**locals()}
    from scheduler.gate.configuration import listed
    from tenure.sources.text import content_of

    more = {
        "url": _base(url, "8445"),
        "ca": _encoded(content_of(ca)),
        "drivers": listed(drivers),
    }
    _print("dra", values | more)


def agent(
    *,
    image: Image,
    api_ca: ApiCa,
    proof_keys: Keys,
    ledger_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--ledger-key",
            metavar="VKEY",
            help="Likewise of the ledger's checkpoints, of which each node keeps the last.",
        ),
    ] = None,
    namespace: Namespace = _NAMESPACE,
    service: Api = "",
    cards: Annotated[
        str, typer.Option(help="CDI specification of the cards, in /var/run/cdi of the nodes.")
    ] = "/var/run/cdi/nvidia.yaml",
    kubelet_ca: KubeletCa = _KUBELET_CA,
    runtime_class: Annotated[
        str, typer.Option(help="Of a runtime that gives the agent the driver's library.")
    ] = "nvidia",
    gpushare: Annotated[
        bool, typer.Option("--gpushare", help="Also what the mode gpushare needs: to mark Pods.")
    ] = False,
    claims: Annotated[
        bool,
        typer.Option("--claims", help="Confirm the ends of claims, by kubelet's own folder."),
    ] = False,
    topology: Annotated[
        bool,
        typer.Option("--topology", help="Report nodes' CPUs, where Koordinator's agent does not."),
    ] = False,
    env: Annotated[
        bool, typer.Option("--env", help="The mode env, and what it needs: a Pod that proves it.")
    ] = False,
    probe_runtime_class: Annotated[
        str,
        typer.Option(
            help="With --env: the RuntimeClass of Pods that hold cards. Default: they name none."
        ),
    ] = "",
    isolation: Annotated[
        str, typer.Option(help="What keeps containers to their parts of cards, as for the agent.")
    ] = "none",
) -> None:
    """
    Print the DaemonSet of `tenure serve agent`, its rights, and the policy that narrows them.

    Example: tenure manifests agent --image registry/tenure:1 --api-ca ca.crt --proof-key proof.vkey
    """
    values = {**locals()}
    from agent.decide.isolation import Provider
    from ledger.domain.vocabulary import DEFAULT_VOCABULARY
    from tenure.keys import public_key

    if not cards.startswith("/var/run/cdi/"):
        raise InputError(f"not in /var/run/cdi: value={cards!r}", field="--cards")
    if env and gpushare:
        raise InputError("a cluster has one mode: --gpushare is another", field="--env")
    if env and Provider.named(isolation) is not Provider.NONE:
        fact = "the mode env can't bring a library into containers"
        raise InputError(fact, field="--isolation")
    mode = "env" if env else "gpushare" if gpushare else "plugin"
    more = {
        **_believed(service, api_ca, proof_keys),
        "ledger_keys": [str(public_key(key)) for key in ledger_keys or ()],
        "isolation": Provider.named(isolation),
        "mode": mode,
    }
    if mode != DEFAULT_VOCABULARY.slot_mode:
        fact = f"slotMode: {mode}"
        warn(f"the services refuse these agents without {fact} in the settings of both")
    _print("agent", values | more)


def cpus(
    *,
    image: Image,
    api_ca: ApiCa,
    proof_keys: Keys,
    namespace: Namespace = _NAMESPACE,
    service: Api = "",
    kubelet_ca: KubeletCa = _KUBELET_CA,
    kubepods: Annotated[
        str,
        typer.Option(help="The nodes' cgroup of all Pods: of cgroup v2, or of v1's cpuset."),
    ] = "/sys/fs/cgroup/kubepods.slice",
    kubepods_cpu: Annotated[
        str, typer.Option(help="Of v1: the same cgroup in the hierarchy of cpu.")
    ] = "",
    bind: Annotated[
        bool, typer.Option("--bind", help="Also what writing takes, on nodes with the label.")
    ] = False,
    nri: Annotated[
        bool,
        typer.Option("--nri", help="With --bind: the runtime binds containers as it makes them."),
    ] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="With --bind: CAP_SYS_ADMIN, for LSE Pods' CPUs.")
    ] = False,
) -> None:
    """
    Print the DaemonSet of `tenure serve cpus`, its rights, and the policy that narrows them.

    Without --bind it may write nothing, neither cgroups nor its Node; it plans.

    Example: tenure manifests cpus --image registry/tenure:1 --api-ca ca.crt --proof-key proof.vkey
    """
    values = {**locals()}
    name = kubepods.rpartition("/")[2]
    for option, path in (("--kubepods", kubepods), ("--kubepods-cpu", kubepods_cpu or kubepods)):
        is_below = path.startswith("/sys/fs/cgroup/") and ".." not in path.split("/")
        if not (is_below and path.endswith(f"/{name}") and "pods" in name):
            raise InputError(f"not a cgroup of all Pods: value={path!r}", field=option)
    for option, is_asked in (("--nri", nri), ("--partitions", partitions)):
        if is_asked and not bind:
            missing = InputError("nothing is bound where that is not asked for", field=option)
            raise with_next(missing, "give --bind, too")
    more = {"kubepods_name": name, "read_only": not bind}
    _print("cpus", values | more | _believed(service, api_ca, proof_keys))


def crds() -> None:
    """
    Print the kinds Device and NodeResourceTopology, for a cluster without Koordinator.

    Example: tenure manifests crds | kubectl apply -f -
    """
    _print("crds", {})


def _believed(service: str, api_ca: Path, proof_keys: list[str]) -> dict[str, object]:
    """Return whom a process of a node believes. Raises InputError: a file, a key or the URL."""
    from ledger.signing import published
    from tenure.keys import public_key
    from tenure.sources.text import content_of

    if service and not service.startswith("https://"):
        raise InputError(f"a token is sent by https alone: value={service!r}", field="--service")
    return {
        "api_ca": content_of(api_ca).decode(),
        "proof_keys": published(map(public_key, proof_keys)),
    }


def _base(url: str, port: str) -> str:
    if url and not url.startswith("https://"):
        fact = f"the API server calls webhooks by https alone: value={url!r}"
        step = f"give a URL such as https://10.0.0.1:{port}"
        raise with_next(InputError(fact, field="--url"), step)
    return url.rstrip("/")


def _encoded(authority: bytes) -> str:
    return base64.b64encode(authority).decode()


def _print(name: str, values: Mapping[str, object]) -> None:
    from tenure.serving.rendering import render

    typer.echo(render(name, values), nl=False)
