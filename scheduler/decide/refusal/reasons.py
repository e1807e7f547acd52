"""Why a node can't take a Pod: the texts, what would help, and the message that counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain import resources as res
from ledger.domain.dialects.names import FOREIGN_WORDS
from ledger.domain.dialects.protocol import no_offers
from ledger.domain.dialects.registry import gpu_dialect_of, reader_of
from ledger.domain.nodes import NodeFacts, Taint
from scheduler.decide.outcome import Unplaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """
    One reason, without node names and numbers, so that kube-scheduler can count it.

    Rule: cli.md, Output.

    Attributes:
        text: kube-scheduler's words for its own predicates, the Koordinator contract's section 13
            where it has one, else a code in CamelCase.
        remedy: what would have made the Pod fit, as far as the reason alone tells; empty where
            the numbers of a node tell more.
        device_type: the type it is about, if the numbers of its cards say more.
        code: our finer word where the contract has one text for several causes; for people, never
            in the message that kube-scheduler counts.
    """

    text: str
    remedy: str = ""
    device_type: str = ""
    code: str = ""

    @property
    def name(self) -> str:
        """Return what `why` and the report call it: the finer word if there is one."""
        return self.code or self.text


UNSCHEDULABLE: Final = Reason(text="node(s) were unschedulable", remedy="uncordon the node")
UNEXPLAINED: Final = Reason(
    text="Unexplained", remedy="report it: the node was passed over without a reason of ours"
)
"""Never said: a node that passes every stage is chosen. Better than a reason that is not true."""

NODE_LOST: Final = Reason(
    text="NodeLost", remedy="bring the node back into service, or let its machine register again"
)
REGISTERED_AGAIN: Final = Reason(
    text="MachineRegisteredAgain",
    remedy="see the newer Node object: it gives what the machine has",
)
NOT_OFFERED: Final = Reason(
    text="NodeNotOffered",
    remedy="see kube-scheduler's own event: amounts, ports, volumes, spreading or Pod affinity said"
    " no",
)
NODE_ABSENT: Final = Reason(text="NodeAbsent")
"""Never said: no node is there."""

AFFINITY: Final = Reason(
    text="node(s) didn't match Pod's node affinity/selector",
    remedy="change the Pod's node selector or affinity, or the node's labels",
)
GPU_VENDOR: Final = Reason(
    text=f"node(s) didn't have GPUs of the vendor asked for (label {res.LABEL_GPU_VENDOR})",
    remedy="add a node with GPUs of that vendor; if these are such, label the node, or its Device"
    f" object, {res.LABEL_GPU_VENDOR} with it",
)
NOT_ISOLATED: Final = Reason(
    text=f"node(s) didn't have the isolation asked for (label {res.LABEL_GPU_ISOLATION_PROVIDER})",
    remedy=f"give the node the provider ({res.LABEL_GPU_ISOLATION_PROVIDER} says which it has), or"
    f' label the namespace {res.TENURE_ISOLATION} "none" if nobody has to limit parts of cards'
    " there",
)
BY_CLAIMS: Final = Reason(
    text="node(s) give the resource by resource claims, which are not looked at",
    remedy="ask kube-scheduler: dynamic resource allocation is its own",
)
TOO_MANY_PODS: Final = Reason(text="Too many pods", remedy="end a Pod on the node")
INSUFFICIENT_CPU: Final = Reason(text="Insufficient cpu")
INSUFFICIENT_AMPLIFIED_CPU: Final = Reason(
    text="Insufficient amplified cpu",
    remedy="end Pods on the node; a CPU of one's own counts as much as the node's ratio says",
)
INSUFFICIENT_MEMORY: Final = Reason(text="Insufficient memory")
UNKNOWN_CARD: Final = Reason(
    text="node(s) have a Pod on an unknown card",
    remedy="end the Pod that holds a device without an allocation annotation",
)
BY_NUMBER: Final = Reason(
    text="node(s) give whole cards by number alone",
    remedy=f"label the namespace {res.TENURE_WHOLE_CARDS}=nvidia; on nodes with the agent ours:"
    " groups, links, partitions, NUMA policies and CPUs of one's own need named cards",
)
NO_CPU_TOPOLOGY: Final = Reason(
    text="node(s) invalid CPU Topology",
    remedy="report the node's CPUs in a NodeResourceTopology",
)
CPUS_NOT_BOUND: Final = Reason(
    text="CPUsNotBound",
    remedy="let the node's agent bind CPUs, which then labels the node"
    f" {res.LABEL_TENURE_CPU_MANAGED}=true; where koordlet binds them, set cpu.boundBy: koordlet",
)
INSUFFICIENT_CPUS: Final = Reason(
    text="not enough cpus available to satisfy request",
    remedy="end a Pod that has CPUs of its own, or ask for fewer",
)
NODE_NOT_OWNED: Final = Reason(
    text="NodeNotOwned",
    remedy=f"taint the node {res.TAINT_TENURE_OWNED}:NoSchedule and label it"
    f" {res.LABEL_TENURE_OWNED}=true",
)
NODE_OF_OTHER_SCHEDULER: Final = Reason(
    text="NodeOfOtherScheduler",
    remedy="take that scheduler's device plugin off the node, or own the node: taint it"
    f" {res.TAINT_TENURE_OWNED}:NoSchedule and label it {res.LABEL_TENURE_OWNED}=true",
)
DIALECT_NOT_SERVED: Final = Reason(
    text="DialectNotServed",
    remedy="ask in a dialect that the node advertises, or report its cards in a Device object",
)
NO_COMBINATION: Final = Reason(
    text="NoCombinationOfDevices",
    remedy="end Pods on the node, or split the Pod: its containers together ask for too much",
)


NO_SHARED_TEMPLATE: Final = Reason(
    text="no matched GPU shared resource template",
    remedy="ask for exactly what one template of the node's cards has",
)
UNSHARED_MODEL: Final = Reason(
    text="node(s) GPU model is not shared",
    remedy="ask for whole GPUs, or take the model out of devices.gpuShareUnsupportedModels",
)
NO_PARTITION_TABLE: Final = Reason(
    text="node(s) missing GPU Partition Table",
    remedy="report the node's GPU partitions on its Device object, or ask without them",
)
PARTITION_COUNT: Final = Reason(
    text="node(s) Unsupported number of GPU requests",
    remedy="ask for a number of GPUs that the node's partition table has",
)
NO_FREE_PARTITION: Final = Reason(
    text="Insufficient Partitioned GPU Devices",
    remedy="end Pods until a whole partition is free, or ask for a slower ring",
)
TOPOLOGY_SCOPE: Final = Reason(
    text="Insufficient Topology Scoped GPU Devices",
    remedy="end Pods under one scope, or require a wider one",
)
NO_TOPOLOGY_TREE: Final = Reason(
    text="node(s) missing GPU Device Topology Tree",
    remedy="report the topology of every GPU, or require no scope",
)
MULTI_SHARED_GPU: Final = Reason(
    text="node(s) Unsupported Multi-Shared GPU",
    remedy="ask for whole GPUs, or require no scope for parts of several",
)
NOT_WHOLE_CORES: Final = Reason(
    text="node(s) requested cpus not multiple cpus per core",
    remedy="ask for a multiple of the CPUs of a core, or only prefer FullPCPUs",
)
BIND_POLICY_CONFLICT: Final = Reason(
    text="node(s) cpu bind policy conflicts with pod's required cpu bind policy",
    remedy="require the policy that the node has, or only prefer one",
)
NUMA_POLICY_CONFLICT: Final = Reason(
    text="node(s) NUMA Topology policy not match",
    remedy="name the NUMA policy that the node has, or none",
)
NO_NUMA_NODES: Final = Reason(
    text="node(s) missing NUMA resources",
    remedy="report the node's NUMA nodes in a NodeResourceTopology",
)
KUBELET_UNALIGNED: Final = Reason(
    text="node(s) kubelet would reject the pod's NUMA affinity",
    remedy="free CPUs of the same NUMA nodes: kubelet takes no more nodes than the CPUs need",
)
INSUFFICIENT_POOL: Final = Reason(
    text="Insufficient CPU shared pool",
    remedy="end Pods that have CPUs of their own, or lower the cpu limit",
)
INSUFFICIENT_NUMA_CPU: Final = Reason(
    text="Insufficient NUMA cpu",
    remedy="end Pods on the same NUMA nodes, or ask for fewer CPUs",
)
UNALIGNED: Final = Reason(
    text="Unaligned NUMA Hint cause",
    remedy="free CPUs, memory and devices of the same NUMA nodes, or ask for BestEffort",
)
UNSATISFIED: Final = Reason(
    text="Unsatisfied NUMA", remedy="free what is named on the NUMA nodes, or ask for less of it"
)
"""The last two begin a text that goes on with the resources."""
JOINT_RULES: Final = Reason(
    text="node(s) Device Joint-Allocate rules violation",
    remedy="free devices under the same PCIe roots, or require no scope",
)


def no_functions(device_type: str) -> Reason:
    """Return the reason for devices that have no virtual functions at all (contract 13)."""
    return Reason(
        text=f"Insufficient {device_type} VirtualFunctions",
        remedy="create virtual functions and report them on the Device object",
    )


_CLOSER: Final = {
    reason.text: reason
    for reason in (
        NOT_OFFERED,
        BY_NUMBER,
        NO_COMBINATION,
        NO_PARTITION_TABLE,
        PARTITION_COUNT,
        NO_FREE_PARTITION,
        TOPOLOGY_SCOPE,
        NO_TOPOLOGY_TREE,
        MULTI_SHARED_GPU,
        JOINT_RULES,
        NUMA_POLICY_CONFLICT,
        NO_NUMA_NODES,
        INSUFFICIENT_NUMA_CPU,
        INSUFFICIENT_AMPLIFIED_CPU,
        INSUFFICIENT_POOL,
        KUBELET_UNALIGNED,
        CPUS_NOT_BOUND,
        INSUFFICIENT_CPUS,
        NOT_WHOLE_CORES,
        BIND_POLICY_CONFLICT,
    )
}


def not_offered(stored: Sequence[str], node: NodeFacts) -> Reason | None:
    """
    Return why kube-scheduler offers no such node, by what the node advertises.

    None where the node advertises all names that the Pod is stored with, or it is not known.
    """
    there = node.advertised
    missing = next((name for name in stored if there is not None and name not in there), None)
    if missing is None:
        return None
    remedy = _advertiser(missing)
    fact = f"the node does not advertise {missing}"
    return Reason(text=f"{NOT_OFFERED.text}: {fact}: {remedy}", remedy=remedy)


def _advertiser(name: str) -> str:
    """Return what to do so that a node advertises a name."""
    dialect = gpu_dialect_of(name)
    if name == res.SLOT:
        return "run the agent with --mode plugin there"
    if name.startswith(res.DOMAIN_KOORDINATOR):
        return "run the agent with --node there"
    if name.startswith(res.DOMAIN_KUBERNETES):
        return "set admission's domain to koordinator.sh, and run the agent with --node there"
    reader = None if dialect is None else reader_of(dialect)
    if reader is not None and reader.words in FOREIGN_WORDS and reader.offers is not no_offers:
        return f"run the agent with --offers {dialect} there"
    vendor = "NVIDIA's" if name == res.NVIDIA_GPU else "its vendor's"
    return f"run {vendor} device plugin there"


def closer_look(text: str) -> Reason:
    """Return the reason that the closer look at a node gave, with its remedy if it has one."""
    known = _CLOSER.get(text)
    if known is not None:
        return known
    if text.startswith(f"{NOT_OFFERED.text}: "):
        return Reason(text=text, remedy=text.rpartition(": ")[2])
    for begun in (UNALIGNED, UNSATISFIED):
        if text.startswith(begun.text):
            return replace(begun, text=text, code=begun.text)
    return Reason(text=text)


_ABOUT_CPUS: Final = frozenset(
    reason.text
    for reason in (
        INSUFFICIENT_CPUS,
        INSUFFICIENT_NUMA_CPU,
        INSUFFICIENT_POOL,
        KUBELET_UNALIGNED,
        NUMA_POLICY_CONFLICT,
    )
)


def is_about_cpus(text: str) -> bool:
    """Tell whether what the NUMA nodes have left says more about a reason."""
    return text in _ABOUT_CPUS or text.startswith((UNALIGNED.text, UNSATISFIED.text))


TAINTED: Final = "node(s) had untolerated taint"


def untolerated(taint: Taint) -> Reason:
    """Return the reason for a taint, in kube-scheduler's words."""
    value = f"={taint.value}" if taint.value else ""
    return Reason(
        text=f"{TAINTED} {{{taint.key}: {taint.value}}}",
        remedy=f"tolerate {taint.key}{value}:{taint.effect}",
    )


