"""CPU sets on machines of up to 4 sockets, 8 NUMA nodes and 256 CPUs, with 1, 2 or 4 threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger.domain.cpuset import CpuSet, cpuset_of, parse_cpuset
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.choose import NOT_WHOLE_CORES, choose_cpus, parts_of
from scheduler.decide.cpusets.layout import layout_of
from scheduler.decide.cpusets.picker import CpusHeld, PickRequest, pick
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.outcome import Unfit
from tests.oracles.cpus import Core, Host, candidates, choices
from tests.support.examples import examples
from tests.support.machines import SEEDS, machines

MANY = settings(max_examples=examples(300))
EXCLUSIVES = ("None", "PCPULevel", "NUMANodeLevel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One machine with holders, and one demand."""

    node: NodeFacts
    machine: CpuTopology
    host: Host
    holdings: tuple[CpuHolding, ...]
    refs: Mapping[int, int]
    free: CpuSet
    demand: CpuSetDemand

    def answer(self) -> CpuSet | Unfit:
        """Return what is chosen."""
        return choose_cpus(self.demand, self.node, pinned_of(self.node, self.holdings))

    def held_alone(self, policy: str) -> CpuSet:
        """Return the CPUs of the holders with an exclusive policy."""
        holdings = [each for each in self.holdings if each.exclusive_policy == policy]
        return cpuset_of(cpu for each in holdings for cpu in CpuSet(mask=each.cpus))

    def cores_of(self, cpus: CpuSet) -> Counter[Core]:
        """Return how many of these CPUs each core has."""
        return Counter(self.host.core[cpu] for cpu in cpus)

    def numas_of(self, cpus: CpuSet) -> Counter[int]:
        """Return how many of these CPUs each NUMA node has."""
        return Counter(self.machine.cpu(cpu).numa for cpu in cpus)

    def sockets_of(self, cpus: CpuSet) -> Counter[int]:
        """Return how many of these CPUs each socket has."""
        return Counter(self.machine.cpu(cpu).socket for cpu in cpus)


