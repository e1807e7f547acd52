"""CPU policies from manifests to the ledger: Nodes, NodeResourceTopologies and Pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.cpu_objects import (
    BIND_POLICY,
    NUMA_POLICY,
    RATIO,
    RESERVATION,
    SPEC,
    STATUS,
    STRATEGY,
    SYSTEM_QOS,
    cpu_node,
    cpu_pod,
    simulated,
    zone,
)
from tests.support.objects import Object

pytestmark = pytest.mark.integration

NOT_WHOLE_CORES = "node(s) requested cpus not multiple cpus per core"
CONFLICT = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
FULL = {"requiredCPUBindPolicy": "FullPCPUs"}
SPREAD = {"requiredCPUBindPolicy": "SpreadByPCPUs"}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a ledger of its own."""
    return CommandLine(ledger=tmp_path / "run.db", capture=capsys)


def simulate(line: CommandLine, objects: Iterable[Object], *more: str) -> dict[str, Any]:
    """Simulate the objects; return Pod -> placement."""
    answer = simulated(line, objects, *more)
    return {entry["name"]: entry for entry in answer["placements"]}


def picks(placements: Mapping[str, Any]) -> dict[str, str]:
    """Return Pod -> its CPUs, or why it has none: the reason of node x."""
    return {
        name: entry["cpuset"] if entry["node"] else entry["unschedulable"]["nodes"]["x"][0]
        for name, entry in placements.items()
    }


def annotation(entry: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - JSON
    """Return a Binding's annotation, decoded."""
    return json.loads(entry["annotations"][key])


def configured(folder: Path, cpu: str) -> tuple[str, str]:
    """Write a configuration with these CPU settings; return the option."""
    path = folder / "config.yaml"
    head = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
    path.write_text(f"{head}cpu: {cpu}\n", encoding="utf-8")
    return ("--config", str(path))


# --- who gets CPUs of its own -----------------------------------------------------------------


def test_the_qos_label_says_who_has_cpus_of_its_own(line: CommandLine) -> None:
    """
    Koordinator contract 6.1; CPU proposal: a Guaranteed Pod without a label is treated as LS.

    All of them ask for whole CPUs with limits like requests.
    """
    pods = [cpu_pod(qos.lower() or "none", "2", qos) for qos in ("LSE", "LSR", "LS", "BE", "")]

    placed = simulate(line, [*cpu_node(), *pods])

    assert picks(placed) == {"lse": "0,12", "lsr": "6,18", "ls": "", "be": "", "none": ""}
    assert "cpuset" not in json.dumps(placed["none"]["annotations"])


def test_a_pod_of_its_own_cpus_needs_a_topology(line: CommandLine) -> None:
    """cli.md, CPU sets: LSE and LSR are refused there, others need none."""
    node = cpu_node()[:1]

    assert picks(simulate(line, [*node, cpu_pod("lsr", "2"), cpu_pod("ls", "2", "LS")])) == {
        "lsr": "node(s) invalid CPU Topology",
        "ls": "",
    }


@pytest.mark.parametrize(
    ("labels", "cpu", "warned"),
    [
        pytest.param({}, "{}", True, id="nothing binds CPUs"),
        pytest.param({"tenure.sh/cpu-managed": "false"}, "{}", True, id="the label says no"),
        pytest.param({"tenure.sh/cpu-managed": "true"}, "{}", False, id="an agent does"),
        pytest.param({}, "{boundBy: koordlet}", False, id="koordlet does"),
    ],
)
def test_what_nothing_binds_is_placed_and_said(
    line: CommandLine, labels: Object, cpu: str, *, warned: bool
) -> None:
    """cli.md fixes the placements; a live service keeps such a node closed, `CPUsNotBound`."""
    pods = [cpu_pod("one", "2"), cpu_pod("two", "2"), cpu_pod("shares", "2", "LS")]
    options = configured(line.ledger.parent, cpu)

    answer = simulated(line, [*cpu_node(labels=labels), *pods], *options)

    assert [entry["node"] for entry in answer["placements"]] == ["x", "x", "x"]
    said = [text for text in answer["summary"]["warnings"] if text.startswith("CPUsNotBound")]
    assert [text.rpartition("; ")[2] for text in said] == ["pods=2"] * warned


# --- bind policies ----------------------------------------------------------------------------


def test_a_node_of_whole_cores_binds_pods_with_whole_cpus(line: CommandLine) -> None:
    """
    CPU proposal, "CPU bind policy": as kubelet's option, for LSE, LSR and Guaranteed Pods.

    LS and Burstable Pods run in the shared pool; required Spread conflicts. What counted is written
    where the Pod said nothing (contract 2.2).
    """
    node = cpu_node(labels={BIND_POLICY: "FullPCPUsOnly"})
    pods = [
        cpu_pod("guaranteed", "4", ""),
        cpu_pod("odd", "3", ""),
        cpu_pod("ls", "2", "LS"),
        cpu_pod("part", "500m", "", limit="1"),
        cpu_pod("bursts", "2", "", limit="4", spec={"preferredCPUBindPolicy": "ConstrainedBurst"}),
        cpu_pod("spread", "4", spec=SPREAD),
        cpu_pod("prefers", "4", spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}),
    ]

    placed = simulate(line, [*node, *pods])

    assert picks(placed) == {
        "guaranteed": "0-1,12-13",
        "odd": NOT_WHOLE_CORES,
        "ls": "",
        "part": "",
        "bursts": "",
        "spread": CONFLICT,
        "prefers": "6-7,18-19",
    }
    assert annotation(placed["bursts"], STATUS) == {"cpuSharedPools": [{"node": 1, "socket": 0}]}
    assert annotation(placed["guaranteed"], SPEC) == {
        "preferredCPUBindPolicy": "FullPCPUs",
        "requiredCPUBindPolicy": "FullPCPUs",
    }
    assert annotation(placed["prefers"], SPEC) == {
        "preferredCPUBindPolicy": "SpreadByPCPUs",
        "requiredCPUBindPolicy": "FullPCPUs",
    }


