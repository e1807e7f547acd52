"""Members of a gang that is being bound, or was when another process took over."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from ledger.domain.log.events import PodBound, PodReserved, PodVoided
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.group.life import DEADLINE
from scheduler.service.ports import BindCall
from scheduler.service.starts import ELSEWHERE
from tests.support.grouped import GANG, Scene
from tests.support.objects import node as node_object
from tests.unit.scheduler.service.test_permits import Start


def bound(scene: Scene, event: PodReserved) -> None:
    """Let it be recorded that a Pod was bound by a reservation."""
    done = PodBound(pod_uid=event.pod_uid, attempt=event.attempt, node_uid=event.node_uid)
    scene.live.ledger.log.append(done)
    scene.books.take(len(scene.live.ledger.log), done)


def taken_over() -> tuple[Start, str]:
    """Let a process die between the two Bindings of a gang; return the next, and the node left."""
    old = Start("a", "b", gpus=4).scene
    old.gang(2, 2, gpus=4)
    [where] = old.passing("gang-0")
    [other] = {"a", "b"} - {where}
    bound(old, old.reserve("gang-0", where))
    new = Start("a", "b", gpus=4, ledger=old.live.ledger)
    new.scene.live.clock.now = old.live.clock.now
    new.scene.gang(2, 2, gpus=4)
    one = new.scene.pods["gang-0"]
    new.scene.tell({**one, "spec": {**one["spec"], "nodeName": where}})
    new.scene.create("stranger", 4)
    return new, other


@pytest.mark.parametrize("is_swept", [False, True])
def test_after_a_takeover_the_rest_of_a_gang_is_bound_where_it_was_reserved(
    *, is_swept: bool
) -> None:
    """Nobody else gets the room: neither while the Pod waits, nor by the call that binds it."""
    start, other = taken_over()
    scene = start.scene

    async def act() -> None:
        standing = scene.books.standing("pod-gang-1")
        assert standing is not None
        if is_swept:
            scene.binder.settle(standing)
            await scene.tasks.all_done()
            assert scene.books.standing("pod-gang-1") == standing
        assert not scene.passing("stranger")
        await start.come("gang-1")
        await scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert start.answers() == {"gang-1": ""}
    assert start.bound()["gang-1"] == other
    assert not scene.passing("stranger")


def test_after_a_takeover_who_does_not_come_is_given_up_at_the_deadline() -> None:
    """The rest of a gang that began blocks its room no longer than its waiting time."""
    start, other = taken_over()
    start.scene.settle(11)
    assert [one.reason for one in start.scene.said(PodVoided)] == [DEADLINE]
    assert start.scene.passing("stranger") == [other]


def test_a_call_between_the_quorum_and_the_reservation_goes_on_at_once() -> None:
    """It would wait for a gang that has begun, and let it back off."""
    start = Start("a", gpus=8)
    start.scene.gang(3, 2)
    names = ("gang-0", "gang-1", "gang-2")

    async def act() -> None:
        for name in names:
            start.scene.passing(name)
        for name in names:  # in one turn of the loop
            call = BindCall(namespace="ml", pod_name=name, pod_uid=f"pod-{name}", node_name="a")
            start.calls[name] = asyncio.ensure_future(start.permits.bind(call))
        await start.turn()
        await start.scene.tasks.all_done()
        await start.wait(0.2)

    asyncio.run(act())
    assert start.answers() == dict.fromkeys(names, "")
    assert not start.scene.groups.starts.is_backing_off("gang/ml/gang")


def cordon(start: Start, where: str) -> None:
    """Let a node take nobody more, and the plans that need it end."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "koordinator.sh/gpu": "400"}
    value = node_object(where, allocatable=amounts)
    value["spec"] = {**value.get("spec", {}), "unschedulable": True}
    start.scene.live.tell("nodes", value, uid=f"uid-{where}")


def behind_the_feed(start: Start) -> asyncio.Event:
    """Let binds wait after the quorum until the event is set."""
    gate = asyncio.Event()

    async def ready(_uid: str) -> None:
        await gate.wait()

    start.scene.binder.ready = ready
    return gate


