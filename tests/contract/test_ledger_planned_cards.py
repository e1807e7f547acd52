"""A place of a group is a whole card that waits for one Pod: what the database keeps for whom."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import GroupPlanned, LedgerEvent, PlanDropped, PlannedMember
from ledger.store.ddl.sqlite_triggers import TRIGGERS, named
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tests.support.recorded import Recorded
from tests.support.stores import (
    SqliteStore,
    Store,
    gpu,
    health,
    node,
    observed,
    planned,
    released,
    reserved,
    share,
)

DROPPED = PlanDropped(group="g", reason="a member is gone")


def open_places(it: Recorded) -> list[tuple[Any, ...]]:
    """Return (minor, Pod, group, position of the plan) of what waits."""
    sql = (
        "SELECT d.minor, p.pod_uid, p.group_name, p.position FROM ledger_planned_cards AS p"
        " JOIN ledger_devices AS d ON d.device_no = p.device_no"
        " WHERE p.closed_position IS NULL ORDER BY d.minor"
    )
    with it.ledger.connection.begin():
        return [tuple(row) for row in it.ledger.connection.exec_driver_sql(sql)]


def test_a_card_that_waits_is_granted_to_its_pod_alone(store: Store) -> None:
    """Anyone else is told who it waits for; the Pod itself gets it, and the place is over."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (2, 3)), ("b", (4,))))
        it.refuses(
            reserved("x", share(3, 10)),
            r"^card n-1/gpu/3 \(GPU-n-1-3\) waits for uid-a of group g$",
        )
        it.refuses(reserved("b", share(3, 100)), "waits for uid-a of group g")
        it.add(reserved("x", share(5, 10)), reserved("a", share(2, 100), share(3, 100)))

        assert open_places(it) == [(4, "uid-b", "g", 3)]
        assert it.proved()


def test_a_place_is_over_when_its_pod_reserves_used_or_not(store: Store) -> None:
    """A Pod that needed less than was planned leaves the rest to anyone, in the same batch too."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (0, 1))))
        it.writer.append(
            it.clock.all(reserved("a", share(0, 100)), reserved("x", share(1, 100)), released("a"))
        )

        assert open_places(it) == []
        assert it.proved()


def test_a_reservation_on_another_node_leaves_the_place(store: Store) -> None:
    """The place is on its node; only a reservation there, or the plan's end, closes it."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), node("n-2"), planned("g", ("a", (0,))))
        it.add(reserved("a", share(0, 100, node="n-2"), node="n-2"))
        it.refuses(reserved("x", share(0, 10)), "waits for uid-a")
        it.add(DROPPED, reserved("x", share(0, 10)))

        assert it.proved()


def test_a_dropped_plan_gives_every_card_back(store: Store) -> None:
    """All of the group's places close; those of other groups stay."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (0,)), ("b", (1,))))
        it.add(planned("h", ("c", (2,))), DROPPED, reserved("x", share(0, 10), share(1, 10)))
        it.refuses(reserved("x2", share(2, 10)), "waits for uid-c of group h")

        assert open_places(it) == [(2, "uid-c", "h", 4)]
        assert it.proved()


def test_another_plan_replaces_the_first(store: Store) -> None:
    """Cards of the old plan that the new one leaves out are free; the same card may stay."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (0,)), ("b", (1,))))
        it.add(planned("g", ("a", (1,)), ("b", (2,))), reserved("x", share(0, 10)))

        assert open_places(it) == [(1, "uid-a", "g", 4), (2, "uid-b", "g", 4)]
        assert it.proved()


