from dataclasses import replace

import pytest

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.log.events import PodObserved
from ledger.domain.log.unnamed import unnamed_cards
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import DeviceSystems
from ledger.store.reading.report_rows import Device, HealthRow, HolderRow, Node
from scheduler.usage.cluster_now import (
    closed_at,
    cluster_now_of_ledger,
    cluster_now_of_objects,
)
from scheduler.usage.picture import CardGroup, Many, Units, exactly


def observed(
    original: dict[str, str],
    *shares: DeviceShare,
    unknown: bool = True,
    init: tuple[str, ...] = (),
    counted: int = 0,
) -> PodObserved:
    """A running Pod on node a."""
    return PodObserved(
        pod_uid="u",
        attempt=1,
        namespace="ml",
        pod_name="x",
        node_uid="a",
        node_name="a",
        source="",
        shares=shares,
        unknown_types=("gpu",) if unknown else (),
        counted={"gpu": counted} if counted else {},
        snapshot=PodSnapshot(original=original, init_containers=init),
    )


def test_a_stranger_holds_as_many_cards_as_it_asked_for() -> None:
    """Whole cards are counted over containers; a share on an unknown card is one card."""
    assert unnamed_cards(observed({"a.nvidia.com/gpu": "4", "b.nvidia.com/gpu": "1"})) == 5
    assert unnamed_cards(observed({"a.aliyun.com/gpu-mem": "8"})) == 1
    assert unnamed_cards(observed({"a.nvidia.com/gpu": "nonsense"})) == 1
    assert unnamed_cards(observed({"a.nvidia.com/gpu": "4"}, unknown=False)) == 0


def test_the_number_that_an_event_has_comes_first() -> None:
    """Who was adopted or placed by count has one."""
    assert unnamed_cards(observed({"a.nvidia.com/gpu": "4"}, counted=3)) == 3
    assert unnamed_cards(observed({}, counted=2)) == 2


@pytest.mark.parametrize(
    ("init", "cards"),
    [
        (("init/prep",), 2),
        (("sidecar/prep",), 3),
        (("init/prep", "sidecar/side"), 2),
        (("sidecar/side", "init/prep"), 3),
        ((), 3),
    ],
    ids=[
        "init containers reuse",
        "sidecars are added",
        "a sidecar after the init container",
        "a sidecar before the init container",
        "an event from before they were told apart",
    ],
)
def test_a_strangers_init_containers_are_counted_as_kubernetes_does(
    init: tuple[str, ...], cards: int
) -> None:
    """Design section 3: the larger of what runs together and what each init container needs."""
    original = {"prep.nvidia.com/gpu": "2", "main.nvidia.com/gpu": "1"}
    if "sidecar/side" in init:
        original = {"prep.nvidia.com/gpu": "2", "main.cpu": "1", "side.nvidia.com/gpu": "1"}

    assert unnamed_cards(observed(original, init=init)) == cards


def test_cards_that_are_named_are_not_unknown_as_well() -> None:
    """One of its two cards was written down."""
    share = DeviceShare(device_type="gpu", minor=0, device_id="", core_percent=100)

    assert unnamed_cards(observed({"a.nvidia.com/gpu": "2"}, share)) == 1


def test_the_fleet_of_a_cluster_is_what_its_running_pods_hold() -> None:
    """Shares add up; memory speaks where no core is asked; an unhealthy card is closed."""
    node = NodeFacts(
        uid="a",
        name="gpu-a",
        devices=(
            DeviceRecord(device_type="gpu", minor=0, device_id="", model="T4"),
            DeviceRecord(device_type="gpu", minor=1, device_id="", model="T4", healthy=False),
        ),
    )
    shares = (
        DeviceShare(device_type="gpu", minor=0, device_id="", memory_ratio_percent=30),
        DeviceShare(device_type="gpu", minor=0, device_id="", memory_ratio_percent=20),
    )

    picture = cluster_now_of_objects(
        [node], [observed({}, share, unknown=False) for share in shares]
    )

    ((group,),) = (drawn.groups for drawn in picture.nodes)
    first, second = group.devices
    assert (first.level_percent, first.by_memory, len(first.holders)) == (50, True, 2)
    assert (second.level_percent, second.healthy, second.closed) == (0, False, "unhealthy")
    assert group.unplaced == ()
    assert (group.free.exact, group.gettable.exact) == (0, 0)


def holder(core_percent: int, minor: int) -> HolderRow:
    """A Pod on a card of node a."""
    return HolderRow(
        position=1,
        pod_uid="u",
        attempt=1,
        namespace="ml",
        pod_name="x",
        owner="",
        node_uid="a",
        node_name="gpu-a",
        device_type="gpu",
        minor=minor,
        device_id="",
        model="T4",
        core_percent=core_percent,
        memory_bytes=0,
        memory_ratio_percent=core_percent,
        exclusive=False,
        cpu_milli=0,
        cpuset="",
        kind="granted",
        phase="reserved",
        dialect="",
        policy="",
        opened_at_us=0,
        closed_at_us=None,
        closed_position=None,
        end_reason=None,
    )


