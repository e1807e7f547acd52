"""What the map says that a Pod could get of a node whole is what a simulation gives one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ledger.store.open import open_ledger
from scheduler.usage.picture import exactly
from tenure.picture import picture_of_ledger
from tests.property.test_one_picture import NOW, picture_of_dump, written
from tests.support.cli import CommandLine
from tests.support.examples import examples
from tests.support.objects import Object, container, device, gpu_device, node, pod

SEEDS = range(examples(60))
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
MGPU = "vke.volcengine.com/mgpu-core"
POLICY = "node.koordinator.sh/numa-topology-policy"
BASE = {"cpu": "64", "memory": "256Gi", "pods": "110"}
ASKS: tuple[Object, ...] = (
    {"nvidia.com/gpu": 1},
    {"nvidia.com/gpu": 2},
    {CORE: 100, RATIO: 100},
    {CORE: 50, RATIO: 50},
    {MGPU: 50, "vke.volcengine.com/mgpu-memory": 8000},
)


def a_node(cards: int, rng: Random) -> Iterator[Object]:
    """A node of a plain plugin, with a Device, or of mGPU; some align their cards."""
    kind = rng.choice(("plugin", "device", "mgpu"))
    offers = {
        "plugin": {"nvidia.com/gpu": cards},
        "device": {},
        "mgpu": {MGPU: 100 * cards, "vke.volcengine.com/mgpu-memory": 16000 * cards},
    }[kind]
    labels = {POLICY: "SingleNUMANode"} if rng.random() < 0.2 else {}
    yield node("n", allocatable={**BASE, **offers}, labels=labels)
    if kind == "device":
        gpus = [gpu_device(minor, health=rng.random() < 0.85) for minor in range(cards)]
        yield device(*gpus, name="n")


def running(name: str, cards: int, rng: Random) -> Object:
    """A Pod that runs on a card that it may name, which the node may lack."""
    part = {CORE: str(rng.choice((50, 100))), RATIO: "50"}
    entry = {"minor": rng.randrange(cards + 1), "resources": part}
    told = {"scheduling.koordinator.sh/device-allocated": {"gpu": [entry]}}
    return pod(
        container(limits=rng.choice(ASKS)),
        name=name,
        uid=name,
        nodeName="n",
        phase="Running",
        annotations=told if rng.random() < 0.3 else {},
    )


def most_given(line: CommandLine, items: list[Object], cards: int, folder: Path) -> int:
    """How many whole cards a Pod gets at most, by whichever resource it asks."""
    given = 0
    for count in range(1, cards + 1):
        for limits in ({"nvidia.com/gpu": count}, {CORE: 100 * count, RATIO: 100 * count}):
            wants = pod(container(limits=limits), name="wants", uid="wants")
            path = written(folder / "asked.json", [*items, wants])
            told = line.run("simulate", str(path), "--now", NOW, "-o", "json")
            assert told.code == 0, told.err
            given = count if json.loads(told.out)["placements"][-1]["node"] else given
    return given


@pytest.mark.parametrize("seed", SEEDS)
def test_where_nobody_knows_which_cards_are_held_as_many_are_gettable_as_are_given(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By count to a plain request where the node serves one, else none; of both sources alike."""
    rng, line = Random(seed), CommandLine(tmp_path / "run.db", capsys)
    cards = rng.randint(1, 4)
    items = list(a_node(cards, rng))
    items += [running(f"r{number}", cards, rng) for number in range(rng.randint(1, 3))]
    path = written(tmp_path / "dump.json", items)
    drawn = picture_of_dump(path)
    assert line.ask("simulate", str(path), "--now", NOW).code == 0
    with open_ledger(str(line.ledger), mode="read") as ledger:
        assert picture_of_ledger(ledger, None).nodes == drawn.nodes

    (there,) = drawn.nodes
    if any(group.unplaced for group in there.groups) or drawn.contradictions:
        assert drawn.summary.gettable == exactly(most_given(line, items, cards, tmp_path))
