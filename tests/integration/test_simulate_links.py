"""`tenure simulate` picks GPUs by their links: measured, or suggested by where they sit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.topology import LinkMatrix, format_link_matrix
from tests.support.cli import CommandLine
from tests.support.links import SIXTEEN_TWO_ISLANDS, TWO_BY_FOUR_PCIE
from tests.support.objects import Json, Object, device, gpu_device, gpu_pod, node
from tests.support.topologies import EIGHT_GPU_DEVICE_TEXT, EIGHT_GPU_NVLINK

pytestmark = pytest.mark.integration


@pytest.fixture
def line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path / "run.db", capsys)


def simulated(line: CommandLine, *objects: Object) -> dict[str, tuple[str, list[int]]]:
    """Return node and GPU minors per placed Pod."""
    Path("in.json").write_text(json.dumps({"kind": "List", "items": objects}), encoding="utf-8")
    done = line.run("simulate", "in.json", "--now", "2026-03-02T09:00:00Z", "-o", "json")
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    return {
        item["name"]: (item["node"], [gpu["minor"] for gpu in item["devices"]["gpu"]])
        for item in document["placements"]
        if item["node"]
    }


def machine(name: str, text: str, gpus: Sequence[Object]) -> list[Object]:
    """Return a Node and its Device with this bandwidth matrix."""
    links = {"gpu": [{"name": "bandwidth", "topology": text}]}
    return [node(name), device(*gpus, name=name, topologies=links)]


def eight(text: str, name: str = "n1") -> list[Object]:
    """Return a machine of eight GPUs."""
    return machine(name, text, [gpu_device(minor, id=f"GPU-{name}-{minor}") for minor in range(8)])


def whole(name: str, count: int, **more: Json) -> Object:
    """Return a Pod for whole GPUs."""
    return gpu_pod({"nvidia.com/gpu": str(count)}, name=name, **more)


def member(name: str, count: int) -> Object:
    """Return one of two Pods of a GPU topology group."""
    prefix = "gputopology.scheduling.koordinator.sh"
    return whole(name, count, labels={f"{prefix}/name": "job", f"{prefix}/replica": "2"})


def test_the_proposals_job_gets_the_proposals_gpus(line: CommandLine) -> None:
    """GPU-topology proposal, Motivation: GPUs 0 to 3, 48.33 GB/s together, 96 in each Pod."""
    text = format_link_matrix(EIGHT_GPU_NVLINK)

    placed = simulated(line, *eight(text), member("a", 2), member("b", 2))

    assert placed == {"a": ("n1", [0, 3]), "b": ("n1", [1, 2])}


def test_the_proposals_device_object_decides(line: CommandLine) -> None:
    """In its matrix 2 to 3 is slow one way, so the quad without that link goes first."""
    placed = simulated(line, *eight(EIGHT_GPU_DEVICE_TEXT), whole("a", 4), whole("b", 2))

    assert placed == {"a": ("n1", [4, 5, 6, 7]), "b": ("n1", [0, 3])}


def test_small_pods_leave_the_whole_root_to_the_large_one(line: CommandLine) -> None:
    """After one GPU the next Pods fill its PCIe root, and four GPUs are still together."""
    pods = [whole("a", 1), whole("b", 1), whole("c", 2), whole("d", 4)]

    placed = simulated(line, *eight(format_link_matrix(TWO_BY_FOUR_PCIE)), *pods)

    assert [minors for _, minors in placed.values()] == [[0], [1], [2, 3], [4, 5, 6, 7]]


def test_sixteen_gpus_keep_an_island_whole(line: CommandLine) -> None:
    """Six of the first island leave the second to eight."""
    text = format_link_matrix(SIXTEEN_TWO_ISLANDS)
    gpus = [gpu_device(minor) for minor in range(16)]

    placed = simulated(line, *machine("n1", text, gpus), *(whole(f"p{n}", n) for n in (2, 4, 8)))

    assert [minors for _, minors in placed.values()] == [
        [0, 1],
        [2, 3, 4, 5],
        [8, 9, 10, 11, 12, 13, 14, 15],
    ]


def test_an_unhealthy_gpu_has_no_links(line: CommandLine) -> None:
    """Three GPUs use up the root that lacks one, four take the other."""
    gpus = [gpu_device(minor) for minor in range(8)]
    gpus[1]["health"] = False
    text = format_link_matrix(TWO_BY_FOUR_PCIE)

    placed = simulated(line, *machine("n1", text, gpus), whole("a", 3), whole("b", 4))

    assert placed == {"a": ("n1", [0, 2, 3]), "b": ("n1", [4, 5, 6, 7])}


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "by place"])
def test_a_group_stays_under_one_root(line: CommandLine, *, measured: bool) -> None:
    """GPU 0 is taken: the group goes under the other root, matrix or no matrix."""
    gpus = [
        gpu_device(minor, topology={"nodeID": minor // 4, "pcieID": f"pci{minor // 4}"})
        for minor in range(8)
    ]
    text = format_link_matrix(TWO_BY_FOUR_PCIE)
    objects = machine("n1", text, gpus) if measured else [node("n1"), device(*gpus)]

    placed = simulated(line, *objects, whole("first", 1), member("a", 2), member("b", 2))

    assert placed == {"first": ("n1", [0]), "a": ("n1", [4, 5]), "b": ("n1", [6, 7])}


def test_an_unrelated_node_changes_no_pick(line: CommandLine) -> None:
    """Whatever stands beside it, a node's GPUs are picked by its own matrix."""
    text = format_link_matrix(LinkMatrix(rows=tuple(zip(*EIGHT_GPU_NVLINK.rows, strict=True))))
    pods = [whole(f"p{number}", count) for number, count in enumerate((2, 1, 3, 1))]
    other = [*eight(EIGHT_GPU_DEVICE_TEXT, "n0")]
    other[0]["spec"]["unschedulable"] = True

    alone = simulated(line, *eight(text), *pods)
    beside = simulated(line, *other, *eight(text), *pods)

    assert alone == beside
