"""`tenure ledger replay`: whole runs come out equal, and what can't be decided again is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from msgspec import structs

from ledger.domain.log.events import LedgerEvent, PodReserved, RequestDescribed
from ledger.domain.log.recorded import NewEvent
from ledger.signing import PrivateKey
from ledger.store.open import open_ledger
from tenure.simulate.trace.shapes import write_openb_like
from tenure.simulate.trace.week import write_week
from tests.support.cli import CommandLine
from tests.support.forging import forge
from tests.support.objects import Object, container, device, gpu_device, node, pod
from tests.support.stores import SqliteStore

pytestmark = pytest.mark.integration

NOW: Final = ("--now", "2026-03-02T00:00:00Z")


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on a ledger that is not there yet."""
    return CommandLine(tmp_path / "run.db", capsys)


@dataclass(frozen=True)
class Week:
    """A part of the demonstration's week: how many nodes and Pods."""

    nodes: int
    pods: int


def of_a_week(line: CommandLine, week: Week) -> None:
    """Record a week as `make demo` does."""
    folder = line.ledger.parent / "trace"
    folder.mkdir()
    write_week(folder, nodes=week.nodes, pods=week.pods, seed=42)
    done = line.ask("simulate", "--trace", str(folder), "--policy", "fgd", "--batch", "200")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "week",
    [
        pytest.param(Week(24, 1_000), id="small"),
        pytest.param(Week(204, 10_000), id="whole", marks=pytest.mark.slow),
    ],
)
def test_the_week_of_the_demonstration_is_decided_again_alike(
    line: CommandLine, week: Week
) -> None:
    """Every dialect, groups, a dying card, Pods that wait and are tried again."""
    of_a_week(line, week)

    answer = line.ask("ledger", "replay", "-o", "json")

    assert answer.code == 0, answer.out
    told = json.loads(answer.out)
    assert (told["equal"], told["differences"]) == (True, [])
    assert told["decisions"] == told["placed"] + told["refused"] + told["planned"]
    assert told["placed"] + told["refused"] >= week.pods * 0.97


@pytest.mark.parametrize("policy", ["scarcity", "fgd", "random"])
def test_a_run_over_a_trace_like_openb_is_decided_again_alike(
    line: CommandLine, policy: str
) -> None:
    """Equal nodes in an order of their own, and what Pods are typical of the whole trace."""
    folder = line.ledger.parent
    write_openb_like(folder, nodes=40, seed=7)
    files = ("--openb-nodes", str(folder / "nodes.csv"), "--openb-pods", str(folder / "pods.csv"))
    done = line.ask("simulate", *files, "--inflate", "1.0", "--policy", policy, "--batch", "100")
    assert done.code == 0, done.err

    answer = line.ask("ledger", "replay")

    assert answer.code == 0, answer.out
    assert answer.out.startswith("equal: ")


def of_two_cards(line: CommandLine, *more: str) -> None:
    """Record a node of two cards, a Pod that gets one, one that is too big, and a broken one."""
    objects: list[Object] = [
        node("a"),
        device(*(gpu_device(minor, id=f"GPU-{minor}") for minor in range(2)), name="a"),
    ]
    asked = {"small": "1", "big": "3", "broken": "x"}
    for name, cards in asked.items():
        limits = {"nvidia.com/gpu": cards} if cards != "x" else {"koordinator.sh/gpu-core": "150"}
        objects.append(pod(container(limits=limits), name=name))
    (line.ledger.parent / "in.json").write_text(json.dumps({"kind": "List", "items": objects}))
    done = line.ask("simulate", str(line.ledger.parent / "in.json"), *NOW, *more)
    assert done.code == 0, done.err


