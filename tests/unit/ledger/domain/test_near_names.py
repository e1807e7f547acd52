"""What nobody offers, and what it was probably meant to be."""

from __future__ import annotations

import pytest

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.near_names import near_names
from ledger.domain.systems import DeviceSystems
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

MIG = "nvidia.com/mig-3g"


def offering(name: str, **amounts: int) -> NodeFacts:
    """Return a node that offers these; `_` stands for what a keyword can't hold."""
    offers = tuple((key, amount) for key, amount in amounts.items())
    return NodeFacts(uid=name, name=name, systems=DeviceSystems(offers=offers))


@pytest.mark.parametrize(
    ("asked", "offers", "meant"),
    [
        pytest.param("nvidia.com/gpu", "nvidia.com/gpu.shared", True, id="renamed replicas"),
        pytest.param("nvidia.com/gpu.shared", "nvidia.com/gpu", True, id="no more replicas"),
        pytest.param(f"{MIG}.21gb", f"{MIG}.20gb", True, id="another size of the same slice"),
        pytest.param(f"{MIG}.20gb", f"{MIG}.20gb.shared", True, id="renamed slices"),
        pytest.param(f"{MIG}.21gb", "nvidia.com/mig-1g.10gb", False, id="another slice"),
        pytest.param(
            "volcano.sh/gpu-memory", "volcano.sh/vgpu-memory", True, id="Volcano's old plugin"
        ),
        pytest.param("amd.com/gpus", "amd.com/gpu", True, id="a letter more"),
        pytest.param("nvidia.com/GPU", "nvidia.com/gpu", True, id="capitals"),
        pytest.param("nvidia/gpu", "nvidia.com/gpu", True, id="a domain cut short"),
        pytest.param("nvidia.com/gpu", f"{MIG}.20gb", True, id="all cards are cut"),
        pytest.param("amd.com/gpu", "nvidia.com/gpu", False, id="another vendor"),
        pytest.param("rdma/hca", "nvidia.com/gpu", False, id="another thing"),
        pytest.param("nvidia.com/gpu", "nvidia.com/gpu", False, id="it is offered"),
    ],
)
def test_a_name_that_nobody_offers(asked: str, offers: str, *, meant: bool) -> None:
    """One sentence: by how many nodes, and how many are free; silence where nothing is near."""
    nodes = [offering("a", **{offers: 8}), offering("b")]
    free = {0: 5}
    found = [*near_names([asked], nodes, lambda number, _: free.get(number), DEFAULT_VOCABULARY)]
    said = f"Insufficient {asked}: nobody offers it; meant {offers}? 1 of 2 nodes offer it, 5 free"
    assert found == ([said] if meant else [])


def test_what_the_pod_asks_for_beside_is_not_what_it_meant() -> None:
    """It says that already."""
    nodes = [offering("a", **{"nvidia.com/gpu": 8})]
    asked = {"nvidia.com/gpu", "nvidia.com/gpumem"}
    assert [*near_names(asked, nodes, lambda *_: None, DEFAULT_VOCABULARY)] == []


def test_what_volcano_reckons_card_by_card_is_offered_with_its_number() -> None:
    """No node says a percentage of memory."""
    nodes = [offering("a", **{"volcano.sh/vgpu-number": 8, "volcano.sh/vgpu-memory": 9})]
    asked = {"volcano.sh/vgpu-memory-percentage"}
    assert [*near_names(asked, nodes, lambda *_: None, DEFAULT_VOCABULARY)] == []
