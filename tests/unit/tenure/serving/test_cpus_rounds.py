"""In which order a round of the CPU process does what it does."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from tenure.serving.cpus import Rounds


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
    nothing: list[Any] = []
    told = SimpleNamespace(
        link=SimpleNamespace(changed=nothing), pods=SimpleNamespace(changed=nothing)
    )
    changed, _ = os.pipe()
    binder = SimpleNamespace(tree=SimpleNamespace(changed=changed), is_marked=False)

    async def test() -> None:
        switch, known = SimpleNamespace(allowed=True), SimpleNamespace(told=told)
        spoken = SimpleNamespace(soon=asyncio.Event())
        given = _any(binder), _any(switch), _any(known), _any(spoken)
        rounds = Rounds(*given, CollectorRegistry())
        waiting = asyncio.create_task(rounds._round())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not asyncio.get_running_loop().remove_reader(changed)

    asyncio.run(test())


def _any(one: object) -> Any:  # noqa: ANN401 - what plays it
    return cast("Any", one)
