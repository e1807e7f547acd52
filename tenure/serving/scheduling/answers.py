"""Questions to the live service, answered in a thread of its own by the commands' functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from certs.ports import Objects
from ledger.domain.errors import InputError, LedgerError
from ledger.store.open import Ledger, open_ledger
from scheduler.service.api.answers import Said, answer_routes
from scheduler.service.api.http import RefusedError, Route
from scheduler.service.api.rights import Rights
from tenure.asking import Sight
from tenure.query.questions import QUESTIONS, Asked, asked

WAITING_MAX: Final = 16
ANSWER_SECONDS: Final = 20.0
ROWS_MAX: Final = 200_000
"""Of one query: 100 MB of a process that decides beside it."""
TEXT_MAX: Final = 32 << 20
ENDS_MAX: Final = 60
END_SECONDS: Final = 1.0
"""How often it is tried to end a query of a question that is late, and how long between."""


@dataclass(slots=True)
class _Work:
    """A question on its way to the thread; `is_late`: it has timed out, `over`: it is answered."""

    question: Asked
    sight: Sight
    source: Ledger | None = None
    is_late: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class Answering:
    """
    Answers one question at a time out of the ledger, over a connection for reading.

    A thread, so that who waits for kube-scheduler does not wait for a database; one, so that
    questions take no more than one place of it.
    """

    def __init__(
        self,
        ledger: str,
        *,
        thread: ThreadPoolExecutor | None = None,
        seconds: float = ANSWER_SECONDS,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._url = ledger
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._seconds = seconds
        self._rows_max = rows_max
        self._waiting = 0
        self._answering: _Work | None = None

    def close(self) -> None:
        """Answer no more; the question that is being answered is let go."""
        if self._answering is not None:
            _end(self._answering)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, name: str, params: Sequence[tuple[str, str]], namespace: str) -> Said:
        """
        Return the answer to a question.

        Raises:
            RefusedError: too many wait, or it took too long.
            InputError: the question can't be read, or asks for too much.
            LedgerError: the ledger does not answer.
        """
        question = asked(name, params)
        if self._waiting >= WAITING_MAX:
            fact = f"too many questions wait: waiting_max={WAITING_MAX}"
            raise RefusedError(429, "TooManyRequests", fact, retry=True)
        self._waiting += 1
        one = _Work(question, Sight(namespace=namespace))
        begun = self._thread.submit(self._answered, one)
        work = asyncio.wrap_future(begun)
        work.add_done_callback(self._done)
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(work)
        except TimeoutError:
            if begun.cancel():
                work.cancel()
            else:
                _end(one)  # it has its place until it is over
            fact = f"no answer in time: seconds={self._seconds:g}"
            raise RefusedError(504, "Timeout", fact) from None

    def _done(self, work: asyncio.Future[Said]) -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # whoever waits has it; perhaps nobody does any more

    def _answered(self, work: _Work) -> Said:
        self._answering = work
        try:
            with _opened(self._url) as source:
                source.bound(self._rows_max)
                work.source = source
                if work.is_late:
                    raise LedgerError("nobody waits for the answer any more")
                answer = work.question.answer(source, work.sight)
        finally:
            self._answering = work.source = None
            work.over.set()
        text = answer.text
        if len(text) > TEXT_MAX:
            fact = f"the answer is too long: characters={len(text)}, most={TEXT_MAX}"
            raise RefusedError(413, "RequestEntityTooLarge", f"{fact}; ask for less")
        return Said(text=text, notes=answer.notes, is_no=answer.is_no)


def _end(work: _Work) -> None:
    """End what a question waits for; a database that hangs keeps nobody else waiting."""
    work.is_late = True
    threading.Thread(target=_cancel, args=(work,), name="cancel", daemon=True).start()


def _cancel(work: _Work) -> None:
    """End the queries of a question; between two of them there is none, so it is tried again."""
    for _ in range(ENDS_MAX):
        source = work.source
        if source is not None:
            source.cancel()
        if work.over.wait(END_SECONDS):
            return


def _opened(url: str) -> Ledger:
    """Open the ledger. Raises LedgerError: it is away, whatever that looks like."""
    try:
        return open_ledger(url, mode="read")
    except InputError as error:
        raise LedgerError(f"the ledger can't be opened: {error}") from error


def questions(api: Objects, answering: Answering) -> list[Route]:
    """Return the routes of the questions, for whoever may get their answers."""
    rights = Rights(api, time.monotonic)
    return answer_routes(tuple(QUESTIONS), rights, answering.answer)
