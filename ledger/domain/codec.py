"""
Frozen dataclasses to plain JSON values and back, driven by their own type hints.

Each type's hints are read once; what comes out is a chain of plain functions, because every event
of the ledger passes here when it is written and again when it is replayed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from ledger.domain.bounds import bounds_of
from ledger.domain.canonical import INTEGER_MAX
from ledger.domain.cpuset import CpuSet, format_cpuset, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.frozen import twin_of

Json = Any
"""A decoded JSON value."""

Declared = Any
"""A type as a field declares it, such as `tuple[int, ...]` or `CpuSet | None`."""

Encoder = Callable[[Any], Json]
Decoder = Callable[[object, str], Any]

_type_hints = functools.cache(typing.get_type_hints)
_NAMES: Final = {str: "text", int: "an integer", bool: "true or false"}


def encode_value(value: object) -> Json:
    """
    Return `value` as objects, arrays, text, integers, booleans and null.

    Floats, other types and integers beyond `INTEGER_MAX` are our own bug and fail an assertion;
    `out_of_bounds` names what is no amount that an event may hold.
    """
    kind: Declared = type(value)
    return _encoder(kind)(value)


def out_of_bounds(value: object, path: str = "") -> str:
    """Return the path of the first integer in a value that is out of its field's bounds, if any."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            below = f"{path}.{field.name}" if path else field.name
            found = out_of_bounds(getattr(value, field.name), below)
            if found:
                return found
    elif isinstance(value, tuple):
        each = (out_of_bounds(item, f"{path}[{i}]") for i, item in enumerate(value))
        return next(filter(None, each), "")
    elif type(value) is int:
        low, high = bounds_of(path.rsplit(".", 1)[-1].partition("[")[0])
        return "" if low <= value <= high else path
    return ""


def decode_value(kind: Declared, value: object, path: str) -> Json:
    """
    Return `value` as the declared type `kind`.

    A missing field takes the dataclass's default (events grow by fields with defaults).

    Raises:
        InputError: an unknown field, a missing one without a default, another JSON type, or an
            integer out of its bounds, with its path below `path`.
    """
    return _decoder(kind)(value, path)


