"""Binders that are broken, each in one way that somebody could think enough."""

# ruff: noqa: ANN401, ARG002 - a job is the binder's own, and a mutant leaves out what it is given

from __future__ import annotations

import asyncio
from typing import Any, Final

from certs.ports import ApiError, ConflictError
from ledger.domain.errors import LedgerError
from ledger.store.writing.commands import Outcome, Recorded
from scheduler.bind import protocol
from scheduler.bind.protocol import (
    Act,
    Done,
    Effect,
    NoAnswer,
    RecordBound,
    Rejected,
)
from scheduler.service import outcomes
from scheduler.service.binding import Binder, binding
from scheduler.service.ports import BindCall, Chosen, Standing


class NoFence(Binder):
    """Believes a Pod that was read without a node, and lets the Binding fly."""

    async def _fence(self, job: Any) -> Effect:
        return Done()


class FenceThatChangesNothing(Binder):
    """Patches a value that is there already, so that no version moves."""

    async def _fence(self, job: Any) -> Effect:
        patch = [{"op": "test", "path": "/metadata/uid", "value": job.call.pod_uid}]
        try:
            await self.api.patch(job.path, patch)
        except (ConflictError, ApiError):
            told = await self._read(job)
            return told if isinstance(told, protocol.NotThere) else NoAnswer()
        return Done()


class AnyVersion(Binder):
    """Binds whatever version the Pod has."""

    async def _post(self, job: Any, attempt: int, version: str) -> Effect:
        event = job.chosen.reservation
        signed = self.proofs.annotations(
            event, epoch=self.recorder.epoch, position=job.position, at_us=0
        )
        body = dict(binding(job.call, version, {**event.annotations, **signed}))
        body["metadata"] = {
            key: value for key, value in body["metadata"].items() if key != "resourceVersion"
        }
        try:
            await self.api.create(f"{job.path}/binding", body)
        except (ConflictError, ApiError) as error:
            return outcomes.of_binding(error)
        return Done()


class VoidsAtOnce(Binder):
    """Takes no answer for no."""

    async def _post(self, job: Any, attempt: int, version: str) -> Effect:
        told = await super()._post(job, attempt, version)
        return protocol.NotThere() if isinstance(told, NoAnswer) else told


class SendsAgain(Binder):
    """Sends the Binding again where it got no answer, and believes the second one's refusal."""

    async def _post(self, job: Any, attempt: int, version: str) -> Effect:
        told = await super()._post(job, attempt, version)
        if isinstance(told, NoAnswer):
            told = await super()._post(job, attempt, version)
            return protocol.NotThere() if isinstance(told, Rejected) else told
        return told


class ForgetsUnknownReservations(Binder):
    """Takes a reservation without an answer for one that was not made."""

    async def _reserve(self, job: Any, attempt: int, version: str) -> Effect:
        told = await super()._reserve(job, attempt, version)
        if isinstance(told, NoAnswer):
            self.books.refused(job.chosen)
            return Rejected("no answer")
        return told


class SettlesNothing(Binder):
    """Leaves what nobody knows to be bound."""

    def settle(self, standing: Standing) -> None:
        """Do nothing."""


class ReadsByName(Binder):
    """Takes whoever has the name for the Pod that it means."""

    async def _read(self, job: Any) -> Effect:
        try:
            job.read = await self.api.read(job.path)
        except ApiError:
            return NoAnswer()
        uid = job.call.pod_uid if job.read is None else job.read["metadata"]["uid"]
        return outcomes.of_pod(job.read, uid)

    async def _fence(self, job: Any) -> Effect:
        return Done()


class NeverSaysBound(Binder):
    """Answers kube-scheduler and leaves the ledger as it is."""

    async def _done(self, job: Any, act: Act) -> Effect:
        return Done() if isinstance(act, RecordBound) else await super()._done(job, act)

    def settle(self, standing: Standing) -> None:
        """Do nothing."""


class KeepsWhatWasRefused(Binder):
    """Never gives back what the ledger did not record."""

    async def _reserve(self, job: Any, attempt: int, version: str) -> Effect:
        books = self.books
        self.books = _Keeping(books)
        try:
            return await super()._reserve(job, attempt, version)
        finally:
            self.books = books


class _Keeping:
    def __init__(self, books: Any) -> None:
        self._books = books

    def refused(self, chosen: Chosen) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._books, name)


class BindsBeforeItReserves(Binder):
    """Asks the API server while the ledger has not answered."""

    async def _record(self, new: Any, expected: Any = None) -> Outcome | LedgerError:
        answer = await super()._record(new, expected)
        reserving = new[-1].event.event_type.startswith("pod.reserved")
        if reserving and isinstance(answer, LedgerError):
            return Recorded(first=1, last=1)
        return answer


class SaysNothingOnThePod(Binder):
    """Binds without annotations."""

    async def _post(self, job: Any, attempt: int, version: str) -> Effect:
        try:
            await self.api.create(f"{job.path}/binding", binding(job.call, version, {}))
        except (ConflictError, ApiError) as error:
            return outcomes.of_binding(error)
        return Done()


class JoinsNobody(Binder):
    """Begins anew for every call, whatever is under way."""

    async def _bind(self, call: BindCall) -> str:
        job = self._job(call)
        self.start(self._run(job, None))
        return await asyncio.shield(job.answer)


MUTANTS: Final = (
    NoFence,
    FenceThatChangesNothing,
    AnyVersion,
    VoidsAtOnce,
    SendsAgain,
    ForgetsUnknownReservations,
    SettlesNothing,
    ReadsByName,
    NeverSaysBound,
    KeepsWhatWasRefused,
    BindsBeforeItReserves,
    SaysNothingOnThePod,
    JoinsNobody,
)
