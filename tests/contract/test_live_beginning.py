"""What a live scheduler begins with, out of either database."""

from __future__ import annotations

from msgspec import structs
from sqlalchemy.event import listen

from ledger.domain.log.events import (
    GroupPlanned,
    NodeDescribed,
    PlanDropped,
    PodVoided,
    RefusalReason,
    RequestDescribed,
    RequestRefused,
    SettingsChanged,
)
from ledger.domain.log.recorded_node import recorded_node
from ledger.domain.nodes import NodeFacts
from ledger.store.reading.pod_queries import voided_attempts
from ledger.store.writing.append import Writer
from scheduler.decide.group.life import DEADLINE
from scheduler.record.events import ACTOR, gone
from scheduler.record.refusing import Told
from scheduler.service.api.words import WEBHOOK_ACTOR
from scheduler.service.beginning import as_told, begin, told_refusals
from tests.support.clusters import gpu_node
from tests.support.group_lives import lives_of
from tests.support.stores import (
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    bound,
    node,
    observed,
    planned,
    refused,
    released,
    reserved,
    share,
    start,
)


def _described(name: str, *, unschedulable: bool = False) -> NodeDescribed:
    facts: NodeFacts = gpu_node(name, unschedulable=unschedulable)
    return NodeDescribed(node_uid=f"uid-{name}", node_name=name, facts=recorded_node(facts))


def _voided(pod: str, attempt: int) -> PodVoided:
    return PodVoided(pod_uid=f"uid-{pod}", attempt=attempt, node_uid="uid-n-1", reason="test")


def _lived(writer: Writer) -> None:
    """Let a node be told of twice, and Pods come and go."""
    clock = Clock()
    for event in (
        SettingsChanged(settings_hash="1", settings="{}", tenure_version="0.1.0"),
        node(gpus=1),
        _described("n-1"),
        node(gpus=4),
        _described("n-1", unschedulable=True),
        reserved("bound", share(0, 50)),
        bound("bound"),
        reserved("ended", share(1, 50)),
        released("ended"),
        reserved("voided", share(1, 50)),
        _voided("voided", 1),
        reserved("voided", share(1, 50), attempt=2),
        _voided("voided", 2),
        observed("other", share(2, 100)),
    ):
        writer.append([clock.new(event)])


def test_a_ledger_tells_who_holds_what_and_what_was_said_of_nodes_last(store: Store) -> None:
    """Holdings with the events that opened them; of each node the newest words."""
    with store.open() as ledger:
        _lived(start(ledger))
        begun = begin(ledger)
        assert begun.position == ledger.head().position
    held = begun.state.nodes["uid-n-1"].holdings
    assert set(held) == {"uid-bound/1", "uid-other/1"}
    opened = {holding.opened_position: holding.pod_uid for holding in held.values()}
    assert {position: event.pod_uid for position, event in begun.opened.items()} == opened
    said = begun.said["uid-n-1"]
    assert said.inventory is not None
    assert said.described is not None
    assert len(said.inventory.devices) == 4
    assert said.described.facts.unschedulable
    assert begun.settings == "{}"


def test_an_attempt_that_was_voided_is_not_made_again(store: Store) -> None:
    """A second reservation under the key of a voided one would be answered as that one."""
    with store.open() as ledger:
        _lived(start(ledger))
        begun = begin(ledger)
    assert begun.attempts["uid-voided"] == 2
    assert "uid-ended" not in begun.attempts, "it was bound, and asks no more"


def test_attempts_that_ended_are_found_among_those_that_were_voided(
    sqlite_store: SqliteStore, postgres_store: PostgresStore
) -> None:
    """A start reads as many rows as were voided, however many reservations there were."""
    for store, explain in ((sqlite_store, "EXPLAIN QUERY PLAN"), (postgres_store, "EXPLAIN")):
        said: list[str] = []

        def note(_: object, _cursor: object, statement: str, *_rest: object) -> None:
            said.append(statement)  # noqa: B023 - called before the next turn

        with store.open() as ledger, ledger.connection.begin():
            listen(ledger.connection, "before_cursor_execute", note)
            voided_attempts(ledger.connection)
            [query] = said
            if store is postgres_store:
                ledger.connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            plan = str(ledger.connection.exec_driver_sql(f"{explain} {query}").all())
        assert "ix_ledger_reservations_voided" in plan, plan


