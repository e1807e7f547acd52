from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from ledger.domain.errors import (
    CapacityError,
    FencedError,
    LedgerError,
    NotAfterError,
    OverloadedError,
    StaleStreamError,
    UnknownOutcomeError,
)
from ledger.domain.log.events import PodReserved, PodVoided
from ledger.store.writing.commands import Refused
from scheduler.bind.protocol import DEPOSED, ELSEWHERE, GONE, GONE_UNSEEN, MOVED, UNSETTLED
from scheduler.service.binding import (
    ANSWER_SECONDS,
    NODE_MOVED,
    TOO_MANY,
    UNDER_WAY,
    UNKNOWN_POD,
    fence,
)
from tests.support import binding, fake_api
from tests.support.binding import CALL, PATH, Scene, play, standing_of
from tests.support.fake_api import ANSWERED, DROPPED, LATE
from tests.support.loops import run_in_virtual_time
from tests.support.stores import observed, reserved, share

BOUND: Final = ["pod.reserved", "pod.bound"]
VOIDED: Final = ["pod.reserved", "pod.voided"]
STALE: Final = Refused(error=StaleStreamError(stream="node/uid-n-1", expected_version=1))
Fates = Sequence[str | int]
Before = Callable[[Scene], None]


def nothing(scene: Scene) -> None:
    """Leave the world as it is."""


def gone(scene: Scene) -> None:
    """Delete the Pod; our watch does not know yet."""
    scene.server.delete(PATH)


def recreated(scene: Scene) -> None:
    """Delete the Pod and create another one under its name."""
    scene.server.delete(PATH)
    scene.server.put(PATH, fake_api.pod("p", "uid-q"))


def touched(scene: Scene) -> None:
    """Patch the Pod; our watch does not know yet."""
    scene.touch()


def deleting(scene: Scene) -> None:
    """Begin to delete the Pod."""
    scene.server.change(
        PATH, lambda pod: pod["metadata"].update(deletionTimestamp="2026-01-05T14:00:00Z")
    )


def bound_elsewhere(scene: Scene) -> None:
    """Let somebody else bind the Pod."""
    scene.server.change(PATH, lambda pod: pod["spec"].update(nodeName="n-2"))


def bare(scene: Scene) -> None:
    """Take all annotations off the Pod."""
    scene.server.change(PATH, lambda pod: pod["metadata"].pop("annotations"))
    scene.books.seen["uid-p"] = scene.pod["metadata"]["resourceVersion"]


REFUSED: Final = f"{UNSETTLED}: the API refused"
CALLS: Final[dict[str, tuple[Before, Fates, str, list[str]]]] = {
    "all goes well": (nothing, [], "", BOUND),
    "the answer is lost": (nothing, [fake_api.LOST], "", BOUND),
    "it never arrived": (nothing, [DROPPED], UNSETTLED, VOIDED),
    "it arrives when its reservation is void": (nothing, [LATE], UNSETTLED, VOIDED),
    "500": (nothing, [500], UNSETTLED, VOIDED),
    "429": (nothing, [429], REFUSED, VOIDED),
    "429 for longer": (nothing, [429, 429, 429], REFUSED, VOIDED),
    "422": (nothing, [422], REFUSED, VOIDED),
    "403 for the fence, for a while": (nothing, [DROPPED, 403, ANSWERED, 403], UNSETTLED, VOIDED),
    "the fence is lost": (nothing, [DROPPED, fake_api.LOST], UNSETTLED, VOIDED),
    "the fence never arrived": (nothing, [fake_api.LOST, DROPPED], "", BOUND),
    "the fence arrives late": (nothing, [DROPPED, LATE], UNSETTLED, VOIDED),
    "a Pod without annotations": (bare, [DROPPED], UNSETTLED, VOIDED),
    "the Pod is gone": (gone, [], GONE, VOIDED),
    "the Pod is gone, and nobody says so": (gone, [DROPPED], GONE_UNSEEN, VOIDED),
    "the Pod was re-created under its name": (recreated, [], GONE, VOIDED),
    "and nobody says so": (recreated, [DROPPED], GONE_UNSEEN, VOIDED),
    "the Pod is being deleted": (deleting, [], GONE, VOIDED),
    "somebody else bound it": (bound_elsewhere, [], ELSEWHERE, VOIDED),
    "the version alone moved": (touched, [], "", [*VOIDED, *BOUND]),
}


