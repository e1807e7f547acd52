"""What nobody offers, and what it was probably meant to be."""

from __future__ import annotations

from dataclasses import replace

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
        pytest.param("gpu.intel.com/i915", "gpu.intel.com/xe", True, id="the vendor's new driver"),
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
    said = f"{asked}: nobody offers it; meant {offers}? 1 of 2 nodes offer it, 5 free"
    assert found == ([said] if meant else [])


def test_what_the_pod_asks_for_beside_is_not_what_it_meant() -> None:
    """It says that already; of HAMi's names it is told that HAMi is not there."""
    nodes = [offering("a", **{"nvidia.com/gpu": 8})]
    asked = {"nvidia.com/gpu", "nvidia.com/gpumem"}
    said = [*near_names(asked, nodes, lambda *_: None, DEFAULT_VOCABULARY)]
    assert said == ["nvidia.com/gpumem: nobody offers it"]


def test_where_all_units_are_slices_of_a_kind_that_is_what_they_are_called() -> None:
    """NVIDIA's strategy `single`."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
    nodes = [replace(offering("a", **{"nvidia.com/gpu": 7}), labels=labels)]
    for name, meant in (("nvidia.com/mig-1g.5gb", True), ("nvidia.com/mig-2g.10gb", False)):
        (*said,) = near_names([name], nodes, lambda *_: 7, DEFAULT_VOCABULARY)
        assert bool(said) == meant
        assert not meant or "meant nvidia.com/gpu? 1 of 1 nodes offer it, 7 free" in said[0]


def test_what_volcano_reckons_card_by_card_is_offered_with_its_number() -> None:
    """No node says a percentage of memory."""
    nodes = [offering("a", **{"volcano.sh/vgpu-number": 8, "volcano.sh/vgpu-memory": 9})]
    asked = {"volcano.sh/vgpu-memory-percentage"}
    assert [*near_names(asked, nodes, lambda *_: None, DEFAULT_VOCABULARY)] == []
