"""Commands that only look go on where an object can't be read: it is named, the rest is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Answer, CommandLine
from tests.support.objects import (
    Object,
    container,
    device,
    gpu_device,
    node,
    nrt,
    pod,
)

pytestmark = pytest.mark.integration

NOW = ("--now", "2026-03-02T00:00:00Z")
ROOM = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": 2}
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
SPEC = "scheduling.koordinator.sh/resource-spec"
CARD = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "none.db", capsys)


def told(line: CommandLine, *objects: Object) -> Answer:
    """Return what the map says of these objects."""
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return line.run("map", str(path), "-o", "csv")


def simulated(line: CommandLine) -> Answer:
    """Return what a simulation of the same objects says."""
    return line.ask("simulate", str(line.ledger.parent / "in.json"), *NOW)


def running(name: str, on: str, *, limits: Object, **annotations: object) -> Object:
    """Return a Pod that runs; keywords are annotations of Koordinator."""
    keys = {"allocated": ALLOCATED, "spec": SPEC}
    texts = {keys[key]: value for key, value in annotations.items()}
    return pod(container(limits=limits), name=name, uid=name, nodeName=on, annotations=texts)


def on_card(minor: int) -> Object:
    """Return the annotation of a Pod that has all of a card."""
    return {"gpu": [{"minor": minor, "resources": CARD}]}


def healthy() -> list[Object]:
    """Return a node with a Device object and a Pod on its first card: what has to be told."""
    return [
        node("whole", allocatable={"cpu": "8", "memory": "8Gi"}),
        device(gpu_device(0), gpu_device(1), name="whole"),
        running("fine", "whole", limits=CARD, allocated=on_card(0)),
    ]


def held(answer: Answer, on: str) -> list[tuple[str, str, str]]:
    """Return what is held of each card of a node, and who is on it that nobody can place."""
    head, *lines = [text.split(",") for text in answer.out.splitlines()]
    rows = [dict(zip(head, each, strict=True)) for each in lines]
    return [
        (row["minor"], row["level_percent"], row["unknown_holders"])
        for row in rows
        if row["node"] == on
    ]


BROKEN: dict[str, tuple[list[Object], str, str, list[tuple[str, str, str]]]] = {
    "a Pod's allocation": (
        [
            node("odd", allocatable=ROOM),
            running("bad", "odd", limits={"nvidia.com/gpu": 1}, allocated="{"),
        ],
        "Pod ml/bad",
        ALLOCATED,
        [("0", "0", "ml/bad"), ("1", "0", "ml/bad")],
    ),
    "a Pod's CPUs, beside an allocation that can be read": (
        [
            node("odd", allocatable={"cpu": "8"}),
            device(gpu_device(0, id="GPU-8"), gpu_device(1, id="GPU-9"), name="odd"),
            running("bad", "odd", limits=CARD, allocated=on_card(1), spec="{"),
        ],
        "Pod ml/bad",
        SPEC,
        [("0", "0", ""), ("1", "100", "")],
    ),
    "a Pod's request": (
        [
            node("odd", allocatable=ROOM),
            running("bad", "odd", limits={"nvidia.com/gpu": "one"}),
        ],
        "Pod ml/bad",
        "spec.containers[0].resources.limits[nvidia.com/gpu]",
        [("0", "0", "ml/bad"), ("1", "0", "ml/bad")],
    ),
    "a Node's annotation": (
        [node("odd", allocatable=ROOM, annotations={"node.koordinator.sh/reservation": "{"})],
        "Node odd",
        "node.koordinator.sh/reservation",
        [("0", "0", ""), ("1", "0", "")],
    ),
    "a topology": (
        [node("odd", allocatable=ROOM), nrt("odd", cpu_topology="{")],
        "NodeResourceTopology odd",
        "node.koordinator.sh/cpu-topology",
        [("0", "0", ""), ("1", "0", "")],
    ),
    "a Device, so that its cards are not known": (
        [
            node("odd", allocatable=ROOM),
            device({**gpu_device(0), "resources": {"koordinator.sh/gpu-core": "x"}}, name="odd"),
        ],
        "Device odd",
        "spec.devices[0].resources[koordinator.sh/gpu-core]",
        [],
    ),
    "a quota": (
        [
            node("odd", allocatable=ROOM),
            {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "x"}}},
        ],
        "ResourceQuota default/q",
        "spec.hard[pods]",
        [("0", "0", ""), ("1", "0", "")],
    ),
    "a Pod that has ended": (
        [
            node("odd", allocatable=ROOM),
            pod(container(limits={"cpu": "x"}), name="bad", nodeName="odd", phase="Failed"),
        ],
        "Pod ml/bad",
        "spec.containers[0].resources.limits[cpu]",
        [("0", "0", ""), ("1", "0", "")],
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_broken_object_is_named_and_hides_nothing(
    line: CommandLine, case: tuple[list[Object], str, str, list[tuple[str, str, str]]]
) -> None:
    """cli.md, exit code 2: named, counted as unknown, and gone on; who decides still refuses."""
    objects, name, field, cards = case
    answer = told(line, *healthy(), *objects)

    assert answer.code == 0
    assert held(answer, "whole") == [("0", "100", ""), ("1", "0", "")]
    assert held(answer, "odd") == cards
    (said,) = [text for text in answer.err.splitlines() if text.startswith(f"warning: {name}: ")]
    assert field in said
    refused = simulated(line)
    assert refused.code == 2
    assert name in refused.err


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_plan_goes_on_where_an_object_is_broken(
    line: CommandLine,
    case: tuple[list[Object], str, str, list[tuple[str, str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Out of files alone: it is named, and nothing is planned on a card that it may hold."""
    monkeypatch.delenv("TENURE_LEDGER", raising=False)
    objects, name, field, cards = case
    told(line, *healthy(), *objects)
    dump = ("--objects", str(line.ledger.parent / "in.json"), "-o", "json")
    wanted = line.ledger.parent / "wanted.json"
    wanted.write_text(json.dumps(running("wanted", "", limits=CARD)))

    answer = line.run("defrag", "plan", "-f", str(wanted), "--keep", "ml/fine", *dump)

    assert answer.code == 0
    place = json.loads(answer.out)["plan"]["place"]
    free = {("whole", 1)} | {("odd", int(minor)) for minor, level, who in cards if not who + level}
    assert (place["node"], place["devices"][0]["minor"]) in free
    (said,) = [text for text in answer.err.splitlines() if text.startswith(f"warning: {name}: ")]
    assert field in said


