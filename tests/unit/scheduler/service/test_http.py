"""What callers are answered when there is no answer."""

from __future__ import annotations

import asyncio

import pytest

from ledger.domain.errors import InputError, LedgerError
from scheduler.service.answering import NotNowError
from scheduler.service.http import EXTENDER, GATE, Answered, CallLimits, Calls
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
