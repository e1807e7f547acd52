"""`tenure why` with what would help, and `tenure defrag plan`, over ledgers of real simulations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Answer, CommandLine
from tests.support.ledgers import morning, write_ledger

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
status: {allocatable: {cpu: "64", memory: 256Gi, koordinator.sh/gpu-core: "200"}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {zone: b}}
status: {allocatable: {cpu: "64", memory: 256Gi, koordinator.sh/gpu-core: "200"}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: ml}
spec:
  nodeSelector: SELECTOR
  containers:
  - name: main
    resources: {limits: {cpu: "2", memory: 4Gi, koordinator.sh/gpu: "CORE"}}
---
"""


def a_pod(name: str, core: int, selector: str = "{}") -> str:
    """Return the manifest of a Pod that asks for so much GPU core."""
    return POD.replace("NAME", name).replace("CORE", str(core)).replace("SELECTOR", selector)


PODS = (
    a_pod("half-1", 60, "{zone: a}")
    + a_pod("half-2", 60, "{zone: b}")
    + a_pod("low", 30, "{zone: a}")
    + a_pod("low-2", 30, "{zone: a}")
    + a_pod("big", 200)
    + a_pod("lost", 50, "{zone: c}")
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifests of two nodes and of Pods, two of which find no place."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster.yaml").write_text(CLUSTER + PODS)
    return folder


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The option for files of the same cluster in which no Pod names its zone any more."""
    path = tmp_path_factory.mktemp("loose") / "cluster.yaml"
    pods = PODS.replace("nodeSelector: {zone: a}", "nodeSelector: {}")
    path.write_text(CLUSTER + pods.replace("nodeSelector: {zone: b}", "nodeSelector: {}"))
    return "--objects", str(path)


@pytest.fixture
def tenure(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line over the ledger of a simulation of these files."""
    line = CommandLine(tmp_path / "run.db", capsys)
    assert line.run("simulate", str(files), "--ledger", str(line.ledger)).code == 0
    return line


def document(answer: Answer) -> dict[str, Any]:
    """Return the JSON that a command printed."""
    told: dict[str, Any] = json.loads(answer.out)
    return told


def test_why_names_every_nodes_first_rule_with_numbers(tenure: CommandLine) -> None:
    """From the ledger alone: reason, what is asked, what is there, and of which cards."""
    told = document(tenure.ask("why", "ml/big", "-o", "json"))

    assert [(row["node"], row["reason"], row["asked"], row["available"]) for row in told["nodes"]]
    by_node = {row["node"]: row for row in told["nodes"]}
    assert by_node["n2"]["asked"] == 2
    assert by_node["n2"]["available"] == 1
    assert "held gpu/0" in by_node["n2"]["about"]


def test_why_tells_the_nearest_changes(tenure: CommandLine) -> None:
    """A smaller request, and Pods whose end makes room."""
    nearest = document(tenure.ask("why", "ml/big", "-o", "json"))["nearest"]

    assert nearest["fits"] is None
    assert {"what": "gpu count", "unit": "devices", "asked": 2, "fits": 1, "node": "n2"} in nearest[
        "smaller"
    ]
    assert nearest["ending"] == {"node": "n2", "pods": ["ml/half-2"]}


def test_a_share_that_wants_its_card_alone_is_not_told_to_be_smaller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`exclusivePolicy: DeviceLevel` stays part of the request; only what really helps is named."""
    hint = """{"gpu": {"exclusivePolicy": "DeviceLevel"}}"""
    alone = a_pod("alone", 20).replace(
        "namespace: ml",
        f"namespace: ml, annotations: {{scheduling.koordinator.sh/device-allocate-hint: '{hint}'}}",
    )
    node = CLUSTER.partition("---")[0].replace('"200"', '"100"')
    files = tmp_path / "in.yaml"
    files.write_text(node + "---" + a_pod("tenant", 50) + alone)
    line = CommandLine(tmp_path / "run.db", capsys)
    line.run("simulate", str(files), "--ledger", str(line.ledger))

    told = document(line.ask("why", "ml/alone", "--objects", str(files), "-o", "json"))

    assert told["nearest"]["smaller"] == []
    assert ["share the cards: ask without exclusive"] in [
        item["change"] for item in told["nearest"]["other"]
    ]
    assert told["nearest"]["ending"]["pods"] == ["ml/tenant"]
    assert told["shape"] == "1 x gpu (alone, 0.2 core), 2 cpu, 4 GiB"


def test_why_prints_the_changes_for_people(tenure: CommandLine) -> None:
    """The table ends with one line per change; `-o wide` has one line per node too."""
    out = tenure.ask("why", "ml/big", "-o", "wide").out

    assert "  ask for gpu count 1 instead of 2: n2" in out.splitlines()
    assert "  end 1 Pod: ml/half-2: n2" in out.splitlines()
    assert any(line.startswith("n1 ") for line in out.splitlines())


def test_what_a_pod_asked_for_is_known_from_the_ledger_alone(
    tenure: CommandLine, files: Path
) -> None:
    """A node selector is in its event: the same is found without the Pod's file as with it."""
    alone = document(tenure.ask("why", "ml/lost", "-o", "json"))
    told = document(tenure.ask("why", "ml/lost", "-o", "json", "--objects", str(files)))

    assert alone["nearest"] == told["nearest"]
    assert alone["nodes"] == told["nodes"]
    assert told["nearest"]["other"][0]["change"] == ["drop the node selector zone=c"]
    assert "wants zone=c, the node has a" in told["nodes"][0]["about"]


