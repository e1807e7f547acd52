"""A Pod with nothing wrong, and every way to break one thing in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.objects import Object, container, pod

CORE = "koordinator.sh/gpu-core"
RATIO = "koordinator.sh/gpu-memory-ratio"
SHARED = "koordinator.sh/gpu.shared"
RDMA = "koordinator.sh/rdma"
QOS = "koordinator.sh/qosClass"
PRIORITY = "koordinator.sh/priority"
GROUP = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"
GANG = "gang.scheduling.koordinator.sh/name"
LEAST = "gang.scheduling.koordinator.sh/min-available"
SPEC = "scheduling.koordinator.sh/resource-spec"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
NUMA = "scheduling.koordinator.sh/numa-topology-spec"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESERVE = "scheduling.koordinator.sh/reserve-pod"
REQUESTS = "spec.containers[0].resources.requests"

AMOUNTS: Final = {
    CORE: 200,
    RATIO: 200,
    SHARED: 2,
    RDMA: 100,
    "cpu": "4",
    "memory": "8Gi",
}


def good() -> Object:
    """Return a Pod that has a bit of everything, and nothing to complain of."""
    return pod(
        container("main", limits=AMOUNTS, requests=AMOUNTS),
        labels={QOS: "LSR", PRIORITY: "7", GROUP: "job-7", REPLICA: "2"},
        annotations={
            GANG: "job-7",
            LEAST: "2",
            SPEC: {"preferredCPUBindPolicy": "FullPCPUs"},
            HINT: {"rdma": {"selector": {}}},
        },
        priority=9500,
    )


def amount(name: str, value: object, limit: object = None) -> Callable[[Object], None]:
    """Return a change of one amount, in requests and limits alike unless the limit is given."""

    def apply(body: Object) -> None:
        resources = body["spec"]["containers"][0]["resources"]
        resources["requests"][name] = value
        resources["limits"][name] = value if limit is None else limit

    return apply


def label(key: str, value: str) -> Callable[[Object], None]:
    """Return a change of one label."""
    return lambda body: body["metadata"]["labels"].__setitem__(key, value)


def annotation(key: str, value: str) -> Callable[[Object], None]:
    """Return a change of one annotation."""
    return lambda body: body["metadata"]["annotations"].__setitem__(key, value)


def spec(key: str, value: object) -> Callable[[Object], None]:
    """Return a change of one field of the spec."""
    return lambda body: body["spec"].__setitem__(key, value)


def without(name: str) -> Callable[[Object], None]:
    """Return the removal of an amount."""

    def apply(body: Object) -> None:
        resources = body["spec"]["containers"][0]["resources"]
        del resources["requests"][name], resources["limits"][name]

    return apply


def both(*changes: Callable[[Object], None]) -> Callable[[Object], None]:
    """Return several changes as one."""

    def apply(body: Object) -> None:
        for one in changes:
            one(body)

    return apply


def environment(body: Object) -> None:
    """Show the container every card."""
    body["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def annotated(key: str) -> str:
    """Return an annotation's field path."""
    return f"metadata.annotations[{key}]"


