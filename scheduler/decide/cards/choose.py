"""The devices of one node for one Pod, whatever dialect it spoke; those that count in units too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.annotations import device_hints
from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards import fit
from scheduler.decide.cards.gpus import choose_gpus
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.cards.shares import shares_of
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import DeviceSettings, SchedulingSettings

_BUS_ID: Final = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f]{1,3})"
)
_NOWHERE: AbstractSet[str] = frozenset()

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
        joint = self.request.joint
        same = joint is not None and joint.required_scope is device_hints.JointScope.SAME_PCIE
        return bool(self.joint) and same

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
            number = Counter(fit.root_of(card) for card in cards if card.record.minor in able)
            least = demands[0].count if len(demands) == 1 else 1
            enough.append({root for root, count in number.items() if count >= least})
        roots = frozenset.intersection(*map(frozenset, enough)) - {""}
        if roots:
            yield roots
            yield from ({root} for root in sorted(roots))

    def _choice_of(
        self, device_type: str, chosen: Mapping[str, Choice], within: _Roots | None
    ) -> Choice | Unfit:
        request, demands = self.request, self.by_type[device_type]
        cards = _of_type(self.node, device_type)
        under = [card for card in cards if within is None or fit.root_of(card) in within]
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
            return choose_plain(request, demands, under, self.node, self.settings)
        beside = device_type in self.joint[1:]
        primary = _held(self.node, self.joint[0], chosen[self.joint[0]]) if beside else ()
        return choose_units(
            request,
            demands[0],
            under,
            self.settings.devices,
            roots=fit.roots_of(primary) - {""},
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
    return (
        hint is not None and hint.allocate_strategy is device_hints.AllocateStrategy.APPLY_FOR_ALL
    )


def _of_type(node: NodeView, device_type: str) -> list[CardView]:
    return [card for card in node.cards if card.record.device_type == device_type]


def _held(node: NodeView, device_type: str, choice: Choice) -> list[CardView]:
    minors = {share.minor for share in choice.shares}
    return [card for card in _of_type(node, device_type) if card.record.minor in minors]


def _same_roots(groups: Sequence[Sequence[CardView]]) -> bool:
    """Tell whether all groups of devices are under the same PCIe roots, every one of them known."""
    roots = {fit.roots_of(cards) for cards in groups}
    return len(roots) == 1 and "" not in roots.pop()


def free_function(card: CardView, selector: device_hints.LabelSelector) -> str | None:
    """
    Return the bus id of the VF that the next Pod would get of this device, None without one.

    Rule: Koordinator contract 8.6, "VF choice", and quirk Q15 as "ours": bus ids are compared as
    numbers. A VF without a bus id can't be told from another one and is never handed out.
    """
    free = [
        vf.bus_id
        for vf in card.record.vfs
        if vf.bus_id and vf.bus_id not in card.vfs_in_use and selector.matches(vf.labels)
    ]
    return min(free, key=bus_order, default=None)


def bus_order(bus_id: str) -> tuple[bool, tuple[int, ...], str]:
    """Return a sort key: domain, bus, device, function; what is no bus id comes last, as text."""
    parts = _BUS_ID.fullmatch(bus_id.lower())
    if parts is None:
        return True, (), bus_id
    return False, tuple(int(part or "0", 16) for part in parts.groups()), bus_id


def choose_units(
    request: PodRequest,
    demand: DeviceDemand,
    cards: Sequence[CardView],
    settings: DeviceSettings,
    *,
    roots: AbstractSet[str] = _NOWHERE,
    same_roots: bool = False,
) -> Choice | Unfit:
    """
    Choose devices of one type, by hint and near devices that the Pod already has.

    Rule: Koordinator contract 8.2, 8.3 and 8.6.

    Args:
        cards: every device of the type on the node.
        roots: PCIe roots of the primary devices; one device per root is wanted, those under them
            first. `same_roots` makes that many devices the least.
    """
    hint = device_hints.DeviceHint() if demand.hint is None else demand.hint
    if hint.vf_selector is not None and not any(card.record.vfs for card in cards):
        text = reasons.no_functions(demand.device_type).text
        return Unfit(reason=text, preemptible=False)
    offered = fit.selected(cards, hint)
    everywhere = hint.allocate_strategy is device_hints.AllocateStrategy.APPLY_FOR_ALL
    least = len(offered) if everywhere else demand.count
    own = max(least, 1)
    least = max(own, len(roots)) if same_roots else own
    able = able_cards(demand, cards)
    if len(able) < least:
        plain = fit.why_unfit(offered, replace(demand, count=own))
        if not plain.preemptible:  # what is short by use alone could be helped by preemption
            return plain
        return replace(plain, requested=least, available=len(able), unit=fit.UNIT_CARDS)
    ranked = sorted(able, key=lambda card: -fit.score(card, demand, scoring=settings.scoring))
    picked = _by_roots(ranked, roots)[: max(least, len(roots))]
    picked.sort(key=lambda card: card.record.minor)
    named = request if len(picked) == demand.count else replace(request, containers=())
    shares = shares_of(named, demand.device_type, [(card, demand) for card in picked])
    if hint.vf_selector is not None:
        functions = [free_function(card, hint.vf_selector) for card in picked]
        shares = [
            structs.replace(share, vf_bus_ids=(bus_id,))
            for share, bus_id in zip(shares, functions, strict=True)
            if bus_id is not None
        ]
        assert len(shares) == len(picked), request.uid
    return Choice(shares=tuple(shares))


def able_cards(demand: DeviceDemand, cards: Sequence[CardView]) -> list[CardView]:
    """Return which of all devices of its type can serve the demand, by its hint and by amount."""
    hint = device_hints.DeviceHint() if demand.hint is None else demand.hint
    selector = hint.vf_selector
    left = (
        card
        for card in fit.undisturbed(fit.selected(cards, hint), cards, hint)
        if fit.fits(card, demand)
    )
    return [card for card in left if selector is None or free_function(card, selector) is not None]


def _by_roots(ranked: Sequence[CardView], roots: AbstractSet[str]) -> list[CardView]:
    """Return the best device of each root, then each root's second, ..., then all others."""
    seen: Counter[str] = Counter()
    keyed: list[tuple[bool, int, int, CardView]] = []
    for place, card in enumerate(ranked):
        root = fit.root_of(card)
        near = root in roots
        keyed.append((not near, seen[root] if near else 0, place, card))
        seen[root] += near
    return [card for *_, card in sorted(keyed, key=lambda item: item[:3])]
