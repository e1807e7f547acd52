"""`tenure simulate`: resources that only a number says something of, and what is not looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Answer, CommandLine
from tests.support.objects import Object, container, device, gpu_device, node, pod

pytestmark = pytest.mark.integration

NOW = ("--now", "2026-03-02T00:00:00Z")
SLICE = "nvidia.com/mig-1g.5gb"
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def offering(name: str, **extended: int) -> Object:
    """Return a node that offers these resources; `__` stands for what no keyword has."""
    return node(name, allocatable={**ROOM, **extended})


def asking(name: str, limits: Object, **more: Any) -> Object:  # noqa: ANN401 - whatever else a Pod has
    """Return a Pod with these limits."""
    return pod(container(limits=limits), name=name, uid=name, **more)


def simulated(line: CommandLine, *objects: Object, more: tuple[str, ...] = ()) -> Answer:
    """Run these objects into the ledger of the line."""
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    answer = line.ask("simulate", str(path), *NOW, "-o", "json", *more)
    assert answer.code == 0, answer.err
    return answer


def entries(answer: Answer) -> dict[str, dict[str, Any]]:
    """Return each Pod's placement by name."""
    return {each["name"]: each for each in json.loads(answer.out)["placements"]}


@pytest.mark.parametrize("policy", ["scarcity", "binpack", "spread", "bestfit", "fgd", "random"])
def test_a_node_gives_what_it_offers_less_what_is_held(line: CommandLine, policy: str) -> None:
    """The Pod that runs there holds six of seven slices, by its request alone."""
    found = entries(
        simulated(
            line,
            offering("n1", **{SLICE: 7}),
            offering("n2"),
            asking("r", {SLICE: 6}, nodeName="n1", phase="Running"),
            asking("ended", {SLICE: 7}, nodeName="n1", phase="Succeeded"),
            asking("first", {SLICE: 1}),
            asking("late", {SLICE: 1}),
            asking("plain", {}),
            more=("--policy", policy),
        )
    )

    assert found["first"]["node"] == "n1"
    assert found["plain"]["node"] in {"n1", "n2"}
    assert found["late"]["unschedulable"] == {
        "message": f"0/2 nodes are available: 2 Insufficient {SLICE}.",
        "nodes": {"n1": [f"Insufficient {SLICE}"], "n2": [f"Insufficient {SLICE}"]},
    }


def test_every_resource_that_is_short_is_named_as_kube_scheduler_does(line: CommandLine) -> None:
    """One nobody offers, one of which too few are there, beside cpu, in one stage."""
    limits = {"cpu": 65, "example.com/none": 1, "rdma/hca": 9, SLICE: 1}
    found = entries(
        simulated(line, offering("n1", **{"rdma/hca": 8, SLICE: 1}), asking("p", limits))
    )

    assert found["p"]["unschedulable"]["nodes"]["n1"] == [
        "Insufficient cpu",
        "Insufficient example.com/none",
        "Insufficient rdma/hca",
    ]


def test_more_kinds_than_are_told_apart_are_still_refused(line: CommandLine) -> None:
    """Codes stay few: the fifth resource and those after it share a reason."""
    there = {f"example.com/r{number}": 1 for number in range(9)}
    found = entries(
        simulated(
            line,
            offering("n1", **there),
            asking("p", {**there, "example.com/r8": 2}),
            asking("q", there),
        )
    )

    assert found["p"]["unschedulable"]["nodes"]["n1"] == ["Insufficient extended resources"]
    assert found["q"]["node"] == "n1"


def test_init_containers_count_as_the_larger_of_both(line: CommandLine) -> None:
    """Kubernetes: the peak of init containers, or the sum of the others."""
    one = pod(
        container("a", limits={SLICE: 1}),
        container("b", limits={SLICE: 1}),
        init=[container("i", limits={SLICE: 3})],
        name="p",
        uid="p",
    )
    found = entries(simulated(line, offering("n1", **{SLICE: 4}), one, asking("q", {SLICE: 1})))

    assert (found["p"]["node"], found["q"]["node"]) == ("n1", "n1")


def test_a_gpu_goes_to_the_node_that_has_the_rest_too(line: CommandLine) -> None:
    """Cards and a counted resource of one Pod come from one node."""
    found = entries(
        simulated(
            line,
            offering("n1", **{"nvidia.com/gpu": 8}),
            offering("n2", **{"nvidia.com/gpu": 8, "rdma/hca": 1}),
            asking("p", {"nvidia.com/gpu": 1, "rdma/hca": 1}),
            asking("q", {"nvidia.com/gpu": 1, "rdma/hca": 1}),
        )
    )

    assert found["p"]["node"] == "n2"
    assert found["q"]["unschedulable"]["nodes"] == {
        "n1": ["Insufficient rdma/hca"],
        "n2": ["Insufficient rdma/hca"],
    }


def test_a_ledger_answers_and_replays_what_was_decided(line: CommandLine) -> None:
    """What a node offers and a Pod asked for is in the events."""
    simulated(
        line,
        offering("n1", **{SLICE: 7}),
        asking("r", {SLICE: 6}, nodeName="n1", phase="Running"),
        asking("p", {SLICE: 1}),
        asking("q", {SLICE: 2}),
        more=("--ledger", str(line.ledger)),
    )

    why = line.ask("why", "ml/q", "--ledger", str(line.ledger))
    assert f"Insufficient {SLICE}" in why.out
    assert "0 of 7 free" in why.out
    replayed = line.ask("ledger", "replay", "--ledger", str(line.ledger))
    assert replayed.code == 0, replayed.out + replayed.err


