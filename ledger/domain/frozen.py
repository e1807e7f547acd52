"""
Make frozen values quickly.

A frozen dataclass sets each of its fields past its own lock, which costs as much as reading the
JSON of an event. Its twin has the same slots and no lock: it is filled in one plain call and then
becomes the frozen class, which Python allows between classes whose slots are the same, or that
have none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

Kind = Any
"""A frozen dataclass."""

Twin = Callable[..., Any]


@cache
def twin_of(kind: Kind) -> Twin:
    """
    Return what takes every field of `kind` in alphabetical order and gives an unlocked twin.

    The twin must be given its class before it is handed on: `made.__class__ = kind`.
    """
    fields = dataclasses.fields(kind)
    assert not hasattr(kind, "__post_init__"), kind
    names = sorted(field.name for field in fields)
    slots = "__slots__" in vars(kind)
    twin: Twin = dataclasses.make_dataclass(f"{kind.__name__}Twin", names, slots=slots, eq=False)
    twin(*names).__class__ = kind  # the slots are the same, or this fails here
    return twin


def replacer_of(kind: Kind, name: str) -> Callable[[Any, object], Any]:
    """Return what `dataclasses.replace` does to the one field `name` of a `kind`."""
    twin = twin_of(kind)
    values_of = attrgetter(*sorted(field.name for field in dataclasses.fields(kind)))

    def replaced(value: object, by: object) -> object:
        made = twin(*values_of(value))
        setattr(made, name, by)
        made.__class__ = kind
        return made

    return replaced
