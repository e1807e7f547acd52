"""
The framing under NRI: two connections of ttrpc over one socket, each with unary calls alone.

Rule: containerd/ttrpc PROTOCOL.md, "Message Frame"; containerd/nri pkg/net/multiplex. A part of the
trunk is: connection, length, bytes; a message in a connection: length, stream, type, flags, data.
Pure: bytes in, messages out, and back. How long a peer may take is the business of the socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.protobuf import Tables, classes
from ledger.domain.errors import TenureError

DATA_MAX: Final = 4 * 2**20  # in a message; no more is let through
PLUGIN: Final = 1  # the connection on which the runtime calls the plugin
RUNTIME: Final = 2  # the connection on which the plugin calls the runtime
REQUEST: Final = 1
RESPONSE: Final = 2
_PART: Final = struct.Struct(">II")
_MESSAGE: Final = struct.Struct(">IIBB")
_PART_MAX: Final = _MESSAGE.size + DATA_MAX
_SENT_MAX: Final = 4096  # the runtime's buffer: a longer part may not fit what is left of it
_TABLES: Final[Tables] = {
    "Request": (
        (1, "service", "string"),
        (2, "method", "string"),
        (3, "payload", "bytes"),
        (4, "timeout_nano", "int64"),
    ),
    "Status": ((1, "code", "int32"), (2, "message", "string")),
    "Response": ((1, "status", "Status"), (2, "payload", "bytes")),
}
message: Final = classes("ttrpc", _TABLES)
_Request: Final = message("Request")
_Response: Final = message("Response")


class FramingError(TenureError):
    """The peer says what the protocol does not know. Give the connection up, and make another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a connection; `stream` ties a response to its request."""

    connection: int
    stream: int
    kind: int
    data: bytes


class Incoming:
    """What came over the trunk so far; however it was cut, the same messages come out."""

    def __init__(self) -> None:
        self._trunk = bytearray()
        self._connections = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def feed(self, received: bytes) -> Iterator[Message]:
        """
        Take bytes of the trunk, and yield the messages that are whole by now.

        A connection that nobody knows is passed over, as the protocol demands.

        Raises:
            FramingError: a part or a message is longer than the protocol lets through.
        """
        self._trunk += received
        while len(self._trunk) >= _PART.size:
            connection, length = _PART.unpack_from(self._trunk)
            if length > _PART_MAX:
                raise FramingError(f"a part of the trunk is too long: bytes={length}")
            if len(self._trunk) < _PART.size + length:
                return
            part = bytes(self._trunk[_PART.size : _PART.size + length])
            del self._trunk[: _PART.size + length]
            if connection in self._connections:
                yield from self._messages(connection, part)

    def _messages(self, connection: int, part: bytes) -> Iterator[Message]:
        waiting = self._connections[connection]
        waiting += part
        while len(waiting) >= _MESSAGE.size:
            length, stream, kind, _ = _MESSAGE.unpack_from(waiting)
            if length > DATA_MAX:
                raise FramingError(f"a message is too long: bytes={length}")
            if len(waiting) < _MESSAGE.size + length:
                return
            data = bytes(waiting[_MESSAGE.size : _MESSAGE.size + length])
            del waiting[: _MESSAGE.size + length]
            yield Message(connection=connection, stream=stream, kind=kind, data=data)


def sent(connection: int, stream: int, kind: int, data: bytes) -> bytes:
    """Return a message as bytes of the trunk, in parts that the runtime takes."""
    assert len(data) <= DATA_MAX, len(data)
    whole = _MESSAGE.pack(len(data), stream, kind, 0) + data
    parts = (whole[at : at + _SENT_MAX] for at in range(0, len(whole), _SENT_MAX))
    return b"".join(_PART.pack(connection, len(part)) + part for part in parts)


def request(service: str, method: str, payload: bytes, seconds: float) -> bytes:
    """Return the first call of the runtime, which may take so long, as bytes of the trunk."""
    nanos = int(seconds * 10**9)
    data = _Request(service=service, method=method, payload=payload, timeout_nano=nanos)
    return sent(RUNTIME, 1, REQUEST, data.SerializeToString())


def response(asked: Message, payload: bytes) -> bytes:
    """Return the answer to a call of the plugin, never an error, as bytes of the trunk."""
    data = _Response(payload=payload).SerializeToString()
    return sent(asked.connection, asked.stream, RESPONSE, data)


def asked_in(one: Message) -> tuple[str, bytes]:
    """Return the method and payload of a request. Raises FramingError: it is no request."""
    read = _read(_Request, one)
    return read.method, read.payload


def refused_in(one: Message) -> str:
    """Return why a call was refused, empty = it was not. Raises FramingError: no response."""
    status = _read(_Response, one).status
    return f"{status.message} (code {status.code})" if status.code else ""


def _read(kind: Any, one: Message) -> Any:  # noqa: ANN401 - a message
    try:
        return kind.FromString(one.data)
    except DecodeError as error:
        raise FramingError(f"no message of ttrpc: {error}") from error
