from __future__ import annotations

import asyncio
from collections import deque

import pytest

from certs.ports import ApiError
from scheduler.service.telling import (
    AGAIN_SECONDS,
    BURST,
    NORMAL,
    NOTE_BYTES_MAX,
    SUBJECTS_MAX,
    WAITING_MAX,
    Subject,
    Telling,
    about_node,
    about_pod,
)
from tests.support import fake_api
from tests.support.fake_api import ApiClient, ApiServer, Json
from tests.support.live import StillClock

POD = about_pod("ml", "train-0", "uid-train-0")
EVENTS = "/apis/events.k8s.io/v1/namespaces"


class Scene:
    """Somebody who tells, and an API server that may fail."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.server = ApiServer()
        self.fates: deque[str | int] = deque()
        api = ApiClient(
            self.server,
            self._sleep,
            fate=lambda _: self.fates.popleft() if self.fates else fake_api.ANSWERED,
        )
        self.telling = Telling(api=api, clock=self.clock, reporter="scheduler/one")

    async def _sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)

    def tell(self, note: str, about: Subject = POD, reason: str = "Waits") -> None:
        """Say something."""
        self.telling.tell(about, reason, note, action="Scheduling")

    def send(self) -> None:
        """Write what is due."""
        asyncio.run(self.telling.send())

    @property
    def events(self) -> list[Json]:
        """What the API server has."""
        return list(self.server.objects.values())

    @property
    def notes(self) -> list[tuple[str, int]]:
        """What people read, and how often each was said."""
        return [(one["note"], one.get("series", {}).get("count", 1)) for one in self.events]


def test_an_event_says_who_when_what_and_of_whom() -> None:
    """In the form that the API server takes: a Pod's in its namespace."""
    scene = Scene()
    scene.telling.tell(POD, "Bound", "has GPU 3", action="Binding", kind=NORMAL)
    scene.send()
    [event] = scene.events
    name = event["metadata"].pop("name")
    assert name.startswith("train-0.")
    assert event["metadata"].pop("resourceVersion")
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ml"},
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "reportingController": "tenure.sh/scheduler",
        "reportingInstance": "scheduler/one",
        "action": "Binding",
        "reason": "Bound",
        "type": "Normal",
        "note": "has GPU 3",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ml",
            "name": "train-0",
            "uid": "uid-train-0",
        },
    }
    assert list(scene.server.objects) == [f"{EVENTS}/ml/events/{name}"]


def test_a_nodes_event_is_in_the_namespace_that_the_api_server_wants() -> None:
    """A Node is in none, and its Events are in `default`."""
    scene = Scene()
    scene.tell("has a fault", about_node("gpu-a", "uid-a"))
    scene.send()
    [path] = scene.server.objects
    assert path.startswith(f"{EVENTS}/default/events/gpu-a.")
    assert "namespace" not in scene.events[0]["regarding"]


def test_what_is_said_again_within_a_while_is_counted_in_the_same_event() -> None:
    """However often: one Event, written twice."""
    scene = Scene()
    for _ in range(5):
        scene.tell("no card is free")
        scene.send()
    assert scene.notes == [("no card is free", 1)]
    scene.clock.now += AGAIN_SECONDS
    scene.send()
    assert scene.notes == [("no card is free", 5)]
    scene.clock.now += AGAIN_SECONDS
    scene.send()
    assert scene.notes == [("no card is free", 5)]


def test_other_words_wait_for_their_time_and_the_newest_count() -> None:
    """What was true in between helps nobody."""
    scene = Scene()
    for note in ("one", "two", "three"):
        scene.tell(note)
        scene.send()
    scene.clock.now += AGAIN_SECONDS
    scene.send()
    assert [note for note, _ in scene.notes] == ["one", "three"]


def test_an_event_that_the_api_server_has_forgotten_is_written_anew() -> None:
    """It keeps them for an hour."""
    scene = Scene()
    scene.tell("no card is free")
    scene.send()
    scene.server.objects.clear()
    scene.clock.now += AGAIN_SECONDS
    scene.tell("no card is free")
    scene.send()
    assert scene.notes == [("no card is free", 1)]


def test_of_many_subjects_only_so_many_are_written_in_a_second() -> None:
    """A storm of refusals is no storm of calls."""
    scene = Scene()
    for number in range(200):
        scene.tell("waits", about_pod("ml", f"p{number}", f"uid-{number}"))
    scene.send()
    assert len(scene.events) == BURST
    scene.clock.now += 1
    scene.send()
    assert len(scene.events) == BURST + 10


def test_what_waits_and_what_is_remembered_is_bounded_and_the_rest_is_counted() -> None:
    """Memory too."""
    scene = Scene()
    for number in range(WAITING_MAX + 7):
        scene.tell("waits", about_pod("ml", f"p{number}", f"uid-{number}"))
    assert scene.telling.counts == {"dropped": 7}
    for number in range(SUBJECTS_MAX + 10):
        scene.tell("waits", about_pod("ml", f"q{number}", f"uid-q{number}"))
        scene.clock.now += 1
        scene.send()
    assert len(scene.telling._said) <= SUBJECTS_MAX


@pytest.mark.parametrize("fate", [fake_api.DROPPED, 500, 429])
def test_what_the_api_could_not_take_is_written_later(fate: str | int) -> None:
    """It is away, and comes back."""
    scene = Scene()
    scene.tell("no card is free")
    scene.fates.append(fate)
    with pytest.raises(ApiError):
        scene.send()
    scene.clock.now += AGAIN_SECONDS
    scene.send()
    assert scene.notes == [("no card is free", 1)]


def test_what_the_api_refuses_is_dropped() -> None:
    """Its namespace is gone, or we have no right to."""
    scene = Scene()
    scene.tell("no card is free")
    scene.fates.append(403)
    scene.send()
    scene.clock.now += AGAIN_SECONDS
    scene.send()
    assert scene.events == []
    assert scene.telling.counts == {"dropped": 1}


def test_a_note_is_cut_to_what_the_api_server_takes() -> None:
    """By bytes, and not within a character."""
    scene = Scene()
    scene.tell("ü" * NOTE_BYTES_MAX)
    scene.send()
    [(note, _)] = scene.notes
    assert len(note.encode()) <= NOTE_BYTES_MAX
    assert note.endswith("ü...")
