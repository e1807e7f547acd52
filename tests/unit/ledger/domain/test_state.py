from __future__ import annotations

from typing import get_args

import pytest

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import (
    DeviceHealthChanged,
    DriftFound,
    LedgerEvent,
    NodeInventoried,
    PodAssigned,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
    SettingsChanged,
)
from ledger.domain.log.state import NodeState, node_uid_of
from tests.support.folding import apply, fold
from tests.support.violations import violations

GIB = 2**30
NODE = "node-uid"


def card(minor: int, *, gib: int = 24, device_id: str | None = None) -> DeviceRecord:
    """Return a card; its id is `GPU-<minor>` unless said."""
    return DeviceRecord(
        device_type="gpu",
        minor=minor,
        device_id=f"GPU-{minor}" if device_id is None else device_id,
        memory_bytes=gib * GIB,
    )


def inventoried(*cards: DeviceRecord, ref_count_max: int = 1) -> NodeInventoried:
    """Return the inventory of the node."""
    return NodeInventoried(
        node_uid=NODE, node_name="n1", devices=cards, cpu_ref_count_max=ref_count_max
    )


def share(
    minor: int,
    core: int = 0,
    gib: int = 0,
    *,
    device_id: str | None = None,
    exclusive: bool = False,
) -> DeviceShare:
    """Return a part of a card."""
    return DeviceShare(
        device_type="gpu",
        minor=minor,
        device_id=f"GPU-{minor}" if device_id is None else device_id,
        core_percent=core,
        memory_bytes=gib * GIB,
        exclusive=exclusive,
    )


def reserved(pod: str, *shares: DeviceShare, cpus: str = "", attempt: int = 1) -> PodReserved:
    """Return a promise to a Pod."""
    return PodReserved(
        pod_uid=pod,
        attempt=attempt,
        namespace="ml",
        pod_name=pod,
        node_uid=NODE,
        node_name="n1",
        cpu_milli=1000,
        memory_bytes=GIB,
        shares=shares,
        cpuset=parse_cpuset(cpus),
    )


def observed(pod: str, *shares: DeviceShare, cpus: str = "") -> PodObserved:
    """Return what somebody else gave to a Pod."""
    return PodObserved(
        pod_uid=pod,
        attempt=1,
        namespace="ml",
        pod_name=pod,
        node_uid=NODE,
        node_name="n1",
        source="device-allocated",
        shares=shares,
        cpuset=parse_cpuset(cpus),
        unknown_types=("rdma",),
    )


def released(pod: str, attempt: int = 1) -> PodReleased:
    """Return the end of a holding."""
    return PodReleased(pod_uid=pod, attempt=attempt, node_uid=NODE, reason="completed")


def after(*events: LedgerEvent) -> NodeState:
    """Return the node after these events, at positions from 1."""
    return fold(enumerate(events, start=1))[NODE]


def facts(*events: LedgerEvent) -> list[str]:
    """Return the violations after these events."""
    return [str(violation) for violation in violations(after(*events))]


def test_a_reservation_opens_a_holding_at_its_position() -> None:
    """Everything that asking and a restart need is in the state."""
    node = after(inventoried(card(0)), reserved("u1", share(0, 40, 8), cpus="0-1"))

    (holding,) = node.holdings.values()
    assert (holding.key, holding.kind, holding.phase) == ("u1/1", "granted", "reserved")
    assert holding.opened_position == 2
    assert holding.shares == (share(0, 40, 8),)
    assert holding.cpuset == parse_cpuset("0-1")
    assert (holding.cpu_milli, holding.memory_bytes) == (1000, GIB)


def test_a_holding_goes_through_its_phases() -> None:
    """Reserved, bound, assigned; the node confirms last."""
    events: list[LedgerEvent] = [
        inventoried(card(0)),
        reserved("u1"),
        PodBound(pod_uid="u1", attempt=1, node_uid=NODE),
        PodAssigned(pod_uid="u1", attempt=1, node_uid=NODE),
    ]

    phases = [after(*events[:count]).holdings["u1/1"].phase for count in (2, 3, 4)]

    assert phases == ["reserved", "bound", "assigned"]


@pytest.mark.parametrize(
    "end",
    [released("u1"), PodVoided(pod_uid="u1", attempt=1, node_uid=NODE, reason="lost")],
    ids=["released", "voided"],
)
def test_the_end_of_a_holding_frees_it_once(end: LedgerEvent) -> None:
    """A second release of the same reservation changes nothing."""
    once = after(inventoried(card(0)), reserved("u1", share(0, 100)), end)

    assert once.holdings == {}
    assert apply(once, 9, end) == once


