"""Between a client and a real API server: watches mixed up, held or gone, and another clock."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from random import Random
from typing import Final

import aiohttp
from aiohttp import web

from tests.support.kube.control_plane import ControlPlane
from tests.support.relay import looping

_LOOK_SECONDS: Final = 0.02
_READ_BYTES: Final = 1 << 20
_KEPT: Final = ("Content-Type", "Retry-After", "Date")
_ASKED: Final = ("Authorization", "Content-Type", "Accept")
_GONE: Final = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "expired"}}


class Meddler:
    """
    Passes requests on over plain HTTP. Made by `meddling`; a test sets its attributes.

    Attributes:
        port: where its client calls, on the loopback.
        held: resources, such as `pods`, of which nothing is told until that is over; `pods watch`:
            by watches alone.
        gone: of a hundred events of watches, how many are 410 instead, which ends the watch.
        mixed_up: of a hundred events, how many come again later, or change places with the next.
        ahead: how far the API server's clock is ahead of what it is.
        counts: what was done to watches.
    """

    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self.port = 0
        self.held: frozenset[str] = frozenset()
        self.gone = 0
        self.mixed_up = 0
        self.ahead = timedelta()
        self.counts: Counter[str] = Counter()
        self._plane = plane
        self._draw = Random(seed)
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve on a free port of the loopback until the block ends."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        trust = ssl.create_default_context(cafile=str(self._plane.ca_file))
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0), read_bufsize=_READ_BYTES
        ) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            try:
                yield
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        words = {name: request.headers[name] for name in _ASKED if name in request.headers}
        resource = request.path.rpartition("/")[2]
        async with self._session.request(
            request.method,
            f"{self._plane.url}{request.raw_path}",
            headers=words,
            data=await request.read(),
        ) as answer:
            said = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            if "Date" in said:
                said["Date"] = format_datetime(
                    parsedate_to_datetime(said["Date"]) + self.ahead, usegmt=True
                )
            if "watch" in request.query and answer.status == 200:
                return await self._watch(request, answer, resource, said)
            raw = await answer.read()
            if request.method == "GET":
                await self._while_held(resource)
            return web.Response(status=answer.status, body=raw, headers=said)

    async def _watch(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        resource: str,
        said: dict[str, str],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=said)
        await response.prepare(request)
        last, late = b"", b""
        async for line in answer.content:
            await self._while_held(resource, f"{resource} watch")
            if self._hits("gone", self.gone):
                await response.write(json.dumps(_GONE).encode() + b"\n")
                break
            told = [line]
            if late:
                told, late = [line, late], b""
            elif self._hits("mixed_up", self.mixed_up):
                if last and self._draw.random() < 0.5:
                    told = [line, last]  # what was told before comes again
                else:
                    told, late = [], line
            last = line
            try:
                for each in told:
                    await response.write(each)
            except ConnectionError:  # nobody listens any more
                break
        return response

    async def _while_held(self, *what: str) -> None:
        while self.held.intersection(what):  # noqa: ASYNC110 - another thread ends it
            await asyncio.sleep(_LOOK_SECONDS)

    def _hits(self, what: str, percent: int) -> bool:
        """Draw and count; the first event is always hit, so that a short time has one."""
        hit = percent > 0 and (not self.counts[what] or self._draw.random() * 100 < percent)
        self.counts[what] += hit
        return hit


@contextmanager
def meddling(plane: ControlPlane, seed: int = 1) -> Iterator[Meddler]:
    """Yield one, in a thread of its own."""
    meddler = Meddler(plane, seed)
    with looping() as loop:
        served = meddler.serving()
        asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result()
        try:
            yield meddler
        finally:
            asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result()
