import pytest

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.codec import encode_value
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodSnapshot
from ledger.store.reading.report_rows import Device, HealthRow, HolderRow, Node, UnknownRow
from scheduler.usage.cluster_now import (
    closed_at,
    cluster_now_of_ledger,
    cluster_now_of_objects,
    unknown_cards,
)


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
    assert unknown_cards(observed({"a.nvidia.com/gpu": "4", "b.nvidia.com/gpu": "1"})) == 5
    assert unknown_cards(observed({"a.aliyun.com/gpu-mem": "8"})) == 1
    assert unknown_cards(observed({"a.nvidia.com/gpu": "nonsense"})) == 1
    assert unknown_cards(observed({"a.nvidia.com/gpu": "4"}, unknown=False)) == 0


def test_the_number_that_an_event_has_comes_first() -> None:
    """Who was adopted or placed by count has one."""
    assert unknown_cards(observed({"a.nvidia.com/gpu": "4"}, counted=3)) == 3
    assert unknown_cards(observed({}, counted=2)) == 2


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

    assert unknown_cards(observed(original, init=init)) == cards


def test_cards_that_are_named_are_not_unknown_as_well() -> None:
    """One of its two cards was written down."""
    share = DeviceShare(device_type="gpu", minor=0, device_id="", core_percent=100)

    assert unknown_cards(observed({"a.nvidia.com/gpu": "2"}, share)) == 1


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

    (drawn,) = cluster_now_of_objects(
        [node], [observed({}, share, unknown=False) for share in shares]
    )

    first, second = drawn.cards
    assert (first.level_percent, first.by_memory, first.tenants) == (50, True, 2)
    assert (second.level_percent, second.unhealthy) == (0, True)
    assert drawn.unknown_holders == ()


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
    )


def test_the_fleet_of_a_ledger_is_its_present_cards_with_their_holders() -> None:
    """A card that left is not drawn beside its successor; strangers count as whole cards."""
    body = encode_value(observed({"a.nvidia.com/gpu": "1"}))

    (node,) = cluster_now_of_ledger(
        [Node(node_uid="a", node_name="gpu-a", cpu_milli=0, memory_bytes=0)],
        [device(0), device(1, gone=True), device(1, capacity=200)],
        [holder(60, 0), holder(60, 0), holder(50, 1)],
        {("a", "gpu", 1): "Xid79"},
        [UnknownRow(position=1, node_uid="a", namespace="ml", pod_name="x", body=body)],
    )

    assert [card.level_percent for card in node.cards] == [100, 25]
    assert [card.unhealthy for card in node.cards] == [False, True]
    assert node.unknown_holders == ("ml/x",)


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
    )


def test_a_card_is_closed_from_its_failure_to_its_return() -> None:
    """At a moment, and now."""
    changes = [change(5, healthy=False), change(9, healthy=True)]

    assert [bool(closed_at(changes, at)) for at in (4, 5, 8, 9)] == [False, True, True, False]
    assert closed_at(changes[:1], None) == {("a", "gpu", 0): "Xid79"}
