"""Who has room at the listener for people: agents by a budget of their own, a user by a few."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from aiohttp import web

from certs.ports import Object
from scheduler.service.api.agents import WAIT_SECONDS_MAX
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import Route, json_answer
from tenure.serving.connections import ConnectionLimits, Connections
from tenure.serving.scheduling.api import ApiListener
from tests.support.api_callers import NAME, Cluster, api_options, authority, caller, server_folder
from tests.support.kube.control_plane import AGENT_ACCOUNT, free_port
from tests.support.loops import until

pytestmark = pytest.mark.integration

LIMITS: Final = ConnectionLimits(open_max=16, agents_max=20, token_max=3)
CHANGES: Final = "/agents/v1/changes"
CONFIRMATIONS: Final = "/agents/v1/confirmations"
HOLDINGS: Final = "/agents/v1/holdings"
SLOWLY: Final = "/slowly"
DISCOVERY: Final = "/apis/audit.tenure.sh"
MOST: Final = 8
"""Questions about tokens that one address may have open."""
SECONDS_MAX: Final = 60.0


@dataclass(slots=True)
class Tokens(Cluster):
    """Reviews tokens; those of agents once it may."""

    reviews_agents: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    async def create(self, _: str, body: Object) -> Object:
        """Review a token: what is before its dot is the Pod that it is bound to."""
        token = body["spec"]["token"]
        self.asked += 1
        if token.startswith("agent"):
            await self.reviews_agents.wait()
        extra = {
            "authentication.kubernetes.io/pod-name": [token.partition(".")[0]],
            "authentication.kubernetes.io/credential-id": [token],
        }
        user = AGENT_ACCOUNT if token.startswith("agent") else "anna"
        return {"status": {"authenticated": True, "user": {"username": user, "extra": extra}}}


@dataclass(slots=True, kw_only=True)
class Client:
    """One connection, which stays open."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, path: str, token: str = "") -> int:
        """Return the status of the answer."""
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n{shown}\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head.split()[1])


