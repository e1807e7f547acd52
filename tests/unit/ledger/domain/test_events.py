from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from msgspec import structs

from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.events import (
    EVENT_TYPES,
    EpochStarted,
    LedgerEvent,
    NodeInventoried,
    PodBound,
    PodReserved,
    decode_event,
    encode_event,
)
from ledger.domain.log.upcasts import UPCASTS
from ledger.domain.proofs.canonical import canonical_json

SAMPLES = Path(__file__).parents[3] / "samples" / "events"


def sample(event_type: str) -> str:
    """Return the stored body of one type, as it stands in a ledger."""
    return (SAMPLES / f"{event_type}.json").read_text(encoding="utf-8").removesuffix("\n")


def test_every_event_type_has_a_stored_sample() -> None:
    """A recorded type is never edited: its sample stays, whatever the code becomes."""
    stored = {path.name.removesuffix(".json") for path in SAMPLES.iterdir()}

    assert stored == {*EVENT_TYPES, *UPCASTS}


def test_every_event_is_known_by_its_type() -> None:
    """No two classes share a type, and each carries its version."""
    assert set(EVENT_TYPES.values()) == set(get_args(LedgerEvent))
    assert all(event_type.rsplit(".v", 1)[1].isdigit() for event_type in EVENT_TYPES)


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_a_stored_sample_reads_and_writes_back_byte_for_byte(event_type: str) -> None:
    """Decode and encode are inverse on every recorded byte."""
    body = sample(event_type)

    event = decode_event(event_type, body)

    assert type(event) is EVENT_TYPES[event_type]
    assert encode_event(event) == body
    assert decode_event(event_type, encode_event(event)) == event


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_a_sample_says_something_in_every_field(event_type: str) -> None:
    """A sample at its defaults would not notice a renamed or mistyped field."""
    event = decode_event(event_type, sample(event_type))

    for name in event.__struct_fields__:
        assert getattr(event, name) not in ("", (), {}), name


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_a_body_without_the_optional_fields_reads(event_type: str) -> None:
    """Events grow by fields with defaults: what an older release wrote stays readable."""
    kind = EVENT_TYPES[event_type]
    needed = {field.name for field in structs.fields(kind) if field.required}
    body = {name: value for name, value in json.loads(sample(event_type)).items() if name in needed}

    assert type(decode_event(event_type, canonical_json(body))) is kind


def test_a_snapshot_of_before_containers_were_told_apart_reads() -> None:
    """A ledger has such bodies for ever."""
    body = json.loads(sample(PodReserved.event_type))
    del body["snapshot"]["init_containers"]

    event = decode_event(PodReserved.event_type, canonical_json(body))

    assert isinstance(event, PodReserved)
    assert event.snapshot.kinds == {}


def test_a_type_of_a_newer_release_stops_the_reader() -> None:
    """Never guess what a newer event means."""
    with pytest.raises(UnknownEventError, match=r"pod\.bound\.v2"):
        decode_event("pod.bound.v2", "{}")


BROKEN = {
    "no JSON": ("{", "not JSON", "pod.bound.v1"),
    "a number too long to read": (f'{{"attempt":{"9" * 5000}}}', "not JSON", "pod.bound.v1"),
    "nested too deep": ("[" * 200_000, "not JSON", "pod.bound.v1"),
    "no object": ("[]", "expected `object`", "pod.bound.v1"),
    "a field missing": (
        '{"attempt":1,"node_uid":"n"}',
        "missing required field `pod_uid`",
        "pod.bound.v1",
    ),
    "a field unknown": (
        '{"attempt":1,"node_uid":"n","pod_uid":"u","x":1}',
        "unknown field 'x'",
        "pod.bound.v1",
    ),
    "a float for an integer": (
        '{"attempt":1.0,"node_uid":"n","pod_uid":"u"}',
        "expected `int`",
        "pod.bound.v1.attempt",
    ),
    "a truth value for an integer": (
        '{"attempt":true,"node_uid":"n","pod_uid":"u"}',
        "expected `int`",
        "pod.bound.v1.attempt",
    ),
}


