from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import RequestDescribed
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import open_ledger
from scheduler.decide.score.typical import workload_of
from tenure.simulate.command import learned_from
from tests.support.cli import CommandLine


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a ledger of its own."""
    return CommandLine(ledger=tmp_path / "week.db", capture=capsys)


def cluster(path: Path, *pods: tuple[str, str]) -> str:
    """Write two nodes of two GPUs and these Pods (name, percent of a GPU)."""
    items: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {
                "allocatable": {"cpu": "64", "memory": "1Ti", "koordinator.sh/gpu-core": "200"}
            },
        }
        for name in ("a", "b")
    ]
    for name, percent in pods:
        amounts = {
            "cpu": "2",
            "koordinator.sh/gpu-core": percent,
            "koordinator.sh/gpu-memory-ratio": percent,
        }
        items.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"containers": [{"name": "m", "resources": {"limits": amounts}}]},
            }
        )
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def test_what_a_ledger_saw_is_typical_for_the_next_run(line: CommandLine, tmp_path: Path) -> None:
    """Placed or not, each Pod once; the run's inputs are others then."""
    seen = cluster(tmp_path / "seen.json", *((f"p{i}", "50") for i in range(3)), ("big", "900"))
    line.ask("simulate", seen)

    learned, untold = learned_from(str(line.ledger))

    typical = workload_of(learned)
    assert untold == 0
    assert [(pod.gpu_percent, pod.gpu_count) for pod in typical.pods] == [(50, 1), (100, 9)]
    assert typical.counts == (3, 1)


def test_a_run_that_learned_is_another_run(line: CommandLine, tmp_path: Path) -> None:
    """Its ledger can be gone on with only by one that learned the same."""
    line.ask("simulate", cluster(tmp_path / "seen.json", ("p", "50")))
    arriving = cluster(tmp_path / "next.json", ("q", "30"))
    kept = str(tmp_path / "next.db")
    learning = ("--learn", str(line.ledger))

    first = line.run("simulate", arriving, *learning, "--ledger", kept)
    again = line.run("simulate", arriving, *learning, "--ledger", kept, "--resume")
    other = line.run("simulate", arriving, "--ledger", kept, "--resume")

    assert (first.code, again.code, other.code) == (0, 0, 2)


def test_a_ledger_that_has_seen_nothing_teaches_nothing(line: CommandLine, tmp_path: Path) -> None:
    """A clear error, and nothing written."""
    line.ask("simulate", cluster(tmp_path / "empty.json"))
    arriving = cluster(tmp_path / "next.json", ("q", "30"))

    answer = line.run("simulate", arriving, "--learn", str(line.ledger))
    missing = line.run("simulate", arriving, "--learn", str(tmp_path / "none.db"))

    assert (answer.code, missing.code) == (2, 2)
    assert "has seen no Pod to learn from" in answer.err


def test_pods_of_which_a_ledger_does_not_tell_what_they_asked_for_are_said(
    line: CommandLine, tmp_path: Path
) -> None:
    """A workload that lacks some of them is not what usually arrives."""
    line.ask("simulate", cluster(tmp_path / "seen.json", ("p", "50"), ("q", "30")))
    kept = tmp_path / "kept.db"
    with open_ledger(str(line.ledger), mode="read") as source:
        origin, events = source.head().origin, list(source.read_events())
    described = [each for each in events if isinstance(each.event, RequestDescribed)]
    with open_ledger(str(kept), mode="create") as target:
        writer = target.start_epoch("test", origin, "test", wall_us=events[0].envelope.wall_us)
        for each in events[1:]:
            if each is not described[-1]:
                new = NewEvent(
                    stream=each.envelope.stream,
                    event=each.event,
                    actor=each.envelope.actor,
                    idempotency_key=each.envelope.idempotency_key,
                    wall_us=each.envelope.wall_us,
                )
                writer.append([new])

    answer = line.run(
        "simulate", cluster(tmp_path / "next.json", ("n", "50")), "--learn", str(kept)
    )

    assert answer.code == 0
    assert "what they asked for is not in the log, they are not learned from: pods=1" in answer.err
