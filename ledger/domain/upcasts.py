"""
Older versions of events, brought to today's words as they are read. Stored bytes never change.

One step turns the JSON body of version N into that of version N+1; steps follow each other until
there is none. A step is pure and total: what it does not find stays missing, for the codec to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

Body = Mapping[str, Any]
"""The decoded JSON object of an event."""

Step = Callable[[Body], Body]


def _recovered_v2(body: Body) -> Body:
    """Version 1 knew one incarnation before its own, and it began where the loss began."""
    added = {"lost_incarnation": ""}
    return {**body, **added, **({"began_at": body["lost_from"]} if "lost_from" in body else {})}


def _archived_v2(body: Body) -> Body:
    """Version 1 named the file alone."""
    return {**body, "root": "", "chain_hash": "", "state_digest": ""}


UPCASTS: Final[Mapping[str, Step]] = MappingProxyType(
    {"ledger.recovered.v1": _recovered_v2, "segment.archived.v1": _archived_v2}
)
"""Event type with its version -> the step to the version after it."""


def following(event_type: str) -> str:
    """Return the type's next version: `pod.bound.v1` -> `pod.bound.v2`."""
    name, version = event_type.rsplit(".v", 1)
    return f"{name}.v{int(version) + 1}"


def latest(event_type: str, steps: Mapping[str, Step] = UPCASTS) -> str:
    """Return the version that the steps lead to; a type without a step is returned as it is."""
    while event_type in steps:
        event_type = following(event_type)
    return event_type


def upcast(event_type: str, body: Body, steps: Mapping[str, Step] = UPCASTS) -> Body:
    """Return the body in the words of `latest(event_type)`; `body` itself is left as it is."""
    while event_type in steps:
        body = steps[event_type](body)
        event_type = following(event_type)
    return body