def written_again(line: CommandLine, change: Callable[[LedgerEvent], LedgerEvent | None]) -> None:
    """Write the ledger again, every event as `change` says it; what gives None is left out."""
    with open_ledger(str(line.ledger), mode="read") as source:
        origin, events = source.head().origin, list(source.read_events())
    line.ledger.unlink()
    with open_ledger(str(line.ledger), mode="create") as target:
        first = events[0].envelope
        writer = target.start_epoch("test", origin, "test", wall_us=first.wall_us)
        for each in events[1:]:
            event, envelope = change(each.event), each.envelope
            if event is not None:
                new = NewEvent(
                    stream=envelope.stream,
                    event=event,
                    actor=envelope.actor,
                    idempotency_key=envelope.idempotency_key,
                    wall_us=envelope.wall_us,
                )
                writer.append([new])


def on_the_other_card(event: LedgerEvent) -> LedgerEvent:
    """Write another device into a reservation."""
    if not isinstance(event, PodReserved):
        return event
    share = structs.replace(event.shares[0], minor=1, device_id="GPU-1")
    return structs.replace(event, shares=(share,))


def position_of(line: CommandLine, event_type: str) -> str:
    """Return where the first event of a type is."""
    sql = f"SELECT min(position) AS at FROM ledger_events WHERE event_type LIKE '{event_type}%'"
    return str(json.loads(line.ask("ledger", "sql", sql, "-o", "json").out)[0]["at"])


def test_what_is_equal_is_one_line_and_what_is_left_out_is_said(line: CommandLine) -> None:
    """A refusal by rules is decided by the Pod's manifest, which is in no ledger."""
    of_two_cards(line)
    reserved, refused = position_of(line, "pod.reserved"), position_of(line, "request.refused")

    assert line.ask("ledger", "replay").out.splitlines() == [
        f"equal: 2 decisions (1 placed, 1 refused) from position {reserved} to {refused}",
        "not decided again: 1 times a refusal by rules, which the Pod's manifest decides",
    ]
    assert line.ask("ledger", "replay", reserved).out == (
        f"equal: 1 decision (1 placed, 0 refused) from position {reserved} to {reserved}\n"
    )


def test_a_decision_that_another_device_was_written_into_is_found_and_named(
    line: CommandLine,
) -> None:
    """Position, Pod, what was recorded and what is decided now; exit 1, as of a finding."""
    of_two_cards(line)
    written_again(line, on_the_other_card)
    at = position_of(line, "pod.reserved")

    answer = line.ask("ledger", "replay")

    assert answer.code == 1
    rows = answer.out.splitlines()
    assert rows[0].split() == ["POSITION", "POD", "WHAT", "RECORDED", "DECIDED", "NOW"]
    assert rows[1].split()[:3] == [at, "ml/small", "devices"]
    assert "gpu/1" in rows[1].split("gpu/0")[0]
    assert rows[-2].startswith(
        f"not equal: 1 of 2 decisions (1 placed, 1 refused) from position {at}"
    )
    told = json.loads(line.ask("ledger", "replay", at, "-o", "json").out)
    assert (told["equal"], told["decisions"]) == (False, 1)
    assert {"position", "kind", "name", "what", "recorded", "decided"} == set(
        told["differences"][0]
    )


def test_other_settings_than_the_recorded_ones_are_named_and_decided_by(line: CommandLine) -> None:
    """Whoever changed a setting sees which, and what it would have changed."""
    of_two_cards(line, "--policy", "spread")
    config = line.ledger.with_name("settings.yaml")
    kind = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
    config.write_text(f"{kind}node: {{policy: spread}}\n")
    same = line.ask("ledger", "replay", "--config", str(config))
    config.write_text(f"{kind}node: {{policy: binpack}}\n")
    other = line.ask("ledger", "replay", "--config", str(config))

    assert (same.code, other.code) == (0, 1)
    fact = 'by other settings than --config: node_policy: recorded "spread", given "binpack"'
    assert fact in other.err
    assert "policy" in other.out
    assert "settings_hash" in other.out


