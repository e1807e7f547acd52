"""Running Pods with CPUs of their own, through the command line and a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.store.open import open_ledger
from scheduler.cluster.snapshot import read_objects, snapshot_of_ledger
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.what_if import WhatIf
from tenure.manifests import read_manifests
from tests.support.cli import CommandLine
from tests.support.cpu_objects import (
    NUMA_POLICY,
    RESERVATION,
    SPEC,
    STATUS,
    STRATEGY,
    cpu_node,
    cpu_pod,
    kubelet_pin,
    simulated,
    written,
    zone,
)
from tests.support.objects import Object

pytestmark = pytest.mark.integration

SPREAD_APART = {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": ""}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a ledger of its own."""
    return CommandLine(ledger=tmp_path / "run.db", capture=capsys)


def cpusets(answer: dict[str, Any]) -> dict[str, str]:
    """Return Pod -> CPUs, of Pods that were placed."""
    return {entry["name"]: entry["cpuset"] for entry in answer["placements"] if entry["node"]}


def test_a_pod_that_kubelet_pinned_is_an_observed_holder(line: CommandLine) -> None:
    """
    Its CPUs are nobody else's, and who asks is told its name.

    Rule: Koordinator contract 6.3; cli.md, Running Pods.
    """
    objects = [
        *cpu_node(
            cpu_manager_policy={"policy": "static", "reservedCPUs": "0,12"},
            pod_cpu_allocs=[kubelet_pin("old", "1-2,13-14")],
        ),
        cpu_pod("old", "4", qos="", on="x"),
        cpu_pod("new", "6"),
    ]

    answer = simulated(line, objects)

    assert answer["adopted"][0]["cpuset"] == "1-2,13-14"
    assert answer["adopted"][0]["source"] == "pod-cpu-allocs"
    assert answer["summary"]["conflicts"] == []
    assert cpusets(answer) == {"new": "6-8,18-20"}
    assert "ml/old" in line.ask("who", "x/cpu/13").out


@pytest.mark.parametrize("managed", [True, False])
def test_a_pin_of_a_pod_that_is_not_in_the_input_counts_if_kubelet_made_it(
    line: CommandLine, *, managed: bool
) -> None:
    """Koordinator contract 2.4: other entries are the scheduler's own words, come back."""
    allocs = [kubelet_pin("gone", "0-5,12-17", managed=managed)]
    answer = simulated(line, [*cpu_node(pod_cpu_allocs=allocs), cpu_pod("new", "2")])

    assert cpusets(answer) == {"new": "6,18" if managed else "0,12"}


def test_a_pin_of_a_pod_that_runs_elsewhere_or_has_ended_is_kept_back(line: CommandLine) -> None:
    """Nobody holds these CPUs, and kubelet says that they are taken: they are not given out."""
    ended = cpu_pod("ended", "2", on="x")
    ended["status"]["phase"] = "Succeeded"
    objects = [
        *cpu_node(pod_cpu_allocs=[kubelet_pin("away", "0,12"), kubelet_pin("ended", "1,13")]),
        *cpu_node("y"),
        cpu_pod("away", "2", on="y"),
        ended,
        cpu_pod("a", "8"),
        cpu_pod("b", "12"),
    ]
    objects[2]["spec"]["unschedulable"] = True

    assert cpusets(simulated(line, objects)) == {"a": "6-9,18-21", "b": "2-5,10-11,14-17,22-23"}


@pytest.mark.parametrize(
    ("policy", "wish", "expected"),
    [
        ("PCPULevel", "PCPULevel", "6-9"),
        ("PCPULevel", "", "3-5,12"),
        ("", "PCPULevel", "3-5,12"),
        ("NUMANodeLevel", "NUMANodeLevel", "6-9"),
    ],
)
def test_the_exclusive_policy_of_a_running_pod_keeps_its_like_away(
    line: CommandLine, policy: str, wish: str, expected: str
) -> None:
    """
    Koordinator contract 6.5, picks 9 and 10: CPUs 0-2 are held; like avoids like only.

    The policy is read from the `resource-spec` that the Pod runs with.
    """
    objects = [
        *cpu_node(labels={STRATEGY: "MostAllocated"}),
        cpu_pod(
            "old",
            "3",
            on="x",
            spec=SPREAD_APART | {"preferredCPUExclusivePolicy": policy},
            status={"cpuset": "0-2"},
        ),
        cpu_pod("new", "4", spec=SPREAD_APART | {"preferredCPUExclusivePolicy": wish}),
    ]

    assert cpusets(simulated(line, objects)) == {"new": expected}


