"""Pods in every dialect on nodes that all of them share: objects, and strategies over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from hypothesis import strategies as st

from ledger.domain.adopted.pods import adopt
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from tests.support.objects import Object, container, device, gpu_device, node, pod

GIB: Final = 2**30
CARDS: Final = 3
CARD_GIB: Final = 16
KOORDINATOR: Final = "koordinator.sh/"
MGPU: Final = "vke.volcengine.com/mgpu-"
GROUP: Final = "gputopology.scheduling.koordinator.sh/"
NOW_NS: Final = 1_800_000_000_000_000_000

Amounts = dict[str, str]


def node_with_device(name: str, *, nics: int = 1) -> NodeFacts:
    """Return a node whose Device object reports the cards, for every dialect."""
    ports = [
        {"type": "rdma", "id": f"{name}-nic-{minor}", "minor": minor, "health": True}
        | {"resources": {f"{KOORDINATOR}rdma": "100"}}
        for minor in range(nics)
    ]
    cards = [
        {**gpu_device(minor, gib=CARD_GIB), "id": f"GPU-{name}-{minor}"} for minor in range(CARDS)
    ]
    facts, _ = decode_node(_node(name, {}), device(*cards, *ports, name=name))
    return facts


def node_without_device(name: str) -> NodeFacts:
    """Return a node that advertises the same cards in every dialect's quantities."""
    memory = CARDS * CARD_GIB
    facts, warnings = decode_node(
        _node(
            name,
            {
                f"{KOORDINATOR}gpu-core": str(100 * CARDS),
                f"{KOORDINATOR}gpu-memory": f"{memory}Gi",
                f"{MGPU}core": str(100 * CARDS),
                f"{MGPU}memory": str(memory * 1024),
                "aliyun.com/gpu-count": str(CARDS),
                "aliyun.com/gpu-mem": str(memory * 1024),
                "nvidia.com/gpu": str(CARDS),
            },
        )
    )
    assert not warnings, warnings
    return facts


_LABELS: Final = {
    "vke.node.gpu.schedule": "mgpu",
    "koordinator.sh/gpu-isolation-provider": "HAMi-core",
}


def _node(name: str, quantities: Amounts) -> Object:
    plenty = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return node(name, allocatable={**plenty, **quantities}, labels=_LABELS)


def asking(name: str, dialect: str, *containers: Amounts) -> Object:
    """Return a pending Pod with these containers; `group` is a topology group of one."""
    labels = {f"{GROUP}name": name, f"{GROUP}replica": "1"} if dialect == "group" else None
    return pod(
        *(container(f"c{place}", limits=limits) for place, limits in enumerate(containers)),
        name=name,
        uid=f"uid-{name}",
        labels=labels,
    )


def as_running(body: Object, facts: NodeFacts, annotations: Mapping[str, str]) -> PodObserved:
    """Return what the bound Pod is seen to hold, from what the Binding wrote on it."""
    bound = json.loads(json.dumps(body))
    bound["metadata"].setdefault("annotations", {}).update(annotations)
    bound["spec"]["nodeName"] = facts.name
    bound["status"] = {"phase": "Running"}
    seen = adopt(bound, facts)
    assert seen.unknown_types == (), seen
    return seen


# --- Strategies -------------------------------------------------------------------------------

_PERCENT: Final = st.sampled_from((1, 10, 25, 33, 34, 50, 67, 75, 99)).map(str)
_GIBS: Final = st.integers(1, CARD_GIB)
_CARDS: Final = st.sampled_from((1, 1, 2, CARDS))


def _koordinator() -> st.SearchStrategy[Amounts]:
    def keys(**amounts: str) -> Amounts:
        return {f"{KOORDINATOR}{key.replace('_', '-')}": text for key, text in amounts.items()}

    gpu = st.one_of(
        st.builds(lambda percent: keys(gpu=percent), _PERCENT),
        st.builds(lambda cards: keys(gpu=str(100 * cards)), _CARDS),
        st.builds(lambda percent: keys(gpu_memory_ratio=percent), _PERCENT),
        st.builds(lambda size: keys(gpu_memory=f"{size}Gi"), _GIBS),
        st.builds(
            lambda percent, size: keys(gpu_core=percent, gpu_memory=f"{size}Gi"), _PERCENT, _GIBS
        ),
        st.just(
            {
                f"{KOORDINATOR}gpu-core": "60",
                f"{KOORDINATOR}gpu-memory-ratio": "80",
                f"{KOORDINATOR}gpu.shared": "2",
            }
        ),
    )
    return st.builds(lambda amounts, nic: amounts | nic, gpu, st.sampled_from(({}, {}, _NIC)))


_NIC: Final = {f"{KOORDINATOR}rdma": "40"}


def _mgpu_part(core: str, size: int) -> Amounts:
    return {f"{MGPU}core": core, f"{MGPU}memory": str(size * 512)}


def _hami() -> st.SearchStrategy[Amounts]:
    """One container's words, never a whole card alone: that would be NVIDIA's."""

    def words(cards: int, memory: Amounts, cores: str) -> Amounts:
        return {"nvidia.com/gpu": str(cards), "nvidia.com/gpucores": cores, **memory}

    memory = st.one_of(
        st.just({}),
        st.builds(lambda percent: {"nvidia.com/gpumem-percentage": percent}, _PERCENT),
        st.builds(lambda size: {"nvidia.com/gpumem": str(size * 512)}, st.integers(1, 32)),
    )
    return st.builds(
        words, st.sampled_from((1, 1, 2)), memory, st.sampled_from(("10", "60", "100"))
    )


def asked() -> st.SearchStrategy[tuple[str, tuple[Amounts, ...]]]:
    """Draw a dialect and what each container of a Pod asks in it."""
    mgpu = st.lists(
        st.builds(_mgpu_part, _PERCENT, st.integers(1, 2 * CARD_GIB)), min_size=1, max_size=3
    )
    return st.one_of(
        st.builds(lambda cards: ("nvidia", ({"nvidia.com/gpu": str(cards)},)), _CARDS),
        st.builds(lambda amounts: ("koordinator", (amounts,)), _koordinator()),
        st.builds(lambda parts: ("mgpu", tuple(parts)), mgpu),
        st.builds(lambda cards: ("mgpu", ({f"{MGPU}core": str(100 * cards)},)), _CARDS),
        st.builds(
            lambda size: ("gpushare", ({"aliyun.com/gpu-mem": str(size * 512)},)),
            st.integers(1, 2 * CARD_GIB),
        ),
        st.builds(lambda parts: ("hami", tuple(parts)), st.lists(_hami(), min_size=1, max_size=3)),
        st.builds(lambda cards: ("group", ({f"{KOORDINATOR}gpu": str(100 * cards)},)), _CARDS),
    )
