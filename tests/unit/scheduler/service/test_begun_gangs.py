"""Members of a gang that is being bound, or was when another process took over."""

from __future__ import annotations

import asyncio

import pytest

from ledger.domain.log.events import PodBound, PodReserved, PodVoided
from scheduler.decide.group.life import DEADLINE
from tests.support.grouped import Scene
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
