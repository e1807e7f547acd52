"""The Pods that a cluster usually sees, learned from what a ledger recorded of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from ledger.domain.errors import InputError
from ledger.domain.log.events import PodObserved, PodReserved, RequestDescribed, RequestRefused
from ledger.domain.log.recorded_request import RecordedRequest, request_digest
from ledger.domain.request.requests import PodRequest
from ledger.store.open import open_ledger
from scheduler.cluster.rebuilt import request_of
from tenure.exits import with_next
from tenure.simulate.model import Run

LEARNED_MAX = 100_000
"""The newest Pods of a ledger are learned from; older ones are another mix."""


def with_learned(run: Run, url: str) -> Run:
    """
    Return the run with typical Pods out of another ledger in place of its own.

    The run's inputs are other ones then, so that a ledger of one is never continued by the other.

    Raises:
        InputError: no such ledger, or one that has seen no Pod.
    """
    learned, untold = learned_from(url)
    if not learned:
        error = InputError("the ledger has seen no Pod to learn from", place=url)
        raise with_next(error, "leave --learn out: the arrivals themselves are typical then")
    told = hashlib.sha256(run.inputs_hash.encode())
    for request in learned:
        told.update(repr((request.cpu_milli, request.devices, request.placement)).encode())
    warnings = run.warnings
    if untold:
        fact = "what they asked for is not in the log, they are not learned from"
        warnings = (*warnings, f"--learn {url}: {fact}: pods={untold}")
    return replace(run, typical=learned, inputs_hash=told.hexdigest(), warnings=warnings)


def learned_from(url: str) -> tuple[tuple[PodRequest, ...], int]:
    """
    Return the requests that a ledger recorded, each Pod once, whether it was placed or not.

    And the number of Pods that it has requests of, and does not tell which.

    Rule: FGD paper, "typical Pods": what usually arrives.

    Raises:
        InputError: no such ledger.
    """
    found: dict[str, PodRequest] = {}
    requests: dict[str, RecordedRequest] = {}
    untold: set[str] = set()
    with open_ledger(url, mode="read") as ledger:
        for recorded in ledger.read_events():
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
