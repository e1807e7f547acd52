"""
Which annotations say who holds what: nobody but us may write them, on any object, on any path.

Rule: Koordinator contract 5.4; GPU-sharing contract A.3; design section 5. Everything that our
Binding writes and everything that adoption believes is in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain import resources
from ledger.domain.dialects.names import FOREIGN_WORDS

ALLOCATION_ANNOTATIONS: Final = frozenset(
    {
        resources.ANNOTATION_DEVICE_ALLOCATED,
        resources.ANNOTATION_RESOURCE_STATUS,
        resources.ANNOTATION_BIND_TIMESTAMP,
        resources.ANNOTATION_GPU_MINORS,
        resources.ANNOTATION_GPU_TOPOLOGY,
        resources.ANNOTATION_BIND_GANG_GROUP_ID,
        resources.ANNOTATION_BIND_GANG_MEMBER_COUNT,
        *(key for words in FOREIGN_WORDS for key in words.allocation_annotations),
    }
)
"""Of Pods, and of the Bindings that put them there."""

ALLOCATION_PREFIXES: Final = (
    *(prefix for words in FOREIGN_WORDS for prefix in words.allocation_prefixes),
    resources.DOMAIN_TENURE,
)
"""What starts so is ours too: one key a container, and whatever else is in our own domain."""

ADMISSION_ANNOTATIONS: Final = frozenset(
    {
        resources.ANNOTATION_TENURE_ADMITTED,
        resources.ANNOTATION_TENURE_CLAIMED,
        resources.ANNOTATION_TENURE_ORIGINAL,
        resources.TENURE_ISOLATION,
        resources.TENURE_WHOLE_CARDS,
    }
)
"""What our webhook itself writes on a new Pod, under the name of whoever creates it."""

CHECKPOINT_ANNOTATIONS: Final = frozenset(
    {resources.ANNOTATION_DEVICES_CHECKPOINTS, resources.ANNOTATION_DEVICES_CHECKPOINTS_PROPOSAL}
)
"""Of Device objects: what kubelet handed out, as the agent saw it."""

TOPOLOGY_ANNOTATIONS: Final = frozenset({resources.ANNOTATION_POD_CPU_ALLOCS})
"""Of NodeResourceTopology objects: which CPUs kubelet pinned, as the agent saw it."""


def is_allocation(key: str) -> bool:
    """Tell whether an annotation of a Pod or a Binding is ours to write."""
    return key in ALLOCATION_ANNOTATIONS or key.startswith(ALLOCATION_PREFIXES)


_GIVEN_PREFIXES: Final = (
    *(prefix for words in FOREIGN_WORDS for prefix in words.allocation_prefixes),
    resources.ANNOTATION_TENURE_ALLOCATED_PREFIX,
    resources.ANNOTATION_TENURE_VISIBLE_PREFIX,
)
_GIVEN: Final = ALLOCATION_ANNOTATIONS - {
    resources.ANNOTATION_BIND_TIMESTAMP,
    resources.ANNOTATION_BIND_GANG_GROUP_ID,
    resources.ANNOTATION_BIND_GANG_MEMBER_COUNT,
    *(key for words in FOREIGN_WORDS for key in words.node_annotations),
}


def given(annotations: Mapping[str, str]) -> dict[str, str]:
    """
    Return what annotations say of a Pod's devices and CPUs, which stays as its Binding wrote it.

    Without what is signed, and what others rightly change later: marks and times.
    """
    return {
        key: text
        for key, text in annotations.items()
        if key in _GIVEN or key.startswith(_GIVEN_PREFIXES)
    }


def is_checkpoint(key: str) -> bool:
    """Tell whether an annotation of a Device is ours to write."""
    return key in CHECKPOINT_ANNOTATIONS or key.startswith(resources.DOMAIN_TENURE)


def is_pinned_cpus(key: str) -> bool:
    """Tell whether an annotation of a NodeResourceTopology is ours to write."""
    return key in TOPOLOGY_ANNOTATIONS or key.startswith(resources.DOMAIN_TENURE)
