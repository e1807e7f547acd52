"""Whether a folded state promises more than there is: what must never be, asked by the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ledger.domain.log.machines import Machine, machine_of
from ledger.domain.log.state import GRANTED, Amount, Holding, NodeState, Use, uses_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise beyond what a device or CPU has. There must never be one."""

    node_name: str
    unit: str  # `gpu/3` or `cpu/17`
    fact: str

    def __str__(self) -> str:
        return f"{self.node_name}/{self.unit}: {self.fact}"


def violations(node: NodeState) -> Iterator[Violation]:
    """
    Yield every device and CPU of the node that is promised beyond what it has.

    Rule: design section 4. Only granted holdings count (observed ones are facts, not promises). A
    device that shrank or left under its holders is no broken promise, but promises nothing more
    until they leave; a device that the node never had promises nothing at all.
    """
    for use in uses_of(node):
        yield from _device_violations(node, use)
    yield from _cpu_violations(node)


def _device_violations(node: NodeState, use: Use) -> Iterator[Violation]:
    return _broken(node.name, f"{use.unit[0]}/{use.unit[1]}", use, _most(node, use))


def _most(node: NodeState, use: Use) -> Amount:
    """Return what may be promised of a device: what it has, or what it had to its holders."""
    return _amount(max, [node.caps.get(use.unit, Amount()), use.reported])


def _broken(node_name: str, unit: str, use: Use, most: Amount) -> Iterator[Violation]:
    core, memory = use.promised.core_percent, use.promised.memory_bytes
    if core > most.core_percent:
        fact = f"core promised beyond capacity: {core} of {most.core_percent} percent"
        yield Violation(node_name=node_name, unit=unit, fact=fact)
    if memory > most.memory_bytes:
        fact = f"memory promised beyond capacity: {memory} of {most.memory_bytes} bytes"
        yield Violation(node_name=node_name, unit=unit, fact=fact)
    if use.holders > 1 and use.exclusive:
        fact = f"exclusive holder is not alone: holders={use.holders}"
        yield Violation(node_name=node_name, unit=unit, fact=fact)


def _cpu_violations(node: NodeState) -> Iterator[Violation]:
    counts: dict[int, int] = {}
    for holding in node.everyone():
        for cpu in holding.cpuset if holding.kind == GRANTED else ():
            counts[cpu] = counts.get(cpu, 0) + 1
    for cpu in sorted(counts):
        if counts[cpu] > node.cpu_ref_count_max:
            fact = f"more holders than allowed: {counts[cpu]} of {node.cpu_ref_count_max}"
            yield Violation(node_name=node.name, unit=f"cpu/{cpu}", fact=fact)


def machine_violations(nodes: Iterable[NodeState]) -> Iterator[Violation]:
    """
    Yield every device and CPU of one machine that several Nodes promise beyond what it has.

    Rule: design section 4, "One account per physical device". What one Node promises alone is for
    `violations` to judge. Devices are known by their ids; what a lost Node holds counts. Of two
    Nodes that say different sizes, the larger counts.
    """
    machines: dict[Machine, list[NodeState]] = {}
    for node in nodes:
        for machine, part in _by_machine(node):
            machines.setdefault(machine, []).append(part)
    for _, parts in sorted(machines.items()):
        if len(parts) > 1:
            yield from _shared_device_violations(parts)
            yield from _shared_cpu_violations(parts)


def _by_machine(node: NodeState) -> Iterator[tuple[Machine, NodeState]]:
    """Yield a node with what it holds, for each machine that it holds something of."""
    found: dict[Machine, dict[str, Holding]] = {}
    for key, held in {**node.holdings, **node.claims}.items():
        if held.kind == GRANTED:
            machine = (held.machine[0], held.machine[1]) if held.machine else machine_of(node)
            found.setdefault(machine, {})[key] = held
    for machine, holdings in found.items():
        yield machine, replace(node, holdings=holdings, claims={})


def _shared_device_violations(parts: Sequence[NodeState]) -> Iterator[Violation]:
    uses: dict[tuple[str, str], list[tuple[NodeState, Use]]] = {}
    for part in parts:
        for use in uses_of(part):
            device_type, _, device_id = use.unit
            if device_id:
                uses.setdefault((device_type, device_id), []).append((part, use))
    for (device_type, device_id), shared in uses.items():
        if len(shared) > 1:
            names = "+".join(part.name for part, _ in shared)
            most = [_most(part, use) for part, use in shared]
            most += [use.promised for _, use in shared]  # what one Node promises is not judged here
            yield from _broken(
                names,
                f"{device_type}/{device_id}",
                replace(
                    shared[0][1],
                    promised=_amount(sum, [use.promised for _, use in shared]),
                    holders=sum(use.holders for _, use in shared),
                    exclusive=any(use.exclusive for _, use in shared),
                ),
                _amount(max, most),
            )


def _amount(of: Callable[[list[int]], int], amounts: Sequence[Amount]) -> Amount:
    return Amount(
        core_percent=of([each.core_percent for each in amounts]),
        memory_bytes=of([each.memory_bytes for each in amounts]),
    )


def _shared_cpu_violations(parts: Sequence[NodeState]) -> Iterator[Violation]:
    counts = [
        Counter(cpu for held in part.holdings.values() for cpu in held.cpuset) for part in parts
    ]
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    most = max(part.cpu_ref_count_max for part in parts)
    for cpu in sorted(total):
        alone = max(each[cpu] for each in counts)
        if total[cpu] > max(most, alone):
            names = "+".join(
                part.name for part, each in zip(parts, counts, strict=True) if each[cpu]
            )
            fact = f"more holders than allowed: {total[cpu]} of {most}"
            yield Violation(node_name=names, unit=f"cpu/{cpu}", fact=fact)
