"""
Snapshots of the ledger's state, so that the next start reads little.

Rule: design section 6, "latest snapshot + events after it". The state is folded from the log again
and not taken from memory, by a process of its own (`folding`), so that no call waits for it:
commands wait while the last few events are folded and what comes of it is written.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ledger.domain.errors import LedgerError
from ledger.store.reading.snapshots import Picture, store_picture
from ledger.store.writing.append import Writer
from ledger.store.writing.lane import Act, Lane
from tenure.serving.scheduling import folding
from tenure.serving.scheduling.folding import DIGEST_BYTES, READY, SIZE_BYTES
from tenure.serving.scheduling.process import Process

EVENTS: Final = 20_000
"""How many events are recorded before the next snapshot."""
LOOK_SECONDS: Final = 30.0
FOLD_SECONDS: Final = 600.0


class Snapshots:
    """Takes a snapshot after every so many events; `last` is the position of the last one."""

    def __init__(self, url: str, last: int, *, events: int = EVENTS) -> None:
        self._url = url
        self._last = last
        self._events = events

    def keep(self, process: Process) -> None:
        """Take them for as long as the process writes."""
        lane = process.recorder.lane
        assert lane is not None, "the ledger is ours"
        look = partial(self.look, lane, process.clock.wall_us)
        process.repeat(LOOK_SECONDS, "snapshots", look)

    async def look(self, lane: Lane, wall_us: Callable[[], int]) -> None:
        """Take a snapshot if it is time. Raises LedgerError: call it again."""
        if lane.position - self._last < self._events:
            return
        command = [sys.executable, "-P", "-m", folding.__name__]
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            async with asyncio.timeout(FOLD_SECONDS):
                assert child.stdin is not None, "it was asked for"
                assert child.stdout is not None, "it was asked for"
                child.stdin.write(f"{self._url}\n".encode())  # it may have a password
                if await child.stdout.readline() != READY:
                    raise LedgerError("the ledger's state can't be folded")
            await lane.alone(partial(_prepared, child, wall_us))
            self._last = lane.position
        except TimeoutError as error:
            fact = f"the ledger's state was not folded in time: seconds={FOLD_SECONDS}"
            raise LedgerError(fact) from error
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def _prepared(
    child: asyncio.subprocess.Process, wall_us: Callable[[], int], position: int
) -> Act:
    """Let the other process fold up to a head that stands still, and return what stores it."""
    assert child.stdin is not None, "it was asked for"
    assert child.stdout is not None, "it was asked for"
    child.stdin.write(f"{position}\n".encode())
    try:
        await child.stdin.drain()
        head = await child.stdout.readexactly(DIGEST_BYTES + SIZE_BYTES)
        body = await child.stdout.readexactly(int.from_bytes(head[DIGEST_BYTES:]))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise LedgerError(f"the ledger's state can't be folded: position={position}") from error
    picture = Picture(position=position, digest=head[:DIGEST_BYTES], body=body)

    def store(writer: Writer) -> object:
        return store_picture(writer, picture, wall_us=wall_us())

    return store
