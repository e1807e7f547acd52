"""
Random machines and what Pods hold of them, CPU picker against oracle, case by case.

One case again: `python -m tests.oracles.cpu_campaign SEED`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from ledger.domain.cpuset import CpuSet, cpuset_of, format_cpuset
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.choose import choose_cpus
from scheduler.decide.cpusets.layout import layout_of
from scheduler.decide.cpusets.picker import CpusHeld, PickRequest, pick
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.outcome import Unfit
from tests.oracles import cpus as oracle
from tests.oracles.cpus import Held, Host, Wish

CASES_PER_MACHINE: Final = 10
POLICIES: Final = ("None", "PCPULevel", "NUMANodeLevel")
UNFIT: Final = "unfit"

Answer = set[int] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One machine, what is held of it, and one wish.

    Attributes:
        holders: the CPUs of each holder, its exclusive policy, and whether it shares none.
        limit: how many holders a CPU may have.
        required: the bind policy must hold.
        alone: the wish is for CPUs that nobody else holds.
    """

    topology: CpuTopology
    host: Host
    holders: tuple[tuple[frozenset[int], str, bool], ...]
    limit: int
    reserved: frozenset[int]
    wish: Wish
    required: bool
    alone: bool
    preferred: frozenset[int]

    @property
    def refs(self) -> Counter[int]:
        """Return the holders of each CPU."""
        return Counter(cpu for cpus, _, _ in self.holders for cpu in cpus)

    @property
    def available(self) -> set[int]:
        """
        Return the CPUs that one more may have.

        Rule: Koordinator contract 6.3; CPU proposal, QoS principle 2: who is alone shares none.
        """
        refs = self.refs
        closed = {cpu for cpus, _, alone in self.holders if alone for cpu in cpus} | self.reserved
        most = 1 if self.alone else self.limit
        return {cpu for cpu in self.host.core if refs[cpu] < most and cpu not in closed}

    @property
    def idle(self) -> set[int]:
        """Return those of them that nobody holds (CPU proposal, QoS principle 3)."""
        refs = self.refs
        return {cpu for cpu in self.available if not refs[cpu]}

    @property
    def held(self) -> Held:
        """Return what the picker is told of the holders."""
        return Held(
            refs=self.refs if self.limit > 1 else {},
            cores=frozenset(
                self.host.core[cpu]
                for cpus, policy, _ in self.holders
                if policy == "PCPULevel"
                for cpu in cpus
            ),
            numas=frozenset(
                self.host.places[cpu].numa
                for cpus, policy, _ in self.holders
                if policy == "NUMANodeLevel"
                for cpu in cpus
            ),
        )

    @property
    def is_odd(self) -> bool:
        """Tell whether whole cores are asked for on a machine whose cores are not alike."""
        sizes = Counter(self.host.core.values()).values()
        return self.required and self.wish.full and len(set(sizes)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and what oracle and picker answer, by the name of the way into the picker."""

    question: Question
    expected: Mapping[str, Answer]
    answers: Mapping[str, Answer]

    @property
    def agrees(self) -> bool:
        """Tell whether all answers are the oracle's."""
        return self.answers == self.expected


def case_of(seed: int) -> Case:
    """Return one case with its answers."""
    question = question_of(seed)
    expected: dict[str, Answer] = {}
    answers: dict[str, Answer] = {}
    if not question.required:
        expected["picked"] = _expected(question, question.available, question.preferred)
        answers["picked"] = _picked(question)
    if not question.preferred and question.wish.count > 0:
        expected["chosen"] = expected_choice(question)
        answers["chosen"] = _chosen(question)
    return Case(question=question, expected=expected, answers=answers)


def disagreements(seeds: Iterable[int], outcomes: Counter[str]) -> list[int]:
    """Return the seeds on which picker and oracle differ; count what the oracle says."""
    different = []
    for seed in seeds:
        case = case_of(seed)
        outcomes["unfit" if UNFIT in case.expected.values() else "placed"] += 1
        if not case.agrees:
            different.append(seed)
    return different


# The two sides


def expected_choice(question: Question) -> Answer:
    """Return what contract and proposal say of the whole choice: policies, then idle CPUs first."""
    wish, host, available, idle = question.wish, question.host, question.available, question.idle
    if question.required:
        if wish.full and wish.count % host.threads:
            return UNFIT
        available, idle = oracle.choices(host, available, idle, full=wish.full)
        if question.is_odd:
            found = _narrowest(question, idle)
            return _narrowest(question, available) if found == UNFIT else found
    return _expected(question, available, idle)


def _expected(question: Question, available: set[int], first: Collection[int]) -> Answer:
    """Return what the contract says of one pick."""
    chosen = oracle.pick(question.host, question.wish, available, question.held, first)
    return UNFIT if chosen is None else chosen


def _picked(question: Question) -> Answer:
    wish, host, held = question.wish, question.host, question.held
    request = PickRequest(
        count=wish.count,
        full_cores=wish.full,
        most_allocated=wish.most,
        avoid_cores=wish.exclusive == "PCPULevel",
        avoid_numas=wish.exclusive == "NUMANodeLevel",
    )
    exclusive_cores = (cpu for cpu, core in host.core.items() if core in held.cores)
    exclusive_numas = (cpu for cpu, place in host.places.items() if place.numa in held.numas)
    chosen = pick(
        layout_of(question.topology),
        request,
        cpuset_of(question.available).mask,
        CpusHeld(
            refs=held.refs,
            exclusive_cores=cpuset_of(exclusive_cores).mask,
            exclusive_numas=cpuset_of(exclusive_numas).mask,
        ),
        preferred=cpuset_of(question.preferred).mask,
    )
    return UNFIT if chosen is None else set(CpuSet(mask=chosen))


def _chosen(question: Question) -> Answer:
    wish = question.wish
    node = NodeFacts(
        uid="n-0",
        name="n-0",
        cpu_topology=question.topology,
        reserved_cpus=cpuset_of(question.reserved),
        cpu_ref_count_max=question.limit,
        numa_strategy="MostAllocated" if wish.most else "LeastAllocated",
    )
    demand = CpuSetDemand(
        cpus=wish.count,
        bind_policy="FullPCPUs" if wish.full else "SpreadByPCPUs",
        required=question.required,
        exclusive_policy=wish.exclusive,
        alone=question.alone,
    )
    holdings = [
        CpuHolding(cpus=cpuset_of(cpus).mask, exclusive_policy=policy, alone=alone)
        for cpus, policy, alone in question.holders
    ]
    answer = choose_cpus(demand, node, pinned_of(node, holdings))
    if isinstance(answer, Unfit):
        return UNFIT
    chosen = set(answer)
    return _extent(question, chosen) if question.is_odd else chosen


# Required whole cores of several sizes: not which, but how few NUMA nodes and sockets.


def _narrowest(question: Question, available: set[int]) -> str:
    places = question.host.places
    numas = _split(available, lambda cpu: places[cpu].numa)
    sockets = _split(available, lambda cpu: places[cpu].socket)
    groups = [("numa", cpus) for cpus in numas] + [("socket", cpus) for cpus in sockets]
    groups.append(("machine", available))
    for name, cpus in groups:
        sizes = Counter(question.host.core[cpu] for cpu in cpus).values()
        sums = {0}
        for size in sizes:
            sums |= {size + part for part in sums}
        if question.wish.count in sums:
            return name
    return UNFIT


def _split(cpus: set[int], group_of: Callable[[int], int]) -> list[set[int]]:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(group_of(cpu), set()).add(cpu)
    return list(groups.values())


def _extent(question: Question, chosen: set[int]) -> str:
    host = question.host
    free = oracle.candidates(host, question.available, full=True)
    cores = {host.core[cpu] for cpu in chosen}
    if len(chosen) != question.wish.count or chosen != {
        cpu for cpu in free if host.core[cpu] in cores
    }:
        return f"not whole free cores: {sorted(chosen)}"
    if len({host.places[cpu].numa for cpu in chosen}) == 1:
        return "numa"
    return "socket" if len({core[0] for core in cores}) == 1 else "machine"


# Drawing


def question_of(seed: int) -> Question:
    """Return one case, a function of the seed alone."""
    topology, host = machine_of(seed // CASES_PER_MACHINE)
    rng = Random(f"cpus {seed}")
    limit = rng.choice([1, 1, 1, 1, 2, 2, 3])
    units = _units(rng, host)
    holders = _holders(rng, units, limit)
    reserved = rng.sample(units, len(units) // 8) if rng.random() < 0.15 else []
    required = rng.random() < 0.2
    preferred = not required and rng.random() < 0.2
    wanted = rng.sample(units, rng.randint(1, len(units))) if preferred else []
    return Question(
        topology=topology,
        host=host,
        holders=holders,
        limit=limit,
        reserved=frozenset(cpu for unit in reserved for cpu in unit),
        wish=_wish(rng, host),
        required=required,
        alone=rng.random() < 0.1,
        preferred=frozenset(cpu for unit in wanted for cpu in unit),
    )


def _wish(rng: Random, host: Host) -> Wish:
    most = rng.choice([host.threads + 1, host.per_numa, host.per_socket, len(host.core)])
    count = rng.randint(1, max(1, most))
    if rng.random() < 0.3:
        count -= count % host.threads
    return Wish(
        count=count,
        full=rng.random() < 0.5,
        exclusive=rng.choice([*POLICIES, "PCPULevel"]),
        most=rng.random() < 0.5,
    )


def _units(rng: Random, host: Host) -> list[tuple[int, ...]]:
    """Return what is held and reserved as one: whole cores or single CPUs."""
    if rng.random() < 0.5:
        return [(cpu,) for cpu in sorted(host.core)]
    cores: dict[oracle.Core, list[int]] = {}
    for cpu, core in sorted(host.core.items()):
        cores.setdefault(core, []).append(cpu)
    return [tuple(cpus) for cpus in cores.values()]


def _holders(
    rng: Random, units: list[tuple[int, ...]], limit: int
) -> tuple[tuple[frozenset[int], str, bool], ...]:
    """Return up to four holders; who is over the limit was adopted."""
    busy = rng.choice([0.0, 0.1, 0.3, 0.3, 0.5, 0.7, 0.9])
    holders = [
        (set[int](), rng.choice(POLICIES), rng.random() < 0.15) for _ in range(rng.randint(1, 4))
    ]
    for unit in units:
        for _ in range(limit):
            if rng.random() < busy:
                rng.choice(holders)[0].update(unit)
    return tuple((frozenset(cpus), policy, alone) for cpus, policy, alone in holders if cpus)


@lru_cache(maxsize=4)
def machine_of(seed: int) -> tuple[CpuTopology, Host]:
    """Return a machine of 1 to 4 sockets, at most 8 NUMA nodes and at most 256 CPUs."""
    rng = Random(f"machine {seed}")
    size = rng.choice([12, 16, 24, 24, 32, 48] if rng.random() < 0.94 else [96, 128, 256])
    topology = cpu_topology_of(_online(rng, _numbered(rng, _places(rng, size))))
    return topology, Host(topology)


def _places(rng: Random, size: int) -> list[tuple[int, int, int, int]]:
    """Return (thread, socket, NUMA node, core) of every CPU."""
    sockets, numas, threads = (
        rng.choice([1, 2, 2, 3, 4]),
        rng.choice([1, 2]),
        rng.choice([1, 2, 2, 4]),
    )
    cores = max(1, size // (sockets * numas * threads))
    if size <= 48 and rng.random() < 0.4:
        cores = rng.randint(1, cores)
    repeated, mirrored = rng.random() < 0.3, rng.random() < 0.1
    places = []
    for thread in range(threads):
        for node in range(sockets * numas):
            socket, first = node // numas, (node % numas if repeated else node) * cores
            numa = sockets * numas - 1 - node if mirrored else node
            places += [(thread, socket, numa, first + core) for core in range(cores)]
    return places


def _numbered(rng: Random, places: list[tuple[int, int, int, int]]) -> list[Cpu]:
    """Return the CPUs with ids: second threads last, threads side by side, by socket, or wild."""
    numbering = rng.choice(["split", "split", "adjacent", "by socket", "shuffled"])
    if numbering == "adjacent":
        places = sorted(places, key=lambda place: (place[1], place[2], place[3], place[0]))
    elif numbering == "by socket":
        places = sorted(places, key=lambda place: (place[1], place[0], place[2], place[3]))
    elif numbering == "shuffled":
        rng.shuffle(places)
    return [
        Cpu(id=cpu, core=core, socket=socket, numa=numa)
        for cpu, (_, socket, numa, core) in enumerate(places)
    ]


def _online(rng: Random, cpus: list[Cpu]) -> list[Cpu]:
    """Return the CPUs that are on: all, all but some, or one NUMA node without some."""
    how = rng.random()
    if how < 0.65 or len(cpus) < 4:
        return cpus
    if how < 0.85:
        offline = set(rng.sample(range(len(cpus)), rng.randint(1, len(cpus) // 3)))
    else:
        numa = rng.choice(cpus).numa
        offline = {cpu.id for cpu in cpus if cpu.numa == numa and rng.random() < 0.5}
    return [cpu for cpu in cpus if cpu.id not in offline] or cpus


# Telling


def told(case: Case) -> str:
    """Return a case in lines short enough to think about."""
    question = case.question
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in question.topology.cpus:
        cores.setdefault((cpu.socket, cpu.numa, cpu.core), []).append(cpu.id)
    lines = [
        f"socket {socket} numa {numa} core {core}: {_text(cpus)}"
        for (socket, numa, core), cpus in sorted(cores.items())
    ]
    lines += [
        f"held {_text(cpus)} {policy}{' alone' * alone}" for cpus, policy, alone in question.holders
    ]
    lines.append(
        f"limit={question.limit} reserved={_text(question.reserved)} "
        f"preferred={_text(question.preferred)} available={_text(question.available)}"
    )
    lines.append(f"required={question.required} alone={question.alone} {question.wish}")
    lines += [
        f"{who:8} {name:8} {answer if isinstance(answer, str) else _text(answer)}"
        for who, answers in (("expected", case.expected), ("answered", case.answers))
        for name, answer in answers.items()
    ]
    return "\n".join((*lines, ""))


def _text(cpus: Iterable[int]) -> str:
    return format_cpuset(cpuset_of(cpus))


def main() -> None:
    """Print one case and its answers."""
    sys.stdout.write(told(case_of(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
