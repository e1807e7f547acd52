"""The other annotations of Pods (Koordinator contract 2.1): scheduling hint, replaced resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ledger.domain.annotations.wire import an_object, annotation_path
from ledger.domain.errors import InputError
from ledger.domain.resources import (
    ANNOTATION_REPLACE_RESOURCES,
    ANNOTATION_SCHEDULING_HINT,
    ANNOTATION_SCHEDULING_HINT_DEPRECATED,
)
from ledger.domain.typed import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingHint:
    """Where a Pod should go, and which plugins keep what it already carries."""

    node_names: tuple[str, ...] = ()
    preferred_node_names: tuple[str, ...] = ()
    extensions: Annotated[tuple[str, ...], _names] = ()


# {"nodeNames": ["n-17"], "preferredNodeNames": ["n-17", "n-18"],
#  "extensions": {"DeviceShare": {}, "NodeNUMAResource": {}}}


def read_scheduling_hint(annotations: Mapping[str, str]) -> SchedulingHint | None:
    """Return a Pod's scheduling hint, None without one; the deprecated key counts only alone."""
    for key in (ANNOTATION_SCHEDULING_HINT, ANNOTATION_SCHEDULING_HINT_DEPRECATED):
        if key in annotations:
            return decode_scheduling_hint(annotations[key], key)
    return None


def decode_scheduling_hint(text: str, key: str = ANNOTATION_SCHEDULING_HINT) -> SchedulingHint:
    """Read a scheduling hint; of the extensions only their names, sorted."""
    return read_json(SchedulingHint, text, key)


def _names(value: object, path: str) -> tuple[str, ...]:
    return tuple(sorted(an_object(value, path)))


# pod.koordinator.sh/replace-resources: "from:to,erase:"


def decode_replace_resources(text: str) -> tuple[tuple[str, str], ...]:
    """
    Read which resource names become which; an empty right side erases.

    Raises:
        InputError: a pair without a colon or a left side.
    """
    pairs = tuple(tuple(part.split(":")) for part in text.split(",")) if text else ()
    if any(len(pair) != 2 or not pair[0] for pair in pairs):
        path = annotation_path(ANNOTATION_REPLACE_RESOURCES)
        raise InputError(f"not a list of from:to pairs: value={text!r}", field=path)
    return tuple((pair[0], pair[1]) for pair in pairs)
