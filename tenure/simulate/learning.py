"""A run whose typical Pods are those that another ledger saw."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from ledger.domain.errors import InputError
from ledger.domain.request.requests import PodRequest
from ledger.store.open import open_ledger
from scheduler.cluster.learned import requests_seen
from tenure.exits import with_next
from tenure.simulate.model import Run


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
    Return the requests that a ledger recorded, and of how many Pods it does not tell them.

    Raises:
        InputError: no such ledger.
    """
    with open_ledger(url, mode="read") as ledger:
        return requests_seen(ledger.read_events())
