"""`tenure serve ...`: the services, each a process that runs until it is told to stop."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ledger.domain.errors import InputError
from tenure.commands import Commands
from tenure.options import LedgerUrl
from tenure.serving.agent_mode import AgentMode, ShareUnit

SERVE = typer.Typer(
    cls=Commands, name="serve", help="Run one of the services.", no_args_is_help=True
)


def _option(
    name: str,
    words: str,
    *flags: str,
    **more: Any,  # noqa: ANN401 - typer's own
) -> object:
    return typer.Option(*flags, envvar=f"TENURE_{name}", help=words, **more)


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    SERVE.command("webhook")(webhook)
    SERVE.command("scheduler")(scheduler)
    SERVE.command("agent")(agent)
    SERVE.command("inside", hidden=True)(inside)
    app.add_typer(SERVE)


def webhook(
    *,
    listen: Annotated[
        str, _option("WEBHOOK_LISTEN", "HOST:PORT that kube-apiserver calls, TLS.")
    ] = "0.0.0.0:8443",
    probes: Annotated[
        str, _option("WEBHOOK_PROBES", "HOST:PORT for /livez, /readyz and /metrics, plain.")
    ] = "0.0.0.0:8080",
    config: Annotated[
        Path | None,
        _option("WEBHOOK_CONFIG", "AdmissionConfiguration file, read again when it changes."),
    ] = None,
    kubeconfig: Annotated[
        str | None, _option("WEBHOOK_KUBECONFIG", "Credentials; the default is the Pod's own.")
    ] = None,
    certificates: Annotated[
        Path | None,
        _option(
            "WEBHOOK_CERTIFICATES",
            "Folder with tls.crt, tls.key and ca.crt that somebody else keeps.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        _option("WEBHOOK_NAME", "DNS name or address that callers use; may be given again."),
    ] = None,
    namespace: Annotated[
        str, _option("WEBHOOK_NAMESPACE", "Namespace of our own.")
    ] = "tenure-system",
    secret: Annotated[
        str, _option("WEBHOOK_SECRET", "Secret that holds the certificates.")
    ] = "tenure-webhook-certs",  # noqa: S107 - the name of a Secret is none
    configuration: Annotated[
        str,
        _option(
            "WEBHOOK_CONFIGURATION", "Name of the webhook configurations whose caBundle is ours."
        ),
    ] = "tenure",
    replica: Annotated[
        str | None, _option("WEBHOOK_REPLICA", "What tells this replica from others.")
    ] = None,
    drain_seconds: Annotated[
        float,
        _option("WEBHOOK_DRAIN_SECONDS", "How long after SIGTERM calls are still answered.", min=0),
    ] = 5.0,
    settle_seconds: Annotated[
        float,
        _option(
            "WEBHOOK_SETTLE_SECONDS", "How long a caBundle takes to reach every API server.", min=1
        ),
    ] = 30.0,
    scheduler_api: Annotated[
        str | None,
        _option(
            "WEBHOOK_SCHEDULER_API",
            "API of the scheduler that records refusals. Default: none are recorded.",
            metavar="URL",
        ),
    ] = None,
    scheduler_ca: Annotated[
        Path, _option("WEBHOOK_SCHEDULER_CA", "Authority of that API's certificate.")
    ] = Path("/etc/tenure/scheduler-api/ca.crt"),
    scheduler_token: Annotated[
        Path, _option("WEBHOOK_SCHEDULER_TOKEN", "Token of our own ServiceAccount.")
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    debug: Annotated[bool, typer.Option("--debug", help="Log more.")] = False,
) -> None:
    """
    Serve admission to kube-apiserver, with certificates that rotate themselves.

    Every option can be given by the environment, as the help says; the command line counts first.

    Example: tenure serve webhook --config admission.yaml
    """
    from tenure.extras import needs

    with needs("service"):
        from tenure.serving.logs import set_up_logs
        from tenure.serving.run import address, default_replica, run_service
        from tenure.serving.telling_refusals import RefusalTarget
        from tenure.serving.webhook import WebhookOptions, serve_webhook

    target = scheduler_api and RefusalTarget(
        url=scheduler_api, authority=scheduler_ca, token=scheduler_token
    )
    options = WebhookOptions(
        hooks=address(listen, "--listen"),
        probes=address(probes, "--probes"),
        config=config,
        kubeconfig=kubeconfig,
        certificates=certificates,
        names=tuple(name or (f"tenure-webhook.{namespace}.svc",)),
        namespace=namespace,
        secret=secret,
        configuration=configuration,
        replica=replica or default_replica(),
        drain_seconds=drain_seconds,
        settle=timedelta(seconds=settle_seconds),
        refusals=target or None,
    )
    set_up_logs(debug=debug)
    run_service(serve_webhook(options))


def scheduler(
    *,
    ledger: LedgerUrl = None,
    extender: Annotated[
        str, _option("SCHEDULER_EXTENDER", "HOST:PORT that kube-scheduler calls, TLS.")
    ] = "0.0.0.0:8443",
    probes: Annotated[
        str, _option("SCHEDULER_PROBES", "HOST:PORT for /livez, /readyz and /metrics, plain.")
    ] = "0.0.0.0:8080",
    api: Annotated[
        str | None,
        _option(
            "SCHEDULER_API",
            "Where people, agents and webhooks ask, TLS. Default: nowhere.",
            metavar="HOST:PORT",
        ),
    ] = None,
    api_name: Annotated[
        list[str] | None,
        _option("SCHEDULER_API_NAME", "DNS name or address that they use; may be given again."),
    ] = None,
    gate: Annotated[
        str | None,
        _option(
            "SCHEDULER_GATE",
            "Where kube-apiserver asks about claims, TLS. Default: nowhere.",
            metavar="HOST:PORT",
        ),
    ] = None,
    driver: Annotated[
        list[str] | None,
        _option(
            "SCHEDULER_DRIVER",
            "With --gate: DRA driver whose devices are guarded; may be given again.",
        ),
    ] = None,
    gate_name: Annotated[
        list[str] | None,
        _option(
            "SCHEDULER_GATE_NAME",
            "With --gate: DNS name or address that kube-apiserver uses; may be given again.",
        ),
    ] = None,
    gate_client_ca: Annotated[
        Path | None,
        _option(
            "SCHEDULER_GATE_CLIENT_CA",
            "With --gate: authority whose certificate callers show. Default: anybody calls.",
        ),
    ] = None,
    untold_devices: Annotated[
        Literal["refuse", "record"],
        _option(
            "SCHEDULER_UNTOLD_DEVICES",
            "Devices of drivers that no UUID, address or counter tells apart: `refuse` claims"
            " for them, or `record` them by name.",
        ),
    ] = "refuse",
    config: Annotated[
        Path | None, _option("SCHEDULER_CONFIG", "SchedulerConfiguration file.")
    ] = None,
    kubeconfig: Annotated[
        str | None, _option("SCHEDULER_KUBECONFIG", "Credentials; the default is the Pod's own.")
    ] = None,
    certificates: Annotated[
        Path,
        _option(
            "SCHEDULER_CERTIFICATES",
            "Folder with tls.crt, tls.key and ca.crt that somebody else keeps.",
        ),
    ],
    client_ca: Annotated[
        Path | None,
        _option(
            "SCHEDULER_CLIENT_CA",
            "The authority of kube-scheduler's own certificate; the default is ca.crt.",
        ),
    ] = None,
    proof_key: Annotated[
        Path, _option("SCHEDULER_PROOF_KEY", "Signer key of the proofs that Pods carry.")
    ],
    ledger_key: Annotated[
        Path,
        _option(
            "SCHEDULER_LEDGER_KEY", "Signer key of what Pods carry for a restore of the ledger."
        ),
    ],
    trusted_proof_key: Annotated[
        list[str] | None,
        _option(
            "SCHEDULER_TRUSTED_PROOF_KEY",
            "Verifier key of proofs that Pods still carry, or its file; may be given again.",
            metavar="VKEY",
        ),
    ] = None,
    namespace: Annotated[
        str, _option("SCHEDULER_NAMESPACE", "Namespace of our own.")
    ] = "tenure-system",
    name: Annotated[
        list[str] | None,
        _option(
            "SCHEDULER_NAME", "DNS name or address that kube-scheduler uses; may be given again."
        ),
    ] = None,
    replica: Annotated[
        str | None, _option("SCHEDULER_REPLICA", "What tells this replica from others.")
    ] = None,
    lease: Annotated[
        str, _option("SCHEDULER_LEASE", "Lease of the replica that leads, of all alike.")
    ] = "tenure-scheduler",
    pod: Annotated[
        str,
        typer.Option(
            envvar="POD_NAME",
            help="The Pod that we run in, which is labelled while we lead. Default: none.",
        ),
    ] = "",
    drain_seconds: Annotated[
        float,
        _option(
            "SCHEDULER_DRAIN_SECONDS", "How long after SIGTERM calls are still answered.", min=0
        ),
    ] = 5.0,
    card_metrics: Annotated[
        bool,
        _option(
            "SCHEDULER_CARD_METRICS",
            "Show every card in the metrics: three lines for each.",
            "--card-metrics",
        ),
    ] = False,
    evict_partial_gangs: Annotated[
        bool,
        _option(
            "SCHEDULER_EVICT_PARTIAL_GANGS",
            "Evict bound members of a gang that missed its deadline: all of it or nothing.",
            "--evict-partial-gangs",
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log more.")] = False,
) -> None:
    """
    Serve as the extender of a kube-scheduler: decide, record in the ledger, bind.

    Of several replicas one leads, the others stand by; `tenure manifests scheduler` prints them,
    and the kube-scheduler that asks.

    Example: tenure serve scheduler --certificates tls --proof-key pods.key --ledger-key my.key
    """
    from tenure.extras import needs
    from tenure.opening import ledger_url

    with needs("service"):
        from tenure.serving.alone import go_on
        from tenure.serving.run import address, default_replica
        from tenure.serving.scheduling.options import ApiOptions, GateListener, SchedulerOptions

    if bool(gate) != bool(driver):
        fact = "a gate goes with the drivers whose devices it guards"
        raise InputError(fact, field="--driver" if gate else "--gate")
    guard = gate and GateListener(
        where=address(gate, "--gate"),
        drivers=tuple(driver or ()),
        names=tuple(gate_name or (f"tenure-scheduler.{namespace}.svc",)),
        clients=gate_client_ca,
    )

    people = api and ApiOptions(
        where=address(api, "--api"),
        certificates=certificates,
        names=tuple(api_name or (f"tenure-api.{namespace}.svc",)),
        agent=f"system:serviceaccount:{namespace}:tenure-agent",
        webhook=f"system:serviceaccount:{namespace}:tenure-webhook",
    )
    options = SchedulerOptions(
        ledger=ledger_url(ledger),
        extender=address(extender, "--extender"),
        probes=address(probes, "--probes"),
        config=config,
        kubeconfig=kubeconfig,
        certificates=certificates,
        clients=client_ca,
        names=tuple(name or (f"tenure-scheduler.{namespace}.svc",)),
        proof_key=proof_key,
        ledger_key=ledger_key,
        replica=replica or default_replica(),
        trusted_proof_keys=tuple(trusted_proof_key or ()),
        namespace=namespace,
        lease=lease,
        pod=pod,
        drain_seconds=drain_seconds,
        api=people or None,
        gate=guard or None,
        untold=untold_devices,
        card_metrics=card_metrics,
        evict_partial_gangs=evict_partial_gangs,
    )
    go_on("tenure.serving.scheduler_alone", options, debug=debug)


def agent(
    *,
    mode: Annotated[
        AgentMode,
        _option(
            "AGENT_MODE", "How containers are shown their cards: the service's setting slotMode."
        ),
    ] = AgentMode.ENV,
    share_unit: Annotated[
        ShareUnit,
        _option(
            "AGENT_GPUSHARE_UNIT",
            "In the mode gpushare: the setting gpushare.unit.",
            "--gpushare-unit",
        ),
    ] = ShareUnit.MIB,
    cards: Annotated[
        list[Path] | None,
        _option(
            "AGENT_CARDS", "CDI specification of the node's cards by their ids; may be given again."
        ),
    ] = None,
    service: Annotated[
        str,
        _option(
            "AGENT_SERVICE",
            "The scheduler's API, which tells the holdings of this node.",
            metavar="URL",
        ),
    ] = "",
    token: Annotated[Path, _option("AGENT_TOKEN", "Our token, as kubelet mounts it.")] = Path(
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    ),
    authority: Annotated[
        Path, _option("AGENT_CA", "With --service: the authority of its listener.", "--ca")
    ] = Path("/etc/tenure/ca.crt"),
    kubelet: Annotated[
        str,
        _option(
            "AGENT_KUBELET", "Kubelet's listener, which tells the Pods of this node.", metavar="URL"
        ),
    ] = "https://127.0.0.1:10250",
    kubelet_authority: Annotated[
        Path, _option("AGENT_KUBELET_CA", "The authority of kubelet's listener.", "--kubelet-ca")
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
    proof_keys: Annotated[
        Path,
        _option(
            "AGENT_PROOF_KEYS",
            "With --service: folder of public keys, *.vkey, that sign what a node believes.",
        ),
    ] = Path("/etc/tenure/proof-keys"),
    holdings: Annotated[
        Path | None,
        _option(
            "AGENT_HOLDINGS",
            "Instead of --service: file with who holds what on this node, as JSON.",
        ),
    ] = None,
    plugins: Annotated[
        Path, _option("AGENT_PLUGINS", "Kubelet's folder of device plugins.")
    ] = Path("/var/lib/kubelet/device-plugins"),
    cdi: Annotated[
        Path, _option("AGENT_CDI", "Folder of CDI specifications that the runtime reads.")
    ] = Path("/var/run/cdi"),
    runtime: Annotated[
        str,
        _option(
            "AGENT_RUNTIME",
            "The container runtime's, asked whether it has CDI and what it runs; empty = it"
            " has, and no Pod is called gone.",
            metavar="SOCKET",
        ),
    ] = "/run/containerd/containerd.sock",
    slots: Annotated[
        int,
        _option(
            "AGENT_SLOTS", "How many containers with devices may be on the node at once.", min=1
        ),
    ] = 512,
    pod_resources: Annotated[
        Path,
        _option(
            "AGENT_POD_RESOURCES", "With --service: kubelet's socket that tells who was given what."
        ),
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    ledger_keys: Annotated[
        list[str] | None,
        _option(
            "AGENT_LEDGER_KEY",
            "Verifier key, or its file, of the ledger's checkpoints; may be given again.",
            "--ledger-key",
        ),
    ] = None,
    isolation: Annotated[
        str,
        _option(
            "AGENT_ISOLATION", "What keeps containers to their parts of cards: none or hami-core."
        ),
    ] = "none",
    library: Annotated[
        str,
        _option(
            "AGENT_ISOLATION_LIBRARY",
            "With --isolation: the node's path of its library, with a folder locks beside it.",
            "--isolation-library",
        ),
    ] = "/usr/local/vgpu/libvgpu.so",
    probe_image: Annotated[
        str,
        _option(
            "AGENT_PROBE_IMAGE",
            "In the mode env, with --node: has `tenure`, for the Pod that proves the mode.",
            metavar="IMAGE",
        ),
    ] = "",
    probe_namespace: Annotated[
        str, _option("AGENT_PROBE_NAMESPACE", "Likewise: where that Pod may be made.")
    ] = "tenure-system",
    probe_runtime_class: Annotated[
        str,
        _option(
            "AGENT_PROBE_RUNTIME_CLASS",
            "Likewise: the RuntimeClass of Pods that hold cards. Default: they name none.",
        ),
    ] = "",
    offers: Annotated[
        list[str],
        _option(
            "AGENT_OFFERS",
            "With --node: another way to ask for cards whose amounts the Node offers; may be"
            " given again.",
            metavar="DIALECT",
        ),
    ] = [],  # noqa: B006 - typer's, never changed
    node: Annotated[
        str,
        _option(
            "AGENT_NODE",
            "Name of this machine's Node: report its devices. Default, without --service"
            " alone: somebody else does.",
        ),
    ] = "",
    kubeconfig: Annotated[
        Path | None,
        _option(
            "AGENT_KUBECONFIG", "With --node: of a user of the cluster. Default: that of our Pod."
        ),
    ] = None,
    host: Annotated[Path, _option("AGENT_HOST", "Where the machine's own / is.")] = Path("/"),
    kubelet_root: Annotated[
        Path | None,
        _option(
            "AGENT_KUBELET_ROOT",
            "With --service and --node: kubelet's own folder; its record of claims says which"
            " have ended here. Default: claims end without this node's word.",
        ),
    ] = None,
    state: Annotated[
        Path, _option("AGENT_STATE", "With --node: folder of what outlives the agent.")
    ] = Path("/var/lib/tenure"),
    machine: Annotated[
        Path | None,
        _option(
            "AGENT_MACHINE",
            "With --node: describes the machine. Default: driver and kernel are asked.",
        ),
    ] = None,
    declared: Annotated[
        Path | None, _option("AGENT_DECLARED", "With --node: lists devices beside GPUs and NICs.")
    ] = None,
    bandwidth: Annotated[
        Path | None,
        _option(
            "AGENT_BANDWIDTH", "With --node: what p2pBandwidthLatencyTest or nccl-tests printed."
        ),
    ] = None,
    every: Annotated[
        float,
        _option(
            "AGENT_REPORT_SECONDS",
            "With --node: seconds between two reports.",
            "--report-seconds",
            min=0.1,
        ),
    ] = 30.0,
    probes: Annotated[
        str, _option("AGENT_PROBES", "HOST:PORT for /livez, /readyz and /metrics, plain.")
    ] = "0.0.0.0:8080",
    debug: Annotated[bool, typer.Option("--debug", help="Log more.")] = False,
) -> None:
    """
    Serve on a node: show each container the cards that it holds, by CDI, and report the machine.

    Example: tenure serve agent --service https://tenure-api.tenure-system:8444 --node n-17 \
