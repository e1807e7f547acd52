"""What is no HTTP, at the one listener that all our servers have."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from certs.material import issue_authority, issue_leaf
from tenure.serving.connections import ConnectionLimits, Connections
from tenure.serving.listening import HTTP1, HTTP2, Http2, listening
from tenure.serving.logs import set_up_logs
from tenure.serving.probes import probes_app
from tests.support.process import ROOT

SENT = b"c3cret"
LONG = SENT * 3_000
BODY = b"POST /body HTTP/1.1\r\nHost: x\r\n"
MALFORMED = {
    "bytes that are no HTTP": b"\x00\x01" + SENT + b"\xff\r\n\r\n",
    "another method": SENT + b"!@# / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a line that is too long": b"GET /" + LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header that is too long": b"GET /livez HTTP/1.1\r\nX: " + LONG + b"\r\n\r\n",
    "a header that is none": b"GET /livez HTTP/1.1\r\na " + SENT + b": b\r\n\r\n",
    "another version": b"GET /livez HTTP/" + SENT + b"\r\n\r\n",
    "a length that is none": BODY + b"Content-Length: " + SENT + b"\r\n\r\n",
    "two lengths": BODY + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + SENT,
    "a part without its length": BODY + b"Transfer-Encoding: chunked\r\n\r\n" + SENT + b"\r\n",
    "TLS where there is none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SENT,
    "half a request": BODY + b"Content-Length: 100\r\n\r\n" + SENT,
}

Said = Callable[[], list[dict[str, object]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    """What a service wrote: whatever is no line of JSON fails."""
    ours = logging.getLogger("tenure")
    before = (ours.handlers, ours.propagate, ours.level, logging.lastResort)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    set_up_logs()

    def read() -> list[dict[str, object]]:
        assert SENT.decode() not in stderr.getvalue()
        return [json.loads(line) for line in stderr.getvalue().splitlines()]

    yield read
    ours.handlers, ours.propagate, ours.level, logging.lastResort = before


def app() -> web.Application:
    """Return probes, and routes that read a body and that fail."""
    made = probes_app(CollectorRegistry(), str)

    async def body(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def fail(_: web.Request) -> web.Response:
        raise RuntimeError("ours")

    made.router.add_post("/body", body)
    made.router.add_get("/fail", fail)
    return made


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return how a server and a caller speak TLS, the caller over HTTP/2."""
    now, day = datetime.now(UTC), timedelta(days=1)
    authority = issue_authority("test", now=now, lifetime=day)
    leaf = issue_leaf(authority, ["127.0.0.1"], now=now, lifetime=day)
    (folder / "tls.pem").write_bytes(leaf.certificate + leaf.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.pem")
    server.set_alpn_protocols([HTTP2, HTTP1])
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    client.set_alpn_protocols([HTTP2])
    return server, client


def serve(
    act: Callable[[int], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    http2: Http2 | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Listen while the coroutine acts on the port."""

    async def run() -> None:
        where = ("127.0.0.1", 0)
        async with listening(
            app(), where, Connections(limits), tls=tls, http2=http2, finish_seconds=5
        ) as port:
            await act(port)

    uvloop.run(run())


async def answered(port: int, sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send bytes and nothing more, and return what is said until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(sent)
    if sent.startswith(BODY) and b"100" in sent:
        await writer.drain()
        writer.close()
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_malformed_http_is_one_line_without_what_was_sent(said: Said, sent: bytes) -> None:
    """Who sent it and what is wrong with it, and no traceback; the server goes on."""

    async def act(port: int) -> None:
        await answered(port, sent)
        good = await answered(port, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200 OK")

    serve(act)
    (line,) = said()
    assert line["event"] == "malformed request"
    assert (line["level"], line["caller"]) == ("warning", "127.0.0.1")
    assert "exception" not in line


def test_http2_that_is_none_is_one_line_too(said: Said, tmp_path: Path) -> None:
    """Where HTTP/2 was agreed on, and over TLS."""
    server, client = contexts(tmp_path)

    async def answer(method: str, path: str, body: Awaitable[bytes]) -> tuple[int, str, bytes]:
        raise AssertionError((method, path, await body))

    async def act(port: int) -> None:
        await answered(port, SENT * 20, client)
        client.set_alpn_protocols([HTTP1])
        await answered(port, SENT + b" / x\r\n\r\n", client)

    serve(act, server, Http2(answer=answer, body_bytes_max=1_000))
    assert [line["event"] for line in said()] == ["malformed request"] * 2


def test_no_tls_is_no_traceback(said: Said, tmp_path: Path) -> None:
    """A handshake that fails is what every probe of a port is; nothing is said of it."""
    server, _ = contexts(tmp_path)

    async def act(port: int) -> None:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", SENT, b""):
            await answered(port, sent)

    serve(act, server, limits=ConnectionLimits(handshake_seconds=0.2))
    assert said() == []


@pytest.mark.parametrize("path", [b"/livez", b"/nothing", b"/fail", b"\x00"])
def test_no_answer_names_a_version(said: Said, path: bytes) -> None:
    """The header `Server` says who we are, and what failed is a line with its traceback."""

    async def act(port: int) -> None:
        answer = await answered(
            port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert b"\r\nServer: tenure\r\n" in answer
        assert path == b"\x00" or b"\r\nX-Content-Type-Options: nosniff\r\n" in answer
        for word in (b"aiohttp", b"Python", b"Traceback", b"ours"):
            assert word not in answer

    serve(act)
    assert ["exception" in line for line in said()] == {b"/fail": [True], b"\x00": [False]}.get(
        path, []
    )


def test_every_server_of_ours_is_that_listener() -> None:
    """No other module of the product listens for HTTP."""
    packages = ("tenure", "webhook", "scheduler", "agent", "certs", "ledger")
    found = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if any(
            word in path.read_text()
            for word in ("AppRunner(", "TCPSite(", "run_app(", "HTTPServer(", "start_http_server")
        )
    }
    assert found == {"tenure/serving/listening.py"}
