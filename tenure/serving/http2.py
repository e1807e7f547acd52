"""One connection of HTTP/2, with the bounds that our connections of HTTP/1.1 have."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, cast

from aiohttp.web import HTTPRequestEntityTooLarge, HTTPServiceUnavailable
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, GoAwayFrame, HeadersFrame

from tenure.serving.bodies import TOO_MANY, Bodies, Body

STREAMS_MAX: Final = 250
"""Calls of one connection at once, as many as Go's server takes."""
HEADERS_BYTES_MAX: Final = 16_384
_STREAM_WINDOW: Final = 1 << 20
_WINDOW: Final = 16 << 20
"""What may be on its way to us unread: a question is then sent without waiting for us."""
_FRAME_MAX: Final = 16_384
EMPTY_MAX: Final = 1_000
"""
Frames that bring nothing, of one connection: they begin no call and have no bytes of one. A call
may have `EMPTY_OF_A_CALL` more, and its answer one for each KiB, for a caller makes room for it.
"""
EMPTY_OF_A_CALL: Final = 10
TURN_SECONDS: Final = 0.005
"""How long frames of one connection are read before others have their turn."""

MALFORMED: Final = "malformed request"
_log: Final = logging.getLogger("tenure.listening")

Answer = Callable[[str, str, Awaitable[bytes]], Awaitable[tuple[int, str, bytes]]]
"""
Told method, path and body of a call; says status, content type and body, and bounds how long it
waits. A body that is too large raises aiohttp's `HTTPRequestEntityTooLarge`.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class _Stream:
    """
    One call.

    Attributes:
        whole: the body, once its end is here.
        body: as it is counted.
        unsent: what is left of the answer, None before there is one.
        since: when it was last worked on.
        task: answers it.
    """

    whole: asyncio.Future[bytes]
    body: Body
    since: float
    parts: list[bytes] = field(default_factory=list)
    is_ended: bool = False
    unsent: memoryview | None = None
    task: asyncio.Task[None] | None = None


class _Frames(FrameBuffer):
    """What came, frame by frame, with bounds on what brings nothing and on a turn's time."""

    def __init__(self) -> None:
        super().__init__(server=True)
        self.empty = 0
        self.is_late = False
        self._until = 0.0
        self._header_bytes = 0

    def begin(self) -> None:
        self.is_late, self._until = False, 0.0

    def __next__(self) -> Frame:
        now = time.monotonic()
        if not self._until:
            self._until = now + TURN_SECONDS
        elif now > self._until:
            self.is_late = True
            raise StopIteration
        return super().__next__()

    def _update_header_buffer(self, f: Frame | None) -> Frame | None:
        if isinstance(f, HeadersFrame | ContinuationFrame):
            if isinstance(f, HeadersFrame):
                self.empty -= EMPTY_OF_A_CALL
                self._header_bytes = 0
            self._header_bytes += len(f.data)
            if self._header_bytes > HEADERS_BYTES_MAX:
                raise DenialOfServiceError("too many bytes of headers")
        elif not (isinstance(f, DataFrame) and f.data):
            self.empty += 1
            if self.empty > EMPTY_MAX:
                raise DenialOfServiceError("too many frames that bring nothing")
        return super()._update_header_buffer(f)


