"""Of machines with several Nodes, lost ones and cloned ids a ledger draws what its dump does."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ledger.store.open import open_ledger
from tenure.picture import picture_of_ledger
from tests.property.test_one_picture import (
    CLOSED,
    NOW,
    by_name,
    picture_of_dump,
    running,
    written,
)
from tests.support.cli import CommandLine
from tests.support.examples import examples
from tests.support.objects import Object, device, gpu_device, node

SEEDS = range(examples(120))
BASE = {"cpu": "64", "memory": "256Gi", "pods": "110"}
MACHINES = ("S", "S", "T", "")
TAINT = "node.kubernetes.io/out-of-service"
IDS = [f"GPU-{number}" for number in range(5)]


def machine(name: str, cards: list[str], rng: Random) -> list[Object]:
    """A Node with these cards in any order, or none."""
    spec: Object = dict(rng.choice(CLOSED))
    if rng.random() < 0.35:
        effect = rng.choice(("NoExecute", "NoSchedule", "PreferNoSchedule"))
        taint = {"key": TAINT, "value": "nodeshutdown", "effect": effect}
        spec["taints"] = [*spec.get("taints", ()), taint]
    body = node(name, allocatable=BASE, **spec)
    body["metadata"] |= {"uid": f"uid-{name}"}
    if rng.random() < 0.7:
        body["metadata"]["creationTimestamp"] = f"2026-03-0{rng.randint(1, 3)}T00:00:00Z"
    listed = rng.sample(cards, len(cards))
    gpus = [
        gpu_device(minor, id=each, health=rng.random() < 0.85) for minor, each in enumerate(listed)
    ]
    return [body, device(*gpus, name=name)]


def a_dump(seed: int) -> list[Object]:
    """Nodes of few machines, which may list ids of one another, and Pods that run through them."""
    rng = Random(seed)
    cards = {told: rng.sample(IDS, rng.randint(1, 3)) for told in MACHINES}
    names = [f"n{number}" for number in range(rng.randint(1, 4))]
    items: list[Object] = []
    for name in names:
        told = rng.choice(MACHINES)
        body, listed = machine(name, cards[told], rng)
        body["status"]["nodeInfo"] = {"systemUUID": told, "machineID": f"M{told}"}
        items += [body, listed]
    for number in range(rng.randint(0, 4)):
        minor = None if rng.random() < 0.3 else rng.randrange(3)
        on, percent = rng.choice(names), rng.choice((100, 50, 20))
        items.append(running(f"p{number}", on, minor, percent))
    return items


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ledger_has_the_machines_of_its_dump(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Node by node, what is held twice, and what one object says against another."""
    line = CommandLine(tmp_path / "run.db", capsys)
    path = written(tmp_path / "dump.json", a_dump(seed))
    drawn = picture_of_dump(path)
    told = line.ask("simulate", str(path), "--now", NOW, "-o", "json")
    assert told.code == 0, told.err

    with open_ledger(str(line.ledger), mode="read") as ledger:
        of_ledger = picture_of_ledger(ledger, None)
        assert by_name(of_ledger) == by_name(drawn)
        assert of_ledger.double == drawn.double
        assert sorted(map(str, of_ledger.contradictions)) == sorted(map(str, drawn.contradictions))
        assert (of_ledger.summary, of_ledger.parts) == (drawn.summary, drawn.parts)