@pytest.mark.parametrize(("before", "fates", "error", "said"), CALLS.values(), ids=CALLS)
def test_every_failure_of_the_api_ends_as_the_contract_says(
    before: Before, fates: Fates, error: str, said: list[str]
) -> None:
    """Bound by the ledger if and only if the Pod is; nothing is left reserved."""

    async def act(scene: Scene) -> None:
        before(scene)
        scene.fates.extend(fates)
        scene.binder.answer_seconds = 600

        assert await scene.binder.bind(CALL) == error
        await asyncio.sleep(100)  # what is late has come
        assert scene.said == said
        found = scene.server.read(PATH)
        if found is not None and found["metadata"]["uid"] == "uid-p" and error != ELSEWHERE:
            assert (found["spec"].get("nodeName") == "n-1") is (error == "")

    play(act)


@pytest.mark.parametrize("other", [{"pod_name": "q"}, {"namespace": "team-b"}], ids=str)
def test_a_pod_is_not_bound_by_the_name_of_another_one(other: dict[str, str]) -> None:
    """Nothing is reserved or tried for it, and the Pod's own call waits for nothing."""

    async def act(scene: Scene) -> None:
        scene.fates.extend([400] * 20)
        asked = asyncio.ensure_future(scene.binder.bind(replace(CALL, **other)))
        await asyncio.sleep(0)
        assert asked.done()
        assert await asked == UNKNOWN_POD
        assert (scene.api.calls, scene.ledger.asked) == ([], [])
        scene.fates.clear()
        assert await scene.binder.bind(CALL) == ""

    play(act)


@pytest.mark.parametrize("status", [403, 422, 429])
def test_who_refused_a_binding_is_told_in_the_ledger_to_the_pod_and_in_a_count(
    status: int,
) -> None:
    """In the API server's words."""

    async def act(scene: Scene) -> None:
        scene.fates.append(status)
        assert await scene.binder.bind(CALL) == REFUSED
        event = scene.ledger.events[-1].event
        assert isinstance(event, PodVoided)
        assert event.reason == REFUSED
        assert scene.binder.refusals == {str(status): 1}
        await scene.binder.telling.send()
        [said] = [value for path, value in scene.server.objects.items() if "/events/" in path]
        assert (said["reason"], said["type"]) == ("BindingRefused", "Warning")
        assert (said["note"], said["regarding"]["uid"]) == ("the API refused", "uid-p")

    play(act)


def test_who_refused_a_binding_to_a_node_that_gives_by_number_is_told_too() -> None:
    """To the Pod and in a count; nothing of it is held, and nothing is recorded."""

    async def act(scene: Scene) -> None:
        scene.books.counted.append(observed("p", unknown_types=("gpu",), counted={"gpu": 1}))
        scene.fates.append(403)
        assert await scene.binder.bind(CALL) == "the API refused"
        assert (scene.books.counted, scene.ledger.events) == ([], [])
        assert scene.binder.refusals == {"403": 1}
        await scene.binder.telling.send()
        [said] = [value for path, value in scene.server.objects.items() if "/events/" in path]
        assert (said["reason"], said["note"]) == ("BindingRefused", "the API refused")

    play(act)


def test_a_version_that_moved_is_counted_and_no_event() -> None:
    """The protocol expects it, and binds at the next try."""

    async def act(scene: Scene) -> None:
        touched(scene)
        assert not await scene.binder.bind(CALL)
        assert scene.binder.refusals == {"409": 1}
        await scene.binder.telling.send()
        assert not any("/events/" in path for path in scene.server.objects)

    play(act)


def test_a_binding_says_what_was_reserved_and_where() -> None:
    """Annotations and node in one step, the proof among them; every event is the service's own."""

    async def act(scene: Scene) -> None:
        await scene.binder.bind(CALL)

        annotations = scene.pod["metadata"]["annotations"]
        assert annotations["scheduling.koordinator.sh/device-allocated"] == "{}"
        assert '"position":1' in annotations["tenure.sh/proof"]
        assert [each.actor for each in scene.ledger.events] == ["scheduler/test"] * 2
        assert [each.idempotency_key for each in scene.ledger.events] == [
            "reserve:uid-p:1",
            "bind:uid-p:1",
        ]
        event = scene.ledger.events[0].event
        assert isinstance(event, PodReserved)
        assert event.resource_version == "1"

    play(act)


