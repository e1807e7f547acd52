"""What a Pod asks for in HAMi's words: demands for parts of cards, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.hami import words
from ledger.domain.dialects.hami.annotations import CORE_MODE, words_of
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import INIT, SIDECAR, ContainerSpec, PodSpec
from ledger.domain.request.asked import NOTHING, TypeRequest, asking
from ledger.domain.request.requests import CardFilter, DeviceDemand, is_whole
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, invalid, of_rule, unsupported
from ledger.domain.resources import NVIDIA_GPU, TYPE_GPU

CARDS_MAX: Final = 1024
MEMORY_MAX_MIB: Final = 2**20
"""1 TiB: no card has more, so a larger number has the wrong unit (GPU-sharing contract A.6)."""

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_ALONE, _LINKS, _NUMA = "mutex", "topology-aware", "numa"
_BY_NODE: Final = ("binpack", "spread")
_BY_CARD: Final = {"binpack": "MostAllocated", "spread": "LeastAllocated", _LINKS: _LINKS}
_ALIKE: Final = {"slot=1", "core=1", "memory=1"}
MIB: Final = 2**20


@of_rule(Rule.HAMI_SHARE)
def check_container(container: ContainerSpec, amounts: Mapping[str, int]) -> Iterator[FieldError]:
    """Yield all that is wrong with one container (docs/contracts/hami.md 1, facts 6-8, 10, 11)."""
    asked = {name: amount for name, amount in amounts.items() if amount}
    cards = amounts.get(NVIDIA_GPU, 1)
    if not cards:
        fact = f"{min(asked)} is of each card; nearest legal value 1"
        yield invalid(container.field(NVIDIA_GPU), cards, fact)
    elif cards > CARDS_MAX:
        yield invalid(container.field(NVIDIA_GPU), cards, f"no node has more than {CARDS_MAX}")
    for name in (words.MEMORY_PERCENT, words.CORES):
        if asked.get(name, 0) > WHOLE_PERCENT:
            fact = f"percent of each card, at most {WHOLE_PERCENT}"
            yield invalid(container.field(name), asked[name], fact)
    if words.MEMORY in asked and words.MEMORY_PERCENT in asked:
        by = f"{words.MEMORY} or in percent by {words.MEMORY_PERCENT}"
        fact = f"memory is counted in MiB by {by}, not both"
        yield forbidden(container.field(words.MEMORY_PERCENT), fact)
    if asked.get(words.MEMORY, 0) > MEMORY_MAX_MIB:
        fact = (
            f"more than {MEMORY_MAX_MIB} MiB of one card; the value counts MiB: "
            "write 6144 for 6 GiB, not 6Gi"
        )
        yield invalid(container.field(words.MEMORY), container.original[words.MEMORY], fact)


def check_wishes(
    annotations: Mapping[str, str], *, cards: int, each_max: int, alone: bool, whole: bool
) -> Iterator[FieldError]:
    """
    Yield the wishes about cards that no node can fulfil, and those that this release does not.

    Rule: docs/contracts/hami.md 2, as "ours". One that changes nothing passes.

    Args:
        cards: of the whole Pod; `each_max` of the container that has the most.
        alone: the Pod shares no card; `whole`: it asks for whole cards in one demand.
    """
    yield from _check_lists(annotations, cards)
    if annotations.get(words.NUMA_BIND) in _TRUE and each_max > 1:
        yield unsupported(annotation_path(words.NUMA_BIND), "several GPUs on one NUMA node")
    mode = annotations.get(words.MODE)
    if mode is not None and CORE_MODE not in mode:
        yield unsupported(annotation_path(words.MODE), f"modes of a card other than {CORE_MODE}")
    policies = words_of(annotations.get(words.CARD_POLICY, ""))
    if _ALONE in policies and not alone:
        yield unsupported(annotation_path(words.CARD_POLICY), "a share that begins on an idle card")
    if _LINKS in policies and not whole:
        yield unsupported(annotation_path(words.CARD_POLICY), "links between shares of cards")
    if _NUMA in policies:
        yield unsupported(annotation_path(words.CARD_POLICY), "cards in the order of NUMA nodes")
    if not {*words_of(annotations.get(words.WEIGHTS, ""))} <= _ALIKE:
        yield unsupported(annotation_path(words.WEIGHTS), "weights that are not all 1")


@of_rule(Rule.HAMI_SHARE)
def _check_lists(annotations: Mapping[str, str], cards: int) -> Iterator[FieldError]:
    for key, known in (
        (words.CARD_POLICY, (*_BY_CARD, _NUMA, _ALONE)),
        (words.NODE_POLICY, _BY_NODE),
    ):
        text = annotations.get(key, "").strip()
        if not {*words_of(text)} <= {*known} or (key == words.NODE_POLICY and "," in text):
            yield invalid(annotation_path(key), text, f"must be of {', '.join(known)}")
    for key in (words.USE_TYPE, words.USE_ID):
        text = annotations.get(key, "")
        if text.strip() and not words_of(text):
            yield invalid(annotation_path(key), text, "names nothing, so no card would do")
    wanted = {*words_of(annotations.get(words.USE_ID, ""))} - {
        *words_of(annotations.get(words.NOUSE_ID, ""))
    }
    if words_of(annotations.get(words.USE_ID, "")) and len(wanted) < cards:
        fact = f"leaves {len(wanted)} cards, and the pod asks for {cards} different ones"
        yield invalid(annotation_path(words.USE_ID), annotations[words.USE_ID], fact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a container takes of each of its cards; memory in bytes or in percent of the card."""

    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int

    @property
    def is_alone(self) -> bool:
        """Tell whether the card has no other holder (docs/contracts/hami.md 1, fact 3)."""
        return self.core_percent == WHOLE_PERCENT

    def beside(self, other: Part) -> Part:
        """Return what serves either of the two, which take turns; both count memory alike."""
        whole = WHOLE_PERCENT in {self.memory_ratio_percent, other.memory_ratio_percent}
        return Part(
            core_percent=max(self.core_percent, other.core_percent),
            memory_bytes=0 if whole else max(self.memory_bytes, other.memory_bytes),
            memory_ratio_percent=max(self.memory_ratio_percent, other.memory_ratio_percent),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    container: ContainerSpec
    cards: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    part: Part
    places: tuple[str, ...]  # of the containers that use it


def hami_demands(spec: PodSpec) -> TypeRequest:
    """
    Return the demands of a Pod in HAMi's words: one for each run of cards that give alike.

    Rule: docs/contracts/hami.md 1 and 2; design section 3: containers and sidecars take different
    cards, an init container the first ones that no sidecar before it keeps.
    """
    found = [
        (container, amounts)
        for container, amounts in asking(spec, {NVIDIA_GPU, *words.SHARE_NAMES})
        if any(amounts.values())
    ]
    if not found:
        return NOTHING
    errors = [error for each in found for error in check_container(*each)]
    if errors:
        return TypeRequest(errors=tuple(errors))
    asks = [
        _Ask(container=container, cards=amounts.get(NVIDIA_GPU, 1), part=part_of(amounts))
        for container, amounts in found
    ]
    errors = [*_check_turns(asks)]
    cards = [] if errors else _cards(asks)
    errors += check_wishes(
        spec.annotations,
        cards=len(cards),
        each_max=max(ask.cards for ask in asks),
        alone=all(card.part.is_alone for card in cards),
        whole=[is_whole(demand) for demand in _demands(cards)] == [True],
    )
    if errors:
        return TypeRequest(errors=tuple(errors))
    return TypeRequest(
        demands=tuple(_demands(cards)),
        counts={ask.container.index: ask.cards for ask in asks},
    )


def part_of(amounts: Mapping[str, int]) -> Part:
    """
    Return what a container takes of each card.

    Rule: docs/contracts/hami.md 1: without a word of memory all of it, and with all of it alone,
    unless the compute is said.
    """
    memory, percent = amounts.get(words.MEMORY, 0), amounts.get(words.MEMORY_PERCENT, 0)
    whole = not memory and percent in {0, WHOLE_PERCENT}
    core = amounts.get(words.CORES, 0)
    if not core and whole:
        core = WHOLE_PERCENT
    return Part(
        core_percent=core,
        memory_bytes=memory * MIB,
        memory_ratio_percent=WHOLE_PERCENT if whole else percent,
    )


def card_filter(annotations: Mapping[str, str]) -> CardFilter | None:
    """Return which cards a Pod takes, None for all (docs/contracts/hami.md 2)."""
    lists = {key: words_of(annotations.get(key, "")) for key in (words.USE_TYPE, words.NOUSE_TYPE)}
    ids = {key: words_of(annotations.get(key, "")) for key in (words.USE_ID, words.NOUSE_ID)}
    if not any((*lists.values(), *ids.values())):
        return None
    return CardFilter(
        models=lists[words.USE_TYPE],
        not_models=lists[words.NOUSE_TYPE],
        ids=ids[words.USE_ID],
        not_ids=ids[words.NOUSE_ID],
    )


def policies_of(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the node policy and the scoring of cards that a Pod wishes, empty without one."""
    cards = (_BY_CARD.get(word, "") for word in words_of(annotations.get(words.CARD_POLICY, "")))
    return {
        "node_policy": annotations.get(words.NODE_POLICY, "").strip(),
        "card_scoring": next(filter(None, cards), ""),
    }


@of_rule(Rule.HAMI_SHARE)
def _check_turns(asks: Sequence[_Ask]) -> Iterator[FieldError]:
    """Refuse what takes turns on a card and can't be compared: MiB beside percent of memory."""
    by_bytes = [ask for ask in asks if ask.part.memory_bytes]
    by_ratio = [ask for ask in asks if 0 < ask.part.memory_ratio_percent < WHOLE_PERCENT]
    if by_bytes and by_ratio and any(ask.container.kind == INIT for ask in asks):
        later, first = by_bytes[0].container, by_ratio[0].container
        fact = (
            "beside an init container that asks for cards memory is counted alike everywhere: "
            f"container {first.name} counts it in percent"
        )
        yield forbidden(later.field(words.MEMORY), fact)


def _cards(asks: Sequence[_Ask]) -> list[_Card]:
    cards = [
        _Card(part=ask.part, places=(ask.container.index,))
        for ask in asks
        if ask.container.kind != INIT
        for _ in range(ask.cards)
    ]
    begin, kept = 0, set[int]()
    for ask in asks:
        if ask.container.kind != INIT:
            own = range(begin, begin + ask.cards)
            begin += ask.cards
            if ask.container.kind == SIDECAR:
                kept.update(own)
            continue
        free = [number for number in range(len(cards)) if number not in kept][: ask.cards]
        for number in free:
            card = cards[number]
            both = (*card.places, ask.container.index)
            cards[number] = _Card(part=card.part.beside(ask.part), places=both)
        more = _Card(part=ask.part, places=(ask.container.index,))
        cards.extend([more] * (ask.cards - len(free)))
    return cards


def _demands(cards: Sequence[_Card]) -> Iterator[DeviceDemand]:
    for part, run in groupby(cards, key=lambda card: card.part):
        alike = list(run)
        yield DeviceDemand(
            device_type=TYPE_GPU,
            count=len(alike),
            core_percent=part.core_percent,
            memory_bytes=part.memory_bytes,
            memory_ratio_percent=part.memory_ratio_percent,
            exclusive=part.is_alone,
            containers=tuple(dict.fromkeys(place for card in alike for place in card.places)),
        )
