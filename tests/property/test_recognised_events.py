"""What the regular expressions recognise is what the codec reads, and never anything else."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.bounds import _FIELDS, bounds_of
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value
from ledger.domain.log.events import (
    EVENT_TYPES,
    GroupPlanned,
    LedgerEvent,
    PlannedMember,
    PodReserved,
    decode_event,
    encode_event,
)
from ledger.domain.log.recognise import _digits, recogniser
from tests.support.declared import values
from tests.support.stores import reserved, share

PLAIN_WORDS = st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs", "Cc"]))
ANY_WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
KINDS = sorted(EVENT_TYPES.values(), key=lambda kind: kind.event_type)


def events(words: st.SearchStrategy[str]) -> st.SearchStrategy[LedgerEvent]:
    """Return events of every type."""
    return st.one_of(*(values(kind, words) for kind in KINDS))


@given(event=events(PLAIN_WORDS))
def test_a_canonical_body_without_an_escape_is_recognised(event: LedgerEvent) -> None:
    """The fast path is taken by what our writer records, and gives the event again."""
    found = recogniser(type(event))(encode_event(event))

    assert type(found) is type(event)
    assert found == event


@pytest.mark.parametrize("minors", [(1_000_000_000,), (0, 2**31 - 1, 12_345_678, 1_234_567_890)])
def test_a_number_in_a_list_is_read_to_its_end(minors: tuple[int, ...]) -> None:
    """One with as many digits as the largest begins like a smaller one."""
    member = PlannedMember(
        pod_uid="p", namespace="n", pod_name="p", node_uid="n", minors=minors, whole=minors
    )
    event = GroupPlanned(group="g", members=(member,))

    assert decode_event(event.event_type, encode_event(event)) == event


@given(event=events(ANY_WORDS))
def test_an_escape_is_left_to_the_codec(event: LedgerEvent) -> None:
    """Quotes, backslashes and control characters are not recognised; never read wrongly."""
    found = recogniser(type(event))(encode_event(event))

    assert found is None or found == event


@settings(max_examples=300)
@given(event=events(PLAIN_WORDS), data=st.data())
def test_what_the_codec_refuses_is_never_recognised(
    event: LedgerEvent, data: st.DataObject
) -> None:
    """A body with any one character cut, doubled or replaced: the codec's answer, or none."""
    body = encode_event(event)
    at = data.draw(st.integers(0, len(body) - 1))
    inserted = data.draw(st.sampled_from(["", body[at] * 2, *' "\\{}[]:,0-9.etn\n']))
    changed = body[:at] + inserted + body[at + 1 :]

    found = recogniser(type(event))(changed)

    if found is not None:
        assert found == decode_value(type(event), json.loads(changed), "body")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"attempt":true,"node_uid":"n","pod_uid":"p"}', id="another type"),
        pytest.param('{"attempt":01,"node_uid":"n","pod_uid":"p"}', id="no JSON number"),
        pytest.param('{"attempt":1,"node_uid":"n"}', id="a field is missing"),
        pytest.param('{"attempt":1,"node_uid":"n","pod_uid":"p","x":1}', id="a field too many"),
        pytest.param('{"attempt":1,"node_uid":"n","pod_uid":"p"} ', id="a blank behind it"),
        pytest.param('{"attempt":1,"node_uid":"n","pod_uid":"p"}\n', id="a line end behind it"),
        pytest.param(
            '{"attempt":1,"node_uid":"n\n","pod_uid":"p"}', id="a bare line end in a text"
        ),
    ],
)
def test_anything_unusual_is_not_recognised(body: str) -> None:
    """It is not for the fast path to say what is wrong."""
    assert recogniser(EVENT_TYPES["pod.bound.v1"])(body) is None


@pytest.mark.parametrize("cpus", ["5-3", "1,", "9999", "1--2"])
def test_a_cpu_list_that_is_none_is_not_recognised(cpus: str) -> None:
    """The codec words the refusal."""
    event = reserved("p-1", share(0))
    body = encode_event(event).replace('"cpuset":""', f'"cpuset":"{cpus}"')

    assert recogniser(PodReserved)(body) is None
    with pytest.raises(InputError):
        decode_event(PodReserved.event_type, body)


@pytest.mark.parametrize("bounds", sorted({bounds_of(name) for name in (*_FIELDS, "any")}), ids=str)
@given(data=st.data())
def test_a_number_is_recognised_within_its_bounds_alone(
    bounds: tuple[int, int], data: st.DataObject
) -> None:
    """At each end, one beyond it, and anywhere: as JSON writes it and in no other way."""
    low, high = bounds
    match = re.compile(_digits(low, high)).fullmatch
    drawn = data.draw(st.integers(low - 10, high + 10) | st.integers(-(2**70), 2**70))
    for value in (low - 1, low, low + 1, -1, 0, 1, high - 1, high, high + 1, high * 10, drawn):
        assert bool(match(str(value))) == (low <= value <= high), value
    for text in ("-0", "00", "01", "+1", "1.0", "1e3", ""):
        assert match(text) is None
