"""The request in a ledger: all of it, in one text, of a version that is known."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.events import PodReserved, RequestDescribed, decode_event, encode_event
from ledger.domain.log.recorded_request import (
    RecordedRequest,
    recorded_request,
    request_digest,
    request_from,
)
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.request.requests import DeviceDemand, PlacementRules, PodRequest

ASKED = PodRequest(
    uid="u",
    namespace="ml",
    name="p",
    cpu_milli=2_000,
    memory_bytes=1 << 30,
    devices=(DeviceDemand(device_type="gpu", count=1, core_percent=40, model_names=("A10",)),),
    placement=PlacementRules(node_selector=(("zone", "a"),)),
)


def test_every_field_of_a_request_is_recorded() -> None:
    """In the value, or beside it in the event: a field that is new is in neither and fails here."""
    fields = {field.name for field in dataclasses.fields(PodRequest)}
    recorded = {field.name for field in dataclasses.fields(RecordedRequest)} - {"version"}

    assert recorded < fields
    for name in fields - recorded - {"uid", "name"}:
        assert name in PodReserved.__struct_fields__


def test_a_request_comes_back_whole() -> None:
    """With what the event of its Pod says beside it; Pods that differ in that alone are a kind."""
    again = request_from(
        recorded_request(ASKED),
        uid="u",
        namespace="ml",
        name="p",
        cpu_milli=2_000,
        memory_bytes=1 << 30,
        snapshot=ASKED.snapshot,
    )
    other = dataclasses.replace(ASKED, uid="v", cpu_milli=3_000)

    assert again == ASKED
    assert request_digest(recorded_request(other)) == request_digest(recorded_request(ASKED))


def body(**changes: object) -> str:
    """Return the body of a description with other words in its request."""
    words = json.loads(encode_event(RequestDescribed(request=recorded_request(ASKED))))
    words["request"] |= changes
    return canonical_json(words)


def test_what_is_at_its_default_is_left_out() -> None:
    """A plain request has few words, and is read again."""
    words = json.loads(body())["request"]

    assert words == {
        "devices": [{"core_percent": 40, "count": 1, "device_type": "gpu", "model_names": ["A10"]}],
        "placement": {"node_selector": [["zone", "a"]]},
        "version": 1,
    }
    event = decode_event(RequestDescribed.event_type, body())
    assert isinstance(event, RequestDescribed)
    assert event.request == recorded_request(ASKED)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"gang": None}, "one form"),
        ({"mgpu_multi": False}, "one form"),
        ({"devices": []}, "one form"),
        ({"partition": {"ring_bus_bandwidth": "1024Mi"}}, "one form"),
        ({"kubelet_cpus": [{"cpus": -1, "kind": "app"}]}, "expected `int` [<>]="),
        ({"gpushare_units": 2**53 - 1, "burst_milli": -1}, "expected `int` [<>]="),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"dialect": "klingon"}, "invalid enum value"),
        ({"version": True}, "expected `int`"),
    ],
)
def test_another_text_for_the_same_request_is_no_request(
    changes: dict[str, object], fact: str
) -> None:
    """One value has one text, or its digest means nothing."""
    with pytest.raises(InputError, match=fact):
        decode_event(RequestDescribed.event_type, body(**changes))


@pytest.mark.parametrize("version", [0, 2])
def test_a_request_of_another_version_stops_the_reader(version: int) -> None:
    """It has a version of its own, beside that of the event; never guess what it means."""
    with pytest.raises(UnknownEventError, match=f"of another version: version={version}"):
        decode_event(RequestDescribed.event_type, body(version=version))
