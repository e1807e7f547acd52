"""
`tenure serve cpus` on a real node: the ledger's CPUs, put in place of what kubelet asks for.

A NodeResourceTopology that says nothing of kubelet's reserve has the ledger grant CPU 0, of two;
kubelet's static policy keeps that one for the system, and gives CPU 1.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pytest

from agent.manager_state import CPU_FILE, read_cpu_state
from ledger.domain.cpuset import CpuSet, parse_cpuset
from tests.support.kube.bursts import DIALECTS
from tests.support.node.clusters import Cluster
from tests.support.node.cpu_processes import (
    CREATE,
    START,
    UPDATE,
    UPDATED,
    binding,
    cgroups_of,
    main_process,
    overheard,
    polled,
)
from tests.support.node.node import Node
from tests.support.node.pods import Pods, container

pytestmark = pytest.mark.usefixtures("two_cpus")

QOS: Final = "koordinator.sh/qosClass"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
LSR: Final[dict[str, str]] = DIALECTS["cpuset"]["labels"]
STATIC: Final[dict[str, Any]] = {
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "1s",
}
RESERVED: Final = {"reservedSystemCPUs": "0"}
BY_AMOUNT: Final = {"systemReserved": {"cpu": "100m"}}
WHOLE: Final = {"limits": {"cpu": "1", "memory": "64Mi"}}
HALF: Final = {"limits": {"cpu": "500m", "memory": "64Mi"}}
SOME: Final = {"requests": {"cpu": "50m"}}


def asking(resources: dict[str, Any], name: str = "main") -> dict[str, Any]:
    """Return a container with these resources."""
    return {**container(name), "resources": resources}


def granted(pod: dict[str, Any]) -> str:
    """Return the CPUs that the ledger gave to a Pod, by its annotation."""
    return str(json.loads(pod["metadata"]["annotations"][STATUS])["cpuset"])


def given(machine: Node) -> dict[str, dict[str, CpuSet]]:
    """Return the CPUs that kubelet gave, by its own record."""
    return read_cpu_state((machine.room.folder / "kubelet" / CPU_FILE).read_bytes())[1]


def is_bound(pods: Pods, name: str, cpus: str) -> bool:
    """Tell whether each container of a Pod has these CPUs, its sandbox among them."""
    return set(cgroups_of(pods.node, pods.get(name)).values()) == {cpus}


def expect_bound(pods: Pods, **cpus: str) -> None:
    """Wait until the containers of these Pods have these CPUs."""
    machine = pods.node
    every = cpus.items()
    machine.until(lambda: all(is_bound(pods, *one) for one in every), f"they are not bound: {cpus}")


def test_what_the_ledger_granted_replaces_what_kubelet_asks_for(
    cluster: Cluster, pods: Pods
) -> None:
    """
    At creation before a process runs, and when kubelet sets its own CPUs again as it restarts.

    No process of the container ever runs on kubelet's CPU. The sandbox has the Pod's CPUs, too.
    """
    machine = cluster.machine
    with (
        machine.configured(**STATIC, **RESERVED),
        cluster.served() as served,
        cluster.scheduling(served),
        binding(cluster) as own,
        overheard(machine) as heard,
    ):
        machine.until(lambda: own.joins() == 1, "the runtime does not take it")
        pods.make("lsr", [asking(WHOLE)], labels=LSR, scheduler="tenure")
        pod = pods.running("lsr")
        uid = pod["metadata"]["uid"]
        assert granted(pod) == "0"
        assert given(machine) == {uid: {"main": parse_cpuset("1")}}
        expect_bound(pods, lsr="0")

        with polled(main_process(pods, "lsr")) as ran:
            machine.restart_kubelet(pod)
            machine.until(lambda: UPDATED in {call for _, call, _ in heard}, "no update")
        assert ran == {frozenset({0})}
        pods.kill(pod)
        pods.running("lsr", restarts=1)
        assert is_bound(pods, "lsr", "0")
        pods.remove_all()
    said = {(call, cpus) for of, call, cpus in heard if of == uid and call != UPDATED}
    assert said == {(CREATE, "1"), (START, "0"), (UPDATE, "1")}


def test_others_run_in_our_shared_pool_and_not_on_what_kubelet_reserves(
    cluster: Cluster, pods: Pods
) -> None:
    """
    LS, Burstable and Guaranteed Pods of fractions, which kubelet puts on every CPU, its own too.

    The ledger gave its reserved CPU to a Pod of two halves, which kubelet does not pin. Best effort
    rides there. When that Pod is gone, all run everywhere, until kubelet pins one: then best effort
    and all others have what kubelet reserves, and no more.
    """
    machine, classes = cluster.machine, {"ls": {QOS: "LS"}, "burstable": {}, "part": {}}
    with (
        machine.configured(**STATIC, **BY_AMOUNT),
        cluster.served() as served,
        cluster.scheduling(served),
        binding(cluster),
        overheard(machine) as heard,
    ):
        halves = [asking(HALF), asking(HALF, "other")]
        pods.make("lsr", halves, labels=LSR, scheduler="tenure")
        assert granted(pods.running("lsr")) == "0"
        for name, labels in classes.items():
            asks = {"limits": {"cpu": "50m", "memory": "64Mi"}} if name == "part" else SOME
            pods.make(name, [asking(asks)], labels=labels)
        pods.make("be", [container()], labels={QOS: "BE"})
        for name in (*classes, "be"):
            pods.running(name)
        assert given(machine) == {}
        expect_bound(pods, lsr="0", ls="1", burstable="1", part="1", be="0-1")
        asked = {cpus for _, call, cpus in heard if call == CREATE}

        pods.remove("lsr")
        expect_bound(pods, ls="0-1", burstable="0-1", part="0-1", be="0-1")
        pods.make("pinned", [asking(WHOLE)])
        uid = pods.running("pinned")["metadata"]["uid"]
        assert given(machine) == {uid: {"main": parse_cpuset("1")}}
        expect_bound(pods, ls="0", burstable="0", part="0", be="0")
        assert os.sched_getaffinity(main_process(pods, "pinned")) == {1}
        pods.remove_all()
    assert asked == {"0-1"}


def test_restarts_and_an_upgrade_widen_nothing(cluster: Cluster, pods: Pods) -> None:
    """
    Of what binds CPUs, of the runtime, of kubelet: processes run where they ran, at each moment.

    Containers that start again afterwards are bound again.
    """
    machine = cluster.machine
    with (
        cluster.served() as served,
        cluster.scheduling(served),
        binding(cluster) as own,
    ):
        pods.make("lsr", [asking(WHOLE)], labels=LSR, scheduler="tenure")
        pods.make("ls", [asking(SOME)], labels={QOS: "LS"})
        lsr, ls = pods.running("lsr"), pods.running("ls")
        expect_bound(pods, lsr="0", ls="1")
        with (
            polled(main_process(pods, "lsr")) as ran,
            polled(main_process(pods, "ls")) as shared,
        ):
            own.upgrade()
            machine.until(lambda: own.joins() == 1, "the runtime does not take it")
            machine.restart_containerd()
            machine.until(lambda: own.joins() == 2, "the runtime does not take it again")
            machine.restart_kubelet(lsr, ls)
            machine.until(machine.is_ready, "the node is not ready")
        assert (ran, shared) == ({frozenset({0})}, {frozenset({1})})

        for name in ("lsr", "ls"):
            pods.kill(pods.get(name))
            pods.running(name, restarts=1)
        expect_bound(pods, lsr="0", ls="1")
        pods.remove_all()
