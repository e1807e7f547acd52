"""GPU share on a node, row by row of the contract: ids, whose Allocate, what is told, the mark."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from agent.checkpoint import DeviceCheckpoint
from agent.decide.gpushare import (
    NobodyWaitsError,
    TiedError,
    chosen,
    environment,
    marking,
    preferred,
    read_share_pod,
    to_mark,
    unit_ids,
    wanting,
)
from agent.discover.machine import Discovery, Fault, Kind
from agent.https import NoAnswerError
from agent.plugin.messages import NotYetError
from agent.plugin.serving import DevicePlugin, Metrics
from agent.plugin.sharing import GpuShare, OtherCardError
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from ledger.domain.errors import InputError
from tests.support.machines_found import card
from tests.support.shares import ShareNode, given, recorded, share_pod

NOTHING: Final = recorded()
MIB: Final = 1 << 20
PROPOSALS: Final = replace(card(0), memory_bytes=16276 * MIB, uuid="GPU-a")
"""The GPU of the proposal's example."""


def waits(
    units: int, *pods: Mapping[str, Any], record: DeviceCheckpoint = NOTHING
) -> tuple[str, str]:
    """Return the Pod and container that an Allocate of so many units is for."""
    read = [one for one in map(read_share_pod, pods) if one is not None]
    found = chosen(units, wanting(read, record))
    return found.pod.name, found.container


def node(*cards: Any) -> ShareNode:  # noqa: ANN401 - cards
    """Return a node with two cards of 15 GiB."""
    made = [replace(card(number), memory_bytes=16276 * MIB) for number in range(2)]
    return ShareNode(cards=cards or tuple(made), rng=random.Random(1))


def test_a_card_has_an_id_for_each_whole_gib() -> None:
    """Contract B.5: `<GPU UUID>-_-<n>`, n from 0; 16276 MiB are 15 units."""
    ids = [one.unit_id for one in unit_ids([PROPOSALS])]

    assert ids == [f"GPU-a-_-{number}" for number in range(15)]
    assert all(len(one.unit_id) <= 63 for one in unit_ids([card(0)]))


def test_the_ids_of_a_closed_card_are_unhealthy_and_come_back() -> None:
    """Another card's stay; an id says on which NUMA node its card is."""
    share = node().agent
    first, second = (replace(card(number), memory_bytes=16276 * MIB) for number in range(2))
    closed = replace(
        second, faults=(Fault(reason="Xid79"),), place=replace(second.place, numa_node=-1)
    )

    share.saw(Discovery(cards=(first, closed)))

    told = [
        (one.ID, one.health, [n.ID for n in one.topology.nodes]) for one in share.listing().devices
    ]
    assert told[14] == (f"{first.uuid}-_-14", "Healthy", [0])
    assert told[15] == (f"{second.uuid}-_-0", "Unhealthy", [])
    before = share.listing()
    share.saw(Discovery(unknown=(Kind.GPU,)))
    assert share.listing() is before, "a driver that does not answer closes nothing"
    share.saw(Discovery(cards=(first, second)))
    assert {one.health for one in share.listing().devices} == {"Healthy"}


def test_eight_cards_of_80_gib_are_told_and_too_many_are_refused(tmp_path: Path) -> None:
    """Kubelet takes 4 MiB; it is never told a part of the ids."""
    share = node().agent
    plugin = DevicePlugin(
        share, folder=tmp_path, start="0123456789abcdef", metrics=Metrics(CollectorRegistry())
    )

    share.saw(Discovery(cards=tuple(card(number, gib=81) for number in range(8))))
    assert plugin.why_not_ready() == "not registered with kubelet"
    assert len(share.listing().devices) == 640
    assert share.listing().ByteSize() < 100_000

    share.saw(Discovery(cards=tuple(card(number, gib=10_001) for number in range(8))))
    assert plugin.why_not_ready().startswith(
        "kubelet takes no list of so many ids: count=80000, bytes_max=4194304"
    )