def test_a_node_that_spreads_binds_pods_with_whole_cpus(line: CommandLine) -> None:
    """One CPU of each core: 4 cores, then the 8 others, and a thirteenth there is none."""
    node = cpu_node(labels={BIND_POLICY: "SpreadByPCPUs"})
    pods = [cpu_pod("a", "4", ""), cpu_pod("full", "2", spec=FULL), cpu_pod("b", "13", "")]

    assert picks(simulate(line, [*node, *pods])) == {
        "a": "0-3",
        "full": CONFLICT,
        "b": "not enough cpus available to satisfy request",
    }


def test_the_nodes_label_beats_kubelets_whole_cores_where_kubelet_rejects_nothing(
    line: CommandLine,
) -> None:
    """CPU proposal: kubelet's option counts where the node has no policy; SMT alignment always."""
    kubelet = {"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0,12"}
    node = cpu_node(labels={BIND_POLICY: "SpreadByPCPUs"}, cpu_manager_policy=kubelet)
    pods = [cpu_pod("a", "4", ""), cpu_pod("odd", "3"), cpu_pod("part", "500m", "", limit="1")]

    placed = simulate(line, [*node, *pods])

    assert picks(placed) == {"a": "6-9", "odd": NOT_WHOLE_CORES, "part": ""}


def test_kubelet_pins_ls_pods_too_and_wants_whole_cores(line: CommandLine) -> None:
    """Kubelet knows no QoS label: a Guaranteed LS Pod of three CPUs would be rejected there."""
    kubelet = {"policy": "static", "options": {"full-pcpus-only": "true"}}
    node = cpu_node(cpu_manager_policy=kubelet)
    pods = [cpu_pod("odd", "3", "LS"), cpu_pod("even", "2", "LS")]

    assert picks(simulate(line, [*node, *pods])) == {"odd": NOT_WHOLE_CORES, "even": ""}


def test_the_default_that_counted_is_written_on_the_pod(line: CommandLine, tmp_path: Path) -> None:
    """
    Koordinator contract 2.2: preferred where it was `Default` or both were empty; the rest stays.

    A Pod that named its policy keeps its own text.
    """
    options = configured(tmp_path, "{defaultBindPolicy: SpreadByPCPUs}")
    pods = [
        cpu_pod("none", "2"),
        cpu_pod("default", "2", spec={"preferredCPUBindPolicy": "Default", "later": "kept"}),
        cpu_pod("own", "2", spec={"preferredCPUBindPolicy": "FullPCPUs"}),
        cpu_pod("required", "2", spec=FULL),
    ]

    placed = simulate(line, [*cpu_node(), *pods], *options)

    assert annotation(placed["none"], SPEC) == {"preferredCPUBindPolicy": "SpreadByPCPUs"}
    assert annotation(placed["default"], SPEC) == {
        "later": "kept",
        "preferredCPUBindPolicy": "SpreadByPCPUs",
    }
    assert SPEC not in placed["own"]["annotations"]
    assert SPEC not in placed["required"]["annotations"]


