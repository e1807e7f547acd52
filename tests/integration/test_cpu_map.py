from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.cpu_objects import cpu_node, cpu_pod, kubelet_pin, written

TOPOLOGY = json.dumps(
    {
        "detail": [
            {"id": thread * 12 + core, "core": core, "socket": 0, "node": core // 6}
            for thread in range(2)
            for core in range(12)
        ]
    }
)
ZONES = [
    {
        "name": f"node-{numa}",
        "type": "Node",
        "resources": [
            {"name": "memory", "capacity": "64Gi", "allocatable": "64Gi", "available": "64Gi"}
        ],
    }
    for numa in range(2)
]


def node(**labels: str) -> list[dict[str, Any]]:
    """Return machine X of the contract, CPUs 0 and 12 kept by kubelet."""
    kubelet = json.dumps({"policy": "none", "reservedCPUs": "0,12"})
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "x", "labels": labels},
            "status": {"allocatable": {"cpu": "24", "memory": "128Gi"}},
        },
        {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": "x",
                "annotations": {
                    "node.koordinator.sh/cpu-topology": TOPOLOGY,
                    "kubelet.koordinator.sh/cpu-manager-policy": kubelet,
                },
            },
            "topologyPolicies": [],
            "zones": ZONES,
        },
    ]


def pod(name: str, cpu: str, qos: str = "LSR", *, on: str = "", cpuset: str = "") -> dict[str, Any]:
    """Return a Pod; a running one has its CPUs."""
    amounts = {"cpu": cpu, "memory": "8Gi"}
    status = json.dumps({"cpuset": cpuset})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "labels": {"koordinator.sh/qosClass": qos},
            "annotations": {"scheduling.koordinator.sh/resource-status": status} if cpuset else {},
        },
        "spec": {
            **({"nodeName": on} if on else {}),
            "containers": [{"name": "m", "resources": {"requests": amounts, "limits": amounts}}],
        },
        "status": {"phase": "Running" if on else "Pending"},
    }


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a ledger of its own."""
    return CommandLine(ledger=tmp_path / "x.db", capture=capsys)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A node whose NUMA policy is strict, two Pods that wait and one that runs."""
    strict = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}
    items = [
        *node(**strict),
        pod("run", "2", on="x", cpuset="1,13"),
        pod("a", "4"),
        pod("share", "1500m", "LS"),
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def test_the_map_of_files_shows_what_runs_and_what_is_kept_back(
    line: CommandLine, files: Path
) -> None:
    """A column a core, a line a thread; the letters are named below."""
    shown = line.run("map", "--cpus", str(files))

    assert shown.code == 0
    assert shown.out.splitlines()[:6] == [
        "x  1 socket, 2 NUMA nodes, 12 cores, 24 CPUs: 2 held, 20 free, 2 kept back",
        "  socket 0 numa 0 #a....  4 cores free",
        "                  #a....",
        "  socket 0 numa 1 ......  6 cores free",
        "                  ......",
        "  a ml/run: 2 CPUs, 1,13 (not by Tenure)",
    ]


def test_the_map_of_files_shows_the_pools(line: CommandLine, tmp_path: Path) -> None:
    """CPU proposal, basic principle 2: shared per NUMA node, best effort, exclusive."""
    items = [
        *node(),
        pod("lse", "2", "LSE", on="x", cpuset="1,13"),
        pod("lsr", "2", on="x", cpuset="6,18"),
    ]
    path = tmp_path / "pools.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    shown = line.run("map", "--cpus", str(path)).out.splitlines()
    (document,) = json.loads(line.run("map", "--cpus", str(path), "-o", "json").out)

    assert shown[7:11] == [
        "  shared pool, socket 0 numa 0: 0,2-5,12,14-17",
        "  shared pool, socket 0 numa 1: 7-11,19-23",
        "  best effort: 0,2-12,14-23, first 0,12",
        "  exclusive: 1,6,13,18",
    ]
    assert document["pools"] == {
        "shared": [
            {"socket": 0, "node": 0, "cpuset": "0,2-5,12,14-17"},
            {"socket": 0, "node": 1, "cpuset": "7-11,19-23"},
        ],
        "best_effort": [
            {"socket": 0, "node": 0, "cpuset": "0,2-5,12,14-17"},
            {"socket": 0, "node": 1, "cpuset": "6-11,18-23"},
        ],
        "best_effort_first": "0,12",
        "exclusive": "1,6,13,18",
    }


def test_the_map_of_a_ledger_shows_what_was_decided(line: CommandLine, files: Path) -> None:
    """The strict policy takes one NUMA node for CPUs and memory, and says so on the Pod."""
    run = json.loads(line.ask("simulate", str(files), "-o", "json").out)
    placed = {entry["name"]: entry for entry in run["placements"]}

    shown = line.ask("map", "--cpus")

    assert placed["a"]["cpuset"] == "6-7,18-19"
    assert placed["share"]["cpuSharedPools"] == [{"node": 0, "socket": 0}]
    assert shown.out.splitlines()[0].endswith("6 held, 16 free, 2 kept back")
    assert "  b ml/a: 4 CPUs, 6-7,18-19" in shown.out.splitlines()
    assert "  best effort: 1-11,13-23, first 0,12" not in shown.out.splitlines()
    assert "  best effort: 0-23, first 0,12" in shown.out.splitlines()


def test_the_map_of_a_ledger_is_that_of_the_cluster_that_the_run_leaves(
    line: CommandLine, tmp_path: Path
) -> None:
    """
    Holders, what is kept back and pools, from the ledger alone.

    What was placed, written on Pods that run, gives the same map: it differs in who gave what.
    """
    runs = [pod("lse", "2", "LSE", on="x", cpuset="1,13"), pod("lsr", "2", on="x", cpuset="6,18")]
    waits = [pod("own", "4"), pod("alone", "2", "LSE")]
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"kind": "List", "items": [*node(), *runs, *waits]}))
    done = json.loads(line.ask("simulate", str(before), "-o", "json").out)
    given = {entry["name"]: entry["cpuset"] for entry in done["placements"]}
    placed = [pod("own", "4", on="x", cpuset=given["own"])]
    placed.append(pod("alone", "2", "LSE", on="x", cpuset=given["alone"]))
    after.write_text(json.dumps({"kind": "List", "items": [*node(), *runs, *placed]}))

    (told,) = json.loads(line.ask("map", "--cpus", "-o", "json").out)
    (shown,) = json.loads(line.run("map", "--cpus", str(after), "-o", "json").out)

    assert told["pools"]["best_effort_first"] == "0,12"
    assert [each.pop("observed") for each in told["holders"]].count(True) == 2
    assert all(each.pop("observed") for each in shown["holders"])
    assert told == shown


