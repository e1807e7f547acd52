"""The labels and annotations by which users ask for something, such as the QoS label."""

from __future__ import annotations

from typing import Final

from ledger.domain import resources
from ledger.domain.dialects.names import FOREIGN_WORDS

PLACED_LABELS: Final = (
    resources.LABEL_GPU_GROUP_NAME,
    resources.LABEL_GPU_GROUP_REPLICA,
    resources.LABEL_GPU_ISOLATION_PROVIDER,
    resources.LABEL_POD_GROUP,
    resources.LABEL_POD_GROUP_NAME,
)
PLACED_ANNOTATIONS: Final = (
    resources.ANNOTATION_DEVICE_ALLOCATE_HINT,
    resources.ANNOTATION_DEVICE_JOINT_ALLOCATE,
    resources.ANNOTATION_GANG_GROUPS,
    resources.ANNOTATION_GANG_MIN_AVAILABLE,
    resources.ANNOTATION_GANG_MODE,
    resources.ANNOTATION_GANG_NAME,
    resources.ANNOTATION_GANG_TOTAL_NUMBER,
    resources.ANNOTATION_GPU_PARTITION_SPEC,
    *(key for words in FOREIGN_WORDS for key in words.request_annotations),
    resources.ANNOTATION_NUMA_TOPOLOGY_SPEC,
    resources.ANNOTATION_RESOURCE_SPEC,
)
"""What a Pod is placed by; QoS and priority, which it is placed by too, have rules of their own."""

POD_LABELS: Final = frozenset(
    {
        *PLACED_LABELS,
        resources.LABEL_BINDING_ADMISSION_BYPASS,
        resources.LABEL_HAMI_VGPU_NODE,
        resources.LABEL_PRIORITY,
        resources.LABEL_PRIORITY_CLASS,
        resources.LABEL_QOS_CLASS,
        resources.LABEL_SCHEDULER_NAME,
        resources.LABEL_TENURE_MANAGED,
        resources.LABEL_TENURE_TAKEOVER,
    }
)
POD_ANNOTATIONS: Final = frozenset(
    {
        *PLACED_ANNOTATIONS,
        *(key for words in FOREIGN_WORDS for key in words.given_annotations),
        resources.ANNOTATION_EXTENDED_RESOURCE_SPEC,
        resources.ANNOTATION_GANG_MATCH_POLICY,
        resources.ANNOTATION_GANG_MATCH_POLICY_ALIAS,
        resources.ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX,
        resources.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC,
        resources.ANNOTATION_GANG_TIMEOUT,
        resources.ANNOTATION_GANG_WAITING_TIME,
        resources.ANNOTATION_ORIGINAL_SCHEDULER_NAME,
        resources.ANNOTATION_REPLACE_RESOURCES,
        resources.ANNOTATION_RESERVE_POD,
        resources.ANNOTATION_SCHEDULING_HINT,
        resources.ANNOTATION_SCHEDULING_HINT_DEPRECATED,
        resources.ANNOTATION_SKIP_UPDATE_RESOURCES,
    }
)
