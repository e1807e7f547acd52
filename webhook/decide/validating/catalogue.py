"""Every rule that admission keeps: what it refuses, where it comes from, what it does at first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain.request.rule_names import Rule
from webhook.decide.settings import RuleMode


class Advice(StrEnum):
    """What is only ever said, never refused. `off` silences it like a rule."""

    ISOLATION_MISSING = "IsolationMissing"
    MISSPELT_NAME = "MisspeltName"
    MISPLACED_KEY = "MisplacedKey"
    SUSPICIOUS_UNIT = "SuspiciousUnit"
    UNKNOWN_VALUE = "UnknownValue"
    NEVER_PLACED = "NeverPlaced"
    UNASKED_DEVICES = "UnaskedDevices"
    UNKNOWN_POD = "UnknownPod"
    MIRROR_POD = "MirrorPod"
    WORKLOAD_METADATA = "WorkloadMetadata"
    WORKLOAD_REPLICAS = "WorkloadReplicas"


class Reach(StrEnum):
    """What a rule is for, and which of the API server's two ways keeps it."""

    EVERYWHERE = "every namespace"
    """Every Pod there is, by policy, whether its namespace has opted in or not."""
    OURS = "our Pods"
    """Those of managed namespaces, and by policy those with our mark or for our scheduler."""
    MANAGED = "managed"
    """Pods of managed namespaces, by the webhook."""
    CLUSTER = "cluster"
    """Objects of the cluster that say what there is and who has it."""


