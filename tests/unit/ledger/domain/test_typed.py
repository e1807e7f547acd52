"""What the types of a value's fields say of reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
import pytest

from ledger.domain.annotations.wire import Named, at_least
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.quantity import Quantity, parse_quantity
from ledger.domain.typed import read, read_json


class Policy(StrEnum):
    """Two words."""

    FIRST = "First"
    SECOND = "Second"


class Part(msgspec.Struct, frozen=True):
    """A part of a whole."""

    minor: Annotated[int, at_least(0)]
    bus_id: str = ""
    is_open: Annotated[bool, "open"] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """One field of each form."""

    name: Named
    policy: Policy = Policy.SECOND
    parts: tuple[Part, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: Annotated[CpuSet, "cpuset", "cpu"] = CpuSet()
    memory: Quantity | None = None
    rest: object = None


def test_every_form_of_a_field_is_read() -> None:
    """Keys are Go's words or the field's own, and what no field has passes."""
    said = {
        "name": "a",
        "policy": "First",
        "parts": [{"minor": 1, "busID": "5e:00.0", "open": False}, {"minor": 2}],
        "labels": {"k": "v"},
        "cpu": "0-1",
        "memory": "1Gi",
        "rest": [1],
        "more": 1,
    }

    assert read(Whole, said) == Whole(
        name="a",
        policy=Policy.FIRST,
        parts=(Part(minor=1, bus_id="5e:00.0", is_open=False), Part(minor=2)),
        labels={"k": "v"},
        cpus=parse_cpuset("0-1"),
        memory=parse_quantity("1Gi"),
        rest=[1],
    )


def test_null_is_as_good_as_absent() -> None:
    """So Go reads it."""
    nulls = dict.fromkeys(("policy", "parts", "labels", "cpuset", "memory", "rest"))

    assert read(Whole, {"name": "a", **nulls}) == read(Whole, {"name": "a"}) == Whole(name="a")


def test_an_empty_text_is_a_choice_by_default() -> None:
    """As null is."""
    assert read(Whole, {"name": "a", "policy": ""}).policy is Policy.SECOND


def test_of_two_keys_the_first_that_is_there_counts() -> None:
    """A null is not there."""
    said = {"name": "a", "cpuset": None, "cpu": "1"}

    assert read(Whole, said).cpus == parse_cpuset("1")
    assert read(Whole, {**said, "cpuset": "0"}).cpus == parse_cpuset("0")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([], "at: expected an object: value=[]"),
        ({}, "at.name: missing; expected a name"),
        ({"name": 1}, "at.name: expected a text: value=1"),
        ({"name": "a", "parts": {}}, "at.parts: expected a list: value={}"),
        ({"name": "a", "parts": [{}]}, "at.parts[0].minor: missing; expected an integer"),
        ({"name": "a", "parts": [{"minor": True}]}, "at.parts[0].minor: expected an integer"),
        ({"name": "a", "parts": [{"minor": 1.0}]}, "at.parts[0].minor: expected an integer"),
        ({"name": "a", "parts": [{"minor": -1}]}, "at.parts[0].minor: below 0: value=-1"),
        ({"name": "a", "parts": [{"minor": 1, "open": "no"}]}, "at.parts[0].open: expected true"),
        ({"name": "a", "labels": {"k": 2}}, "at.labels[k]: expected a text: value=2"),
        ({"name": "a", "policy": "Third"}, "at.policy: not one of 'First', 'Second'"),
        ({"name": "a", "cpuset": "x"}, "at.cpuset: "),
        ({"name": "a", "memory": "-1"}, "at.memory: a quantity is negative"),
    ],
)
def test_what_is_of_another_type_is_named_by_its_path(said: object, message: str) -> None:
    """A boolean and a float are no integers."""
    with pytest.raises(InputError) as raised:
        read(Whole, said, "at")

    assert str(raised.value).startswith(message)


def test_a_text_is_read_as_its_json() -> None:
    """What is no JSON is named, too."""
    assert read_json(tuple[Part, ...], '[{"minor": 1}]', "key") == (Part(minor=1),)
    assert read_json(tuple[Part, ...], "null", "key") == ()
    with pytest.raises(InputError, match=r"^metadata.annotations\[key\]: not valid JSON"):
        read_json(Part, "{", "key")
