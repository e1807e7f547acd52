"""Who has which CPUs of nodes, and for whom the others are: by a ledger's state or by objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from agent.decide.pools import NodeCpus, PodCpus, Pools, claimed_cpus, own_cpus, pools_of
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of
from ledger.domain.log.events import CLAIM, PodObserved, PodReserved
from ledger.domain.log.machines import Machine, machine_of
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.state import OBSERVED, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.topology import CpuTopology, cpu_topology_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHolder:
    """
    A Pod or a claim with CPUs of its own.

    Attributes:
        pod: its namespace and name, of a claim with that word before them.
        observed: someone else than Tenure gave them.
        own: with whom it shares them; None = nobody said, as where its event is in an archive.
    """

    pod: str
    cpus: CpuSet
    observed: bool = False
    own: PodCpus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusNow:
    """
    The CPUs of one node at one moment.

    Attributes:
        reserved: kept back by kubelet, the node or its system; None = nobody said, as where the
            node's description is in an archive.
        pools: for whom the CPUs are; None where nobody said what is kept back, or with whom one
            of the holders shares.
    """

    node: str
    topology: CpuTopology
    holders: tuple[CpuHolder, ...] = ()
    reserved: CpuSet | None = None
    pools: Pools | None = None

    @property
    def held(self) -> CpuSet:
        """Return the CPUs that some Pod has to itself."""
        return cpuset_of(cpu for holder in self.holders for cpu in holder.cpus)

    @property
    def free(self) -> CpuSet:
        """Return the CPUs that nobody has and nobody is known to keep back."""
        return self.topology.cpuset - self.held - (self.reserved or EMPTY)


def cpus_of_states(
    nodes: Iterable[NodeState],
    described: Mapping[str, RecordedNode] = MappingProxyType({}),
    opened: Mapping[int, PodReserved | PodObserved] = MappingProxyType({}),
) -> tuple[CpusNow, ...]:
    """
    Return the nodes of a ledger that report CPUs, or on which Pods hold some, by name.

    Args:
        described: UID of a node -> what was last said of it beside its inventory.
        opened: position -> the event that opened a holding with CPUs.
    """
    seen, held = [], []
    for node in nodes:
        told = described.get(node.uid)
        seen.append(
            _Node(
                uid=node.uid,
                name=node.name,
                machine=machine_of(node),
                topology=cpu_topology_of(node.cpus) if node.cpus else None,
                reserved=None if told is None else told.reserved_cpus,
                unpooled=EMPTY if told is None else told.unpooled_cpus,
            )
        )
        for holding in node.everyone():
            event = opened.get(holding.opened_position)
            own = None if event is None else own_cpus(event)
            is_claim = holding.holder == CLAIM
            holder = CpuHolder(
                pod=f"{'claim ' * is_claim}{holding.namespace}/{holding.pod_name}",
                cpus=holding.cpuset,
                observed=holding.kind == OBSERVED,
                own=claimed_cpus(holding.cpuset) if is_claim else own,
            )
            stayed = (holding.machine[0], holding.machine[1]) if holding.machine else None
            held.append((node.uid, stayed or machine_of(node), holder))
    return _cpus_now(seen, held)


def cpus_of_objects(
    nodes: Sequence[NodeFacts], observed: Iterable[PodObserved]
) -> tuple[CpusNow, ...]:
    """Return the nodes of a cluster that report CPUs, or on which Pods hold some, by name."""
    machines = {node.uid: machine_of(node) for node in nodes}
    seen = [
        _Node(
            uid=node.uid,
            name=node.name,
            machine=machines[node.uid],
            topology=node.cpu_topology,
            reserved=node.reserved_cpus,
            unpooled=node.unpooled_cpus,
        )
        for node in nodes
    ]
    held = [
        (
            event.node_uid,
            machines[event.node_uid],
            CpuHolder(
                pod=f"{event.namespace}/{event.pod_name}",
                cpus=event.cpuset,
                observed=True,
                own=own_cpus(event),
            ),
        )
        for event in observed
        if event.node_uid in machines
    ]
    return _cpus_now(seen, held)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What the map reads of one node; `reserved` and `unpooled` as `NodeFacts` has them."""

    uid: str
    name: str
    machine: Machine
    topology: CpuTopology | None
    reserved: CpuSet | None
    unpooled: CpuSet


def _cpus_now(
    nodes: Iterable[_Node], held: Iterable[tuple[str, Machine, CpuHolder]]
) -> tuple[CpusNow, ...]:
    """
    Return the CPUs of these nodes.

    Rule: design section 4, "One account per physical device": the CPUs are the machine's, so that
    each of its Nodes shows who holds them, through whichever.

    Args:
        held: UID of the node, the machine whose CPUs they are, and who holds them.
    """
    of_machine: dict[Machine, list[CpuHolder]] = {}
    of_node: dict[str, list[tuple[Machine, CpuHolder]]] = {}
    for uid, machine, holder in held:
        if holder.cpus:
            of_machine.setdefault(machine, []).append(holder)
            of_node.setdefault(uid, []).append((machine, holder))
    found = []
    for node in sorted(nodes, key=lambda node: node.name):
        own = of_node.get(node.uid, [])
        elsewhere = [holder for machine, holder in own if machine != node.machine]
        every = [*of_machine.get(node.machine, []), *elsewhere]
        holders = tuple(sorted(every, key=lambda one: (one.cpus.mask & -one.cpus.mask, one.pod)))
        if node.topology is not None or holders:
            found.append(
                CpusNow(
                    node=node.name,
                    topology=node.topology or cpu_topology_of(()),
                    holders=holders,
                    reserved=node.reserved,
                    pools=_pools(node, holders),
                )
            )
    return tuple(found)


def _pools(node: _Node, holders: Iterable[CpuHolder]) -> Pools | None:
    """Return the node's pools as its agent computes them, None where nobody said enough."""
    own = [holder.own for holder in holders]
    pods = [pod for pod in own if pod is not None]
    if node.topology is None or node.reserved is None or len(pods) < len(own):
        return None
    cpus = NodeCpus(
        topology=node.topology,
        kubelet_reserved=node.reserved - node.unpooled,
        reserved=node.unpooled,
    )
    return pools_of(cpus, pods)
