"""The names of Volcano Engine's mGPU."""

from __future__ import annotations

from typing import Final

from ledger.domain.dialects.words import DialectWords

DOMAIN_MGPU: Final = "vke.volcengine.com/"

MGPU_CORE: Final = "vke.volcengine.com/mgpu-core"
MGPU_MEMORY: Final = "vke.volcengine.com/mgpu-memory"
MGPU_NAMES: Final = frozenset({MGPU_CORE, MGPU_MEMORY})

LABEL_MGPU_NODE: Final = "vke.node.gpu.schedule"

ANNOTATION_MGPU_CONTAINER_MULTIPLE: Final = "vke.volcengine.com/container-multiple-gpu"
ANNOTATION_MGPU_COMPUTE_POLICY: Final = "vke.volcengine.com/mgpu-compute-policy"
LABEL_MGPU_COMPUTE_POLICY: Final = ANNOTATION_MGPU_COMPUTE_POLICY  # the same key on the Node
ANNOTATION_MGPU_ASSUMED: Final = "vke.volcengine.com/assumed"
ANNOTATION_MGPU_INDEX_PREFIX: Final = "vke.volcengine.com/gpu-index-container-"

WORDS: Final = DialectWords(
    name="mgpu",
    resources=MGPU_NAMES,
    zeros_ask=MGPU_NAMES,
    card_percents=frozenset({MGPU_CORE}),
    card_memories=frozenset({MGPU_MEMORY}),
    resource_prefixes=(DOMAIN_MGPU,),
    annotation_prefixes=(DOMAIN_MGPU,),
    allocation_annotations=frozenset({ANNOTATION_MGPU_ASSUMED}),
    allocation_prefixes=(ANNOTATION_MGPU_INDEX_PREFIX,),
    request_annotations=(ANNOTATION_MGPU_COMPUTE_POLICY, ANNOTATION_MGPU_CONTAINER_MULTIPLE),
)