def test_pods_that_move_are_decided_by_their_own_requests(tenure: CommandLine, files: Path) -> None:
    """No Pod may leave its zone, say files and ledger: the search finds no plan."""
    answer = tenure.ask("defrag", "plan", "ml/big", "-o", "json", "--objects", str(files))
    alone = tenure.ask("defrag", "plan", "ml/big", "-o", "json")

    told = document(answer)
    assert (answer.code, alone.code) == (1, 1)
    assert document(alone)["why"] == told["why"]
    assert told["plan"] is None
    assert told["proved"] is False
    assert told["why"] == "on no node do all Pods in the way find another place"
    assert told["untold"] == []


def test_a_plan_is_data_and_changes_nothing(tenure: CommandLine, loose: tuple[str, str]) -> None:
    """Steps, places and bounds; not a byte of the ledger is written."""
    before = tenure.ledger.read_bytes()

    answer = tenure.ask("defrag", "plan", "ml/big", "-o", "json", *loose)

    told = document(answer)
    assert answer.code == 0
    (move,) = told["plan"]["moves"]
    assert (move["step"], move["pod"]) == (1, "ml/half-2")
    assert move["from"]["node"] == "n2"
    assert move["to"]["node"] == "n1"
    assert told["plan"]["place"]["node"] == "n2"
    assert [device["minor"] for device in told["plan"]["place"]["devices"]] == [0, 1]
    assert told["proved"] is False
    assert told["untold"] == []
    assert tenure.ledger.read_bytes() == before


def test_a_plan_for_people_is_a_table_of_steps(tenure: CommandLine, loose: tuple[str, str]) -> None:
    """One line per step, then the place that it makes."""
    answer = tenure.ask("defrag", "plan", "ml/big", *loose)

    lines = answer.out.splitlines()
    assert lines[0].startswith("1 move makes room for ml/big")
    assert lines[1].split()[:3] == ["STEP", "POD", "FROM"]
    assert lines[3] == "then ml/big fits on n2 gpu:0,gpu:1"


def test_a_kept_pod_stays(tenure: CommandLine, loose: tuple[str, str]) -> None:
    """A longer way round is taken; with every way barred there is none: exit 1, and why."""
    half = ("ml/big", "--keep", "ml/half-2", *loose)
    all_but_one = ("--keep", "ml/half-1", "--keep", "ml/low", "--keep", "ml/low-2")

    longer = tenure.ask("defrag", "plan", *half)
    none = tenure.ask("defrag", "plan", *half, *all_but_one)

    assert longer.code == 0
    assert longer.out.startswith("3 moves make room, perhaps fewer do, for ml/big")
    assert none.code == 1
    assert none.out.startswith("no plan makes room for ml/big")
    assert "not moved: 4 Pods: kept by --keep" in none.out