def test_a_version_that_keeps_moving_is_tried_three_times() -> None:
    """Kube-scheduler may patch the Pod between filter and bind; nobody does so without end."""

    async def act(scene: Scene) -> None:
        def fate(verb: str) -> str:
            if verb == "create":
                scene.touch()
            return ANSWERED

        scene.api.fate = fate

        assert await scene.binder.bind(CALL) == MOVED
        assert scene.said == VOIDED * 3
        assert [verb for verb, _ in scene.api.calls].count("create") == 3
        assert scene.books.versions == ["1", "2", "3"]

    play(act)


LOST: Final = binding.LOST
DOWN: Final = LedgerError("the database is down")
RECORDS: Final[dict[str, tuple[Sequence[Any], str, list[str]]]] = {
    "the reservation's answer is lost": ([LOST], "", BOUND),
    "and then too many wait": ([LOST, OverloadedError("many")], "", BOUND),
    "and then it is down": ([LOST, DOWN, DOWN], "", BOUND),
    "it was lost itself": ([UnknownOutcomeError("lost")], "", BOUND),
    "it was lost, and the card was taken meanwhile": (
        [UnknownOutcomeError("lost"), Refused(error=CapacityError("held"))],
        "held",
        [],
    ),
    "too many wait": ([OverloadedError("many")], "many", []),
    "it is down": ([DOWN], "the database is down", []),
    "the card is held": ([Refused(error=CapacityError("held"))], "held", []),
    "the node moved on": ([STALE, STALE], "", BOUND),
    "the node keeps moving": ([STALE, STALE, STALE], NODE_MOVED, []),
    "what it counted is not recorded": ([Refused(error=NotAfterError("p"))], "", BOUND),
    "another leads": ([FencedError("epoch")], DEPOSED, []),
    "the word that it is bound is lost": ([*[ANSWERED], LOST], "", BOUND),
    "the word that it is bound meets a ledger that is down": ([ANSWERED, DOWN, DOWN], "", BOUND),
    "another leads since the Binding": (
        [ANSWERED, FencedError("epoch")],
        DEPOSED,
        ["pod.reserved"],
    ),
}


@pytest.mark.parametrize(("fates", "error", "said"), RECORDS.values(), ids=RECORDS)
def test_every_failure_of_the_ledger_is_met(
    fates: Sequence[Any], error: str, said: list[str]
) -> None:
    """What may be recorded is asked again with the same words; what was not is given back."""

    async def act(scene: Scene) -> None:
        scene.ledger.fates.extend(fates)
        scene.binder.answer_seconds = 600

        assert await scene.binder.bind(CALL) == error
        assert scene.said == said
        assert (scene.books.by == "uid-p") is bool(said)
        keys = [each.events[-1] for each in scene.ledger.asked]
        assert len({(each.idempotency_key, repr(each.event)) for each in keys}) <= 2

    play(act)


def test_the_same_call_again_joins_the_one_under_way() -> None:
    """Kube-scheduler repeats a call whose answer it lost; one Binding is sent."""

    async def act(scene: Scene) -> None:
        answers = await asyncio.gather(*(scene.binder.bind(CALL) for _ in range(3)))

        assert answers == [""] * 3
        assert await scene.binder.bind(CALL) == ""
        assert [verb for verb, _ in scene.api.calls] == ["create"]

    play(act)


def test_another_node_waits_for_the_first() -> None:
    """One Pod, one reservation: the second call is told where the Pod went."""

    async def act(scene: Scene) -> None:
        other = replace(CALL, node_name="n-2")

        first, second = await asyncio.gather(scene.binder.bind(CALL), scene.binder.bind(other))
        assert (first, second) == ("", ELSEWHERE)
        assert await scene.binder.bind(other) == ELSEWHERE
        assert scene.said == BOUND

    play(act)


def test_another_node_gets_the_pod_once_the_first_is_void() -> None:
    """Fence, read, void, and only then the second reservation."""

    async def act(scene: Scene) -> None:
        scene.fates.append(DROPPED)
        scene.binder.answer_seconds = 600
        other = replace(CALL, node_name="n-2")
        first = asyncio.ensure_future(scene.binder.bind(CALL))
        await asyncio.sleep(0.1)
        scene.books.seen["uid-p"] = "2"  # as the watch tells after the fence

        assert await scene.binder.bind(other) == ""
        assert await first == UNSETTLED
        assert scene.said == [*VOIDED, *BOUND]
        assert scene.pod["spec"]["nodeName"] == "n-2"

    play(act)


