"""Cards that a Pod holds and nobody can name."""

from __future__ import annotations

from ledger.domain.devices import GPU
from ledger.domain.log.events import PodObserved
from ledger.domain.request import extended
from ledger.domain.resources import WHOLE_CARD_NAMES


def unnamed_cards(event: PodObserved) -> int:
    """
    Return how many cards a Pod holds that nobody can name: as many as it asked for, whole.

    Rule: design section 3, the whole Pod's request, where the event has no number of its own. At
    least 1 for a Pod on an unknown card, 0 for any other.
    """
    if GPU not in event.unknown_types:
        return 0
    asked = extended.held(event.snapshot)
    wholes = sum(asked.get(name, 0) for name in WHOLE_CARD_NAMES)
    named = sum(1 for share in event.shares if share.device_type == GPU)
    return event.counted.get(GPU) or max(1, wholes - named)