def test_what_would_help_is_told_where_an_object_is_broken(line: CommandLine) -> None:
    """Beside a ledger: the broken Pod of the file is named, and a way is found."""
    waits = running("waits", "", limits={"koordinator.sh/gpu": 200})
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": [*healthy(), waits]}))
    assert line.ask("simulate", str(path), *NOW).code == 0
    odd = running("odd", "whole", limits=CARD, allocated="{")
    path.write_text(json.dumps({"kind": "List", "items": [*healthy(), waits, odd]}))

    answer = line.ask("why", "ml/waits", "--objects", str(path), "-o", "json")

    assert answer.code == 0
    assert json.loads(answer.out)["nearest"]["ending"]["pods"] == ["ml/fine"]
    assert any(text.startswith("warning: Pod ml/odd: ") for text in answer.err.splitlines())


def test_every_broken_object_is_named(line: CommandLine) -> None:
    """One after the other, also several of one Pod."""
    many = [
        running(f"bad{number}", "odd", limits={"nvidia.com/gpu": 1}, allocated="{", spec="[")
        for number in range(3)
    ]
    answer = told(line, *healthy(), node("odd", allocatable={**ROOM, "nvidia.com/gpu": 8}), *many)

    named = [text for text in answer.err.splitlines() if text.startswith("warning: Pod ml/bad")]
    assert len(named) == 6
    assert held(answer, "whole") == [("0", "100", ""), ("1", "0", "")]
    assert {who for *_, who in held(answer, "odd")} == {"ml/bad0 ml/bad1 ml/bad2"}
