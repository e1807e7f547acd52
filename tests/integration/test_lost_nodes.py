"""What the readers say of cards and CPUs that a lost Node's Pods hold: held, and not counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import LedgerEvent, NodeCleared, NodeInventoried, NodeLost
from ledger.store.open import open_ledger
from tenure.report.build import read_report
from tests.support.cli import CommandLine
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    SqliteStore,
    gpu,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)

pytestmark = pytest.mark.integration

NEW = "uid-new"
LOST = "lost with its node, counted to 2026-03-02T01:00:00"
Tell = Callable[..., CommandLine]


def on_m(name: str, **changes: Any) -> NodeInventoried:  # noqa: ANN401 - any field of the event
    """Return the inventory of a Node on the machine `m`: two cards, two CPUs."""
    words: dict[str, Any] = {
        "system_uuid": "system-m",
        "machine_id": "machine-m",
        "devices": tuple(gpu(minor, node="m", unique_id=True) for minor in range(2)),
        "cpus": 2,
    }
    return node(name, **words | changes)


def lost(name: str = "n-1") -> NodeLost:
    """Return the loss of a Node."""
    return NodeLost(node_uid=f"uid-{name}", node_name=name, reason="deleted")


def swapped() -> tuple[Any, ...]:
    """Return the two cards with their minors the other way round."""
    return tuple(gpu(minor, node="m", device_id=f"GPU-m-{1 - minor}") for minor in range(2))


@pytest.fixture
def tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Make a ledger of (hour, event) and return its command line."""

    def make(*told: tuple[float, LedgerEvent]) -> CommandLine:
        store = SqliteStore(path=tmp_path / "ledger.db")
        store.open("create").close()
        with store.open() as ledger:
            writer, clock = start(ledger), Clock()
            for hour, event in told:
                at_us = MONDAY_US + int(hour * HOUR_US)
                writer.append([clock.new(event, at_us=at_us)])
        return CommandLine(store.path, capsys)

    return make


def registered_again(name: str, **changes: Any) -> list[tuple[float, LedgerEvent]]:  # noqa: ANN401
    """Tell of Pod a, on card 0 and CPU 0 when n-1 goes at 1 o'clock, and of the new Node."""
    whole = share(0, 100, node="m", exclusive=True)
    half = share(1 if not changes else 0, 50, node="m", device_id="GPU-m-1")
    return [
        (0.0, on_m("n-1")),
        (0.0, reserved("a", whole, cpus=(0,))),
        (1.0, lost()),
        (2.0, on_m(name, node_uid=NEW, **changes)),
        (3.0, reserved("b", half, node=name, node_uid=NEW)),
    ]


def holders(line: CommandLine, *words: str) -> list[tuple[str, str, str]]:
    """Return (what, Pod, phase) of every holder that `who` names."""
    document = json.loads(line.ask("who", *words, "-o", "json").out)
    return [(each["held"], each["pod"], each["phase"]) for each in document["holders"]]


