import csv
import json
from pathlib import Path

import pytest

from tenure.simulate.trace.shapes import NODE_COLUMNS, POD_COLUMNS, write_openb_like
from tenure.simulate.trace.week import write_week


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_same_seed_and_size_give_the_same_bytes(tmp_path: Path) -> None:
    """A generated trace is a function of its arguments."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_week(tmp_path / name, nodes=12, pods=100, seed=7)
        write_openb_like(tmp_path / name, nodes=12, seed=7)

    assert _files(tmp_path / "a") == _files(tmp_path / "b")


def test_another_seed_gives_another_trace(tmp_path: Path) -> None:
    """The seed is used."""
    for seed in (1, 2):
        directory = tmp_path / str(seed)
        directory.mkdir()
        write_openb_like(directory, nodes=12, seed=seed)

    assert _files(tmp_path / "1") != _files(tmp_path / "2")


def test_the_openb_files_have_the_published_columns_and_ratio(tmp_path: Path) -> None:
    """Any reader of the openb format reads a generated trace."""
    summary = write_openb_like(tmp_path, nodes=1213, seed=42)

    with (tmp_path / "nodes.csv").open() as file:
        nodes = list(csv.DictReader(file))
    with (tmp_path / "pods.csv").open() as file:
        pods = list(csv.DictReader(file))
    assert tuple(nodes[0]) == NODE_COLUMNS
    assert tuple(pods[0]) == POD_COLUMNS
    assert summary == {"nodes": 1213, "pods": 8152}
    assert sum(int(node["gpu"]) for node in nodes) == 6212
    asked = sum(int(pod["num_gpu"]) * int(pod["gpu_milli"]) for pod in pods) / 6_212_000
    assert 0.9 < asked < 1.06


@pytest.mark.parametrize(
    "dialect",
    [
        "nvidia.com/gpu",
        "koordinator.sh/gpu-core",
        "kubernetes.io/gpu",
        "vke.volcengine.com/mgpu-core",
        "aliyun.com/gpu-mem",
        "koordinator.sh/rdma",
    ],
)
def test_the_week_speaks_every_dialect(tmp_path: Path, dialect: str) -> None:
    """A demo that left a dialect out would prove nothing about it."""
    write_week(tmp_path, nodes=20, pods=800, seed=42)

    manifests = [json.loads(line) for line in (tmp_path / "pods.jsonl").read_text().splitlines()]
    requests = [pod["spec"]["containers"][0]["resources"]["requests"] for pod in manifests]
    assert any(dialect in request for request in requests)


def test_the_week_has_a_card_that_dies_for_good(tmp_path: Path) -> None:
    """One fault is never followed by a recovery."""
    write_week(tmp_path, nodes=20, pods=50, seed=42)

    with (tmp_path / "schedule.csv").open() as file:
        rows = list(csv.DictReader(file))
    failed = {row["object"] for row in rows if row["event"] == "fail"}
    recovered = {row["object"] for row in rows if row["event"] == "recover"}
    assert len(failed - recovered) == 1


def test_the_schedule_is_in_order_and_names_every_pod_once(tmp_path: Path) -> None:
    """The virtual clock never goes back."""
    write_week(tmp_path, nodes=20, pods=200, seed=42)

    with (tmp_path / "schedule.csv").open() as file:
        rows = list(csv.DictReader(file))
    times = [int(row["at_seconds"]) for row in rows]
    arrived = [row["object"] for row in rows if row["event"] == "arrive"]
    assert times == sorted(times)
    assert len(arrived) == len(set(arrived)) == 200