_EVERYWHERE: Final = frozenset(
    {
        Rule.MGPU_NORMAL,
        Rule.MGPU_MULTIPLE,
        Rule.MGPU_MEMORY_UNIT,
        Rule.MGPU_CONTAINER_NAME,
        Rule.MGPU_INIT_CONTAINER,
        Rule.MGPU_POLICY,
        Rule.FORGED_ALLOCATION,
        Rule.SLOT_BY_HAND,
        Rule.PINNED_NODE,
        Rule.OWNED_NODE,
    }
)
_OURS: Final = frozenset(
    {
        Rule.REQUESTS_EQUAL_LIMITS,
        Rule.WHOLE_CPUS,
        Rule.CPU_LIMITS,
        Rule.VISIBLE_DEVICES,
        Rule.QOS_IMMUTABLE,
        Rule.PRIORITY_IMMUTABLE,
        Rule.REQUEST_IMMUTABLE,
        Rule.DEVICES_IMMUTABLE,
        Rule.CPUSET_RESIZE,
    }
)
_CLUSTER: Final = frozenset(
    {
        Rule.FORGED_DEVICE,
        Rule.FORGED_TOPOLOGY,
        Rule.FORGED_NODE,
        Rule.DEVICE_OBJECT,
        Rule.TOPOLOGY_OBJECT,
        Rule.NODE_LABELS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """One line of `docs/rules.md`."""

    name: str
    refuses: str
    source: str
    mode: RuleMode = RuleMode.ENFORCE

    @property
    def reach(self) -> Reach:
        """What the rule is for."""
        if self.name in _EVERYWHERE:
            return Reach.EVERYWHERE
        if self.name in _OURS:
            return Reach.OURS
        return Reach.CLUSTER if self.name in _CLUSTER else Reach.MANAGED


def _rule(rule: Rule, refuses: str, source: str) -> RuleEntry:
    return RuleEntry(name=str(rule), refuses=refuses, source=source)


def _advice(advice: Advice, says: str, source: str) -> RuleEntry:
    return RuleEntry(name=str(advice), refuses=says, source=source, mode=RuleMode.WARN)


_KOORDINATOR: Final = "Koordinator contract"
_SHARING: Final = "GPU-sharing contract"
_CPU: Final = "CPU-orchestration proposal"
_TOPOLOGY: Final = "GPU-topology proposal"

RULES: Final = (
    _rule(
        Rule.REQUESTS_EQUAL_LIMITS,
        "a device whose request differs from its limit, in both domains",
        f"{_KOORDINATOR} 1.1",
    ),
    _rule(Rule.DEVICE_OVERHEAD, "a device in `spec.overhead`", f"{_KOORDINATOR} 4.1"),
    _rule(Rule.ONE_DIALECT, "GPUs asked for in two dialects in one Pod", "design section 3"),
    _rule(
        Rule.GPU_KEYS,
        "`gpu` beside `gpu.shared`, `gpu` or `gpu.shared` of 0, `gpu.shared` without or with two "
        "memory units",
        f"{_KOORDINATOR} 5.2",
    ),
    _rule(
        Rule.GPU_COMBINATION,
        "a set of GPU keys that is not in the table (core alone, memory with ratio, two vendors)",
        f"{_KOORDINATOR} 4.2",
    ),
    _rule(
        Rule.DEVICE_PERCENT,
        "a percentage above 100 that is no multiple of 100, of GPU, RDMA or FPGA",
        f"{_KOORDINATOR} 4.2, percent rule",
    ),
    _rule(
        Rule.SHARE_DIVIDES,
        "core, ratio or memory that does not divide over `gpu.shared` cards, or more than 100 "
        "percent on each",
        f"{_KOORDINATOR} 4.2, share rule; 12, Q13",
    ),
    _rule(
        Rule.SAME_SHARES,
        "containers of one Pod that ask for different shares of a card",
        f"{_KOORDINATOR} 4.1",
    ),
    _rule(
        Rule.MGPU_NORMAL,
        "a single-card mGPU request outside `1..99` with 256 MiB or more, or whole cards without "
        "memory (N1 to N4)",
        f"{_SHARING} A.3; mGPU proposal, Normal MGPU Pod",
    ),
    _rule(
        Rule.MGPU_MULTIPLE,
        "a list of card counts, or a request over several cards, that does not come out even "
        "(M0 to M9)",
        f"{_SHARING} A.3; mGPU proposal, Multiple MGPU Pod",
    ),
    _rule(
        Rule.MGPU_MEMORY_UNIT,
        "more MiB on one card than any card has: `6Gi` where 6144 is meant",
        f"{_SHARING} A.6",
    ),
    _rule(
        Rule.MGPU_CONTAINER_NAME,
        "an mGPU container whose name has more than 43 characters",
        f"{_SHARING} A.6",
    ),
    _rule(Rule.MGPU_INIT_CONTAINER, "mGPU in an init container", f"{_SHARING} A.3"),
    _rule(Rule.MGPU_POLICY, "a compute policy that is none of the three", f"{_SHARING} A.1"),
    _rule(
        Rule.GPUSHARE_CARD,
        "a GPU share on more than one card, or without memory",
        f"{_SHARING} B.1, B.3",
    ),
    _rule(
        Rule.GPUSHARE_UNIT,
        "more memory of one card than any card has: the wrong unit",
        f"{_SHARING} A.6, B.5",
    ),
    _rule(
        Rule.QOS_PRIORITY,
        "a QoS class with a priority class it does not go with",
        f"{_KOORDINATOR} 5.3",
    ),
    _rule(Rule.BATCH_QOS, "batch resources outside QoS BE", f"{_KOORDINATOR} 5.3"),
    _rule(Rule.SUB_PRIORITY, "a sub-priority that is no integer", f"{_KOORDINATOR} 2.1"),
    _rule(
        Rule.WHOLE_CPUS,
        "LSE or LSR with no CPU, or with a part of one",
        f"{_KOORDINATOR} 5.3; {_CPU}",
    ),
    _rule(
        Rule.CPU_LIMITS,
        "LSE or LSR with a CPU or memory request that differs from its limit",
        f"{_KOORDINATOR} 5.3; {_CPU}",
    ),
    _rule(
        Rule.ARM_CPU_POLICY,
        "SpreadByPCPUs or PCPULevel in a Pod that runs on ARM machines only",
        f"{_CPU}, Resource spec",
    ),
    _rule(
        Rule.CPU_BURST,
        "ConstrainedBurst in a Pod that is neither LS nor without QoS, or without a cpu limit",
        f"{_CPU}, Resource spec",
    ),
    _rule(
        Rule.TOPOLOGY_GROUP,
        "one of the two group labels without the other, or a replica that is no number",
        f"{_TOPOLOGY}, How to identify pods",
    ),
    _rule(
        Rule.GANG,
        "a gang without its minimum, or with a number, duration, mode or policy that is none",
        f"{_KOORDINATOR} 10",
    ),
    _rule(
        Rule.GROUP_IS_GANG,
        "a topology group that differs from the Pod's gang in name or number",
        f"{_TOPOLOGY}, Works with the Gang plugin",
    ),
    _rule(
        Rule.ANNOTATION_SYNTAX,
        "a request annotation or label that does not parse, or says something unknown",
        f"{_KOORDINATOR} 2, 2.1",
    ),
    _rule(
        Rule.NOT_SUPPORTED,
        "a wish that is understood and that this release can't honour",
        "DIVERGENCES.md",
    ),
    _rule(
        Rule.FORGED_ALLOCATION,
        "an allocation annotation set, changed or removed by anyone but us: on a Pod, its status, "
        "its ephemeral containers, its resize, or a Binding",
        f"{_KOORDINATOR} 5.4; {_SHARING} A.3; design section 5",
    ),
    _rule(
        Rule.FORGED_DEVICE,
        "checkpoints or allocations of a Device written by anyone but us",
        f"{_KOORDINATOR} 2.7, 5.4",
    ),
    _rule(
        Rule.FORGED_TOPOLOGY,
        "`pod-cpu-allocs` of a NodeResourceTopology, or an annotation of ours there, written by "
        "anyone but us",
        "cli.md, Running Pods",
    ),
    _rule(
        Rule.FORGED_NODE,
        "an annotation of ours on a Node written by anyone but us",
        "design section 5, Waiting Pods",
    ),
    _rule(
        Rule.VISIBLE_DEVICES,
        "NVIDIA_VISIBLE_DEVICES by hand in a Pod that holds GPUs, or in an ephemeral container "
        "(`void` and `none` are taken); the same by a volume mount of the NVIDIA runtime or, in "
        "a Pod's annotations, by CDI",
        "design section 5.1 and 8",
    ),
    _rule(
        Rule.SLOT_BY_HAND,
        "more than one `tenure.sh/slot`, or one in a container without devices",
        "design section 8, Ownership of the metal",
    ),
    _rule(
        Rule.PINNED_NODE,
        "a Pod created with `spec.nodeName` that asks for something of ours",
        "cli.md, tenure check; design section 8",
    ),
    _rule(
        Rule.OWNED_NODE,
        "a Pod without our scheduler that asks for a device and tolerates `tenure.sh/owned` by "
        "name, or tolerates everything, asks for a device that our nodes advertise and is not "
        "kept off them, or asks for anything in `tenure.sh/`; one for our scheduler that asks for "
        "devices or CPUs of its own where nobody opted in",
        "design section 5.1, In all namespaces",
    ),
    _rule(
        Rule.RESERVE_POD,
        "Koordinator's reserve-pod annotation on a user's Pod",
        f"{_KOORDINATOR} 5.3",
    ),
    _rule(Rule.QOS_IMMUTABLE, "a change of the QoS label", f"{_KOORDINATOR} 5.3"),
    _rule(
        Rule.PRIORITY_IMMUTABLE,
        "a change of the priority class or of the sub-priority",
        f"{_KOORDINATOR} 5.3",
    ),
    _rule(
        Rule.REQUEST_IMMUTABLE,
        "a change of a request label or annotation once the Pod has a node",
        "design section 8, Restore",
    ),
    _rule(
        Rule.DEVICES_IMMUTABLE,
        "a change of device resources, in place or otherwise",
        "design section 8, Guests in the cluster",
    ),
    _rule(
        Rule.CPUSET_RESIZE,
        "a change of CPU in a Pod that holds a CPU set",
        f"{_KOORDINATOR} 5.3, 6.1",
    ),
    _rule(
        Rule.BINDING_TAKEOVER,
        "a Binding of a Pod of our scheduler's by anyone but us",
        "design section 5.1; Koordinator contract 5.3",
    ),
    _rule(
        Rule.QUOTA_EVADED,
        "cards, in any dialect, where a ResourceQuota names cards and would not count these",
        "design section 5 and 8, Guests in the cluster",
    ),
    _rule(
        Rule.DEVICE_OBJECT,
        "a Device that can't be read, with two devices of one minor or id, or a torn PCIe root",
        f"{_KOORDINATOR} 2.5, 3.1",
    ),
    _rule(
        Rule.TOPOLOGY_OBJECT,
        "a NodeResourceTopology with an annotation of ours that can't be read",
        f"{_KOORDINATOR} 2.4, 3.2",
    ),
    _rule(
        Rule.NODE_LABELS,
        "a Node label or annotation of ours changed to a value that means nothing",
        f"{_KOORDINATOR} 2.3; {_SHARING} A.1",
    ),
)

ADVICE: Final = (
    _advice(
        Advice.ISOLATION_MISSING,
        "says what nothing enforces for a share of a card",
        "design section 8, Ownership of the metal",
    ),
    _advice(Advice.MISSPELT_NAME, "a resource, label or annotation that is almost one of ours", ""),
    _advice(Advice.MISPLACED_KEY, "a label of ours as an annotation, or the other way round", ""),
    _advice(Advice.SUSPICIOUS_UNIT, "memory that looks like GiB or MiB where it is not", ""),
    _advice(
        Advice.UNKNOWN_VALUE,
        "a QoS class, a policy, a device type, a JSON field or a group label that means nothing",
        f"{_KOORDINATOR} 2.1",
    ),
    _advice(
        Advice.NEVER_PLACED,
        "a legal Pod that no node can take: mGPU over several cards without native-burst-share, "
        "shares of several GPUs under one required scope",
        f"{_SHARING} A.4; {_KOORDINATOR} 8.4",
    ),
    _advice(
        Advice.UNASKED_DEVICES,
        "NVIDIA_VISIBLE_DEVICES by hand, or one of the other ways, in a managed Pod that asks for "
        "no GPU",
        "",
    ),
    _advice(
        Advice.UNKNOWN_POD,
        "a Binding of a Pod that could not be looked up",
        "design section 5.1",
    ),
    _advice(
        Advice.MIRROR_POD,
        "a static Pod that asks for something of ours",
        "design section 8, Ownership of the metal",
    ),
    _advice(
        Advice.WORKLOAD_METADATA,
        "a key of ours on a workload, but not on its Pod template",
        "",
    ),
    _advice(
        Advice.WORKLOAD_REPLICAS,
        "a group's size that differs from the workload's number of Pods",
        f"{_TOPOLOGY}, How to identify pods",
    ),
)

CATALOGUE: Final = (*RULES, *ADVICE)
DEFAULT_MODES: Final = {entry.name: entry.mode for entry in CATALOGUE}
