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


UPCASTS: Final[Mapping[str, Step]] = MappingProxyType({})
"""Event type with its version -> the step to the version after it; none was released yet."""


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
