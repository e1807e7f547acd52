"""Which rule failed first on one node, with the numbers behind it and what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.devices import GPU
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request import extended
from ledger.domain.request.requests import DeviceDemand, MatchExpression, PlacementRules, PodRequest
from scheduler.decide.cards.fit import asked_bytes, fits, root_of
from scheduler.decide.cards.view import NodeView
from scheduler.decide.cpusets.choose import demand_on
from scheduler.decide.dialects.registry import CHOOSERS, chooser_of
from scheduler.decide.nodes.cpu_room import load_of, policy_text, room_of
from scheduler.decide.nodes.labels import accepts, first_untolerated
from scheduler.decide.numa.align import effective_policy
from scheduler.decide.outcome import CardView, Unfit, Unplaced
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.what_if import WhatIf

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """
    One reason of one node.

    Attributes:
        reason: our finer word where there is one (`reasons.Reason.name`).
        asked, available: in `unit`; None where the rule has no numbers. What others over-hold is
            available below 0.
        about: the cards, CPUs, roots, label or taint that the numbers are of.
    """

    node: int
    reason: str
    asked: int | None = None
    available: int | None = None
    unit: str = ""
    about: str = ""


Make = partial[Obstacle]
"""Makes the reason of a node out of its figures."""
_TOGETHER: Final = frozenset(
    {
        reasons.NO_COMBINATION.text,
        *(reason.text for each in CHOOSERS for reason in each.search_reasons),
    }
)
"""Every container fits alone; the numbers are of the first that takes part."""
NUMA_STARTS: Final = (
    reasons.NUMA_POLICY_CONFLICT.text,
    reasons.NO_NUMA_NODES.text,
    reasons.INSUFFICIENT_NUMA_CPU.text,
    reasons.UNALIGNED.text,
    reasons.UNSATISFIED.text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One node with what is left of it, and what its Pods hold, for the rules below."""

    node: int
    request: PodRequest
    facts: NodeFacts
    view: NodeView
    settings: SchedulingSettings
    holders: tuple[PodObserved, ...]


def find_reasons(request: PodRequest, answer: Unplaced, what_if: WhatIf) -> Iterator[Obstacle]:
    """Yield every node's reasons with numbers, nodes in order; nothing for a refusal by rules."""
    if answer.nodes is None:
        return
    names = answer.nodes.names or answer.nodes.texts
    for node, code in enumerate(answer.nodes.codes):
        look = Look(
            node=node,
            request=request,
            facts=what_if.nodes[node],
            view=what_if.view(node),
            settings=what_if.settings,
            holders=tuple(holder.held for holder in what_if.on(node)),
        )
        for name, text in zip(names[code], answer.nodes.texts[code], strict=True):
            yield _find(look, partial(Obstacle, node=node, reason=name), text)


def _find(look: Look, make: Make, text: str) -> Obstacle:
    """Return the numbers behind the reason that the message calls `text`."""
    explain = _BY_TEXT.get(text)
    if explain is not None:
        return explain(look, make)
    if about := _ABOUTS.get(text):
        return make(about=about(look.request, look.facts))
    if text.startswith(reasons.TAINTED):
        return make(about=_taint(look.request, look.facts))
    if text.startswith(NUMA_STARTS):
        return _numa(look, make)
    if resource := reasons.resource_short(text):
        return _extended(look, make, resource)
    return _of_devices(look, make, text)


def _taint(request: PodRequest, node: NodeFacts) -> str:
    taint = first_untolerated(node.taints, request.placement.tolerations)
    value = f"={taint.value}" if taint and taint.value else ""
    return f"taint {taint.key}{value}:{taint.effect}" if taint else ""


def _affinity(request: PodRequest, node: NodeFacts) -> str:
    return "; ".join(_unmet(node, request.placement))


def _unmet(node: NodeFacts, rules: PlacementRules) -> Iterator[str]:
    """Yield the selector pairs that fail, and of the affinity the term that fails least."""
    for key, wanted in rules.node_selector:
        if node.labels.get(key) != wanted:
            yield f"wants {key}={wanted}, {_has(node, key)}"
    if rules.affinity_terms is None:
        return
    failing = [
        [each for each in term if not accepts(each, _value(node, each))]
        for term in rules.affinity_terms
    ]
    if not rules.affinity_terms or not all(failing):
        return
    for each in min(failing, key=len):
        values = ", ".join(each.values)
        words = f"{each.key} {each.operator}" + (f" ({values})" if values else "")
        yield f"wants {words}, {_has(node, each.key)}"