@pytest.mark.parametrize(
    ("known", "message"),
    [
        pytest.param([reserved("x", share(0, 10))], "has 1 holders, a place", id="a tenant"),
        pytest.param([observed("x", share(0, 10))], "has 1 holders, a place", id="others"),
        pytest.param([health(0, healthy=False)], "is unhealthy", id="it is unhealthy"),
        pytest.param([node(devices=(gpu(1),))], "no such card", id="it is gone"),
        pytest.param([observed("x", unknown_types=("gpu",))], "unknown card", id="nobody knows"),
        pytest.param([planned("h", ("c", (0,)))], "waits for uid-c of group h", id="it waits"),
    ],
)
def test_only_a_whole_free_card_can_wait(
    store: Store, known: list[LedgerEvent], message: str
) -> None:
    """A plan with one card that is not free is refused whole; the plan before it stands."""
    plan = planned("g", ("a", (0,)), ("b", (1,)))
    with store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (3,))), *known)
        before = open_places(it)
        it.refuses(plan, message)

        assert open_places(it) == before
        assert it.proved()


def test_a_plan_names_a_card_once(store: Store) -> None:
    """Two members can't have one whole card, nor one that no inventory names."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=2))
        it.refuses(planned("g", ("a", (0,)), ("b", (0,))), "names a card twice: pod_uid=uid-b")
        it.refuses(planned("g", ("a", (7,))), "no such card: pod=team-a/a, group=g")
        it.refuses(planned("g", ("a", (0,)), node="n-9"), "no such card: .*node_uid=uid-n-9")

        assert it.proved()


def test_a_part_of_a_card_is_no_place(store: Store) -> None:
    """Members that share a card are planned on it, and so may be anyone else."""
    members = tuple(
        PlannedMember(
            pod_uid=f"uid-{pod}", namespace="t", pod_name=pod, node_uid="uid-n-1", minors=(0,)
        )
        for pod in ("a", "b")
    )
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("y", share(0, 20)))
        it.add(GroupPlanned(group="g", members=members), reserved("x", share(0, 20)))
        it.add(reserved("a", share(0, 30)), reserved("b", share(0, 30)))

        assert open_places(it) == []
        assert it.proved()


def test_facts_about_a_card_that_waits_are_recorded(store: Store) -> None:
    """Others take it, it dies, it leaves: the place stays, and its Pod gets what is free only."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=3), planned("g", ("a", (0, 1, 2))))
        it.add(observed("x", share(0, 10)), health(1, healthy=False))
        it.add(node(devices=(gpu(0), gpu(1, healthy=False))))
        it.refuses(reserved("a", share(1, 100)), "n-1/gpu/1 .* is unhealthy")
        it.refuses(reserved("a", share(2, 100)), "n-1/gpu/2 .* is gone")
        it.refuses(reserved("a", share(0, 100)), "has 90 of 100 percent core left")
        assert [place[1] for place in open_places(it)] == ["uid-a"] * 3
        it.add(DROPPED)

        assert open_places(it) == []
        assert it.proved()


