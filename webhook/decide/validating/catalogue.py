"""Every rule that admission keeps: what it refuses, where it comes from, what it does at first."""

from __future__ import annotations

from typing import Final

from ledger.domain.request.rule_names import Rule
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.validating.findings import Advice, Reach, RuleEntry, advice_entry, rule_entry

_EVERYWHERE: Final = frozenset(
    {
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


_REACHES: Final = {Reach.EVERYWHERE: _EVERYWHERE, Reach.OURS: _OURS, Reach.CLUSTER: _CLUSTER}


def _rule(rule: Rule, refuses: str, source: str) -> RuleEntry:
    reach = next((reach for reach, rules in _REACHES.items() if rule in rules), Reach.MANAGED)
    return rule_entry(rule, refuses, source, reach=reach)


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
    *(entry for admission in ADMISSIONS for entry in admission.rules),
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
    advice_entry(
        Advice.ISOLATION_MISSING,
        "says what nothing enforces for a share of a card",
        "design section 8, Ownership of the metal",
    ),
    advice_entry(
        Advice.MISSPELT_NAME, "a resource, label or annotation that is almost one of ours", ""
    ),
    advice_entry(
        Advice.MISPLACED_KEY, "a label of ours as an annotation, or the other way round", ""
    ),
    advice_entry(Advice.SUSPICIOUS_UNIT, "memory that looks like GiB or MiB where it is not", ""),
    advice_entry(
        Advice.UNKNOWN_VALUE,
        "a QoS class, a policy, a device type, a JSON field or a group label that means nothing",
        f"{_KOORDINATOR} 2.1",
    ),
    advice_entry(
        Advice.NEVER_PLACED,
        "a legal Pod that no node can take: mGPU over several cards without native-burst-share, "
        "shares of several GPUs under one required scope, another system's annotation without its "
        "scheduler",
        f"{_SHARING} A.4; {_KOORDINATOR} 8.4",
    ),
    advice_entry(
        Advice.UNASKED_DEVICES,
        "NVIDIA_VISIBLE_DEVICES by hand, or one of the other ways, in a managed Pod that asks for "
        "no GPU",
        "",
    ),
    advice_entry(
        Advice.UNKNOWN_POD,
        "a Binding of a Pod that could not be looked up",
        "design section 5.1",
    ),
    advice_entry(
        Advice.MIRROR_POD,
        "a static Pod that asks for something of ours",
        "design section 8, Ownership of the metal",
    ),
    advice_entry(
        Advice.WORKLOAD_METADATA,
        "a key of ours on a workload, but not on its Pod template",
        "",
    ),
    advice_entry(
        Advice.WORKLOAD_REPLICAS,
        "a group's size that differs from the workload's number of Pods",
        f"{_TOPOLOGY}, How to identify pods",
    ),
)

CATALOGUE: Final = (*RULES, *ADVICE)
