"""What an agent writes of CPUs is what the scheduler's own reader has of it, on random nodes."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agent.decide.node_cpus import KubeletManagers, find_cpu_holders
from agent.decide.pools import NodeCpus, pools_of
from agent.report.topology import build_topology
from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.node_cpu import (
    KubeletCpuPolicy,
    decode_cpu_shared_pools,
    decode_pod_cpu_allocs,
)
from ledger.domain.cpuset import CpuSet, cpuset_of, parse_cpuset, union
from ledger.domain.kube.node_objects import decode_node, decode_witnesses
from ledger.domain.kube.nrt_objects import read_topology
from ledger.domain.nodes import NumaZone
from ledger.domain.topology import CpuTopology
from tests.support.found_cpus import found_cpus, holding, pod_here
from tests.support.machines import SEEDS, machines
from tests.support.objects import node

_POLICIES = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}
_OPTIONS = ("full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket")


def _parts(topology: CpuTopology, count: int, rng: Random) -> list[CpuSet]:
    """Part some CPUs of a machine among so many, some of whom have none."""
    parts: list[list[int]] = [[] for _ in range(count)]
    for cpu in topology.cpuset:
        if rng.random() < 0.7:
            parts[rng.randrange(count)].append(cpu)
    return [cpuset_of(part) for part in parts]


@given(topology=machines(), seed=SEEDS, v1alpha1=st.booleans())
def test_what_is_written_reads_back_equal(
    topology: CpuTopology, seed: int, *, v1alpha1: bool
) -> None:
    """Topology, zones, policies, pinned CPUs, holders and pools; in either version of the kind."""
    rng = Random(seed)
    options = {name: "true" for name in _OPTIONS if rng.random() < 0.5}
    reserved, *own = _parts(topology, 9, rng)
    cpu = KubeletCpuPolicy(
        policy=rng.choice(["none", "static"]),
        options=tuple(sorted(options.items())),
        reserved_cpus=reserved,
    )
    managers = KubeletManagers(
        cpu=cpu,
        topology_policy=rng.choice(sorted(_POLICIES)),
        topology_scope=rng.choice(["container", "pod"]),
    )
    by_kubelet = {f"k{place}": str(cpus) for place, cpus in enumerate(own[:4]) if cpus}
    by_kubelet = by_kubelet if cpu.policy == "static" else {}
    held = [holding(f"h{place}", str(cpus)) for place, cpus in enumerate(own[4:7]) if cpus]
    uids = [*by_kubelet, *(one.pod_uid for one in held), "idle"]
    pods = [pod_here(uid, rng.choice(["", "LSE", "LSR"])) for uid in uids if rng.random() < 0.9]
    found = found_cpus(topology, managers=managers, pinned=by_kubelet, pods=pods)
    keeps = {"node.koordinator.sh/reservation": json.dumps({"reservedCPUs": str(own[7])})}
    body = node("n1", annotations=keeps)
    body["metadata"]["uid"] = "u"

    made = json.loads(json.dumps(build_topology(found, body, (), held)))
    if v1alpha1:
        del made["attributes"]

    read = read_topology(made)
    assert (read.cpus or CpuTopology(cpus=())) == topology
    assert read.kubelet == cpu
    assert read.pinned == union(map(parse_cpuset, by_kubelet.values()))
    assert read.numa_policy is _POLICIES[managers.topology_policy]
    if managers.topology_policy != "none" or not v1alpha1:
        assert read.pod_scope is (managers.topology_scope == "pod")
    assert read.zones == tuple(
        NumaZone(id=numa, cpu_milli=1000 * len(topology.cpus_in_numa(numa)), memory_bytes=63 << 30)
        for numa in topology.numa_nodes
    )

    annotations = made["metadata"]["annotations"]
    holders = find_cpu_holders(found, held)
    allocs = decode_pod_cpu_allocs(annotations["node.koordinator.sh/pod-cpu-allocs"])
    assert allocs == tuple(one for one, _ in holders)
    assert decode_witnesses(None, made).cpus == {
        uid: parse_cpuset(text) for uid, text in by_kubelet.items()
    }
    pools = pools_of(
        NodeCpus(topology=topology, kubelet_reserved=reserved, reserved=own[7]),
        (mine for _, mine in holders),
    )
    for key, best_effort, wanted in (
        ("cpu-shared-pools", False, pools.shared),
        ("be-cpu-shared-pools", True, pools.best_effort),
    ):
        text = annotations[f"node.koordinator.sh/{key}"]
        assert decode_cpu_shared_pools(text, best_effort=best_effort) == wanted

    facts, warnings = decode_node(body, None, made)
    assert not warnings
    assert facts.cpu_topology == topology
    assert facts.unpooled_cpus == read.pinned | own[7]
    assert facts.reserved_cpus == read.pinned | own[7] | reserved