@pytest.mark.parametrize(
    ("units", "pods", "record", "whose"),
    [
        (2, [share_pod("b", 2, after_ns=1), share_pod("a", 2, after_ns=2)], NOTHING, ("b", "c0")),
        (3, [share_pod("b", 2), share_pod("a", 3, after_ns=2)], NOTHING, ("a", "c0")),
        (2, [share_pod("b", 2, assigned=True), share_pod("a", 2)], NOTHING, ("a", "c0")),
        (2, [share_pod("b", 2, phase="Running"), share_pod("a", 2)], NOTHING, ("a", "c0")),
        (2, [share_pod("b", 2, phase="Failed"), share_pod("a", 2)], NOTHING, ("a", "c0")),
        (2, [share_pod("b", 2, deleted=True), share_pod("a", 2, after_ns=9)], NOTHING, ("a", "c0")),
        (2, [share_pod("b", 2, deleted=True)], NOTHING, ("b", "c0")),
        (
            2,
            [share_pod("b", 2), share_pod("a", 2, after_ns=9)],
            recorded(given("uid-b", "c0", ["x"])),
            ("a", "c0"),
        ),
        (1, [share_pod("a", 2, 0, 1)], recorded(given("uid-a", "c0", ["x"])), ("a", "c2")),
        (4, [share_pod("a", 2, init=[4])], NOTHING, ("a", "i0")),
        (2, [share_pod("a", 2, init=[4])], recorded(given("uid-a", "i0", ["x"])), ("a", "c0")),
    ],
    ids=[
        "the earliest assume time, whatever its name",
        "the amount alone counts",
        "one that is assigned was answered before",
        "one that runs does not wait",
        "one that failed does not wait",
        "one that is deleted comes last",
        "one that is deleted may be admitted all the same",
        "one that kubelet has a record of was answered, marked or not",
        "of several containers the next one: a call is for one container's units",
        "init containers come first",
        "and then the others, of other amounts",
    ],
)
def test_whose_an_allocate_is(
    units: int, pods: Sequence[Mapping[str, Any]], record: DeviceCheckpoint, whose: tuple[str, str]
) -> None:
    """Contract B.5, steps 1 to 3, and the proposal's 3.1 and 3.2."""
    assert waits(units, *pods, record=record) == whose
    assert waits(units, *reversed(pods), record=record) == whose


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [share_pod("a", 3)],
        [share_pod("a", 1, 1)],
        [share_pod("a", 2, phase="Running")],
        [{**share_pod("a", 2), "metadata": {"name": "a", "uid": "u"}}],
    ],
    ids=[
        "no pod",
        "another amount",
        "the sum of two containers",
        "it runs",
        "nobody gave it a card",
    ],
)
def test_an_amount_that_nobody_waits_for_is_an_error(pods: list[Mapping[str, Any]]) -> None:
    """Never an environment that starts and has no GPU, as upstream's poison, never a guess."""
    with pytest.raises(NobodyWaitsError, match="no pod waits for the amount: units=2"):
        waits(2, *pods)


def test_two_pods_that_cannot_be_told_apart_are_an_error() -> None:
    """The same amount and time, on different cards; on one card the answer is the same."""
    with pytest.raises(TiedError, match="ml/a/c0,ml/b/c0, units=2"):
        waits(2, share_pod("a", 2, card=0), share_pod("b", 2, card=1))

    assert waits(2, share_pod("a", 2, card=1), share_pod("b", 2, card=1)) == ("a", "c0")


def test_a_container_is_told_what_the_contract_says() -> None:
    """Contract B.5, the table of variables; a UUID where upstream has an index."""
    pod = read_share_pod(share_pod("a", 3, 5, card=1, card_units=15))
    assert pod is not None
    second = wanting([pod], recorded(given("uid-a", "c0", ["x"])))[0]

    told = environment(second, "GPU-b", {})

    assert told == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }
    label = {"cgpu.disable.isolation": "true"}
    assert environment(second, "GPU-b", label) == {**told, "CGPU_DISABLE": "true"}
    assert environment(second, "GPU-b", {"cgpu.disable.isolation": "false"}) == told


def test_kubelet_is_asked_to_take_the_ids_of_the_reserved_card() -> None:
    """Contract D.2, ours; what it demands comes first, and others only where that is not enough."""
    available = ["GPU-a-_-10", "GPU-a-_-9", "GPU-b-_-1", "GPU-b-_-0"]

    assert preferred("GPU-b", available, [], 2) == ["GPU-b-_-0", "GPU-b-_-1"]
    assert preferred("GPU-b", available, ["GPU-a-_-10"], 2) == ["GPU-a-_-10", "GPU-b-_-0"]
    assert preferred("GPU-a", available, [], 3) == ["GPU-a-_-9", "GPU-a-_-10", "GPU-b-_-0"]
    assert preferred("", available, [], 1) == ["GPU-a-_-9"]