def test_the_default_exclusive_policy_counts_for_running_pods_too(
    line: CommandLine, tmp_path: Path
) -> None:
    """`Default` and no policy mean the settings', whenever the Pod was placed."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
        "cpu: {defaultExclusivePolicy: PCPULevel, numaAllocateStrategy: MostAllocated}\n",
        encoding="utf-8",
    )
    objects = [
        *cpu_node(),
        cpu_pod("old", "3", on="x", status={"cpuset": "0-2"}),
        cpu_pod("new", "4", spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}),
    ]

    assert cpusets(simulated(line, objects, "--config", str(config))) == {"new": "6-9"}


def test_what_a_running_pod_took_of_a_numa_node_is_taken(line: CommandLine) -> None:
    """
    Memory and shared CPU per NUMA node count, out of `numaNodeResources`.

    NUMA node 0 has 64 GiB, of which 60 are taken; node 1 has 1500m left.
    """
    taken = [
        {"node": 0, "resources": {"cpu": "1", "memory": "60Gi"}},
        {"node": 1, "resources": {"cpu": "10500m", "memory": "1Gi"}},
    ]
    objects = [
        *cpu_node(labels={NUMA_POLICY: "SingleNUMANode"}, zones=[zone(0), zone(1)]),
        cpu_pod("old", "11500m", "LS", on="x", status={"numaNodeResources": taken}),
        cpu_pod("lean", "2", "LS", memory="4Gi"),
        cpu_pod("roomy", "1", "LS", memory="8Gi"),
        cpu_pod("none", "2", "LS", memory="8Gi"),
    ]

    answer = simulated(line, objects)
    placed = {entry["name"]: entry for entry in answer["placements"]}

    assert placed["lean"]["cpuSharedPools"] == [{"node": 0, "socket": 0}]
    assert placed["roomy"]["cpuSharedPools"] == [{"node": 1, "socket": 0}]
    assert placed["none"]["node"] is None


CONTRADICTIONS = {
    "topology": ("0,40", "x: CPUs 40 held by ml/old, not in the CPU topology"),
    "reserve": ("1-2", "x: CPUs 2 held by ml/old, kept back by the node"),
    "kubelet": (
        "4,16",
        f"x: held by ml/old: {STATUS} says 4,16, kubelet pins 6,18",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_contradicts_the_node_is_named_and_never_given_again(
    line: CommandLine, case: str
) -> None:
    """Conflicts are drift: in the summary, exit 0, and the CPUs stay the Pod's."""
    cpus, text = CONTRADICTIONS[case]
    pins = [kubelet_pin("old", "6,18")] if case == "kubelet" else []
    objects = [
        *cpu_node(annotations={RESERVATION: {"reservedCPUs": "2"}}, pod_cpu_allocs=pins),
        cpu_pod("old", "2", on="x", status={"cpuset": cpus}),
        cpu_pod("new", "20"),
    ]

    answer = simulated(line, objects)

    assert answer["summary"]["conflicts"] == [text]
    assert answer["placements"][0]["cpuset"]
    held = line.ask("who", f"x/cpu/{cpus.split(',')[0].split('-')[0]}").out
    assert "ml/old" in held


def test_two_pods_on_one_cpu_are_named_and_the_cpu_is_full(line: CommandLine) -> None:
    """Beyond the reference count is over-held, for whoever came last."""
    objects = [
        *cpu_node(),
        cpu_pod("a", "2", on="x", status={"cpuset": "0,12"}),
        cpu_pod("b", "2", on="x", status={"cpuset": "0-1"}),
        cpu_pod("new", "4"),
    ]

    answer = simulated(line, objects)

    assert answer["summary"]["conflicts"] == ["x: CPUs 0 held by ml/b and others"]
    assert cpusets(answer) == {"new": "6-7,18-19"}


def test_what_numa_nodes_do_not_have_is_named(line: CommandLine) -> None:
    """Two Pods took more of NUMA node 0 than it has; a NUMA node and a pool are not there."""
    first = [{"node": 0, "resources": {"memory": "60Gi"}}]
    second = [*first, {"node": 9, "resources": {"memory": "1Gi"}}]
    pools = [{"socket": 0, "node": 0}, {"socket": 1, "node": 0}]
    objects = [
        *cpu_node(zones=[zone(0), zone(1)]),
        cpu_pod("a", "1", "LS", on="x", status={"numaNodeResources": first}),
        cpu_pod("b", "1", "LS", on="x", status={"numaNodeResources": second}),
        cpu_pod("c", "1", "LS", on="x", status={"cpuSharedPools": pools}),
    ]

    assert simulated(line, objects)["summary"]["conflicts"] == [
        "x: NUMA node 9 held by ml/b, not in the topology",
        f"x: NUMA node 0 gives more memory than it has: bytes={64 << 30}, taken={120 << 30}",
        "x: shared pool of socket 1 NUMA node 0 used by ml/c, not in the topology",
    ]


