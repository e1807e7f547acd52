"""`who --since --until`: everybody who held it at some moment of an interval, and nobody else."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import LedgerEvent, NodeCleared, NodeInventoried, NodeLost
from tenure.times import iso_time
from tests.support.cli import Answer, CommandLine
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    Store,
    gpu,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)

NEW: Final = "uid-new"
Told = tuple[float, LedgerEvent]


def on_m(name: str, **changes: Any) -> NodeInventoried:  # noqa: ANN401 - any field of the event
    """Return the inventory of a Node on the machine `m`: two cards, two CPUs."""
    words: dict[str, Any] = {
        "system_uuid": "system-m",
        "machine_id": "machine-m",
        "devices": cards(0, 1),
        "cpus": 2,
    }
    return node(name, **words | changes)


def cards(*order: int) -> tuple[Any, ...]:
    """Return the machine's cards at minors in this order."""
    return tuple(
        gpu(minor, node="m", device_id=f"GPU-m-{card}", unique_id=True)
        for minor, card in enumerate(order)
    )


def on(card: int, minor: int, percent: int = 50) -> Any:  # noqa: ANN401 - a share of a device
    """Return a share of a card at a minor."""
    return share(minor, percent, node="m", device_id=f"GPU-m-{card}")


def moved(*, name: str = "n-1", uid: str = "uid-n-1") -> list[Told]:
    """Two Pods one after the other on each card, and the cards change places in between."""
    there: dict[str, Any] = {"node": name, "node_uid": uid}
    lost = [(2.0, NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted"))]
    return [
        (0.0, on_m("n-1")),
        (0.25, reserved("a", on(0, 0), cpus=(0,))),
        (0.5, reserved("b", on(1, 1))),
        (1.25, released("b")),
        (1.5, observed("x", unknown_types=("gpu",))),
        (1.75, released("x")),
        *(lost if uid != "uid-n-1" else ()),
        (2.25, on_m(name, node_uid=uid, devices=cards(1, 0))),
        (3.0, reserved("c", on(1, 0), **there)),
        (3.5, reserved("d", on(0, 1), **there)),
        (3.75, released("c", node=name)),
        (4.0, on_m(name, node_uid=uid, devices=cards(2, 0))),
        (4.5, reserved("e", on(2, 0), **there)),
        *(
            [
                (
                    5.0,
                    NodeCleared(
                        node_uid="uid-n-1", node_name="n-1", evidence="act", witness_uid=""
                    ),
                )
            ]
            if uid != "uid-n-1"
            else [(5.0, released("a"))]
        ),
    ]


class Asking:
    """The command line over one ledger."""

    def __init__(self, store: Store, capsys: pytest.CaptureFixture[str], told: list[Told]) -> None:
        self.line, self.url = CommandLine(Path("unused"), capsys), store.url
        with store.open() as ledger:
            writer, clock = start(ledger), Clock()
            for hour, event in told:
                writer.append([clock.new(event, at_us=MONDAY_US + int(hour * HOUR_US))])

    def ask(self, *words: str) -> Answer:
        """Ask who."""
        return self.line.run("who", *words, "--ledger", self.url)

    def holders(self, *words: str) -> set[tuple[str, str, str]]:
        """Return (what, Pod, since) of every holder; each is there once."""
        answer = self.ask(*words, "-o", "json")
        assert answer.code == 0, answer.err
        found = [
            (each["held"], each["pod"], each["since"]) for each in json.loads(answer.out)["holders"]
        ]
        assert len(set(found)) == len(found), found
        return set(found)


def moment(quarter: int) -> str:
    """Return a moment so many quarters of an hour after midnight."""
    return f"2026-03-02T{quarter // 4:02}:{quarter % 4 * 15:02}:00Z"


@pytest.mark.parametrize("told", [moved(), moved(name="n-2", uid=NEW)], ids=["a node", "two"])
def test_an_interval_has_whoever_held_it_at_some_moment_of_it(
    store: Store, capsys: pytest.CaptureFixture[str], told: list[Told]
) -> None:
    """Of a card, also where another one is at its place; of CPUs, a node, a Pod and an id."""
    asking = Asking(store, capsys, told)
    quarters = sorted({int(4 * hour) for hour, _ in told})  # nothing changes in between
    everybody = set[str]()
    for name in (f"{told[-2][1].node_name}/0", "n-1/1", "n-1/cpu/0", "n-1", "GPU-m-0"):  # type: ignore[union-attr]
        at = {each: asking.holders(name, "--at", moment(each)) for each in quarters}
        for since, until in ((0, 5), (5, 9), (6, 12), (2, 20)):
            found = asking.holders(name, "--since", moment(since), "--until", moment(until))
            held = (at[each] for each in quarters if since <= each < until)
            assert found == set().union(*held), (name, since, until)
        held = (at[each] for each in quarters if each < 15)
        assert asking.holders(name, "--until", moment(15)) == set().union(*held), name
        found = asking.holders(name, "--since", moment(1))
        assert found == set().union(*(at[each] for each in quarters if each)), name
        everybody |= {pod for _, pod, _ in found}
    assert everybody == {"a", "b", "c", "d", "e", "x"}


def test_an_interval_ends_before_its_last_moment(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two intervals that meet have no moment in common."""
    asking = Asking(store, capsys, moved())

    def pods(since: str, until: str) -> set[str]:
        return {pod for _, pod, _ in asking.holders("n-1/0", "--since", since, "--until", until)}

    assert pods("2026-03-02T02:30Z", "2026-03-02T03:00Z") == set()
    assert pods("2026-03-02T02:30Z", "2026-03-02T03:00:00.000001Z") == {"c"}
    assert pods("2026-03-02T03:45Z", "2026-03-02T04:00Z") == set()
    assert pods("2026-03-02T03:44:59Z", "2026-03-02T04:00Z") == {"c"}


@pytest.mark.parametrize("until", ["now", "2026-03-02T05:00Z"])
def test_the_last_event_is_left_out_where_an_interval_ends_there(
    store: Store, capsys: pytest.CaptureFixture[str], until: str
) -> None:
    """It is of a simulation, whose now is its last event; an interval that goes on has it."""
    last = (5.0, reserved("f", on(1, 1)))
    asking = Asking(store, capsys, [(0.0, on_m("n-1")), last])

    assert asking.holders("n-1/1", "--until", until) == set()
    assert asking.holders("n-1/1", "--until", "2026-03-02T05:00:00.000001Z") == {
        ("n-1/1", "f", iso(20))
    }


def test_an_answer_says_which_interval_it_is_of(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nobody is said of an interval without a holder, with who was there last."""
    asking = Asking(store, capsys, moved())
    words = ("n-1/0", "--since", "2026-03-02T02:30Z", "--until", "2026-03-02T02:45Z")

    document = json.loads(asking.ask(*words, "-o", "json").out)
    assert (document["since"], document["until"]) == (iso(10), iso(11))
    assert (document["at"], document["holders"]) == (None, [])
    text = asking.ask(*words).out
    assert "n-1/0 is held by nobody" in text
    assert "last:" in text


def iso(quarter: int) -> str:
    """Return a moment as an answer says it."""
    return iso_time(MONDAY_US + quarter * HOUR_US // 4)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--since", "1h ago", "--at", "now"), "--at"),
        (("--until", "now", "--history"), "--history"),
        (("--since", "2026-03-02T03:00Z", "--until", "2026-03-02T02:00Z"), "ends before it begins"),
        (("--since", "2026-03-02T03:30Z", "--until", "2026-03-02T03:30Z"), "no moment"),
        (("--until", "2026-03-01T03:00Z"), "nothing is recorded in this period"),
        (("--since", "yesterday"), "--since: not a time"),
    ],
)
def test_what_is_no_interval_is_refused(
    store: Store, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    """With the option that is meant."""
    answer = Asking(store, capsys, moved()).ask("n-1/0", *words)

    assert (answer.code, answer.out) == (2, "")
    assert named in answer.err


def test_a_plain_date_is_its_midnight_here_and_is_said(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """So two of them are a day."""
    asking = Asking(store, capsys, moved())
    words = ("n-1", "--since", "2026-03-02", "--until", "2026-03-03")
    answer = asking.ask(*words)

    day = [datetime(2026, 3, number).astimezone().isoformat() for number in (2, 3)]
    for option, at in zip(("--since", "--until"), day, strict=True):
        assert f"{option}: {at}, midnight here" in answer.err
    assert asking.holders(*words) == asking.holders("n-1", "--since", day[0], "--until", day[1])
