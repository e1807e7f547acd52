"""GPU share's numbers say by themselves whether they are GiB or MiB."""

from __future__ import annotations

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.dialects.registry import READERS
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from tests.support.objects import container, node, pod

MEMORY, COUNT, GIB = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", 2**30


def a_node(memory: int, cards: int = 2) -> NodeFacts:
    """Return a node that offers so many units on so many cards."""
    return decode_node(node("n", allocatable={MEMORY: str(memory), COUNT: str(cards)}))[0]


@pytest.mark.parametrize(
    ("memory", "size"),
    [(30, 15 * GIB), (316, 158 * GIB), (998, 499 * GIB), (1000, 500 * 2**20), (30720, 15 * GIB)],
)
def test_a_cards_number_says_its_unit(memory: int, size: int) -> None:
    """No card has 499 MiB, and none 500 GiB."""
    assert [one.memory_bytes for one in a_node(memory).devices] == [size, size]


@pytest.mark.parametrize(("memory", "units"), [(30, 3), (30720, 3072)])
def test_a_pod_holds_by_the_unit_of_its_node(memory: int, units: int) -> None:
    """Two nodes of one cluster may differ."""
    given = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": str(units)}
    body = pod(container(limits={MEMORY: units}), name="p", uid="p", annotations=given)

    (share,) = adopt(body, a_node(memory)).shares

    assert (share.minor, share.memory_bytes) == (1, 3 * GIB)


def fitted(*nodes: NodeFacts) -> Vocabulary:
    """Return the vocabulary of a cluster of these nodes."""
    vocabulary = DEFAULT_VOCABULARY
    for reader in READERS:
        vocabulary = reader.fitted(vocabulary, nodes)
    return vocabulary


def test_a_cluster_has_the_unit_that_all_its_nodes_have() -> None:
    """Where they differ, or none tells it, the setting counts."""
    assert fitted(a_node(30), a_node(40)).gpushare_unit == "GiB"
    assert fitted(a_node(30), a_node(30720)) == DEFAULT_VOCABULARY
    assert fitted(decode_node(node("n"))[0]) == DEFAULT_VOCABULARY
