"""
Agents of many nodes in a process of their own, each with connections and an address of its own.

    python -m tests.support.played_agents --port 8444 --authority ca.crt --agents 6000

What an agent asks, when it asks again and how long it waits after a failure is the real agent's
code (`agent.service.link`); the connection below it is a plain one, for 6,000 share a core.

It answers each line of its input by a line of JSON. `cut N` first ends all connections of N agents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import ssl
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from agent.decide.confirming import AGAIN_SECONDS, Said
from agent.https import Answer, Authority, Caller, NoAnswerError
from agent.service.link import RefusedError, ServiceLink
from benchmarks.live.cluster import node_name
from tenure.serving.agent_witness import HISTORY_SECONDS

BEGINNING_MAX: Final = 8
"""Agents that begin at once: an upgrade of the DaemonSet is slower."""
IDLE_SECONDS: Final = 15.0
"""For so long the agent's HTTP client keeps a connection that nothing is asked by."""


@dataclass(slots=True, kw_only=True)
class Line:
    """One connection to the service, opened when something is asked."""

    address: str
    port: int
    tls: ssl.SSLContext
    one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: str, body: bytes) -> Answer:
        """Ask once, and return the answer. Raises what connections and the reading of one raise."""
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.tls, local_addr=(self.address, 0)
            )
        reader, writer = self._streams
        writer.write(head.encode() + body)
        found = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status, *lines = found.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        content = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        retry_after = float(headers.get("retry-after", "0"))
        return Answer(status=int(status.split()[1]), body=content, retry_after=retry_after)

    def close(self) -> None:
        """End it at once, if it is open."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


@dataclass(slots=True, kw_only=True)
class Calls:
    """What `ServiceLink` calls by: the connection that is free, as in the agent's client."""

    token: str
    waits: Line
    tells: Line
    failures: Counter[str]

    async def call(self, path: str, *, seconds: float, body: bytes | None = None) -> Answer:
        """Ask the service, as `agent.https.Caller` does."""
        line, method = self.waits, "GET" if body is None else "POST"
        if line.one.locked():
            line = self.tells
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.token}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        try:
            async with line.one, asyncio.timeout(seconds):
                answer = await line.ask(f"{head}\r\n", body or b"")
        except (OSError, TimeoutError, EOFError) as error:
            line.close()
            self.failures[type(error).__name__] += 1
            raise NoAnswerError(str(error)) from error
        if answer.status != 200:
            self.failures[str(answer.status)] += 1
        return answer


@dataclass(slots=True, kw_only=True)
class Agent:
    """
    One node's agent.

    Attributes:
        told: UID of each Pod that it was told of, and when, by the clock of the machine.
        heard: when the service answered last.
    """

    calls: Calls
    draw: random.Random
    told: dict[str, float] = field(default_factory=dict)
    heard: float = 0.0
    link: ServiceLink = field(init=False)
    _first: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        caller = cast("Caller", self.calls)
        self.link = ServiceLink(caller, clock=time.monotonic, draw=self.draw.random)
        self.link.changed.append(self._take_note)

    async def run(self, beginning: asyncio.Semaphore) -> None:
        """Follow the service, confirm what runs, and keep the ledger's checkpoint."""
        async with asyncio.TaskGroup() as group:
            async with beginning:
                group.create_task(self.link.run())
                await self._first.wait()
            group.create_task(self._confirm())
            group.create_task(self._keep())

    async def _confirm(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS * self.draw.uniform(0.9, 1.1) - IDLE_SECONDS)
            with suppress(NoAnswerError, RefusedError):  # it is said again
                await self.link.confirm(Said(runs=tuple(self.told)), after=self.link.sequence)
            await asyncio.sleep(IDLE_SECONDS)
            if not self.calls.tells.one.locked():
                self.calls.tells.close()

    async def _keep(self) -> None:
        kept = ""
        while True:
            with suppress(NoAnswerError, RefusedError):
                kept = (await self.link.checkpoint(kept)).checkpoint
            await asyncio.sleep(max(HISTORY_SECONDS, self.link.again_seconds))

    def _take_note(self) -> None:
        self._first.set()
        known = self.link.holdings
        if self.link.is_heard and known is not None:
            self.heard = time.monotonic()
            for one in known.held.values():
                self.told.setdefault(one.pod_uid, self.heard)

    def cut(self) -> None:
        """End its connections."""
        self.calls.waits.close()
        self.calls.tells.close()


class Played:
    """All of them."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._draw = random.Random(asked.agents)
        self._tls = Authority(asked.authority).context()
        self._failures: Counter[str] = Counter()
        self._agents = [self._agent(asked.port, number) for number in range(asked.agents)]

    async def run(self) -> None:
        """Play until the input ends."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        beginning = asyncio.Semaphore(BEGINNING_MAX)
        running = [loop.create_task(one.run(beginning)) for one in self._agents]
        while line := await lines.readline():
            what, *count = line.decode().split()
            if what == "cut":
                for one in self._draw.sample(self._agents, int(count[0])):
                    one.cut()
            sys.stdout.write(json.dumps(self._figures()) + "\n")
            sys.stdout.flush()
            broken = [one for one in running if one.done()]
            assert not broken, broken[0]
        for task in running:
            task.cancel()

    def _figures(self) -> dict[str, Any]:
        """Return how many are heard, who was the longest without an answer, and who was told."""
        now = time.monotonic()
        return {
            "heard": sum(one.link.is_heard for one in self._agents),
            "silent_seconds": max(now - one.heard for one in self._agents),
            "failures": self._failures,
            "told": {uid: at for one in self._agents for uid, at in one.told.items()},
        }

    def _agent(self, port: int, number: int) -> Agent:
        address = f"127.1.{number // 250}.{number % 250 + 1}"
        waits, tells = (Line(address=address, port=port, tls=self._tls) for _ in range(2))
        token = f"agent.{node_name(number)}"
        calls = Calls(token=token, waits=waits, tells=tells, failures=self._failures)
        return Agent(calls=calls, draw=random.Random(number))


def main() -> None:
    """Play them."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.played_agents")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--authority", type=Path, required=True)
    parser.add_argument("--agents", type=int, required=True)
    asked = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(Played(asked).run())


if __name__ == "__main__":
    main()