def test_an_attempt_ends_by_itself() -> None:
    """A voided first attempt is followed by a second, which its end does not touch."""
    node = after(
        inventoried(card(0)),
        reserved("u1", share(0, 60), attempt=1),
        PodVoided(pod_uid="u1", attempt=1, node_uid=NODE, reason="409"),
        reserved("u1", share(0, 60), attempt=2),
        released("u1", attempt=1),
    )

    assert list(node.holdings) == ["u1/2"]


def test_observed_holders_keep_their_source_types() -> None:
    """A restart must know that the node is closed for the type."""
    node = after(inventoried(card(0)), observed("u1", share(0, 100, 24)))

    holding = node.holdings["u1/1"]
    assert (holding.kind, holding.phase) == ("observed", "observed")
    assert holding.unknown_types == ("rdma",)


def test_an_observation_replaces_an_observation() -> None:
    """The card of a holder became known."""
    node = after(inventoried(card(0)), observed("u1"), observed("u1", share(0, 100)))

    assert node.holdings["u1/1"].shares == (share(0, 100),)


def test_a_promise_never_overwrites_a_promise() -> None:
    """Two grants under one key are two holders, and seen as such."""
    events = (inventoried(card(0)), reserved("u1", share(0, 60)), reserved("u1", share(0, 60)))

    assert len(after(*events).holdings) == 2
    assert facts(*events) == ["n1/gpu/0: core promised beyond capacity: 120 of 100 percent"]


def test_health_changes_one_device() -> None:
    """Holders stay; the next inventory says for itself."""
    change = DeviceHealthChanged(
        node_uid=NODE, device_type="gpu", minor=1, device_id="GPU-1", healthy=False, reason="Xid79"
    )

    node = after(inventoried(card(0), card(1)), reserved("u1", share(1, 10)), change)

    assert [device.healthy for device in node.devices] == [True, False]
    assert list(node.holdings) == ["u1/1"]


def test_health_of_a_card_that_was_replaced_is_not_that_of_the_new_one() -> None:
    """Design section 8: a device is its id."""
    change = DeviceHealthChanged(
        node_uid=NODE,
        device_type="gpu",
        minor=0,
        device_id="GPU-old",
        healthy=False,
        reason="Xid79",
    )

    assert after(inventoried(card(0)), change).devices[0].healthy


def test_a_new_inventory_keeps_the_holders() -> None:
    """Facts replace facts; promises stay."""
    node = after(inventoried(card(0)), reserved("u1", share(0, 10)), inventoried(card(0), card(1)))

    assert len(node.devices) == 2
    assert list(node.holdings) == ["u1/1"]


def test_a_holder_of_an_unknown_node_is_kept_and_is_a_violation() -> None:
    """The fold forgets nobody; what the node never had was never to give."""
    assert after(observed("u1", share(0, 100))).name == "n1"
    assert facts(reserved("u1", share(0, 50))) == [
        "n1/gpu/0: core promised beyond capacity: 50 of 0 percent"
    ]


def test_ends_and_health_of_an_unknown_node_change_nothing() -> None:
    """Total: no event breaks the fold."""
    assert fold([(1, released("u1"))]) == {}
    assert fold([(1, PodBound(pod_uid="u1", attempt=1, node_uid=NODE))]) == {}


def test_events_about_no_node_change_no_node() -> None:
    """Settings and drift have no node state."""
    node = after(inventoried(card(0)))
    settings = SettingsChanged(settings_hash="h", settings="{}", tenure_version="v")

    assert apply(node, 9, settings) is node
    assert apply(None, 9, settings) is None
    assert node_uid_of(DriftFound(drift_id="d", kind="k", node_uid=NODE, detail="")) is None


def test_an_event_of_a_node_names_it() -> None:
    """Every event that changes a node's state is folded into that node."""
    changing = {kind for kind in get_args(LedgerEvent) if kind.event_type.startswith("pod.")}

    assert {type(event) for event in (reserved("u"), observed("u"), released("u"))} <= changing
    for event in (inventoried(), reserved("u"), observed("u"), released("u")):
        assert node_uid_of(event) == NODE


def test_a_full_card_is_no_violation() -> None:
    """Exactly 100 percent, exactly all bytes."""
    assert not facts(
        inventoried(card(0)), reserved("u1", share(0, 60, 12)), reserved("u2", share(0, 40, 12))
    )


VIOLATIONS: dict[str, tuple[tuple[LedgerEvent, ...], list[str]]] = {
    "core": (
        (reserved("u1", share(0, 60)), reserved("u2", share(0, 41))),
        ["n1/gpu/0: core promised beyond capacity: 101 of 100 percent"],
    ),
    "memory": (
        (reserved("u1", share(0, 0, 20)), reserved("u2", share(0, 0, 5))),
        [f"n1/gpu/0: memory promised beyond capacity: {25 * GIB} of {24 * GIB} bytes"],
    ),
    "an exclusive card with a second holder": (
        (reserved("u1", share(0, 0, exclusive=True)), reserved("u2", share(0, 1))),
        ["n1/gpu/0: exclusive holder is not alone: holders=2"],
    ),
    "a CPU twice": (
        (reserved("u1", cpus="0-1"), reserved("u2", cpus="1-2")),
        ["n1/cpu/1: more holders than allowed: 2 of 1"],
    ),
    "a card that the node does not have": (
        (reserved("u1", share(7, 10)),),
        ["n1/gpu/7: core promised beyond capacity: 10 of 0 percent"],
    ),
}


