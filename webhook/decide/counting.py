"""
Whether a ResourceQuota counts the cards that a container asks for, in whatever dialect.

The API server counts each name for itself, so a quota on one dialect lets the others pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain import resources as res
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.registry import READERS, rewritten
from ledger.domain.kube.pod_spec import Amounts, ContainerSpec, PodSpec
from ledger.domain.request.normalise import gpu_demands, is_by_plugin
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.decide.settings import AdmissionSettings, DomainSetting

REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
CLAIMED_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
"""What a quota counts claims' devices by, behind the name of their class."""

_GPUS: Final = DEFAULT_VOCABULARY  # what names GPUs is the same in every vocabulary
_NUMBERS: Final = frozenset(name for each in READERS for name in each.words.card_numbers)
"""Names whose amount is a number of cards, or of shares of cards."""
_PERCENTS: Final = frozenset(name for each in READERS for name in each.words.card_percents)
"""Names whose amount is 100 for each whole card."""
_SUMS: Final = {word: amount for each in READERS for word, amount in each.sums.items()}
"""Words that are rewritten -> what one of their units is in which resource of ours."""
_OTHER_CARDS: Final = frozenset({res.AMD_GPU, res.DCU_GPU, *res.CARD_AMOUNT_NAMES})
"""Cards of vendors that no other dialect asks for: their quotas say nothing of ours."""
_MEMORIES: Final = frozenset(name for each in READERS for name in each.words.card_memories)
"""Names whose amount is memory of cards."""
_NUMBER, _COMPUTE, _MEMORY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaded:
    """What a quota limits by a name, and the container's names that it has to count; maybe none."""

    quota: QuotaFact
    container: ContainerSpec
    missing: tuple[str, ...]
    limited: str = ""


def evaded(
    spec: PodSpec, settings: AdmissionSettings, facts: NamespaceFacts, *, ours: bool
) -> Iterator[Evaded]:
    """
    Yield every container whose cards a quota of the namespace names and would not count.

    Rule: design section 5: a ResourceQuota that names cards in one dialect counts those of all.

    Args:
        spec: as its user wrote it.
        ours: our scheduler places the Pod, so what it asks for is rewritten before it is stored.
    """
    quotas = [quota for quota in facts.quotas if card_names(quota.hard)]
    keeps = bool(quotas) and is_by_plugin(spec, gpu_demands(spec))
    for quota in quotas:
        for container in spec.containers:
            stored = _stored(container, settings, rewrites=ours, keeps=keeps)
            yield from _uncounted(quota, container, stored)


def uncounted_by_claims(spec: PodSpec, facts: NamespaceFacts) -> Iterator[Evaded]:
    """
    Yield every container whose cards a quota of the namespace names, and none counts as claims.

    Rule: Kubernetes API, ResourceQuota: `<class>.deviceclass.resource.k8s.io/devices`.
    """
    if any(key.endswith(CLAIMED_DEVICES) for quota in facts.quotas for key in quota.hard):
        return
    quota = next((one for one in facts.quotas if card_names(one.hard)), None)
    if quota is None:
        return
    for container in spec.containers:
        if any(quantity and is_card_name(name) for name, quantity in container.requests.items()):
            yield Evaded(quota=quota, container=container, missing=(CLAIMED_DEVICES,))


def is_card_name(name: str) -> bool:
    """Tell whether a resource, in any spelling, is a way to ask for cards that dialects share."""
    return _GPUS.device_type_of(name) == res.TYPE_GPU and _GPUS.canonical(name) not in _OTHER_CARDS


def card_names(hard: Amounts) -> tuple[str, ...]:
    """Return the cards that a quota names, with `requests.`, `limits.` or bare, by name."""
    return tuple(sorted({name for key in hard if is_card_name(name := resource_of(key))}))


def in_cards(hard: Amounts, name: str) -> int | None:
    """
    Return how much of a name is as many cards as a quota allows; None where no number says it.

    A share counts as a card where the number of cards is what is counted.

    Rule: design section 3 and 8: n cards are core and memory ratio 100 n, shared n.
    """
    percent = _percent(hard)
    released = _GPUS.canonical(name)
    if percent is None or released not in _NUMBERS | _PERCENTS:
        return None
    if released in _PERCENTS:
        return percent
    cards, part = divmod(percent, WHOLE_PERCENT)
    return cards + 1 if part and released != res.NVIDIA_GPU else cards


def in_sums(hard: Amounts) -> Iterator[tuple[str, int]]:
    """Yield what a quota's words are in the resources that admission writes in their place."""
    for key, quantity in hard.items():
        if resource_of(key) in _SUMS:
            name, unit = _SUMS[resource_of(key)]
            yield name, quantity.ceil() * unit