def device(minor: int, *, gone: bool = False, capacity: int = 100) -> Device:
    """A card of node a."""
    return Device(
        node_uid="a",
        node_name="gpu-a",
        device_type="gpu",
        minor=minor,
        device_id=f"id-{minor}-{gone}",
        model="T4",
        core_capacity_percent=capacity,
        memory_capacity_bytes=0,
        core_used_percent=0,
        memory_used_bytes=0,
        tenants=0,
        healthy=True,
        closed_reason="gone" if gone else "",
        device_no=3 if gone else minor + 1,
    )


def test_the_fleet_of_a_ledger_is_its_present_cards_with_their_holders() -> None:
    """A card that left is not drawn beside its successor; strangers count as whole cards."""
    picture = cluster_now_of_ledger(
        [Node(node_uid="a", node_name="gpu-a", cpu_milli=0, memory_bytes=0)],
        [device(0), device(1, gone=True), device(1, capacity=200)],
        [holder(60, 0), holder(60, 0), holder(50, 1)],
        {2: "Xid79", 3: "gone"},
        [observed({"a.nvidia.com/gpu": "1"})],
        described={},
        labels={},
    )

    ((group,),) = (node.groups for node in picture.nodes)
    assert [card.level_percent for card in group.devices] == [100, 25]
    assert [card.closed for card in group.devices] == ["over-held", "Xid79"]
    assert [pod.path for pod in group.unplaced] == ["ml/x"]
    assert [double.holders for double in picture.double] == [("ml/x", "ml/x")]


def test_one_holder_of_more_than_a_card_over_holds_it() -> None:
    """Nobody needs to be beside him."""
    picture = cluster_now_of_ledger(
        [Node(node_uid="a", node_name="gpu-a", cpu_milli=0, memory_bytes=0)],
        [device(0, capacity=50), device(1)],
        [holder(60, 0), holder(100, 1)],
        {},
        [],
        described={},
        labels={},
    )

    ((group,),) = (node.groups for node in picture.nodes)
    assert [card.closed for card in group.devices] == ["over-held", None]
    assert [double.holders for double in picture.double] == [("ml/x",)]


def change(at_us: int, *, healthy: bool) -> HealthRow:
    """A card of node a changes."""
    return HealthRow(
        position=at_us,
        at_us=at_us,
        node_uid="a",
        device_type="gpu",
        minor=0,
        healthy=healthy,
        reason="Xid79",
        device_no=1,
    )


def test_a_card_is_closed_from_its_failure_to_its_return() -> None:
    """At a moment, and now."""
    changes = [change(5, healthy=False), change(9, healthy=True)]

    assert [bool(closed_at(changes, at)) for at in (4, 5, 8, 9)] == [False, True, True, False]
    assert closed_at(changes[:1], None) == {1: "Xid79"}


def cards(count: int, **fields: object) -> tuple[DeviceRecord, ...]:
    """So many cards without ids."""
    return tuple(
        DeviceRecord(device_type="gpu", minor=minor, device_id="", **fields)  # type: ignore[arg-type]  # fields of a device
        for minor in range(count)
    )


def picture_of(node: NodeFacts, *pods: PodObserved) -> CardGroup:
    """The only group of cards of one node."""
    ((group,),) = (each.groups for each in cluster_now_of_objects([node], pods).nodes)
    return group


def test_of_cards_held_by_number_the_rest_is_free() -> None:
    """1 of 8 is held, which one is not known: 7 are free, and can be got."""
    group = picture_of(
        NodeFacts(uid="a", name="a", devices=cards(8)),
        observed({"a.nvidia.com/gpu": "1"}, counted=1),
    )

    assert (group.cards, group.free, group.gettable) == (exactly(8), exactly(7), exactly(7))
    assert [(pod.path, pod.amount, pod.unit) for pod in group.unplaced] == [
        ("ml/x", 1, "nvidia.com/gpu")
    ]


def test_a_card_that_failed_may_be_one_that_is_held_by_number() -> None:
    """Free is a range then; kube-scheduler gives what is offered less what is held."""
    sick = (*cards(7), DeviceRecord(device_type="gpu", minor=7, device_id="", healthy=False))
    group = picture_of(
        NodeFacts(uid="a", name="a", devices=sick), observed({"a.nvidia.com/gpu": "2"}, counted=2)
    )

    assert (group.cards, group.free) == (exactly(8), Many(least=5, most=6))
    assert group.gettable == exactly(5)


