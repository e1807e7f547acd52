"""Pods that come to one node and leave it: CPUs, memory and GPUs under every NUMA policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.decide.pools import NodeCpus, PodCpus, Pools, joined, pools_of
from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of
from ledger.domain.devices import DeviceTopology
from ledger.domain.nodes import NodeFacts, NumaZone
from ledger.domain.request.requests import CpuSetDemand, PodRequest, PodSnapshot
from ledger.domain.topology import CpuTopology
from scheduler.decide.engine import Engine
from scheduler.decide.numa.merge import masks_of
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from tests.support.cards import GIB, card, whole
from tests.support.examples import examples
from tests.support.machines import machines

SINGLE, RESTRICTED = NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED
STRICT = (SINGLE, RESTRICTED)
UNBOUND = ("None", "PCPULevel", "NUMANodeLevel")

Held = dict[str, Placement]
Step = tuple[PodRequest | None, int]


# What is drawn from is made once: each new strategy is checked, which takes longer than a draw.
EITHER: Final = st.booleans()
MACHINES: Final = machines()
NUMA_STRATEGIES: Final = st.sampled_from(["", "MostAllocated", "DistributeEvenly"])
ZONE_GIB: Final = st.sampled_from([0, 8, 16, 32])
GPUS: Final = st.sampled_from([0, 0, 1, 2, 3])
CPUS: Final = st.one_of(st.integers(1, 8), st.integers(1, 24))
BIND_POLICIES: Final = st.sampled_from(["FullPCPUs", "SpreadByPCPUs"])
ONE_IN_FOUR: Final = st.integers(0, 3)
EXCLUSIVE_POLICIES: Final = st.sampled_from(UNBOUND)
OWN_POLICIES: Final = st.sampled_from([NumaPolicy.NONE] * 6 + list(STRICT))
CPU_MILLI: Final = st.integers(1, 12_000)
POD_GIB: Final = st.sampled_from([0, 1, 4, 12, 20])
PINNED_QOS: Final = st.sampled_from(["LSR", "LSE"])


@st.composite
def nodes(draw: st.DrawFn, policies: Sequence[NumaPolicy] = tuple(NumaPolicy)) -> NodeFacts:
    """Draw a node without limits of its own: what its NUMA nodes and GPUs have is all there is."""
    machine = draw(MACHINES)
    numas = machine.numa_nodes
    places = draw(st.lists(st.sampled_from(numas), min_size=1, max_size=8))
    reserved: set[int] = set()
    if draw(EITHER):
        reserved = draw(st.sets(st.sampled_from(list(machine.cpuset)), max_size=4))
    return NodeFacts(
        uid="n-0",
        name="n-0",
        cpu_topology=machine,
        reserved_cpus=cpuset_of(reserved),
        numa_policy=draw(st.sampled_from(policies)),
        numa_strategy=draw(NUMA_STRATEGIES),
        numa_zones=tuple(NumaZone(id=numa, memory_bytes=draw(ZONE_GIB) * GIB) for numa in numas),
        devices=tuple(
            replace(
                card(minor).record,
                topology=DeviceTopology(socket=0, numa_node=numa, pcie_id=f"{minor}", bus_id=""),
            )
            for minor, numa in enumerate(places)
        ),
    )


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    """Draw a Pod with CPUs of its own or a share, memory, and maybe whole GPUs."""
    gpus = draw(GPUS)
    cpus = draw(CPUS)
    pinned = draw(EITHER)
    demand = CpuSetDemand(
        cpus=cpus,
        bind_policy=draw(BIND_POLICIES),
        required=draw(ONE_IN_FOUR) == 0,
        exclusive_policy=draw(EXCLUSIVE_POLICIES),
    )
    own = draw(OWN_POLICIES)
    return PodRequest(
        uid="p",
        namespace="ml",
        name="p",
        cpu_milli=cpus * 1000 if pinned else draw(CPU_MILLI),
        memory_bytes=draw(POD_GIB) * GIB,
        devices=(whole(gpus),) if gpus else (),
        cpuset=demand if pinned else None,
        numa=NumaTopologySpec(policy=own) if own else None,
        snapshot=PodSnapshot(qos=draw(PINNED_QOS) if pinned else "LS"),
    )


STEPS = st.lists(
    st.tuples(st.one_of(pods(), pods(), st.none()), st.integers(0, 9)), min_size=2, max_size=8
)
FEW, MANY = settings(max_examples=examples(40)), settings(max_examples=examples(400))


@dataclass(frozen=True, slots=True)
class Play:
    """An engine over one node, and what it gave to whom."""

    node: NodeFacts
    engine: Engine
    held: Held

    def do(self, step: Step, number: int) -> Placement | Unplaced | None:
        """Decide and reserve a Pod, or let one go."""
        request, choice = step
        if request is not None:
            answer = self.engine.decide(replace(request, uid=f"p{number}"))
            if isinstance(answer, Placement):
                self.engine.reserve(answer)
                self.held[answer.request.uid] = answer
            return answer
        if self.held:
            uid = sorted(self.held)[choice % len(self.held)]
            self.engine.release(uid)
            del self.held[uid]
        return None


def play(node: NodeFacts) -> Play:
    """Return the node with nothing on it."""
    return Play(node, Engine((node,), SchedulingSettings()), {})


def machine_of(node: NodeFacts) -> CpuTopology:
    """Return the node's CPUs, which every node here has."""
    assert node.cpu_topology is not None
    return node.cpu_topology


