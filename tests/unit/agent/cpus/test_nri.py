"""Our plugin beside a runtime that registers it, calls it, ends, or loses patience."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agent.cpus.nri import (
    LOST_MAX,
    LOST_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    STEADY_SECONDS,
    Nri,
    Snapshot,
    Standing,
    pause_after,
)
from agent.cpus.nri_messages import Bound, Call, Happening, message
from ledger.domain.cpuset import parse_cpuset
from tests.support.fake_runtime import FakeRuntime, call

OWN = Bound(cpus=parse_cpuset("2-3"))
SNAPSHOT = Snapshot(bound={("lsr", "main"): OWN})
CREATE = call("lsr", "main", identity="one")
AWHILE = 0.2
"""Long enough for many tries, of which there must be none."""


@dataclass(slots=True)
class World:
    """A plugin and its runtime."""

    runtime: FakeRuntime
    nri: Nri
    calls: list[Call | None] = field(default_factory=list)
    now: float = 0.0

    def has_reason(self, words: str) -> bool:
        """Tell whether the state's reason has these words."""
        return words in self.nri.state.words

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - what is waited for happens in another thread
                await asyncio.sleep(0.005)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Run a plugin beside a runtime that is not there yet."""
    calls: list[Call | None] = []
    made: World
    nri = Nri(folder / "nri.sock", calls.append, clock=lambda: made.now, pause=lambda *_: 0.01)
    made = World(runtime=FakeRuntime(folder / "nri.sock"), nri=nri, calls=calls)
    nri.publish(SNAPSHOT)
    running = asyncio.create_task(nri.run())
    try:
        yield made
        assert not running.done(), running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def within(folder: Path, test: Callable[[World], Awaitable[None]]) -> None:
    """Run a test in its world."""

    async def whole() -> None:
        async with world(folder) as made:
            await test(made)

    asyncio.run(whole())


def cpus_in(answer: bytes | None) -> str:
    """Return the CPUs of an answer to CreateContainer."""
    assert answer is not None
    read = message("CreateContainerResponse").FromString(answer)
    return str(read.adjust.linux.resources.cpu.cpus)


def test_a_container_is_bound_by_the_runtime(tmp_path: Path) -> None:
    """Registered, configured, synchronized, called; what it did is an event in the loop."""

    async def test(made: World) -> None:
        async with made.runtime.running():
            plugin = await made.runtime.plugin()
            assert plugin.name == "99-tenure"
            await made.until(lambda: made.nri.state.reason is Standing.ON)
            assert cpus_in(await plugin.call("CreateContainer", CREATE)) == "2-3"
            await made.until(lambda: any(one and one.container == "main" for one in made.calls))

            made.nri.publish(Snapshot(bound={("lsr", "main"): Bound(cpus=parse_cpuset("4"))}))
            await plugin.call("PostStartContainer", CREATE)
            assert cpus_in(await plugin.call("CreateContainer", CREATE)) == "4"

    within(tmp_path, test)


def test_a_pod_is_an_event_after_its_answer(tmp_path: Path) -> None:
    """Its cgroup is written while the runtime does not wait."""

    async def test(made: World) -> None:
        async with made.runtime.running():
            plugin = await made.runtime.plugin()
            assert await plugin.call("RunPodSandbox", call("lsr")) == b""

            def came() -> bool:
                calls = [one.happening for one in made.calls if one]
                return calls == [Happening.RUN_POD_SANDBOX]

            await made.until(came)

    within(tmp_path, test)


def test_an_error_of_ours_fails_no_container(tmp_path: Path) -> None:
    """It is answered empty, and the next call is answered as always."""

    async def test(made: World) -> None:
        async with made.runtime.running():
            plugin = await made.runtime.plugin()
            assert await plugin.call("CreateContainer", b"\xff\xff") == b""
            made.nri.publish(None)  # type: ignore[arg-type]
            assert await plugin.call("CreateContainer", CREATE) == b""
            made.nri.publish(SNAPSHOT)
            assert cpus_in(await plugin.call("CreateContainer", CREATE)) == "2-3"

    within(tmp_path, test)


def test_a_runtime_that_starts_again_is_joined_again(tmp_path: Path) -> None:
    """And everything is looked at anew."""

    async def test(made: World) -> None:
        for _ in range(3):
            async with made.runtime.running():
                made.calls.clear()
                plugin = await made.runtime.plugin()
                await made.until(lambda: made.nri.state.reason is Standing.ON)
                assert cpus_in(await plugin.call("CreateContainer", CREATE)) == "2-3"
                await made.until(lambda: None in made.calls)
                plugin.close()
            await made.until(lambda: made.nri.state.reason is Standing.AWAY)

    within(tmp_path, test)


def test_before_the_first_snapshot_the_runtime_does_not_know_us(tmp_path: Path) -> None:
    """A node whose label does not permit it has no plugin of ours."""

    async def whole() -> None:
        runtime = FakeRuntime(tmp_path / "nri.sock")
        nri = Nri(runtime.path, lambda _: None)
        async with runtime.running():
            running = asyncio.create_task(nri.run())
            await asyncio.sleep(AWHILE)
            assert runtime.connected.empty()
            nri.publish(SNAPSHOT)
            await runtime.plugin()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(whole())


def test_no_runtime_is_a_reason(tmp_path: Path) -> None:
    """With the system's own words; so is one that takes no plugin."""

    async def test(made: World) -> None:
        await made.until(lambda: "No such file" in made.nri.state.words)
        assert made.nri.state.reason is Standing.AWAY
        made.runtime.refuses = True
        async with made.runtime.running():
            await made.until(lambda: "no plugins here (code 2)" in made.nri.state.words)

    within(tmp_path, test)