@dataclass(slots=True, kw_only=True)
class Scene:
    """A listener with one path where agents wait, and two for people."""

    cluster: Tokens
    port: int
    tls: ssl.SSLContext
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[str, asyncio.Event] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    reading: bool = False

    async def connect(self) -> Client:
        """Open a connection."""
        reader, writer = await asyncio.open_connection(NAME, self.port, ssl=self.tls)
        self.clients.append(Client(reader=reader, writer=writer))
        return self.clients[-1]

    async def ask(self, path: str, token: str = "") -> int:
        """Ask by a connection of its own."""
        client = await self.connect()
        try:
            return await client.ask(path, token)
        finally:
            client.writer.close()

    async def wait(self, request: web.Request, who: Caller) -> web.StreamResponse:
        """Answer once the test says so."""
        key = dict(who.extra)["authentication.kubernetes.io/credential-id"][0] + request.path
        own = self.waiting[key] = asyncio.Event()
        if self.go_on.is_set():
            own.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(own.wait(), WAIT_SECONDS_MAX)
        del self.waiting[key]
        return json_answer({})

    def release(self) -> None:
        """Answer whoever waits, and nobody waits from now on."""
        self.go_on.set()
        for one in self.waiting.values():
            one.set()

    async def read(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Read a body to its end."""
        self.reading = True
        try:
            await request.read()
        finally:
            self.reading = False
        return json_answer({})

    async def answer(self, _: web.Request, __: Caller) -> web.StreamResponse:
        """Answer at once."""
        return json_answer({})


def served(
    folder: Path,
    act: Callable[[Scene], Coroutine[Any, Any, None]],
    limits: ConnectionLimits = LIMITS,
) -> None:
    """Serve, and act on it."""
    server, port = authority("server"), free_port()

    async def main() -> None:
        cluster = Tokens()
        options = api_options(port, server_folder(folder / "server", server))
        listener = ApiListener(options, cluster, lambda: datetime.now(UTC), limits)
        scene = Scene(cluster=cluster, port=port, tls=caller(server, folder))
        late = listener.late_routes()
        late.come(
            [
                Route(method="GET", path=CHANGES, act=scene.wait, agents=(AGENT_ACCOUNT,)),
                Route(method="GET", path=HOLDINGS, act=scene.answer, agents=(AGENT_ACCOUNT,)),
                Route(method="POST", path=CONFIRMATIONS, act=scene.read, agents=(AGENT_ACCOUNT,)),
                Route(method="GET", path=SLOWLY, act=scene.wait),
                Route(method="GET", path="/who", act=scene.answer),
            ]
        )
        async with listener.listening(late=late):
            try:
                await act(scene)
            finally:
                scene.release()
                for one in scene.clients:
                    one.writer.close()

    uvloop.run(main())


def test_people_have_room_while_the_budget_of_agents_is_full(tmp_path: Path) -> None:
    """More agents wait than others may connect; one more is refused, and nobody goes."""

    async def act(scene: Scene) -> None:
        scene.cluster.reviews_agents.set()
        agents: list[asyncio.Task[int]] = []
        for number in range(LIMITS.agents_max):
            agents.append(asyncio.create_task(scene.ask(CHANGES, f"agent-{number}")))
            await until(lambda: len(scene.waiting) == len(agents))
        for _ in range(LIMITS.open_max):
            await scene.connect()
        for number in range(2 * LIMITS.open_max):
            assert await scene.ask("/who", f"person-{number}") == 200
            assert await scene.ask(DISCOVERY) == 200
        assert await scene.ask(CHANGES, "agent-more") == 429
        scene.release()
        assert await asyncio.gather(*agents) == [200] * len(agents)
        assert await scene.ask(CHANGES, "agent-more") == 200, "whoever went has made room"

    with_time(served, tmp_path, act)


def test_an_agent_that_hangs_up_as_it_asks_leaves_its_place(tmp_path: Path) -> None:
    """Its question may be answered once its descriptor is closed."""

    async def act(scene: Scene) -> None:
        scene.cluster.reviews_agents.set()
        assert await scene.ask(HOLDINGS, "agent-1.a") == 200
        for _ in range(LIMITS.agents_max + 5):
            one = await scene.connect()
            words = f"GET {HOLDINGS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer agent-1.a\r\n\r\n"
            one.writer.write(words.encode())
            one.writer.transport.abort()
        [listener] = Connections.listening
        await until(lambda: not listener.open)
        assert not listener.agents
        assert await scene.ask(HOLDINGS, "agent-2.a") == 200

    with_time(served, tmp_path, act)


def test_a_caller_who_hangs_up_in_a_body_is_no_mistake_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent gives up a message where the service is slow; the log names no error for it."""

    async def act(scene: Scene) -> None:
        scene.cluster.reviews_agents.set()
        one = await scene.connect()
        head = f"POST {CONFIRMATIONS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer agent-1.a\r\n"
        one.writer.write(f"{head}Content-Length: 9\r\n\r\n[".encode())
        await until(lambda: scene.reading)
        one.writer.transport.abort()
        [listener] = Connections.listening
        await until(lambda: not listener.open and not scene.reading)

    with_time(served, tmp_path, act)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_one_user_has_a_few_connections_whatever_tokens_they_show(tmp_path: Path) -> None:
    """One more takes the place of the oldest that is idle, and is refused where none is."""

    async def act(scene: Scene) -> None:
        clients = [await scene.connect() for _ in range(LIMITS.token_max)]
        asked: list[asyncio.Task[int]] = []
        for number, one in enumerate(clients):
            asked.append(asyncio.create_task(one.ask(SLOWLY, f"anna.{number}")))
            await until(lambda: len(scene.waiting) == len(asked))
        assert await scene.ask("/who", "anna.more") == 429
        assert await scene.ask("/who", "bert") == 200
        scene.release()
        assert await asyncio.gather(*asked) == [200] * len(asked)
        assert await scene.ask("/who", "anna.more") == 200
        assert await clients[0].reader.read() == b"", "the oldest went"
        assert await clients[1].ask("/who", "anna.1") == 200

    with_time(served, tmp_path, act)


def test_agents_whose_tokens_are_asked_about_leave_people_theirs(tmp_path: Path) -> None:
    """The API server is asked so many questions at once: agents have none of people's."""

    async def act(scene: Scene) -> None:
        agents = [
            asyncio.create_task(scene.ask(CHANGES, f"agent-{number}")) for number in range(MOST)
        ]
        await until(lambda: scene.cluster.asked == MOST)
        assert await scene.ask(CHANGES, "agent-more") == 429
        assert await scene.ask("/who", "anna") == 200
        scene.cluster.reviews_agents.set()
        scene.release()
        assert await asyncio.gather(*agents) == [200] * MOST

    with_time(served, tmp_path, act)


def with_time(serve: Callable[..., None], folder: Path, act: Callable[..., Any]) -> None:
    """Serve for so long at most."""

    async def bounded(scene: Scene) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await act(scene)

    serve(folder, bounded)
