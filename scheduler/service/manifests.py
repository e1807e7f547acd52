"""
The second kube-scheduler that asks Tenure, and what both may do, as API objects.

Rule: design section 8, "Guests in the cluster": a stock kube-scheduler of the cluster's own minor
version with the profile `tenure` alone; the default scheduler is never touched.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.annotations.wire import TRUE
from ledger.domain.dialects.dra.accounts import UntoldDevices
from ledger.domain.resources import GPU_TEMPLATES_NAME, LABEL_TENURE_LEADER, WAKING_CLASS
from scheduler.service.api.words import (
    AGENT_ACCOUNT,
    FORCE,
    GROUP,
    HOLDINGS,
    RESOURCE,
    VERSION,
)
from scheduler.service.deployment import LOCKED, Deployed, deployment
from scheduler.service.witnesses import CONFIG_MAP

PROFILE: Final = "tenure"
RBAC: Final = "rbac.authorization.k8s.io/v1"
HTTP_TIMEOUT: Final = "10s"
WEIGHT: Final = 5
QPS: Final = 1000
SCORES_OFF: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation", "ImageLocality")
"""They would rate nodes by what Tenure's policy rates them by, and otherwise."""
API_PORT: Final = 8444
GATE_PORT: Final = 8445
_MOUNT: Final = "/etc/tenure"

Thing = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiManifests:
    """
    What people and agents are answered by.

    Attributes:
        service: of the listener, on every replica.
        authority: PEM, whose leaf it shows; for the APIService, which is left out without one: as
            long as it is unavailable, no namespace of the cluster is deleted.
    """

    service: str = "tenure-api"
    authority: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerManifests:
    """
    What the objects say.

    Attributes:
        name: what they are called.
        service: of Tenure's extender.
        version: of the cluster, such as v1.36.3: kube-scheduler has the same.
        lease: of the replica of Tenure's that leads.
        deployed: how Tenure's replicas run; None = somebody else runs them.
        secret: with kube-scheduler's `tls.crt`, `tls.key` and the `ca.crt` of the extender.
        api: None = nobody but kube-scheduler is answered.
        evict_partial_gangs: as the scheduler's option, with the right that it needs.
        drivers: whose claims it guards, with the rights and the port that this needs.
        gate_port: where it is asked about claims.
        untold: as the scheduler's option `--untold-devices`.
    """

    name: str = "tenure"
    namespace: str = "tenure-system"
    service: str = "tenure-scheduler"
    version: str = ""
    secret: str = "tenure-kube-scheduler-certs"  # noqa: S105 - the name of a Secret is none
    replicas: int = 1
    api: ApiManifests | None = None
    lease: str = "tenure-scheduler"
    deployed: Deployed | None = None
    evict_partial_gangs: bool = False
    drivers: Sequence[str] = ()
    gate_port: int = GATE_PORT
    untold: UntoldDevices = "refuse"


def extender(url: str, folder: str) -> Thing:
    """
    Return the extender's entry of a kube-scheduler's configuration.

    Rule: GPU-sharing contract C.1, "Ours". No managedResources: a Pod with a CPU set asks for no
    extended resource, and the profile decides who comes.

    Args:
        folder: with `tls.crt`, `tls.key` and `ca.crt`.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": WEIGHT,
        "enableHTTPS": True,
        "tlsConfig": {
            "certFile": f"{folder}/tls.crt",
            "keyFile": f"{folder}/tls.key",
            "caFile": f"{folder}/ca.crt",
        },
        "httpTimeout": HTTP_TIMEOUT,
        "nodeCacheCapable": True,
        "ignorable": False,
    }


def configuration(url: str, folder: str, *, namespace: str, kubeconfig: str = "") -> Thing:
    """Return the KubeSchedulerConfiguration; without a kubeconfig it runs in the cluster."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": QPS, "burst": 2 * QPS},
        "leaderElection": {
            "leaderElect": not kubeconfig,
            "resourceNamespace": namespace,
            "resourceName": "tenure-kube-scheduler",
        },
        "percentageOfNodesToScore": 100,
        "profiles": [
            {
                "schedulerName": PROFILE,
                "plugins": {"score": {"disabled": [{"name": name} for name in SCORES_OFF]}},
            }
        ],
        "extenders": [extender(url, folder)],
    }


def manifests(options: SchedulerManifests) -> list[Thing]:
    """Return all objects, in an order in which they can be applied."""
    answers = [] if options.api is None else _answers(options, options.api)
    return [*_tenure(options), *answers, *_kube_scheduler(options)]


