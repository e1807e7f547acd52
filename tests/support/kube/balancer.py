"""What a Service does for its Pods, on the loopback: new connections go to whoever is ready."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_PROBE_SECONDS: Final = 0.1
_START_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One replica: the port it serves on, and the one that says whether it is ready."""

    port: int
    probes: int

    def is_ready(self) -> bool:
        """Tell whether the replica says it is ready."""
        url = f"http://127.0.0.1:{self.probes}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class Balancer:
    """Passes bytes on, to one ready backend after the other. Made by `balancing`."""

    def __init__(self, backends: list[Backend]) -> None:
        self.port = 0
        self.refused = 0
        self._backends = backends
        self._ready: list[Backend] = []
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()

    def run(self) -> None:
        """Serve until `stop`, in a thread of its own."""
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    def start(self) -> None:
        """Wait until connections are taken."""
        assert self._started.wait(_START_SECONDS), "the balancer did not start"

    def wait_for(self, backend: Backend) -> None:
        """Wait until connections may go to this backend."""
        until = time.monotonic() + _START_SECONDS
        while backend not in self._ready:
            assert time.monotonic() < until, "the balancer does not see the backend"
            time.sleep(_PROBE_SECONDS)

    def stop(self) -> None:
        """Take no more connections."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        probing = asyncio.create_task(self._probe())
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        probing.cancel()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is gone

    async def _probe(self) -> None:
        while True:
            ready = [
                backend for backend in self._backends if await asyncio.to_thread(backend.is_ready)
            ]
            self._ready = ready
            await asyncio.sleep(_PROBE_SECONDS)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = self._ready
        if not ready:
            self.refused += 1
            writer.close()
            return
        backend = ready[next(self._turn) % len(ready)]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", backend.port)
        except OSError:
            self.refused += 1
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


@contextlib.contextmanager
def balancing(backends: list[Backend]) -> Iterator[Balancer]:
    """Balance between these backends, of which more may be added, until the block ends."""
    balancer = Balancer(backends)
    thread = threading.Thread(target=balancer.run, name="balancer")
    thread.start()
    try:
        balancer.start()
        yield balancer
    finally:
        balancer.stop()
        thread.join(10)