def test_kube_scheduler_is_answered_in_time_and_the_protocol_goes_on() -> None:
    """The answer comes before its time-out; what is under way ends behind it."""

    async def act(scene: Scene) -> None:
        scene.fates.extend([DROPPED] * 8)  # two seconds each
        began = asyncio.get_running_loop().time()

        assert await scene.binder.bind(CALL) == UNDER_WAY
        assert asyncio.get_running_loop().time() - began == pytest.approx(ANSWER_SECONDS)
        assert scene.binder.is_under_way("uid-p")
        await scene.tasks.all_done()
        assert not scene.binder.is_under_way("uid-p")
        assert scene.said == VOIDED

    play(act)


def test_too_many_at_once_are_turned_away() -> None:
    """Bounded: the answer comes at once, and nothing is begun."""

    async def act(scene: Scene) -> None:
        scene.binder.binds_max = 1
        scene.fates.append(DROPPED)
        first = asyncio.ensure_future(scene.binder.bind(CALL))
        await asyncio.sleep(0.1)

        assert await scene.binder.bind(replace(CALL, pod_name="q", pod_uid="uid-q")) == TOO_MANY
        await first

    play(act)


def test_a_pod_that_the_watch_does_not_know_is_read() -> None:
    """Kube-scheduler may have heard of it before us."""

    async def act(scene: Scene) -> None:
        scene.books.seen.clear()

        assert await scene.binder.bind(CALL) == ""
        assert await scene.binder.bind(replace(CALL, pod_uid="uid-other")) == UNKNOWN_POD

    play(act)


def test_what_nobody_knows_to_be_bound_is_settled() -> None:
    """After a takeover: fenced and read; a call for it meanwhile joins."""

    async def act(scene: Scene) -> None:
        event = reserved("p", share(0, 100), resource_version="1")
        scene.books.open["uid-p"] = standing_of(event)
        scene.books.by = "uid-p"

        scene.binder.settle(scene.books.open["uid-p"])
        scene.binder.settle(scene.books.open["uid-p"])  # again changes nothing
        assert await scene.binder.bind(CALL) == UNSETTLED
        assert scene.said == ["pod.voided"]
        assert [verb for verb, _ in scene.api.calls] == ["patch", "read"]

    play(act)


def test_a_call_settles_what_stands_in_its_way() -> None:
    """A reservation that nobody is at is nobody's to leave."""

    async def act(scene: Scene) -> None:
        scene.books.open["uid-p"] = standing_of(reserved("p", share(0, 100), node="n-2"))
        scene.books.by = "uid-p"
        scene.books.numbers["uid-p"] = 1
        scene.books.seen["uid-p"] = "2"  # after the fence

        assert await scene.binder.bind(CALL) == ""
        assert scene.said == ["pod.voided", *BOUND]
        assert scene.books.numbers["uid-p"] == 2

    play(act)


def test_an_error_of_ours_is_heard() -> None:
    """Who waits does not wait for ever, and the process ends."""

    async def main() -> None:
        scene = Scene()
        scene.ledger.fates.append(ZeroDivisionError("ours"))

        with pytest.raises(ZeroDivisionError):
            await scene.binder.bind(CALL)
        assert len(scene.tasks.failed) == 1

    run_in_virtual_time(main())


def test_a_fence_moves_every_attempt_by_a_value_of_its_own() -> None:
    """A patch that changes nothing would move no version."""

    async def act(scene: Scene) -> None:
        scene.binder.answer_seconds = 600
        for _ in range(2):
            scene.fates.append(DROPPED)
            assert await scene.binder.bind(CALL) == UNSETTLED
            scene.books.seen["uid-p"] = scene.pod["metadata"]["resourceVersion"]

        assert scene.pod["metadata"]["annotations"]["tenure.sh/fence"] == "3/2"
        assert scene.server.written == [("patch", PATH)] * 2

    play(act)


def test_a_fence_overwrites_no_annotation() -> None:
    """Where a Pod had none when it was read, it gets ours only while it has none."""
    seen = {"metadata": {"resourceVersion": "7"}}

    assert fence("u", "1/1", seen) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/metadata/annotations", "value": {"tenure.sh/fence": "1/1"}},
    ]
    assert fence("u", "1/1", None)[1] == {
        "op": "add",
        "path": "/metadata/annotations/tenure.sh~1fence",
        "value": "1/1",
    }
