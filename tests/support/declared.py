"""Values of any type that an event may declare, for properties that hold of all of them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct, structs

from ledger.domain.bounds import bounds_of
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.log.codec import newest_version_of
from ledger.domain.quantity import Quantity, quantity_from_int
from ledger.domain.topology import LinkMatrix


def values(
    declared: Any,  # noqa: ANN401
    words: st.SearchStrategy[str],
    field: str = "",
) -> st.SearchStrategy[Any]:
    """Return values of a declared type, integers within the bounds of their field."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(values(each, words, field) for each in arguments))
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return st.tuples(*(values(each, words, field) for each in arguments))
    if origin is tuple:
        return st.lists(values(arguments[0], words, field), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(words, values(arguments[1], words, field), max_size=2)
    if declared in _TEXTS:
        return _TEXTS[declared]
    if isinstance(declared, type) and issubclass(declared, StrEnum):
        return st.sampled_from(declared)
    if hasattr(declared, "__dataclass_fields__") or hasattr(declared, "__struct_fields__"):
        hints = typing.get_type_hints(declared)
        fields = {name: values(hints[name], words, name) for name in names_of(declared)}
        version = newest_version_of(declared)
        return st.builds(declared, **fields | ({"version": st.just(version)} if version else {}))
    plain = {str: words, int: st.integers(*bounds_of(field)), bool: st.booleans()}
    return plain[declared] if declared in plain else st.none()


def names_of(kind: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Return the names of the fields of a struct or a dataclass."""
    fields = structs.fields(kind) if issubclass(kind, Struct) else dataclasses.fields(kind)
    return tuple(field.name for field in fields)


def _matrix(size: int) -> st.SearchStrategy[LinkMatrix]:
    row = st.tuples(*[st.integers(0, 900).map(lambda number: number / 2)] * size)
    return st.tuples(*[row] * size).map(lambda rows: LinkMatrix(rows=rows))


_TEXTS: dict[Any, st.SearchStrategy[Any]] = {
    CpuSet: st.sets(st.integers(0, 200), max_size=5).map(cpuset_of),
    Fraction: st.fractions(1, 100),
    LinkMatrix: st.integers(0, 3).flatmap(_matrix),
    Quantity: st.integers(0, 1 << 40).map(quantity_from_int),
}