_SHORT: Final = "Insufficient "


def insufficient_resource(name: str) -> Reason:
    """Return the reason for too little left of a resource, as kube-scheduler says it."""
    return Reason(text=f"{_SHORT}{name}")


def resource_short(text: str) -> str:
    """Return the extended resource that a reason's text is about, empty for any other reason."""
    name = text.removeprefix(_SHORT)
    return name if "/" in name and name != text else ""


MANY_RESOURCES: Final = Reason(
    text="Insufficient extended resources",
    remedy="see how many of each the node offers: the Pod asks for more kinds than are told apart",
)


def insufficient_devices(device_type: str) -> Reason:
    """Return the reason for too little left of a type in all (Koordinator contract 13)."""
    return Reason(text=f"Insufficient {device_type} devices", device_type=device_type)


def _short_of(device_type: str, cause: str) -> Reason:
    plain = insufficient_devices(device_type)
    return replace(plain, code=f"{device_type.upper()}{cause}")


def model_mismatch(device_type: str) -> Reason:
    """Return the reason for devices that are all of models the Pod does not allow."""
    return Reason(
        text=f"{device_type.upper()}ModelMismatch", remedy="allow a model that the node has"
    )


def unhealthy(device_type: str) -> Reason:
    """Return the reason for devices that would do, were they not closed."""
    return _short_of(device_type, "Closed")


