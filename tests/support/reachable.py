"""What a running service keeps: every text in its objects, and by which way it is reached."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

OURS: Final = ("scheduler.", "ledger.domain.")
"""Modules of whose objects the attributes are looked at."""


def texts_in(roots: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """
    Yield every text below these objects with the shortest way to it, keys of mappings included.

    What is not ours is a leaf, but for containers, methods, closures and partial calls. Elements of
    one container share their way, so that a way names a place in the code and not a moment.
    """
    seen: set[int] = set()
    kept: list[object] = []  # so that no id is another object's
    left: deque[tuple[str, object]] = deque(roots.items())
    while left:
        way, value = left.popleft()
        if isinstance(value, str):
            yield way, value
            continue
        if isinstance(value, bytes):
            yield way, value.decode(errors="replace")
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        left.extend((f"{way}{step}", each) for step, each in _below(value))


def _below(value: object) -> Iterator[tuple[str, Any]]:
    match value:
        case Mapping():
            for key, each in value.items():
                yield "[key]", key
                yield "[]", each
        case list() | tuple() | deque() | AbstractSet():
            for each in value:
                yield "[]", each
        case types.MethodType():
            yield "", value.__self__
        case functools.partial():
            yield "()", value.func
            for each in (*value.args, *value.keywords.values()):
                yield "()", each
        case types.FunctionType():
            for cell in value.__closure__ or ():
                yield "()", _content(cell)
        case _:
            if type(value).__module__.startswith(OURS):
                for attribute in _attributes(value):
                    yield f".{attribute}", getattr(value, attribute)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None


def _attributes(value: object) -> list[str]:
    """Return the names of what an object has, in slots or not."""
    slots: set[str] = set()
    for base in type(value).__mro__:
        own = base.__dict__.get("__slots__", ())
        slots.update([own] if isinstance(own, str) else own)
    names = {*slots, *getattr(value, "__dict__", {}), *getattr(value, "__struct_fields__", ())}
    return sorted(each for each in names - {"__weakref__", "__dict__"} if hasattr(value, each))