def test_pods_alike_but_for_unknown_words_are_decided_as_one_shape(line: CommandLine) -> None:
    """Unknown fields of `resource-spec` are kept and choose nothing."""
    pods = [
        cpu_pod(name, "2", spec={"preferredCPUBindPolicy": "Default", "later": name})
        for name in "ab"
    ]

    placed = simulate(line, [*cpu_node(), *pods])

    assert picks(placed) == {"a": "0,12", "b": "6,18"}
    assert [annotation(placed[name], SPEC)["later"] for name in "ab"] == ["a", "b"]


# --- exclusive policies -----------------------------------------------------------------------


def test_pods_of_an_exclusive_policy_avoid_their_like(line: CommandLine) -> None:
    """
    PCPULevel keeps off the cores of its like, NUMANodeLevel off their NUMA nodes.

    Rule: Koordinator contract 6.5, picks 9 to 12; None keeps off nothing.
    """

    def wish(policy: str, exclusive: str) -> dict[str, str]:
        names = {"preferredCPUBindPolicy": policy, "preferredCPUExclusivePolicy": exclusive}
        return {key: value for key, value in names.items() if value}

    numas = [
        cpu_pod(name, "2", spec=wish("FullPCPUs", exclusive))
        for name, exclusive in (("a", "NUMANodeLevel"), ("b", "NUMANodeLevel"), ("c", ""))
    ]
    node = cpu_node(labels={STRATEGY: "MostAllocated"})
    pods = [
        cpu_pod("first", "3", spec=wish("SpreadByPCPUs", "PCPULevel")),
        cpu_pod("like", "4", spec=wish("SpreadByPCPUs", "PCPULevel")),
        cpu_pod("other", "4", spec=wish("SpreadByPCPUs", "")),
    ]

    assert picks(simulate(line, [*node, *pods])) == {
        "first": "0-2",
        "like": "6-9",
        "other": "10-11,18-19",
    }
    assert picks(simulate_again(line, node, numas)) == {"a": "0,12", "b": "6,18", "c": "1,13"}


# --- what is kept back ------------------------------------------------------------------------


def test_what_a_node_keeps_for_itself_is_nobodys(line: CommandLine) -> None:
    """Koordinator contract 6.3: kubelet's, the node reservation's and the exclusive system CPUs."""
    node = cpu_node(
        annotations={
            RESERVATION: {"reservedCPUs": "1"},
            SYSTEM_QOS: {"cpuset": "2", "cpusetExclusive": True},
        },
        cpu_manager_policy={"policy": "none", "reservedCPUs": "0,12"},
    )

    placed = simulate(line, [*node, cpu_pod("a", "6", spec=FULL), cpu_pod("b", "16")])

    assert picks(placed)["a"] == "6-8,18-20"
    assert picks(placed)["b"] == "not enough cpus available to satisfy request"
    assert picks(simulate_again(line, node, cpu_pod("rest", "20"))) == {
        "rest": "3-11,13-23",
    }


def simulate_again(line: CommandLine, *objects: Any) -> dict[str, Any]:  # noqa: ANN401
    """Simulate other objects into a ledger of their own."""
    flat = [item for each in objects for item in (each if isinstance(each, list) else [each])]
    folder = line.ledger.parent / "again"
    folder.mkdir()
    return simulate(CommandLine(ledger=folder / "run.db", capture=line.capture), flat)


def test_shared_system_cpus_stay_everybodys(line: CommandLine) -> None:
    """Koordinator contract 2.3: only an exclusive set is kept back."""
    node = cpu_node(annotations={SYSTEM_QOS: {"cpuset": "0-1", "cpusetExclusive": False}})

    assert picks(simulate(line, [*node, cpu_pod("a", "24")])) == {"a": "0-23"}


