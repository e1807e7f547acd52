"""RuntimeClasses among the objects: what the API server's admission makes of Pods that name one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine, dumped
from tests.support.objects import Object, container, node, pod
from tests.support.simulating import Simulate

pytestmark = pytest.mark.integration

LSR: Final = {"koordinator.sh/qosClass": "LSR"}
OVERHEAD: Final = {"cpu": "250m", "memory": "64Mi"}
POOL: Final = {"pool": "kata"}
TAINT: Final = {"key": "kata", "effect": "NoSchedule"}
TOLERATES: Final = {"key": "kata", "operator": "Exists"}
SIZES: Final = {"cpu": 4, "memory": "8Gi"}


def a_class(name: str = "kata", **more: object) -> Object:
    """Return a RuntimeClass with an overhead, on nodes of its own."""
    head = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
    scheduling = {"nodeSelector": POOL, "tolerations": [TOLERATES]}
    made = {"handler": "kata", "overhead": {"podFixed": OVERHEAD}, "scheduling": scheduling}
    return {**head, **made, **more}


def asking(cpus: str = "2", *, labels: dict[str, str] | None = None, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    """Return a Pod of one container that names the class."""
    amounts = {"cpu": cpus, "memory": "1Gi"}
    one = container("main", limits=amounts, requests=amounts)
    return pod(one, labels=labels, **{"runtimeClassName": "kata", **spec})


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line, without a ledger."""
    return CommandLine(tmp_path / "none.db", capsys)


def checked(cli: CommandLine, *objects: Object) -> tuple[list[str], list[str], Object]:
    """Return the fields that refuse the last object, its warnings, and what becomes of it."""
    entry = json.loads(cli.run("check", dumped(cli, *objects), "-o", "json").out)[-1]
    return [cause["field"] for cause in entry["causes"]], entry["warnings"], entry["object"]


CASES: dict[str, tuple[Object, Object, list[str]]] = {
    "the same overhead": (a_class(), asking(overhead={"cpu": "0.25", "memory": "64Mi"}), []),
    "another overhead": (a_class(), asking(overhead={"cpu": "1"}), ["spec.overhead"]),
    "an overhead that the class has not": (
        a_class(overhead=None),
        asking(overhead=OVERHEAD),
        ["spec.overhead"],
    ),
    "an overhead without a class": (
        a_class(),
        asking(overhead=OVERHEAD, runtimeClassName=None),
        ["spec.overhead"],
    ),
    "the same pool": (a_class(), asking(nodeSelector={**POOL, "zone": "a"}), []),
    "another pool": (a_class(), asking(nodeSelector={"pool": "x"}), ["spec.nodeSelector[pool]"]),
    "nothing said": ({**a_class(), "overhead": None, "scheduling": None}, asking(), []),
    "a CPU in parts by its overhead": (
        a_class(),
        asking(labels=LSR),
        ["spec.containers[0].resources.requests[cpu]"],
    ),
    "whole CPUs with its overhead": (
        a_class(overhead={"podFixed": {"cpu": "1"}}),
        asking(labels=LSR),
        [],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pod_is_refused_as_the_class_says(
    cli: CommandLine, case: tuple[Object, Object, list[str]]
) -> None:
    """Overhead and node selector that contradict it, and whole CPUs by the sum with it."""
    given, body, fields = case
    assert checked(cli, given, body)[0] == fields


def test_the_patch_has_nothing_of_what_the_api_server_fills_in(cli: CommandLine) -> None:
    """It does so again when the object is applied."""
    given = a_class(overhead={"podFixed": {"cpu": "1"}}, scheduling={"nodeSelector": POOL})
    fields, warnings, after = checked(cli, given, asking(labels=LSR, nodeSelector={"zone": "a"}))
    assert (fields, "RuntimeClass" in "".join(warnings)) == ([], False)
    assert after["spec"]["nodeSelector"] == {"zone": "a"}
    assert "overhead" not in after["spec"]


def test_classes_that_are_not_there_are_named(cli: CommandLine) -> None:
    """They count as none, and the API server refuses the Pod where they are none."""
    fields, warnings, _ = checked(cli, a_class("other"), asking(priorityClassName="gold"))
    assert fields == []
    assert [text.partition(" is not in the input")[0] for text in warnings] == [
        "spec.priorityClassName: PriorityClass gold",
        "spec.runtimeClassName: RuntimeClass kata",
    ]
    built_in = asking(runtimeClassName=None, priorityClassName="system-node-critical")
    assert checked(cli, built_in)[1] == []


def test_a_class_that_can_not_be_read_is_an_error_with_its_place(cli: CommandLine) -> None:
    """Exit 2, at the Pod that needs it: the API server would not have stored it."""
    broken = a_class(overhead={"podFixed": {"cpu": "many"}})
    answer = cli.run("check", dumped(cli, broken, asking()))
    assert answer.code == 2
    assert "Pod ml/p: RuntimeClass[kata].overhead.podFixed[cpu]: not a quantity" in answer.err


def test_a_simulation_places_pods_by_their_class(simulate: Simulate) -> None:
    """With its overhead, on its nodes; a stored Pod is as it is, a contradicting one refused."""
    kata = node("kata", allocatable=SIZES, labels=POOL, taints=[TAINT])
    pods = {
        "first": asking("2"),
        "second": asking("1500m"),
        "other": asking("1", nodeSelector={"pool": "x"}),
        "stored": asking("1", runtimeClassName="kata"),
    }
    for name, body in pods.items():
        body["metadata"] = {"name": name, "namespace": "ml"}
    pods["stored"]["metadata"]["uid"] = "u"
    document = simulate(
        node("plain", allocatable={"cpu": 1, "memory": "8Gi"}), kata, a_class(), *pods.values()
    )
    placed = {one["name"]: one["node"] for one in document["placements"]}
    assert placed == {"first": "kata", "second": "kata", "other": None, "stored": "plain"}
    (refused,) = (one for one in document["placements"] if one["name"] == "other")
    assert "spec.nodeSelector[pool]" in json.dumps(refused["unschedulable"])
    assert not [one for one in document["summary"]["warnings"] if "RuntimeClass" in one]
