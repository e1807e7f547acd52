"""
Frozen dataclasses to plain JSON values and back, driven by their own type hints.

Each type's hints are read once; what comes out is a chain of plain functions, because every event
of the ledger passes here when it is written and again when it is replayed.

A versioned value is a part of an event that grows by itself (`newest_version` on its class). It has
its version in it, and of all it holds what is at its default is left out: one value has one text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final

from ledger.domain.bounds import ANY, Bounds, bounds_of
from ledger.domain.cpuset import CpuSet, format_cpuset, parse_cpuset
from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.frozen import twin_of
from ledger.domain.proofs.canonical import canonical_json, exact_integer
from ledger.domain.quantity import Quantity, format_quantity, parse_quantity
from ledger.domain.topology import LinkMatrix, format_link_matrix, parse_link_matrix

Json = Any
"""A decoded JSON value."""

Declared = Any
"""A type as a field declares it, such as `tuple[int, ...]` or `CpuSet | None`."""

Encoder = Callable[[Any], Json]
Decoder = Callable[[object, str], Any]

_type_hints = functools.cache(typing.get_type_hints)
_NAMES: Final = {str: "text", int: "an integer", bool: "true or false"}
_VERSIONED_MAX: Final = 4_096
"""Versioned values that are remembered by their text: the same requests come again and again."""


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


def newest_version_of(kind: Declared) -> int:
    """Return the version in which a versioned value is written, 0 for other types."""
    version: int = getattr(kind, "newest_version", 0)
    return version


@functools.cache
def _encoder(kind: Declared, bounds: Bounds = ANY, *, brief: bool = False) -> Encoder:
    """
    Return the encoder of a declared type; a type that no event may hold is an assertion.

    Args:
        bounds: of the integers in it, however deep in arrays.
        brief: what is at its default is left out.
    """
    origin: Declared = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        other = next(item for item in arguments if item is not types.NoneType)
        inner = _encoder(other, bounds, brief=brief)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _array_encoder(arguments, bounds, brief=brief)
    if origin is not None and issubclass(origin, Mapping):
        inner = _encoder(arguments[1], bounds, brief=brief)
        if inner is _same:
            return dict
        return lambda value: {key: inner(item) for key, item in value.items()}
    if kind in TEXTS:
        return TEXTS[kind][0]
    if kind is int:
        return functools.partial(_encode_integer, bounds=bounds)
    if kind is bool or (isinstance(kind, type) and issubclass(kind, str)):
        return _same
    assert dataclasses.is_dataclass(kind), kind
    if brief or newest_version_of(kind):
        return _brief_encoder(kind)
    return _dataclass_encoder(kind)


def _same(value: Json) -> Json:
    """Text and booleans are JSON as they are."""
    return value


def _encode_integer(value: int, *, bounds: Bounds) -> int:
    assert type(value) is int, value
    assert bounds[0] <= value <= bounds[1], value
    return value


def _array_encoder(arguments: tuple[Any, ...], bounds: Bounds, *, brief: bool) -> Encoder:
    if arguments[1:] == (Ellipsis,):
        inner = _encoder(arguments[0], bounds, brief=brief)
        if inner is _same:
            return list
        return lambda value: [inner(item) for item in value]
    inners = [_encoder(argument, bounds, brief=brief) for argument in arguments]
    return lambda value: [encode(item) for encode, item in zip(inners, value, strict=True)]


def _brief_encoder(kind: Declared) -> Encoder:
    """Return the encoder of a dataclass that leaves out what is at its default."""
    hints = _type_hints(kind)
    parts = [
        (
            field.name,
            _default_of(field),
            _encoder(hints[field.name], bounds_of(field.name), brief=True),
        )
        for field in dataclasses.fields(kind)
    ]

    def encode(value: object) -> dict[str, Json]:
        assert type(value) is kind, value
        fields = [(name, getattr(value, name), default, inner) for name, default, inner in parts]
        return {name: inner(item) for name, item, default, inner in fields if item != default}

    return encode


def _default_of(field: dataclasses.Field[Any]) -> object:
    """Return what a field is without a word; nothing equals that of a field that is needed."""
    missing = dataclasses.MISSING
    return field.default if field.default_factory is missing else field.default_factory()


def _dataclass_encoder(kind: Declared) -> Encoder:
    hints = _type_hints(kind)
    names = tuple(field.name for field in dataclasses.fields(kind))
    encoders = {name: _encoder(hints[name], bounds_of(name)) for name in names}
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
def _decoder(kind: Declared, bounds: Bounds = ANY) -> Decoder:
    origin: Declared = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(next(item for item in arguments if item is not types.NoneType), bounds)
        return lambda value, path: None if value is None else inner(value, path)
    if origin is tuple:
        return _array_decoder(arguments, bounds)
    if origin is not None and issubclass(origin, Mapping):
        return _object_decoder(_decoder(arguments[1], bounds), arguments[1])
    if kind in TEXTS:
        return _text_decoder(*TEXTS[kind][1:])
    if kind is int:
        return functools.partial(_decode_integer, bounds=bounds)
    if dataclasses.is_dataclass(kind):
        return _versioned_decoder(kind) if newest_version_of(kind) else _dataclass_decoder(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice_decoder(kind)
    return _plain_decoder(kind)


def _array_decoder(arguments: tuple[Any, ...], bounds: Bounds) -> Decoder:
    if arguments[1:] == (Ellipsis,):
        inner = _decoder(arguments[0], bounds)

        def many(value: object, path: str) -> tuple[Any, ...]:
            if not isinstance(value, list):
                raise InputError("must be an array", field=path)
            if not value:
                return ()
            return tuple([inner(item, f"{path}[{i}]") for i, item in enumerate(value)])

        return many
    inners = [_decoder(argument, bounds) for argument in arguments]

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
        field.name: _decoder(hints[field.name], bounds_of(field.name))
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


def _json_kind(kind: Declared) -> type[object] | None:
    """Return what JSON makes of a declared type; None where that depends on the value."""
    origin: Declared = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return None
    if origin is tuple:
        return list
    if kind in TEXTS:
        return str
    if origin is not None or dataclasses.is_dataclass(kind):
        return dict
    if kind not in _NAMES:
        return str
    plain: type[object] = kind
    return plain


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _decode_integer(value: object, path: str, *, bounds: Bounds) -> int:
    if type(value) is not int:
        raise InputError(f"must be {_NAMES[int]}, is {value!r}", field=path)
    low, high = bounds
    if not low <= value <= high:
        raise InputError(f"must be between {low} and {high}, is {value}", field=path)
    return value


def _text_decoder(parse: Callable[[str], Any], words: str) -> Decoder:
    def decode(value: object, path: str) -> object:
        if not isinstance(value, str):
            raise InputError(f"must be {words}", field=path)
        try:
            return parse(value)
        except InputError as error:
            raise error.within(path) from error

    return decode


@functools.cache
def versioned_reader(kind: Declared) -> Callable[[str], Any]:
    """
    Return what reads the canonical text of a versioned value; the newest texts are remembered.

    Raises (the reader):
        UnknownEventError: a version that this release doesn't know.
        InputError: not the type's fields, or not the one text that the value has.
    """
    decode, encode = _dataclass_decoder(kind), _brief_encoder(kind)

    @functools.lru_cache(_VERSIONED_MAX)
    def read(text: str) -> object:
        try:
            value = json.loads(text, parse_int=exact_integer)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from error
        version = value.get("version") if isinstance(value, dict) else None
        if type(version) is int and version != newest_version_of(kind):
            raise UnknownEventError(f"a {kind.__name__} of another version: version={version}")
        made = decode(value, "")
        if canonical_json(encode(made)) != text:
            raise InputError("is not written in its one form")
        return made

    return read


def _versioned_decoder(kind: Declared) -> Decoder:
    read = versioned_reader(kind)

    def decode(value: object, path: str) -> object:
        if not isinstance(value, dict):
            raise InputError("must be an object", field=path)
        try:
            return read(canonical_json(value))
        except InputError as error:
            raise error.within(path) from error

    return decode


def _parse_fraction(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"not a fraction: value={text[:80]!r}") from error


TEXTS: Final[Mapping[Declared, tuple[Callable[[Any], str], Callable[[str], Any], str]]] = {
    CpuSet: (format_cpuset, parse_cpuset, "a CPU list"),
    Fraction: (str, _parse_fraction, "a fraction"),
    LinkMatrix: (format_link_matrix, parse_link_matrix, "a matrix of links"),
    Quantity: (format_quantity, parse_quantity, "a quantity"),
}
"""Types that are written as a text of their own: what writes and reads it, and what it is."""


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
