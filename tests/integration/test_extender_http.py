"""The extender over HTTP/1.1 and HTTP/2: what is no answer is no 200, whichever is spoken."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from certs.material import KeyPair, issue_authority, issue_leaf
from certs.serving import Serving
from scheduler.service import http
from scheduler.service.answering import Extender
from scheduler.service.http import calls_app, extender_calls
from scheduler.service.leading import NOT_LEADER
from scheduler.service.metrics import Metrics
from scheduler.service.ports import BindCall
from tenure.serving import http2 as http2_connections
from tenure.serving.connections import ConnectionLimits, Connections
from tenure.serving.listening import HTTP1, HTTP2, Http2, listening
from tests.support.extending import NoHolds, NoRefusals, preempting
from tests.support.http2 import http2_client
from tests.support.kube.schedulers import KUBE_SCHEDULER, client_leaf
from tests.support.live import Live
from tests.support.objects import container, pod

pytestmark = pytest.mark.integration

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
SECONDS_MAX = 60.0

Ask = Callable[..., Coroutine[Any, Any, tuple[int, bytes]]]


@dataclass(slots=True)
class Binds:
    """Binds nothing, and says how, once the gate is open; `gone`: a caller was before."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def bind(self, call: BindCall) -> str:
        """Answer with the call's own words."""
        self.came.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return f"{call.namespace}/{call.pod_name} on {call.node_name}"


