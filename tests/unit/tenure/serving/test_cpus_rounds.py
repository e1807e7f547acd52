"""In which order a round of the CPU process does what it does."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from ledger.domain.errors import InputError
from tenure.serving.cpus import PAUSE_SECONDS, SHARE, Rounds, rests_until


class EndedError(Exception):
    """The round has come as far as the test looks."""


def test_nobody_is_bound_any_more_before_all_is_given_back() -> None:
    """A container that the runtime makes during the round would keep its CPUs."""
    acts: list[object] = []

    async def node() -> object:
        return None

    async def say(_condition: object, *, binds: bool) -> None:
        acts.append(binds)

    def round_(*_: object, **__: object) -> None:
        acts.append("given back")
        raise EndedError

    nothing: list[Any] = []
    link, pods = SimpleNamespace(changed=nothing), SimpleNamespace(changed=nothing)
    told = SimpleNamespace(link=link, pods=pods)
    changed, _ = os.pipe()
    binder = SimpleNamespace(tree=SimpleNamespace(changed=changed), is_marked=True, round=round_)
    switch = SimpleNamespace(allowed=False, say=say)
    known = SimpleNamespace(told=told, node=node, doubted=())

    async def test() -> None:
        spoken = SimpleNamespace(soon=(soon := asyncio.Event()))
        given = _any(binder), _any(switch), _any(known), _any(spoken)
        rounds = Rounds(*given, CollectorRegistry())
        plugin = SimpleNamespace(withdraw=lambda: acts.append("withdrawn"))
        for expected in ([False, "given back"], ["withdrawn", False, "given back"]):
            acts.clear()
            soon.set()
            with suppress(EndedError):
                await rounds._round()
            assert acts == expected
            rounds.nri = _any(plugin)

    asyncio.run(test())


def test_a_round_that_is_cancelled_watches_the_tree_no_more() -> None:
    """The tree is closed next, and libuv aborts where it watches a closed descriptor."""
    changed, _ = os.pipe()

    async def test() -> None:
        rounds = _rounds(changed, asyncio.Event())
        waiting = asyncio.create_task(rounds._round())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not asyncio.get_running_loop().remove_reader(changed)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("before", "used", "expected"),
    [
        pytest.param(float("-inf"), SHARE, 100.0, id="a second's share after a quiet second"),
        pytest.param(99.8, SHARE / 10, 99.9, id="a part of it"),
        pytest.param(100.1, SHARE / 10, 100.2, id="one after the other"),
        pytest.param(100.2, 10.0, 100.0 + PAUSE_SECONDS, id="never longer than the pause"),
    ],
)
def test_rounds_rest_for_their_share_of_a_core(before: float, used: float, expected: float) -> None:
    """What a long round owes is forgotten: those after it wait no longer for it."""
    assert rests_until(before, 100.0, used) == pytest.approx(expected)


def test_a_round_that_fails_is_followed_by_a_pause() -> None:
    """The tree may have changes that only a round reads, and wake us at once."""
    changed, _ = os.pipe()

    async def node() -> object:
        raise InputError("nobody has said yet who has which CPUs")

    async def test() -> None:
        rounds = _rounds(changed, soon := asyncio.Event(), node=node)
        soon.set()
        before = time.monotonic()
        with pytest.raises(InputError):
            await rounds._round()
        assert rounds._rests_until >= before + PAUSE_SECONDS

    asyncio.run(test())


def _rounds(changed: int, soon: asyncio.Event, **known: object) -> Rounds:
    """Return rounds that may bind, of a tree that tells by a descriptor that it changed."""
    nothing: list[Any] = []
    here = SimpleNamespace(changed=nothing)
    binder = SimpleNamespace(tree=SimpleNamespace(changed=changed), is_marked=False)
    facts = SimpleNamespace(told=SimpleNamespace(link=here, pods=here), **known)
    given = _any(binder), _any(SimpleNamespace(allowed=True)), _any(facts)
    return Rounds(*given, _any(SimpleNamespace(soon=soon)), CollectorRegistry())


def _any(one: object) -> Any:  # noqa: ANN401 - what plays it
    return cast("Any", one)
