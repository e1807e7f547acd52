"""The topology tree of a node's GPUs: the deepest scope that can serve a demand alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ledger.domain.annotations.device_hints import TopologyScope
from ledger.domain.requests import DeviceDemand
from scheduler.decide import reasons
from scheduler.decide.cards.fit import UNIT_CARDS, fits, is_whole, why_unfit
from scheduler.decide.cards.order import score
from scheduler.decide.outcome import CardView, Unfit


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
    return bool(gpus) and all(card.record.place is not None for card in gpus)


def scopes_of(gpus: Sequence[CardView]) -> Iterator[Scope]:
    """
    Yield the scopes of a node, by NUMA node and then PCIe root as text, parents after children.

    Rule: Koordinator contract 8.4.

    NUMA node -1 is a scope only where no GPU knows better; an unnamed PCIe root never is.
    """
    by_place: dict[int, dict[str, list[CardView]]] = {}
    for card in gpus:
        place = card.record.place
        assert place is not None, card.record.key
        by_place.setdefault(place.numa_node, {}).setdefault(place.pcie_id, []).append(card)
    whole_used = _is_used(gpus)
    for numa_node, by_root in sorted(by_place.items()):
        inside = sorted(
            (card for cards in by_root.values() for card in cards),
            key=lambda card: card.record.minor,
        )
        numa_used = whole_used + _is_used(inside)
        for root, cards in sorted(by_root.items()):
            if root:
                used = numa_used + _is_used(cards)
                yield Scope(depth=TopologyScope.PCIE.depth, cards=tuple(cards), used=used)
        if numa_node >= 0 or len(by_place) == 1:
            yield Scope(depth=TopologyScope.NUMA_NODE.depth, cards=tuple(inside), used=numa_used)
    yield Scope(depth=TopologyScope.NODE.depth, cards=tuple(gpus), used=whole_used)


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

    Args:
        offered: the GPUs that the Pod may have, all of `gpus` that passed its filters.
        required: scopes above this one don't count.
    """
    forced = required.depth > TopologyScope.NODE.depth and demand.count > 1
    whole = is_whole(demand)
    if demand.count > 1 and not whole:
        missing = reasons.MULTI_SHARED_GPU.text
        return Unfit(reason=missing, preemptible=False) if forced else None
    if not has_tree(gpus):
        missing = reasons.NO_TOPOLOGY_TREE.text
        return Unfit(reason=missing, preemptible=False) if forced else None
    minors = {card.record.minor for card in offered}
    best: list[CardView] | None = None
    best_rank: tuple[int, int, int] | None = None
    most, most_fitting = 0, 0
    for scope in scopes_of(gpus):
        if forced and scope.depth < required.depth:
            continue
        most = max(most, len(scope.cards))
        fitting = [card for card in scope.cards if card.record.minor in minors]
        fitting = [card for card in fitting if fits(card, demand)]
        most_fitting = max(most_fitting, len(fitting))
        if len(fitting) < demand.count:
            continue
        device = 0 if whole else max(score(card, demand, scoring=scoring) for card in fitting)
        rank = (scope.depth, scope.used, device)
        if best_rank is None or rank > best_rank:
            best, best_rank = fitting, rank
    if best is not None or not forced:
        return best
    if sum(fits(card, demand) for card in offered) < demand.count:
        return why_unfit(offered, demand)
    return Unfit(
        reason=reasons.TOPOLOGY_SCOPE.text,
        requested=demand.count,
        available=most_fitting,
        unit=UNIT_CARDS,
        preemptible=most >= demand.count,
    )


def shares_scope(cards: Sequence[CardView], required: TopologyScope) -> bool:
    """Tell whether these GPUs are under one scope at least that deep."""
    if required.depth <= TopologyScope.NODE.depth or len(cards) < 2:
        return True
    places = {card.record.place for card in cards}
    if None in places:
        return False
    if required is TopologyScope.NUMA_NODE:
        nodes = {place.numa_node for place in places if place is not None}
        return len(nodes) == 1 and -1 not in nodes
    roots = {place.pcie_id for place in places if place is not None}
    return len(roots) == 1 and "" not in roots


def _is_used(cards: Sequence[CardView]) -> bool:
    return any(card.tenants for card in cards)