@pytest.mark.parametrize(
    ("position", "fact"),
    [
        ("99", "no such position: position=99, head="),
        ("1", "nothing to decide again: position=1, epoch.started.v1 is no decision"),
    ],
)
def test_a_position_that_is_no_decision_is_an_error(
    line: CommandLine, position: str, fact: str
) -> None:
    """Wrong usage, and the way to a right one."""
    of_two_cards(line)

    answer = line.ask("ledger", "replay", position)

    assert answer.code == 2
    assert fact in answer.err
    assert "next: " in answer.err
    if "no decision" in fact:
        assert "next: name the position of a reservation, a refusal or a plan" in answer.err


def test_a_refusal_by_rules_is_said_to_be_one(line: CommandLine) -> None:
    """Named alone it is no decision of ours."""
    of_two_cards(line)
    refusals = "SELECT max(position) AS at FROM ledger_events WHERE event_type LIKE 'request.ref%'"
    (row,) = json.loads(line.ask("ledger", "sql", refusals, "-o", "json").out)
    answer = line.ask("ledger", "replay", str(row["at"]))

    assert answer.code == 2
    assert "is a refusal by rules, which the Pod's manifest decides" in answer.err


def test_a_ledger_without_descriptions_is_said_to_be_one(line: CommandLine) -> None:
    """Nothing is guessed: exit 2, with the position and the Pod."""
    of_two_cards(line)
    written_again(line, lambda event: None if isinstance(event, RequestDescribed) else event)

    answer = line.ask("ledger", "replay")

    assert answer.code == 2
    assert "what the Pod asked for is not in the log: pod=ml/small: position=" in answer.err
    assert "every description" in answer.err


def test_a_ledger_whose_first_events_are_in_an_archive_is_said_to_be_one(
    line: CommandLine,
) -> None:
    """What was described went with them."""
    of_a_week(line, Week(6, 300))
    key = line.ledger.with_name("key")
    key.write_text(PrivateKey.new("tenure").text())
    folder = line.ledger.with_name("archive")
    folder.mkdir()
    words = ("--to", str(folder), "--keep", "100", "--key", str(key))
    done = line.ask("ledger", "archive", *words)
    assert done.code == 0, done.err

    answer = line.ask("ledger", "replay")

    assert answer.code == 2
    assert "are in an archive, and with them what was decided on" in answer.err


def test_a_ledger_with_nothing_to_decide_is_equal(line: CommandLine) -> None:
    """No decision differs."""
    assert line.run("ledger", "init", "--ledger", str(line.ledger)).code == 0

    assert line.ask("ledger", "replay").out == "equal: 0 decisions (0 placed, 0 refused)\n"


def test_a_group_whose_members_say_how_they_were_written_is_decided_again_alike(
    line: CommandLine,
) -> None:
    """The plan tells what a member asks, its own reservation how that was written."""
    done = line.ask("simulate", "examples/cluster.yaml", "examples/group.yaml")
    assert done.code == 0, done.err

    answer = line.ask("ledger", "replay")

    assert answer.code == 0, answer.out
    assert "1 group" in answer.out


def test_acts_over_a_wrong_ledger_change_no_decision(line: CommandLine) -> None:
    """
    What is declared void is not met, a corrected time is not what was decided by.

    A snapshot, an epoch and a checkpoint in between are no decisions.
    """
    of_two_cards(line)
    before = line.ask("ledger", "replay").out
    store = SqliteStore(path=line.ledger)
    facts = '{"facts":{"pods_max":-5,"version":1},"node_name":"a","node_uid":"uid-a"}'
    at = forge(store, "node.described.v1", facts)
    assert line.ask("ledger", "replay").code == 2, "nobody can read it"
    act = ("--reason", "test", "--ledger", str(line.ledger))
    assert line.run("ledger", "void", str(at), *act).code == 0
    shift = ("--first", "2", "--last", "3", "--shift", "30")
    done = line.run("ledger", "correct-time", *shift, *act)
    assert done.code == 0, done.err
    assert line.run("ledger", "snapshot", "--ledger", str(line.ledger)).code == 0

    assert line.ask("ledger", "replay").out == before