def test_no_plan_for_want_of_decisions_is_not_called_none(
    tenure: CommandLine, loose: tuple[str, str]
) -> None:
    """None was found, and the bound is named."""
    answer = tenure.ask("defrag", "plan", "ml/big", "--decisions", "1", *loose)

    assert answer.code == 1
    assert answer.out.startswith("no plan was found that makes room for ml/big")
    assert "bound met: search for moves: after 1 decisions" in answer.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one request is needed"),
        (("ml/big", "--file", "missing.yaml"), "one request is needed"),
        (("ml/nobody",), "no request of this name is known"),
        (("ml/half-1",), "it holds its place already"),
        (("ml/big", "--keep", "ml/nobody"), "--keep"),
        (("--file", "missing.yaml"), "missing.yaml"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(
    tenure: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    """Nothing on stdout, the fact and one next step on stderr."""
    answer = tenure.ask("defrag", "plan", *arguments)

    assert answer.code == 2
    assert answer.out == ""
    assert said in answer.err
    assert "next: " in answer.err


def test_files_alone_can_be_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running Pods hold; only what is written in our words may be moved."""
    monkeypatch.delenv("TENURE_LEDGER", raising=False)
    allocated = json.dumps({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "60"}}]})
    run = a_pod("ours", 60).replace("namespace: ml}", "namespace: ml, annotations: {NOTE}}")
    run = run.replace("NOTE", f"scheduling.koordinator.sh/device-allocated: '{allocated}'")
    run = run.replace("spec:", "spec:\n  nodeName: n1")
    (tmp_path / "live.yaml").write_text(CLUSTER + run)
    (tmp_path / "wanted.yaml").write_text(a_pod("wanted", 200))
    line = CommandLine(tmp_path / "none.db", capsys)
    live = ("-f", str(tmp_path / "wanted.yaml"), "--objects", str(tmp_path / "live.yaml"))

    free = line.run("defrag", "plan", *live)
    full = line.run("defrag", "plan", "--keep", "ml/ours", *live)

    assert free.code == 0
    assert free.out.startswith("no move is needed")
    assert full.code == 0
    assert not (tmp_path / "none.db").exists()


def test_what_no_state_of_the_cluster_allows_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and as data; nothing is to be released for it."""
    files = tmp_path / "cluster.yaml"
    files.write_text(CLUSTER + a_pod("small", 100) + a_pod("vast", 400))
    tenure = CommandLine(tmp_path / "run.db", capsys)
    tenure.ask("simulate", str(files))

    told = tenure.ask("why", "ml/vast").out
    first, rest = told.split("\n", 1)
    assert first == "never as it is: no node in this cluster has 4 GPU; the most is 2"
    assert "release" not in rest
    document = json.loads(tenure.ask("why", "ml/vast", "-o", "json").out)
    assert f"never as it is: {document['never']}" == first


def test_a_pod_that_waits_for_fragmentation_alone_is_told_who_would_make_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cards with 40 % left each have 80, so that kube-scheduler asks nobody to end."""
    node = CLUSTER.partition("---")[0] + "---"
    high = a_pod("high", 70).replace("  nodeSelector", "  priority: 9\n  nodeSelector")
    files = tmp_path / "in.yaml"
    files.write_text(node + a_pod("low-1", 60) + a_pod("low-2", 60) + high + a_pod("even", 70))
    line = CommandLine(tmp_path / "run.db", capsys)
    line.run("simulate", str(files), "--ledger", str(line.ledger))

    told = document(line.ask("why", "ml/high", "-o", "json"))
    lines = line.ask("why", "ml/high").out.splitlines()
    even = line.ask("why", "ml/even").out.splitlines()

    assert told["fragmentation"] == {
        "nodes": ["n1"],
        "ending": {"node": "n1", "pods": ["ml/low-2"]},
    }
    head = "it waits for fragmentation alone on n1: kube-scheduler before 1.38 ends nobody for that"
    assert lines[lines.index(head) + 1] == "  end 1 Pod of a lower priority: ml/low-2: n1"
    assert even[even.index(head) + 1] == "  no Pods of a lower priority make room there"


def test_a_pod_that_waits_for_more_than_a_node_has_left_waits_for_no_fragmentation(
    tenure: CommandLine,
) -> None:
    """What kube-scheduler sees, too, it makes room for itself."""
    told = document(tenure.ask("why", "ml/big", "-o", "json"))

    assert told["fragmentation"] is None


def test_on_nodes_that_nobody_described_nothing_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their taints, cordons and reserves are not known: a plan would be of another cluster."""
    line = CommandLine(write_ledger(tmp_path / "morning.db", morning()), capsys)
    (tmp_path / "wanted.yaml").write_text(a_pod("wanted", 100))

    answer = line.ask("defrag", "plan", "-f", str(tmp_path / "wanted.yaml"))

    assert (answer.code, answer.out) == (2, "")
    assert "does not record what deciding reads of the nodes" in answer.err
    assert "next: name their files by --objects" in answer.err
