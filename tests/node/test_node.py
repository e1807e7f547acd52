"""The node of these tests is a real one: what runs on it says what it sees."""

from __future__ import annotations

from tests.support.kube.binaries import version_in
from tests.support.node.node import Node
from tests.support.node.pods import Pods, container
from tests.support.node.programs import MODULES


def test_a_pod_runs_and_says_its_environment(machine: Node, pods: Pods) -> None:
    """Placed by kube-scheduler, started by kubelet, containerd and runc, read from inside."""
    pods.make("first", [container(environment={"SAID": "by the spec"})])

    pod = pods.running("first")

    (seen,) = machine.seen(pod)
    assert seen["environment"]["SAID"] == "by the spec"
    assert seen["cards"] == []
    assert machine.processes(pod)
    info = machine.status()["nodeInfo"]
    assert info["kubeletVersion"] == version_in(MODULES / "kubelet", "k8s.io/kubernetes")
    assert info["containerRuntimeVersion"].startswith("containerd://2.")


def test_a_container_that_is_killed_runs_again(machine: Node, pods: Pods) -> None:
    """Tests of restarts rest on this."""
    pods.make("again", [container()])
    first = pods.running("again")
    machine.seen(first)  # else it may end before it has spoken
    pods.kill(first)

    pod = pods.running("again", restarts=1)

    assert len(machine.seen(pod, runs=2)) == 2