def _tenure(options: SchedulerManifests) -> list[Thing]:
    """
    Return the account of `tenure serve scheduler` with the rights that it needs, and its Service.

    No wildcard, no Secret: its certificates and keys are files.
    """
    name, account = f"{options.name}-scheduler", f"{options.name}-scheduler"
    inventory = (
        ("devices", "scheduling.koordinator.sh"),
        (
            "noderesourcetopologies",
            "topology.node.k8s.io",
        ),
    )
    head = [
        _may(["create"], "", ["configmaps"]),
        _may(["get", "patch"], "", ["configmaps"], names=[CONFIG_MAP]),
    ]
    rules = [
        _may(["get", "list", "watch", "patch"], "", ["pods"]),
        _may(["create"], "", ["pods/binding"]),
        *([_may(["create"], "", ["pods/eviction"])] if options.evict_partial_gangs else []),
        _may(["list", "watch", "patch"], "", ["nodes", "namespaces"]),
        _may(["list", "watch"], "policy", ["poddisruptionbudgets"]),
        *(_may(["list", "watch"], group, [kind]) for kind, group in inventory),
        _may(["get"], "", ["namespaces"], names=["kube-system"]),
        _may(["list", "watch"], "", ["configmaps"], names=[GPU_TEMPLATES_NAME]),
        _may(["create", "patch"], "events.k8s.io", ["events"]),
        *_of_claims(is_gate=bool(options.drivers)),
    ]
    ports = [{"name": "extender", "port": 443, "targetPort": 8443}]
    if options.drivers:
        port = options.gate_port
        ports.append({"name": "gate", "port": port, "targetPort": port})
    return [
        _account(account, options.namespace),
        _role("ClusterRole", name, "", rules),
        _bound("ClusterRole", name, name, account, options.namespace),
        _role("Role", name, "kube-system", [_may(["list", "watch"], "", ["configmaps"])]),
        _bound("Role", name, name, account, options.namespace, within="kube-system"),
        _role("Role", name, options.namespace, [*_leases(options.lease), *head]),
        _bound("Role", name, name, account, options.namespace, within=options.namespace),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(options.service, options.namespace),
            "spec": {
                "selector": {"app.kubernetes.io/name": name, LABEL_TENURE_LEADER: TRUE},
                "ports": ports,
            },
        },
        *_deployed(options, name),
    ]


def _of_claims(*, is_gate: bool) -> list[Thing]:
    """
    Return the rights to follow claims and what there is for them.

    For a gate also those to move a claim's version, to keep templates, to let schedulers pass
    over a device, and to have them try Pods again.
    """
    group, gate, rules = "resource.k8s.io", ["patch"] * is_gate, ["create", "delete"] * is_gate
    keep = _may(["get", "list", "create", "delete"], group, ["resourceclaimtemplates"])
    classes = ["deviceclasses"]
    return [
        _may(["list", "watch"], group, [*classes, "resourceslices"]),
        _may(["get", "list", "watch", *gate], group, ["resourceclaims"]),
        _may(["list", "watch", *rules], group, ["devicetaintrules"]),
        *([keep, _may(["create"], group, classes)] if is_gate else []),
        *([_may(["patch"], group, classes, names=[WAKING_CLASS])] if is_gate else []),
    ]


def _deployed(options: SchedulerManifests, name: str) -> list[Thing]:
    if options.deployed is None:
        return []
    args = ["--namespace", options.namespace, "--lease", options.lease]
    args += ["--name", f"{options.service}.{options.namespace}.svc"]
    if options.evict_partial_gangs:
        args += ["--evict-partial-gangs"]
    if options.drivers:
        args += ["--gate", f"0.0.0.0:{options.gate_port}"]
        args += [part for driver in options.drivers for part in ("--driver", driver)]
        args += ["--gate-name", f"{options.service}.{options.namespace}.svc"]
    if options.untold != "refuse":
        args += ["--untold-devices", options.untold]
    if options.api is not None:
        args += ["--api", f"0.0.0.0:{API_PORT}"]
        args += ["--api-name", f"{options.api.service}.{options.namespace}.svc"]
    return deployment(options.deployed, name=name, namespace=options.namespace, args=args)


