from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.machine_z import (
    ANY_VF,
    GPU,
    HINT,
    JOINT,
    PARTITION,
    RDMA,
    SAME_PCIE,
    WHOLE,
    bus_id,
    machine_z_devices,
)
from tests.support.objects import Object, device, gpu_pod, node

pytestmark = pytest.mark.integration

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
ALL_NICS: Final = {"rdma": {"vfSelector": {}, "allocateStrategy": "ApplyForAll"}}
PODS: Final[dict[str, tuple[Object, Object]]] = {
    "pair": ({WHOLE: 2, RDMA: 1}, {JOINT: SAME_PCIE, HINT: ANY_VF}),
    "part": ({GPU: 50, RDMA: 1}, {JOINT: SAME_PCIE, HINT: ANY_VF}),
    "every": ({RDMA: 1}, {HINT: ALL_NICS}),
    "parted": ({WHOLE: 1}, {PARTITION: {}}),
    "last": ({RDMA: 1}, {HINT: ANY_VF}),
    "late": ({RDMA: 1}, {HINT: ANY_VF}),
    "wide": ({WHOLE: 2}, {HINT: {"gpu": {"requiredTopologyScope": "Device"}}}),
}


@pytest.fixture
def line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line in a folder with machine Z and its Pods."""
    monkeypatch.chdir(tmp_path)
    objects = [
        node("n1", allocatable={"cpu": "64", "memory": "256Gi"}),
        device(*machine_z_devices(), name="n1"),
        *(
            gpu_pod(limits, name=name, annotations=annotations)
            for name, (limits, annotations) in PODS.items()
        ),
    ]
    text = json.dumps({"kind": "List", "items": objects})
    (tmp_path / "in.json").write_text(text, encoding="utf-8")
    return CommandLine(tmp_path / "run.db", capsys)


def test_a_function_that_a_running_pod_holds_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """cli.md, Running Pods: VFs are adopted with their NIC."""
    monkeypatch.chdir(tmp_path)
    held = {"minor": 10, "resources": {RDMA: "1"}, "extension": {"vfs": [{"busID": bus_id(10, 0)}]}}
    running = gpu_pod({RDMA: 1}, name="runs", annotations={ALLOCATED: {"rdma": [held]}})
    running["spec"]["nodeName"] = "n1"
    objects = [
        node("n1", allocatable={"cpu": "64", "memory": "256Gi"}),
        device(*machine_z_devices(), name="n1"),
        running,
        gpu_pod({RDMA: 1}, name="next", annotations={HINT: ANY_VF}),
    ]
    Path("in.json").write_text(json.dumps({"kind": "List", "items": objects}), encoding="utf-8")
    line = CommandLine(tmp_path / "run.db", capsys)

    done = line.run("simulate", "in.json", "-o", "json")

    (entry,) = json.loads(done.out)["placements"]
    (nic,) = json.loads(entry["annotations"][ALLOCATED])["rdma"]
    assert (nic["minor"], nic["extension"]) == (
        10,
        {"vfs": [{"busID": bus_id(10, 1), "minor": 1}]},
    )


def test_wishes_are_honoured_written_and_guarded(line: CommandLine) -> None:
    """From manifests to annotations, refusals per node, and the ledger's slots for VFs."""
    done = line.ask("simulate", "in.json", "--now", "2026-03-02T09:00:00Z", "-o", "json")
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    by_name = {entry["name"]: entry for entry in document["placements"]}

    def functions(name: str) -> list[tuple[int, str, int]]:
        allocated = json.loads(by_name[name]["annotations"][ALLOCATED])
        return [
            (entry["minor"], vf["busID"], vf.get("minor", 0))
            for entry in allocated["rdma"]
            for vf in entry["extension"]["vfs"]
        ]

    assert [card["minor"] for card in by_name["pair"]["devices"]["gpu"]] == [0, 1]
    assert functions("pair") == [(10, bus_id(10, 0), 0)]
    assert [card["minor"] for card in by_name["part"]["devices"]["gpu"]] == [2]
    assert functions("part") == [(11, bus_id(11, 0), 0)]
    assert functions("every") == [
        (10, bus_id(10, 1), 1),
        (11, bus_id(11, 1), 1),
        (12, bus_id(12, 0), 0),
    ]
    assert functions("last") == [(12, bus_id(12, 1), 1)]
    refusals = {name: by_name[name]["unschedulable"]["nodes"] for name in ("parted", "late")}
    assert refusals == {
        "parted": {"n1": ["node(s) missing GPU Partition Table"]},
        "late": {"n1": ["Insufficient rdma devices"]},
    }
    assert "not supported by this release" in by_name["wide"]["unschedulable"]["message"]

    with sqlite3.connect(line.ledger) as ledger:
        slots = ledger.execute("SELECT slot FROM ledger_slot_holdings ORDER BY slot").fetchall()
    assert [slot for (slot,) in slots] == [
        bus_id(nic, function) for nic in (10, 11, 12) for function in (0, 1)
    ]
    assert line.ask("verify").code == 0