@pytest.mark.parametrize(("body", "fact", "field"), BROKEN.values(), ids=BROKEN)
def test_a_broken_body_is_unreadable(body: str, fact: str, field: str) -> None:
    """One message with the type and the field."""
    with pytest.raises(InputError, match=fact) as caught:
        decode_event(PodBound.event_type, body)

    assert caught.value.field == field


def test_a_broken_field_deep_inside_is_named_with_its_path() -> None:
    """Arrays by index, objects by field."""
    body = json.loads(sample(PodReserved.event_type))
    body["shares"][1]["containers"] = [{"container": 5}]

    with pytest.raises(InputError) as caught:
        decode_event(PodReserved.event_type, canonical_json(body))

    assert caught.value.field == "pod.reserved.v1.shares[1].containers[0].container"
    body["shares"][1]["containers"] = []
    body["cpuset"] = "3-1"
    with pytest.raises(InputError, match="runs backwards") as caught:
        decode_event(PodReserved.event_type, canonical_json(body))
    assert caught.value.field == "pod.reserved.v1.cpuset"


def test_the_body_is_the_same_whatever_the_order_of_a_mapping() -> None:
    """One event has one body, and so one hash."""
    event = decode_event(PodReserved.event_type, body := sample(PodReserved.event_type))
    assert isinstance(event, PodReserved)
    labels = dict(reversed([*event.snapshot.labels.items()]))

    assert (
        encode_event(
            structs.replace(event, snapshot=structs.replace(event.snapshot, labels=labels))
        )
        == body
    )


BOUND = '{"attempt":1,"node_uid":"n","pod_uid":"u"}'
OTHER_FORMS = {
    "a name twice": BOUND.replace("{", '{"attempt":2,', 1),
    "a name twice, the same value": BOUND.replace("{", '{"attempt":1,', 1),
    "another order": '{"node_uid":"n","attempt":1,"pod_uid":"u"}',
    "spaces": BOUND.replace(":", ": "),
    "a line end behind it": f"{BOUND}\n",
    "a name in escapes": BOUND.replace("node_uid", "node\\u005fuid"),
    "a text in escapes": BOUND.replace('"n"', '"\\u006e"'),
    "a slash in escapes": BOUND.replace('"n"', '"\\/"'),
}


@pytest.mark.parametrize("body", OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_a_body_of_another_form_is_unreadable(body: str) -> None:
    """What readers may take for another value, or writers for another text, is no event."""
    assert decode_event(PodBound.event_type, BOUND)
    with pytest.raises(InputError, match="not canonical"):
        decode_event(PodBound.event_type, body)


@pytest.mark.parametrize(
    ("good", "other"),
    [
        pytest.param(
            '"labels":{"a":"1","b":"2"}', '"labels":{"b":"2","a":"1"}', id="another order"
        ),
        pytest.param('"labels":{"a":"1"}', '"labels":{"a":"1","a":"1"}', id="a label twice"),
        pytest.param('"cpu_milli":0', '"cpu_milli":-0', id="less than nothing"),
        pytest.param(
            '"memory_bytes":9007199254740991', '"memory_bytes":9007199254740993', id="too large"
        ),
    ],
)
def test_what_is_read_as_a_whole_is_canonical_too(good: str, other: str) -> None:
    """The fast path takes no form that the codec would not."""
    body = encode_event(NodeInventoried(node_uid="n", node_name="n"))
    for plain in ('"labels":{}', '"cpu_milli":0', '"memory_bytes":0'):
        if plain.split(":")[0] == good.split(":", maxsplit=1)[0]:
            body = body.replace(plain, good)
    assert encode_event(decode_event(NodeInventoried.event_type, body)) == body
    with pytest.raises(InputError):
        decode_event(NodeInventoried.event_type, body.replace(good, other))


def test_characters_beyond_ascii_are_kept() -> None:
    """Bodies are UTF-8; nothing is escaped that need not be."""
    event = EpochStarted(epoch=1, holder="M\u00fcnchen", origin="o", tenure_version="v")

    assert "M\u00fcnchen" in encode_event(event)
    assert decode_event(EpochStarted.event_type, encode_event(event)) == event
