"""Quotas that count `nvidia.com/gpu` only: a rewrite would slip past them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.wire import a_quantity
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import FieldError, InputError
from ledger.domain.object_fields import named
from ledger.domain.pod_spec import Amounts, PodSpec
from ledger.domain.quantity import Quantity
from ledger.domain.resources import (
    DOMAIN_KOORDINATOR,
    GPU_CORE,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    KOORDINATOR_GPU_NAMES,
    NVIDIA_GPU,
    proposal_name,
)
from ledger.domain.rule_names import Rule
from ledger.domain.rules import forbidden, of_rule
from webhook.decide.facts import NamespaceFacts, quota_resource
from webhook.decide.settings import DomainSetting
from webhook.decide.validating.catalogue import Advice
from webhook.decide.validating.findings import Said, say, shown

_REQUESTS: Final = "requests."
_HARD: Final = "spec.hard"


def translated(hard: Amounts, domain: DomainSetting = DomainSetting.KEPT) -> dict[str, int]:
    """
    Return what a quota has to count beside `nvidia.com/gpu`, by name.

    Rule: design section 3 and 8: n cards are core and memory ratio 100 n, shared n. The number of
    cards is among them because a request for bytes of memory names neither core nor ratio.

    A name that the quota counts already is left out.
    """
    cards = [q.ceil() for name, q in hard.items() if quota_resource(name) == NVIDIA_GPU]
    if not cards:
        return {}
    rename = proposal_name if domain is DomainSetting.KUBERNETES else str
    least = min(cards)
    counted = {quota_resource(name) for name in hard}
    wanted = {
        GPU_CORE: least * WHOLE_PERCENT,
        GPU_MEMORY_RATIO: least * WHOLE_PERCENT,
        GPU_SHARED: least,
    }
    return {
        f"{_REQUESTS}{rename(name)}": amount
        for name, amount in wanted.items()
        if rename(name) not in counted
    }


def translate_quota(
    quota: Mapping[str, object], domain: DomainSetting = DomainSetting.KEPT
) -> dict[str, object]:
    """
    Return a ResourceQuota that counts whole cards under the names they are rewritten to, too.

    What it has is kept: `nvidia.com/gpu` still counts Pods that nobody rewrites.

    Raises:
        InputError: a wrong type, a bad or negative quantity, with its field path.
    """
    spec = named(quota.get("spec"), "spec")
    items = named(spec.get("hard"), _HARD)
    hard: dict[str, Quantity] = {}
    for name, value in items.items():
        if quota_resource(name) == NVIDIA_GPU:
            hard[name] = _whole(value, f"{_HARD}[{name}]")
        else:
            hard[name] = a_quantity(value, f"{_HARD}[{name}]")
    added = {name: str(amount) for name, amount in translated(hard, domain).items()}
    return {**quota, "spec": {**spec, "hard": {**items, **added}}} if added else dict(quota)


@of_rule(Rule.QUOTA_EVADED)
def check_counted(spec: PodSpec, facts: NamespaceFacts) -> Iterator[FieldError]:
    """
    Yield every request for whole cards that a quota of the namespace counts, and ours would not.

    Rule: design section 8, Guests in the cluster. The answer carries the quota to set.
    """
    for quota in facts.whole_card_quotas():
        added = ", ".join(f"{name}: {amount}" for name, amount in translated(quota.hard).items())
        for container in spec.containers:
            if container.requests.get(NVIDIA_GPU):
                fact = (
                    f"ResourceQuota {shown(quota.name)} counts {NVIDIA_GPU} but none of the names "
                    f"it is rewritten to; add to its {_HARD}: {added} "
                    "(`tenure quota translate` writes it)"
                )
                yield forbidden(container.field(NVIDIA_GPU), fact)


def uncounted(spec: PodSpec, facts: NamespaceFacts) -> Iterator[Said]:
    """Say that a quota on whole cards does not count what a Pod asks for in Koordinator's names."""
    asked = sorted(
        name
        for container in spec.containers
        for name, quantity in container.requests.items()
        if quantity and name in KOORDINATOR_GPU_NAMES and name.startswith(DOMAIN_KOORDINATOR)
    )
    for quota in facts.whole_card_quotas() if asked else ():
        text = f"ResourceQuota {shown(quota.name)} counts {NVIDIA_GPU}, not {asked[0]}"
        yield say(Advice.UNCOUNTED_BY_QUOTA, f"{text}: this pod is outside of it")


def _whole(value: object, field: str) -> Quantity:
    quantity = a_quantity(value, field)
    if not quantity.is_whole():
        raise InputError(f"must be a whole number: value={value!r}", field=field)
    return quantity