@pytest.mark.parametrize(("events", "expected"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_what_is_promised_beyond_capacity_is_found(
    events: tuple[LedgerEvent, ...], expected: list[str]
) -> None:
    """Design section 4: core, bytes, exclusivity, CPUs."""
    assert facts(inventoried(card(0)), *events) == expected


def test_a_cpu_may_have_as_many_holders_as_the_node_allows() -> None:
    """Koordinator contract 6.3, maxRefCount."""
    events = (reserved("u1", cpus="1"), reserved("u2", cpus="1"))

    assert not facts(inventoried(ref_count_max=2), *events)


def test_observed_holders_are_facts_and_no_promises() -> None:
    """Design section 4: they live outside the capacity constraint."""
    assert not facts(
        inventoried(card(0)),
        observed("u1", share(0, 100, 24), cpus="0"),
        observed("u2", share(0, 100, 24), cpus="0"),
        reserved("u3", cpus="0"),
    )


def test_a_card_that_shrank_under_its_holders_is_no_broken_promise() -> None:
    """Design section 4: the cap falls as holders leave; nothing more is promised meanwhile."""
    held = (
        inventoried(card(0, gib=24)),
        reserved("u1", share(0, 50, 12)),
        reserved("u2", share(0, 50, 10)),
        inventoried(card(0, gib=16)),
    )

    assert not facts(*held)
    assert facts(*held, reserved("u3", share(0, 0, 1))) == [
        f"n1/gpu/0: memory promised beyond capacity: {23 * GIB} of {22 * GIB} bytes"
    ]
    fallen = (*held, released("u1"))
    assert not facts(*fallen)
    assert after(*fallen).caps == {}
    assert not facts(*fallen, reserved("u3", share(0, 0, 6)))
    assert facts(*fallen, reserved("u3", share(0, 0, 7)))


def test_the_cap_falls_with_every_holder_that_leaves() -> None:
    """Still beyond what the card has, but not beyond what is left of the promise."""
    held = (
        inventoried(card(0, gib=24)),
        reserved("u1", share(0, 0, 4)),
        reserved("u2", share(0, 0, 20)),
        inventoried(card(0, gib=8)),
        released("u1"),
    )

    assert not facts(*held)
    assert facts(*held, reserved("u3", share(0, 0, 1)))


def test_a_card_that_left_under_its_holders_is_no_broken_promise() -> None:
    """Design section 8: a vanished card keeps its holder as lost."""
    held = (inventoried(card(0), card(1)), reserved("u1", share(1, 100, 24)), inventoried(card(0)))

    assert not facts(*held)
    assert facts(*held, reserved("u2", share(1, 1)))
    assert not facts(*held, released("u1"))


def test_a_new_card_at_an_old_minor_starts_empty() -> None:
    """Design section 8: its successor is new inventory; the old holder is not on it."""
    held = (
        inventoried(card(0, device_id="GPU-old")),
        reserved("u1", share(0, 100, 24, device_id="GPU-old", exclusive=True)),
        inventoried(card(0, device_id="GPU-new")),
    )

    new = reserved("u2", share(0, 100, 24, device_id="GPU-new", exclusive=True))
    assert not facts(*held, new)
    again = reserved("u3", share(0, 1, device_id="GPU-new"))
    assert facts(*held, new, again)


def test_a_card_that_moved_keeps_its_holders() -> None:
    """The minor is an attribute, the id is the card."""
    held = (
        inventoried(card(0), card(1)),
        reserved("u1", share(0, 100, device_id="GPU-0")),
        inventoried(card(0, device_id="GPU-1"), card(1, device_id="GPU-0")),
    )

    assert not facts(*held)
    assert facts(*held, reserved("u2", share(1, 1, device_id="GPU-0")))
    assert not facts(*held, reserved("u2", share(0, 1, device_id="GPU-1")))


def test_a_card_that_got_an_id_is_the_same_card() -> None:
    """A Node's own quantities name no ids; the Device object that follows does."""
    held = (
        inventoried(card(0, device_id="")),
        reserved("u1", share(0, 100, device_id="")),
        inventoried(card(0, device_id="GPU-0")),
    )

    assert not facts(*held)
    assert facts(*held, reserved("u2", share(0, 1, device_id="GPU-0")))
