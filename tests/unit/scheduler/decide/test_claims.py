"""Which of the cards that are alike a claim gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from ledger.domain.cpuset import EMPTY
from ledger.domain.devices import GPU, DeviceShare, DeviceTopology
from ledger.domain.log.state import GRANTED, OBSERVED, Holding, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.topology import LinkMatrix
from scheduler.decide.claims import place_claim
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.exchange import Alike, Device, Unit
from tests.support.gated import CARD_BYTES, DRIVER, GIB, NODE, card

CARDS = 4
ALL = tuple(Alike(name=f"gpu-{minor}", minor=minor) for minor in range(CARDS))


def share(minor: int, gib: int = 0) -> DeviceShare:
    """Return a part of a card's memory, or all of the card."""
    return DeviceShare(
        device_type=GPU,
        minor=minor,
        device_id=f"GPU-{minor}",
        core_percent=0 if gib else 100,
        memory_bytes=gib * GIB or CARD_BYTES,
        exclusive=not gib,
    )


def device(number: int) -> Device:
    """Return what an allocation calls a card."""
    return (DRIVER, NODE, f"gpu-{number}")


def unit(number: int, gib: int = 0, among: Sequence[Alike] = ALL) -> Unit:
    """Return a card of an allocation that may be exchanged for one of these."""
    return Unit(device=device(number), share=share(number, gib), among=tuple(among))


def node(*held: DeviceShare, kind: str = GRANTED) -> NodeState:
    """Return a node on which these shares are held."""
    holdings = [
        Holding(
            pod_uid=f"p{number}",
            attempt=1,
            namespace="ml",
            pod_name="p",
            kind=kind,
            phase="bound",
            opened_position=1,
            shares=(each,),
            cpuset=EMPTY,
        )
        for number, each in enumerate(held)
    ]
    return NodeState(
        uid="node-1",
        name=NODE,
        devices=tuple(card(minor) for minor in range(CARDS)),
        holdings={each.key: each for each in holdings},
    )


def placed(
    there: NodeState, *units: Unit, kept: Sequence[int] = (), facts: NodeFacts | None = None
) -> list[dict[str, str]]:
    """Return all choices in their order, by the names of the devices."""
    found = place_claim(there, units, kept, facts=facts, settings=SchedulingSettings())
    return [{key[2]: name for key, name in one.items()} for one in found]


def test_the_fuller_card_that_has_room_comes_first() -> None:
    """Then the next fuller ones, the lowest of those that are equally full."""
    there = node(share(1, 12), share(2, 10), share(3, 8))

    assert [one["gpu-0"] for one in placed(there, unit(0, 4))] == [
        "gpu-1",
        "gpu-2",
        "gpu-3",
        "gpu-0",
    ]
    assert [one["gpu-0"] for one in placed(there, unit(0, 5))] == ["gpu-2", "gpu-3", "gpu-0"]


def test_a_whole_card_is_one_that_nobody_has_anything_of() -> None:
    """Its own where that is as good as any."""
    assert placed(node(share(0, 1), share(2, 1)), unit(0))[0] == {"gpu-0": "gpu-1"}
    assert placed(node(share(0), share(1), share(2), share(3)), unit(0)) == []


def test_who_holds_past_us_closes_a_card_that_he_has_whole() -> None:
    """And takes of it what he is seen to have."""
    there = node(share(0), share(1, 15), kind=OBSERVED)

    assert [one["gpu-0"] for one in placed(there, unit(0, 2))] == ["gpu-2", "gpu-3"]


def test_a_card_that_containers_of_a_pod_see_is_not_chosen() -> None:
    """Nobody holds it; it is closed until who is shown it has ended."""
    there = node(share(0))
    [(key, held)] = there.holdings.items()
    there = replace(there, holdings={key: structs.replace(held, shown=("GPU-0", "GPU-2"))})

    assert [one["gpu-0"] for one in placed(there, unit(0))] == ["gpu-1", "gpu-3"]


def test_units_get_a_card_each_and_none_that_is_the_claims_already() -> None:
    """Devices are exchanged one for one; who may stay stays."""
    found = placed(node(share(0)), unit(0), unit(2), kept=[3])

    assert found == [{"gpu-0": "gpu-1", "gpu-2": "gpu-2"}]
    assert placed(node(share(0)), unit(0), unit(2), unit(3), kept=[1]) == []


def test_nobody_gets_a_card_that_is_not_like_his() -> None:
    """However full it is."""
    assert placed(node(share(3, 8)), unit(0, 4, ALL[:2]))[0] == {"gpu-0": "gpu-0"}


def test_whole_cards_get_the_fastest_links() -> None:
    """As they are measured."""
    rows = [[0.0, 5.0, 5.0, 50.0], [5.0, 0.0, 20.0, 5.0], [5.0, 20.0, 0.0, 5.0]]
    matrix = LinkMatrix(rows=tuple(map(tuple, [*rows, [50.0, 5.0, 5.0, 0.0]])))
    facts = NodeFacts(uid="node-1", name=NODE, links=matrix)

    assert placed(node(), unit(0), unit(1), facts=facts)[0] == {"gpu-0": "gpu-0", "gpu-1": "gpu-3"}


def test_whole_cards_are_of_one_numa_node_where_slices_tell_of_it() -> None:
    """There is no Device object, and nobody measured anything."""
    there = node(share(0, 1))
    numa = (0, 1, 0, 1)
    records = [
        replace(each, topology=DeviceTopology(numa_node=numa[each.minor])) for each in there.devices
    ]

    found = placed(replace(there, devices=tuple(records)), unit(1), unit(2))

    assert found[0] == {"gpu-1": "gpu-1", "gpu-2": "gpu-3"}
