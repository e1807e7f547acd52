"""Pods with a QoS class, and the priority that the API server writes before any webhook."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.kube.api import Reply
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.pods import HALF, pod, pods_in
from tests.support.kube.policies import in_force
from tests.support.kube.webhooks import serving
from tests.support.process import tenure

CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
QOS: Final = "koordinator.sh/qosClass"
CLASS: Final = "koordinator.sh/priority-class"
CPUS: Final[dict[str, str]] = {"cpu": "2", "memory": "1Gi"}
_WAIT_SECONDS: Final = 60.0

Namespace = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def cluster(plane: ControlPlane) -> Iterator[None]:
    """Webhooks and policies in force."""
    with serving(plane), in_force(plane):
        yield


def a_class(name: str, value: int, **more: object) -> dict[str, Any]:
    """Return a PriorityClass of Kubernetes."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**head, "metadata": {"name": name}, "value": value, **more}


def checked(folder: Path, *objects: dict[str, Any]) -> dict[str, Any]:
    """Return what `tenure check` says of the last of these objects."""
    file = folder / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    done = tenure("check", str(file), "-o", "json", cwd=folder)
    assert done.returncode in {0, 1}, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)[-1]
    return said


def with_qos(qos: str, amounts: dict[str, str] = CPUS, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a Pod with a QoS class and no word on its priority."""
    return pod("a", amounts, labels={QOS: qos}, **spec)


@pytest.mark.parametrize(
    ("body", "written"),
    [
        pytest.param(with_qos("LSR"), "koord-prod", id="LSR"),
        pytest.param(with_qos("LSE"), "koord-prod", id="LSE"),
        pytest.param(with_qos("LS", HALF), "koord-prod", id="LS with a share of a card"),
        pytest.param(with_qos("BE", HALF), "koord-batch", id="BE with a share of a card"),
        pytest.param(with_qos("BE"), None, id="BE without anything of ours"),
    ],
)
def test_a_qos_class_alone_is_enough(
    plane: ControlPlane,
    namespace: Namespace,
    tmp_path: Path,
    body: dict[str, Any],
    written: str | None,
) -> None:
    """The API server's priority of 0 is nobody's word; the Pod is stored with its QoS's class."""
    made = plane.api(MALLORY).create(pods_in(namespace()), body)
    assert made.ok, made.message
    assert made.body["spec"]["priority"] == 0
    assert made.body["metadata"]["labels"].get(CLASS) == written
    said = checked(tmp_path, body)
    assert said["allowed"], said["message"]
    assert said["object"]["metadata"]["labels"].get(CLASS) == written
    assert "priority" not in said["object"]["spec"]


def test_what_a_user_says_of_priority_counts_as_in_a_cluster(
    plane: ControlPlane, namespace: Namespace, tmp_path: Path
) -> None:
    """By label, by a class of the cluster, by a built-in one, and by a number alone."""
    where = pods_in(namespace())
    classes = [a_class("gateways", 9500), a_class("reports", 1000), a_class("nothing", 0)]
    classes.append(a_class("patient", 9500, preemptionPolicy="Never"))
    for one in classes:
        assert plane.api().create(CLASSES, one).ok
    labelled = pod("a", CPUS, labels={QOS: "LSR", CLASS: "koord-batch"})
    answers = {}
    cases = {
        "another class by label": labelled,
        "prod by a class": with_qos("LSR", priorityClassName="gateways"),
        "none by a class": with_qos("LSR", priorityClassName="reports"),
        "0 by a class": with_qos("LSR", priorityClassName="nothing"),
        "a class of Kubernetes": with_qos("LSR", priorityClassName="system-cluster-critical"),
        "a number alone": with_qos("LSR", priority=9500),
        "a number that is the class's": with_qos(
            "LSR", priorityClassName="gateways", priority=9500
        ),
        "a number that is not the class's": with_qos(
            "LSR", priorityClassName="gateways", priority=9501
        ),
        "the API server's own": with_qos("LSR", priority=0),
        "BE by a class that is none": with_qos("BE", priorityClassName="reports"),
        "a policy that is the class's": with_qos(
            "LSR", priorityClassName="patient", preemptionPolicy="Never"
        ),
        "a policy that is not the class's": with_qos(
            "LSR", priorityClassName="gateways", preemptionPolicy="Never"
        ),
        "a policy alone": with_qos("LSR", preemptionPolicy="Never"),
        "the policy that Pods have without a class": with_qos(
            "LSR", preemptionPolicy="PreemptLowerPriority"
        ),
    }
    for case, body in cases.items():
        reply = settled(plane, where, body)
        said = checked(tmp_path, *classes, body)
        assert reply.ok == said["allowed"], (case, reply.message, said["message"])
        answers[case] = reply.ok
        if reply.ok and CLASS not in body["metadata"]["labels"]:
            label = reply.body["metadata"]["labels"].get(CLASS)
            assert said["object"]["metadata"]["labels"].get(CLASS) == label, case
    assert {case for case, allowed in answers.items() if allowed} == {
        "prod by a class",
        "a number that is the class's",
        "the API server's own",
        "a policy that is the class's",
        "the policy that Pods have without a class",
    }


def test_a_class_for_everybody_counts_as_given(
    plane: ControlPlane, namespace: Namespace, tmp_path: Path
) -> None:
    """Where a PriorityClass is the cluster's default, its number is the Pod's, for `check` too."""
    where, default = pods_in(namespace()), a_class("everybody", 1000, globalDefault=True)
    assert plane.api().create(CLASSES, default).ok
    try:
        reply = answered(plane, where, allowed=False)
        said = checked(tmp_path, default, with_qos("LSR"))
    finally:
        plane.api().delete(f"{CLASSES}/everybody")
    assert answered(plane, where, allowed=True).body["spec"]["priority"] == 0
    fact = "QoS LSR and priority class none do not go together"
    assert fact in reply.message
    assert fact in said["message"]


def answered(plane: ControlPlane, where: str, *, allowed: bool) -> Reply:
    """Create an LSR Pod as a dry run until the API server has learned of the classes that are."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        reply = plane.api(MALLORY).create(where, with_qos("LSR"), dry_run=True)
        if reply.ok is allowed:
            return reply
        assert time.monotonic() < until, reply.message
        time.sleep(0.2)


def settled(plane: ControlPlane, where: str, body: dict[str, Any]) -> Reply:
    """Create a Pod as a dry run, again while the API server has yet to learn of a class."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        reply = plane.api(MALLORY).create(where, body, dry_run=True)
        if "no PriorityClass with name" not in reply.message or time.monotonic() > until:
            return reply
        time.sleep(0.2)
