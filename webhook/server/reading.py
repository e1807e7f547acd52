"""The quick way to read a review: as the careful one, and what has to be looked up for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from ledger.domain.kube.object_fields import items_in, section
from ledger.domain.resources import LABEL_TENURE_MANAGED
from webhook.decide import review
from webhook.decide.counting import is_card_name
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.server.ports import LookupFailedError, Lookups


def read_review(body: bytes, limits: review.ReviewLimits) -> review.AdmissionRequest:
    """
    Decode an AdmissionReview.

    A parser in C reads it first. If what it read is written back byte for byte, nothing was lost
    on the way, such as a key that is there twice; then only the rest of the checks are needed.
    Everything else goes through the careful reader, which finds the words for what is wrong.

    Raises:
        InputError: as `decode_review`.
    """
    if len(body) > limits.bytes_max:
        raise review.LimitError(f"too large: bytes_max={limits.bytes_max}")
    values = len(body) - len(body.translate(None, b",[{"))  # those in texts count, too
    if values > limits.values_max:
        raise review.LimitError(f"too many values: values_max={limits.values_max}")
    try:
        value = orjson.loads(body)
        same = orjson.dumps(value) == body.rstrip()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        same = False
    if not same or len(body) > limits.text_length_max:
        return review.decode_review(body, limits)
    return review.request_of(value, limits)


_BINDING: Final = "Binding"
_POD: Final = "Pod"
_SECTIONS: Final = ("containers", "initContainers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """
    What has to be looked up for a request.

    Attributes:
        namespace: whose labels; empty for objects that have none, which need nothing.
        quotas: the namespace's quotas too, if it is managed.
        bound: the name of the Pod that a Binding is for, None for other requests.
    """

    namespace: str
    quotas: bool = False
    bound: str | None = None


def needs_of(request: review.AdmissionRequest) -> Needs:
    """Return what deciding a request needs to know beside it."""
    if request.kind == _BINDING:
        return Needs(namespace=request.namespace, bound=request.name)
    return Needs(namespace=request.namespace, quotas=_asks_cards(request))


async def gather_facts(needs: Needs, lookups: Lookups) -> NamespaceFacts:
    """
    Look up what deciding a request needs.

    Raises:
        LookupFailedError: the API could not be asked. For a Binding the Pod then counts as
            unknown, and the decision is made without it.
    """
    namespace = needs.namespace
    if not namespace:
        return NamespaceFacts()
    labels = await lookups.namespace_labels(namespace)
    managed = labels.get(LABEL_TENURE_MANAGED) == "true"
    if needs.bound is not None:
        pod = await _bound(namespace, needs.bound, lookups)
        return NamespaceFacts(labels=labels, managed=managed, pod=pod)
    quotas: tuple[QuotaFact, ...] = ()
    if managed and needs.quotas:
        quotas = await lookups.quotas(namespace)
    return NamespaceFacts(labels=labels, managed=managed, quotas=quotas)


async def _bound(namespace: str, name: str, lookups: Lookups) -> Mapping[str, object] | None:
    try:
        return await lookups.pod(namespace, name)
    except LookupFailedError:
        return None


def _asks_cards(request: review.AdmissionRequest) -> bool:
    if request.kind != _POD or request.operation != review.CREATE:
        return False
    containers = (one for key in _SECTIONS for one in items_in(request.obj, "spec", key))
    return any(map(_names_cards, containers))


def _names_cards(container: Mapping[str, object]) -> bool:
    """Tell whether requests or limits name cards in any dialect, whatever else they may be."""
    amounts = (section(container, "resources", key) for key in ("requests", "limits"))
    return any(is_card_name(name) for some in amounts for name in some if isinstance(name, str))