def numas_of(node: NodeFacts, placement: Placement) -> set[int]:
    """Return the NUMA nodes of everything that a Pod has."""
    places = [record.topology for record in placement.devices]
    return (
        {machine_of(node).cpu(cpu).numa for cpu in placement.cpuset}
        | {part.node for part in placement.numa_parts if part.cpu_milli or part.memory_bytes}
        | {place.numa_node for place in places if place is not None}
    )


def policy_of(node: NodeFacts, request: PodRequest) -> NumaPolicy:
    """Return the policy that counts: the node's, else the Pod's."""
    own = NumaPolicy.NONE if request.numa is None else request.numa.policy
    return node.numa_policy or own


# What there is, said again


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What each NUMA node has left for one more Pod."""

    cpu: dict[int, int]
    memory: dict[int, int]
    gpus: dict[int, int]

    def least_numas(self, request: PodRequest, part_in: str = "") -> int | None:
        """Return how few NUMA nodes hold the Pod, each with a part in everything asked for."""
        wanted = {
            "cpu": (request.cpu_milli, self.cpu),
            "memory": (request.memory_bytes, self.memory),
            "gpu": (sum(each.count for each in request.devices), self.gpus),
        }
        for mask in masks_of(sorted(self.cpu)):
            numas = [numa for numa in self.cpu if mask >> numa & 1]
            if all(
                sum(have[numa] for numa in numas) >= asked
                and (part_in not in {"", name} or all(have[numa] for numa in numas))
                for name, (asked, have) in wanted.items()
                if asked
            ):
                return len(numas)
        return None

    def preferred(self, request: PodRequest) -> set[int | None]:
        """Return the numbers of NUMA nodes that Kubernetes would want each resource on."""
        cpus, gpus = replace(request, devices=()), replace(request, cpu_milli=0, memory_bytes=0)
        return {
            self.least_numas(gpus if name == "gpu" else cpus, name)
            for name, asked in (
                ("cpu", request.cpu_milli),
                ("memory", request.memory_bytes),
                ("gpu", request.devices),
            )
            if asked
        }


def room(node: NodeFacts, held: Iterable[Placement], *, own_cpus: bool) -> Room:
    """Count what is left beside the Pods; for a CPU set only whole CPUs."""
    here = list(held)
    taken = node.reserved_cpus
    for placement in here:
        taken |= placement.cpuset
    cpu, memory, gpus = {}, {}, {}
    used = {share.minor for placement in here for share in placement.shares}
    for zone in node.numa_zones:
        parts = [
            part for placement in here for part in placement.numa_parts if part.node == zone.id
        ]
        shared = sum(part.cpu_milli for part in parts if not part.pinned)
        left = len(machine_of(node).cpus_in_numa(zone.id) - taken) * 1000 - shared
        cpu[zone.id] = max(0, left - left % 1000 if own_cpus else left)
        memory[zone.id] = (zone.memory_bytes or 0) - sum(part.memory_bytes for part in parts)
        gpus[zone.id] = sum(
            record.minor not in used
            for record in node.devices
            if record.topology is not None and record.topology.numa_node == zone.id
        )
    return Room(cpu=cpu, memory=memory, gpus=gpus)


# Properties


@given(node=nodes(), steps=STEPS)
@FEW
def test_nothing_is_given_twice_and_nothing_that_is_not_there(
    node: NodeFacts, steps: list[Step]
) -> None:
    """CPUs, GPUs and the memory of every NUMA node, whoever comes and goes."""
    machine, now = machine_of(node), play(node)
    for number, step in enumerate(steps):
        answer = now.do(step, number)
        if isinstance(answer, Placement) and answer.request.cpuset is not None:
            assert len(answer.cpuset) == answer.request.cpuset.cpus
        owners = Counter(cpu for each in now.held.values() for cpu in each.cpuset)
        assert set(owners) <= set(machine.cpuset - node.reserved_cpus)
        assert max(owners.values(), default=0) <= 1
        gpus = [share.minor for each in now.held.values() for share in each.shares]
        assert len(gpus) == len(set(gpus))
        left = room(node, now.held.values(), own_cpus=False)
        assert min(left.memory.values()) >= 0


@given(node=nodes(STRICT), steps=STEPS)
@MANY
def test_strict_policies_use_as_few_numa_nodes_as_can_be_and_refuse_only_what_none_hold(
    node: NodeFacts, steps: list[Step]
) -> None:
    """
    One for SingleNUMANode (contract 7), against every set of them.

    For Restricted as few as an empty machine needs, of every resource the same number.
    """
    now = play(node)
    for number, step in enumerate(steps):
        request = step[0]
        before = list(now.held.values())
        answer = now.do(step, number)
        if request is None or answer is None or policy_of(node, request) is not node.numa_policy:
            continue
        if request.numa is not None and request.numa.policy is not node.numa_policy:
            continue
        if request.cpuset is not None and request.cpuset.required:
            continue
        least = room(node, before, own_cpus=request.cpuset is not None).least_numas(request)
        if node.numa_policy is RESTRICTED:
            empty = room(node, (), own_cpus=request.cpuset is not None).preferred(request)
            assert isinstance(answer, Placement) is (empty == {least} and least is not None)
        elif isinstance(answer, Unplaced):
            assert least is None or least > 1
        if isinstance(answer, Placement) and len(node.numa_zones) > 1:
            assert least == len(numas_of(node, answer))


@given(node=nodes(), steps=STEPS)
@FEW
def test_a_single_numa_node_is_one_numa_node_for_everything(
    node: NodeFacts, steps: list[Step]
) -> None:
    """CPUs, memory and GPUs, required policies too, whoever names the policy."""
    now = play(node)
    for number, step in enumerate(steps):
        answer = now.do(step, number)
        if isinstance(answer, Placement) and policy_of(node, answer.request) is SINGLE:
            assert len(numas_of(node, answer)) == 1 or len(node.numa_zones) == 1


@given(node=nodes(), steps=STEPS)
@FEW
def test_parts_say_what_the_pod_has_of_each_numa_node(node: NodeFacts, steps: list[Step]) -> None:
    """They add up to the request; a CPU set counts a whole CPU for each."""
    now, machine = play(node), machine_of(node)
    for number, step in enumerate(steps):
        answer = now.do(step, number)
        if not isinstance(answer, Placement) or not answer.numa_parts:
            continue
        parts, request = answer.numa_parts, answer.request
        assert sum(part.cpu_milli for part in parts) == request.cpu_milli
        assert sum(part.memory_bytes for part in parts) == request.memory_bytes
        assert len({part.node for part in parts}) == len(parts)
        for part in parts:
            own = answer.cpuset & machine.cpus_in_numa(part.node)
            assert not part.pinned or len(own) * 1000 == part.cpu_milli


@given(node=nodes([NumaPolicy.NONE, NumaPolicy.BEST_EFFORT]), steps=STEPS)
@FEW
def test_best_effort_refuses_only_what_no_policy_refuses_too(
    node: NodeFacts, steps: list[Step]
) -> None:
    """Contract 7: BestEffort cannot fail; only its placement differs."""
    now = play(replace(node, numa_policy=NumaPolicy.BEST_EFFORT))
    for number, step in enumerate(steps):
        without = play(replace(node, numa_policy=NumaPolicy.NONE))
        for placement in now.held.values():
            without.engine.reserve(placement)
        request = step[0]
        if request is None or request.numa is None:
            answer = now.do(step, number)
            assert answer is None or type(answer) is type(without.do(step, number))


@given(node=nodes(), steps=STEPS, probes=st.lists(pods(), min_size=1, max_size=3))
@FEW
def test_a_release_gives_back_all_and_the_order_of_events_is_forgotten(
    node: NodeFacts, steps: list[Step], probes: list[PodRequest]
) -> None:
    """Only what is held now counts: a new engine with just that answers the same."""
    now = play(node)
    for number, step in enumerate(steps):
        now.do(step, number)
    anew = play(node)
    for placement in now.held.values():
        anew.engine.reserve(placement)
    assert _answers(now, probes) == _answers(anew, probes)

    for uid in sorted(now.held):
        now.engine.release(uid)
    assert _answers(now, probes) == _answers(play(node), probes)


def _answers(now: Play, probes: list[PodRequest]) -> tuple[object, ...]:
    given_ = tuple(now.engine.decide(replace(probe, uid="probe")) for probe in probes)
    return (given_, now.engine.view(0))


@given(node=nodes(), steps=STEPS)
@FEW
def test_the_same_events_have_the_same_answers(node: NodeFacts, steps: list[Step]) -> None:
    """Nothing is left to chance."""
    one, other = play(node), play(node)
    for number, step in enumerate(steps):
        assert one.do(step, number) == other.do(step, number)


@given(node=nodes(), steps=STEPS, kubelet=st.sets(st.integers(0, 255), max_size=4))
@FEW
def test_pools_part_the_machine_after_every_reserve_and_release(
    node: NodeFacts, steps: list[Step], kubelet: set[int]
) -> None:
    """Contract 9.4: every CPU is kept back, somebody's own or shared; what is released returns."""
    machine, now = machine_of(node), play(node)
    cpus = NodeCpus(
        topology=machine,
        reserved=node.reserved_cpus,
        kubelet_reserved=cpuset_of(kubelet) & machine.cpuset,
    )
    seen: dict[tuple[str, ...], Pools] = {(): pools_of(cpus, ())}
    for number, step in enumerate(steps):
        now.do(step, number)
        own = [
            PodCpus(cpus=each.cpuset, qos=QosClass(each.request.snapshot.qos))
            for each in now.held.values()
        ]
        pools = pools_of(cpus, own)
        shared, best_effort = joined(pools.shared), joined(pools.best_effort)
        assert shared | pools.exclusive | cpus.reserved == machine.cpuset
        assert len(shared) + len(pools.exclusive) + len(cpus.reserved) == len(machine)
        assert best_effort == shared | _cpus_of(own, QosClass.LSR)
        assert pools.best_effort_first == cpus.kubelet_reserved & best_effort
        for pool in pools.shared:
            assert pool.cpus <= machine.cpus_in_numa(pool.node)
        assert pools == seen.setdefault(tuple(sorted(now.held)), pools)


def _cpus_of(pods_: Iterable[PodCpus], qos: QosClass) -> CpuSet:
    cpus = EMPTY
    for pod in pods_:
        if pod.qos is qos:
            cpus |= pod.cpus
    return cpus