@dataclass(slots=True, kw_only=True)
class Served:
    """A listening extender, and who may call it."""

    serving: Serving
    authority: KeyPair
    folder: Path
    connections: Connections
    metrics: Metrics = field(default_factory=Metrics)
    binds: Binds = field(default_factory=Binds)
    why: str = ""
    silent: bool = False
    port: int = 0

    def caller(self, own: KeyPair | None) -> ssl.SSLContext:
        """Return the context of a caller with this leaf."""
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        if own is not None:
            path = self.folder / "own.pem"
            path.write_bytes(own.certificate + own.key)
            context.load_cert_chain(path)
        return context

    def known(self) -> ssl.SSLContext:
        """Return the context of kube-scheduler."""
        return self.caller(client_leaf(self.authority))

    def leaf(self) -> None:
        """Serve a new leaf."""
        leaf = issue_leaf(self.authority, ["127.0.0.1"], now=NOW, lifetime=DAY)
        self.serving.swap(leaf, self.authority.certificate, ["127.0.0.1"], now=NOW)

    @asynccontextmanager
    async def asking(self, protocol: str) -> AsyncIterator[Ask]:
        """Connect as kube-scheduler by that protocol."""
        if protocol == HTTP2:
            async with http2_client(self.port, self.known()) as client:
                yield lambda verb, body, **more: client.ask(f"/{verb}", body, **more)
            return
        connector = aiohttp.TCPConnector(ssl=self.known())
        async with aiohttp.ClientSession(
            f"https://127.0.0.1:{self.port}", connector=connector
        ) as session:

            async def ask(verb: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
                async with session.request(method, f"/{verb}", data=io.BytesIO(body)) as answer:
                    return answer.status, await answer.read()

            yield ask


Act = Callable[[Served], Coroutine[Any, Any, None]]


@pytest.fixture
def served(tmp_path: Path) -> Callable[..., None]:
    """Serve an extender over one node, and act on it, on the loop that the service runs on."""

    def serve(
        act: Act,
        *,
        why: str = "",
        silent: bool = False,
        limits: ConnectionLimits | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        live = Live()
        live.add_node("a", 1)
        live.settle()
        authority = issue_authority("extender-test", now=NOW, lifetime=DAY)
        serving = Serving(clients=authority.certificate, protocols=(HTTP2, HTTP1))
        connections = Connections(limits, [KUBE_SCHEDULER])

        async def main() -> None:
            one = Served(
                serving=serving, authority=authority, folder=tmp_path, connections=connections
            )
            one.why, one.silent = why, silent
            one.leaf()
            extender = Extender(
                live.view,
                one.binds,
                why_not=lambda: one.why,
                groups=live.groups,
                holds=NoHolds(),
                refusals=NoRefusals(),
                preempting=preempting(live.view, NoHolds(), live.groups, live.clock),
            )
            calls = extender_calls(extender, one.metrics)
            app = calls_app(calls, connections.answering, lambda: one.silent)
            http2 = Http2(
                answer=calls.answer_path,
                body_bytes_max=calls.limits.body_bytes_max,
                is_silent=lambda: one.silent,
            )
            where = ("127.0.0.1", 0)
            async with asyncio.timeout(SECONDS_MAX), contextlib.AsyncExitStack() as stack:
                one.port = await stack.enter_async_context(
                    listening(
                        app,
                        where,
                        connections,
                        tls=serving.context,
                        http2=http2,
                        finish_seconds=SECONDS_MAX,
                    )
                )
                if stop is None:
                    await act(one)
                else:
                    acting = asyncio.create_task(act(one))
                    await stop.wait()
            if stop is not None:
                await acting

        uvloop.run(main())

    return serve


both = pytest.mark.parametrize("protocol", [HTTP1, HTTP2])


def question(**more: object) -> bytes:
    """Return a question about one Pod."""
    body = pod(container(limits={"koordinator.sh/gpu": 100}), name="p", uid="pod-p")
    return json.dumps({"Pod": body, "NodeNames": ["a"], **more}).encode()


CALL = json.dumps({"PodName": "p", "PodNamespace": "ml", "PodUID": "pod-p", "Node": "a"}).encode()


@both
def test_every_verb_answers_in_json(served: Callable[..., None], protocol: str) -> None:
    """Status 200 and the message of the contract."""

    async def act(one: Served) -> None:
        one.binds.gate.set()
        async with one.asking(protocol) as ask:
            status, body = await ask("filter", question())
            assert (status, json.loads(body)["NodeNames"]) == (200, ["a"])
            status, body = await ask("prioritize", question())
            assert (status, json.loads(body)) == (200, [{"Host": "a", "Score": 1000}])
            status, body = await ask("preempt", question(NodeNameToMetaVictims={}))
            assert (status, json.loads(body)) == (200, {"NodeNameToMetaVictims": {}})
            status, body = await ask("bind", CALL)
            assert (status, json.loads(body)) == (200, {"Error": "ml/p on a"})

    served(act)


@both
def test_what_can_not_be_read_is_a_400_and_counted(
    served: Callable[..., None], protocol: str
) -> None:
    """The words say the field."""

    async def act(one: Served) -> None:
        async with one.asking(protocol) as ask:
            status, body = await ask("filter", b'{"Pod":{}}')
            assert status == 400
            assert b"NodeNames" in body
            assert broken(one, "filter", "unreadable") == 1

    served(act)


def broken(one: Served, verb: str, reason: str) -> float | None:
    """Return how many calls were not answered for a reason."""
    return one.metrics.registry.get_sample_value(
        "tenure_extender_broken_calls_total", {"verb": verb, "reason": reason}
    )


@both
def test_a_view_that_is_behind_is_a_503_where_the_answer_has_no_place_for_it(
    served: Callable[..., None], protocol: str
) -> None:
    """Filter says it in its answer."""

    async def act(one: Served) -> None:
        async with one.asking(protocol) as ask:
            status, body = await ask("filter", question())
            assert (status, json.loads(body)) == (200, {"Error": "ClusterViewStale: nodes"})
            for verb in ("prioritize", "preempt"):
                status, body = await ask(verb, question(NodeNameToMetaVictims={}))
                assert (status, body) == (503, b"ClusterViewStale: nodes\n")

    served(act, why="ClusterViewStale: nodes")


@both
def test_a_path_of_its_own_for_each_verb_and_no_other(
    served: Callable[..., None], protocol: str
) -> None:
    """kube-scheduler posts; whatever else comes is refused."""

    async def act(one: Served) -> None:
        async with one.asking(protocol) as ask:
            assert (await ask("reserve", b"{}"))[0] == 404
            assert (await ask("filter", b"", method="GET"))[0] == 405

    served(act)


@both
def test_a_body_has_a_bound(
    served: Callable[..., None], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question as large as it is read whole; one more byte is refused, and the caller stays."""
    monkeypatch.setattr(http, "EXTENDER", replace(http.EXTENDER, body_bytes_max=3 << 20))

    async def act(one: Served) -> None:
        async with one.asking(protocol) as ask:
            text = question()
            whole = text + b" " * ((3 << 20) - len(text))
            assert (await ask("filter", whole))[0] == 200
            assert (await ask("filter", whole + b" "))[0] == 413
            assert broken(one, "filter", "too_large") == 1
            assert (await ask("filter", text))[0] == 200

    served(act)


@both
def test_whoever_does_not_finish_a_question_is_told_so_in_time(
    served: Callable[..., None], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a 504, and counted."""
    monkeypatch.setattr(http, "EXTENDER", replace(http.EXTENDER, seconds_max=0.2))

    async def act(one: Served) -> None:
        if protocol == HTTP2:
            async with http2_client(one.port, one.known()) as client:
                number = client.begin("/filter")
                await client.send(number, b"{", ends=False)
                assert (await client.answer(number))[0] == 504
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=one.known())
            writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert b" 504 " in await reader.readline()
            writer.write(b"12345678")
            writer.close()
        assert broken(one, "filter", "timeout") == 1

    served(act)


@both
@pytest.mark.parametrize("who", ["a stranger's", "none", "another name's"])
def test_only_callers_with_a_leaf_of_the_authority_and_its_name_are_let_in(
    served: Callable[..., None], protocol: str, who: str
) -> None:
    """Whichever protocol they ask for."""

    async def heard(port: int, tls: ssl.SSLContext) -> bytes:
        """In TLS 1.3 a caller hears of it when it reads."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            return await reader.read(1)
        finally:
            writer.close()

    async def act(one: Served) -> None:
        other = issue_authority("other", now=NOW, lifetime=DAY)
        leaf = client_leaf(other) if who != "none" else None
        if who == "another name's":
            leaf = client_leaf(one.authority, "system:node:n-1")
        tls = one.caller(leaf)
        tls.set_alpn_protocols([protocol])
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await heard(one.port, tls) == b""
        async with one.asking(protocol) as ask:
            assert (await ask("filter", question()))[0] == 200

    served(act)


@both
def test_a_new_leaf_is_served_from_the_next_connection_on(
    served: Callable[..., None], protocol: str
) -> None:
    """The one that is open goes on."""

    async def act(one: Served) -> None:
        async with one.asking(protocol) as before:
            assert (await before("filter", question()))[0] == 200
            one.leaf()
            async with one.asking(protocol) as after:
                assert (await after("filter", question()))[0] == 200
            assert (await before("filter", question()))[0] == 200

    served(act)


def test_each_caller_speaks_what_it_asks_for(served: Callable[..., None]) -> None:
    """HTTP/2 where it is offered, HTTP/1.1 where nothing is."""

    async def act(one: Served) -> None:
        for offered, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), ([], None)):
            tls = one.known()
            if offered:
                tls.set_alpn_protocols(offered)
            _, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=tls)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
            writer.close()

    served(act)


def test_who_does_not_lead_says_so_and_closes_the_connection(
    served: Callable[..., None],
) -> None:
    """The next one goes to whoever leads; while it leads, connections stay."""

    async def said(one: Served) -> tuple[str, str | None]:
        connector = aiohttp.TCPConnector(ssl=one.known())
        async with (
            aiohttp.ClientSession(f"https://127.0.0.1:{one.port}", connector=connector) as session,
            session.post("/filter", data=question()) as answer,
        ):
            return (await answer.json())["Error"], answer.headers.get("Connection")

    async def act(one: Served) -> None:
        one.why = "ClockSkew"
        assert await said(one) == ("ClockSkew", None)
        one.why, one.silent = NOT_LEADER, True
        assert await said(one) == (NOT_LEADER, "close")

    served(act)


def test_who_does_not_lead_lets_calls_over_http2_finish_and_closes(
    served: Callable[..., None],
) -> None:
    """What is under way is answered before; a later call on the same connection is refused."""

    async def act(one: Served) -> None:
        async with http2_client(one.port, one.known()) as client:
            bind = client.begin("/bind")
            await client.send(bind, CALL)
            await one.binds.came.wait()
            assert (await client.ask("/filter", question()))[0] == 200
            assert not client.left
            one.why, one.silent = NOT_LEADER, True
            status, body = await client.ask("/filter", question())
            assert (status, json.loads(body)["Error"]) == (200, NOT_LEADER)
            one.binds.gate.set()
            assert (await client.answer(bind))[0] == 200
            await client.closed.wait()
            assert client.left

    served(act)


@both
def test_calls_under_way_are_answered_before_a_stop(
    served: Callable[..., None], protocol: str
) -> None:
    """And the connection is closed then."""
    stop = asyncio.Event()

    async def act(one: Served) -> None:
        async with one.asking(protocol) as ask:
            bind = asyncio.create_task(ask("bind", CALL))
            await one.binds.came.wait()
            stop.set()
            await asyncio.sleep(0.05)
            assert not bind.done()
            one.binds.gate.set()
            assert (await bind)[0] == 200

    served(act, stop=stop)


def test_calls_are_answered_beside_one_another(served: Callable[..., None]) -> None:
    """A bind that waits keeps nobody on its connection."""

    async def act(one: Served) -> None:
        async with http2_client(one.port, one.known()) as client:
            binds = [client.begin("/bind") for _ in range(20)]
            for number in binds:
                await client.send(number, CALL)
            await one.binds.came.wait()
            assert (await client.ask("/filter", question()))[0] == 200
            one.binds.gate.set()
            assert {(await client.answer(number))[0] for number in binds} == {200}

    served(act)


def test_a_call_that_its_caller_gave_up_is_no_ones_fault(served: Callable[..., None]) -> None:
    """It ends, so that nobody is bound by it; the connection serves others."""

    async def act(one: Served) -> None:
        async with http2_client(one.port, one.known()) as client:
            half, bind = client.begin("/filter"), client.begin("/bind")
            await client.send(bind, CALL)
            await one.binds.came.wait()
            for number in (half, bind):
                client.h2.reset_stream(number, ErrorCodes.CANCEL)
            client.flush()
            assert (await client.ask("/filter", question()))[0] == 200
            await one.binds.gone.wait()
            one.binds.gate.set()
            assert (await client.ask("/bind", CALL))[0] == 200

    served(act)


@both
def test_a_bind_ends_with_the_connection_of_its_caller(
    served: Callable[..., None], protocol: str
) -> None:
    """A kube-scheduler that was killed binds nobody any more."""

    async def act(one: Served) -> None:
        if protocol == HTTP2:
            async with http2_client(one.port, one.known()) as client:
                await client.send(client.begin("/bind"), CALL)
                await one.binds.came.wait()
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=one.known())
            head = f"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CALL)}\r\n\r\n"
            writer.write(head.encode() + CALL)
            await one.binds.came.wait()
            writer.transport.abort()
        await one.binds.gone.wait()

    served(act)


@both
def test_a_bind_may_take_longer_than_other_verbs(
    served: Callable[..., None], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang's calls wait for each other; kube-scheduler has a longer time for them."""
    assert http.EXTENDER.verb_seconds_max["bind"] > http.EXTENDER.seconds_max
    limits = replace(http.EXTENDER, seconds_max=0.05, verb_seconds_max={"bind": SECONDS_MAX})
    monkeypatch.setattr(http, "EXTENDER", limits)

    async def act(one: Served) -> None:
        asyncio.get_running_loop().call_later(0.5, one.binds.gate.set)
        async with one.asking(protocol) as ask:
            assert (await ask("bind", CALL))[0] == 200

    served(act)


def test_questions_that_do_not_end_make_room_for_those_that_come(
    served: Callable[..., None],
) -> None:
    """Also where all are of one connection."""

    async def act(one: Served) -> None:
        one.connections.bodies.bytes_max = 1 << 20
        async with http2_client(one.port, one.known()) as client:
            begun = [client.begin("/filter") for _ in range(8)]
            for number in begun:
                await client.send(number, b" " * (256 << 10), ends=False)
            for number in begun[:4]:
                assert (await client.answer(number))[0] == 503
            assert (await client.ask("/filter", question()))[0] == 200
            assert one.connections.bodies.size <= 1 << 20

    served(act)


def test_calls_of_one_connection_have_a_bound(
    served: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was given up counts until it has ended, a moment later."""
    monkeypatch.setattr(http2_connections, "STREAMS_MAX", 3)

    async def act(one: Served) -> None:
        async with http2_client(one.port, one.known()) as client:
            binds = [client.begin("/bind") for _ in range(3)]
            for bind in binds:
                await client.send(bind, CALL)
                await one.binds.came.wait()
                one.binds.came.clear()
            for bind in binds:
                client.h2.reset_stream(bind, ErrorCodes.CANCEL)
            more = client.begin("/bind", ends=True)  # in the same packet
            assert await client.answer(more) == (0, b"")
            assert client.refused[more] == ErrorCodes.REFUSED_STREAM
            await one.binds.gone.wait()
            for _ in range(100):
                if (await client.ask("/filter", question()))[0] == 200:
                    return
            pytest.fail("what was given up still counts")

    served(act)


def test_whoever_breaks_http2_is_cut_off(served: Callable[..., None]) -> None:
    """It is told why, and others do not notice."""

    async def act(one: Served) -> None:
        async with http2_client(one.port, one.known()) as client:
            assert (await client.ask("/filter", question()))[0] == 200
            client.writer.write(b"\x00\x00\x01\x05\x00\x00\x00\x00\x01?")  # PUSH_PROMISE
            await client.closed.wait()
            assert client.left
        async with one.asking(HTTP2) as ask:
            assert (await ask("filter", question()))[0] == 200

    served(act)


@both
def test_a_connection_that_nobody_uses_is_closed(
    served: Callable[..., None], protocol: str
) -> None:
    """One that waits for an answer is not."""

    async def act(one: Served) -> None:
        tls = one.known()
        if protocol == HTTP2:
            async with contextlib.AsyncExitStack() as stack:
                while not one.binds.came.is_set():  # a busy machine may be late with its call
                    client = await stack.enter_async_context(http2_client(one.port, tls))
                    bind = client.begin("/bind")
                    with contextlib.suppress(OSError):
                        await client.send(bind, CALL)
                    either = [
                        asyncio.create_task(each.wait()) for each in (one.binds.came, client.closed)
                    ]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0.5)
                assert not client.left
                one.binds.gate.set()
                assert (await client.answer(bind))[0] == 200
                await client.closed.wait()
                assert client.left
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=tls)
            assert await reader.read(1) == b""
            writer.close()

    served(act, limits=ConnectionLimits(idle_seconds=0.2))


def test_one_connection_more_than_there_may_be_takes_the_place_of_an_idle_one(
    served: Callable[..., None],
) -> None:
    """Of HTTP/1.1 first: one of HTTP/2 has all calls of its caller; a busy one is left alone."""

    async def act(one: Served) -> None:
        async with http2_client(one.port, one.known()) as busy, one.asking(HTTP1) as first:
            bind = busy.begin("/bind")
            await busy.send(bind, CALL)
            await one.binds.came.wait()
            assert (await first("filter", question()))[0] == 200
            async with http2_client(one.port, one.known()) as idle:
                assert (await idle.ask("/filter", question()))[0] == 200
                async with http2_client(one.port, one.known()) as last:
                    await idle.closed.wait()
                    assert (await last.ask("/filter", question()))[0] == 200
                    one.binds.gate.set()
                    assert (await busy.answer(bind))[0] == 200

    served(act, limits=ConnectionLimits(open_max=2))


def test_an_answer_waits_for_a_caller_with_little_room(served: Callable[..., None]) -> None:
    """It comes whole, in parts as large as the caller takes, also where that becomes less."""

    async def act(one: Served) -> None:
        one.binds.gate.set()
        async with http2_client(one.port, one.known()) as client:
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
            number = client.begin("/filter")
            await client.send(number, question())
            await client.came(number, 10)
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 3})
            await client.ask("/reserve", b"")  # our settings have been read
            for _ in range(20):
                client.h2.increment_flow_control_window(20, number)
                client.flush()
            status, body = await client.answer(number)
            assert (status, json.loads(body)["NodeNames"]) == (200, ["a"])

    served(act)


def test_a_fault_of_ours_is_a_500(
    served: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked does not wait for it."""

    async def fails(_self: Binds, _call: BindCall) -> str:
        raise AssertionError("ours")

    monkeypatch.setattr(Binds, "bind", fails)

    async def act(one: Served) -> None:
        for protocol in (HTTP1, HTTP2):
            async with one.asking(protocol) as ask:
                assert (await ask("bind", CALL))[0] == 500
                assert (await ask("filter", question()))[0] == 200

    served(act)
