"""
Which annotations say who holds what: nobody but us may write them, on any object, on any path.

Rule: Koordinator contract 5.4; GPU-sharing contract A.3; design section 5. Everything that our
Binding writes and everything that adoption believes is in here.
"""

from __future__ import annotations

from typing import Final

from ledger.domain.resources import (
    ANNOTATION_BIND_GANG_GROUP_ID,
    ANNOTATION_BIND_GANG_MEMBER_COUNT,
    ANNOTATION_BIND_TIMESTAMP,
    ANNOTATION_DEVICE_ALLOCATED,
    ANNOTATION_DEVICES_CHECKPOINTS,
    ANNOTATION_DEVICES_CHECKPOINTS_PROPOSAL,
    ANNOTATION_GPU_MINORS,
    ANNOTATION_GPU_TOPOLOGY,
    ANNOTATION_GPUSHARE_ASSIGN_TIME,
    ANNOTATION_GPUSHARE_ASSIGNED,
    ANNOTATION_GPUSHARE_ASSUME_TIME,
    ANNOTATION_GPUSHARE_CORE_PERCENTAGE,
    ANNOTATION_GPUSHARE_DEV,
    ANNOTATION_GPUSHARE_ID_PROPOSAL,
    ANNOTATION_GPUSHARE_IDX,
    ANNOTATION_GPUSHARE_POD,
    ANNOTATION_GPUSHARE_V2_ALLOCATION,
    ANNOTATION_GPUSHARE_V2_ASSIGNED,
    ANNOTATION_GPUSHARE_V2_ASSUME_TIME,
    ANNOTATION_GPUSHARE_V3_ASSIGNED,
    ANNOTATION_GPUSHARE_V3_ASSUME_TIME,
    ANNOTATION_GPUSHARE_V3_DEVICE_RESOURCE,
    ANNOTATION_GPUSHARE_V3_MEMORY,
    ANNOTATION_MGPU_ASSUMED,
    ANNOTATION_MGPU_INDEX_PREFIX,
    ANNOTATION_POD_CPU_ALLOCS,
    ANNOTATION_RESOURCE_STATUS,
    ANNOTATION_TENURE_ADMITTED,
    ANNOTATION_TENURE_ORIGINAL,
    DOMAIN_TENURE,
)

ALLOCATION_ANNOTATIONS: Final = frozenset(
    {
        ANNOTATION_DEVICE_ALLOCATED,
        ANNOTATION_RESOURCE_STATUS,
        ANNOTATION_BIND_TIMESTAMP,
        ANNOTATION_GPU_MINORS,
        ANNOTATION_GPU_TOPOLOGY,
        ANNOTATION_BIND_GANG_GROUP_ID,
        ANNOTATION_BIND_GANG_MEMBER_COUNT,
        ANNOTATION_MGPU_ASSUMED,
        ANNOTATION_GPUSHARE_IDX,
        ANNOTATION_GPUSHARE_ID_PROPOSAL,
        ANNOTATION_GPUSHARE_POD,
        ANNOTATION_GPUSHARE_DEV,
        ANNOTATION_GPUSHARE_ASSIGNED,
        ANNOTATION_GPUSHARE_ASSUME_TIME,
        ANNOTATION_GPUSHARE_ASSIGN_TIME,
        ANNOTATION_GPUSHARE_V2_ALLOCATION,
        ANNOTATION_GPUSHARE_V2_ASSIGNED,
        ANNOTATION_GPUSHARE_V2_ASSUME_TIME,
        ANNOTATION_GPUSHARE_CORE_PERCENTAGE,
        ANNOTATION_GPUSHARE_V3_MEMORY,
        ANNOTATION_GPUSHARE_V3_ASSIGNED,
        ANNOTATION_GPUSHARE_V3_ASSUME_TIME,
        ANNOTATION_GPUSHARE_V3_DEVICE_RESOURCE,
    }
)
"""Of Pods, and of the Bindings that put them there."""

ALLOCATION_PREFIXES: Final = (ANNOTATION_MGPU_INDEX_PREFIX, DOMAIN_TENURE)
"""What starts so is ours too: one key a container, and whatever else is in our own domain."""

ADMISSION_ANNOTATIONS: Final = frozenset({ANNOTATION_TENURE_ADMITTED, ANNOTATION_TENURE_ORIGINAL})
"""What our webhook itself writes on a new Pod, under the name of whoever creates it."""

CHECKPOINT_ANNOTATIONS: Final = frozenset(
    {ANNOTATION_DEVICES_CHECKPOINTS, ANNOTATION_DEVICES_CHECKPOINTS_PROPOSAL}
)
"""Of Device objects: what kubelet handed out, as the agent saw it."""

TOPOLOGY_ANNOTATIONS: Final = frozenset({ANNOTATION_POD_CPU_ALLOCS})
"""Of NodeResourceTopology objects: which CPUs kubelet pinned, as the agent saw it."""


def is_allocation(key: str) -> bool:
    """Tell whether an annotation of a Pod or a Binding is ours to write."""
    return key in ALLOCATION_ANNOTATIONS or key.startswith(ALLOCATION_PREFIXES)


def is_checkpoint(key: str) -> bool:
    """Tell whether an annotation of a Device is ours to write."""
    return key in CHECKPOINT_ANNOTATIONS or key.startswith(DOMAIN_TENURE)


def is_pinned_cpus(key: str) -> bool:
    """Tell whether an annotation of a NodeResourceTopology is ours to write."""
    return key in TOPOLOGY_ANNOTATIONS or key.startswith(DOMAIN_TENURE)
