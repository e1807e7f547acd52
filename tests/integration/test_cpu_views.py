"""What the command line says of CPUs: who holds them, why there are none, and the settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from scheduler.decide.settings import DEFAULT_SCHEDULING, CpuSettings
from tenure.settings import read_settings
from tests.support.cli import CommandLine
from tests.support.cpu_objects import NUMA_POLICY, cpu_node, cpu_pod, simulated, zone

pytestmark = pytest.mark.integration

FULL = {"requiredCPUBindPolicy": "FullPCPUs"}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a ledger of its own."""
    return CommandLine(ledger=tmp_path / "run.db", capture=capsys)


def test_every_view_tells_the_same_holders(line: CommandLine) -> None:
    """A CPU set is a reservation like a card: `who`, `map --cpus` and `verify` agree."""
    answer = simulated(line, [*cpu_node(), cpu_pod("a", "4"), cpu_pod("b", "2", "LSE")])

    who = line.ask("who", "x/cpu/13").out
    shown = line.ask("map", "--cpus").out

    assert [entry["cpuset"] for entry in answer["placements"]] == ["0-1,12-13", "6,18"]
    assert "ml/a" in who
    assert "ml/b" not in who
    assert "ml/a: 4 CPUs, 0-1,12-13" in shown
    assert "ml/b: 2 CPUs, 6,18" in shown


def test_the_documented_settings_are_the_defaults(tmp_path: Path) -> None:
    """Every CPU setting is in docs/cpus.md, is read there, and has the value it has without."""
    text = (Path(__file__).parents[2] / "docs" / "cpus.md").read_text(encoding="utf-8")
    block = next(
        part for part in text.split("```yaml\n") if part.startswith("apiVersion: tenure.sh")
    )
    (tmp_path / "s.yaml").write_text(block.split("```")[0], encoding="utf-8")
    named = yaml.safe_load(block.split("```")[0])["cpu"]

    settings = read_settings(tmp_path / "s.yaml")

    assert settings == DEFAULT_SCHEDULING
    of_reading = {"defaultBindPolicy", "defaultExclusivePolicy"}  # what requests mean: vocabulary
    of_reading |= {"asProposed"}  # what others are that are left out
    assert of_reading <= named.keys()
    assert len(named.keys() - of_reading) == len(dataclasses.fields(CpuSettings))


def test_why_names_the_policy_and_what_every_numa_node_has_left(line: CommandLine) -> None:
    """
    Whole cores, CPUs and memory, and whose policy counts; in the ledger's own record, too.

    NUMA node 0 has lost CPU 0 to kubelet and three cores to a Pod, NUMA node 1 two to another.
    """
    kubelet = {"policy": "none", "reservedCPUs": "0"}
    node = cpu_node(
        labels={NUMA_POLICY: "SingleNUMANode"}, zones=[zone(0), zone(1)], cpu_manager_policy=kubelet
    )
    pods = [cpu_pod("a", "4", memory="50Gi"), cpu_pod("b", "6", memory="50Gi", spec=FULL)]
    simulated(line, [*node, *pods, cpu_pod("wide", "10", spec=FULL)])
    left = (
        "NUMA 0 has 2 whole cores, 5 CPUs, 14336 MiB; NUMA 1 has 4 whole cores, 8 CPUs, 14336 MiB"
    )

    recorded = json.loads(line.ask("why", "ml/wide", "-o", "json").out)
    objects = ("--objects", str(line.ledger.parent / "in.json"))
    now = json.loads(line.ask("why", "ml/wide", "-o", "json", *objects).out)

    assert recorded["reasons"][0]["detail"] == left
    assert now["nodes"][0]["about"] == (
        f"{left}; policy SingleNUMANode; the Pod requires FullPCPUs; kept back CPUs 0"
    )


def test_why_counts_the_cpus_that_a_required_policy_may_take(line: CommandLine) -> None:
    """Eight CPUs are free, and one whole core of them."""
    held = cpu_pod("held", "16", on="x", status={"cpuset": "1-11,13-17"})
    simulated(line, [*cpu_node(), held, cpu_pod("b", "4", spec=FULL)])

    objects = ("--objects", str(line.ledger.parent / "in.json"))
    found = json.loads(line.ask("why", "ml/b", "-o", "json", *objects).out)

    assert found["nodes"][0] == {
        "node": "x",
        "never": False,
        "reason": "not enough cpus available to satisfy request",
        "asked": 4,
        "available": 2,
        "unit": "cpus",
        "about": "free 0,12,18-23; NUMA 0 has 1 whole core, 2 CPUs; "
        "NUMA 1 has 0 whole cores, 6 CPUs; the Pod requires FullPCPUs",
    }
