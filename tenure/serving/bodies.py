"""Bodies of requests: how much of all of them together a listener has in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.typedefs import Handler, Middleware

BYTES_MAX: Final = 17 << 20
"""Two of the largest reviews at once, where one in a thousand is larger than `SMALL_BYTES`."""
BUFFERED_BYTES: Final = 512 << 10
"""What the connection of a larger body has in memory beside it, for TLS above all."""
READ_BYTES: Final = 32 << 10
"""Of each connection, twice as much is buffered before anyone reads it."""
SMALL_BYTES: Final = 64 << 10
"""A body up to this has as much room again: large ones, however many, never keep it out."""

TOO_MANY: Final = "too many bytes at once: send it again\n"
_log: Final = logging.getLogger("tenure.listening")


class Body:
    """
    One body, from its first byte until its request is answered.

    Attributes:
        is_whole: all of it is here; such a one is never given up.
        is_given_up: it had to make room.
    """

    def __init__(self, give_up: Callable[[], object]) -> None:
        self.give_up = give_up
        self.size = 0
        self.is_whole = False
        self.is_given_up = False

    @property
    def cost(self) -> int:
        """Its bytes in memory, with those of its connection."""
        return self.size + (BUFFERED_BYTES if self.size > SMALL_BYTES else 0)


class Bodies:
    """
    The bodies of all connections of a listener.

    Where they are too many bytes, the one that has been arriving for the longest is given up: a
    caller that sends slowly keeps no other out.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size = 0
        self._there: dict[Body, None] = {}  # oldest first

    def begin(self, give_up: Callable[[], object]) -> Body:
        """
        Count a body until its `end`.

        Args:
            give_up: lets go of what is here of it, and lets its caller ask again.
        """
        body = Body(give_up)
        self._there[body] = None
        return body

    def end(self, body: Body) -> None:
        """Count a body no more."""
        if body in self._there:
            del self._there[body]
            self.size -= body.cost

    def grow(self, body: Body, count: int) -> None:
        """Count bytes that came of a body, none = its end, and make room for them."""
        body.is_whole = not count
        if body.is_given_up or body.is_whole:
            return
        self.size -= body.cost
        body.size += count
        self.size += body.cost
        is_small = body.size <= SMALL_BYTES
        most = 2 * self.bytes_max if is_small else self.bytes_max
        if self.size <= most:
            return
        others = [one for one in self._there if one is not body and not one.is_whole]
        for one in (*others, body):
            if self.size > most and (one.size > SMALL_BYTES or is_small):
                one.is_given_up = True
                self.end(one)
                one.give_up()


class _Counted:
    """The stream of a body, which counts what is read of it."""

    def __init__(self, stream: StreamReader, grow: Callable[[int], None]) -> None:
        self._stream = stream
        self._grow = grow

    async def readany(self) -> bytes:
        """Return what is here; nothing at its end."""
        try:
            chunk = await self._stream.readany()
        except ConnectionError as error:
            error.__traceback__ = None  # the stream has it, and a frame of it the body: a cycle
            raise ConnectionResetError(str(error)) from None
        self._grow(len(chunk))
        return chunk

    def set_read_chunk_size(self, _: int) -> None:
        """Buffer no more than usual: aiohttp would buffer a second body."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        return getattr(self._stream, name)


def counted(bodies: Bodies) -> Middleware:
    """Return what counts the bodies of an application's requests over HTTP/1.1."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.can_read_body:
            return await handler(request)
        task = cast("asyncio.Task[object]", asyncio.current_task())
        body = bodies.begin(partial(task.cancel, TOO_MANY))
        # Not `content`: that would be what it is now for good.
        stream = _Counted(request._payload, lambda count: bodies.grow(body, count))  # noqa: SLF001
        request._payload = stream  # type: ignore[assignment]  # noqa: SLF001 - every way to read it
        try:
            return await handler(request)
        except asyncio.CancelledError:
            if not body.is_given_up or task.uncancel():
                raise
        finally:
            bodies.end(body)
        _log.warning("a body was given up", extra={"caller": request.remote, "size": body.size})
        # No error: one has what is here of it.
        answer = web.Response(status=503, text=TOO_MANY, headers={"Retry-After": "1"})
        answer.force_close()
        return answer

    return count
