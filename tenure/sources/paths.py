"""Walking a field path such as `spec.containers[0].resources.limits[cpu]`, one step at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def child_of(field: str, children: Iterable[tuple[str, T]]) -> tuple[T, str] | None:
    """
    Return the child that the path's first step names, and the rest of the path.

    Keys may themselves hold dots and slashes; the longest key that fits is the step.
    """
    best: tuple[int, T, str] | None = None
    for key, child in children:
        rest = _rest_behind(field, key)
        if rest is not None and (best is None or len(key) > best[0]):
            best = (len(key), child, rest)
    return None if best is None else (best[1], best[2])


def item_of(field: str, items: Iterable[T]) -> tuple[T, str] | None:
    """Return the item that the path's first step, `[3]`, counts to, and the rest of the path."""
    match = re.match(r"\[(\d{1,9})\]\.?", field)
    if match is None:
        return None
    index, rest = int(match[1]), field[match.end() :]
    return next(((item, rest) for place, item in enumerate(items) if place == index), None)


def _rest_behind(field: str, key: str) -> str | None:
    if field.startswith(f"[{key}]"):
        return field[len(key) + 2 :].removeprefix(".")
    if key and field.startswith(key):
        rest = field[len(key) :]
        if not rest or rest[0] in ".[":
            return rest.removeprefix(".")
    return None