@functools.cache
def _encoder(kind: Declared) -> Encoder:
    """Return the encoder of a declared type; a type that no event may hold is an assertion."""
    origin: Declared = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = _encoder(next(item for item in arguments if item is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _array_encoder(arguments)
    if origin is not None and issubclass(origin, Mapping):
        inner = _encoder(arguments[1])
        if inner is _same:
            return dict
        return lambda value: {key: inner(item) for key, item in value.items()}
    if kind is CpuSet:
        return format_cpuset
    if kind is int:
        return _encode_integer
    if kind is bool or (isinstance(kind, type) and issubclass(kind, str)):
        return _same
    assert dataclasses.is_dataclass(kind), kind
    return _dataclass_encoder(kind)


def _same(value: Json) -> Json:
    """Text and booleans are JSON as they are."""
    return value


def _encode_integer(value: int, low: int = -INTEGER_MAX, high: int = INTEGER_MAX) -> int:
    assert type(value) is int, value
    assert low <= value <= high, value
    return value


def _field_encoder(name: str, kind: Declared) -> Encoder:
    """Return the encoder of a field; integers, alone or in an array, have the field's bounds."""
    low, high = bounds_of(name)
    if kind is int:
        return lambda value: _encode_integer(value, low, high)
    if typing.get_args(kind) == (int, Ellipsis):
        return lambda value: [_encode_integer(each, low, high) for each in value]
    return _encoder(kind)


def _array_encoder(arguments: tuple[Any, ...]) -> Encoder:
    if arguments[1:] == (Ellipsis,):
        inner = _encoder(arguments[0])
        if inner is _same:
            return list
        return lambda value: [inner(item) for item in value]
    inners = tuple(map(_encoder, arguments))
    return lambda value: [encode(item) for encode, item in zip(inners, value, strict=True)]


def _dataclass_encoder(kind: Declared) -> Encoder:
    hints = _type_hints(kind)
    names = tuple(field.name for field in dataclasses.fields(kind))
    encoders = {name: _field_encoder(name, hints[name]) for name in names}
    changing = tuple((name, inner) for name, inner in encoders.items() if inner is not _same)
    values_of: Callable[[object], tuple[object, ...]]
    if len(names) > 1:
        values_of = attrgetter(*names)
    else:

        def values_of(value: object) -> tuple[object, ...]:
            return tuple(getattr(value, name) for name in names)

    def encode(value: object) -> dict[str, Json]:
        assert type(value) is kind, value
        fields: dict[str, Json] = dict(zip(names, values_of(value), strict=True))
        for name, inner in changing:
            fields[name] = inner(fields[name])
        return fields

    return encode


@functools.cache
def _decoder(kind: Declared) -> Decoder:
    origin: Declared = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(next(item for item in arguments if item is not types.NoneType))
        return lambda value, path: None if value is None else inner(value, path)
    if origin is tuple:
        return _array_decoder(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _object_decoder(_decoder(arguments[1]), arguments[1])
    if kind is CpuSet:
        return _decode_cpuset
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice_decoder(kind)
    return _plain_decoder(kind)


def _array_decoder(arguments: tuple[Any, ...]) -> Decoder:
    if arguments[1:] == (Ellipsis,):
        inner = _decoder(arguments[0])

        def many(value: object, path: str) -> tuple[Any, ...]:
            if not isinstance(value, list):
                raise InputError("must be an array", field=path)
            if not value:
                return ()
            return tuple([inner(item, f"{path}[{i}]") for i, item in enumerate(value)])

        return many
    inners = tuple(map(_decoder, arguments))

    def fixed(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(inners):
            raise InputError(f"must be an array of {len(inners)}", field=path)
        pairs = enumerate(zip(inners, value, strict=True))
        return tuple([decode(item, f"{path}[{i}]") for i, (decode, item) in pairs])

    return fixed


def _object_decoder(inner: Decoder, kind: Declared) -> Decoder:
    plain = {kind} if kind in _NAMES else set()

    def decode(value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InputError("must be an object", field=path)
        if plain.issuperset(map(type, value.values())):
            return dict(value)
        return {key: inner(item, f"{path}[{key}]") for key, item in value.items()}

    return decode


def _dataclass_decoder(kind: Declared) -> Decoder:
    hints = _type_hints(kind)
    fields = {
        field.name: _field_decoder(field.name, hints[field.name])
        for field in dataclasses.fields(kind)
    }
    needed = {field.name for field in dataclasses.fields(kind) if not _has_default(field)}
    # What we write has every field, sorted by name: recognised as a whole, it is not looked at
    # field by field. A field that may be null never is recognised.
    order = sorted(fields)
    kinds = [_json_kind(hints[name]) for name in order]
    changing = tuple(
        (i, name, fields[name])
        for i, name in enumerate(order)
        if _json_kind(hints[name]) is not hints[name] or hints[name] is int
    )
    twin = twin_of(kind)

    def decode(value: object, path: str) -> Json:
        if type(value) is dict and list(value) == order:
            values = list(value.values())
            if [*map(type, values)] == kinds:
                try:
                    for i, name, inner in changing:
                        values[i] = inner(values[i], name)
                except InputError as error:
                    raise error.within(path) from error
                made = twin(*values)
                made.__class__ = kind
                return made
        if not isinstance(value, dict):
            raise InputError("must be an object", field=path)
        if not value.keys() <= fields.keys():
            unknown = min(value.keys() - fields.keys())
            raise InputError(f"unknown field {unknown!r}", field=path)
        if not needed <= value.keys():
            missing = min(needed - value.keys())
            raise InputError(f"missing field {missing!r}", field=path)
        try:
            return kind(**{name: fields[name](item, name) for name, item in value.items()})
        except InputError as error:
            raise error.within(path) from error

    return decode


def _field_decoder(name: str, kind: Declared) -> Decoder:
    """Return the decoder of a field; integers, alone or in an array, have the field's bounds."""
    inner, (low, high) = _decoder(kind), bounds_of(name)
    many = typing.get_args(kind) == (int, Ellipsis)
    if kind is not int and not many:
        return inner

    def bounded(value: object, path: str) -> object:
        found = inner(value, path)
        for each in found if many else (found,):
            if not low <= each <= high:
                raise InputError(f"must be between {low} and {high}, is {each}", field=path)
        return found

    return bounded


def _json_kind(kind: Declared) -> type[object] | None:
    """Return what JSON makes of a declared type; None where that depends on the value."""
    origin: Declared = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return None
    if origin is tuple:
        return list
    if origin is not None or dataclasses.is_dataclass(kind):
        return str if kind is CpuSet else dict
    if kind is CpuSet or kind not in _NAMES:
        return str
    plain: type[object] = kind
    return plain


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _decode_cpuset(value: object, path: str) -> CpuSet:
    if not isinstance(value, str):
        raise InputError("must be a CPU list", field=path)
    try:
        return parse_cpuset(value)
    except InputError as error:
        raise error.within(path) from error


def _choice_decoder(kind: type[StrEnum]) -> Decoder:
    choices = {str(member): member for member in kind}

    def decode(value: object, path: str) -> StrEnum:
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"not one of {', '.join(choices)}: value={value!r}", field=path)
        return choices[value]

    return decode


def _plain_decoder(kind: type[object]) -> Decoder:
    assert kind in _NAMES, kind

    def decode(value: object, path: str) -> object:
        if type(value) is not kind:
            raise InputError(f"must be {_NAMES[kind]}, is {value!r}", field=path)
        return value

    return decode
