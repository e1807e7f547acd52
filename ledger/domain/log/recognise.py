"""
Canonical JSON straight to a frozen value: one regular expression per type, made from its fields.

What our own writer records has every field, sorted by name, and almost never an escape in a text.
Such a text is recognised as a whole, several times as fast as JSON is parsed and looked at field by
field. Anything else is not recognised, whether it is wrong or only unusual: the codec reads that,
and gives the same value or names what is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.bounds import Bounds, bounds_of
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.frozen import Twin, twin_of
from ledger.domain.log.codec import newest_version_of, versioned_reader
from ledger.domain.proofs.canonical import is_canonical

Declared = Any
"""A type as a field declares it, such as `tuple[int, ...]` or `CpuSet | None`."""

Recogniser = Callable[[str], Any]
"""Returns the value of a canonical text, None for a text that it does not recognise."""

_Match = Callable[[str], re.Match[str] | None]
_Changing = list[tuple[int, Callable[[str], Any]]]

_MEMORY: Final = 1_024
"""Parts that are remembered by their text: the same cards and Pod shapes come again and again."""
_LETTERS: Final = r'[^"\\\x00-\x1f]*+'  # no escape, and nothing that would need one
_PLAIN: Final = {str: f'"{_LETTERS}"', bool: "(?:true|false)"}
_DEPTH: Final = 6
"""Objects in objects that a versioned value may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """
    What a type looks like in canonical JSON.

    Attributes:
        pattern: without a group.
        grouped: the same with one group, around what `value` takes.
        value: gives the value of the group's text; None where that is the text itself.
    """

    pattern: str
    grouped: str
    value: Callable[[str], Any] | None


def _recogniser(kind: Declared) -> Recogniser:
    match, twin, changing = _parts(kind)

    def recognise(text: str) -> object:  # `_reader`, in one step: every event passes here
        found = match(text)
        if found is None:
            return None
        values: list[Any] = [*found.groups()]
        try:
            for i, value in changing:
                values[i] = value(values[i])
        except InputError:  # a CPU list or a mapping that is none: the codec says so
            return None
        made = twin(*values)
        made.__class__ = kind
        return made

    return recognise


recogniser: Final[Callable[[Declared], Recogniser]] = functools.cache(_recogniser)
"""Returns the recogniser of a dataclass."""


def _parts(kind: Declared) -> tuple[_Match, Twin, _Changing]:
    """Return what matches a whole text, takes the values, and which of them change before."""
    forms = _forms(kind).values()
    changing = [(i, form.value) for i, form in enumerate(forms) if form.value]
    return re.compile(_object(kind, grouped=True)).fullmatch, twin_of(kind), changing


def _reader(kind: Declared) -> Recogniser:
    match = re.compile(_object(kind, grouped=True)).fullmatch
    made = _maker(kind)

    def read(text: str) -> object:
        found = match(text)
        return None if found is None else made(found)

    return read


def _maker(kind: Declared) -> Callable[[re.Match[str]], Any]:
    """Return what makes a `kind` of a match of its grouped pattern."""
    _, twin, changing = _parts(kind)

    def make(found: re.Match[str]) -> object:
        values: list[Any] = list(found.groups())
        for i, value in changing:
            values[i] = value(values[i])
        made = twin(*values)
        made.__class__ = kind
        return made

    return make


def _object(kind: Declared, *, grouped: bool) -> str:
    forms = _forms(kind).items()
    fields = [f'"{name}":{form.grouped if grouped else form.pattern}' for name, form in forms]
    return r"\{" + ",".join(fields) + r"\}"


@functools.cache
def _forms(kind: Declared) -> Mapping[str, _Form]:
    """Return the form of every field, by name in alphabetical order."""
    hints = typing.get_type_hints(kind)
    names = sorted(field.name for field in dataclasses.fields(kind))
    return {name: _form(hints[name], bounds_of(name)) for name in names}


