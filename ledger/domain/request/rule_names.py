"""The stable names of our rules: users switch them, metrics count them, refusals carry them."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """
    Every rule that can refuse an object, each name for good.

    What each one refuses, and where it comes from, is in `docs/rules.md`.
    """

    # What a Pod asks for: the same wherever the request is read.
    REQUESTS_EQUAL_LIMITS = "RequestsEqualLimits"
    DEVICE_OVERHEAD = "DeviceOverhead"
    ONE_DIALECT = "OneDialect"
    GPU_KEYS = "GpuKeys"
    GPU_COMBINATION = "GpuCombination"
    DEVICE_PERCENT = "DevicePercent"
    SHARE_DIVIDES = "ShareDivides"
    SAME_SHARES = "SameShares"
    MGPU_NORMAL = "MgpuNormal"
    MGPU_MULTIPLE = "MgpuMultiple"
    MGPU_MEMORY_UNIT = "MgpuMemoryUnit"
    MGPU_CONTAINER_NAME = "MgpuContainerName"
    MGPU_INIT_CONTAINER = "MgpuInitContainer"
    MGPU_POLICY = "MgpuPolicy"
    GPUSHARE_CARD = "GpuShareCard"
    GPUSHARE_UNIT = "GpuShareUnit"
    HAMI_SHARE = "HamiShare"
    WHOLE_CARDS = "WholeCards"
    HAMI_WEBHOOK = "HamiWebhook"
    QOS_PRIORITY = "QosPriority"
    BATCH_QOS = "BatchQos"
    SUB_PRIORITY = "SubPriority"
    WHOLE_CPUS = "WholeCpus"
    CPU_LIMITS = "CpuLimits"
    ARM_CPU_POLICY = "ArmCpuPolicy"
    CPU_BURST = "CpuBurst"
    TOPOLOGY_GROUP = "TopologyGroup"
    GANG = "Gang"
    GROUP_IS_GANG = "GroupIsGang"
    ANNOTATION_SYNTAX = "AnnotationSyntax"
    NOT_SUPPORTED = "NotSupported"

    # What may be done to objects, and by whom: admission's own.
    FORGED_ALLOCATION = "ForgedAllocation"
    FORGED_DEVICE = "ForgedDevice"
    FORGED_TOPOLOGY = "ForgedTopology"
    FORGED_NODE = "ForgedNode"
    VISIBLE_DEVICES = "VisibleDevices"
    SLOT_BY_HAND = "SlotByHand"
    PINNED_NODE = "PinnedNode"
    OWNED_NODE = "OwnedNode"
    RESERVE_POD = "ReservePod"
    QOS_IMMUTABLE = "QosImmutable"
    PRIORITY_IMMUTABLE = "PriorityImmutable"
    REQUEST_IMMUTABLE = "RequestImmutable"
    DEVICES_IMMUTABLE = "DevicesImmutable"
    CPUSET_RESIZE = "CpusetResize"
    BINDING_TAKEOVER = "BindingTakeover"
    QUOTA_EVADED = "QuotaEvaded"
    DEVICE_OBJECT = "DeviceObject"
    TOPOLOGY_OBJECT = "TopologyObject"
    NODE_LABELS = "NodeLabels"
