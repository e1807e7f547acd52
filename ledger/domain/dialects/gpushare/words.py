"""The names of Aliyun's GPU share, three generations of annotations among them."""

from __future__ import annotations

from typing import Final

from ledger.domain.dialects.words import DialectWords

GPUSHARE_MEMORY: Final = "aliyun.com/gpu-mem"
GPUSHARE_COUNT: Final = "aliyun.com/gpu-count"
GPUSHARE_CORE: Final = "aliyun.com/gpu-core.percentage"
GPUSHARE_NAMES: Final = frozenset({GPUSHARE_MEMORY, GPUSHARE_COUNT, GPUSHARE_CORE})


ANNOTATION_GPUSHARE_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ANNOTATION_GPUSHARE_ID_PROPOSAL: Final = "ALIYUN_GPU_ID"
ANNOTATION_GPUSHARE_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ANNOTATION_GPUSHARE_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
ANNOTATION_GPUSHARE_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ANNOTATION_GPUSHARE_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ANNOTATION_GPUSHARE_ASSIGN_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSIGN_TIME"  # never written
ANNOTATION_GPUSHARE_V2_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ANNOTATION_GPUSHARE_V2_ASSIGNED: Final = "scheduler.framework.gpushare.assigned"
ANNOTATION_GPUSHARE_V2_ASSUME_TIME: Final = "scheduler.framework.gpushare.assume-time"
ANNOTATION_GPUSHARE_CORE_PERCENTAGE: Final = "gpushare.alibabacloud.com/core-percentage"
ANNOTATION_GPUSHARE_V3_MEMORY: Final = "gpushare.alibabacloud.com/gpumemory"
ANNOTATION_GPUSHARE_V3_ASSIGNED: Final = "gpushare.alibabacloud.com/assigned"
ANNOTATION_GPUSHARE_V3_ASSUME_TIME: Final = "gpushare.alibabacloud.com/assume-time"
ANNOTATION_GPUSHARE_V3_DEVICE_RESOURCE: Final = "gpushare.alibabacloud.com/device-resource"

ENV_GPUSHARE_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_GPUSHARE_NO_ISOLATION: Final = "CGPU_DISABLE"
LABEL_GPUSHARE_NO_ISOLATION: Final = "cgpu.disable.isolation"  # on Nodes, value "true"

WORDS: Final = DialectWords(
    name="gpushare",
    resources=GPUSHARE_NAMES,
    card_numbers=frozenset({GPUSHARE_COUNT}),
    card_memories=frozenset({GPUSHARE_MEMORY}),
    resource_prefixes=("aliyun.com/",),
    annotation_prefixes=("ALIYUN_", "scheduler.framework.gpushare.", "gpushare.alibabacloud.com/"),
    allocation_annotations=frozenset(
        {
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
    ),
    node_annotations=frozenset(
        {
            ANNOTATION_GPUSHARE_ASSIGNED,
            ANNOTATION_GPUSHARE_ASSIGN_TIME,
            ANNOTATION_GPUSHARE_V2_ASSIGNED,
            ANNOTATION_GPUSHARE_V3_ASSIGNED,
        }
    ),
)
