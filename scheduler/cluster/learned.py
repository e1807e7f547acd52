"""The Pods that a cluster usually sees, learned from what a ledger recorded of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledger.domain.log.events import PodObserved, PodReserved, RequestDescribed, RequestRefused
from ledger.domain.log.recorded import RecordedEvent
from ledger.domain.log.recorded_request import RecordedRequest, request_digest
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.rebuilt import request_of

LEARNED_MAX: Final = 100_000
"""The newest Pods of a ledger are learned from; older ones are another mix."""


def requests_seen(events: Iterable[RecordedEvent]) -> tuple[tuple[PodRequest, ...], int]:
    """
    Return the requests that events recorded, each Pod once, whether it was placed or not.

    And the number of Pods that they have requests of, and do not tell which.

    Rule: FGD paper, "typical Pods": what usually arrives.
    """
    found: dict[str, PodRequest] = {}
    requests: dict[str, RecordedRequest] = {}
    untold: set[str] = set()
    for recorded in events:
        event = recorded.event
        if isinstance(event, RequestDescribed):
            requests[request_digest(event.request)] = event.request
        if not isinstance(event, PodReserved | PodObserved | RequestRefused):
            continue
        if event.pod_uid not in found:
            request = request_of(event, requests)
            if request is not None:
                found[event.pod_uid] = request
            elif event.request is not None or isinstance(event, PodReserved):
                untold.add(event.pod_uid)
    return tuple(found.values())[-LEARNED_MAX:], len(untold - found.keys())