def test_who_holds_an_unclear_part_may_be_beside_another() -> None:
    """A share on an unknown card takes a card of its own, or none."""
    half = DeviceShare(device_type="gpu", minor=0, device_id="", core_percent=50)
    node = NodeFacts(uid="a", name="a", devices=cards(4))
    stranger = observed({"a.koordinator.sh/gpu-core": "20"})

    shared = picture_of(node, observed({}, half, unknown=False), stranger)
    assert shared.free == Many(least=2, most=3)
    assert [(pod.amount, pod.unit) for pod in shared.unplaced] == [(20, "koordinator.sh/gpu-core")]
    assert picture_of(node, stranger).free == exactly(3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ()),
        ({"unschedulable": True}, ("cordoned",)),
        (
            {"taints": (Taint(key="dedicated", value="ml", effect="NoSchedule"),)},
            ("taint dedicated=ml:NoSchedule",),
        ),
        ({"taints": (Taint(key="cheap", value="", effect="PreferNoSchedule"),)}, ()),
        (
            {
                "unschedulable": True,
                "taints": (
                    Taint(key="node.kubernetes.io/unschedulable", value="", effect="NoSchedule"),
                    Taint(key="node.kubernetes.io/not-ready", value="", effect="NoExecute"),
                ),
            },
            ("cordoned", "not ready"),
        ),
    ],
    ids=["open", "cordoned", "tainted", "only dissuaded", "cordoned and not ready"],
)
def test_of_a_closed_node_cards_are_free_and_none_can_be_got(
    fields: dict[str, object], words: tuple[str, ...]
) -> None:
    """Whoever tolerates nothing does not get there."""
    node = NodeFacts(uid="a", name="a", devices=cards(2), **fields)  # type: ignore[arg-type]  # fields of a node
    (drawn,) = cluster_now_of_objects([node], ()).nodes

    assert drawn.closed_because == words
    assert drawn.groups[0].free == exactly(2)
    assert drawn.groups[0].gettable == exactly(0 if words else 2)


def test_what_a_lost_node_lists_is_not_there_and_what_it_held_is_held() -> None:
    """No card of it is free, or in what became of the cards; its holders count for nothing."""
    whole = DeviceShare(device_type="gpu", minor=0, device_id="", core_percent=100)
    node = NodeFacts(uid="a", name="a", devices=cards(2, memory_bytes=1 << 30), lost=True)
    picture = cluster_now_of_objects([node], [observed({}, whole, unknown=False)])

    (drawn,) = picture.nodes
    (group,) = drawn.groups
    assert drawn.closed_because == ("lost",)
    assert (group.cards, group.free, group.gettable) == (exactly(2), exactly(0), exactly(0))
    assert [(card.healthy, card.closed) for card in group.devices] == [(False, "lost")] * 2
    assert [each.lost for card in group.devices for each in card.holders] == [True]
    assert picture.parts.capacity == 0


@pytest.mark.parametrize(
    ("lost", "held", "closed"),
    [(False, False, True), (True, False, False), (True, True, True)],
    ids=["listed by a live node", "by a lost one", "and held there"],
)
def test_an_id_closes_a_card_where_another_machine_has_it(
    lost: bool,  # noqa: FBT001 - a case
    held: bool,  # noqa: FBT001 - a case
    closed: bool,  # noqa: FBT001 - a case
) -> None:
    """Design section 4: a lost machine claims nothing; its holders do."""
    card = DeviceRecord(device_type="gpu", minor=0, device_id="G", unique_id=True)
    share = DeviceShare(device_type="gpu", minor=0, device_id="G", core_percent=50)
    away = NodeFacts(uid="a", name="a", devices=(card,), lost=lost)
    here = NodeFacts(uid="b", name="b", devices=(card,))

    pods = [observed({}, share, unknown=False)] if held else []
    (_, drawn) = cluster_now_of_objects([away, here], pods).nodes

    assert drawn.groups[0].devices[0].closed == ("claimed twice" if closed else None)
    assert drawn.groups[0].gettable == exactly(0 if closed else 1)


def test_a_machine_with_two_node_objects_has_its_cards_once() -> None:
    """They are listed at the Node that registered last, with what is held through either."""
    one = NodeFacts(
        uid="a", name="a", system_uuid="s", machine_id="m", created="2026-01-01", devices=cards(2)
    )
    other = replace(one, uid="b", name="b", created="2026-02-01")
    half = DeviceShare(device_type="gpu", minor=1, device_id="", core_percent=50)

    picture = cluster_now_of_objects([one, other], [observed({}, half, unknown=False)])

    assert [len(node.groups) for node in picture.nodes] == [0, 1]
    assert picture.summary.cards == exactly(2)
    assert picture.summary.free == exactly(1)
    assert [each.object for each in picture.contradictions] == ["Node b"]


def test_what_a_node_offers_and_nobody_reads_is_listed_with_who_asks_for_it() -> None:
    """Its amount, and what of it is held."""
    offers = (("kubernetes.io/batch-cpu", 9), ("nvidia.com/gpu", 1), ("rdma/hca", 4))
    node = NodeFacts(
        uid="a",
        name="a",
        devices=cards(1),
        dialects=frozenset({Dialect.NVIDIA}),
        systems=DeviceSystems(offers=offers),
    )
    asks = observed({"a.rdma/hca": "3", "a.nvidia.com/gpu": "1"}, counted=1)

    (drawn,) = cluster_now_of_objects([node], [asks]).nodes

    assert drawn.not_looked_at == {"rdma/hca": Units(allocatable=4, held=3)}
    assert drawn.groups[0].units == {"nvidia.com/gpu": Units(allocatable=1, held=1)}
