"""An event has one text; no other text is read as it, and none that another reader understands."""

from __future__ import annotations

import json
import typing
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, structs

from ledger.domain.bounds import Name, bounds_of
from ledger.domain.devices import DeviceRecord, DeviceShare, VirtualFunction
from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.codec import decode_value, misfit, plain_value
from ledger.domain.log.events import (
    EVENT_TYPES,
    GroupMember,
    GroupPlanned,
    LedgerEvent,
    PlannedMember,
    PodReserved,
    decode_event,
    encode_event,
    skim_event,
)
from ledger.domain.proofs.canonical import canonical_json
from tests.support.declared import names_of, values
from tests.support.examples import examples
from tests.support.stores import released, reserved, share

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
KINDS = sorted(EVENT_TYPES.values(), key=lambda kind: kind.event_type)
EVENTS: st.SearchStrategy[LedgerEvent] = st.one_of(*(values(kind, WORDS) for kind in KINDS))


@given(event=EVENTS)
def test_an_event_has_one_text_and_comes_back(event: LedgerEvent) -> None:
    """As another writer sorts and escapes it, every field in it."""
    body = encode_event(event)

    assert body == canonical_json(plain_value(event))
    assert decode_event(event.event_type, body) == event
    assert set(json.loads(body)) == set(event.__struct_fields__)


@given(event=EVENTS)
def test_an_event_that_is_skimmed_is_the_one_that_is_read(event: LedgerEvent) -> None:
    """What is no event is refused as ever."""
    body = encode_event(event)

    assert skim_event(event.event_type, body) == event
    with pytest.raises(InputError):
        skim_event(event.event_type, body + "}")


def test_who_skims_knows_no_newer_event_either() -> None:
    """A type of a newer release stops every reader."""
    with pytest.raises(UnknownEventError):
        skim_event("pod.reserved.v99", "{}")


@settings(max_examples=examples(500))
@given(event=EVENTS, data=st.data())
def test_a_body_with_one_character_changed_is_never_read_wrongly(
    event: LedgerEvent, data: st.DataObject
) -> None:
    """Cut, doubled or replaced: refused, or what any other reader of JSON reads there."""
    body = encode_event(event)
    at = data.draw(st.integers(0, len(body) - 1))
    inserted = data.draw(st.sampled_from(["", body[at] * 2, *' "\\{}[]:,0-9.etn\n']))
    changed = body[:at] + inserted + body[at + 1 :]
    try:
        found = decode_event(event.event_type, changed)
    except (InputError, UnknownEventError):
        return

    said = json.loads(changed)
    assert changed == canonical_json(said)
    assert changed == canonical_json({name: plain_value(found)[name] for name in said})


@settings(max_examples=examples(500))
@given(event=EVENTS, data=st.data())
def test_a_body_that_lacks_fields_is_read_as_the_standard_library_reads_it(
    event: LedgerEvent, data: st.DataObject
) -> None:
    """At any depth, with a character changed or not: the same event, or refused by both."""
    body = canonical_json(_without_some(json.loads(encode_event(event)), data))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + data.draw(st.sampled_from([*' "\\{}[]:,0-9.etn'])) + body[at + 1 :]
    try:
        said = json.loads(body)
        found = decode_value(type(event), said, event.event_type)
        expected = found if canonical_json(said) == body else None
    except (InputError, UnknownEventError, ValueError):
        expected = None
    try:
        read = decode_event(event.event_type, body)
    except (InputError, UnknownEventError):
        read = None

    assert read == expected


def _without_some(value: Any, data: st.DataObject) -> Any:  # noqa: ANN401 - JSON
    """Return JSON without some of what its objects say."""
    if isinstance(value, dict):
        left_out = data.draw(st.sets(st.sampled_from(sorted(value)), max_size=2)) if value else ()
        kept = {name: item for name, item in value.items() if name not in left_out}
        return {name: _without_some(item, data) for name, item in kept.items()}
    return [_without_some(item, data) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("minors", [(1_000_000_000,), (0, 2**31 - 1, 12_345_678, 1_234_567_890)])
def test_a_number_in_a_list_is_read_to_its_end(minors: tuple[int, ...]) -> None:
    """One with as many digits as the largest begins like a smaller one."""
    member = PlannedMember(
        pod_uid="p", namespace="n", pod_name="p", node_uid="n", minors=minors, whole=minors
    )
    event = GroupPlanned(group="g", members=(member,))

    assert decode_event(event.event_type, encode_event(event)) == event


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"attempt":true,"node_uid":"n","pod_uid":"p"}', id="another type"),
        pytest.param('{"attempt":1.0,"node_uid":"n","pod_uid":"p"}', id="a float"),
        pytest.param('{"attempt":01,"node_uid":"n","pod_uid":"p"}', id="no JSON number"),
        pytest.param('{"attempt":-0,"node_uid":"n","pod_uid":"p"}', id="less than nothing"),
        pytest.param('{"attempt":1,"node_uid":"n"}', id="a field is missing"),
        pytest.param('{"attempt":1,"node_uid":"n","pod_uid":"p","x":1}', id="a field too many"),
        pytest.param('{"attempt":1,"node_uid":"n","pod_uid":"p"} ', id="a blank behind it"),
        pytest.param('{"attempt":1,"node_uid":"n","pod_uid":"p"}\n', id="a line end behind it"),
        pytest.param('{"attempt":1,"node_uid":"n\n","pod_uid":"p"}', id="a bare line end in it"),
    ],
)
def test_anything_unusual_is_refused(body: str) -> None:
    """With the type of the event at least."""
    with pytest.raises(InputError, match=r"^pod\.bound\.v1"):
        decode_event("pod.bound.v1", body)


