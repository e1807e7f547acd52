"""Where the kernel lets Pods of every class run, once a plan is written, beside a real kubelet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cpus.binder import Binder
from agent.cpus.tree import Kubepods
from agent.decide.cgroups import UnboundReason
from agent.decide.planned_pods import planned_pods
from agent.decide.pools import NodeCpus, PodCpus, pools_of, suppressed_cpus
from agent.decide.wanted_cpus import NodePlanned
from agent.kubelet.managers import read_configuration
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, parse_cpuset
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.support.node.node import Node
from tests.support.node.pods import Pods, container
from tests.support.node.room import CGROUPS

QOS: Final = "koordinator.sh/qosClass"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
TWO_NODES: Final = cpu_topology_of(Cpu(id=one, core=one, socket=0, numa=one) for one in range(2))
"""The machine's two CPUs, as if each were a NUMA node."""
WHOLE: Final = {"cpu": "1", "memory": "64Mi"}
SOME: Final = {"cpu": "50m"}
PART: Final = {"cpu": "50m", "memory": "64Mi"}
FOUR: Final = cpu_topology_of(
    Cpu(id=one, core=core, socket=0, numa=0) for core, one in enumerate((2, 3, 0, 1))
)
"""As if it had two more, whose cores come first: they are taken first."""
OF_NODE_1: Final = '{"cpuSharedPools": [{"socket": 0, "node": 1}]}'


class Bound:
    """The Pods of a test, bound by one plan after the other."""

    def __init__(self, machine: Node, pods: Pods, tree: Kubepods, state: Path) -> None:
        self.machine, self.pods, self.tree = machine, pods, tree
        self.binder = Binder(tree=tree, state=state, clock=time.monotonic)
        self.node = NodeCpus(topology=TWO_NODES)

    def runs(self, name: str, qos: str = "", status: str = "", **resources: Any) -> None:  # noqa: ANN401 - of a container
        """Start a Pod of one container, and wait until it runs."""
        self.pods.make(
            name,
            [{**container(), "resources": resources}],
            labels={QOS: qos} if qos else {},
            annotations={STATUS: status} if status else {},
        )
        self.pods.running(name)

    def bind(
        self,
        own: str = "",
        *,
        qos: QosClass = QosClass.LSR,
        allowed: bool = True,
        load: int | None = None,
    ) -> None:
        """Write the plan for the Pods that run; `load`: what it leaves to best effort."""
        planned, doubted = planned_pods(self.pods.all(), {}, ())
        assert not doubted
        held = {}
        if own:
            uid = self.pods.get("lsr")["metadata"]["uid"]
            held = {uid: PodCpus(cpus=parse_cpuset(own), qos=qos)}
        node = NodePlanned(cpus=self.node, held=held, pods=planned)
        if load is not None:
            pools = pools_of(node.cpus, held.values())
            left = suppressed_cpus(load, pools, self.node.topology, EMPTY)
            node = replace(node, best_effort=left)
        made = self.binder.round(node, allowed=allowed, whole=True)
        assert not made.applied.refused
        assert {one.reason for one in made.problems} <= {UnboundReason.NO_PARTITION}

    def cpus(self, name: str) -> set[str]:
        """Return where the kernel lets the processes of a Pod's container run."""
        pod = self.pods.get(name)
        [status] = pod["status"]["containerStatuses"]
        pids = self.machine.processes(pod, status["containerID"].rpartition("/")[2])
        assert pids, name
        lines = (Path(f"/proc/{pid}/status").read_text() for pid in pids)
        return {text.partition("Cpus_allowed_list:\t")[2].partition("\n")[0] for text in lines}


@pytest.fixture
def bound(machine: Node, pods: Pods, tmp_path: Path) -> Iterator[Bound]:
    """The node's own cgroups."""
    place = f"{machine.room.cgroup}/kubepods"
    with closing(Kubepods(CGROUPS / "cpuset" / place, CGROUPS / "cpu" / place, (6, 1))) as tree:
        yield Bound(machine, pods, tree, tmp_path)


def test_pods_of_every_class_run_in_their_pools(bound: Bound) -> None:
    """
    The shared pool is what no LSR Pod has; best effort rides on LSR's CPUs while the load is low.

    Never on an LSE Pod's. A container that starts again is bound by the next plan; when the LSR
    Pod has gone, all pools are the machine's.
    """
    bound.runs("lsr", "LSR", '{"cpuset": "1"}', limits=WHOLE)
    bound.runs("ls", "LS", requests=SOME)
    bound.runs("burstable", requests=SOME)
    bound.runs("part", limits=PART)
    bound.runs("be", "BE")
    bound.runs("best-effort")
    shared, best_effort = ("ls", "burstable", "part"), ("be", "best-effort")

    bound.bind("1")
    assert bound.cpus("lsr") == {"1"}
    assert [bound.cpus(name) for name in shared] == [{"0"}] * 3
    assert [bound.cpus(name) for name in best_effort] == [{"0-1"}] * 2

    bound.bind("1", load=0)
    assert [bound.cpus(name) for name in best_effort] == [{"0"}] * 2
    bound.bind("1", load=2000)
    assert [bound.cpus(name) for name in best_effort] == [{"0-1"}] * 2

    for load in (None, 2000):
        bound.bind("1", qos=QosClass.LSE, load=load)
        assert [bound.cpus(name) for name in best_effort] == [{"0"}] * 2

    bound.pods.kill(bound.pods.get("ls"))
    bound.pods.running("ls", restarts=1)
    bound.bind("1")
    assert bound.cpus("ls") == {"0"}

    bound.pods.remove("lsr")
    bound.bind()
    assert [bound.cpus(name) for name in (*shared, *best_effort)] == [{"0-1"}] * 5


def test_an_ls_pod_runs_in_the_pool_that_its_status_names(bound: Bound) -> None:
    """By socket and NUMA node, beside others that run in all pools; and all is given back."""
    bound.runs("named", "LS", OF_NODE_1, requests=SOME)
    bound.runs("all", "LS", requests=SOME)

    bound.bind()
    assert (bound.cpus("named"), bound.cpus("all")) == ({"1"}, {"0-1"})

    bound.bind(allowed=False)
    assert (bound.cpus("named"), bound.cpus("all")) == ({"0-1"}, {"0-1"})


@pytest.mark.parametrize("reserved", ["0", "1"])
def test_best_effort_uses_the_cpus_that_kubelet_reserves_first(bound: Bound, reserved: str) -> None:
    """
    Of four CPUs, two are left to it: kubelet's, before those that come first otherwise.

    The other one of both is none that this machine has. While the load is low, it has all.
    """
    machine, file = bound.machine, bound.machine.room.folder / "kubelet.yaml"
    with machine.configured(cpuManagerPolicy="static", reservedSystemCPUs=reserved):
        kubelet = read_configuration(file).cpu
        assert (kubelet.is_static, str(kubelet.reserved_cpus)) == (True, reserved)
        bound.node = NodeCpus(
            topology=FOUR, kubelet_reserved=kubelet.reserved_cpus, kubelet_static=True
        )
        bound.runs("be", "BE")
        bound.runs("best-effort")
        bound.bind()
        assert [bound.cpus(name) for name in ("be", "best-effort")] == [{"0-1"}] * 2

        bound.bind(load=2000)
        assert [bound.cpus(name) for name in ("be", "best-effort")] == [{reserved}] * 2
        bound.pods.remove_all()
        bound.bind(allowed=False)