def test_nodes_with_holders_are_told_as_the_ledger_knows_them(store: Store) -> None:
    """The API may not have them any more."""
    with store.open() as ledger:
        _lived(start(ledger))
        begun = begin(ledger)
    [node] = [each for each in begun.state.nodes.values() if each.holdings]
    gone = as_told(node, begun.said[node.uid])
    assert (gone.uid, gone.name, len(gone.devices), gone.unschedulable) == (
        "uid-n-1",
        "n-1",
        4,
        True,
    )


def test_an_empty_ledger_is_a_beginning_too(store: Store) -> None:
    """Nothing is held, and nothing was said."""
    with store.open() as ledger:
        begun = begin(ledger)
    assert (begun.position, dict(begun.opened), dict(begun.said), begun.settings) == (0, {}, {}, "")
    assert not any(isinstance(event, RequestDescribed) for event in begun.opened.values())


def _refused(pod: str, *reasons: str) -> RequestRefused:
    words = tuple(RefusalReason(reason=reason, nodes=1) for reason in reasons)
    return structs.replace(refused(pod), reasons=words)


def test_a_ledger_tells_why_pods_waited_and_how_often_it_said_so(store: Store) -> None:
    """The reasons of the last refusal, where no place was reserved since; others are left out."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        for event in (
            node(),
            _refused("waits", "one"),
            _refused("waits", "one", "two"),
            _refused("placed", "one"),
            reserved("placed", share(0, 50)),
            _refused("other", "one"),
            reserved("never", share(0, 50)),
        ):
            writer.append([clock.new(event)])
        found = told_refusals(ledger, ["uid-waits", "uid-placed", "uid-never", "uid-unknown"])
    assert found == {
        "uid-waits": Told(number=2, reasons=frozenset({"one", "two"}), waiting=("team-a", "waits")),
        "uid-placed": Told(number=1, reasons=None),
    }


def test_who_waits_by_a_ledger_is_told_until_its_end(store: Store) -> None:
    """Not who has a place or was deleted, nor who was refused at admission and never was."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        for name in ("waits", "placed", "gone", "never"):
            actor = WEBHOOK_ACTOR if name == "never" else ACTOR
            writer.append([structs.replace(clock.new(_refused(name, "one")), actor=actor)])
        writer.append([clock.new(node())])
        writer.append([clock.new(reserved("placed", share(0, 50)))])
        writer.append([gone(("uid-gone", "team-a", "gone"), 2, clock.new(node()).wall_us)])
        found = told_refusals(ledger, None)
        of_some = told_refusals(ledger, ["uid-gone", "uid-placed", "uid-never"])
    assert {uid: told.waiting for uid, told in found.items()} == {"uid-waits": ("team-a", "waits")}
    assert [told.waiting for told in of_some.values()] == [None, None, None]


def test_the_lives_of_groups_that_hold_or_plan_are_told_as_they_were(store: Store) -> None:
    """Who took a place, was bound and ended; a group whose plan was dropped is not told of."""
    with store.open() as ledger:
        writer, clock = start(ledger), Clock()
        for event in (
            node(gpus=8),
            planned("over", ("o", (0,))),
            reserved("o", share(0, 100), group="over"),
            released("o"),
            planned("dropped", ("d", (0,))),
            PlanDropped(group="dropped", reason="test"),
            planned("open", ("p", (1,)), ("q", (2,)), ("r", (3,)), ("s", (4,))),
            reserved("p", share(1, 100), group="open"),
            bound("p"),
            reserved("q", share(2, 100), group="open"),
            released("q"),
            reserved("r", share(3, 100), group="open"),
            _voided("r", 1),
            reserved("alone", share(5, 100), group="alone"),
            observed("older", share(6, 100), group="alone"),
            observed("other", share(7, 100), group="others"),
            planned("late", ("l", (0,))),
            reserved("l", share(0, 100), group="late"),
            bound("l"),
            PlanDropped(group="late", reason=DEADLINE),
            released("l"),
        ):
            writer.append([clock.new(event)])
        told = begin(ledger).groups
        whole = lives_of((one.event, one.envelope.wall_us) for one in ledger.read_events())

    lives = lives_of(told)
    assert lives.keys() == {"over", "open", "alone", "others", "late"}
    late = lives.pop("late")
    assert late.evicted_us == whole["late"].evicted_us > 0, "it is not evicted again soon"
    assert (late.gave_up, late.held_at_once) == (True, 0), "a release hides that it was bound"
    assert lives == {name: whole[name] for name in lives}
    assert list(lives["open"].places) == ["uid-s"]
    assert (list(lives["alone"].observed), lives["alone"].held_at_once) == (["uid-older"], 2)
    assert not any(
        isinstance(event, GroupPlanned) and event.group == "dropped" for event, _ in told
    )
