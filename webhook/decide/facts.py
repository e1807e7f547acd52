"""What admission needs to know beside the request itself; whoever calls looks it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.pod_spec import Amounts
from ledger.domain.resources import NVIDIA_GPU, TYPE_GPU, WHOLE_CARD_NAMES, device_type_of

_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFact:
    """A ResourceQuota of the namespace: its `spec.hard`, by name as written."""

    name: str
    hard: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """
    The namespace of a request, and what had to be looked up in it.

    Attributes:
        managed: the namespace has opted in; nothing of ours happens in one that has not.
        quotas: its ResourceQuotas.
        pod: the Pod that a Binding names; None for other requests, or when it is not known.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    managed: bool = False
    quotas: tuple[QuotaFact, ...] = ()
    pod: Mapping[str, object] | None = None

    def whole_card_quotas(self) -> tuple[QuotaFact, ...]:
        """
        Return the quotas that count `nvidia.com/gpu` but none of the names it is rewritten to.

        Rule: design section 8, Guests in the cluster: there the rewrite would leave the quota
        without effect, so it is not done.
        """
        return tuple(quota for quota in self.quotas if _counts_whole_cards_only(quota))


def quota_resource(name: str) -> str:
    """Return the resource that a quota's key counts: `requests.nvidia.com/gpu` counts that."""
    for prefix in (_REQUESTS, _LIMITS):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _counts_whole_cards_only(quota: QuotaFact) -> bool:
    names = {quota_resource(name) for name in quota.hard}
    ours = {
        name for name in names if device_type_of(name) == TYPE_GPU and name not in WHOLE_CARD_NAMES
    }
    return NVIDIA_GPU in names and not ours