def _value(node: NodeFacts, expression: MatchExpression) -> str | None:
    return node.name if expression.is_field else node.labels.get(expression.key)


def _has(node: NodeFacts, key: str) -> str:
    value = node.name if key == "metadata.name" else node.labels.get(key)
    return "the node has none" if value is None else f"the node has {value}"


def _pods(look: Look, make: Make) -> Obstacle:
    available = (look.facts.pods_max or 0) - len(look.holders)
    return make(asked=1, available=available, unit="pods")


def _cpu_free(look: Look) -> int:
    cost = look.facts.cpu_cost_milli
    held = sum(cost(pod.cpu_milli, len(pod.cpuset)) for pod in look.holders)
    return (look.facts.cpu_milli or 0) - held


def _cpu(look: Look, make: Make) -> Obstacle:
    return make(
        asked=look.request.cpu_milli,
        available=_cpu_free(look),
        unit="cpu milli",
        about=f"the node has {look.facts.cpu_milli}",
    )


def _amplified(look: Look, make: Make) -> Obstacle:
    facts = look.facts
    demand = demand_on(look.request, facts)
    own = 0 if demand is None else demand.cpus
    ratio = float(facts.cpu_amplification)
    return make(
        asked=facts.cpu_cost_milli(look.request.cpu_milli, own),
        available=_cpu_free(look),
        unit="cpu milli",
        about=f"the node has {facts.cpu_milli}, a CPU of one's own counts {ratio:g} times",
    )


