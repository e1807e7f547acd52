"""The topology tree of a node's GPUs: the deepest scope that can serve a demand alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ledger.domain.annotations.device_hints import TopologyScope
from ledger.domain.request.requests import DeviceDemand, is_whole
from scheduler.decide.cards.fit import UNIT_CARDS, fits, root_of, score, why_unfit
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """
    Devices below one point of the tree.

    Attributes:
        used: how many of the scope and the scopes around it hold a used device.
    """

    depth: int
    cards: tuple[CardView, ...]
    used: int


def has_tree(gpus: Sequence[CardView]) -> bool:
    """Tell whether every GPU of the node says where it is (Koordinator contract 8.4)."""
    return bool(gpus) and all(card.record.topology is not None for card in gpus)


def scopes_of(gpus: Sequence[CardView]) -> Iterator[Scope]:
    """
    Yield the scopes of a node, by NUMA node and then PCIe root as text, parents after children.

    Rule: Koordinator contract 8.4.

    What no GPU knows is no scope: a PCIe root without a name, a NUMA node of `None`.
    """
    numa_of = numa_nodes(gpus)
    by_place: dict[int | None, dict[str, list[CardView]]] = {}
    for card in gpus:
        inside = by_place.setdefault(numa_of[card.record.minor], {})
        inside.setdefault(root_of(card), []).append(card)
    whole_used = _is_used(gpus)
    for numa_node in sorted(by_place, key=lambda node: -1 if node is None else node):
        by_root = by_place[numa_node]
        inside_numa = [card for card in gpus if numa_of[card.record.minor] == numa_node]
        numa_used = whole_used + (numa_node is not None and _is_used(inside_numa))
        for root, cards in sorted(by_root.items()):
            if root:
                used = numa_used + _is_used(cards)
                yield Scope(depth=TopologyScope.PCIE.depth, cards=tuple(cards), used=used)
        if numa_node is not None:
            depth = TopologyScope.NUMA_NODE.depth
            yield Scope(depth=depth, cards=tuple(inside_numa), used=numa_used)
    yield Scope(depth=TopologyScope.NODE.depth, cards=tuple(gpus), used=whole_used)


def numa_nodes(gpus: Sequence[CardView]) -> dict[int, int | None]:
    """
    Return minor -> NUMA node of all GPUs of a node; None where nobody can tell.

    Rule: Koordinator contract 3.1: a PCIe root is on one NUMA node, so one GPU tells for all that
    are under it; DIVERGENCES, "NUMA node -1 of GPUs": -1 is a scope where every GPU says so.
    """
    told = {
        card.record.minor: None if card.record.topology is None else card.record.topology.numa_node
        for card in gpus
    }
    if set(told.values()) == {-1}:
        return told
    by_root = {
        root_of(card): told[card.record.minor]
        for card in gpus
        if root_of(card) and told[card.record.minor] not in {None, -1}
    }
    return {
        card.record.minor: by_root.get(root_of(card))
        if told[card.record.minor] in {None, -1}
        else told[card.record.minor]
        for card in gpus
    }


def scopes_for(
    demand: DeviceDemand,
    offered: Sequence[CardView],
    gpus: Sequence[CardView],
    *,
    required: TopologyScope,
) -> list[tuple[Scope, list[CardView]]] | Unfit:
    """
    Return the scopes that alone hold enough, with the fitting GPUs of each; none without a tree.

    Rule: Koordinator contract 8.4, quirk Q16: a single GPU is under one scope of any depth.

    Args:
        offered: the GPUs that the Pod may have, all of `gpus` that passed its filters.
        required: scopes above this one don't count.
    """
    forced = required.depth > TopologyScope.NODE.depth and demand.count > 1
    if demand.count > 1 and not is_whole(demand):
        missing = reasons.MULTI_SHARED_GPU.text
        return Unfit(reason=missing, preemptible=False) if forced else []
    if not has_tree(gpus):
        missing = reasons.NO_TOPOLOGY_TREE.text
        return Unfit(reason=missing, preemptible=False) if forced else []
    minors = {card.record.minor for card in offered}
    found: list[tuple[Scope, list[CardView]]] = []
    most, most_fitting = 0, 0
    for scope in scopes_of(gpus):
        if forced and scope.depth < required.depth:
            continue
        most = max(most, len(scope.cards))
        fitting = [card for card in scope.cards if card.record.minor in minors]
        fitting = [card for card in fitting if fits(card, demand)]
        most_fitting = max(most_fitting, len(fitting))
        if len(fitting) >= demand.count:
            found.append((scope, fitting))
    if found or not forced:
        return found
    if sum(fits(card, demand) for card in offered) < demand.count:
        return why_unfit(offered, demand)
    return Unfit(
        reason=reasons.TOPOLOGY_SCOPE.text,
        requested=demand.count,
        available=most_fitting,
        unit=UNIT_CARDS,
        preemptible=most >= demand.count,
    )


def in_scope(
    demand: DeviceDemand,
    offered: Sequence[CardView],
    gpus: Sequence[CardView],
    *,
    required: TopologyScope,
    scoring: str,
) -> list[CardView] | Unfit | None:
    """
    Return the fitting GPUs of the best scope, None where the tree has no say.

    Rule: Koordinator contract 8.4: the deepest scope that alone holds enough; among equals the one
    with more used scopes around it, for parts of cards then the best device; then the first.
    """
    scopes = scopes_for(demand, offered, gpus, required=required)
    if isinstance(scopes, Unfit):
        return scopes
    whole = is_whole(demand)
    best: list[CardView] | None = None
    best_rank: tuple[int, int, int] | None = None
    for scope, fitting in scopes:
        device = 0 if whole else max(score(card, demand, scoring=scoring) for card in fitting)
        rank = (scope.depth, scope.used, device)
        if best_rank is None or rank > best_rank:
            best, best_rank = fitting, rank
    return best


def shares_scope(minors: Sequence[int], gpus: Sequence[CardView], required: TopologyScope) -> bool:
    """Tell whether these GPUs of a node are known to be under one scope at least that deep."""
    if required.depth <= TopologyScope.NODE.depth or len(minors) < 2:
        return True
    if required is TopologyScope.NUMA_NODE:
        numa_of = numa_nodes(gpus)
        nodes = {numa_of[minor] for minor in minors}
        return len(nodes) == 1 and None not in nodes
    roots = {root_of(card) for card in gpus if card.record.minor in minors}
    return len(roots) == 1 and "" not in roots


def _is_used(cards: Sequence[CardView]) -> bool:
    return any(card.tenants for card in cards)