def visible(device_type: str) -> Reason:
    """Return the reason for devices that would do, were containers of a group not shown them."""
    return _short_of(device_type, "VisibleToGroup")


def fragmented(device_type: str) -> Reason:
    """Return the reason for enough left in all, but in pieces that are too small."""
    return _short_of(device_type, "Fragmented")


def rows_in_pieces(answer: Unplaced) -> list[int]:
    """Return which nodes refuse alone since what they have is in pieces that are too small."""
    if answer.nodes is None:
        return []
    pieces = {fragmented(demand.device_type).name for demand in answer.request.devices}
    names = answer.nodes.names or answer.nodes.texts
    return [row for row, code in enumerate(answer.nodes.codes) if pieces.issuperset(names[code])]


def container_limit(device_type: str, setting: str) -> Reason:
    """Return the reason for devices that hold as many containers as the setting says."""
    return Reason(
        text=f"{device_type.upper()}ContainerLimit",
        remedy=f"end a container on the card, or raise {setting}",
    )


def message(nodes: int, counts: Iterable[tuple[str, int]]) -> str:
    """
    Return `0/N nodes are available: 3 reason, 2 reason.`, given (text, nodes).

    Rule: cli.md, Output: by count, then text. A text that comes twice is counted once.
    """
    totals: dict[str, int] = {}
    for text, count in counts:
        totals[text] = totals.get(text, 0) + count
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count} {text}" for text, count in ordered)
    head = f"0/{nodes} nodes are available"
    return f"{head}: {listed}." if listed else f"{head}."