@pytest.mark.parametrize("cpus", ["5-3", "1,", "9999", "1--2", "0,1", "1-1", "2,0"])
def test_a_cpu_list_that_we_do_not_write_is_refused(cpus: str) -> None:
    """One that is none, and one of another form."""
    body = encode_event(reserved("p-1", share(0))).replace('"cpuset":""', f'"cpuset":"{cpus}"')

    with pytest.raises(InputError) as caught:
        decode_event(PodReserved.event_type, body)
    assert caught.value.field == "pod.reserved.v1.cpuset"


def kinds_in(declared: Any, found: dict[Any, None]) -> dict[Any, None]:  # noqa: ANN401 - any type
    """Return the structs and dataclasses that a declared type holds, itself included."""
    for argument in typing.get_args(declared):
        kinds_in(argument, found)
    has_fields = hasattr(declared, "__struct_fields__") or hasattr(declared, "__dataclass_fields__")
    if has_fields and declared not in found:
        found[declared] = None
        for hint in typing.get_type_hints(declared).values():
            kinds_in(hint, found)
    return found


PARTS: dict[Any, None] = {}
for each in KINDS:
    kinds_in(each, PARTS)


def bounds_in(declared: Any) -> list[Any]:  # noqa: ANN401 - any type
    """Return the bounds of the integers that a declared type holds itself; None for one without."""
    if declared is int:
        return [None]
    if typing.get_origin(declared) is typing.Annotated:
        metas = [each for each in declared.__metadata__ if isinstance(each, Meta)]
        if not metas:
            return bounds_in(typing.get_args(declared)[0])
        return [] if typing.get_args(declared)[0] is str else [(metas[0].ge, metas[0].le)]
    return [each for argument in typing.get_args(declared) for each in bounds_in(argument)]


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_every_integer_of_an_event_has_the_bounds_of_its_name(kind: Any) -> None:  # noqa: ANN401
    """What is read and written is bounded as the tables' columns of that name are."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for name in names_of(kind):
        newest = getattr(kind, "newest_version", 0)
        expected = (newest, newest) if name == "version" and newest else bounds_of(name)
        assert all(each == expected for each in bounds_in(hints[name])), name


KEYS = {
    *("pod_uid", "pod_name", "namespace", "node_uid", "node_name", "witness_uid", "machine_id"),
    *("system_uuid", "boot_id", "device_type", "device_id", "bus_id", "vf_bus_ids"),
    "unknown_types",
}
"""Fields that are keys of an index."""


@pytest.mark.parametrize(
    "kind",
    [*KINDS, DeviceRecord, DeviceShare, VirtualFunction, GroupMember, PlannedMember],
    ids=lambda kind: kind.__name__,
)
def test_every_name_that_is_looked_up_by_is_bounded(kind: Any) -> None:  # noqa: ANN401
    """Wherever it stands: an index has no room for more."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for name in KEYS.intersection(names_of(kind)):
        declared = hints[name]
        assert Name in (declared, *typing.get_args(declared)), name


@given(data=st.data())
def test_a_number_is_read_and_written_within_its_bounds_alone(data: st.DataObject) -> None:
    """At each end, one beyond it, and anywhere."""
    low, high = bounds_of("attempt")
    drawn = data.draw(st.integers(low - 10, high + 10) | st.integers(-(2**70), 2**70))
    event = released("p")
    body = encode_event(event)
    for value in (low - 1, low, low + 1, high - 1, high, high + 1, high * 10, drawn):
        other = structs.replace(event, attempt=value)
        said = body.replace('"attempt":1', f'"attempt":{value}')
        if low <= value <= high:
            assert encode_event(other) == said
            assert decode_event(event.event_type, said) == other
            continue
        assert misfit(other) == "attempt"
        with pytest.raises(AssertionError):
            encode_event(other)
        with pytest.raises(InputError) as caught:
            decode_event(event.event_type, said)
        assert caught.value.field in {"pod.released.v1.attempt", "pod.released.v1"}


@pytest.mark.parametrize("number", [True, 0.5, 1.0, "1", None, 2**53])
def test_only_an_integer_is_written_as_one(number: Any) -> None:  # noqa: ANN401 - any of them
    """Anything else is our own bug."""
    event = structs.replace(released("p"), attempt=number)

    with pytest.raises(AssertionError):
        encode_event(event)
    assert misfit(event) == "attempt"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(r'{"\ud800":1}', id="as a name"),
        pytest.param(r'{"node_uid":"u","pod_uid":"\ud800"}', id="as a text"),
        pytest.param(r'{"attempt":"\ud800","node_uid":"u","pod_uid":"p"}', id="as a number"),
    ],
)
def test_half_of_a_character_is_refused_as_everything_else_is(body: str) -> None:
    """Wherever it stands; whoever reads a log tells the position, and has no traceback."""
    with pytest.raises(InputError):
        decode_event("pod.bound.v1", body)


@pytest.mark.parametrize("text", ["1e5000", "1e999999999", "9" * 19, "1/" + "9" * 19, "0.5", " 1"])
def test_a_fraction_is_two_whole_numbers_of_a_size(text: str) -> None:
    """What would cost time or memory to work out is refused unread."""
    with pytest.raises(InputError, match="not a fraction"):
        decode_value(Fraction, text, "amplification")