def test_what_was_permitted_is_not_begun_by_another_plan() -> None:
    """Its plan ends after the quorum. Of two members one would be bound, elsewhere."""
    start = Start("a", "b", "c", gpus=4)
    start.scene.gang(2, 2, gpus=4)

    async def act() -> None:
        gate = behind_the_feed(start)
        where = await start.come("gang-1")
        await start.come("gang-0")
        assert start.scene.groups.starts.is_coming("pod-gang-0"), "it is nobody's victim yet"
        cordon(start, where)
        await start.scene.live.inventory.settle()
        start.scene.groups.plans.review_all()
        gate.set()
        await start.scene.tasks.all_done()
        await start.turn()
        assert start.answers() == dict.fromkeys(("gang-0", "gang-1"), ELSEWHERE)
        assert not start.scene.groups.starts.is_coming("pod-gang-0")
        for name in ("gang-0", "gang-1"):
            await start.come(name, caller=f"{name} again")
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound().keys() == {"gang-0", "gang-1"}


def test_a_member_that_moves_leaves_those_that_are_permitted_where_they_are() -> None:
    """kube-scheduler keeps the third one off its planned node before anything is reserved."""
    start = Start("a", "b", "c", gpus=4)
    scene = start.scene
    scene.gang(3, 2, gpus=2)

    async def act() -> None:
        gate = behind_the_feed(start)
        for name in ("gang-0", "gang-1"):
            await start.come(name)
        request = scene.live.view.requests.by_uid("pod-gang-2")
        assert isinstance(request, PodRequest)
        place = scene.groups.groups.kept(request)
        assert place is not None
        assert scene.passing("gang-2", *({"a", "b", "c"} - {place.node_name}))
        gate.set()
        await scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert start.answers() == {"gang-0": "", "gang-1": ""}


def test_a_waiting_time_of_a_second_lets_a_gang_begin() -> None:
    """A call waits for half of it, as a review ends the plan a second before its end."""
    start = Start("a", gpus=8)
    about = {"name": "gang", "min-available": "2", "waiting-time": "1s"}
    annotations = {f"{GANG}/{key}": value for key, value in about.items()}
    for number in range(2):
        start.scene.create(f"gang-{number}", 2, annotations=annotations)

    async def act() -> None:
        for number in range(2):
            await start.come(f"gang-{number}")
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound().keys() == {"gang-0", "gang-1"}


def test_a_member_whose_caller_is_gone_comes_no_more() -> None:
    """It may be a victim at once, and its place may move."""
    start = Start()
    start.scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        start.calls["gang-0"].cancel()
        await start.turn()

    asyncio.run(act())
    assert not start.scene.groups.starts.is_coming("pod-gang-0")


def test_the_filter_of_a_member_tries_its_own_place_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each tried the places of all: a gang of 150 was not filtered by its deadline."""
    count, tries = 40, Counter[str]()
    scene = Scene(*(f"n{number}" for number in range(5)))
    scene.gang(count, count, gpus=1)
    assert scene.passing("gang-0")
    real = Engine.try_place

    def counted(engine: Engine, request: PodRequest, *more: Any, **named: Any) -> Any:  # noqa: ANN401
        tries[request.uid] += 1
        return real(engine, request, *more, **named)

    monkeypatch.setattr(Engine, "try_place", counted)
    for number in range(1, count):
        assert scene.passing(f"gang-{number}")
    assert tries.total() <= 2 * count


def test_after_a_takeover_all_that_are_left_of_a_gang_may_come_at_once() -> None:
    """None has to wait for what is recorded of another, without its room."""
    old = Scene("a")
    old.gang(4, 4)
    for number in range(4):
        old.passing(f"gang-{number}")
    bound(old, old.reserve("gang-0", "a"))
    start = Start("a", ledger=old.live.ledger)
    start.scene.gang(4, 4)
    one = start.scene.pods["gang-0"]
    start.scene.tell({**one, "spec": {**one["spec"], "nodeName": "a"}})
    left = ("gang-1", "gang-2", "gang-3")

    async def act() -> None:
        for name in left:
            call = BindCall(namespace="ml", pod_name=name, pod_uid=f"pod-{name}", node_name="a")
            start.calls[name] = asyncio.ensure_future(start.permits.bind(call))
        await start.turn()
        await start.scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert start.answers() == dict.fromkeys(left, "")
