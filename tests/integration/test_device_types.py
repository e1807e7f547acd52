from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from ledger.domain.request.normalise import decode_pod
from tests.support.cli import Answer, CommandLine
from tests.support.objects import Object, container, device, node, pod

pytestmark = pytest.mark.integration

XPU: Final = "koordinator.sh/xpu"
XPU_PROPOSAL: Final = "kubernetes.io/xpu"
XPU_MEMORY: Final = "koordinator.sh/xpu-memory"
NPU: Final = "example.com/npu"
TYPES: Final = {
    "xpu": {"resource": XPU, "memory": XPU_MEMORY, "aliases": [XPU_PROPOSAL]},
    "npu": {"resource": NPU, "unit": "count", "virtualFunctions": False},
}
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
GIB: Final = 2**30


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on a ledger of this test."""
    return CommandLine(tmp_path / "t.db", capsys)


def _card(kind: str, minor: int, resources: dict[str, str], root: str) -> Object:
    bus = f"{'0000' if kind == 'xpu' else '0001'}:{minor:02x}"
    return {
        "type": kind,
        "id": f"{kind}-{minor}",
        "minor": minor,
        "health": True,
        "resources": resources,
        "topology": {"socketID": 0, "nodeID": 0, "pcieID": root, "busID": f"{bus}:00.0"},
        "vfGroups": [{"labels": {"use": "train"}, "vfs": [{"minor": 7, "busID": f"{bus}:01.0"}]}],
    }


def _xpu(minor: int, root: str = "a") -> Object:
    return _card("xpu", minor, {XPU: "100", XPU_MEMORY: "32Gi"}, root)


def _npu(minor: int, root: str = "a") -> Object:
    return _card("npu", minor, {NPU: "1"}, root)


def _pod(name: str, limits: dict[str, str], /, **annotations: object) -> Object:
    keys = {"hint": HINT, "joint": JOINT, "allocated": ALLOCATED}
    return pod(
        container("c", limits=limits),
        name=name,
        annotations={keys[key]: value for key, value in annotations.items()},
    )


def _settings(place: Path, kind: str) -> str:
    path = place / f"{kind}.yaml"
    document = {"apiVersion": "tenure.sh/v1alpha1", "kind": kind, "deviceTypes": TYPES}
    path.write_text(yaml.safe_dump(document))
    return str(path)


def _write(place: Path, *objects: Object) -> str:
    path = place / "in.yaml"
    path.write_text(yaml.safe_dump_all(json.loads(json.dumps(objects))))
    return str(path)


def _simulated(cli: CommandLine, place: Path, *objects: Object, configured: bool = True) -> Object:
    config = ["--config", _settings(place, "SchedulerConfiguration")] if configured else []
    answer = cli.ask("simulate", _write(place, *objects), *config, "-o", "json")
    assert answer.code == 0, answer.err
    result: Object = json.loads(answer.out)
    return result


def _placement(result: Object, name: str) -> Object:
    found: Object = next(item for item in result["placements"] if item["name"] == name)
    return found


def test_an_invented_type_goes_from_its_device_object_to_the_answer_and_the_ledger(
    cli: CommandLine, tmp_path: Path
) -> None:
    """Percent, bytes, whole devices and refusals, from a few lines of settings alone."""
    result = _simulated(
        cli,
        tmp_path,
        node(),
        device(_xpu(0), _xpu(1), _npu(0), _npu(1)),
        _pod("half", {XPU: "50"}),
        _pod("bytes", {XPU_PROPOSAL: "20", XPU_MEMORY: "20Gi"}),
        _pod("two", {NPU: "2"}),
        _pod("third", {NPU: "1"}),
        _pod("odd", {XPU: "150"}),
        _pod("over", {XPU: "80", XPU_MEMORY: "20Gi"}),
    )
    half = _placement(result, "half")
    entry = {"minor": 0, "id": "xpu-0", "resources": {XPU: "50", XPU_MEMORY: str(16 * GIB)}}
    assert half["devices"] == {"xpu": [entry]}
    assert json.loads(half["annotations"][ALLOCATED]) == {"xpu": [entry]}
    (of_bytes,) = _placement(result, "bytes")["devices"]["xpu"]
    assert of_bytes == {
        "minor": 1,
        "id": "xpu-1",
        "resources": {XPU: "20", XPU_MEMORY: str(20 * GIB)},
    }, "16 GiB are left on the first: bytes are what is constrained"
    assert [item["resources"] for item in _placement(result, "two")["devices"]["npu"]] == [
        {NPU: "1"},
        {NPU: "1"},
    ]
    message = _placement(result, "third")["unschedulable"]["message"]
    assert message == "0/1 nodes are available: 1 Insufficient npu devices."
    assert (
        f"invalid resource unit {XPU}: 150" in _placement(result, "odd")["unschedulable"]["message"]
    )
    message = _placement(result, "over")["unschedulable"]["message"]
    assert message == "0/1 nodes are available: 1 Insufficient xpu devices."


def test_the_ledger_is_read_without_the_settings(cli: CommandLine, tmp_path: Path) -> None:
    """Who holds what, the map and the proof know types by name alone."""
    _simulated(
        cli,
        tmp_path,
        node(),
        device(_xpu(0), _npu(0)),
        _pod("half", {XPU: "50"}),
        _pod("whole", {NPU: "1"}),
        _pod("waits", {NPU: "1"}),
    )
    held = _rows(cli.ask("who", "n1", "-o", "json"))
    assert [(row["pod"], row["core_percent"], row["exclusive"]) for row in held] == [
        ("whole", 100, True),
        ("half", 50, False),
    ]
    assert cli.ask("verify").code == 0
    assert cli.ask("ledger", "rebuild").code == 0
    why = cli.ask("why", "ml/waits").out
    assert "asks 1 whole NPU, 0 untouched" in why
    assert "now it would fit" not in why, "the recorded settings say what was asked for"
    shown = cli.ask("map").out
    assert "npu" in shown
    assert "xpu" in shown
    assert _rows(cli.ask("who", "n1/xpu/0", "-o", "json"))[0]["pod"] == "half"


def test_what_one_ledger_says_of_words_is_not_left_for_the_next(
    cli: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger with NPUs, a Pod by itself, and a ledger without: each by its own words."""
    _simulated(cli, tmp_path, node(), device(_npu(0)), _pod("waits", {NPU: "2"}))
    other = CommandLine(tmp_path / "other.db", capsys)
    _simulated(other, tmp_path, node(), _pod("waits", {NPU: "2"}), configured=False)

    assert "ask for npu count 1 instead of 2" in cli.ask("why", "ml/waits").out
    assert decode_pod(_pod("waits", {NPU: "2"})).devices == ()
    told = other.ask("why", "ml/waits").out
    assert "ask for npu count" not in told
    assert "Insufficient example.com/npu" in told, "a resource like any other"
    assert "ask for npu count 1 instead of 2" in cli.ask("why", "ml/waits").out