class Http2Connection(asyncio.Protocol):
    """
    Answers the calls of one connection, each in a task.

    Args:
        bodies: of all connections.
        body_bytes_max: of one call.
        answering: keeps the connection for as long as a call is being answered.
        is_silent: callers should look for another replica: told so once they are answered.
        idle_seconds: how long it may be open without a call, and an answer not be fetched.
    """

    def __init__(
        self,
        answer: Answer,
        answering: Callable[[Http2Connection], AbstractContextManager[None]],
        is_silent: Callable[[], bool],
        *,
        bodies: Bodies,
        body_bytes_max: int,
        idle_seconds: float,
    ) -> None:
        self._answer = answer
        self._answering = answering
        self._is_silent = is_silent
        self._bodies = bodies
        self._body_bytes_max = body_bytes_max
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._is_full = False
        self._active = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._h2 = H2Connection(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                # What we say ourselves needs no look.
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                normalize_inbound_headers=False,  # of cookies
            )
        )
        self._h2.incoming_buffer = self._frames = _Frames()
        self._h2.decoder.max_header_list_size = HEADERS_BYTES_MAX
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
            },
        )

    # --- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are, and begin to count how long nothing is asked."""
        self._transport = cast("asyncio.Transport", transport)  # libuv's is none by its class
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        self._flush()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whyever
        """Forget what was being sent, and end the calls: nobody waits for their answers."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams.values():
            self._give_up(stream)
        self._streams.clear()

    def pause_writing(self) -> None:
        """Read no more of a caller that does not read."""
        self._is_full = True
        self._read_on()

    def resume_writing(self) -> None:
        """Read on."""
        self._is_full = False
        self._read_on()

    def _read_on(self) -> None:
        """Take more from the caller where there is room for our answers and for what it sends."""
        if self._transport is None:
            return
        if self._is_full or self._frames.is_late:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Take what came, as far as time allows; who breaks the protocol is told so and cut off."""
        was_late = self._frames.is_late
        self._frames.begin()
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            assert self._transport is not None, "it was connected"
            caller, *_ = self._transport.get_extra_info("peername")
            _log.warning(MALFORMED, extra={"caller": caller, "error": type(error).__name__})
            self._flush()
            self.force_close()
            return
        self._flush()
        if self._frames.is_late:
            self._loop.call_soon(self._take_more)
        if self._frames.is_late != was_late:
            self._read_on()

    def _take_more(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.data_received(b"")

    def close(self) -> None:
        """Take no more calls, and close once those under way are answered."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        last = self._h2.highest_inbound_stream_id
        self._transport.write(GoAwayFrame(0, last_stream_id=last).serialize())
        self._flush()

    def force_close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.close()

    async def finish(self, seconds: float) -> None:
        """Close it once calls under way are answered, or after so long."""
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        self.force_close()

    def _flush(self) -> None:
        """Send what there is to say; after the last word close."""
        said = self._h2.data_to_send()
        if said and self._transport is not None:
            self._transport.write(said)
        if self._is_closing and not self._streams:
            self.force_close()

    def _look(self) -> None:
        """Close a connection that nobody uses, and give up answers that nobody fetches."""
        oldest = self._loop.time() - self._idle_seconds
        if not self._streams and not self._tasks and self._active <= oldest:
            self.close()
            return
        for number, stream in list(self._streams.items()):
            if stream.unsent is not None and stream.since <= oldest:
                del self._streams[number]
                self._h2.reset_stream(number, ErrorCodes.CANCEL)
        self._flush()
        self._timer = self._loop.call_later(self._idle_seconds / 4, self._look)

    # --- calls --------------------------------------------------------------------------------

    def _take(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived():
                self._begin(event)
            case events.DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                stream = self._streams.get(event.stream_id)
                if stream is not None and not stream.whole.done():
                    self._put(stream, event.data)
            case events.StreamEnded():
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    stream.is_ended = stream.body.is_whole = True
                    if not stream.whole.done():
                        stream.whole.set_result(b"".join(stream.parts))
                        stream.parts.clear()
            case events.StreamReset():
                stream = self._streams.pop(event.stream_id, None)
                if stream is not None:
                    self._give_up(stream)
            case events.WindowUpdated() | events.RemoteSettingsChanged():
                for number, one in list(self._streams.items()):
                    if one.unsent is not None:
                        self._send(number, one)
            case events.ConnectionTerminated():
                self.force_close()
            case _:
                pass

    def _begin(self, event: events.RequestReceived) -> None:
        number = event.stream_id
        # Calls that their caller gave up count until they have ended.
        if self._is_closing or len(self._tasks) >= STREAMS_MAX:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        method = path = b""
        for name, value in event.headers:
            if name == b":method":
                method = value
            elif name == b":path":
                path = value
        # By its number: what the stream refers to must not refer to it, or only gc frees its body.
        body = self._bodies.begin(
            lambda: self._refuse(self._streams.get(number), HTTPServiceUnavailable(text=TOO_MANY))
        )
        stream = _Stream(whole=self._loop.create_future(), body=body, since=self._loop.time())
        self._streams[number] = stream
        words = method.decode("latin-1"), path.partition(b"?")[0].decode("latin-1")
        task = stream.task = self._loop.create_task(self._run(number, stream, *words))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._end(stream, task))

    def _end(self, stream: _Stream, task: asyncio.Task[None]) -> None:
        """Let go of a call that is over: it and its task refer to each other until then."""
        self._tasks.discard(task)
        stream.task = None
        self._bodies.end(stream.body)

    def _put(self, stream: _Stream, data: bytes) -> None:
        if not data:
            return
        size, most = stream.body.size + len(data), self._body_bytes_max
        if size > most:
            self._refuse(stream, HTTPRequestEntityTooLarge(max_size=most, actual_size=size))
        else:
            stream.parts.append(data)
            self._bodies.grow(stream.body, len(data))

    @staticmethod
    def _refuse(stream: _Stream | None, error: Exception) -> None:
        if stream is None:
            return
        stream.parts.clear()
        if not stream.whole.done():  # its call has ended, and has not given its body back yet
            stream.whole.set_exception(error)

    @staticmethod
    def _give_up(stream: _Stream) -> None:
        stream.whole.cancel()
        if stream.task is not None:
            stream.task.cancel()

    async def _run(self, number: int, stream: _Stream, method: str, path: str) -> None:
        with self._answering(self):
            try:
                answered = await self._answer(method, path, stream.whole)
            except Exception:  # noqa: BLE001 - ours; whoever waits hears of it
                _log.exception("a call failed", extra={"path": path})
                answered = (500, "text/plain", b"500: Internal Server Error")
        if stream.whole.done() and not stream.whole.cancelled():
            stream.whole.exception()  # nobody asks for it where a path is unknown
        self._active = self._loop.time()
        if self._streams.get(number) is stream:
            self._say(number, stream, answered)
        self._flush()
        if self._is_silent():
            self.close()

    def _say(self, number: int, stream: _Stream, answered: tuple[int, str, bytes]) -> None:
        status, kind, body = answered
        # A length would be a new word in HPACK's table each time; the end of the stream says it.
        self._h2.send_headers(
            number,
            [
                (b":status", b"%d" % status),
                (b"content-type", kind.encode()),
                (b"x-content-type-options", b"nosniff"),
            ],
        )
        stream.since, stream.unsent = self._active, memoryview(body)
        self._send(number, stream)

    def _send(self, number: int, stream: _Stream) -> None:
        assert stream.unsent is not None, "it is answered"
        while True:
            room = min(self._h2.local_flow_control_window(number), _FRAME_MAX)
            if room <= 0 and stream.unsent:  # it may be less than nothing
                return
            part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            self._h2.send_data(number, bytes(part), end_stream=not stream.unsent)
            self._frames.empty -= len(part) >> 10
            stream.since = self._loop.time()
            if not stream.unsent:
                break
        if not stream.is_ended:
            self._h2.reset_stream(number, ErrorCodes.NO_ERROR)
        self._streams.pop(number, None)
