"""ResourceQuotas that name cards in one dialect: the cards of every other count too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain import resources as res
from ledger.domain.annotations.wire import a_quantity
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import named
from ledger.domain.kube.pod_spec import Amounts, PodSpec
from ledger.domain.quantity import Quantity
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from webhook.decide import counting
from webhook.decide.facts import NamespaceFacts
from webhook.decide.settings import AdmissionSettings, DomainSetting
from webhook.decide.validating.findings import shown

_HARD: Final = "spec.hard"
_SOME: Final = "as much as you choose"  # memory has no number of cards
_NATIVE: Final = "the API server counts no name under kubernetes.io/, so no quota can"
_TRANSLATED: Final = (res.GPU_CORE, res.GPU_MEMORY_RATIO, res.GPU_SHARED, res.NVIDIA_GPU)


def translated(hard: Amounts, domain: DomainSetting = DomainSetting.KEPT) -> dict[str, int]:
    """
    Return what a quota that counts cards has to count beside, by name.

    Rule: design section 3 and 8: n cards are core and memory ratio 100 n, shared n. The number of
    cards is among them because a request for bytes of memory names neither core nor ratio.
    Words that are rewritten to sums over the cards are those sums; the least of two amounts counts.

    A name that the quota counts already is left out.
    """
    rename = DEFAULT_VOCABULARY.proposal_name if domain is DomainSetting.KUBERNETES else str
    counted = {counting.resource_of(name) for name in hard}
    cards = ((name, counting.in_cards(hard, name)) for name in _TRANSLATED)
    amounts = {name: amount for name, amount in cards if amount is not None}
    for name, amount in counting.in_sums(hard):
        amounts[name] = min(amount, amounts.get(name, amount))
    return {
        f"{counting.REQUESTS}{rename(name)}": amount
        for name, amount in amounts.items()
        if rename(name) not in counted
    }


def translate_quota(
    quota: Mapping[str, object],
    domain: DomainSetting = DomainSetting.KEPT,
    device_class: str = "",
) -> dict[str, object]:
    """
    Return a ResourceQuota that counts cards under the names that others ask for them by, too.

    What it has is kept: `nvidia.com/gpu` still counts Pods that nobody rewrites.

    Args:
        device_class: by which claims ask for cards, which are counted by number; empty = none are.

    Raises:
        InputError: a wrong type, a bad or negative quantity, with its field path.
    """
    spec = named(quota.get("spec"), "spec")
    items = named(spec.get("hard"), _HARD)
    hard: dict[str, Quantity] = {}
    for name, value in items.items():
        if counting.resource_of(name) == res.NVIDIA_GPU:
            hard[name] = _whole(value, f"{_HARD}[{name}]")
        else:
            hard[name] = a_quantity(value, f"{_HARD}[{name}]")
    added = {name: str(amount) for name, amount in translated(hard, domain).items()}
    cards, claimed = (
        counting.in_cards(hard, res.GPU_SHARED),
        f"{device_class}{counting.CLAIMED_DEVICES}",
    )
    if device_class and cards is not None and claimed not in hard:
        added[claimed] = str(cards)
    return {**quota, "spec": {**spec, "hard": {**items, **added}}} if added else dict(quota)


@of_rule(Rule.QUOTA_EVADED)
def check_counted(
    spec: PodSpec, settings: AdmissionSettings, facts: NamespaceFacts, *, ours: bool
) -> Iterator[FieldError]:
    """
    Yield every request for cards that a quota on cards would not count, in whatever dialect.

    Rule: design section 5 and 8, Guests in the cluster. The answer carries the quota to set.

    Args:
        ours: our scheduler places the Pod.
    """
    for one in counting.evaded(spec, settings, facts, ours=ours):
        first = next(name for name in one.container.requests if counting.is_card_name(name))
        yield forbidden(one.container.field(first), _fact(one, settings.domain))


@of_rule(Rule.QUOTA_EVADED)
def check_claims_counted(spec: PodSpec, facts: NamespaceFacts) -> Iterator[FieldError]:
    """Yield every request for cards that becomes a claim, where a quota counts cards alone."""
    for one in counting.uncounted_by_claims(spec, facts):
        first = next(name for name in one.container.requests if counting.is_card_name(name))
        counted = counting.card_names(one.quota.hard)[0]
        cards = counting.in_cards(one.quota.hard, res.GPU_SHARED)
        fact = (
            f"ResourceQuota {shown(one.quota.name)} counts {counted} but no claims, which cards are"
            f" given by here; add to its {_HARD}: <DeviceClass>{counting.CLAIMED_DEVICES}: "
            f"{_SOME if cards is None else cards}"
        )
        how = " (`tenure quota translate --device-class` writes it)"
        yield forbidden(one.container.field(first), fact if cards is None else fact + how)


def _fact(one: counting.Evaded, domain: DomainSetting) -> str:
    """Say what the quota limits, what it does not count, and the quota to set."""
    begin = f"ResourceQuota {shown(one.quota.name)} limits {one.limited}"
    written = {one.container.written.get(name, name) for name in one.container.requests}
    if not one.missing:
        names = ", ".join(filter(counting.is_card_name, sorted(written)))
        return f"{begin}, and {names} says no amount of that; ask for {res.GPU}"
    names = ", ".join(one.missing)
    if not written.issuperset(one.missing):
        names += ", which it is rewritten to"
    hard = one.quota.hard
    sums = translated(hard, domain)
    names_to_add = {
        f"{counting.REQUESTS}{name}": name for name in one.missing if res.is_extended(name)
    }
    added = {
        key: sums.get(key, counting.in_cards(hard, name)) for key, name in names_to_add.items()
    }
    texts = (f"{key}: {_SOME if amount is None else amount}" for key, amount in added.items())
    to_set = f"add to its {_HARD}: {', '.join(texts)}" if added else _NATIVE
    how = " (`tenure quota translate` writes it)" if added.keys() <= sums.keys() else ""
    return f"{begin} but does not count {names}; {to_set}{how}"


def _whole(value: object, field: str) -> Quantity:
    quantity = a_quantity(value, field)
    if not quantity.is_whole():
        raise InputError(f"must be a whole number: value={value!r}", field=field)
    return quantity
