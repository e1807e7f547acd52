"""The GPUs of one node for one Pod: by partition table, else by topology tree, else by order."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.annotations.device_hints import DeviceHint, TopologyScope
from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest, is_whole
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import UNIT_CARDS, fits, selected, undisturbed
from scheduler.decide.cards.links import pick_linked
from scheduler.decide.cards.partition import partitions_for
from scheduler.decide.cards.tree import in_scope, scopes_for
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import SchedulingSettings


def in_links(
    demand: DeviceDemand,
    offered: Sequence[CardView],
    gpus: Sequence[CardView],
    links: LinkMatrix,
    *,
    required: TopologyScope,
) -> Sequence[CardView] | Unfit:
    """
    Return the GPUs with the best links; what is offered when that leaves no choice.

    Rule: DIVERGENCES, "links and the topology tree": links decide inside a required scope, in
    whichever one they are best. What is left to others is every idle GPU of the node, whether or
    not this Pod's filters would have taken it.

    Args:
        demand: for whole GPUs.
        offered: the GPUs that the Pod may have, all of `gpus` that passed its filters.
    """
    fitting = [card for card in offered if fits(card, demand)]
    free = [card.record.minor for card in gpus if not (card.tenants or card.closed)]
    within: list[list[int]] = []
    if required.depth > TopologyScope.NODE.depth and demand.count > 1:
        scopes = scopes_for(demand, offered, gpus, required=required)
        if isinstance(scopes, Unfit):
            return scopes
        within = [[card.record.minor for card in inside] for _, inside in scopes]
    elif len(fitting) <= demand.count:
        return offered
    elif len(fitting) < len(free):
        within = [[card.record.minor for card in fitting]]
    minors = pick_linked(free, demand.count, links, within=within)
    return [card for card in fitting if card.record.minor in minors]


def is_shaped(node: NodeFacts) -> bool:
    """Tell whether more than the order of minors may decide which whole GPU a Pod gets."""
    gpus = [record for record in node.devices if record.device_type == GPU]
    placed = bool(gpus) and all(record.topology is not None for record in gpus)
    return placed or node.partitions is not None or node.honors_partitions


def choose_gpus(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    gpus: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None,
    only_minors: frozenset[int] | None,
) -> Choice | Unfit:
    """
    Choose the GPUs of a Pod, in its dialect.

    Rule: Koordinator contract 8.4 (the order of the ways) and 8.5; hints filter in every dialect.

    Args:
        gpus: every GPU of the node.
    """
    served = node.facts.dialects
    if served is not None and request.dialect is not None and request.dialect not in served:
        return Unfit(reason=reasons.DIALECT_NOT_SERVED.text, preemptible=False)
    hint = demands[0].hint
    kept = selected(gpus, hint)
    offered = undisturbed(kept, gpus, hint)
    if len(offered) < len(kept) and sum(demand.count for demand in demands) > len(offered):
        return _crowded(kept, offered, demands)
    if only_minors is not None:
        offered = [card for card in offered if card.record.minor in only_minors]
    chooser = chooser_of(request.dialect)
    mixed = 0 < sum(map(is_whole, demands)) < len(demands)
    if mixed and chooser.choose_beside is not None and node.facts.honors_partitions:
        return chooser.choose_beside(request, demands, offered, node, settings)
    narrowed = _narrowed(
        request, offered, node, settings, demands=demands, gpus=gpus, preferred_card=preferred_card
    )
    if isinstance(narrowed, Unfit):
        return narrowed
    return chooser.choose(request, demands, narrowed, node, settings, preferred_card=preferred_card)


def _crowded(
    kept: Sequence[CardView], offered: Sequence[CardView], demands: Sequence[DeviceDemand]
) -> Unfit:
    """Say that too few roots are without use; with fewer Pods there could be enough."""
    count = sum(demand.count for demand in demands)
    return Unfit(
        reason=reasons.insufficient_devices(GPU).text,
        requested=count,
        available=len(offered),
        unit=UNIT_CARDS,
        preemptible=len(kept) >= count,
    )


def _narrowed(
    request: PodRequest,
    offered: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    demands: Sequence[DeviceDemand],
    gpus: Sequence[CardView],
    preferred_card: int | None,
) -> Sequence[CardView] | Unfit:
    """Return the GPUs that partition table or topology tree leave to choose from."""
    by_share = chooser_of(request.dialect).by_share
    if all(map(is_whole, demands)) and (by_share or node.facts.honors_partitions):
        partitions = partitions_for(request, demands, offered, node, settings.devices)
        if partitions is not None:
            return partitions[0] if isinstance(partitions, list) else partitions
    if not by_share or len(demands) > 1:
        return offered
    (demand,) = demands
    required = (demand.hint or DeviceHint()).required_topology_scope
    if node.facts.links is not None and is_whole(demand):
        return in_links(demand, offered, gpus, node.facts.links, required=required)
    if required is TopologyScope.UNSET and preferred_card is not None:
        return offered  # the node policy's card says more than the tree
    scope = in_scope(demand, offered, gpus, required=required, scoring=settings.devices.scoring)
    return offered if scope is None else scope