def resource_of(key: str) -> str:
    """Return the resource that a quota's key names: `requests.nvidia.com/gpu` names that."""
    for prefix in (REQUESTS, _LIMITS):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return key


def _percent(hard: Amounts) -> int | None:
    """Return the percent of cards that a quota allows: by `nvidia.com/gpu`, else by the least."""
    found = {key: percent for key in hard if (percent := _in_percent(hard, key)) is not None}
    whole = [percent for key, percent in found.items() if resource_of(key) == res.NVIDIA_GPU]
    return min(whole or found.values(), default=None)


def _in_percent(hard: Amounts, key: str) -> int | None:
    """Return what a quota allows by one key in percent of cards, None where no number says it."""
    name = _GPUS.canonical(resource_of(key))
    if name in _NUMBERS:
        return hard[key].ceil() * WHOLE_PERCENT
    return hard[key].ceil() if name in _PERCENTS else None


def _stored(
    container: ContainerSpec, settings: AdmissionSettings, *, rewrites: bool, keeps: bool
) -> dict[str, int]:
    """Return what a quota sees of the cards that a container asks for, by name as stored."""
    asked = {
        name: quantity.ceil()
        for name, quantity in container.requests.items()
        if quantity and is_card_name(name)
    }
    if not rewrites:
        return {container.written.get(name, name): amount for name, amount in asked.items()}
    stored = asked if keeps and asked.keys() == {res.NVIDIA_GPU} else rewritten(asked)
    return {_spelt(name, container, settings.domain): stored[name] for name in stored}


def _spelt(name: str, container: ContainerSpec, domain: DomainSetting) -> str:
    """Return a name as admission writes it; kept, a new one is as `gpu` was."""
    if domain is DomainSetting.KEPT:
        if name in container.requests:
            return container.written.get(name, name)
        return name if res.GPU not in container.written else _GPUS.proposal_name(name)
    return name if domain is DomainSetting.KOORDINATOR else _GPUS.proposal_name(name)


def _uncounted(
    quota: QuotaFact, container: ContainerSpec, asked: Mapping[str, int]
) -> Iterator[Evaded]:
    """
    Yield what a quota limits of a container's cards and does not bound, once.

    Rule: docs/admission.md, Quotas: each of cards, compute and memory that it limits is counted.
    Kubernetes API, ResourceQuota: of extended resources only `requests.` is counted, and names
    under `kubernetes.io/` are none.
    """
    hard, limited, missing = quota.hard, list[str](), set[str]()
    counted = {
        name: asked[name] for name in asked if REQUESTS + name in hard and res.is_extended(name)
    }
    for dimension in (_NUMBER, _COMPUTE, _MEMORY) if asked else ():
        own = {name for name in asked if dimension in _dimensions(name)}
        limits = [key for key in hard if dimension in _dimensions(resource_of(key))]
        if not limits or (own and own <= counted.keys()):
            continue
        if dimension == _NUMBER:
            bounded, own = _is_all_else_counted(asked, counted), set(asked)
        elif not own and dimension == _COMPUTE and res.NVIDIA_GPU not in asked:
            continue  # a share of the memory alone
        else:
            bounded = _is_within_percent(hard, limits, counted, by_all=not own)
        if not bounded:
            limited.append(min(map(resource_of, limits)))
            missing |= own - counted.keys()
    names = tuple(name for name in asked if name in missing)
    if limited:
        yield Evaded(quota=quota, container=container, missing=names, limited=limited[0])


def _dimensions(name: str) -> tuple[int, ...]:
    """Return what a name counts of cards, whichever dialect's it is."""
    released = _GPUS.canonical(name)
    if not is_card_name(name):
        return ()
    if released == res.GPU:
        return (_COMPUTE, _MEMORY)
    return (_NUMBER if released in _NUMBERS else _MEMORY if released in _MEMORIES else _COMPUTE,)


def _is_all_else_counted(asked: Mapping[str, int], counted: Mapping[str, int]) -> bool:
    """Tell it; one percentage that is counted stands for another that is not larger."""
    percents = {name for name in asked if _GPUS.canonical(name) in _PERCENTS}
    most = max((counted[name] for name in percents & counted.keys()), default=0)
    parts = {name for name in asked if _GPUS.canonical(name) not in _NUMBERS} or set(asked)
    return not parts - counted.keys() - {name for name in percents if asked[name] <= most}


def _is_within_percent(
    hard: Amounts, limits: Iterable[str], counted: Iterable[str], *, by_all: bool
) -> bool:
    """Tell whether no more percent than the limits allow can come by a number that is counted."""
    most = [_in_percent(hard, key) for key in limits]
    others = (
        _in_percent(hard, REQUESTS + name)
        for name in counted
        if by_all or _GPUS.canonical(name) in _NUMBERS
    )
    return any(
        other is not None and all(each is not None and other <= each for each in most)
        for other in others
    )