@st.composite
def situations(
    draw: st.DrawFn,
    *,
    alike: bool = False,
    limit_max: int = 3,
    binds: Sequence[str] = ("FullPCPUs", "SpreadByPCPUs"),
    exclusives: Sequence[str] = EXCLUSIVES,
) -> Situation:
    """Draw a machine with up to four holders of whole cores or single CPUs, and a demand."""
    machine, rng = draw(machines(alike=alike)), Random(draw(SEEDS))
    limit = rng.randint(1, limit_max)
    holdings = _holdings(rng, machine, limit)
    refs = Counter(cpu for each in holdings for cpu in CpuSet(mask=each.cpus))
    kept = {cpu for each in holdings if each.alone for cpu in CpuSet(mask=each.cpus)}
    alone = rng.random() < 0.2
    reserved = cpuset_of(rng.sample(list(machine.cpuset), rng.choice([0, 0, len(machine) // 8])))
    most = 1 if alone else limit
    free = cpuset_of(cpu for cpu in machine.cpuset - reserved if refs[cpu] < most) - cpuset_of(kept)
    return Situation(
        node=NodeFacts(
            uid="n-0",
            name="n-0",
            cpu_topology=machine,
            reserved_cpus=reserved,
            cpu_ref_count_max=limit,
            numa_strategy=rng.choice(["MostAllocated", "LeastAllocated"]),
        ),
        machine=machine,
        host=Host(machine),
        holdings=holdings,
        refs=refs,
        free=free,
        demand=CpuSetDemand(
            cpus=_count(rng, machine, free),
            bind_policy=rng.choice(binds),
            required=rng.random() < 0.5,
            exclusive_policy=rng.choice(exclusives),
            alone=alone,
        ),
    )


def _holdings(rng: Random, machine: CpuTopology, limit: int) -> tuple[CpuHolding, ...]:
    """Return up to four holders; each NUMA node is as busy as it happens to be."""
    units = [tuple(machine.cpus_in_core(core)) for core in machine.cores]
    if rng.random() < 0.5:
        units = [(cpu,) for cpu in machine.cpuset]
    busy = {numa: rng.choice([0.0, 0.2, 0.5, 0.8]) for numa in machine.numa_nodes}
    taken: list[set[int]] = [set() for _ in range(rng.randint(1, 4))]
    for unit in units:
        for _ in range(limit):
            if rng.random() < busy[machine.cpu(unit[0]).numa]:
                rng.choice(taken).update(unit)
    return tuple(
        CpuHolding(
            cpus=cpuset_of(cpus).mask,
            exclusive_policy=rng.choice(EXCLUSIVES),
            alone=rng.random() < 0.15,
        )
        for cpus in taken
    )


def _count(rng: Random, machine: CpuTopology, free: CpuSet) -> int:
    """Return how many CPUs to ask for: often just what there is somewhere, or nearly."""
    threads = machine.threads_per_core
    somewhere = [
        len(free),
        sum(len(free & core) for core in map(machine.cpus_in_core, machine.cores) if core <= free),
        *(len(free & machine.cpus_in_numa(numa)) for numa in machine.numa_nodes),
        *(len(free & machine.cpus_in_socket(socket)) for socket in machine.sockets),
    ]
    near = rng.choice(somewhere)
    count = rng.choice([near + rng.randint(-2, 2), rng.randint(1, max(1, near))])
    if rng.random() < 0.5:
        count -= count % threads
    return max(1, count)


def chosen_in(situation: Situation) -> CpuSet | None:
    """Return the CPUs chosen, None when refused."""
    answer = situation.answer()
    return None if isinstance(answer, Unfit) else answer


@MANY
@given(situation=situations())
def test_exactly_as_many_cpus_as_asked_for_and_nobodys_last_place(situation: Situation) -> None:
    """Only what is available, so that no CPU gets more holders than it may have."""
    answer = chosen_in(situation)
    if answer is None:
        return
    assert len(answer) == situation.demand.cpus
    assert answer <= situation.free
    assert answer.isdisjoint(situation.node.reserved_cpus)
    assert all(situation.refs[cpu] < situation.node.cpu_ref_count_max for cpu in answer)


@MANY
@given(situation=situations())
def test_a_cpu_is_shared_only_where_no_idle_one_would_do(situation: Situation) -> None:
    """CPU proposal, QoS principles 2 and 3: LSE Pods share none; others idle ones first."""
    answer = chosen_in(situation)
    if answer is None:
        return
    shared = [cpu for cpu in answer if situation.refs[cpu]]
    sizes = situation.cores_of(situation.machine.cpuset).values()
    if situation.demand.required and len(set(sizes)) > 1:
        return  # whole cores of several sizes have to add up
    _, idle = choices_in(situation)
    assert not shared or (not situation.demand.alone and idle <= answer)


def choices_in(situation: Situation) -> tuple[CpuSet, CpuSet]:
    """Return the CPUs to choose from, and those that are taken first."""
    available, demand = set(situation.free), situation.demand
    idle = {cpu for cpu in available if not situation.refs[cpu]}
    if demand.required:
        full = demand.bind_policy == "FullPCPUs"
        available, idle = choices(situation.host, available, idle, full=full)
    return cpuset_of(available), cpuset_of(idle)


def one_kind_of(situation: Situation) -> CpuSet | None:
    """Return the free CPUs if all that is chosen is idle or all is shared, None if it is mixed."""
    _, idle = choices_in(situation)
    if len(idle) >= situation.demand.cpus:
        return cpuset_of(cpu for cpu in situation.free if not situation.refs[cpu])
    return None if idle else situation.free


@MANY
@given(situation=situations())
def test_a_policy_that_is_required_holds_or_there_are_really_too_few(situation: Situation) -> None:
    """Whole cores, or one CPU of each core; a preferred policy never refuses."""
    demand, answer = situation.demand, situation.answer()
    full = demand.bind_policy == "FullPCPUs"
    sizes = situation.cores_of(situation.machine.cpuset)
    allowed, _ = choices_in(situation)
    if isinstance(answer, CpuSet):
        for core, count in situation.cores_of(answer).items():
            assert not demand.required or count == (sizes[core] if full else 1)
        assert answer <= allowed
    elif answer.reason == NOT_WHOLE_CORES:
        assert demand.required
        assert demand.cpus % situation.machine.threads_per_core
    elif demand.required and full and len(set(sizes.values())) > 1:
        assert demand.cpus not in sums_of(list(situation.cores_of(allowed).values()))
    else:
        assert demand.cpus > len(allowed)


def sums_of(sizes: list[int]) -> set[int]:
    """Return every number of CPUs that some of these cores have together."""
    sums = {0}
    for size in sizes:
        sums |= {size + some for some in sums}
    return sums


WHOLE_AND_ALONE = situations(alike=True, limit_max=1, binds=["FullPCPUs"], exclusives=["PCPULevel"])


@MANY
@given(situation=WHOLE_AND_ALONE)
def test_cores_held_alone_are_used_by_their_like_only_where_nothing_else_is_left(
    situation: Situation,
) -> None:
    """FullPCPUs and PCPULevel, one holder per CPU: no more of such cores than must be."""
    answer = chosen_in(situation)
    if answer is None:
        return
    alone = situation.cores_of(situation.held_alone("PCPULevel"))
    unclean = [cpu for cpu in answer if situation.host.core[cpu] in alone]
    clean = [cpu for cpu in situation.free if situation.host.core[cpu] not in alone]
    assert len(unclean) == max(0, situation.demand.cpus - len(clean))


@MANY
@given(situation=situations(binds=["SpreadByPCPUs"], exclusives=["PCPULevel"]))
def test_spread_cpus_avoid_cores_held_alone_when_a_numa_node_has_enough_others(
    situation: Situation,
) -> None:
    """SpreadByPCPUs and PCPULevel: as many clean cores as CPUs in one NUMA node are enough."""
    demand, answer, machine = situation.demand, chosen_in(situation), situation.machine
    whole = machine.threads_per_core == 1  # where a core is a CPU, stage 1 takes it as it is
    if answer is None or whole or demand.cpus > cpus_per_numa(machine):
        return
    alone = situation.cores_of(situation.held_alone("PCPULevel"))
    clean = {situation.host.core[cpu]: machine.cpu(cpu).numa for cpu in situation.free}
    per_numa = Counter(numa for core, numa in clean.items() if core not in alone)
    if max(per_numa.values(), default=0) >= demand.cpus:
        assert not any(situation.host.core[cpu] in alone for cpu in answer)


@MANY
@given(situation=situations(exclusives=["NUMANodeLevel"]))
def test_a_numa_node_held_alone_is_avoided_when_another_has_enough(situation: Situation) -> None:
    """NUMANodeLevel: a clean NUMA node with enough whole cores, or cores, takes it all."""
    demand, answer, machine = situation.demand, chosen_in(situation), situation.machine
    free = one_kind_of(situation)
    if answer is None or free is None:
        return
    alone = situation.numas_of(situation.held_alone("NUMANodeLevel"))
    enough = numas_with_enough(situation, free) - set(alone)
    if enough and demand.cpus <= cpus_per_numa(machine):
        assert set(situation.numas_of(answer)) <= enough


def cpus_per_numa(machine: CpuTopology) -> int:
    """Return the CPUs of a NUMA node, in the mean."""
    return len(machine.cpus) // max(1, len(machine.numa_nodes))


def numas_with_enough(situation: Situation, free: CpuSet) -> set[int]:
    """Return the NUMA nodes that hold the demand in whole cores, or one CPU a core."""
    demand, host = situation.demand, situation.host
    full = demand.bind_policy == "FullPCPUs"
    if demand.required or not (full or host.threads == 1):
        free = cpuset_of(candidates(host, free, full=full))
    cores = situation.cores_of(free)
    if demand.required and full:
        return {
            numa
            for numa in situation.numas_of(free)
            if demand.cpus in sums_of(_sizes_in(situation, free, numa))
        }
    if full or host.threads == 1:
        free = cpuset_of(cpu for cpu in free if cores[host.core[cpu]] == host.threads)
    per_numa = situation.numas_of(free)
    return {numa for numa, count in per_numa.items() if count >= demand.cpus}


def _sizes_in(situation: Situation, cpus: CpuSet, numa: int) -> list[int]:
    own = cpus & situation.machine.cpus_in_numa(numa)
    return list(situation.cores_of(own).values())


@MANY
@given(situation=situations(alike=True))
def test_what_one_numa_node_or_one_socket_can_hold_stays_there(situation: Situation) -> None:
    """The lowest possible number of NUMA nodes, then of sockets, where the cores are alike."""
    demand, answer = situation.demand, chosen_in(situation)
    free = one_kind_of(situation)
    if answer is None or free is None:
        return
    full = demand.bind_policy == "FullPCPUs"
    if full or demand.required:
        free = cpuset_of(candidates(situation.host, free, full=full))
    if max(situation.numas_of(free).values(), default=0) >= demand.cpus:
        assert len(situation.numas_of(answer)) == 1
    if max(situation.sockets_of(free).values(), default=0) >= demand.cpus:
        assert len(situation.sockets_of(answer)) == 1


@MANY
@given(situation=situations())
def test_the_same_question_has_the_same_answer(situation: Situation) -> None:
    """Holders in another order, asked again: the same CPUs."""
    node = situation.node
    again = choose_cpus(situation.demand, node, pinned_of(node, situation.holdings[::-1]))
    assert again == situation.answer()


def test_a_list_no_longer_than_a_core_stays_as_it_is() -> None:
    """Contract 6.4, spread order: threads 0 and 1 of one core, not 0 and a CPU of the next."""
    machine = layout_of(
        cpu_topology_of(Cpu(id=cpu, core=cpu // 4, socket=0, numa=0) for cpu in range(8))
    )
    request = PickRequest(count=2, full_cores=False, avoid_cores=True)
    everywhere = CpusHeld(exclusive_cores=machine.cpus)
    assert pick(machine, request, 0b1_0011, everywhere) == 0b11


@pytest.mark.parametrize(
    ("held", "limit", "exclusive", "strategy", "cpus"),
    [
        pytest.param("4", 2, "None", "", "0-1", id="the emptier NUMA node"),
        pytest.param("0-3,6-8", 2, "None", "", "4-5", id="the idle core"),
        pytest.param("4-7,8", 3, "None", "MostAllocated", "0-1", id="idle cores, then strategy"),
        pytest.param("4-5", 1, "None", "MostAllocated", "6-7", id="the fuller one"),
        pytest.param("0", 2, "NUMANodeLevel", "", "4-5", id="none held alone"),
        pytest.param("0", 2, "PCPULevel", "MostAllocated", "2-3", id="no core held alone"),
    ],
)
def test_whole_cores_of_several_sizes_follow_strategy_and_exclusive_use(
    held: str, limit: int, exclusive: str, strategy: str, cpus: str
) -> None:
    """Two NUMA nodes of two cores, and a ninth CPU by itself on the first."""
    machine = cpu_topology_of(
        Cpu(id=cpu, core=cpu // 2, socket=0, numa=int(4 <= cpu < 8)) for cpu in range(9)
    )
    node = NodeFacts(
        uid="n-0",
        name="n-0",
        cpu_topology=machine,
        cpu_ref_count_max=limit,
        numa_strategy=strategy,
    )
    holding = CpuHolding(cpus=parse_cpuset(held).mask, exclusive_policy=exclusive)
    demand = CpuSetDemand(
        cpus=2, bind_policy="FullPCPUs", required=True, exclusive_policy=exclusive
    )
    assert choose_cpus(demand, node, pinned_of(node, [holding])) == parse_cpuset(cpus)


# DistributeEvenly


@example(free={0: 4, 1: 5, 2: 8, 3: 8}, count=25, unit=4)  # the odd CPU is not the last node's
@given(
    free=st.dictionaries(st.integers(0, 9), st.integers(0, 12), min_size=1, max_size=8),
    count=st.integers(1, 40),
    unit=st.sampled_from([1, 2, 4]),
)
def test_even_parts_are_the_best_of_all_parts(free: dict[int, int], count: int, unit: int) -> None:
    """Against every set of NUMA nodes: fewest, within one unit, what is left the most alike."""
    parts = parts_of(count, free, unit)

    tried = even_parts(count, free, unit)
    if parts is None:
        assert not tried
        return
    assert parts in tried
    assert left_over(free, parts) == min(left_over(free, other) for other in tried)


def even_parts(count: int, free: Mapping[int, int], unit: int) -> list[dict[int, int]]:
    """Return every way over the fewest NUMA nodes that have one; at most one part is odd."""
    for size in range(1, len(free) + 1):
        low = count // size // unit * unit
        ways = [
            dict(zip(nodes, parts, strict=True))
            for nodes in combinations(sorted(free), size)
            for parts in product(range(low, low + unit + 1), repeat=size)
            if sum(parts) == count
            and sum(part % unit > 0 for part in parts) <= 1
            and all(part <= free[node] for node, part in zip(nodes, parts, strict=True))
        ]
        if ways:
            return [{node: part for node, part in way.items() if part} for way in ways]
    return []


def left_over(free: Mapping[int, int], parts: Mapping[int, int]) -> int:
    """Return how unlike the NUMA nodes are afterwards."""
    return sum((cpus - parts.get(node, 0)) ** 2 for node, cpus in free.items())