def test_a_runtime_that_speaks_something_else_is_left(tmp_path: Path) -> None:
    """Nothing of it is kept, and the next one is answered."""

    async def test(made: World) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(made.runtime.path))
            listening.listen(1)
            listening.settimeout(0)
            accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            with accepted:
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                await made.until(lambda: "too long" in made.nri.state.words)
        async with made.runtime.running():
            await made.runtime.plugin()

    within(tmp_path, test)


async def lose(made: World) -> None:
    """Let the runtime give up an answer of ours: it has closed before we read the call."""
    plugin = await made.runtime.plugin()
    await made.until(lambda: made.nri.state.reason is Standing.ON)
    entered, goes_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(dict[tuple[str, str], Bound]):
        def get(self, *_: object) -> None:  # type: ignore[override]
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result()

    made.nri.publish(Snapshot(bound=Slow()))
    asked = asyncio.create_task(plugin.call("CreateContainer", CREATE, seconds=0.05))
    await entered.wait()
    assert await asked is None
    await plugin.writer.wait_closed()
    goes_on.set()
    made.nri.publish(SNAPSHOT)


def test_after_three_lost_answers_in_ten_minutes_it_stays_off(tmp_path: Path) -> None:
    """The node's containers are no longer delayed by us; a new start of the process tries again."""

    async def test(made: World) -> None:
        async with made.runtime.running():
            for number in range(1, LOST_MAX):
                await lose(made)
                words = f"times={number}"
                await made.until(partial(made.has_reason, words))
            await lose(made)
            await made.until(lambda: made.nri.state.reason is Standing.OFF)
            await asyncio.sleep(AWHILE)
            assert made.runtime.connected.empty()

    within(tmp_path, test)


def test_lost_answers_over_more_than_ten_minutes_count_alone(tmp_path: Path) -> None:
    """A machine that is slow once an hour keeps its plugin."""

    async def test(made: World) -> None:
        async with made.runtime.running():
            for _ in range(LOST_MAX + 1):
                await lose(made)
                await made.until(lambda: "times=1" in made.nri.state.words)
                made.now += LOST_SECONDS
            plugin = await made.runtime.plugin()
            assert cpus_in(await plugin.call("CreateContainer", CREATE)) == "2-3"

    within(tmp_path, test)


def test_beside_another_plugin_we_withdraw(tmp_path: Path) -> None:
    """Its container is made as that one wants, and we are gone until the process starts again."""

    async def test(made: World) -> None:
        async with made.runtime.running():
            plugin = await made.runtime.plugin()
            theirs = call("lsr", "main", identity="one", cpus="0")
            assert await plugin.call("CreateContainer", theirs) == b""
            await made.until(lambda: made.nri.state.reason is Standing.WITHDRAWN)
            assert "another NRI plugin" in made.nri.state.words
            assert await plugin.reader.read() == b""
            await asyncio.sleep(AWHILE)
            assert made.runtime.connected.empty()

    within(tmp_path, test)


def test_a_process_that_ends_leaves_at_once(tmp_path: Path) -> None:
    """Also while nothing is said."""

    async def whole() -> None:
        async with asyncio.timeout(60):
            runtime = FakeRuntime(tmp_path / "nri.sock")
            async with runtime.running():
                async with world(tmp_path):
                    plugin = await runtime.plugin()
                assert await plugin.reader.read() == b""

    asyncio.run(whole())


def test_pauses_grow_to_a_bound() -> None:
    """Until a connection has lasted."""
    pauses = [pause_after(0.0, 0.0)]
    while pauses[-1] < PAUSE_SECONDS_MAX:
        pauses.append(pause_after(pauses[-1], 0.0))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert pause_after(PAUSE_SECONDS_MAX, STEADY_SECONDS) == PAUSE_SECONDS
