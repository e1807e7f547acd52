"""What Pods hold of GPUs beside core percent and memory: Huawei's AI cores and the like."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.domain.adopted.cards import UNITS_MAX
from ledger.domain.annotations.device_allocated import decode_device_allocated
from ledger.domain.devices import GPU
from ledger.domain.kube.shared_templates import Amounts
from ledger.domain.log.events import PodObserved
from ledger.domain.request.requests import PodRequest
from ledger.domain.resources import ANNOTATION_DEVICE_ALLOCATED, CARD_AMOUNT_NAMES
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.decide.outcome import Placement


def card_amounts_of(request: PodRequest) -> Amounts:
    """Return what the Pod takes of each of its GPUs; only a Pod's one GPU demand can say it."""
    first = request.devices[0] if request.devices else None
    return first.amounts if first is not None and first.device_type == GPU else ()


def reserved_amounts(placement: Placement) -> dict[int, Amounts]:
    """Return GPU minor -> what a placed Pod takes of the card."""
    amounts = card_amounts_of(placement.request)
    if not amounts:
        return {}
    return {share.minor: amounts for share in placement.shares if share.device_type == GPU}


def adopted_amounts(pod: PodObserved) -> dict[int, Amounts]:
    """Return GPU minor -> what a running Pod has of the card, by its `device-allocated`."""
    text = pod.annotations.get(ANNOTATION_DEVICE_ALLOCATED)
    return {} if text is None else read_amounts(text)


def amounts_text(annotations: Mapping[str, str]) -> str | None:
    """Return the `device-allocated` that says that a Pod has such of a card; None = none does."""
    text = annotations.get(ANNOTATION_DEVICE_ALLOCATED)
    if text is None or not ("\\" in text or any(name in text for name in CARD_AMOUNT_NAMES)):
        return None
    return text


def read_amounts(allocated: str) -> dict[int, Amounts]:
    """
    Return GPU minor -> what a `device-allocated` says of the card.

    Rule: Koordinator contract 2.2: the annotation's resources are per device. An amount is cut
    where a sum over many Pods would no longer hold it; it over-fills every card all the same.
    """
    return {
        entry.minor: tuple(
            (name, min(quantity.ceil(), UNITS_MAX))
            for name, quantity in entry.resources
            if name in CARD_AMOUNT_NAMES
        )
        for entry in decode_device_allocated(allocated, DEFAULT_VOCABULARY).get(GPU, ())
    }
