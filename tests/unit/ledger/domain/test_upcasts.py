from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.events import EVENT_TYPES, LedgerRecovered, decode_event
from ledger.domain.log.upcasts import UPCASTS, Body, following, latest, upcast

SAMPLES = Path(__file__).parents[3] / "samples" / "events"


def _renamed(body: Body) -> Body:
    return {"cards": body["gpus"]}


def _listed(body: Body) -> Body:
    return {"cards": [body["cards"]]}


def _with_a_beginning(body: Body) -> Body:
    added = {"lost_incarnation": "first"}
    return {**body, **added, **({"began_at": body["lost_from"]} if "lost_from" in body else {})}


BEFORE = MappingProxyType({"ledger.recovered.v0": _with_a_beginning})
STEPS = MappingProxyType({"pod.made_up.v1": _renamed, "pod.made_up.v2": _listed})


def test_steps_follow_each_other_to_the_newest_version() -> None:
    """Version 1 passes through 2 to 3; the body that was read stays as it was."""
    body = MappingProxyType({"gpus": 4})

    assert latest("pod.made_up.v1", STEPS) == "pod.made_up.v3"
    assert upcast("pod.made_up.v1", body, STEPS) == {"cards": [4]}
    assert upcast("pod.made_up.v2", {"cards": 4}, STEPS) == {"cards": [4]}
    assert body == {"gpus": 4}


def test_a_version_without_a_step_is_read_as_it_is() -> None:
    """Also one that is newer than any step."""
    assert latest("pod.made_up.v3", STEPS) == "pod.made_up.v3"
    assert upcast("pod.made_up.v9", {"x": 1}, STEPS) == {"x": 1}
    assert following("pod.bound.v9") == "pod.bound.v10"


def test_every_older_version_has_a_stored_sample_that_reads() -> None:
    """What a release has once written is read by every later one, as today's type."""
    stored = {path.name.removesuffix(".json"): path for path in SAMPLES.iterdir()}
    older = {name for name in stored if name not in EVENT_TYPES}

    assert older == set(UPCASTS)
    for event_type in older:
        body = stored[event_type].read_text(encoding="utf-8").removesuffix("\n")
        assert type(decode_event(event_type, body)) is EVENT_TYPES[latest(event_type)]


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_no_version_below_the_newest_is_without_a_step(event_type: str) -> None:
    """A type at version N has a step from each version before it."""
    name, version = event_type.rsplit(".v", 1)

    assert all(f"{name}.v{older}" in UPCASTS for older in range(1, int(version)))


def test_an_older_body_is_read_in_todays_words() -> None:
    """A made-up version 0 knew one incarnation before its own, and no beginning."""
    event = decode_event(
        "ledger.recovered.v0", '{"incarnation":"i-2","lost_from":1001,"lost_to":1007}', BEFORE
    )

    assert event == LedgerRecovered(
        lost_from=1001, lost_to=1007, incarnation="i-2", lost_incarnation="first", began_at=1001
    )


def test_a_broken_older_body_is_named_by_the_version_it_has() -> None:
    """A step adds nothing that hides a missing required field, and reads nothing but objects."""
    with pytest.raises(InputError, match="missing required field") as caught:
        decode_event("ledger.recovered.v0", '{"incarnation":"i-2"}', BEFORE)
    assert caught.value.field == "ledger.recovered.v0"
    with pytest.raises(InputError, match="must be an object"):
        decode_event("ledger.recovered.v0", "[]", BEFORE)


def test_a_newer_version_stops_the_reader() -> None:
    """Never guess what a newer event means."""
    with pytest.raises(UnknownEventError, match=r"ledger\.recovered\.v2"):
        decode_event("ledger.recovered.v2", "{}")
    with pytest.raises(UnknownEventError, match="nonsense"):
        decode_event("nonsense", "{}")