def test_what_is_not_looked_at_is_said_of_each_pod_and_in_sum(line: CommandLine) -> None:
    """Nothing that kube-scheduler reads is ignored in silence."""
    term = [{"topologyKey": "kubernetes.io/hostname"}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": term}
    odd = asking(
        "odd",
        {"hugepages-2Mi": "4Mi", "ephemeral-storage": "1Gi"},
        affinity={"podAffinity": required, "podAntiAffinity": required},
        topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone"}],
        schedulerName="hami-scheduler",
        volumes=[
            {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "w", "emptyDir": {}},
        ],
    )
    answer = simulated(line, offering("n1"), odd, asking("even", {}))
    found = entries(answer)

    words = [
        "ephemeral-storage",
        "hugepages-2Mi",
        "pod affinity",
        "pod anti-affinity",
        "schedulerName hami-scheduler (decided here by our rules)",
        "topology spread",
        "volume persistentVolumeClaim",
    ]
    assert (found["odd"]["node"], found["even"]["node"]) == ("n1", "n1")
    (said,) = json.loads(answer.out)["summary"]["warnings"]
    assert said == f"ml/odd: not looked at: {', '.join(words)}"
    sums = [f"warning: not looked at: {each}: pods=1: ml/odd" for each in words]
    assert all(each in answer.err for each in sums)
    assert said not in answer.err


def test_a_gang_of_which_other_pods_decide_where_it_goes_is_not_decided(
    line: CommandLine,
) -> None:
    """kube-scheduler has a say about each member, and starts the gang whole or not at all."""
    gang = {f"gang.scheduling.koordinator.sh/{key}": "2" for key in ("name", "min-available")}
    term = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    spread = [{"maxSkew": 1, "topologyKey": "zone"}]
    anyway = {"whenUnsatisfiable": "ScheduleAnyway"}
    pods = [
        asking("w-0", {}, affinity=apart, topologySpreadConstraints=spread),
        asking("w-1", {}),
        asking("soft-0", {}, topologySpreadConstraints=[{**spread[0], **anyway}]),
        asking("alone", {}, topologySpreadConstraints=spread),
    ]
    for one in pods[:2]:
        one["metadata"]["annotations"] = gang
    pods[2]["metadata"]["annotations"] = dict.fromkeys(gang, "1")
    answer = simulated(line, offering("n1"), *pods)

    assert {each["node"] for each in entries(answer).values()} == {"n1"}
    warnings = json.loads(answer.out)["summary"]["warnings"]
    undecided = [each for each in warnings if "not decided" in each]
    assert undecided == ["gang ml/2: not decided: podAntiAffinity, topologySpreadConstraints"]


def test_anti_affinity_of_pods_that_run_is_said(line: CommandLine) -> None:
    """kube-scheduler keeps others off them too."""
    term = [{"topologyKey": "kubernetes.io/hostname"}]
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    answer = simulated(
        line,
        offering("n1"),
        asking("r", {}, nodeName="n1", phase="Running", affinity=rule),
        asking("gone", {}, nodeName="n1", phase="Failed", affinity=rule),
        asking("p", {}),
    )

    assert json.loads(answer.out)["summary"]["warnings"] == [
        "not looked at: pod anti-affinity of running Pods: pods=1"
    ]


def test_a_gated_pod_is_not_scheduled_and_our_own_gate_is_ours(line: CommandLine) -> None:
    """kube-scheduler leaves a Pod with gates alone; the gang's gate is lifted by us."""
    answer = simulated(
        line,
        offering("n1"),
        asking("gated", {}, schedulingGates=[{"name": "example.com/wait"}]),
        asking("ours", {}, schedulingGates=[{"name": "tenure.sh/gang"}]),
    )
    found = entries(answer)

    assert found["gated"]["node"] is None
    assert "example.com/wait" in found["gated"]["unschedulable"]["message"]
    assert json.loads(answer.out)["summary"]["warnings"] == []
    assert found["ours"]["node"] == "n1"


def test_cards_of_a_vendors_own_plugin_are_counted(line: CommandLine) -> None:
    """Without Device objects `amd.com/gpu` is a number, as kube-scheduler has it."""
    found = entries(
        simulated(
            line,
            offering("n1", **{"amd.com/gpu": 8}),
            offering("n2", **{"nvidia.com/gpu": 8}),
            asking("r", {"amd.com/gpu": 6}, nodeName="n1", phase="Running"),
            asking("p", {"amd.com/gpu": 2}),
            asking("q", {"amd.com/gpu": 1}),
            asking("g", {"nvidia.com/gpu": 1}),
        )
    )

    assert (found["p"]["node"], found["g"]["node"]) == ("n1", "n2")
    assert found["q"]["unschedulable"]["nodes"] == {
        "n1": ["Insufficient amd.com/gpu"],
        "n2": ["Insufficient amd.com/gpu"],
    }


def test_a_vendor_without_its_label_is_said(line: CommandLine) -> None:
    """The Pod says nothing of labels: what is missing is the node's."""
    found = entries(
        simulated(
            line,
            offering("n1"),
            device(gpu_device(0), name="n1"),
            offering("bare"),
            asking("p", {"amd.com/gpu": 1}),
            asking("q", {"amd.com/gpu": 1}, nodeSelector={"zone": "a"}),
        )
    )

    words = (
        "node(s) didn't have GPUs of the vendor asked for (label node.koordinator.sh/gpu-vendor)"
    )
    affinity = "node(s) didn't match Pod's node affinity/selector"
    assert found["p"]["unschedulable"]["nodes"] == {
        "n1": [words],
        "bare": ["Insufficient gpu devices"],
    }
    assert found["q"]["unschedulable"]["nodes"] == {"n1": [affinity], "bare": [affinity]}