def test_the_map_of_a_ledger_is_that_of_the_files_that_nothing_was_placed_of(
    line: CommandLine, tmp_path: Path
) -> None:
    """Pods of every class that run, one that kubelet pinned; to the letter, at any moment."""
    objects = [
        *cpu_node(
            cpu_manager_policy={"policy": "static", "reservedCPUs": "0,12"},
            pod_cpu_allocs=[kubelet_pin("pinned", "7,19")],
        ),
        cpu_pod("lse", "2", "LSE", on="x", status={"cpuset": "1,13"}),
        cpu_pod("lsr", "2", on="x", status={"cpuset": "6,18"}),
        cpu_pod("pinned", "2", "", on="x"),
    ]
    path = written(tmp_path, objects)
    done = line.ask("simulate", path)
    assert done.code == 0, done.err

    drawn = line.run("map", "--cpus", path)

    assert "  best effort: 0,2-6,8-12,14-18,20-23, first 0,12" in drawn.out
    assert line.ask("map", "--cpus").out == drawn.out
    assert line.ask("map", "--cpus", "--at", "now").out == drawn.out


def test_each_cpu_is_a_row_with_its_holders(line: CommandLine, files: Path) -> None:
    """For spreadsheets and scripts."""
    rows = list(csv.DictReader(io.StringIO(line.run("map", "--cpus", str(files), "-o", "csv").out)))
    document = json.loads(line.run("map", "--cpus", str(files), "-o", "json").out)[0]

    assert len(rows) == 24
    assert rows[12] == {
        "node": "x",
        "socket": "0",
        "numa": "0",
        "core": "0",
        "cpu": "12",
        "reserved": "true",
        "holders": "",
    }
    assert {row["cpu"]: row["holders"] for row in rows if row["holders"]} == {
        "1": "ml/run",
        "13": "ml/run",
    }
    assert document["free_whole_cores"] == {"0": 4, "1": 6}
    assert document["held"] == "1,13"


def test_a_cluster_without_cpu_topology_is_said_to_have_none(
    line: CommandLine, tmp_path: Path
) -> None:
    """No empty drawing."""
    path = tmp_path / "n.json"
    path.write_text(json.dumps(node()[0]))

    assert line.run("map", "--cpus", str(path)).out.startswith("no node reports its CPUs")


def test_watching_cpus_is_refused(line: CommandLine, files: Path) -> None:
    """The map of cards is what is watched."""
    shown = line.run("map", "--cpus", "--watch", str(files))

    assert shown.code == 2
    assert "--watch" in shown.err
