"""`tenure map` of a part of a cluster, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import container, node, pod

pytestmark = pytest.mark.integration

NODES: Final = 204
LABEL: Final = "nvidia.com/gpu.product"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """204 nodes of 8 cards, every third a T4; on each fourth one a Pod with three of them."""
    objects: list[dict[str, Any]] = []
    for number in range(NODES):
        name = f"gpu-{number:03d}.cluster.local"
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
        model = "Tesla-T4" if number % 3 == 0 else "NVIDIA-A100-SXM4-80GB"
        objects.append(node(name, allocatable=amounts, labels={LABEL: model}))
        if number % 4 == 0:
            asked = container(limits={"nvidia.com/gpu": "3"})
            whose = "ml" if number % 8 else "web"
            held = pod(asked, name=f"p{number}", namespace=whose, nodeName=name, phase="Running")
            objects.append(held)
    path = tmp_path_factory.mktemp("dump") / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}), "utf-8")
    return path


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A command line."""
    return CommandLine(tmp_path / "no.db", capsys)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        pytest.param(["--node", "gpu-00*"], range(10), id="a pattern of names"),
        pytest.param(["--node", "gpu-007"], [7], id="a name without its domain, as it is drawn"),
        pytest.param(["--node", "gpu-007.cluster.local"], [7], id="a whole name"),
        pytest.param(["--node", "gpu-007,gpu-009", "--node", "gpu-01?"],
                     [7, 9, *range(10, 20)], id="several, by commas or one by one"),
        pytest.param(["--model", "*t4*"], range(0, NODES, 3), id="a model, whatever its case"),
        pytest.param(["--namespace", "ml"], range(4, NODES, 8), id="nodes that a namespace has"),
        pytest.param(["-n", "m*,web"], range(0, NODES, 4), id="several namespaces"),
        pytest.param(["--model", "*T4", "-n", "web", "--node", "gpu-0*"],
                     [0, 24, 48, 72, 96], id="all of them together"),
    ],
)  # fmt: skip
def test_a_part_of_the_cluster_is_shown(
    words: list[str], shown: list[int], dump: Path, line: CommandLine
) -> None:
    """Of what is left out nothing is counted, and how much that is stands there, in each form."""
    names = [f"gpu-{number:03d}.cluster.local" for number in shown]

    told = json.loads(line.run("map", str(dump), *words, "-o", "json").out)
    drawn = line.run("map", str(dump), *words).out

    assert [each["node"] for each in told["nodes"]] == names
    assert told["summary"]["nodes"] == len(names)
    assert told["summary"]["nodes_in_all"] == NODES
    assert told["summary"]["cards"] == 8 * len(names)
    assert f"{len(names)} of 204 nodes shown" in drawn
    assert f"{8 * len(names):,} cards:" in drawn


def test_nothing_is_said_of_a_part_where_all_is_shown(dump: Path, line: CommandLine) -> None:
    """The interface without a choice is what it was."""
    told = json.loads(line.run("map", str(dump), "-o", "json").out)

    assert set(told["summary"]) == {"nodes", "cards", "free", "gettable", "percent"}
    assert "shown" not in line.run("map", str(dump)).out


@pytest.mark.parametrize(
    ("words", "fact", "step"),
    [
        pytest.param(["--node", "gpu-0007"], "--node: no node is called gpu-0007",
                     "did you mean gpu-007.cluster.local", id="a node"),
        pytest.param(["--model", "a100"], "--model: no card is of model a100",
                     "did you mean NVIDIA-A100-SXM4-80GB?", id="a model"),
        pytest.param(["--namespace", "wep"], "--namespace: nothing is held by namespace wep",
                     "did you mean web?", id="a namespace"),
        pytest.param(["--node", "zzz"], "--node: no node is called zzz",
                     "there are 204 nodes, such as gpu-000.cluster.local", id="nothing like it"),
        pytest.param(["--node", "gpu-001", "-n", "ml"], "no node is all of that",
                     "leave one of them out", id="each has some, together they have none"),
    ],
)  # fmt: skip
def test_what_matches_nothing_is_an_error_that_helps(
    words: list[str], fact: str, step: str, dump: Path, line: CommandLine
) -> None:
    """As with a name that nobody knows."""
    answer = line.run("map", str(dump), *words)

    assert (answer.code, answer.out) == (2, "")
    assert fact in answer.err
    assert f"next: {step}" in answer.err


def test_cpus_are_chosen_likewise(line: CommandLine) -> None:
    """By name and by who holds them; they have no model."""
    examples = str(Path(__file__).parents[2] / "examples" / "cluster.yaml")

    one = line.run("map", examples, "--cpus", "--node", "dgx-*", "-o", "json")
    refused = line.run("map", examples, "--cpus", "--model", "A100")

    assert [each["node"] for each in json.loads(one.out)] == ["dgx-1"]
    assert "1 of " in one.err
    assert refused.code == 2
    assert "--model: CPUs are told without a model" in refused.err


def test_of_two_models_on_a_node_one_is_shown(line: CommandLine, tmp_path: Path) -> None:
    """Also its sums are those of that model."""
    units = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "2", "amd.com/gpu": "3"}
    both = node("both", allocatable=units, labels={LABEL: "Tesla-T4"})
    path = tmp_path / "both.json"
    path.write_text(json.dumps(both), "utf-8")

    whole = json.loads(line.run("map", str(path), "-o", "json").out)
    told = json.loads(line.run("map", str(path), "--model", "tesla-t4", "-o", "json").out)

    assert (len(whole["nodes"][0]["groups"]), whole["summary"]["cards"]) == (2, 5)
    assert [each["model"] for each in told["nodes"][0]["groups"]] == ["Tesla-T4"]
    assert told["summary"]["cards"] == 2
