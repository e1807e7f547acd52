"""JSON texts: one value or several behind one another, and the line of a field in them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from tenure.sources.paths import child_of, item_of

_SPACE: Final = re.compile(r"[ \t\n\r]*")


class NotJsonError(ValueError):
    """The text is not JSON; it may still be YAML."""

    def __init__(self, fact: str, *, line: int, column: int | None = None) -> None:
        super().__init__(fact)
        self.fact = fact
        self.line = line
        self.column = column


class _DuplicateKeyError(ValueError):
    """An object has a key twice."""


class _NoConstantError(ValueError):
    """NaN or an infinity."""


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return made


def _no_constant(text: str) -> None:
    raise _NoConstantError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object_of, parse_constant=_no_constant)
_SKIPPER: Final = json.JSONDecoder()


def json_documents(text: str) -> Iterator[Any]:
    """
    Yield every JSON value of the text.

    Raises:
        NotJsonError: it is none, or an object has a key twice; RecursionError for a nest of many
            hundred levels.
    """
    position = _after_space(text, 0)
    while position < len(text):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            fact = error.msg.lower()
            raise NotJsonError(fact, line=error.lineno, column=error.colno) from error
        except _DuplicateKeyError as error:
            key = str(error)
            line = _line_of_twice(text, position, key)
            raise NotJsonError(f"the key {key!r} stands twice in one object", line=line) from error
        except _NoConstantError as error:
            raise NotJsonError(str(error), line=line_at(text, position)) from error
        except ValueError as error:
            fact = f"a number of more than {sys.get_int_max_str_digits()} digits"
            raise NotJsonError(fact, line=line_at(text, position)) from error
        yield value
        position = _after_space(text, position)


def json_line(text: str, number: int, field: str) -> int:
    """Return the line of a field of value `number`, or of its nearest parent that exists."""
    position = _after_space(text, 0)
    for _ in range(number):
        position = _after_space(text, _SKIPPER.raw_decode(text, position)[1])
    shown = position
    while field:
        if text[position] == "{":
            member = child_of(field, _members(text, position))
            if member is None:
                break
            (shown, position), field = member
        elif text[position] == "[":
            item = item_of(field, _items(text, position))
            if item is None:
                break
            position, field = item
            shown = position
        else:
            break
    return line_at(text, shown)


def line_at(text: str, position: int) -> int:
    """Return the line of a character, from 1."""
    return text.count("\n", 0, position) + 1


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None  # it matches the empty text
    return match.end()


def _line_of_twice(text: str, position: int, key: str) -> int:
    """Return the line of the second member `key` in the first object that has two."""
    pending = [position]
    try:
        while pending:
            start = pending.pop()
            if text[start] == "{":
                members = list(_members(text, start))
                same = [at for name, (at, _) in members if name == key]
                if len(same) > 1:
                    return line_at(text, same[1])
                pending.extend(value for _, (_, value) in reversed(members))
            elif text[start] == "[":
                pending.extend(reversed(list(_items(text, start))))
    except ValueError:  # broken further on: the first error is the one to show
        pass
    return line_at(text, position)


def _members(text: str, start: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each key with its position and that of its value, of an object that is valid JSON."""
    position = _after_space(text, start + 1)
    while text[position] != "}":
        key, after = _SKIPPER.raw_decode(text, position)
        value = _after_space(text, _after_space(text, after) + 1)
        yield key, (position, value)
        position = _behind(text, value)


def _items(text: str, start: int) -> Iterator[int]:
    """Yield the position of every item of an array that is valid JSON."""
    position = _after_space(text, start + 1)
    while text[position] != "]":
        yield position
        position = _behind(text, position)


def _behind(text: str, value: int) -> int:
    """Return the position behind a value and its comma: the next item, or the closing bracket."""
    end = _after_space(text, _SKIPPER.raw_decode(text, value)[1])
    return _after_space(text, end + 1) if text[end] == "," else end