def _memory(look: Look, make: Make) -> Obstacle:
    has = look.facts.memory_bytes or 0
    return make(
        asked=-(-look.request.memory_bytes // _MIB),
        available=(has - sum(pod.memory_bytes for pod in look.holders)) // _MIB,
        unit="memory MiB",
        about=f"the node has {has // _MIB}",
    )


def _extended(look: Look, make: Make, resource: str) -> Obstacle:
    cap = look.facts.extended.get(resource, 0)
    used = sum(extended.held(pod.snapshot).get(resource, 0) for pod in look.holders)
    return make(
        asked=dict(look.request.extended).get(resource, 0),
        available=cap - used,
        unit=resource,
        about=f"the node has {cap}",
    )


def _unknown(look: Look, make: Make) -> Obstacle:
    strangers = (f"{pod.namespace}/{pod.pod_name}" for pod in look.holders if pod.unknown_types)
    return make(about=", ".join(strangers))


def _dialect(request: PodRequest, node: NodeFacts) -> str:
    served = ", ".join(sorted(node.dialects or ()))
    return f"asks in {request.dialect}, serves {served or 'none'}"


def _cpus(look: Look, make: Make) -> Obstacle:
    """Say what each NUMA node has left, in whole cores and CPUs, and whose policy counts."""
    demand = demand_on(look.request, look.facts)
    if look.facts.cpu_topology is None or demand is None:
        return make()
    room = room_of(look.facts, load_of(look.facts, look.holders), alone=demand.alone)
    policy = policy_text(look.request, look.facts)
    return make(
        asked=demand.cpus,
        available=room.candidates(demand),
        unit="cpus",
        about="; ".join(
            filter(None, (f"free {CpuSet(mask=room.free) or '-'}", room.by_numa(), policy))
        ),
    )


def _numa(look: Look, make: Make) -> Obstacle:
    """Say what each NUMA node has left of CPUs, memory and of the devices that are asked for."""
    alone = look.request.cpuset is not None and look.request.cpuset.alone
    room = room_of(look.facts, load_of(look.facts, look.holders), alone=alone)
    left = {numa.id: [room.text_of(numa)] for numa in room.numas}
    cards = [card for card in look.view.cards if card.record.topology is not None]
    for card in cards:
        left.setdefault(card.record.topology.numa_node if card.record.topology else -1, [])
    for numa, parts in left.items():
        for demand in look.request.devices:
            able = [c for c in cards if c.record.topology and c.record.topology.numa_node == numa]
            count = sum(
                c.record.device_type == demand.device_type and fits(c, demand) for c in able
            )
            parts.append(f"{count} {demand.device_type}")
    texts = [f"NUMA {numa} has {', '.join(filter(None, left[numa]))}" for numa in sorted(left)]
    policy = effective_policy(look.request, look.facts, look.settings.cpu)
    if isinstance(policy, Unfit):
        asked = "" if look.request.numa is None else look.request.numa.policy
        words = f"policy {asked} of the Pod, {look.facts.numa_policy} of the node"
    else:
        words = f"policy {policy}" if policy else ""
    own = policy_text(look.request, look.facts)
    return make(about="; ".join(filter(None, (*texts, words, own))))


def _pool(look: Look, make: Make) -> Obstacle:
    """Say how large the shared pools are that a bursting Pod's limit must fit into."""
    room = room_of(look.facts, load_of(look.facts, look.holders))
    return make(
        asked=look.request.burst_milli,
        available=look.facts.amplified(room.unheld.bit_count() * 1000),
        unit="cpu milli",
        about=f"pools: {room.pool_text()}",
    )


def _whole_cores(look: Look, make: Make) -> Obstacle:
    topology, demand = look.facts.cpu_topology, demand_on(look.request, look.facts)
    threads = topology.threads_per_core if topology else 0
    asked = None if demand is None else demand.cpus
    policy = policy_text(look.request, look.facts)
    about = "; ".join(filter(None, (f"a core has {threads} CPUs", policy)))
    return make(asked=asked, unit="cpus", about=about)


def _bind_policy(request: PodRequest, node: NodeFacts) -> str:
    asked = request.cpuset.bind_policy if request.cpuset else ""
    return f"requires {asked}, the node {node.cpu_bind_policy}"


def _partitions(look: Look, make: Make) -> Obstacle:
    table = look.facts.partitions or {}
    count = sum(demand.count for demand in _of_type(look.request.devices, "gpu"))
    sizes = ", ".join(str(size) for size in sorted(table))
    groups = ["+".join(map(str, group.minors)) for group in table.get(count, ())]
    free = [card for card in _cards(look, "gpu") if not card.closed and not card.tenants]
    about = f"the table has sizes {sizes}" if sizes else "the node has no table"
    if groups:
        about = f"partitions {' '.join(groups)}; free {_minors(free) or '-'}"
    return make(
        asked=count,
        available=len(free),
        unit="gpu devices",
        about=about,
    )


def _roots(look: Look, make: Make) -> Obstacle:
    kinds = dict.fromkeys(demand.device_type for demand in look.request.devices)
    parts = []
    for kind in kinds:
        demand = next(_of_type(look.request.devices, kind))
        able = [card for card in _cards(look, kind) if fits(card, demand)]
        roots = ", ".join(sorted({root_of(card) or "unknown" for card in able})) or "none"
        parts.append(f"{kind} fits under roots {roots}")
    return make(about="; ".join(parts))


def _of_devices(look: Look, make: Make, text: str) -> Obstacle:
    """Explain the reasons whose text names a device type, and those of the closer look."""
    kinds = dict.fromkeys(demand.device_type for demand in look.request.devices)
    for kind in kinds:
        if text == reasons.model_mismatch(kind).text:
            return _models(look, make, kind)
        if text == reasons.container_limit(kind, "").text:
            return _containers(look, make, kind)
        if text in {reasons.insufficient_devices(kind).text, reasons.no_functions(kind).text}:
            return _fitting(look, make, kind)
    if text in _TOGETHER and kinds:
        return _fitting(look, make, next(iter(kinds)))
    return make()


def _models(look: Look, make: Make, kind: str) -> Obstacle:
    asked = next(_of_type(look.request.devices, kind)).model_names
    has = sorted({card.record.model or "unnamed" for card in _cards(look, kind)})
    about = f"asks for {', '.join(asked)}; the node has {', '.join(has)}"
    return make(about=about)


def _containers(look: Look, make: Make, kind: str) -> Obstacle:
    limit = chooser_of(look.request.dialect).limit
    assert limit is not None, "a reason of dialects that have one"
    counts = ", ".join(
        f"{kind}/{card.record.minor} has {card.instances}" for card in _cards(look, kind)
    )
    about = f"at most {limit.most(look.settings)} {limit.what}; {counts}"
    return make(about=about)


def _fitting(look: Look, make: Make, kind: str, *, by_place: bool = False) -> Obstacle:
    """
    Count the devices that could serve the first demand that has too few of them.

    One device of which a part is asked for: what is left of the one with most, in what is short.
    """
    cards = _cards(look, kind)
    demand = _short(list(_of_type(look.request.devices, kind)), cards)
    able = [card for card in cards if fits(card, demand)]
    about = _about(kind, cards, able)
    if by_place and able:
        about += f"; under {_places(able)}"
    open_cards = [card for card in cards if not card.closed and not card.exclusive]
    if demand.count == 1 and not demand.exclusive and not able and open_cards:
        return _part(make, demand, open_cards)
    return make(
        asked=demand.count,
        available=len(able),
        unit=f"{kind} devices",
        about=about,
    )


def _part(make: Make, demand: DeviceDemand, cards: Sequence[CardView]) -> Obstacle:
    """Say what is short on the card that lacks least: memory first, else core."""

    def lacking(card: CardView) -> tuple[int, int]:
        memory = asked_bytes(demand, card.record.memory_bytes) - card.memory_free
        return max(0, memory), max(0, demand.core_percent - card.core_free)

    best = min(cards, key=lambda card: (lacking(card), card.record.minor))
    place = f"{best.record.device_type}/{best.record.minor}"
    memory, _ = lacking(best)
    if memory:
        return make(
            asked=-(-asked_bytes(demand, best.record.memory_bytes) // _MIB),
            available=best.memory_free // _MIB,
            unit="MiB of one card",
            about=f"most is left on {place}, with {best.core_free} % core",
        )
    return make(
        asked=demand.core_percent,
        available=best.core_free,
        unit="% core of one card",
        about=f"most is left on {place}",
    )


def _short(demands: Sequence[DeviceDemand], cards: Sequence[CardView]) -> DeviceDemand:
    for demand in demands:
        if sum(fits(card, demand) for card in cards) < demand.count:
            return demand
    return demands[0]


def _about(kind: str, cards: Sequence[CardView], able: Sequence[CardView]) -> str:
    if not cards:
        return f"the node has no {kind}"
    closed = [card for card in cards if card.closed]
    rest = [card for card in cards if card not in able and not card.closed]
    parts = [
        f"{word} {kind}/{_minors(some)}"
        for word, some in (("could serve", able), ("held", rest), ("closed", closed))
        if some
    ]
    return "; ".join(parts)


def _places(cards: Iterable[CardView]) -> str:
    """Return how many devices there are per NUMA node and PCIe root: `NUMA 0 root 3b: 2`."""
    counts: dict[str, int] = {}
    for card in cards:
        place = card.record.topology
        numa = "unknown" if place is None or place.numa_node < 0 else str(place.numa_node)
        key = f"NUMA {numa} root {root_of(card) or 'unknown'}"
        counts[key] = counts.get(key, 0) + 1
    return ", ".join(f"{key}: {count}" for key, count in sorted(counts.items()))


def _minors(cards: Sequence[CardView]) -> str:
    return str(cpuset_of(card.record.minor for card in cards))


def _cards(look: Look, kind: str) -> list[CardView]:
    return [card for card in look.view.cards if card.record.device_type == kind]


def _of_type(demands: Iterable[DeviceDemand], kind: str) -> Iterator[DeviceDemand]:
    return (demand for demand in demands if demand.device_type == kind)


_ABOUTS: Final[Mapping[str, Callable[[PodRequest, NodeFacts], str]]] = {
    reasons.AFFINITY.text: _affinity,
    reasons.GPU_VENDOR.text: _affinity,
    reasons.NOT_ISOLATED.text: _affinity,
    reasons.DIALECT_NOT_SERVED.text: _dialect,
    reasons.BIND_POLICY_CONFLICT.text: _bind_policy,
    **{text: about for each in CHOOSERS for text, about in each.abouts.items()},
}
_BY_TEXT: Final[Mapping[str, Callable[[Look, Make], Obstacle]]] = {
    reasons.TOO_MANY_PODS.text: _pods,
    reasons.INSUFFICIENT_CPU.text: _cpu,
    reasons.INSUFFICIENT_AMPLIFIED_CPU.text: _amplified,
    reasons.INSUFFICIENT_MEMORY.text: _memory,
    reasons.UNKNOWN_CARD.text: _unknown,
    reasons.INSUFFICIENT_CPUS.text: _cpus,
    reasons.NO_PARTITION_TABLE.text: _partitions,
    reasons.PARTITION_COUNT.text: _partitions,
    reasons.NO_FREE_PARTITION.text: _partitions,
    reasons.TOPOLOGY_SCOPE.text: partial(_fitting, kind=GPU, by_place=True),
    reasons.NO_TOPOLOGY_TREE.text: partial(_fitting, kind=GPU, by_place=True),
    reasons.JOINT_RULES.text: _roots,
    reasons.NOT_WHOLE_CORES.text: _whole_cores,
    reasons.INSUFFICIENT_POOL.text: _pool,
}
