"""What admission needs to know beside the request itself; whoever calls looks it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ledger.domain.kube.pod_spec import Amounts


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
        pod: the Pod that a Binding names; None for other requests, or when it is not known.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    managed: bool = False
    quotas: tuple[QuotaFact, ...] = ()
    pod: Mapping[str, object] | None = None
