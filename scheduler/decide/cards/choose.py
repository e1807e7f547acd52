"""The devices of one node for one Pod, whatever dialect it spoke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledger.domain.annotations.device_hints import AllocateStrategy, JointScope
from ledger.domain.devices import GPU
from ledger.domain.requests import DeviceDemand, PodRequest
from scheduler.decide import reasons
from scheduler.decide.cards.gpus import choose_gpus
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.cards.roots import roots_of
from scheduler.decide.cards.units import choose_units
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings


def choose(
    request: PodRequest,
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None = None,
    only_minors: frozenset[int] | None = None,
) -> Choice | Unfit:
    """
    Choose the devices that the node would give the Pod: all of them or none.

    Rule: design section 3; Koordinator contract 8.2 to 8.6; GPU-sharing contract A.4, A.5, B.3,
    B.4.

    Args:
        preferred_card: minor of the GPU that a node policy would like, for a Pod that asks for
            one GPU or a part of one by share; taken when it fits.
        only_minors: the GPUs that the Pod may have (its group's plan); None = all.

    Returns:
        The shares, or why not: the first type that fails, joint types in their order before the
        rest, GPUs before other types by name.
    """
    by_type: dict[str, list[DeviceDemand]] = {}
    for demand in request.devices:
        by_type.setdefault(demand.device_type, []).append(demand)
    joint = _joint_types(request, by_type)
    same = bool(joint) and _scope(request) is JointScope.SAME_PCIE
    chosen: dict[str, Choice] = {}
    for device_type in dict.fromkeys((*joint, *by_type)):
        demands = by_type[device_type]
        cards = _of_type(node, device_type)
        if device_type == GPU:
            answer = choose_gpus(
                request,
                demands,
                cards,
                node,
                settings,
                preferred_card=preferred_card,
                only_minors=only_minors,
            )
        elif len(demands) > 1:
            answer = choose_plain(request, demands, cards, node, settings.devices)
        else:
            beside = device_type in joint[1:]
            near = roots_of(_held(node, joint[0], chosen[joint[0]])) if beside else frozenset()
            answer = choose_units(
                request,
                demands[0],
                cards,
                settings.devices,
                roots=near - {""},
                same_roots=same and beside,
            )
        if isinstance(answer, Unfit):
            return answer
        chosen[device_type] = answer
    if same and not _same_roots([_held(node, name, chosen[name]) for name in joint]):
        return Unfit(reason=reasons.JOINT_RULES.text)
    shares = [share for choice in chosen.values() for share in choice.shares]
    shares.sort(key=lambda share: share.key)
    cut = any(choice.search_cut for choice in chosen.values())
    return Choice(shares=tuple(shares), search_cut=cut)


def _joint_types(
    request: PodRequest, by_type: Mapping[str, Sequence[DeviceDemand]]
) -> tuple[str, ...]:
    """
    Return the types to choose side by side, the primary first; none if there are not several.

    Rule: Koordinator contract 8.6: types without a request or with `ApplyForAll` drop out.
    """
    if request.joint is None:
        return ()
    asked = dict.fromkeys(name for name in request.joint.device_types if name in by_type)
    types = tuple(name for name in asked if not _is_everywhere(by_type[name][0]))
    return types if len(types) > 1 else ()


def _is_everywhere(demand: DeviceDemand) -> bool:
    hint = demand.hint
    return hint is not None and hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL


def _scope(request: PodRequest) -> JointScope:
    return JointScope.BEST_EFFORT if request.joint is None else request.joint.required_scope


def _of_type(node: NodeView, device_type: str) -> list[CardView]:
    return [card for card in node.cards if card.record.device_type == device_type]


def _held(node: NodeView, device_type: str, choice: Choice) -> list[CardView]:
    minors = {share.minor for share in choice.shares}
    return [card for card in _of_type(node, device_type) if card.record.minor in minors]


def _same_roots(groups: Sequence[Sequence[CardView]]) -> bool:
    """Tell whether all groups of devices are under the same PCIe roots, every one of them known."""
    roots = {roots_of(cards) for cards in groups}
    return len(roots) == 1 and "" not in roots.pop()
