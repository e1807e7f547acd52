"""
Objects of JSON as the values that they become: a value's types say what is read, and how.

A key is the field's name as Go writes it, or a text in its `Annotated`, the first that is there of
several. A function in it reads what the type alone does not tell; None leaves the field alone. Keys
that no field has pass, null is absent.

    class Place(msgspec.Struct):
        bus_id: str = ""
        socket: Annotated[int, "socketID", at_least(-1)] = -1

    read(Place, {"busID": "5e:00.0", "x": 1}, "place")   Place(bus_id="5e:00.0", socket=-1)
    read(Place, {"socketID": "1"}, "place")              place.socketID: expected an integer
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar

import msgspec

from ledger.domain.annotations import wire
from ledger.domain.cpuset import CpuSet
from ledger.domain.quantity import Quantity
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

T = TypeVar("T")
Reader = Callable[[object, str], Any]
_Field = tuple[str, str, tuple[str, ...], type | None, Reader, bool]

_WORDS: Final = {"id": "ID", "ids": "IDs", "uid": "UID", "uuid": "UUID", "cpus": "CPUs"}
_READERS: Final[Mapping[object, Reader]] = {
    str: wire.a_text,
    int: wire.an_integer,
    bool: partial(wire.a_flag, default=False),
    Quantity: wire.a_quantity,
    CpuSet: wire.a_cpuset,
    object: lambda value, _: value,
}


def read(kind: Callable[..., T], value: object, path: str = "") -> T:
    """
    Return an object as a value of this kind.

    Raises:
        InputError: a field is of another type, or one without a default is missing; with its path.
    """
    found: T = _reader(kind)(value, path)
    return found


def read_json(kind: Callable[..., T], text: str, annotation: str) -> T:
    """Return what the text of an annotation says. Raises InputError as `load` and `read` do."""
    path = wire.annotation_path(annotation)
    return read(kind, wire.load(text, path), path)


def sorted_texts(value: object, path: str) -> tuple[tuple[str, str], ...]:
    """Return an object of texts as pairs, by name."""
    return tuple(sorted(read(Mapping[str, str], value, path).items()))


def released(value: object, path: str) -> wire.Amounts:
    """Return a resource list under released names, where no device of the settings can stand."""
    return wire.amounts(value, path, DEFAULT_VOCABULARY)


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - a type of any form
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        own = next(filter(callable, kind.__metadata__), None)
        return own or _reader(kind.__origin__)
    if kind in _READERS:
        return _READERS[kind]
    if origin in {typing.Union, UnionType}:
        return _reader(next(part for part in parts if part is not NoneType))
    if origin is tuple:
        return partial(wire.each, read=_reader(parts[0]))
    if origin is Mapping:
        return partial(_members, _reader(parts[1]))
    if issubclass(kind, StrEnum):
        return partial(_choice, kind)
    return partial(_whole, kind, tuple(_fields(kind)))


def _fields(kind: Any) -> Iterator[_Field]:  # noqa: ANN401 - as above
    """Yield a type's fields: name, key and others, what is taken as it is, reader, is needed."""
    hints = typing.get_type_hints(kind, include_extras=True)
    is_struct = issubclass(kind, msgspec.Struct)
    for one in msgspec.structs.fields(kind) if is_struct else dataclasses.fields(kind):
        hint, (first, *rest) = hints[one.name], one.name.split("_")
        notes = getattr(hint, "__metadata__", ())
        if None in notes:
            continue
        own = first + "".join(_WORDS.get(word, word.capitalize()) for word in rest)
        keys = tuple(key for key in notes if isinstance(key, str))
        is_needed = one.default is one.default_factory  # of two that are missing
        reader = _reader(hint)
        if isinstance(one.default, StrEnum) and hint is type(one.default):
            reader = partial(_choice, hint, default=one.default)  # what "" means, too
        plain = next((basic for basic in (str, int, bool) if reader is _READERS[basic]), None)
        key, *others = keys or (own,)
        yield one.name, key, tuple(others), plain, reader, is_needed


def _choice(
    kind: type[StrEnum], value: object, path: str, *, default: StrEnum | None = None
) -> StrEnum:
    return wire.a_choice(value, kind, path, default=default)


def _whole(kind: Callable[..., T], fields: tuple[_Field, ...], value: object, path: str) -> T:
    body = wire.an_object(value, path)
    prefix = f"{path}." if path else ""
    found = {}
    for name, key, others, plain, reader, is_needed in fields:
        item = body.get(key)
        if type(item) is plain:
            found[name] = item
            continue
        there = key
        if item is None and others:
            there = next((other for other in others if body.get(other) is not None), others[-1])
            item = body.get(there)
        if item is not None or is_needed:
            found[name] = reader(item, prefix + there)
    return kind(**found)


def _members(reader: Reader, value: object, path: str) -> Mapping[str, Any]:
    items = wire.an_object(value, path)
    return {key: reader(item, f"{path}[{key}]") for key, item in items.items()}
