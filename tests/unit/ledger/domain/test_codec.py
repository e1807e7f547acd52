from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from ledger.domain.bounds import Exact
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value, encode_value, plain_value, read_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """One field, which `attrgetter` would return bare."""

    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """No field at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """A field of every kind that an event may hold."""

    text: str
    number: Exact
    flag: bool = False
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[str, int] = ("", 0)
    pairs: tuple[tuple[str, int], ...] = ()
    cpus: CpuSet = CpuSet()
    dialect: Dialect | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, Inner] = field(default_factory=dict)
    empty: Empty = Empty()


FULL = Everything(
    text="t",
    number=-7,
    flag=True,
    maybe=Inner(words=("a",)),
    many=(Inner(), Inner(words=("b", "c"))),
    pair=("x", 1),
    pairs=(("y", 2), ("z", 3)),
    cpus=parse_cpuset("0-3,8"),
    dialect=Dialect.MGPU,
    labels={"k": "v"},
    nested={"n": Inner(words=("d",))},
)
FULL_JSON = {
    "text": "t",
    "number": -7,
    "flag": True,
    "maybe": {"words": ["a"]},
    "many": [{"words": []}, {"words": ["b", "c"]}],
    "pair": ["x", 1],
    "pairs": [["y", 2], ["z", 3]],
    "cpus": "0-3,8",
    "dialect": "mgpu",
    "labels": {"k": "v"},
    "nested": {"n": {"words": ["d"]}},
    "empty": {},
}


def test_every_kind_of_field_goes_there_and_back() -> None:
    """Encode and decode are inverse."""
    assert json.loads(encode_value(FULL)) == FULL_JSON
    assert decode_value(Everything, FULL_JSON, "") == FULL
    assert read_value(Everything, encode_value(FULL), "") == FULL


def test_missing_fields_take_their_defaults() -> None:
    """Events grow by fields with defaults."""
    value = decode_value(Everything, {"text": "t", "number": 1}, "")

    assert value == Everything(text="t", number=1)


def test_encoding_shares_no_container_with_the_value() -> None:
    """What is encoded may be changed without changing the event."""
    encoded = plain_value(FULL)
    encoded["labels"]["other"] = "x"

    assert json.loads(encode_value(FULL)) == FULL_JSON


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Everything(text="t", number=1.5), id="a float"),  # type: ignore[arg-type]  # our own bug
        pytest.param(Everything(text="t", number=True), id="a truth value"),
        pytest.param(Everything(text="t", number=2**53), id="an integer that readers round"),
        pytest.param(Everything(text="t", number=-(2**53)), id="a negative one"),
        pytest.param(
            Everything(text="t", number=1, many=(Empty(),)),  # type: ignore[arg-type]  # our own bug
            id="another class",
        ),
    ],
)
def test_what_must_never_reach_a_hash_fails_an_assertion(value: Everything) -> None:
    """Design section 4: integers only; it would be our own bug."""
    with pytest.raises(AssertionError):
        encode_value(value)


def test_the_largest_exact_integer_is_written() -> None:
    """RFC 8785: up to 2^53-1."""
    assert f'"number":{2**53 - 1}' in encode_value(Everything(text="t", number=2**53 - 1))


BROKEN = {
    "no object": ([], "e", "expected `object`"),
    "an unknown field": ({**FULL_JSON, "more": 1}, "e", "unknown field 'more'"),
    "a missing field": ({"number": 1}, "e", "missing required field `text`"),
    "a number for text": ({**FULL_JSON, "text": 1}, "e.text", "expected `str`"),
    "text for a number": ({**FULL_JSON, "number": "1"}, "e.number", "expected `int`"),
    "a number for a flag": ({**FULL_JSON, "flag": 1}, "e.flag", "expected `bool`"),
    "null for text": ({**FULL_JSON, "text": None}, "e.text", "expected `str`"),
    "an object for an array": ({**FULL_JSON, "many": {}}, "e.many", "expected `array`"),
    "a wrong item": ({**FULL_JSON, "many": [{}, 5]}, "e.many[1]", "expected `object`"),
    "deep inside": (
        {**FULL_JSON, "many": [{"words": ["a", 2]}]},
        "e.many[0].words[1]",
        "expected `str`",
    ),
    "a pair of three": ({**FULL_JSON, "pair": ["a", 1, 2]}, "e.pair", "`array` of length 2"),
    "a wrong half of a pair": ({**FULL_JSON, "pair": ["a", "b"]}, "e.pair[1]", "expected `int`"),
    "an array for a mapping": ({**FULL_JSON, "labels": []}, "e.labels", "expected `object`"),
    "a wrong value of a mapping": (
        {**FULL_JSON, "labels": {"k": 1}},
        "e.labels[...]",
        "expected `str`",
    ),
    "a wrong value deep in a mapping": (
        {**FULL_JSON, "nested": {"n": {"words": 1}}},
        "e.nested[...].words",
        "expected `array`",
    ),
    "a CPU list of numbers": ({**FULL_JSON, "cpus": [0]}, "e.cpus", "must be a CPU list"),
    "a broken CPU list": ({**FULL_JSON, "cpus": "0-"}, "e.cpus", "not a CPU list"),
    "an unknown choice": (
        {**FULL_JSON, "dialect": "esperanto"},
        "e.dialect",
        "invalid enum value|expected `str",
    ),
    "an array for a choice": (
        {**FULL_JSON, "dialect": []},
        "e.dialect",
        "invalid enum value|expected `str",
    ),
}


@pytest.mark.parametrize(("value", "path", "fact"), BROKEN.values(), ids=BROKEN)
def test_what_does_not_fit_is_named_with_its_path(value: object, path: str, fact: str) -> None:
    """One message with the place below the caller's own path."""
    with pytest.raises(InputError, match=fact) as caught:
        decode_value(Everything, value, "e")

    assert caught.value.field == path