def cards(line: CommandLine, *words: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return level and tenants of every card of the map."""
    return {
        (each["node"], card["minor"]): (
            sum(holder["core_percent"] for holder in card["holders"]),
            len(card["holders"]),
        )
        for each in json.loads(line.ask("map", *words, "-o", "json").out)["nodes"]
        for group in each["groups"]
        for card in group["devices"]
    }


def test_who_names_the_lost_holder_on_the_new_nodes_card(tell: Tell) -> None:
    """It is the same metal: card, CPU and node, by the old name and by the new one."""
    line = tell(*registered_again("n-2"))

    a = ("n-1/0", "a", "lost")
    assert holders(line, "n-2/0") == holders(line, "n-1/0") == [a]
    assert holders(line, "n-2/0", "--at", "2026-03-02T02:30:00Z") == [a]
    assert holders(line, "n-2/cpu/0") == [("n-2/cpu/0", "a", "lost")]
    assert holders(line, "n-2") == [a, ("n-2/1", "b", "reserved"), ("n-1/cpu/0", "a", "lost")]
    for words in (("n-2/0",), ("n-2",), ("n-2/cpu/0",), ("team-a/a",)):
        answer = line.ask("who", *words).out
        assert LOST in answer
        assert "free" not in answer


def test_why_says_that_the_node_was_lost_and_what_would_free_it(tell: Tell) -> None:
    """The Pod has no place any more, and holds its cards and CPUs all the same."""
    line = tell(*registered_again("n-2"))

    first, then, *_ = line.ask("why", "team-a/a").out.splitlines()
    assert "has its place" not in first
    assert first.startswith("team-a/a lost its node n-1 at 2026-03-02T01:00:00")
    assert then.startswith("still held, and not counted: n-1/0")
    assert then.endswith("tenure ledger clear n-1 --reason WHY")
    told = json.loads(line.ask("why", "team-a/a", "-o", "json").out)
    assert told["message"] == then
    assert "team-a/b has its place since" in line.ask("why", "team-a/b").out


@pytest.mark.parametrize("name", ["n-1", "n-2"])
def test_a_moment_has_the_node_of_that_moment(tell: Tell, name: str) -> None:
    """The map drew the cards under the newest Node's name, at its minors, long before it was."""
    line = tell(*registered_again(name, devices=swapped()))

    def at(hour: float) -> tuple[dict[tuple[str, int], tuple[int, int]], set[str]]:
        moment = ("--at", f"2026-03-02T{int(hour):02}:{int(hour % 1 * 60):02}:00Z")
        drawn = json.loads(line.ask("map", *moment, "-o", "json").out)["nodes"]
        closed = {why for each in drawn for why in each["closed_because"]}
        return cards(line, *moment), closed

    assert at(0.5) == ({("n-1", 0): (100, 1), ("n-1", 1): (0, 0)}, set())
    assert at(1.5) == ({("n-1", 0): (100, 1), ("n-1", 1): (0, 0)}, {"lost"})
    assert at(2.5)[0] == {(name, 0): (0, 0), (name, 1): (100, 1)}
    assert at(3.5)[0] == {(name, 0): (50, 1), (name, 1): (100, 1)}
    document = json.loads(line.ask("map", "--at", "2026-03-02T00:30:00Z", "-o", "json").out)
    ids = [
        card["id"] for each in document["nodes"] for g in each["groups"] for card in g["devices"]
    ]
    assert ids == ["GPU-m-0", "GPU-m-1"]
    assert (len(document["nodes"]), document["summary"]["free"]) == (1, 1)
    assert document["summary"]["percent"]["allocated"] == 100


@pytest.mark.parametrize("name", ["n-1", "n-2"])
def test_who_means_the_place_of_that_moment(tell: Tell, name: str) -> None:
    """A Node made anew has the cards at other minors; an id means the card wherever it was."""
    line = tell(*registered_again(name, devices=swapped()))
    then, later = ("--at", "2026-03-02T00:30:00Z"), ("--at", "2026-03-02T02:30:00Z")

    a = [("n-1/0", "a", "lost")]
    assert holders(line, "n-1/0", *then) == a
    assert holders(line, "n-1/1", *then) == []
    assert holders(line, "GPU-m-0", *then) == holders(line, "GPU-m-0", *later) == a
    assert holders(line, f"{name}/1", *later) == a
    assert holders(line, f"{name}/0", *later) == []


def test_an_id_never_means_another_card_at_its_place(tell: Tell) -> None:
    """Who held the card that was there before it is not told for it, at a moment or ever."""
    half = share(0, 50, node="m")
    new = (gpu(0, node="m", device_id="GPU-new", unique_id=True),)
    line = tell(
        (0.0, on_m("n-1")),
        (0.0, reserved("a", half)),
        (1.0, released("a")),
        (2.0, on_m("n-1", devices=new)),
        (2.0, reserved("b", share(0, 50, node="m", device_id="GPU-new"))),
    )

    assert [pod for _, pod, _ in holders(line, "GPU-new", "--history")] == ["b"]
    assert [pod for _, pod, _ in holders(line, "GPU-m-0", "--history")] == ["a"]
    assert holders(line, "GPU-new", "--at", "2026-03-02T00:30:00Z") == []
    assert [pod for _, pod, _ in holders(line, "GPU-m-0", "--at", "2026-03-02T00:30:00Z")] == ["a"]
    assert [pod for _, pod, _ in holders(line, "GPU-new")] == ["b"]
    assert holders(line, "GPU-m-0") == []


@pytest.mark.parametrize("name", ["n-1", "n-2"])
def test_the_card_is_the_same_under_another_minor(tell: Tell, name: str) -> None:
    """Neither `who` nor `map` calls it free because it is listed elsewhere now."""
    line = tell(*registered_again(name, devices=swapped()))

    assert ("n-1/0", "a", "lost") in holders(line, f"{name}/1")
    assert "free" not in line.ask("who", name).out
    assert cards(line) == {(name, 0): (50, 1), (name, 1): (100, 1)}


def test_the_map_shows_the_card_and_the_cpu_as_held(tell: Tell) -> None:
    """While the Node is away, and when it is back."""
    line = tell(*registered_again("n-2"))

    assert cards(line) == {("n-2", 0): (100, 1), ("n-2", 1): (50, 1)}
    assert cards(line, "--at", "2026-03-02T01:30:00Z") == {("n-1", 0): (100, 1), ("n-1", 1): (0, 0)}
    drawn = json.loads(line.ask("map", "--cpus", "-o", "json").out)
    assert [[each["pod"] for each in entry["holders"]] for entry in drawn] == [["team-a/a"]] * 2


def test_a_card_that_nobody_can_name_is_unknown_on_the_new_node_too(tell: Tell) -> None:
    """It is one of the machine's."""
    line = tell(
        (0.0, on_m("n-1")),
        (0.0, observed("x", unknown_types=("gpu",))),
        (1.0, lost()),
        (2.0, on_m("n-2")),
    )

    nodes = json.loads(line.ask("map", "-o", "json").out)["nodes"]
    unplaced = {
        each["node"]: [pod["name"] for group in each["groups"] for pod in group["unplaced"]]
        for each in nodes
    }
    assert unplaced == {"n-1": [], "n-2": ["x"]}
    assert "kube/x holds" in line.ask("who", "n-2/0").out


def test_usage_ends_at_the_loss_and_the_card_is_not_idle(tell: Tell) -> None:
    """One card for one hour; from then on nobody is billed, and nobody could have had it."""
    line = tell(*registered_again("n-2"), (4.0, released("b", node="new")))

    usage = json.loads(line.ask("usage", "-o", "json").out)
    (row,) = usage["groups"]
    assert row["gpu_hours"] == pytest.approx(1.5)
    parts = usage["capacity_percent"]  # of six hours of cards: a lost node has none
    assert (parts["allocated"], parts["closed"]) == (25.0, 33.3)
    sql = "SELECT sum(idle_gpu_hours) AS idle, sum(used_gpu_hours) AS used FROM audit_capacity_days"
    (day,) = json.loads(line.ask("ledger", "sql", sql, "-o", "json").out)
    assert day["used"] == pytest.approx(1.5)
    assert day["idle"] == pytest.approx(2.0)


def test_status_and_state_know_the_lost_holder(tell: Tell) -> None:
    """The card counts as held; the state says by whom."""
    line = tell(*registered_again("n-2"))

    status = json.loads(line.ask("status", "-o", "json").out)
    assert (status["cards"], status["cards_held"]) == (2, 2)
    state = json.loads(line.ask("ledger", "state", "-o", "json").out)
    phases = {held["pod"]: held["phase"] for each in state["nodes"] for held in each["holdings"]}
    assert phases == {"a": "lost", "b": "reserved"}


def test_the_report_draws_the_holder_on_the_card(tell: Tell) -> None:
    """On the Node that has the card now, and only there."""
    line = tell(*registered_again("n-2"))

    with open_ledger(f"sqlite:///{line.ledger}", mode="read") as ledger:
        history = read_report(ledger, proof=None, command="").history
    drawn = {
        (history.nodes[card.node].name, card.minor, history.pods[hold.pod][1], hold.closed)
        for hold in history.holds
        for card in [history.cards[hold.card]]
    }
    assert drawn == {("n-2", 0, "a", None), ("n-2", 1, "b", None)}
    assert len(history.cards) == 2


def test_a_card_in_the_place_of_one_that_left_is_free(tell: Tell) -> None:
    """A broken card was replaced: map, status, `why` and the page closed the new one as gone."""
    new = (gpu(0, node="m", unique_id=True), gpu(1, node="m", device_id="GPU-new", unique_id=True))
    line = tell((0.0, on_m("n-1")), (1.0, on_m("n-1", devices=new)), (2.0, lost("n-9")))

    document = json.loads(line.ask("map", "-o", "json").out)
    closed = [card["closed"] for g in document["nodes"][0]["groups"] for card in g["devices"]]
    assert (closed, document["summary"]["free"]) == ([None, None], 2)
    assert json.loads(line.ask("status", "-o", "json").out)["cards_free"] == 2
    assert "nobody holds it" in line.ask("why", "n-1/1").out
    with open_ledger(f"sqlite:///{line.ledger}", mode="read") as ledger:
        history = read_report(ledger, proof=None, command="").history
    assert history.outages == ()
    moment = ("--at", "2026-03-02T00:30:00Z", "-o", "json")
    before = json.loads(line.ask("map", *moment).out)["nodes"][0]["groups"]
    assert [card["id"] for g in before for card in g["devices"]] == ["GPU-m-0", "GPU-m-1"]


def test_a_cleared_machine_is_free_again(tell: Tell) -> None:
    """What was counted stays; what ended it is said."""
    clearing = NodeCleared(node_uid="uid-n-1", node_name="n-1", evidence="act", witness_uid="")
    line = tell(*registered_again("n-2"), (4.0, clearing))

    assert holders(line, "n-2/0") == []
    answer = line.ask("who", "n-2/0").out
    assert LOST in answer
    assert "cleared: act" in answer
    assert cards(line)["n-2", 0] == (0, 0)


def test_a_node_on_another_machine_keeps_its_holders(tell: Tell) -> None:
    """Its board was changed: they hold cards and CPUs of the old one, and are not forgotten."""
    line = tell(
        (0.0, on_m("n-1")),
        (0.0, reserved("a", share(0, 100, node="m", exclusive=True), cpus=(0,))),
        (1.0, on_m("n-1", system_uuid="system-k", devices=())),
    )

    held = [("n-1/0", "a", "reserved"), ("n-1/cpu/0", "a", "reserved")]
    assert holders(line, "n-1") == holders(line, "team-a/a") == held
    assert holders(line, "n-1/0") == held[:1]
    drawn = json.loads(line.ask("map", "--cpus", "-o", "json").out)
    assert [each["pod"] for each in drawn[0]["holders"]] == ["team-a/a"]
