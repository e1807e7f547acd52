"""How large, how long and how many: what one request may cost."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qs

from webhook.decide.review import (
    DEFAULT_LIMITS,
    AdmissionRequest,
    ReviewLimits,
    lists_of_containers,
)

MARGIN_SECONDS: Final = 0.5
"""How long before the API server gives up we do: time for the answer to travel."""

_FIELDS_MAX: Final = 16
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """
    What one request may cost.

    Attributes:
        in_flight_max: requests that are answered at once; more wait. Only a request whose body is
            here counts, so that a slow caller keeps nobody out.
        arriving_max, arriving_large_max: bodies that are read or wait to be answered, up to
            `large_bytes` and larger or of unknown length; more wait unread. They bound the memory.
        containers_quick: a Pod with more is decided on aside, like a larger request.
        seconds_max: for one request, less when the API server gives up earlier.
        seconds_min: what is tried at least, however soon the API server gives up.
    """

    review: ReviewLimits = DEFAULT_LIMITS
    in_flight_max: int = 64
    arriving_max: int = 1024
    arriving_large_max: int = 32
    large_bytes: int = 64 * 2**10
    containers_quick: int = 32
    seconds_max: float = 4.5
    seconds_min: float = 0.25


class Gates:
    """
    The places of one hook: for bodies that arrive, and for requests that are answered.

    Who finds none free waits for one, in order, for as long as its caller does.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._large_bytes = limits.large_bytes
        self._small = asyncio.Semaphore(limits.arriving_max)
        self._large = asyncio.Semaphore(limits.arriving_large_max)
        self.answering = asyncio.Semaphore(limits.in_flight_max)

    def arriving(self, length: int | None) -> asyncio.Semaphore:
        """Return the places of a body by its length in bytes, None when that is not known."""
        small = length is not None and length <= self._large_bytes
        return self._small if small else self._large


def takes_long(request: AdmissionRequest, length: int, limits: ServerLimits) -> bool:
    """Tell whether a request is worth a thread of its own: its length, or a Pod's containers."""
    return length > limits.large_bytes or any(
        sum(map(len, lists_of_containers(pod).values())) > limits.containers_quick
        for pod in (request.obj, request.old)
        if pod is not None
    )


@lru_cache(maxsize=64)
def budget_of_query(query: str, limits: ServerLimits) -> float:
    """Return how long a request with this query string may take; see `budget_seconds`."""
    try:
        found = parse_qs(query, max_num_fields=_FIELDS_MAX).get("timeout", [""])
    except ValueError:
        found = [""]
    return budget_seconds(found[0], limits)


def budget_seconds(timeout: str | None, limits: ServerLimits) -> float:
    """
    Return how long a request may take, given the API server's own `timeout` parameter.

    A timeout that can't be read counts as none.
    """
    given = _go_seconds(timeout) if timeout else None
    if given is None:
        return limits.seconds_max
    return max(limits.seconds_min, min(limits.seconds_max, given - MARGIN_SECONDS))


def _go_seconds(text: str) -> float | None:
    """Return the seconds of a Go duration such as `5s` or `1m30s`."""
    if (not text.isascii() and "µ" not in text) or len(text) > 40:
        return None
    position, seconds = 0, 0.0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            return None
        seconds += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    return seconds if position else None