def test_plan_and_members_go_in_one_batch(store: Store) -> None:
    """Places open and close inside one commit, whatever was freed before them in it."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=2), reserved("x", share(0, 100)))
        it.writer.append(
            it.clock.all(
                released("x"),
                planned("g", ("a", (0,)), ("b", (1,))),
                reserved("a", share(0, 100)),
                reserved("b", share(1, 100)),
                released("a"),
                planned("g", ("c", (0,))),
                DROPPED,
                reserved("d", share(0, 50)),
            )
        )
        with pytest.raises(CapacityError, match="waits for uid-e of group k"):
            it.writer.append(
                it.clock.all(released("d"), planned("k", ("e", (0,))), reserved("f", share(0, 50)))
            )

        assert open_places(it) == []
        assert it.proved()


def test_a_writer_that_takes_over_knows_what_waits(store: Store) -> None:
    """Places are read from the tables by the next epoch, and made again by a rebuild."""
    with store.open() as ledger:
        Recorded(ledger, node(), planned("g", ("a", (0,)), ("b", (1,))))
    with store.open() as ledger:
        it = Recorded(ledger)
        it.clock.made = 100
        it.refuses(reserved("x", share(0, 10)), "waits for uid-a of group g")
        it.add(reserved("a", share(0, 100)))

        assert [place[:3] for place in open_places(it)] == [(1, "uid-b", "g")]
        assert it.proved()
        assert rebuild(ledger).equal


FORGED = {
    "a place that no plan opens": (
        (
            "INSERT INTO ledger_planned_cards (position, device_no, node_no, group_name, pod_uid,"
            " opened_at_us) SELECT position, 5, node_no, group_name, pod_uid, opened_at_us"
            " FROM ledger_planned_cards WHERE device_no = 1"
        ),
        "no event at position 3 opens this place",
    ),
    "a place for another Pod": (
        (
            "INSERT INTO ledger_planned_cards (position, device_no, node_no, group_name, pod_uid,"
            " opened_at_us) SELECT position, 2, node_no, group_name, 'uid-x', opened_at_us"
            " FROM ledger_planned_cards WHERE device_no = 1"
        ),
        "no event at position 3 opens this place",
    ),
    "a place that closes without an event": (
        "UPDATE ledger_planned_cards SET closed_position = 3, closed_at_us = opened_at_us",
        "a place only closes, with its Pod or its plan: position 3",
    ),
    "a place that closes with a stranger": (
        (
            "UPDATE ledger_planned_cards SET closed_position = 4, closed_at_us ="
            " (SELECT at_us FROM ledger_events WHERE position = 4)"
        ),
        "a place only closes, with its Pod or its plan: position 3",
    ),
    "a place that goes to another Pod": (
        "UPDATE ledger_planned_cards SET pod_uid = 'uid-x'",
        "a place only closes, with its Pod or its plan: position 3",
    ),
    "a place that is deleted": (
        "DELETE FROM ledger_planned_cards",
        "planned cards are never deleted",
    ),
}


@pytest.mark.parametrize(("statement", "message"), FORGED.values(), ids=FORGED.keys())
def test_a_place_is_born_and_closed_as_an_event_says(
    store: Store, statement: str, message: str
) -> None:
    """Whoever writes past the store is refused."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (0,))), reserved("x", share(3, 10)))
        with pytest.raises(DBAPIError, match=message), ledger.connection.begin():
            ledger.connection.exec_driver_sql(statement)

        assert it.proved()


TAMPERED = {
    "a place that is gone": (
        "DELETE FROM ledger_planned_cards WHERE device_no = 1",
        {
            "position 3: ledger_planned_cards lacks the row of this event: key=(3, 1)",
            (
                "position 3: what waits is not what the fold says:"
                " place=('uid-n-1', 'g', 'uid-a'), places=0, fold=1"
            ),
        },
    ),
    "a place that was closed": (
        "UPDATE ledger_planned_cards SET closed_position = 4, closed_at_us = 5 WHERE device_no = 1",
        {
            (
                "position 3: ledger_planned_cards is not what the events say: key=(3, 1),"
                " closed_at_us=5 (the events say None), closed_position=4 (the events say None)"
            ),
            (
                "position 3: what waits is not what the fold says:"
                " place=('uid-n-1', 'g', 'uid-a'), places=0, fold=1"
            ),
        },
    ),
    "a place that never was": (
        (
            "INSERT INTO ledger_planned_cards SELECT position, 6, node_no, group_name, pod_uid,"
            " opened_at_us, opened_at_us, 4 FROM ledger_planned_cards WHERE device_no = 1"
        ),
        {"position 3: ledger_planned_cards has a row that no event explains: key=(3, 6)"},
    ),
}


@pytest.mark.parametrize(("statement", "findings"), TAMPERED.values(), ids=TAMPERED.keys())
def test_verify_proves_every_place(
    sqlite_store: SqliteStore, statement: str, findings: set[str]
) -> None:
    """By the writer's own fold and by the domain's; a rebuild makes the places again."""
    with sqlite_store.open() as ledger:
        Recorded(ledger, node(), planned("g", ("a", (0,))), reserved("x", share(3, 10)))
    rules = [text for text in TRIGGERS if named(text).startswith("ledger_planned_cards_")]
    with sqlite_store.raw() as raw:
        for text in rules:
            raw.execute(f"DROP TRIGGER {named(text)}")
        raw.execute(statement)
        for text in rules:
            raw.execute(text)
    with sqlite_store.open() as ledger:
        assert set(map(str, verify(ledger).findings)) == findings
        assert not rebuild(ledger).equal
        assert verify(ledger).ok
