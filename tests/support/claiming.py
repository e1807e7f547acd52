"""Pods that would take a card of our nodes by themselves, and those that may not be refused."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE, pod

KEY: Final = "tenure.sh/owned"
BY_NAME: Final = {"key": KEY, "operator": "Exists"}
ANYTHING: Final = {"operator": "Exists"}
GPU_NODES: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
CORE: Final = {"koordinator.sh/gpu-core": "100"}
NONE: Final = {"koordinator.sh/gpu-core": "0"}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"

Pod = dict[str, Any]


def wanting(amounts: dict[str, str], *tolerations: dict[str, str], **spec: object) -> Pod:
    """Return a Pod of the default scheduler with these tolerations."""
    made = pod("a", amounts)
    made["spec"].update(spec, tolerations=[*tolerations])
    return made


def selecting(*expressions: Mapping[str, object], field: str = "matchExpressions") -> Pod:
    """Return a required node affinity: one term for each expression."""
    terms = [{field: [expression]} for expression in expressions]
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}


def on_key(operator: str, *values: str) -> dict[str, object]:
    """Return an expression on the label of our nodes."""
    made: dict[str, object] = {"key": KEY, "operator": operator}
    return {**made, "values": [*values]} if values else made


def pinned_to(node: str) -> Pod:
    """Return the affinity that the DaemonSet controller gives its Pods."""
    name = {"key": "metadata.name", "operator": "In", "values": [node]}
    return selecting(name, field="matchFields")


def of_a_daemon_set(made: Pod) -> Pod:
    """Return the Pod with an owner that may or may not exist."""
    made = deepcopy(made)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


def in_section(section: str, amounts: dict[str, str], **more: object) -> Pod:
    """Return a Pod whose devices are asked for in another list of containers."""
    made = wanting({"cpu": "1"}, BY_NAME)
    resources = {"limits": amounts, "requests": amounts}
    made["spec"][section] = [{"name": "x", "image": "x", "resources": resources, **more}]
    return made


def only(kind: str) -> Pod:
    """Return a Pod that asks in its requests, or its limits, alone, by a name that may."""
    made = wanting({}, BY_NAME)
    made["spec"]["containers"][0]["resources"] = {kind: {"kubernetes.io/gpu": "100"}}
    return made


def labelled(made: Pod, **labels: str) -> Pod:
    """Return the Pod with labels of our domain."""
    made = deepcopy(made)
    made["metadata"]["labels"] = {f"tenure.sh/{key}": value for key, value in labels.items()}
    return made


REFUSED: Final[dict[str, Pod]] = {
    "our taint by name, whole cards": wanting(CORE, BY_NAME),
    "our taint by name and value": wanting(CORE, {"key": KEY, "operator": "Equal", "value": "x"}),
    "our taint by name, one effect": wanting(CORE, {**BY_NAME, "effect": "NoSchedule"}),
    "our taint by name, a name that others share": wanting(WHOLE, BY_NAME),
    "our taint by name, a NIC": wanting({"koordinator.sh/rdma": "1"}, BY_NAME),
    "our taint by name, mGPU": wanting(MGPU, BY_NAME),
    "our taint by name, GPU share": wanting(GPUSHARE, BY_NAME),
    "our taint by name, the proposal's name": wanting({"kubernetes.io/gpu": "100"}, BY_NAME),
    "our taint by name, kept off by affinity": wanting(
        CORE, BY_NAME, affinity=selecting(on_key("DoesNotExist"))
    ),
    "our taint by name, taken out of takeover": labelled(wanting(CORE, BY_NAME), takeover="false"),
    "our taint by name, a made-up owner": of_a_daemon_set(wanting(CORE, BY_NAME)),
    "our taint by name, bound to one node": wanting(CORE, BY_NAME, affinity=pinned_to("n")),
    "our taint by name, another scheduler": wanting(CORE, BY_NAME, schedulerName="volcano"),
    "our taint by name, in an init container": in_section("initContainers", CORE),
    "our taint by name, in a sidecar": in_section("initContainers", CORE, restartPolicy="Always"),
    "our taint by name, requests only": only("requests"),
    "our taint by name, limits only": only("limits"),
    "our taint by name, a claim": wanting(
        {"cpu": "1"}, BY_NAME, resourceClaims=[{"name": "c", "resourceClaimName": "gpu"}]
    ),
    "everything, whole cards": wanting(CORE, ANYTHING),
    "everything of one effect": wanting(HALF, {**ANYTHING, "effect": "NoSchedule"}),
    "everything, an empty key": wanting(CORE, {"key": "", **ANYTHING}),
    "everything, a card whose name stays as it is": wanting({"amd.com/gpu": "1"}, ANYTHING),
    "everything, bound to one node": wanting(CORE, ANYTHING, affinity=pinned_to("n")),
    "everything, a DaemonSet": of_a_daemon_set(wanting(CORE, ANYTHING)),
    "everything, one of two terms open": wanting(
        CORE,
        ANYTHING,
        affinity=selecting(on_key("DoesNotExist"), {"key": "zone", "operator": "Exists"}),
    ),
    "everything, our nodes wanted": wanting(CORE, ANYTHING, affinity=selecting(on_key("Exists"))),
    "everything, our nodes selected": wanting(CORE, ANYTHING, nodeSelector={KEY: "true"}),
    "a slot": wanting({"tenure.sh/slot": "1"}),
    "anything in our domain": wanting({"tenure.sh/other": "1"}),
}

ALLOWED: Final[dict[str, Pod]] = {
    "a GPU on a node of somebody else's": wanting(WHOLE, GPU_NODES),
    "a GPU, and everything tolerated": wanting(WHOLE, ANYTHING),
    "a name of ours without a toleration": wanting(CORE),
    "a name of ours on tainted GPU nodes": wanting(CORE, GPU_NODES),
    "a taint whose name is like ours": wanting(CORE, {**BY_NAME, "key": f"{KEY}-too"}),
    "no device, our taint by name": wanting({"cpu": "1"}, BY_NAME),
    "no device, everything": of_a_daemon_set(wanting({"cpu": "1"}, ANYTHING)),
    "none of a device": wanting(NONE, BY_NAME),
    "none of a device, everything": wanting(NONE, ANYTHING),
    "none of our own": wanting({"tenure.sh/slot": "0"}),
    "everything, kept off by affinity": wanting(
        CORE, ANYTHING, affinity=selecting(on_key("DoesNotExist"))
    ),
    "everything, kept off by value": wanting(
        CORE, ANYTHING, affinity=selecting(on_key("NotIn", "true"), on_key("In", "false"))
    ),
    "everything, kept off by selector": of_a_daemon_set(
        wanting(CORE, ANYTHING, nodeSelector={KEY: "false"}, affinity=pinned_to("n"))
    ),
}
