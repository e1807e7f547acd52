"""What every codec shares: JSON with field paths in its errors, and the few scalar shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Never, TypeVar

from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.quantity import ZERO, Quantity, format_quantity, quantity_of

if TYPE_CHECKING:
    from ledger.domain.vocabulary import Vocabulary

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)
Amounts = tuple[tuple[str, Quantity], ...]
"""Released resource names with their quantities, sorted by name."""

TRUE: Final = "true"
FALSE: Final = "false"

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def annotation_path(key: str) -> str:
    """Return the field path of an annotation, as errors name it."""
    return f"metadata.annotations[{key}]"


def label_path(key: str) -> str:
    """Return the field path of a label, as errors name it."""
    return f"metadata.labels[{key}]"


def load(text: str, path: str) -> object:
    """
    Return the JSON value of an annotation.

    Rule: Koordinator contract 2: a value that does not parse is an error, not "absent".

    Raises:
        InputError: not JSON, not a finite number, or characters no UTF-8 text can hold.
    """
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", field=path) from error
    if "\\u" in text and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise InputError("not valid JSON: half a surrogate pair", field=path)
    return value


def dump(value: object) -> str:
    """Return the JSON text of an annotation: keys sorted, no spaces (cli.md, Output)."""
    return canonical_json(value)


def an_object(value: object, path: str) -> dict[str, object]:
    """Return a JSON object; null is an empty one, as Go reads it."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        wrong("an object", value, path)
    return value


def a_list(value: object, path: str) -> list[object]:
    """Return a JSON array; null and a missing field are an empty one, as Go reads them."""
    if value is None:
        return []
    if not isinstance(value, list):
        wrong("a list", value, path)
    return value


def each(value: object, path: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
    """Return every element of a JSON array, read in order."""
    items = a_list(value, path)
    return tuple(read(item, f"{path}[{number}]") for number, item in enumerate(items))


def a_text(value: object, path: str) -> str:
    """Return a JSON string; null and a missing field are the empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        wrong("a text", value, path)
    return value


def a_name(value: object, path: str, *, what: str = "a name") -> str:
    """Return a text that is there and not empty."""
    text = a_text(value, path)
    if not text:
        raise InputError(f"missing; expected {what}", field=path)
    return text


def an_integer(value: object, path: str, *, least: int | None = None) -> int:
    """Return a JSON integer. A missing one is an error: no reader guesses card 0."""
    if not isinstance(value, int) or isinstance(value, bool):
        wrong("an integer", value, path)
    if least is not None and value < least:
        raise InputError(f"below {least}: value={value}", field=path)
    return value


Named = Annotated[str, a_name]
"""A text that has to be there, as `typed` reads it."""


def at_least(least: int) -> Callable[[object, str], int]:
    """Return what reads an integer that is not below another."""
    return partial(an_integer, least=least)


def a_flag(value: object, path: str, *, default: bool) -> bool:
    """Return a JSON boolean, or the default for null and a missing field."""
    if value is None:
        return default
    if not isinstance(value, bool):
        wrong("true or false", value, path)
    return value


def a_quantity(value: object, path: str) -> Quantity:
    """Return a quantity of at least 0, given as a JSON number or text."""
    try:
        quantity = quantity_of(value)
    except InputError as error:
        raise error.within(path) from error
    if quantity < ZERO:
        raise InputError(f"a quantity is negative: value={value!r}", field=path)
    return quantity


def amounts(value: object, path: str, vocabulary: Vocabulary) -> Amounts:
    """Return a resource list under released names (Koordinator contract 1.1)."""
    items = vocabulary.canonical_resources(an_object(value, path)).items()
    return tuple((name, a_quantity(item, f"{path}[{name}]")) for name, item in items)


def amounts_json(pairs: Amounts) -> dict[str, str]:
    """Return a resource list in canonical quantities, as Kubernetes prints them."""
    return {name: format_quantity(quantity) for name, quantity in pairs}


def a_cpuset(value: object, path: str) -> CpuSet:
    """Return the CPUs of a Linux list; null and a missing field are none."""
    return within(path, parse_cpuset, a_text(value, path))


def a_choice(
    value: object, choices: type[Choice], path: str, *, default: Choice | None = None
) -> Choice:
    """Return one of the texts that `choices` lists; null, missing and `""` are the default."""
    text = a_text(value, path)
    if not text and default is not None:
        return default
    try:
        return choices(text)
    except ValueError as error:
        known = ", ".join(repr(str(choice)) for choice in choices)
        raise InputError(f"not one of {known}: value={text!r}", field=path) from error


def a_decimal(text: str, path: str, *, least: int | None = None) -> int:
    """Return the integer an annotation's plain text holds: decimal digits, no blanks."""
    if not _INTEGER.fullmatch(text):
        raise InputError(f"not an integer: value={text!r}", field=path)
    return an_integer(int(text), path, least=least)


def a_boolean_text(text: str, path: str) -> bool:
    """Return the boolean an annotation's plain text holds: `true` or `false`."""
    if text not in {TRUE, FALSE}:
        raise InputError(f"neither true nor false: value={text!r}", field=path)
    return text == TRUE


def is_number(text: str, digits: int = 9) -> bool:
    """Tell whether a text is a number of at most so many decimal digits, without a sign."""
    return text.isascii() and text.isdigit() and len(text) <= digits


def decoded(annotations: Mapping[str, str], key: str, decode: Callable[[str], T]) -> T | None:
    """Return what an annotation says, None without it."""
    text = annotations.get(key)
    return None if text is None else decode(text)


def within(path: str, read: Callable[[str], T], text: str) -> T:
    """Return `read(text)`, with `path` put before the field of its error."""
    try:
        return read(text)
    except InputError as error:
        raise error.within(path) from error


def present(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that say something: Go's `omitempty` for texts, lists, maps and null."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}


def wrong(expected: str, value: object, path: str) -> Never:
    """Raise the InputError for a value of the wrong JSON type."""
    if value is None:
        raise InputError(f"missing; expected {expected}", field=path)
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    raise InputError(f"expected {expected}: value={shown}", field=path)


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")
