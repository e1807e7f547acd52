"""The devices of one node for one Pod, whatever dialect it spoke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ledger.domain.annotations.device_hints import AllocateStrategy, JointScope
from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import root_of, roots_of
from scheduler.decide.cards.gpus import choose_gpus
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.cards.units import able_cards, choose_units
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import SchedulingSettings

_Roots = AbstractSet[str]


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
    B.4; DIVERGENCES, "`SamePCIe`".

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
    attempt = _Attempt(
        request=request,
        by_type=by_type,
        joint=_joint_types(request, by_type),
        node=node,
        settings=settings,
        preferred_card=preferred_card,
        only_minors=only_minors,
    )
    answer = attempt.choice()
    if attempt.same and isinstance(answer, Unfit):
        for roots in attempt.other_roots():
            other = attempt.choice(roots)
            if not isinstance(other, Unfit):
                return other
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What stays the same however often it is tried; `joint` types are chosen side by side."""

    request: PodRequest
    by_type: Mapping[str, Sequence[DeviceDemand]]
    joint: Sequence[str]
    node: NodeView
    settings: SchedulingSettings
    preferred_card: int | None
    only_minors: frozenset[int] | None

    @property
    def same(self) -> bool:
        """Tell whether all joint devices have to be under the same roots."""
        return bool(self.joint) and _scope(self.request) is JointScope.SAME_PCIE

    def choice(self, within: _Roots | None = None) -> Choice | Unfit:
        """Choose type after type, the joint ones only under these roots (None = anywhere)."""
        chosen: dict[str, Choice] = {}
        for device_type in dict.fromkeys((*self.joint, *self.by_type)):
            inside = within if device_type in self.joint else None
            answer = self._choice_of(device_type, chosen, inside)
            if isinstance(answer, Unfit):
                return answer
            chosen[device_type] = answer
        if self.same and not _same_roots(
            [_held(self.node, name, chosen[name]) for name in self.joint]
        ):
            return Unfit(reason=reasons.JOINT_RULES.text)
        shares = [share for choice in chosen.values() for share in choice.shares]
        shares.sort(key=lambda share: share.key)
        cut = any(choice.search_cut for choice in chosen.values())
        return Choice(shares=tuple(shares), search_cut=cut)

    def other_roots(self) -> Iterator[_Roots]:
        """Yield the roots that have enough of every joint type: all together, then each."""
        enough: list[_Roots] = []
        for device_type in self.joint:
            cards, demands = _of_type(self.node, device_type), self.by_type[device_type]
            able = {item.record.minor for demand in demands for item in able_cards(demand, cards)}
            if device_type == GPU and self.only_minors is not None:
                able &= self.only_minors
            number = Counter(root_of(card) for card in cards if card.record.minor in able)
            least = demands[0].count if len(demands) == 1 else 1
            enough.append({root for root, count in number.items() if count >= least})
        roots = frozenset.intersection(*map(frozenset, enough)) - {""}
        if roots:
            yield roots
            yield from ({root} for root in sorted(roots))

    def _choice_of(
        self, device_type: str, chosen: Mapping[str, Choice], within: _Roots | None
    ) -> Choice | Unfit:
        """Choose the devices of one type, beside those of the primary that are chosen already."""
        request, demands = self.request, self.by_type[device_type]
        cards = _of_type(self.node, device_type)
        under = [card for card in cards if within is None or root_of(card) in within]
        if device_type == GPU:
            minors = self.only_minors
            if within is not None:
                inside = frozenset(card.record.minor for card in under)
                minors = inside if minors is None else minors & inside
            return choose_gpus(
                request,
                demands,
                cards,
                self.node,
                self.settings,
                preferred_card=self.preferred_card,
                only_minors=minors,
            )
        if len(demands) > 1:
            return choose_plain(request, demands, under, self.node, self.settings.devices)
        beside = device_type in self.joint[1:]
        primary = _held(self.node, self.joint[0], chosen[self.joint[0]]) if beside else ()
        return choose_units(
            request,
            demands[0],
            under,
            self.settings.devices,
            roots=roots_of(primary) - {""},
            same_roots=self.same and beside,
        )


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