def _answers(options: SchedulerManifests, api: ApiManifests) -> list[Thing]:
    """
    Return what answering takes: to ask who calls and what they may, and roles for callers.

    The roles are bound by whoever installs it, where they like.

    With an authority also the APIService; see `ApiManifests`.
    """
    name, namespace = f"{options.name}-api", options.namespace
    account = f"{options.name}-scheduler"
    reviews = (
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    )
    proxies = _may(["get"], "", ["configmaps"], names=["extension-apiserver-authentication"])
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(api.service, namespace),
        "spec": {
            "selector": {"app.kubernetes.io/name": account},
            # Discovery is answered by who has no ledger and is not ready for kube-scheduler too.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "api", "port": 443, "targetPort": API_PORT}],
        },
    }
    things = [
        _role(
            "ClusterRole", name, "", [_may(["create"], group, [kind]) for group, kind in reviews]
        ),
        _bound("ClusterRole", name, name, account, namespace),
        _role("Role", name, "kube-system", [proxies]),
        _bound("Role", name, name, account, namespace, within="kube-system"),
        _role("ClusterRole", f"{options.name}-answers", "", [_may(["get"], GROUP, [RESOURCE])]),
        _role(
            "ClusterRole", f"{options.name}-force-release", "", [_may([FORCE], GROUP, [HOLDINGS])]
        ),
        _account(AGENT_ACCOUNT, namespace),  # its token says whose node it is; it has no rights
        service,
    ]
    if not api.authority:
        return things
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": _metadata(f"{VERSION}.{GROUP}", ""),
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": base64.b64encode(api.authority).decode(),
            "service": {"name": api.service, "namespace": namespace, "port": 443},
        },
    }
    return [*things, registered]


def _kube_scheduler(options: SchedulerManifests) -> list[Thing]:
    name, namespace = f"{options.name}-kube-scheduler", options.namespace
    url = f"https://{options.service}.{namespace}.svc"
    config = configuration(url, f"{_MOUNT}/certs", namespace=namespace)
    reader = "extension-apiserver-authentication-reader"
    return [
        _account(name, namespace),
        _bound("ClusterRole", name, "system:kube-scheduler", name, namespace),
        _bound("ClusterRole", f"{name}-volumes", "system:volume-scheduler", name, namespace),
        _bound("Role", name, reader, name, namespace, within="kube-system"),
        _role("Role", name, namespace, _leases("tenure-kube-scheduler")),
        _bound("Role", name, name, name, namespace, within=namespace),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(name, namespace),
            "data": {"config.yaml": json.dumps(config, indent=2)},  # JSON is YAML
        },
        _deployment(options, name),
    ]


def _deployment(options: SchedulerManifests, name: str) -> Thing:
    labels = {"app.kubernetes.io/name": name}
    container = {
        "name": "kube-scheduler",
        "image": f"registry.k8s.io/kube-scheduler:{options.version}",
        "args": [f"--config={_MOUNT}/config/config.yaml"],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": 10259, "scheme": "HTTPS"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 10259, "scheme": "HTTPS"}},
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": "config", "mountPath": f"{_MOUNT}/config", "readOnly": True},
            {"name": "certs", "mountPath": f"{_MOUNT}/certs", "readOnly": True},
        ],
        "securityContext": LOCKED,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_metadata(name, options.namespace), "labels": labels},
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "priorityClassName": "system-cluster-critical",
                    "containers": [container],
                    "volumes": [
                        {"name": "config", "configMap": {"name": name}},
                        {"name": "certs", "secret": {"secretName": options.secret}},
                    ],
                },
            },
        },
    }


def _may(verbs: list[str], group: str, kinds: list[str], names: Sequence[str] = ()) -> Thing:
    rule: Thing = {"apiGroups": [group], "resources": kinds, "verbs": verbs}
    return {**rule, "resourceNames": list(names)} if names else rule


def _leases(name: str) -> list[Thing]:
    group = "coordination.k8s.io"
    return [
        _may(["create"], group, ["leases"]),
        _may(["get", "update"], group, ["leases"], names=[name]),
    ]


def _account(name: str, namespace: str) -> Thing:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(name, namespace)}


def _role(kind: str, name: str, namespace: str, rules: list[Thing]) -> Thing:
    return {
        "apiVersion": RBAC,
        "kind": kind,
        "metadata": _metadata(name, namespace),
        "rules": rules,
    }


def _bound(
    kind: str, name: str, role: str, account: str, namespace: str, *, within: str = ""
) -> Thing:
    return {
        "apiVersion": RBAC,
        "kind": f"{kind if not within else 'Role'}Binding",
        "metadata": _metadata(name, within),
        "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _metadata(name: str, namespace: str) -> Thing:
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