def labelled(key: str) -> str:
    """Return a label's field path."""
    return f"metadata.labels[{key}]"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break the good Pod; mutants of one topic may mask one another."""

    topic: str
    apply: Callable[[Object], None]
    expected: Mapping[str, str]


ARM = both(
    spec("nodeSelector", {"kubernetes.io/arch": "arm64"}),
    annotation(SPEC, '{"preferredCPUBindPolicy":"SpreadByPCPUs"}'),
)

MUTANTS: Final = {
    "a ratio of 250": Mutant(
        "gpu", both(amount(RATIO, 250), without(SHARED)), {f"{REQUESTS}[{RATIO}]": "DevicePercent"}
    ),
    "core that does not divide": Mutant(
        "gpu", amount(CORE, 199), {f"{REQUESTS}[{CORE}]": "ShareDivides"}
    ),
    "more than 100 on each": Mutant(
        "gpu", amount(CORE, 202), {f"{REQUESTS}[{CORE}]": "ShareDivides"}
    ),
    "core alone": Mutant(
        "gpu", both(without(RATIO), without(SHARED)), {f"{REQUESTS}[{CORE}]": "GpuCombination"}
    ),
    "shared 0": Mutant("gpu", amount(SHARED, 0), {f"{REQUESTS}[{SHARED}]": "GpuKeys"}),
    "a limit of its own": Mutant(
        "gpu", amount(CORE, 200, limit=100), {f"{REQUESTS}[{CORE}]": "RequestsEqualLimits"}
    ),
    "a second dialect": Mutant(
        "gpu",
        amount("aliyun.com/gpu-mem", 8138),
        {f"{REQUESTS}[aliyun.com/gpu-mem]": "OneDialect"},
    ),
    "rdma 150": Mutant("rdma", amount(RDMA, 150), {f"{REQUESTS}[{RDMA}]": "DevicePercent"}),
    "half a CPU": Mutant("cpu", amount("cpu", "3500m"), {f"{REQUESTS}[cpu]": "WholeCpus"}),
    "no CPU": Mutant("cpu", without("cpu"), {f"{REQUESTS}[cpu]": "WholeCpus"}),
    "a higher CPU limit": Mutant(
        "cpu", amount("cpu", "4", limit="8"), {f"{REQUESTS}[cpu]": "CpuLimits"}
    ),
    "a batch priority": Mutant("qos", spec("priority", 5500), {labelled(QOS): "QosPriority"}),
    "batch resources": Mutant(
        "batch",
        amount("kubernetes.io/batch-cpu", 1000),
        {f"{REQUESTS}[kubernetes.io/batch-cpu]": "BatchQos"},
    ),
    "a sub-priority in words": Mutant(
        "sub-priority", label(PRIORITY, "high"), {labelled(PRIORITY): "SubPriority"}
    ),
    "a replica in words": Mutant(
        "group", label(REPLICA, "two"), {labelled(REPLICA): "TopologyGroup"}
    ),
    "another group than the gang": Mutant(
        "group", label(GROUP, "job-8"), {labelled(GROUP): "GroupIsGang"}
    ),
    "another number than the gang": Mutant(
        "group", label(REPLICA, "3"), {labelled(REPLICA): "GroupIsGang"}
    ),
    "a gang of none": Mutant("group", annotation(LEAST, "0"), {annotated(LEAST): "Gang"}),
    "a hint that is no JSON": Mutant(
        "hint", annotation(HINT, "{"), {annotated(HINT): "AnnotationSyntax"}
    ),
    "a hint that nobody knows": Mutant(
        "hint",
        annotation(HINT, '{"rdma":{"allocateStrategy":"Most"}}'),
        {f"{annotated(HINT)}.rdma.allocateStrategy": "AnnotationSyntax"},
    ),
    "a hint that is not honoured": Mutant(
        "hint",
        annotation(HINT, '{"gpu":{"vfSelector":{}}}'),
        {f"{annotated(HINT)}.gpu.vfSelector": "NotSupported"},
    ),
    "a resource spec that is no JSON": Mutant(
        "spec", annotation(SPEC, "FullPCPUs"), {annotated(SPEC): "AnnotationSyntax"}
    ),
    "a resource spec that is a list": Mutant(
        "spec", annotation(SPEC, "[1]"), {annotated(SPEC): "AnnotationSyntax"}
    ),
    "a burst without a limit": Mutant(
        "spec",
        annotation(SPEC, '{"preferredCPUBindPolicy":"ConstrainedBurst"}'),
        {f"{annotated(SPEC)}.preferredCPUBindPolicy": "CpuBurst"},
    ),
    "a spread on ARM": Mutant(
        "spec", ARM, {f"{annotated(SPEC)}.preferredCPUBindPolicy": "ArmCpuPolicy"}
    ),
    "a NUMA policy that nobody knows": Mutant(
        "numa",
        annotation(NUMA, '{"numaTopologyPolicy":"Best"}'),
        {f"{annotated(NUMA)}.numaTopologyPolicy": "AnnotationSyntax"},
    ),
    "a forged allocation": Mutant(
        "forged", annotation(ALLOCATED, "{}"), {annotated(ALLOCATED): "ForgedAllocation"}
    ),
    "a reservation's mark": Mutant(
        "reserve", annotation(RESERVE, "true"), {annotated(RESERVE): "ReservePod"}
    ),
    "a node of its own": Mutant("node", spec("nodeName", "n1"), {"spec.nodeName": "PinnedNode"}),
    "every card to be seen": Mutant(
        "environment", environment, {"spec.containers[0].env[0].value": "VisibleDevices"}
    ),
    "two slots": Mutant(
        "slot",
        both(amount("tenure.sh/slot", 2), spec("schedulerName", "tenure")),
        {f"{REQUESTS}[tenure.sh/slot]": "SlotByHand"},
    ),
    "a card as overhead": Mutant(
        "overhead", spec("overhead", {CORE: 100}), {f"spec.overhead[{CORE}]": "DeviceOverhead"}
    ),
}


def broken(*mutants: Mutant) -> Object:
    """Return the good Pod with these things wrong."""
    body = copy.deepcopy(good())
    for mutant in mutants:
        mutant.apply(body)
    return body
