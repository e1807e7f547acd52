"""`tenure simulate FILE --schedule CSV`: what changes, and what the ledger says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import Object, container, device, gpu_device, node, pod

pytestmark = pytest.mark.integration

GROUP: Final = "gputopology.scheduling.koordinator.sh/"
NOW: Final = ("--now", "2026-03-02T00:00:00Z")
HEADER: Final = "at_seconds,event,object,value\n"
ROWS: Final = (
    "0,arrive,ml/w0,600\n"
    "300,arrive,ml/w1,\n"
    "60,lose,a,power\n"
    "120,return,a,\n"
    "180,label,b,zone=y\n"
    "240,fail,a/gpu/1,Xid79\n"
    "400,delete,ml/w1,preempted\n"
    "900,clear,a,it was switched off\n"
)


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Two nodes of two GPUs and a group of two in `in.json`; the schedule in `s.csv`."""
    labels = {f"{GROUP}name": "job", f"{GROUP}replica": "2"}
    objects: list[Object] = []
    for name in "ab":
        objects.append(node(name, labels={"zone": "x"}))
        objects.append(device(*(gpu_device(i, id=f"{name}-{i}") for i in range(2)), name=name))
    objects += [
        pod(
            container(limits={"nvidia.com/gpu": 1}),
            name=name,
            labels=labels,
            nodeSelector={"zone": "x"},
        )
        for name in ("w0", "w1")
    ]
    (tmp_path / "in.json").write_text(json.dumps({"kind": "List", "items": objects}))
    (tmp_path / "s.csv").write_text(HEADER + ROWS)
    return CommandLine(tmp_path / "run.db", capsys)


def simulated(line: CommandLine, *more: str) -> Object:
    """Run it into the ledger of the line."""
    folder = line.ledger.parent
    files = (str(folder / "in.json"), "--schedule", str(folder / "s.csv"))
    answer = line.run("simulate", *files, *NOW, "-o", "json", "--ledger", str(line.ledger), *more)
    assert answer.code == 0, answer.err
    told: Object = json.loads(answer.out)
    return told


def holders(line: CommandLine, what: str, at: str) -> list[str]:
    """Return who held a card at a moment."""
    answer = line.ask("who", what, "--at", f"2026-03-02T00:{at}Z", "-o", "json")
    return [each["pod"] for each in json.loads(answer.out)["holders"]]


def test_the_ledger_says_what_happened_and_when(line: CommandLine) -> None:
    """A node lost and back, labels changed, a GPU dead, a Pod deleted: all of it can be asked."""
    told = simulated(line)

    assert [placement["node"] for placement in told["placements"]] == ["a", None]
    sql = "select event_type from ledger_events order by position"
    rows = json.loads(line.ask("ledger", "sql", sql, "-o", "json").out)
    happened = [row["event_type"].split(".v")[0] for row in rows]
    assert happened[happened.index("pod.reserved") + 1 :] == [
        "node.lost",
        "group.plan_dropped",
        "node.inventoried",
        "node.inventoried",
        "device.health_changed",
        "group.planned",
        "request.refused",
        "node.cleared",
    ]
    assert holders(line, "a/0", "00:30") == holders(line, "a/0", "10:30") == ["w0"]
    assert holders(line, "a/0", "16:00") == []
    closed = line.ask("why", "a/1").out
    assert "Xid79" in closed
    refused = line.ask("why", "ml/w1").out
    assert "node(s) didn't match Pod's node affinity/selector" in refused
    assert line.ask("verify").code == 0
    assert "equal" in line.ask("ledger", "rebuild").out


def test_a_run_with_a_schedule_goes_on_where_it_was_interrupted(line: CommandLine) -> None:
    """The schedule is part of the inputs: another one is another run."""
    first = simulated(line)

    assert simulated(line, "--resume")["placements"] == first["placements"]
    (line.ledger.parent / "s.csv").write_text(HEADER)
    files = (str(line.ledger.parent / "in.json"), "--schedule", str(line.ledger.parent / "s.csv"))
    other = line.run("simulate", *files, *NOW, "--ledger", str(line.ledger), "--resume")
    assert other.code == 2
    assert "other inputs" in other.err


BAD: Final = {
    "an unknown node": ("1,lose,z,\n", "s.csv:2: object: there is no such Node: value='z'"),
    "an unknown event": ("1,lose,a,\n2,melt,a,\n", "s.csv:3: event: not one of arrive"),
    "a label that can't be read": (
        "1,label,a,node.koordinator.sh/numa-topology-policy\n",
        "s.csv:2: value: a label is set by KEY=VALUE",
    ),
}


@pytest.mark.parametrize(("rows", "fact"), BAD.values(), ids=BAD)
def test_a_bad_row_is_refused_with_its_place_and_nothing_is_written(
    line: CommandLine, rows: str, fact: str
) -> None:
    """Exit code 2, one message."""
    folder = line.ledger.parent
    (folder / "s.csv").write_text(HEADER + rows)
    files = (str(folder / "in.json"), "--schedule", str(folder / "s.csv"))

    answer = line.run("simulate", *files, "--ledger", str(line.ledger))

    assert answer.code == 2
    assert fact in answer.err
    assert not line.ledger.exists()