def test_a_running_pod_whose_words_do_not_parse_is_an_error_of_the_input(
    line: CommandLine,
) -> None:
    """One message with the object and the field; nothing is guessed."""
    broken = cpu_pod("old", "2", on="x")
    broken["metadata"]["annotations"] = {SPEC: "{"}
    path = written(line.ledger.parent, [*cpu_node(), broken])

    done = line.ask("simulate", path)

    assert done.code == 2
    assert "Pod ml/old" in done.err
    assert SPEC in done.err


def decided_from_the_ledger(
    line: CommandLine, folder: Path, node: list[Object], wanted: Object
) -> Placement | Unplaced:
    """Decide a Pod on a node that the ledger fills; the objects of its holders are not given."""
    settings = SchedulingSettings()
    objects = read_objects(read_manifests([written(folder, [*node, wanted])]), settings)
    with open_ledger(str(line.ledger), mode="read") as source:
        scene = snapshot_of_ledger(source, objects, settings)
    uid = wanted["metadata"]["uid"]
    return WhatIf(scene.nodes, scene.others(uid), settings).decide(scene.requests[uid])


@pytest.mark.parametrize("running", [True, False])
def test_exclusive_policies_survive_in_the_events(
    line: CommandLine, tmp_path: Path, *, running: bool
) -> None:
    """
    An engine made of a ledger picks as the one that wrote it, whoever the holders are.

    Rule: Koordinator contract 6.5, pick 9.
    """
    wish = SPREAD_APART | {"preferredCPUExclusivePolicy": "PCPULevel"}
    holder = cpu_pod("old", "3", spec=wish)
    if running:
        holder = cpu_pod("old", "3", on="x", spec=wish, status={"cpuset": "0-2"})
    node = cpu_node(labels={STRATEGY: "MostAllocated"})
    new = cpu_pod("new", "4", spec=wish)
    whole = simulated(line, [*node, holder, new])

    placed = decided_from_the_ledger(line, tmp_path, node, new)

    assert isinstance(placed, Placement)
    assert str(placed.cpuset) == cpusets(whole)["new"] == "6-9"


@pytest.mark.parametrize("running", [True, False])
def test_parts_of_numa_nodes_survive_in_the_events(
    line: CommandLine, tmp_path: Path, *, running: bool
) -> None:
    """40 of 64 GiB of NUMA node 0 are taken, and node 1 has 16: 30 are nowhere in one place."""
    status = {"numaNodeResources": [{"node": 0, "resources": {"cpu": "2", "memory": "40Gi"}}]}
    holder = cpu_pod("holder", "2", memory="40Gi")
    if running:
        holder = cpu_pod("holder", "2", memory="40Gi", on="x", status=status | {"cpuset": "0,12"})
    node = cpu_node(labels={NUMA_POLICY: "SingleNUMANode"}, zones=[zone(0), zone(1, "16Gi")])
    waiting, small = cpu_pod("waiting", "2", memory="30Gi"), cpu_pod("small", "2", memory="20Gi")
    simulated(line, [*node, holder, waiting])

    refused = decided_from_the_ledger(line, tmp_path, node, waiting)
    placed = decided_from_the_ledger(line, tmp_path, node, small)

    assert isinstance(refused, Unplaced)
    assert isinstance(placed, Placement)
    assert str(placed.cpuset) == "1,13"


def test_a_run_that_was_cut_decides_as_the_whole_run_does(
    line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed from any of its commits: the same placements, the same events."""
    wish = SPREAD_APART | {"preferredCPUExclusivePolicy": "PCPULevel"}
    objects = [
        *cpu_node(labels={NUMA_POLICY: "BestEffort"}, zones=[zone(0), zone(1)]),
        cpu_pod("old", "3", on="x", spec=wish, status={"cpuset": "0-2"}),
        *(cpu_pod(f"p{number}", "2", spec=wish) for number in range(6)),
    ]
    whole = simulated(line, objects, "--now", "2026-03-02T09:00:00Z", "--batch", "1")
    again = CommandLine(ledger=line.ledger, capture=capsys)

    resumed = simulated(again, objects, "--now", "2026-03-02T09:00:00Z", "--resume")

    assert resumed["placements"] == whole["placements"]
