"""As cards fill, every dialect offers less, and none less than the Pods that live here ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decide.node_holdings import HeldByPod
from agent.discover.machine import Discovery, Fault, OtherDevice
from agent.report.device import wanted
from agent.report.held import Asked, asked_by_living, held_of
from agent.report.offers import node_offers
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.registry import READERS
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.quantity import parse_quantity
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.machines_found import GIB, TWO_CARDS, card
from tests.support.objects import container, pod
from tests.support.proofs import held_by_pod

ALL: Final = frozenset(Dialect)
MIB: Final = 1 << 20
CARDS: Final = Discovery(cards=(card(0), card(1)))
SIZE: Final = card(0).memory_bytes
FIRST: Final = ("gpu", card(0).uuid)


def holders(held: dict[tuple[str, str], tuple[int, int]], pod_uid: str = "p") -> list[HeldByPod]:
    """Return a Pod that holds so much core and so many bytes of each device."""
    devices = tuple(
        ProvenDevice(
            device_type=kind, device_id=name, minor=0, core_percent=core, memory_bytes=size
        )
        for (kind, name), (core, size) in held.items()
    )
    containers = (ProvenContainer(index="0", devices=devices),)
    return [held_by_pod(pod_uid=pod_uid, namespace="ml", pod_name=pod_uid, containers=containers)]


NOBODY: Final = Asked(amounts={}, pod_uids=frozenset())


def amounts(
    found: Discovery = CARDS,
    held: dict[tuple[str, str], tuple[int, int]] | None = None,
    requested: dict[str, int] | None = None,
    unit: str = "MiB",
) -> dict[str, int]:
    """Return what is offered, as numbers, in every dialect, with one Pod that kubelet knows."""
    words = replace(DEFAULT_VOCABULARY, gpushare_unit=unit)
    asked = Asked(amounts=requested or {}, pod_uids=frozenset("p"))
    said = node_offers(found, holders(held or {}), asked, dialects=ALL, vocabulary=words)
    return {name: parse_quantity(text).ceil() for name, text in said.items()}


def test_an_empty_node_offers_all_of_its_cards_in_every_way() -> None:
    """Koordinator contract 1.2, and each dialect's own unit."""
    assert amounts() == {
        "aliyun.com/gpu-count": 2,
        "aliyun.com/gpu-mem": 2 * (SIZE // MIB),
        "koordinator.sh/gpu": 200,
        "koordinator.sh/gpu-core": 200,
        "koordinator.sh/gpu-memory": 2 * SIZE,
        "koordinator.sh/gpu-memory-ratio": 200,
        "koordinator.sh/gpu.shared": 200,
        "vke.volcengine.com/mgpu-core": 200,
        "vke.volcengine.com/mgpu-memory": 2 * (SIZE // MIB),
    }
    assert "aliyun.com/gpu-mem" not in amounts(unit="GiB"), "a device plugin's"


def test_what_an_empty_node_offers_means_its_cards_again() -> None:
    """In every dialect that is written, by the dialect's own reader."""
    said = amounts()
    for reader in READERS:
        if reader.dialect in {Dialect.KOORDINATOR, Dialect.MGPU, Dialect.GPUSHARE}:
            found = reader.adverts(lambda name: said.get(name, 0), DEFAULT_VOCABULARY)
            assert found is not None
            assert (found.count, found.memory_bytes // MIB) == (2, SIZE // MIB)


def test_numbers_are_as_the_api_writes_them() -> None:
    """Else every round would find another text and write again."""
    many = Discovery(cards=tuple(card(minor) for minor in range(10)))

    said = node_offers(many, [], NOBODY, dialects=ALL, vocabulary=DEFAULT_VOCABULARY)
    assert (said["koordinator.sh/gpu-core"], said["koordinator.sh/gpu"]) == ("1k", "1k")


def test_what_one_dialect_holds_the_others_lose() -> None:
    """A whole card that an mGPU Pod has: two cards for nobody, two hundred percent for mGPU."""
    said = amounts(
        held={FIRST: (100, SIZE)},
        requested={"vke.volcengine.com/mgpu-core": 100, "vke.volcengine.com/mgpu-memory": 0},
    )

    assert said["koordinator.sh/gpu-core"] == 100
    assert said["koordinator.sh/gpu-memory"] == SIZE
    assert said["aliyun.com/gpu-mem"] == SIZE // MIB
    assert said["vke.volcengine.com/mgpu-core"] == 200


def test_bytes_alone_leave_the_cores() -> None:
    """GPU share asks for memory: `koordinator.sh/gpu` needs both, cores alone are there."""
    said = amounts(held={FIRST: (0, SIZE // 2)}, requested={"aliyun.com/gpu-mem": SIZE // 2 // MIB})

    assert (said["koordinator.sh/gpu-core"], said["koordinator.sh/gpu"]) == (200, 150)
    assert said["aliyun.com/gpu-mem"] == 2 * (SIZE // MIB)


def test_a_closed_card_has_nothing_left_and_its_holders_are_not_cut() -> None:
    """A node that offers less than runs on it is overcommitted for kubelet."""
    bad = replace(card(0), faults=(Fault(reason="Xid79"),))
    found = Discovery(cards=(bad, card(1)))
    said = amounts(found, {FIRST: (60, SIZE)}, {"koordinator.sh/gpu-core": 60})

    assert said["koordinator.sh/gpu-core"] == 160
    assert (said["koordinator.sh/gpu.shared"], said["aliyun.com/gpu-count"]) == (100, 1)


def test_nics_and_declared_devices_too() -> None:
    """By their types' own resources; a whole one that is counted is there or not."""
    found = replace(TWO_CARDS, others=(OtherDevice(device_type="fpga", device_id="f", minor=0),))
    nic = ("rdma", "0000:5e:00.0")
    held = {nic: (1, 0), ("fpga", "f"): (100, 0)}
    known = Asked(amounts={}, pod_uids=frozenset("p"))
    said = node_offers(found, holders(held), known, dialects=ALL, vocabulary=DEFAULT_VOCABULARY)

    assert (said["koordinator.sh/rdma"], said["koordinator.sh/fpga"]) == ("99", "0")


def test_a_node_without_devices_offers_nothing() -> None:
    """Not even zeros: nobody could tell that it ever had some."""
    assert not amounts(Discovery())


HELD = st.dictionaries(
    st.sampled_from([FIRST, ("gpu", card(1).uuid)]),
    st.tuples(st.integers(0, 120), st.integers(0, SIZE + GIB)),
)
ASKED = st.dictionaries(st.sampled_from(sorted(amounts())), st.integers(0, 1 << 40))


@given(HELD, ASKED)
def test_never_below_what_lives_here_and_never_above_what_there_is(
    held: dict[tuple[str, str], tuple[int, int]], asked: dict[str, int]
) -> None:
    """Whatever is held, also more than a card has."""
    empty, said = amounts(), amounts(held=held, requested=asked)

    assert said.keys() == empty.keys()
    for name, amount in said.items():
        assert asked.get(name, 0) <= amount <= empty[name] + asked.get(name, 0)


class Part(NamedTuple):
    """What one Pod holds of one card, and asks for, in one dialect's words."""

    card: int
    core: int
    size: int
    asked: dict[str, int]


def _koordinator(card: int, percent: int) -> Part:
    words = {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent}
    words["koordinator.sh/gpu.shared"] = 1
    return Part(card, percent, SIZE * percent // 100, words)


def _mgpu(card: int, percent: int) -> Part:
    mib = SIZE // MIB * percent // 100
    words = {"vke.volcengine.com/mgpu-core": percent, "vke.volcengine.com/mgpu-memory": mib}
    return Part(card, percent, mib * MIB, words)


def _gpushare(card: int, percent: int) -> Part:
    mib = SIZE // MIB * percent // 100
    return Part(card, 0, mib * MIB, {"aliyun.com/gpu-mem": mib})


PARTS: Final = st.lists(
    st.builds(
        lambda made, card, percent: made(card, percent),
        st.sampled_from([_koordinator, _mgpu, _gpushare]),
        st.integers(0, 1),
        st.integers(1, 33),
    ),
    max_size=6,
).filter(lambda parts: all(sum(one.card == card for one in parts) <= 3 for card in (0, 1)))


@given(
    PARTS.map(lambda parts: list(enumerate(parts))),
    st.sets(st.integers(0, 1)),
    st.sets(st.integers(0, 5)),
    st.sampled_from(["all", "what is held", "what is asked", "nothing"]),
)
def test_no_state_of_a_card_takes_from_a_living_pod(
    parts: list[tuple[int, Part]], closed: set[int], seen: set[int], known: str
) -> None:
    """
    Open or closed, and whatever of its Pods the agent knows: kubelet takes each of them again.

    Pods that hold something may be ones that kubelet has not told of, or the other way round.
    """
    fault = (Fault(reason="Xid79"),)
    cards = [replace(card(n), faults=fault if n in closed else ()) for n in (0, 1)]
    pods, lives, told = [], dict[str, int](), dict[str, int]()
    for number, part in parts:
        key = ("gpu", card(part.card).uuid)
        pods += holders({key: (part.core, part.size)}, f"p{number}")
        for name, amount in part.asked.items():
            lives[name] = lives.get(name, 0) + amount
            if number in seen:
                told[name] = told.get(name, 0) + amount
    uids = frozenset(f"p{number}" for number in seen)

    said = node_offers(
        Discovery(cards=tuple(cards)),
        pods if known in {"all", "what is held"} else None,
        Asked(amounts=told, pod_uids=uids) if known in {"all", "what is asked"} else None,
        dialects=ALL,
        vocabulary=DEFAULT_VOCABULARY,
    )

    for name, amount in lives.items():
        assert parse_quantity(said[name]).ceil() >= amount, name


def test_a_closed_card_that_nobody_holds_offers_nothing() -> None:
    """As far as it is known who holds what; else it may be somebody's."""
    bad = Discovery(cards=(replace(card(0), faults=(Fault(reason="Xid79"),)), card(1)))

    def cores(pods: list[HeldByPod] | None) -> str:
        said = node_offers(bad, pods, None, dialects=ALL, vocabulary=DEFAULT_VOCABULARY)
        return said["koordinator.sh/gpu-core"]

    assert [cores(pods) for pods in ([], holders({FIRST: (1, 0)}), None)] == ["100", "200", "200"]


def test_what_living_pods_ask_for_is_summed_as_kubelet_sums() -> None:
    """Init containers and sidecars as the scheduler counts them; who has ended asks for nothing."""
    cores = "koordinator.sh/gpu-core"
    both = pod(
        container("a", limits={cores: "20"}),
        container("b", limits={cores: "30"}),
        initContainers=[container("first", limits={cores: "60"})],
        uid="both",
    )
    ended = pod(container(limits={cores: "40"}), uid="ended", phase="Succeeded")
    small = pod(container(limits={"aliyun.com/gpu-mem": "7"}), uid="small", phase="Running")

    assert asked_by_living([both, ended, small], DEFAULT_VOCABULARY) == Asked(
        amounts={cores: 60, "aliyun.com/gpu-mem": 7}, pod_uids=frozenset({"both", "small"})
    )
    with pytest.raises(InputError, match="gpu-core"):
        asked_by_living([pod(container(limits={cores: "-1"}))], DEFAULT_VOCABULARY)


def given_to(index: str, core: int, size: int = 0) -> ProvenContainer:
    """Return a container with a part of the first card."""
    part = ProvenDevice(
        device_type="gpu", device_id=FIRST[1], minor=0, core_percent=core, memory_bytes=size
    )
    return ProvenContainer(index=index, devices=(part,))


@pytest.mark.parametrize(
    ("containers", "held"),
    [
        ([given_to("0", 30, 5), given_to("1", 20, 7)], (50, 12)),
        ([given_to("init-0", 80, 1), given_to("0", 30, 5)], (80, 5)),
        ([given_to("init-0", 10), given_to("init-1", 20), given_to("0", 5)], (20, 0)),
        ([given_to("", 40, 9)], (40, 9)),
    ],
    ids=["beside one another", "first more than then", "one after the other", "the whole Pod"],
)
def test_what_a_pod_holds_of_a_card(
    containers: list[ProvenContainer], held: tuple[int, int]
) -> None:
    """Init containers reuse what app containers hold."""
    pod = held_by_pod(pod_uid="u", namespace="ml", pod_name="p", containers=tuple(containers))

    assert held_of([pod]) == {FIRST: held}
    assert held_of([pod, pod]) == {FIRST: (2 * held[0], 2 * held[1])}


def test_the_scheduler_finds_nothing_wrong_with_a_node_that_fills() -> None:
    """The quantities of mGPU fall below the Device object's cards where the node is ours."""
    node = {"metadata": {"name": "n1", "uid": "u", "labels": {"tenure.sh/owned": "true"}}}
    body = wanted(CARDS, node, None, (), vocabulary=DEFAULT_VOCABULARY, now="2026").device
    assert body is not None
    for held in ({}, {FIRST: (50, SIZE // 3)}, {FIRST: (100, SIZE)}):
        known = Asked(amounts={}, pod_uids=frozenset("p"))
        said = node_offers(CARDS, holders(held), known, dialects=ALL, vocabulary=DEFAULT_VOCABULARY)
        status = {"capacity": said, "allocatable": said}
        facts, warnings = decode_node({**node, "status": status}, body)
        assert not warnings
        assert [one.memory_bytes for one in facts.devices] == [SIZE, SIZE]
