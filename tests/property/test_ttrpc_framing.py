"""The framing under NRI: however its bytes are cut, the same messages come out."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cpus.ttrpc import (
    DATA_MAX,
    PLUGIN,
    REQUEST,
    RUNTIME,
    FramingError,
    Incoming,
    Message,
    asked_in,
    refused_in,
    response,
    sent,
)
from tests.support.examples import examples

_MESSAGES = st.builds(
    Message,
    connection=st.sampled_from([PLUGIN, RUNTIME]),
    stream=st.integers(0, 2**32 - 1),
    kind=st.integers(0, 255),
    data=st.binary(max_size=64) | st.binary(min_size=4000, max_size=9000),
)


def cut(whole: bytes, data: st.DataObject) -> list[bytes]:
    """Return the bytes in pieces, some of which are empty."""
    places = st.lists(st.integers(0, len(whole)), max_size=8)
    ends = [0, *sorted(data.draw(places)), len(whole)]
    return [whole[begin:end] for begin, end in pairwise(ends)]


def ours(one: Message) -> bytes:
    """Return a message as we send it."""
    return sent(one.connection, one.stream, one.kind, one.data)


def part(connection: int, data: bytes) -> bytes:
    """Return a part of the trunk, by the published format."""
    return struct.pack(">II", connection, len(data)) + data


@settings(max_examples=examples(300))
@given(messages=st.lists(_MESSAGES, max_size=6), data=st.data())
def test_however_it_is_cut_the_same_messages_come_out(
    messages: list[Message], data: st.DataObject
) -> None:
    """Parts of the trunk cut by us, and the trunk cut by the kernel."""
    whole = b"".join(map(ours, messages))
    incoming = Incoming()
    found = [one for piece in cut(whole, data) for one in incoming.feed(piece)]
    assert found == messages


@settings(max_examples=examples(300))
@given(messages=st.lists(_MESSAGES, max_size=6), data=st.data())
def test_parts_of_two_connections_and_of_unknown_ones_may_mix(
    messages: list[Message], data: st.DataObject
) -> None:
    """The messages of each connection stay in their order; what is unknown is passed over."""
    pieces: list[tuple[int, list[bytes]]] = [(3, [b"?" * 20])]
    for connection in (PLUGIN, RUNTIME):
        own = [one for one in messages if one.connection == connection]
        whole = b"".join(
            struct.pack(">IIBB", len(one.data), one.stream, one.kind, 0) + one.data for one in own
        )
        pieces.append((connection, cut(whole, data)))
    trunk = b""
    while pieces:
        connection, waiting = data.draw(st.sampled_from(pieces))
        trunk += part(connection, waiting.pop(0))
        pieces = [one for one in pieces if one[1]]
    incoming = Incoming()
    found = [one for piece in cut(trunk, data) for one in incoming.feed(piece)]
    for connection in (PLUGIN, RUNTIME):
        assert [one for one in found if one.connection == connection] == [
            one for one in messages if one.connection == connection
        ]


@settings(max_examples=examples(100))
@given(length=st.integers(DATA_MAX + 1, 2**32 - 1), connection=st.sampled_from([PLUGIN, RUNTIME]))
def test_a_message_that_is_too_long_is_refused_by_its_header(length: int, connection: int) -> None:
    """None of its bytes is waited for."""
    header = struct.pack(">IIBB", length, 1, REQUEST, 0)
    with pytest.raises(FramingError, match="a message is too long"):
        list(Incoming().feed(part(connection, header)))
    if length > DATA_MAX + 10:
        with pytest.raises(FramingError, match="a part of the trunk is too long"):
            list(Incoming().feed(struct.pack(">II", connection, length)))


def test_the_longest_message_comes_through() -> None:
    """In one part, as the runtime sends it, and in parts that the runtime takes from us."""
    longest = Message(connection=PLUGIN, stream=1, kind=REQUEST, data=b"x" * DATA_MAX)
    header = struct.pack(">IIBB", DATA_MAX, 1, REQUEST, 0)
    assert list(Incoming().feed(part(PLUGIN, header + longest.data))) == [longest]

    left = ours(longest)
    assert list(Incoming().feed(left)) == [longest]
    while left:
        _, length = struct.unpack_from(">II", left)
        assert length <= 4096, "the runtime reads into a buffer of 4096 bytes"
        left = left[8 + length :]


@settings(max_examples=examples(200))
@given(data=st.binary(max_size=200), kind=st.integers(0, 255))
def test_any_bytes_are_read_or_refused(data: bytes, kind: int) -> None:
    """With an error of ours and no other."""
    one = Message(connection=PLUGIN, stream=1, kind=kind, data=data)
    for read in (asked_in, refused_in):
        with suppress(FramingError):
            read(one)
    incoming = Incoming()
    with suppress(FramingError):
        list(incoming.feed(data))


def test_an_answer_belongs_to_its_call() -> None:
    """By connection and stream; one without a status is no error."""
    asked = Message(connection=PLUGIN, stream=7, kind=REQUEST, data=b"")
    (answer,) = Incoming().feed(response(asked, b"payload"))
    assert (answer.connection, answer.stream, answer.kind) == (PLUGIN, 7, 2)
    assert refused_in(answer) == ""