def test_a_pod_is_marked_once_all_of_its_containers_are_recorded() -> None:
    """By its UID: never another Pod of its name; and never twice."""
    pod = read_share_pod(share_pod("a", 1, 1))
    assert pod is not None
    half = recorded(given("uid-a", "c0", ["x"]))
    whole = recorded(given("uid-a", "c0", ["x"]), given("uid-a", "c1", ["y"]))

    assert to_mark([pod], half, GPUSHARE_MEMORY) == ()
    assert to_mark([pod], whole, GPUSHARE_MEMORY) == (pod,)
    assert to_mark([replace(pod, assigned=True)], whole, GPUSHARE_MEMORY) == ()
    assert to_mark([replace(pod, deleting=True)], whole, GPUSHARE_MEMORY) == ()
    path = "/metadata/annotations/ALIYUN_COM_GPU_MEM_ASSIGNED"
    assert marking(pod) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-a"},
        {"op": "test", "path": path, "value": "false"},
        {"op": "replace", "path": path, "value": "true"},
    ]


def test_equal_pods_on_different_cards_each_get_their_own() -> None:
    """Kubelet admits them in another order than they were assumed in."""
    made = node()
    for number, name in enumerate(("first", "second")):
        made.bind(share_pod(name, 2, card=number, after_ns=number))
    made.bound.reverse()

    async def run() -> None:
        for _ in range(2):
            await made.start(await made.admit())

    asyncio.run(run())

    assert {uid: told for (uid, _), told in made.started.items()} == made.held
    assert not made.refused


def test_a_container_that_was_told_another_card_does_not_start() -> None:
    """With both cards and what to do; one that the system before us told an index may."""
    made = node()
    first, second = (card.uuid for card in made.cards)
    made.held["uid-a"] = second
    made.record["uid-a", "c0"] = given("uid-a", "c0", ["x"], NVIDIA_VISIBLE_DEVICES=first)

    with pytest.raises(OtherCardError, match=rf"delete the pod: .*card={second}, told={first}"):
        asyncio.run(made.agent.prepare(frozenset(["x"])))

    made.record["uid-a", "c0"] = given("uid-a", "c0", ["x"], NVIDIA_VISIBLE_DEVICES="1")
    assert asyncio.run(made.agent.prepare(frozenset(["x"]))) == {"of": [f"uid-a/c0={second}"]}
    with pytest.raises(NotYetError, match="nobody is known"):
        asyncio.run(made.agent.prepare(frozenset(["y"])))


def test_a_binding_that_names_another_card_than_the_ledger_is_refused() -> None:
    """Whoever wrote it: the ledger says who holds what."""
    made = node()
    pod = share_pod("a", 2, card=0)
    made.bind(pod)
    made.held["uid-a"] = made.cards[1].uuid
    made.pods["uid-a"] = pod
    ids = [f"{made.cards[0].uuid}-_-{number}" for number in range(2)]

    with pytest.raises(InputError, match=r"the ledger says another card: .*minor=1, annotation=0"):
        asyncio.run(made.agent.allocate(ids))
    with pytest.raises(InputError, match="not ids of this node"):
        asyncio.run(made.agent.allocate(["GPU-z-_-0"]))
    del made.held["uid-a"]
    with pytest.raises(NotYetError, match="nothing is known to be held: pod_uid=uid-a"):
        asyncio.run(made.agent.allocate(ids))


def test_a_kubelet_that_does_not_answer_is_waited_for() -> None:
    """Its Pods may still come: it is no error yet."""

    async def away() -> Sequence[Mapping[str, object]]:
        raise NoAnswerError("no answer")

    made = node()
    share = GpuShare(pods=away, checkpoint=lambda: NOTHING, holdings=made)
    assert share.why_not() == "the cards of this machine are not known yet"
    share.saw(Discovery(cards=made.cards))
    assert share.why_not() == "the Node was not read yet"
    share.labelled({})
    assert share.why_not() == ""
    with pytest.raises(NotYetError, match="no answer"):
        asyncio.run(share.allocate([f"{made.cards[0].uuid}-_-0"]))
    assert asyncio.run(share.prefer(["GPU-x-_-1", "GPU-x-_-0"], [], 1)) == ["GPU-x-_-0"]
