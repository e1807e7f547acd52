"""The NodeResourceTopology of this node, out of its CPUs, kubelet's word and the ledger's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from agent.decide.node_cpus import FoundCpus, NumaNode, find_cpu_holders
from agent.decide.node_holdings import HeldByPod
from agent.decide.pools import NodeCpus, Pools, claimed_cpus, pools_of
from agent.report.device import Object, owner_of
from ledger.domain import resources as names
from ledger.domain.annotations import node_cpu
from ledger.domain.kube.nrt_objects import encode_topology_policy, read_node_reserve
from ledger.domain.kube.object_fields import annotations_of, found_in, section
from ledger.domain.quantity import QuantityStyle, format_quantity, quantity_from_int, quantity_of

CACHES: Final = "lastLevelCaches"
"""Attribute of a zone: the CPUs of each last-level cache, with semicolons between."""


def build_topology(
    found: FoundCpus, node: Object, devices: Sequence[Object], held: Iterable[HeldByPod]
) -> Object:
    """
    Return the object, as Koordinator's agent writes it.

    Rule: Koordinator contract 2.4 and 3.2; CPU proposal, "NodeResourceTopology CRD".

    Args:
        devices: entries of the node's Device object, for the zones that they sit in.
        held: what the ledger says is held.

    Raises:
        InputError: what the Node keeps back, or a Pod's own status, can't be read; or see `claims`.
    """
    managers, topology = found.managers, found.machine.topology
    holders = find_cpu_holders(found, held)
    reserve = read_node_reserve(annotations_of(node), topology)
    own = [own for _, own in holders] + [claimed_cpus(one.cpus) for one in found.claims]
    pools = pools_of(NodeCpus(topology=topology, reserved=reserve), own)
    aligned = {
        "topologyManagerPolicy": managers.topology_policy,
        "topologyManagerScope": managers.topology_scope,
    }
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": node["metadata"]["name"],
            "labels": {names.LABEL_MANAGED_BY: "Koordinator"},
            "annotations": {
                names.ANNOTATION_CPU_TOPOLOGY: node_cpu.encode_cpu_topology(topology),
                names.ANNOTATION_POD_CPU_ALLOCS: node_cpu.encode_pod_cpu_allocs(
                    tuple(one for one, _ in holders)
                ),
                names.ANNOTATION_CPU_SHARED_POOLS: node_cpu.encode_cpu_shared_pools(pools.shared),
                names.ANNOTATION_BE_CPU_SHARED_POOLS: node_cpu.encode_cpu_shared_pools(
                    pools.best_effort
                ),
                names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: node_cpu.encode_kubelet_cpu_policy(
                    managers.cpu
                ),
            },
            "ownerReferences": [owner_of(node["metadata"])],
        },
        "topologyPolicies": [encode_topology_policy(*aligned.values())],
        "attributes": [{"name": name, "value": value} for name, value in aligned.items()],
        "zones": [_zone(found, numa, pools, devices) for numa in found.machine.numa],
    }


def _zone(
    found: FoundCpus, numa: NumaNode, pools: Pools, devices: Sequence[Object]
) -> dict[str, Any]:
    """
    Return a NUMA node; of CPUs is `available` what no Pod has alone.

    CPUs that are kept back are allocatable: whoever reads the object takes them off itself.
    """
    cpus = found.machine.topology.cpus_in_numa(numa.id)
    pages = {f"hugepages-{_size(size)}": amount for size, amount in numa.huge_pages.items()}
    given = {names.MEMORY: numa.memory_bytes - sum(pages.values()), **pages}
    given.update(found.memory.get(numa.id, {}))
    resources = [
        _resource(names.CPU, len(cpus), len(cpus), len(cpus - pools.exclusive)),
        _resource(names.MEMORY, numa.memory_bytes, given[names.MEMORY], given[names.MEMORY]),
        *(_resource(name, pages[name], given[name], given[name]) for name in sorted(pages)),
        *_device_resources(devices, numa.id),
    ]
    caches = [str(cache) for cache in found.machine.caches if cache & cpus]
    return {
        "name": f"node-{numa.id}",
        "type": "Node",
        "costs": [
            {"name": f"node-{other}", "value": distance}
            for other, distance in sorted(numa.distances.items())
        ],
        "attributes": [{"name": CACHES, "value": ";".join(caches)}] if caches else [],
        "resources": resources,
    }


def _resource(name: str, capacity: int, allocatable: int, available: int) -> dict[str, str]:
    amounts = {"capacity": capacity, "allocatable": allocatable, "available": available}
    return {"name": name, **{key: str(amount) for key, amount in amounts.items()}}


def _device_resources(devices: Iterable[Object], numa: int) -> Iterator[dict[str, str]]:
    """Yield what all devices of a NUMA node have, and of that what healthy ones have."""
    every: dict[str, int] = {}
    healthy: dict[str, int] = {}
    for entry in devices:
        if found_in(entry, "topology", "nodeID") == numa:
            for name, text in section(entry, "resources").items():
                amount = quantity_of(text).ceil()
                every[name] = every.get(name, 0) + amount
                healthy[name] = healthy.get(name, 0) + amount * bool(entry.get("health"))
    for name in sorted(every):
        yield _resource(name, every[name], healthy[name], healthy[name])


def _size(size_bytes: int) -> str:
    return format_quantity(quantity_from_int(size_bytes, style=QuantityStyle.BINARY_SI))