--mode plugin --cards /var/run/cdi/nvidia.yaml
    """
    from tenure.extras import needs

    with needs("agent,service"):
        from tenure.keys import public_key
        from tenure.serving.agent import AgentOptions, KubeletOptions, ProbeOptions, provider_of
        from tenure.serving.agent_reporting import ReportingOptions, offered
        from tenure.serving.agent_witness import WitnessOptions
        from tenure.serving.agent_words import ServiceOptions
        from tenure.serving.alone import go_on
        from tenure.serving.run import address

    if bool(service) == (holdings is not None):
        fact = "the holdings are told by the service or by a file: give one of the two"
        raise InputError(fact, field="--service")
    for option, url in (("--service", service), ("--kubelet", kubelet)):
        if url and not url.startswith("https://"):
            raise InputError(f"a token is sent by https alone: value={url!r}", field=option)
    options = AgentOptions(
        probes=address(probes, "--probes"),
        plugins=plugins,
        cdi=cdi,
        cards=tuple(cards or ()),
        holdings=holdings
        or ServiceOptions(
            url=service.rstrip("/"),
            authority=authority,
            token=token,
            keys=proof_keys,
            state=state,
            host=host,
            mode=mode,
        ),
        slots=slots,
        isolation=provider_of(isolation, "--isolation"),
        library=library,
        kubelet=KubeletOptions(
            url=kubelet.rstrip("/"), authority=kubelet_authority, token=token, node=node
        ),
        runtime=Path(runtime) if runtime else None,
        mode=mode,
        share_unit=share_unit,
        reporting=ReportingOptions(
            node=node,
            kubeconfig=kubeconfig,
            host=host,
            state=state,
            machine=machine,
            declared=declared,
            bandwidth=bandwidth,
            seconds=every,
            offers=offered([*offers, *([mode] if mode is AgentMode.GPUSHARE else [])], "--offers"),
            share_unit=share_unit,
        )
        if node
        else None,
        witness=WitnessOptions(
            pod_resources=pod_resources,
            runtime=Path(runtime) if runtime else None,
            ledger_keys=tuple(map(public_key, ledger_keys or ())),
            kubelet_root=kubelet_root,
        )
        if node and service
        else None,
        probe=ProbeOptions(
            image=probe_image, namespace=probe_namespace, runtime_class=probe_runtime_class
        ),
    )
    go_on("tenure.serving.agent_alone", options, debug=debug)


def inside() -> None:
    """
    Say what this container sees of the node's cards: the agent's probe Pod runs it.

    Example: tenure serve inside
    """
    from agent.inside import TOLD, say

    say(os.environ, devices=Path("/dev"), told=TOLD)
