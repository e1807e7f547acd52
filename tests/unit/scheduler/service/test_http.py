"""What callers are answered when there is no answer."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from typing import cast

import pytest

from ledger.domain.errors import InputError, LedgerError
from scheduler.service.answering import NotNowError
from scheduler.service.http import (
    ASIDE_BYTES,
    EXTENDER,
    GATE,
    Answered,
    CallLimits,
    Calls,
    read_aside,
)
from scheduler.service.metrics import Metrics


def answered(error: Exception, limits: CallLimits) -> Answered:
    """Return what is answered of a call whose answer is this error."""

    async def fails(_: bytes) -> bytes:
        raise error

    async def body() -> bytes:
        return b""

    return asyncio.run(Calls({"claims": fails}, limits, Metrics()).answer("claims", body()))


@pytest.mark.parametrize("limits", [EXTENDER, GATE], ids=["extender", "gate"])
@pytest.mark.parametrize(
    ("error", "status"),
    [(InputError("no UID"), 400), (NotNowError("standing by"), 503), (TimeoutError(), 504)],
)
def test_what_is_no_answer_is_no_200(limits: CallLimits, error: Exception, status: int) -> None:
    """Whoever calls; the text says why."""
    found = answered(error, limits)
    assert found.status == status
    assert (str(error) or "no time left").encode() in found.body


def test_the_gate_alone_answers_for_the_ledger() -> None:
    """The API server tries again; of the extender's verbs none lets this through."""
    assert answered(LedgerError("down"), GATE).status == 503
    with pytest.raises(LedgerError):
        answered(LedgerError("down"), EXTENDER)


class Content(bytearray):
    """A body that a weak reference can be to."""


def test_a_body_that_waits_to_be_read_ends_with_its_call() -> None:
    """It counts no more then, so the queue of the thread that reads must not have it."""

    async def play() -> list[object]:
        gate = threading.Event()
        reading = asyncio.ensure_future(read_aside(lambda _: gate.wait(30), bytes(ASIDE_BYTES + 1)))
        content = Content(ASIDE_BYTES + 1)
        there = weakref.ref(content)
        waiting = asyncio.ensure_future(read_aside(len, cast("bytes", content)))
        del content
        await asyncio.sleep(0)
        assert there() is not None
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        left = there()
        gate.set()
        return [left, await reading, await read_aside(len, bytes(ASIDE_BYTES + 1))]

    assert asyncio.run(play()) == [None, True, ASIDE_BYTES + 1]