def test_settings_are_compared_with_those_that_a_ledger_recorded(
    cli: CommandLine, tmp_path: Path
) -> None:
    """By key; the ledger that was decided by the file says the same."""
    _simulated(cli, tmp_path, node(), device(_npu(0)), _pod("one", {NPU: "1"}))
    ledger = str(tmp_path / "t.db")
    head = "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\n"
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text(head + yaml.safe_dump({"deviceTypes": TYPES}))
    other.write_text(head + yaml.safe_dump({"deviceTypes": {"npu": TYPES["npu"]}}))

    assert cli.ask("check", "--config", str(same), "--ledger", ledger).code == 0
    answer = cli.ask("check", "--config", str(other), "--ledger", ledger)

    assert answer.code == 1
    assert "deviceTypes.xpu.resource" in answer.out


def _rows(answer: Answer) -> list[Object]:
    assert answer.code == 0, answer.err
    rows: list[Object] = json.loads(answer.out)["holders"]
    return rows


def test_an_adopted_pod_holds_devices_of_the_type_and_its_end_gives_them_back(
    cli: CommandLine, tmp_path: Path
) -> None:
    """The annotation that was written is read back as the same holding."""
    running = _pod(
        "runs",
        {XPU: "70"},
        allocated={"xpu": [{"minor": 0, "id": "xpu-0", "resources": {XPU_PROPOSAL: "70"}}]},
    )
    running["spec"]["nodeName"] = "n1"
    whole = _pod("whole", {NPU: "1"}, allocated={"npu": [{"minor": 0, "resources": {NPU: 1}}]})
    whole["spec"]["nodeName"] = "n1"
    result = _simulated(
        cli,
        tmp_path,
        node(),
        device(_xpu(0), _npu(0)),
        running,
        whole,
        _pod("next", {XPU: "31"}),
        _pod("fits", {XPU: "30"}),
        _pod("late", {NPU: "1"}),
    )
    adopted = {item["name"]: item["devices"] for item in result["adopted"]}
    (entry,) = adopted["runs"]["xpu"]
    assert entry["resources"] == {XPU: "70", XPU_MEMORY: str(70 * 32 * GIB // 100)}
    assert adopted["whole"]["npu"][0]["resources"] == {NPU: "1"}
    assert result["summary"]["conflicts"] == []
    assert _placement(result, "next")["node"] is None
    assert _placement(result, "fits")["node"] == "n1"
    assert _placement(result, "late")["node"] is None


def test_hints_and_joint_allocation_take_the_type_by_name(cli: CommandLine, tmp_path: Path) -> None:
    """A virtual function of it, and a device under the PCIe root of another invented type."""
    result = _simulated(
        cli,
        tmp_path,
        node(),
        device(_xpu(0, "a"), _xpu(1, "b"), _npu(0, "b")),
        _pod(
            "joint",
            {XPU: "10", NPU: "1"},
            hint={"xpu": {"vfSelector": {"matchLabels": {"use": "train"}}}},
            joint={"deviceTypes": ["npu", "xpu"], "requiredScope": "SamePCIe"},
        ),
        _pod("no-functions", {NPU: "1"}, hint={"npu": {"vfSelector": {}}}),
    )
    allocated = json.loads(_placement(result, "joint")["annotations"][ALLOCATED])
    assert [entry["minor"] for entry in allocated["npu"]] == [0]
    assert [(entry["minor"], entry["extension"]) for entry in allocated["xpu"]] == [
        (1, {"vfs": [{"minor": 7, "busID": "0000:01:01.0"}]})
    ]
    message = _placement(result, "no-functions")["unschedulable"]["message"]
    assert "virtual functions of npu" in message


def test_without_settings_the_devices_are_inventoried_and_nobody_can_ask_for_them(
    cli: CommandLine, tmp_path: Path
) -> None:
    """A warning names the type; what a Pod says of it is no device request."""
    result = _simulated(
        cli, tmp_path, node(), device(_xpu(0)), _pod("half", {XPU: "50"}), configured=False
    )
    assert _placement(result, "half")["devices"] == {}
    assert any("type=xpu" in warning for warning in result["summary"]["warnings"])


def test_a_node_that_only_advertises_the_resource_serves_it(
    cli: CommandLine, tmp_path: Path
) -> None:
    """Without a Device object devices are made up: minors from 0, no ids."""
    result = _simulated(
        cli,
        tmp_path,
        node(allocatable={"cpu": "8", "memory": "64Gi", NPU: "2"}),
        _pod("two", {NPU: "2"}),
    )
    assert _placement(result, "two")["devices"] == {
        "npu": [
            {"minor": 0, "id": "", "resources": {NPU: "1"}},
            {"minor": 1, "id": "", "resources": {NPU: "1"}},
        ]
    }


def test_rdma_and_fpga_need_no_settings_and_no_device_object(
    cli: CommandLine, tmp_path: Path
) -> None:
    """Device proposal: the node says 100 of each; whole ones, a part of one, and then no more."""
    offered = {"kubernetes.io/rdma": 100, "kubernetes.io/fpga": 100}
    objects = (
        node(allocatable={"cpu": "8", "memory": "64Gi", **offered}),
        _pod("whole", {"kubernetes.io/rdma": "100"}),
        _pod("part", {"koordinator.sh/fpga": "50"}),
        _pod("late", {"kubernetes.io/fpga": "60"}),
    )
    result = _simulated(cli, tmp_path, *objects, configured=False)

    assert [_placement(result, name)["devices"] for name in ("whole", "part")] == [
        {"rdma": [{"minor": 0, "id": "", "resources": {"koordinator.sh/rdma": "100"}}]},
        {"fpga": [{"minor": 0, "id": "", "resources": {"koordinator.sh/fpga": "50"}}]},
    ]
    message = _placement(result, "late")["unschedulable"]["message"]
    assert message == "0/1 nodes are available: 1 Insufficient fpga devices."
    assert [row["pod"] for row in _rows(cli.ask("who", "n1/rdma/0", "-o", "json"))] == ["whole"]
    shown = [line.split()[:2] for line in cli.ask("map").out.splitlines()]
    assert ["fpga", "50"] in shown
    assert ["rdma", "100"] in shown
    assert cli.run("check", _write(tmp_path, *objects)).code == 0


def test_a_bad_description_is_refused_with_its_place(cli: CommandLine, tmp_path: Path) -> None:
    """File, line and field, and nothing is written."""
    config = tmp_path / "bad.yaml"
    config.write_text(
        "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
        "deviceTypes:\n  npu:\n    resource: koordinator.sh/gpu-core\n"
    )
    answer = cli.ask("simulate", _write(tmp_path, node()), "--config", str(config))
    assert answer.code == 2
    assert "deviceTypes.npu" in answer.err
    assert "bad.yaml:4" in answer.err
    assert "koordinator.sh/gpu-core" in answer.err


def test_admission_reads_the_same_section(cli: CommandLine, tmp_path: Path) -> None:
    """`tenure check`: the percent rule holds, requests equal limits, and policies name it."""
    good, odd = _pod("good", {XPU: "50"}), _pod("odd", {XPU: "150"})
    unequal = _pod("unequal", {XPU_PROPOSAL: "50"})
    unequal["spec"]["containers"][0]["resources"]["requests"] = {XPU_PROPOSAL: "40"}
    config = _settings(tmp_path, "AdmissionConfiguration")
    answer = cli.run(
        "check", _write(tmp_path, good, odd, unequal), "--config", config, "-o", "json"
    )
    assert answer.code == 1, answer.err
    entries = {item["name"]: item for item in json.loads(answer.out)}
    assert entries["good"]["allowed"]
    assert not entries["odd"]["allowed"]
    assert f"[{XPU}]" in entries["odd"]["causes"][0]["field"]
    assert not entries["unequal"]["allowed"]
    assert f"[{XPU_PROPOSAL}]" in entries["unequal"]["causes"][0]["field"]
    policies = cli.run("manifests", "policies", "--config", config).out
    assert NPU in policies
    assert XPU_PROPOSAL in policies
    hooks = cli.run("manifests", "webhook", "--config", config).out
    assert NPU in hooks
    assert XPU_PROPOSAL in hooks
    plain = cli.run("manifests", "policies").out
    assert NPU not in plain, "what one command installs is not there for the next"