@pytest.mark.parametrize(
    ("name", "cpu", "qos", "fits"),
    [
        ("share", "18", "LS", True),
        ("share", "18100m", "LS", False),
        ("pinned", "12", "LSR", True),
        ("pinned", "13", "LSR", False),
    ],
)
def test_amplified_cpu_costs_what_the_contract_says(
    line: CommandLine, name: str, cpu: str, qos: str, *, fits: bool
) -> None:
    """
    Koordinator contract 6.6: 24 CPUs at 1.4 are 33600m; 4 CPUs and 10000m of shares cost 15600m.

    What is written on the Pod are real CPUs.
    """
    node = cpu_node(cpu="33600m", annotations={RATIO: {"cpu": 1.40}})
    before = [cpu_pod("four", "4"), cpu_pod("ten", "10", "LS")]

    placed = simulate(line, [*node, *before, cpu_pod(name, cpu, qos)])

    assert (placed[name]["node"] == "x") is fits
    if not fits:
        assert picks(placed)[name] == "Insufficient amplified cpu"
    elif qos == "LSR":
        assert annotation(placed[name], STATUS) == {"cpuset": placed[name]["cpuset"]}


@pytest.mark.parametrize(
    ("policy", "cpu", "parts"),
    [
        pytest.param("SingleNUMANode", "16", {0: "16"}, id="more than a NUMA node has CPUs"),
        pytest.param("SingleNUMANode", "17", None, id="more than it counts"),
        pytest.param("Restricted", "30", {0: "15", 1: "15"}, id="over both"),
    ],
)
def test_numa_nodes_of_an_amplified_node_give_amplified_cpu(
    line: CommandLine, policy: str, cpu: str, parts: dict[int, str] | None
) -> None:
    """Koordinator contract 6.6 and 7: 12 CPUs at 1.4 are 16800m; the status says what was asked."""
    node = cpu_node(cpu="33600m", annotations={RATIO: {"cpu": 1.40}}, labels={NUMA_POLICY: policy})

    placed = simulate(line, [*node, cpu_pod("share", cpu, "LS")])["share"]

    assert (placed["node"] == "x") is (parts is not None)
    if parts is not None:
        written = annotation(placed, STATUS)["numaNodeResources"]
        assert {part["node"]: part["resources"]["cpu"] for part in written} == parts