def _form(kind: Declared, bounds: Bounds) -> _Form:
    origin: Declared = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = _form(next(item for item in arguments if item is not types.NoneType), bounds)
        return _nullable(inner)
    if origin is tuple:
        assert arguments[1:] == (Ellipsis,), kind
        return _many(arguments[0], bounds)
    if origin is not None:
        assert issubclass(origin, Mapping), kind
        assert arguments == (str, str), kind
        pair = f"{_PLAIN[str]}:{_PLAIN[str]}"
        return _whole(rf"\{{(?:{pair}(?:,{pair})*)?\}}", _text_map)
    if kind is CpuSet:
        return _Form(pattern='"[0-9,-]*+"', grouped='"([0-9,-]*+)"', value=parse_cpuset)
    if kind is str:
        return _Form(pattern=_PLAIN[str], grouped=f'"({_LETTERS})"', value=None)
    if kind is int:
        return _whole(_digits(*bounds), int)
    if kind is bool:
        return _whole(_PLAIN[bool], "true".__eq__)
    assert dataclasses.is_dataclass(kind), kind
    if newest_version_of(kind):
        reader: Callable[[Declared], Recogniser] = versioned_reader
        return _whole(_balanced(_DEPTH), reader(kind))
    return _whole(_object(kind, grouped=False), functools.lru_cache(_MEMORY)(_reader(kind)))


def _balanced(depth: int) -> str:
    """Return what matches an object up to its own end, whatever is in it; its reader looks in."""
    inner = f"|{_balanced(depth - 1)}" if depth > 1 else ""
    return rf'\{{(?:[^"{{}}\\\x00-\x1f]++|"{_LETTERS}"{inner})*+\}}'


def _whole(pattern: str, value: Callable[[str], Any]) -> _Form:
    return _Form(pattern=pattern, grouped=f"({pattern})", value=value)


def _nullable(inner: _Form) -> _Form:
    match, value = re.compile(inner.grouped).fullmatch, inner.value

    def read(text: str) -> object:
        found = match(text)
        if found is None:  # then it is the other choice: null
            return None
        return value(found[1]) if value else found[1]

    return _whole(f"(?:null|{inner.pattern})", read)


def _digits(low: int, high: int) -> str:
    """Return what matches the integers within the bounds, as JSON writes them."""
    below = [f"-(?:{_up_to(-low)})"] if low < 0 else []
    return f"(?:0|{'|'.join([_up_to(high), *below])})"


def _up_to(largest: int) -> str:
    """Return what matches 1 to `largest`: fewer digits, or as many with one that is smaller."""
    digits = str(largest)
    after = len(digits) - 1
    forms = [f"[1-9][0-9]{{0,{after - 1}}}+"] if after else []
    for i, digit in enumerate(digits):
        least = 0 if i else 1
        if int(digit) > least:
            rest = f"[0-9]{{{after - i}}}" if after > i else ""
            forms.append(f"{digits[:i]}[{least}-{int(digit) - 1}]{rest}")
    return "|".join([*forms, digits])


def _many(kind: Declared, bounds: Bounds) -> _Form:
    """Return the form of an array of `kind`; the whole array is remembered by its text."""
    inner = _form(kind, bounds)
    pattern = rf"\[(?:{inner.pattern}(?:,{inner.pattern})*)?\]"
    if dataclasses.is_dataclass(kind):
        each, make = re.compile(_object(kind, grouped=True)).finditer, _maker(kind)
        return _whole(pattern, _remembered(lambda text: tuple(map(make, each(text)))))
    # Up to where it ends: a number with as many digits as the largest begins like a smaller one.
    found, value = re.compile(rf"{inner.grouped}(?=[,\]])").findall, inner.value
    if value is None:
        return _whole(pattern, _remembered(lambda text: tuple(found(text))))
    return _whole(pattern, _remembered(lambda text: tuple(map(value, found(text)))))


def _remembered(value: Callable[[str], Any]) -> Callable[[str], Any]:
    return functools.lru_cache(_MEMORY)(value)


def _text_map(text: str) -> dict[str, str]:
    values: dict[str, str] = {} if text == "{}" else json.loads(text)
    if values and not is_canonical(text, values):
        raise InputError("names are out of order, or one is there twice")
    return values
