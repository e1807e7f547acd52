"""
Values as canonical JSON and back, by msgspec and the types that their fields are declared with.

Rule: docs/adr/0015. A value is a frozen struct or dataclass of text, integers, booleans, arrays,
mappings of text and other such values. It has one text; a text that is not what its own value is
written as is no value.

A versioned value is a part of an event that grows by itself (`newest_version` on its class). It has
its version in it, and of all it holds what is at its default is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, Final

import msgspec

from ledger.domain.cpuset import CpuSet, format_cpuset, parse_cpuset
from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.proofs.canonical import exact_integer, is_canonical
from ledger.domain.quantity import Quantity, format_quantity, parse_quantity
from ledger.domain.topology import LinkMatrix, format_link_matrix, parse_link_matrix

Json = Any
"""A decoded JSON value."""

Declared = Any
"""A type as a field declares it, such as `tuple[int, ...]` or `CpuSet | None`."""


def encode_value(value: object) -> str:
    """
    Return `value` as canonical JSON.

    A value that does not read back as itself, such as one with a float or with an integer out of
    its bounds, is our own bug and fails an assertion; `misfit` names the field.
    """
    kind: Declared = type(value)
    body = _writer(kind)(value)
    fault = _misfit(value, body)
    assert not fault, (kind, fault)
    return body.decode()


_HALF: Final = "half of a character is no text"
_FRACTION: Final = re.compile(r"-?[0-9]{1,18}(/[0-9]{1,18})?")


def plain_value(value: object) -> Json:
    """Return `value` as objects, arrays, text, integers, booleans and null."""
    return msgspec.to_builtins(_written(value), enc_hook=_text_of)


def misfit(value: object) -> str:
    """Return the path of the first part of a value that would not read back, if there is one."""
    kind: Declared = type(value)
    return _misfit(value, _writer(kind)(value))


def read_value(kind: Declared, text: str | bytes, path: str) -> Any:  # noqa: ANN401 - a `kind`
    """
    Return the `kind` that `text` is the canonical JSON of, in UTF-8 where it is bytes.

    A missing field takes its default (events grow by fields with defaults).

    Raises:
        UnknownEventError: a versioned value of a version that this release doesn't know.
        InputError: an unknown field, a missing one without a default, another JSON type, an
            integer out of its bounds or a text in another form, with its path below `path`.
    """
    try:
        made, said = _reader(kind)(text), text.encode() if isinstance(text, str) else text
        written = _writer(kind)(made)
        if written == said or _as_far_as_said(written, said) == said:
            return made
    except (ValueError, RecursionError):
        pass  # what is wrong with it is said below
    text = text if isinstance(text, str) else _decoded(text, path)
    plain = _json(text, path)
    made = decode_value(kind, plain, path)
    try:
        _check_canonical(text, plain, path)
    except UnicodeEncodeError as error:
        raise InputError(_HALF, field=path) from error
    return made


def read_unchecked(kind: Declared, text: str) -> Any:  # noqa: ANN401 - a `kind`
    """Return what `read_value` does of a text that it takes. Raises ValueError for some others."""
    return _reader(kind)(text)


def canonical_object(text: str, path: str) -> dict[str, Json]:
    """Return the object that `text` is the canonical JSON of. Raises InputError: it is none."""
    value = _json(text, path)
    _check_canonical(text, value, path)
    if not isinstance(value, dict):
        raise InputError("must be an object", field=path)
    return value


def decode_value(kind: Declared, value: Json, path: str) -> Any:  # noqa: ANN401 - a `kind`
    """Return decoded JSON as the declared type `kind`. Raises as `read_value`."""
    _refuse_newer(kind, value)
    try:
        made = msgspec.convert(value, kind, dec_hook=_parsed)
        written = plain_value(made)
    except msgspec.ValidationError as error:
        raise _input_error(error).within(path) from error
    except UnicodeEncodeError as error:
        raise InputError(_HALF, field=path) from error
    _check_words(value, written, path)
    return made


def newest_version_of(kind: Declared) -> int:
    """Return the version in which a versioned value is written, 0 for other types."""
    version: int = getattr(kind, "newest_version", 0)
    return version


def common_fields(value: object, kind: Declared) -> dict[str, Any]:
    """Return the fields of a value that a `kind` has too, by name: what one is made of."""
    own: Declared = type(value)
    return {name: getattr(value, name) for name in _common_names(own, kind)}


@functools.cache
def _common_names(one: Declared, other: Declared) -> tuple[str, ...]:
    names = [
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else kind.__struct_fields__
        for kind in (one, other)
    ]
    return tuple(name for name in names[0] if name in names[1])


def _as_far_as_said(written: bytes, said: bytes) -> bytes:
    """
    Return what is written of a value without the fields that another text of it does not have.

    That is the other text, unless it says anything that is not written, or otherwise: then it is
    some other text than both.
    """
    first = written[:1]
    if written == said or said[:1] != first or first not in b"{[":
        return written
    if first == b"[":
        items = zip(_items_of(written), _items_of(said), strict=True)
        parts = [_as_far_as_said(bytes(each), bytes(other)) for each, other in items]
        return b"[" + b",".join(parts) + b"]"
    names = _fields_of(said)
    fields = [
        _ENCODER.encode(name) + b":" + _as_far_as_said(bytes(item), bytes(names[name]))
        for name, item in _fields_of(written).items()
        if name in names
    ]
    return b"{" + b",".join(fields) + b"}"


@functools.cache
def _reader(kind: Declared) -> Callable[[str | bytes], Any]:
    return msgspec.json.Decoder(kind, dec_hook=_parsed).decode


@functools.cache
def _writer(kind: Declared) -> Callable[[Any], bytes]:
    if newest_version_of(kind) or _versioned_parts(kind):
        return lambda value: _ENCODER.encode(_written(value))
    return _ENCODER.encode


def _decoded(text: bytes, path: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error}", field=path) from error


def _json(text: str, path: str) -> Json:
    try:
        return json.loads(text, parse_int=exact_integer)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", field=path) from error


def _check_canonical(text: str, value: Json, path: str) -> None:
    if not is_canonical(text, value):
        raise InputError("not canonical JSON", field=path)


def _check_words(said: Json, written: Json, path: str) -> None:
    """Refuse what is said and would not be written; what is left out is at its default."""
    if isinstance(said, dict) and isinstance(written, dict):
        for name, item in said.items():
            if name not in written:
                raise InputError(f"unknown field {name!r}, or not in its one form", field=path)
            _check_words(item, written[name], f"{path}.{name}")
    elif isinstance(said, list) and isinstance(written, list | tuple):
        for i, (item, other) in enumerate(zip(said, written, strict=True)):
            _check_words(item, other, f"{path}[{i}]")
    elif said != written or type(said) is not type(written):
        raise InputError(f"is not written in its one form: value={said!r}", field=path)


def _input_error(error: msgspec.ValidationError) -> InputError:
    """Return what msgspec found in our words: the path by itself, below nothing."""
    fact, _, place = f" - at `{error}".rpartition(" - at `")
    if not fact:
        fact, place = place, ""
    fact = fact.removeprefix(" - at `")
    path = place.rpartition("$")[2].rstrip("`").removeprefix(".")
    return InputError(f"{fact[:1].lower()}{fact[1:]}", field=path)


def _misfit(value: object, body: bytes) -> str:
    kind: Declared = type(value)
    try:
        back = _reader(kind)(body)
    except msgspec.ValidationError as error:
        return _input_error(error).field or str(error)
    if back == value:
        return ""
    names = typing.get_type_hints(kind)
    return next(name for name in names if getattr(back, name) != getattr(value, name))


def _refuse_newer(kind: Declared, value: Json) -> None:
    if not isinstance(value, dict):
        return
    version = value.get("version")
    if newest_version_of(kind) and type(version) is int and version != newest_version_of(kind):
        raise UnknownEventError(f"a {kind.__name__} of another version: version={version}")
    for name, part in _versioned_parts(kind).items():
        _refuse_newer(part, value.get(name))


@functools.cache
def _versioned_parts(kind: Declared) -> Mapping[str, Declared]:
    hints = typing.get_type_hints(kind) if hasattr(kind, "__annotations__") else {}
    return {name: hint for name, hint in hints.items() if newest_version_of(hint)}


def _written(value: object) -> object:
    """Return what the encoder takes for a value: versioned parts as what they are written as."""
    kind: Declared = type(value)
    if newest_version_of(kind):
        return _brief(value)
    versioned = _versioned_parts(kind)
    if not versioned:
        return value
    return {name: _written(getattr(value, name)) for name in kind.__struct_fields__}


def _brief(value: object) -> object:
    """Return a value without what is at its default in it."""
    if isinstance(value, tuple):
        return [_brief(item) for item in value]
    kind: Declared = type(value)
    if not dataclasses.is_dataclass(value):
        return value
    return {
        name: _brief(item)
        for name, default in _defaults_of(kind)
        if (item := getattr(value, name)) is not default and item != default
    }


@functools.cache
def _defaults_of(kind: Declared) -> tuple[tuple[str, object], ...]:
    return tuple((each.name, _default_of(each)) for each in dataclasses.fields(kind))


def _default_of(field: dataclasses.Field[Any]) -> object:
    missing = dataclasses.MISSING
    return field.default if field.default_factory is missing else field.default_factory()


def _text_of(value: object) -> object:
    kind: Declared = type(value)
    if kind in _TEXTS:
        return _TEXTS[kind][0](value)
    assert isinstance(value, Mapping), (kind, value)
    return dict(value)


def _parsed(kind: Declared, value: object) -> object:
    """Return a value of a type that msgspec does not know; it adds the path to what is raised."""
    _, parse, words = _TEXTS[kind]
    if not isinstance(value, str):
        raise ValueError(f"must be {words}")  # noqa: TRY004 - what msgspec takes for a bad value
    try:
        return parse(value)
    except InputError as error:
        raise ValueError(error.message) from error


def _parse_fraction(text: str) -> Fraction:
    if _FRACTION.fullmatch(text):  # an exponent would be worked out, whatever it costs
        with suppress(ZeroDivisionError):
            return Fraction(text)
    raise InputError(f"not a fraction: value={text[:80]!r}")


_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=_text_of)
_fields_of: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items_of: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_TEXTS: Final[Mapping[Declared, tuple[Callable[[Any], str], Callable[[str], Any], str]]] = {
    CpuSet: (format_cpuset, parse_cpuset, "a CPU list"),
    Fraction: (str, _parse_fraction, "a fraction"),
    LinkMatrix: (format_link_matrix, parse_link_matrix, "a matrix of links"),
    Quantity: (format_quantity, parse_quantity, "a quantity"),
}
"""Types that are written as a text of their own: what writes and reads it, and what it is."""