SPREADING = {"preferredCPUBindPolicy": "SpreadByPCPUs"}
ALONE = {**SPREADING, "preferredCPUExclusivePolicy": "NUMANodeLevel"}
BESIDE = {**SPREADING, "preferredCPUExclusivePolicy": "PCPULevel"}
Place = tuple[dict[str, str], list[Object], str, str]
"""Labels of the node, Pods, and what the last one gets as released and as proposed."""
PLACES: dict[str, Place] = {
    "NUMANodeLevel becomes PCPULevel": (
        {},
        [
            cpu_pod("a", "1", on="x", spec=ALONE, status={"cpuset": "0"}),
            cpu_pod("b", "1", on="x", spec=ALONE, status={"cpuset": "6"}),
            cpu_pod("c", "1", on="x", spec=BESIDE, status={"cpuset": "14"}),
            cpu_pod("new", "2", spec=ALONE),
        ],
        "1-2",
        "1,3",
    ),
    "a preferred spread takes one CPU of each core": (
        {},
        [cpu_pod("new", "8", spec=SPREADING)],
        "0-5,12-13",
        "0-7",
    ),
    "a preferred spread avoids nodes of whole cores": (
        {BIND_POLICY: "FullPCPUsOnly"},
        [cpu_pod("new", "4", spec=SPREADING)],
        "0-1,12-13",
        CONFLICT,
    ),
    "ARM knows whole cores only": (
        {"kubernetes.io/arch": "arm64"},
        [cpu_pod("new", "4", spec=SPREADING)],
        "0-3",
        "0-1,12-13",
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("as_proposed", [False, True], ids=["as released", "as proposed"])
def test_one_setting_gives_the_proposals_reading(
    line: CommandLine,
    tmp_path: Path,
    place: Place,
    *,
    as_proposed: bool,
) -> None:
    """DIVERGENCES: four places where the release is followed, unless it is set."""
    labels, pods, released, proposed = place
    cpu = f"{{numaAllocateStrategy: MostAllocated, asProposed: {str(as_proposed).lower()}}}"

    placed = simulate(line, [*cpu_node(labels=labels), *pods], *configured(tmp_path, cpu))

    assert picks(placed) == {"new": proposed if as_proposed else released}


# --- NUMA policies ----------------------------------------------------------------------------


def test_one_numa_node_serves_cpus_memory_and_gpu(line: CommandLine) -> None:
    """
    Koordinator contract 7: the only free GPU is on NUMA node 1, so that CPUs and memory are, too.

    All of it is one reservation.
    """
    node = cpu_node(labels={NUMA_POLICY: "SingleNUMANode"}, zones=[zone(0), zone(1)], gpu_numas=[1])

    placed = simulate(line, [*node, cpu_pod("a", "4", gpus=1), cpu_pod("b", "4", gpus=1)])

    assert placed["a"]["cpuset"] == "6-7,18-19"
    assert annotation(placed["a"], STATUS)["numaNodeResources"] == [
        {"node": 1, "resources": {"cpu": "4", "memory": "8Gi"}}
    ]
    assert placed["a"]["devices"]["gpu"][0]["minor"] == 0
    assert placed["b"]["node"] is None


def test_what_no_single_numa_node_has_is_refused_or_taken_of_two(line: CommandLine) -> None:
    """Koordinator contract 7: SingleNUMANode refuses 16 CPUs, Restricted splits them evenly."""
    single = cpu_node(labels={NUMA_POLICY: "SingleNUMANode"}, zones=[zone(0), zone(1)])
    restricted = cpu_node(labels={NUMA_POLICY: "Restricted"}, zones=[zone(0), zone(1)])
    wide = cpu_pod("wide", "16")

    refused = simulate(line, [*single, wide])["wide"]
    placed = simulate_again(line, restricted, wide)["wide"]

    assert "NUMA" in refused["unschedulable"]["message"]
    assert placed["cpuset"] == "0-3,6-9,12-15,18-21"
    assert annotation(placed, STATUS)["numaNodeResources"] == [
        {"node": 0, "resources": {"cpu": "8", "memory": "4Gi"}},
        {"node": 1, "resources": {"cpu": "8", "memory": "4Gi"}},
    ]


def test_restricted_by_a_node_takes_no_more_numa_nodes_than_a_pod_needs(line: CommandLine) -> None:
    """Kubernetes' word: six CPUs are of one NUMA node, or none; a set of two waits for both."""
    node = cpu_node(labels={NUMA_POLICY: "Restricted"}, zones=[zone(0), zone(1)])
    before = [cpu_pod("a", "8"), cpu_pod("b", "8")]

    placed = simulate(line, [*node, *before, cpu_pod("six", "6"), cpu_pod("four", "4")])

    assert [placed[name]["cpuset"] for name in ("a", "b")] == ["0-3,12-15", "6-9,18-21"]
    assert "Unaligned NUMA Hint cause cpu" in placed["six"]["unschedulable"]["message"]
    assert placed["four"]["cpuset"] == "4-5,16-17"


def test_best_effort_aligns_where_it_can_and_refuses_nobody(line: CommandLine) -> None:
    """Koordinator contract 7: the GPU's NUMA node first; when that is full, any CPUs."""
    node = cpu_node(labels={NUMA_POLICY: "BestEffort"}, zones=[zone(0), zone(1)], gpu_numas=[1, 1])

    placed = simulate(line, [*node, cpu_pod("a", "12", gpus=1), cpu_pod("b", "4", gpus=1)])

    assert placed["a"]["cpuset"] == "6-11,18-23"
    assert placed["b"]["cpuset"] == "0-1,12-13"


@pytest.mark.parametrize(
    ("version", "policy"),
    [
        ({"topologyPolicies": ["SingleNUMANodePodLevel"]}, ""),
        ({"topologyPolicies": ["SingleNUMANodeContainerLevel"]}, ""),
        ({"attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]}, ""),
        ({"topologyPolicies": ["SingleNUMANodePodLevel"]}, "BestEffort"),
    ],
)
def test_kubelets_topology_manager_counts_where_the_node_says_nothing(
    line: CommandLine, version: Mapping[str, object], policy: str
) -> None:
    """CPU proposal, "Compatible kubelet CPU management policies"; the node's own key is first."""
    labels = {"node.koordinator.sh/numa-topology-alignment-policy": policy} if policy else {}
    node, topology = cpu_node(labels=labels, zones=[zone(0), zone(1)])

    placed = simulate(line, [node, topology | dict(version), cpu_pod("wide", "16")])

    assert (placed["wide"]["node"] == "x") is bool(policy)


def test_a_burst_has_pools_that_hold_its_limit(line: CommandLine) -> None:
    """
    CPU proposal, ConstrainedBurst: by limit, the fewest NUMA nodes, the pool without its CPUs.

    NUMA node 0 has 8 CPUs in its pool once 4 are an LSR Pod's, node 1 has 12.
    """
    burst = {"preferredCPUBindPolicy": "ConstrainedBurst"}
    pods = [
        cpu_pod("own", "4"),
        cpu_pod("one", "2", "LS", limit="10", spec=burst),
        cpu_pod("both", "2", "LS", limit="14", spec=burst),
        cpu_pod("most", "2", "LS", limit="21", spec=burst),
    ]

    placed = simulate(line, [*cpu_node(), *pods])

    assert placed["one"]["cpuSharedPools"] == [{"node": 1, "socket": 0}]
    assert placed["both"]["cpuSharedPools"] == [
        {"node": 0, "socket": 0},
        {"node": 1, "socket": 0},
    ]
    assert placed["most"]["node"] is None
    assert annotation(placed["one"], STATUS) == {"cpuSharedPools": [{"node": 1, "socket": 0}]}


@pytest.mark.parametrize("by", ["label", "kubelet", "label over kubelet"])
def test_cpus_are_distributed_evenly_over_the_fewest_numa_nodes(line: CommandLine, by: str) -> None:
    """
    CPU proposal, "NUMA allocate strategy": the label first, else kubelet's option.

    The release takes 12 of one NUMA node and 4 of the other.
    """
    kubelet = {"policy": "static", "options": {"distribute-cpus-across-numa": "true"}}
    node = cpu_node(
        labels={
            "label": {STRATEGY: "DistributeEvenly"},
            "kubelet": {},
            "label over kubelet": {STRATEGY: "LeastAllocated"},
        }[by],
        cpu_manager_policy={} if by == "label" else kubelet,
    )
    even, filled = "0-3,6-9,12-15,18-21", "0-7,12-19"

    placed = simulate(line, [*node, cpu_pod("wide", "16"), cpu_pod("one", "2")])

    assert placed["wide"]["cpuset"] == (filled if by == "label over kubelet" else even)
    assert len({int(cpu) % 12 // 6 for cpu in placed["one"]["cpuset"].split(",")}) == 1


def test_a_pods_own_numa_policy_counts_where_the_node_has_none(line: CommandLine) -> None:
    """Koordinator contract 7: two that differ exclude each other."""
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    free = cpu_node("free", zones=[zone(0), zone(1)])
    strict = cpu_node("x", labels={NUMA_POLICY: "Restricted"}, zones=[zone(0), zone(1)])

    placed = simulate(
        line, [*strict, *free, cpu_pod("a", "4", numa=single), cpu_pod("b", "16", numa=single)]
    )

    assert placed["a"]["node"] == "free"
    assert placed["b"]["unschedulable"]["nodes"]["x"] == ["node(s) NUMA Topology policy not match"]


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize(
    ("policy", "cpus", "label", "fits"),
    [
        pytest.param("restricted", "4", "", True, id="one NUMA node has four"),
        pytest.param("restricted", "6", "", False, id="twelve CPUs could hold six, four can not"),
        pytest.param(
            "restricted", "6", "BestEffort", False, id="kubelet rejects what a label allows"
        ),
        pytest.param("single-numa-node", "6", "BestEffort", False, id="single, the same"),
        pytest.param("best-effort", "6", "", True, id="best effort rejects nothing"),
    ],
)
def test_a_pod_that_kubelet_would_reject_is_not_placed(
    line: CommandLine, scope: str, policy: str, cpus: str, label: str, *, fits: bool
) -> None:
    """CPU proposal, Story 3: two NUMA nodes of twelve CPUs, four free each."""
    node = cpu_node(
        labels={NUMA_POLICY: label} if label else {},
        zones=[zone(0), zone(1)],
        cpu_manager_policy={"policy": "static", "reservedCPUs": "0,12"},
    )
    node[1]["attributes"] = [
        {"name": "topologyManagerPolicy", "value": policy},
        {"name": "topologyManagerScope", "value": scope},
    ]
    others = [
        cpu_pod("a", "6", on="x", status={"cpuset": "1-3,13-15"}),
        cpu_pod("b", "8", on="x", status={"cpuset": "6-9,18-21"}),
    ]

    placed = simulate(line, [*node, *others, cpu_pod("new", cpus)])["new"]

    assert (placed["node"] == "x") is fits
    if not fits:
        (reason,) = placed["unschedulable"]["nodes"]["x"]
        assert reason == "node(s) kubelet would reject the pod's NUMA affinity"
