"""HAMi's names (docs/contracts/hami.md)."""

from __future__ import annotations

from typing import Final

from ledger.domain.dialects.words import DialectWords

CARDS: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"

SHARE_NAMES: Final = frozenset({MEMORY, MEMORY_PERCENT, CORES})
"""What says that part of a card is meant; `nvidia.com/gpu` alone is whole cards."""

USE_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_ID: Final = "nvidia.com/use-gpuuuid"
NOUSE_ID: Final = "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
MODE: Final = "nvidia.com/vgpu-mode"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
WEIGHTS: Final = "hami.io/device-scoring-weights"

WISHES: Final = (
    *(USE_TYPE, NOUSE_TYPE, USE_ID, NOUSE_ID, NUMA_BIND, MODE),
    *(CARD_POLICY, NODE_POLICY, WEIGHTS),
)
"""By these a Pod says which cards and nodes it takes, or likes."""

ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
NODE: Final = "hami.io/vgpu-node"

REGISTER: Final = "hami.io/node-nvidia-register"
CORDON: Final = "hami.io/device-cordon"
HANDSHAKE: Final = "hami.io/node-handshake"
DELETED: Final = "Deleted_"
"""How a handshake begins whose device plugin did not answer."""

SCHEDULER: Final = "hami-scheduler"
LABEL_WEBHOOK: Final = "hami.io/webhook"
WEBHOOK_IGNORE: Final = "ignore"

WORDS: Final = DialectWords(
    name="hami",
    resources=SHARE_NAMES,
    borrowed=frozenset({CARDS}),
    claims=frozenset(WISHES),
    card_memories=frozenset({MEMORY, MEMORY_PERCENT}),
    resource_prefixes=("nvidia.com/gpu",),
    annotation_prefixes=("nvidia.com/",),
    schedulers=frozenset({SCHEDULER}),
    given_annotations=frozenset({ALLOCATED, NODE}),
    given_node=NODE,
    request_annotations=WISHES,
)
"""Who holds what is written by HAMi on Pods of its own, so nobody is kept from writing it."""
