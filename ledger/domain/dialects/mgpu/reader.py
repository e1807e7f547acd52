"""mGPU, as Pods and Nodes are read in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.mgpu.adopted import (
    GPU_INDEX_CONTAINER,
    from_gpu_index,
    unread_words,
    with_containers,
)
from ledger.domain.dialects.mgpu.demands import MIB, mgpu_demands
from ledger.domain.dialects.mgpu.nodes import adverts, node_warnings, on_node
from ledger.domain.dialects.mgpu.words import MGPU_CORE, MGPU_MEMORY, WORDS
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import DialectReader, GpuAsked, Uncounted
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.vocabulary import Vocabulary


def _demands(spec: PodSpec) -> GpuAsked:
    mgpu = mgpu_demands(spec)
    own = {"mgpu_policy": str(mgpu.policy), "mgpu_multi": mgpu.multi}
    return GpuAsked(dialect=Dialect.MGPU, asked=mgpu.asked, own=own)


def _amounts(percent: int | None, size: int | None, _vocabulary: Vocabulary) -> Mapping[str, str]:
    core = {} if percent is None else {MGPU_CORE: str(percent)}
    return core if size is None else core | {MGPU_MEMORY: str(-(-size // MIB))}


READER: Final = DialectReader(
    dialect=Dialect.MGPU,
    words=WORDS,
    demands=_demands,
    amounts=_amounts,
    takes_wishes=False,
    bounded_search=True,
    sources=(GPU_INDEX_CONTAINER,),
    adopted=from_gpu_index,
    unread=unread_words,
    with_containers=with_containers,
    adverts=adverts,
    uncounted=(Uncounted(memory=MGPU_MEMORY, cards=MGPU_CORE, least=WHOLE_PERCENT),),
    on_node=on_node,
    node_warnings=node_warnings,
)
