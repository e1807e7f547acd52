"""Measured bandwidth is put on the cards that were measured, or refused; else links suggest it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from agent.discover.bandwidth import read_bandwidth
from agent.discover.links import bandwidth_of
from agent.discover.machine import Card, Common, Discovery, GpuLink
from ledger.domain.errors import InputError
from ledger.domain.topology import LinkMatrix
from tests.support.machines_found import TWO_CARDS, card

SAMPLES: Final = Path(__file__).parents[3] / "samples/bandwidth"
P2P: Final = (SAMPLES / "p2p-two-rtx-5090.txt").read_text()
NCCL: Final = (SAMPLES / "nccl-four-rtx-4090.txt").read_text()


def at(*buses: int) -> list[Card]:
    """Return cards with these PCI buses, by minor."""
    return [
        replace(
            card(minor), place=replace(card(minor).place, bus_id=f"0000:{bus:02x}:00.0", root="")
        )
        for minor, bus in enumerate(buses)
    ]


def run(buses: str, gbps: float, *, host: str = "n1", size: int = 1024) -> str:
    """Return what a run of nccl-tests between two cards prints, in the newer form."""
    ranks = "".join(
        f"#  Rank {rank:2} Group  0 Pid 12716 on  {host} device  {rank} [0000:{bus}:00] NVIDIA L4\n"
        for rank, bus in enumerate(buses.split())
    )
    row = f"  {size}  256  float  none  -1  18.4  9.9  {gbps}  N/A  18.5  9.9  1.0  N/A\n"
    return f"# Using devices\n{ranks}#\n{row}# Avg bus bandwidth : 1\n"


def test_the_matrix_of_peer_access_counts() -> None:
    """Of two real cards: one way, with peer access, each direction by itself."""
    assert read_bandwidth(P2P, at(0x21, 0x61)) == LinkMatrix(rows=((0.0, 38.2), (38.66, 0.0)))


def test_cards_are_known_by_their_bus_and_not_by_cudas_order() -> None:
    """CUDA counts the fastest first unless it is told otherwise."""
    assert read_bandwidth(P2P, at(0x61, 0x21)) == LinkMatrix(rows=((0.0, 38.66), (38.2, 0.0)))


def test_a_run_over_all_cards_tells_of_each_pair() -> None:
    """Of four real cards: the bus bandwidth of the largest message."""
    matrix = read_bandwidth(NCCL, at(0x01, 0x25, 0x41, 0x61))

    assert {matrix.rows[a][b] for a in range(4) for b in range(4) if a != b} == {25.31}


def test_a_run_of_two_cards_counts_before_one_of_all() -> None:
    """Fewer ranks say more of their pair, wherever they stand in the file; of equals the last."""
    text = run("41 61", 1.0) + run("41 61", 120.5) + NCCL + run("01 25", 50.0)
    matrix = read_bandwidth(text, at(0x01, 0x25, 0x41, 0x61))

    assert (matrix.rows[0][1], matrix.rows[3][2], matrix.rows[0][2]) == (50.0, 120.5, 25.31)


def test_minors_that_no_card_has_are_zero() -> None:
    """The matrix is by minor."""
    first, second = at(0x21, 0x61)
    matrix = read_bandwidth(P2P, [first, replace(second, minor=2)])

    assert matrix.rows == ((0.0, 0.0, 38.2), (0.0, 0.0, 0.0), (38.66, 0.0, 0.0))


@pytest.mark.parametrize(
    ("text", "cards", "message"),
    [
        ("hello", at(1, 2), "neither p2pBandwidthLatencyTest nor nccl-tests"),
        (P2P, at(0x21, 0x62), "0 cards have this bus address: value='0000:61'"),
        (P2P.replace("Device: ", "Gerät: "), at(0x21, 0x61), "which cards these are, is not said"),
        (P2P.replace("38.20", "fast"), at(0x21, 0x61), "not a bandwidth: value='fast'"),
        (P2P.replace("38.20", "-1"), at(0x21, 0x61), "not a number between 0 and"),
        (P2P.replace(" 38.20 ", ""), at(0x21, 0x61), "not a row of the matrix"),
        (P2P, at(0x21, 0x61, 0x81), "nobody measured: from=0, to=2"),
        (run("21 61", 1.0) + run("21 81", 1.0), at(0x21, 0x61, 0x81), "from=1, to=2"),
        (
            run("21 61", 1.0).replace("on  n1 device  1", "on  n2 device  1"),
            at(0x21, 0x61),
            "ranks on several machines: value='n1', 'n2'",
        ),
        ("# Using devices\n", at(0x21, 0x61), "a run without a result: line=1"),
        (run("21 61", float("nan")), at(0x21, 0x61), "not a bandwidth"),
    ],
    ids=[
        "another tool",
        "another card",
        "no cards",
        "no number",
        "negative",
        "a torn row",
        "a card that was not there",
        "a pair that was not measured",
        "between machines",
        "a run that broke off",
        "nan",
    ],
)
def test_what_does_not_say_it_of_these_cards_is_refused(
    text: str, cards: list[Card], message: str
) -> None:
    """Nothing is guessed: a pair without a figure would look like the slowest link."""
    with pytest.raises(InputError) as caught:
        read_bandwidth(text, cards)

    assert message in str(caught.value)


def test_links_suggest_a_matrix_where_nobody_measured() -> None:
    """NVLinks times what one carries; else what lies between, in the order of `nvidia-smi topo`."""
    linked = bandwidth_of(TWO_CARDS)
    assert linked == LinkMatrix(rows=((0.0, 300.0), (300.0, 0.0)))

    speeds = []
    for common in Common:
        found = replace(TWO_CARDS, links=(GpuLink(first=0, second=1, common=common),))
        matrix = bandwidth_of(found)
        assert matrix is not None
        speeds.append(matrix.bandwidth_gbps(0, 1))
    assert speeds == sorted(speeds, reverse=True)


def test_a_pair_without_nvlink_has_what_its_places_suggest() -> None:
    """Next to pairs that have some."""
    third = card(2, numa=1, root="pci0000:5d")
    matrix = bandwidth_of(replace(TWO_CARDS, cards=(*TWO_CARDS.cards, third)))

    assert matrix is not None
    assert (matrix.rows[0][1], matrix.rows[1][2], matrix.rows[0][2]) == (300.0, 16.0, 9.0)


def test_what_was_measured_counts_and_places_alone_say_nothing() -> None:
    """The scheduler derives the same from places by itself."""
    measured = LinkMatrix(rows=((0.0, 1.0), (2.0, 0.0)))

    assert bandwidth_of(replace(TWO_CARDS, measured=measured)) == measured
    assert bandwidth_of(replace(TWO_CARDS, links=(GpuLink(first=0, second=1),))) is None
    assert bandwidth_of(Discovery()) is None
