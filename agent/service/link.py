"""The process that follows the service, and what everybody else on the node reads of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Final, Protocol

import msgspec

from agent.decide.confirming import Said
from agent.decide.following import WAIT_SECONDS, Following, failed, refused, told_all, told_changes
from agent.decide.node_holdings import NodeHoldings
from agent.https import Caller, NoAnswerError
from agent.service import wire
from agent.witness.history import Shown
from ledger.domain.errors import InputError, TenureError

PATH: Final = "/agents/v1"
CALL_SECONDS: Final = 15.0
_GOOD: Final = 200

_log: Final = logging.getLogger("tenure.agent.service")


class HoldingsOfNode(Protocol):
    """What is known of this node's holdings. Reading it never waits."""

    @property
    def holdings(self) -> NodeHoldings | None:
        """Return the last word; None = there was none yet."""

    @property
    def is_heard(self) -> bool:
        """Tell whether that is the service's word of now, and no older one."""

    def age_seconds(self) -> float | None:
        """Return how long ago the service said so; None = nobody knows."""


class RefusedError(TenureError):
    """The service took no confirmation. Say it again later."""


class ServiceLink:
    """
    Follows the service; one of each process.

    Attributes:
        state: where we stand with it.
        changed: called after each answer and each failure; must be quick.
        sequence: of the last message of this node that was taken; None = messages have no numbers.
        reads_claims: we see what kubelet has of claims, and may be asked; set before we ask.
        mode: how containers here are shown their cards, which the service compares; likewise.
        again_seconds: after which the service wants to be asked for a checkpoint again.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
        known: NodeHoldings | None = None,
        age_seconds: float | None = None,
    ) -> None:
        """
        Begin.

        Args:
            draw: returns a number from 0 to 1, another one each time.
            known: what a copy of an earlier word says.
            age_seconds: how old that is.
        """
        self._caller = caller
        self._clock = clock
        self._draw = draw
        self._heard_at = None if age_seconds is None else clock() - age_seconds
        self.state = Following(known=known)
        self.reads_claims = False
        self.mode = ""
        self.changed: list[Callable[[], None]] = []
        self.sequence: int | None = None
        self.again_seconds = 0
        self._turn = asyncio.Lock()

    @property
    def holdings(self) -> NodeHoldings | None:
        """Return the last word."""
        return self.state.known

    @property
    def is_heard(self) -> bool:
        """Tell whether that is the service's word of now."""
        return self.state.is_heard

    def age_seconds(self) -> float | None:
        """Return how long ago the service said so."""
        return None if self._heard_at is None else max(0.0, self._clock() - self._heard_at)

    async def run(self) -> None:
        """Ask, and ask again, until cancelled."""
        while True:
            pause = self.state.ask().pause_seconds
            await asyncio.sleep(pause * (1 + self._draw()) / 2)
            async with self._turn:
                self._become(await self._asked())

    async def confirm(self, said: Said, *, after: int | None = None) -> wire.Verdicts:
        """
        Confirm what is to be said.

        Args:
            after: `sequence` as it was before anybody looked: it does not count if another message
                was taken since.

        Raises:
            NoAnswerError, RefusedError: say it again later.
            InputError: we have no token, or the answer can't be read.
        """
        body = wire.confirmation(said, None if after is None else after + 1)
        path = f"{PATH}/confirmations"
        answer = await self._caller.call(path, seconds=CALL_SECONDS, body=body)
        if answer.status != _GOOD:
            raise RefusedError(f"{answer.status}: {wire.read_reason(answer.body)}")
        verdicts = wire.read_verdicts(answer.body)
        self.sequence = wire.read_beside(answer.body).sequence
        return verdicts

    async def checkpoint(self, kept: str) -> Shown:
        """
        Return what the ledger is by the service, and the proof that it grew out of what was kept.

        Raises:
            NoAnswerError, RefusedError: ask again later.
            InputError: we have no token, or the answer can't be read.
        """
        body = msgspec.json.encode({"kept": kept})
        # Who asks seldom takes the connection of changes: one of its own costs more than an answer.
        async with self._turn if self.again_seconds > WAIT_SECONDS else nullcontext():
            answer = await self._caller.call(f"{PATH}/checkpoint", seconds=CALL_SECONDS, body=body)
        if answer.status != _GOOD:
            raise RefusedError(f"{answer.status}: {wire.read_reason(answer.body)}")
        shown = wire.read_checkpoint(answer.body)
        self.again_seconds = shown.again_seconds
        return shown

    async def _asked(self) -> Following:
        state, after = self.state, self.state.ask().after
        path, seconds = f"{PATH}/holdings?mode={self.mode}", CALL_SECONDS
        if after is not None:
            path = f"{PATH}/changes?after={after}&seconds={WAIT_SECONDS}&mode={self.mode}"
            claims = (state.known and state.known.cpu_claims) or ()
            path += f"&cpu_claims={len(claims)}/{claims[-1].position if claims else 0}"
            if self.reads_claims:
                path += f"&claims={state.asked.version}"
            seconds += WAIT_SECONDS
        try:
            answer = await self._caller.call(path, seconds=seconds)
            if answer.status != _GOOD:
                words = wire.read_reason(answer.body)
                return refused(state, answer.status, words, retry_after=answer.retry_after)
            beside = wire.read_beside(answer.body)
            if after is None:
                told = told_all(state, *wire.read_holdings(answer.body))
            else:
                told = told_changes(state, *wire.read_changes(answer.body))
        except (NoAnswerError, InputError) as error:
            return failed(state, str(error))
        self.sequence = beside.sequence
        known = told.known and replace(told.known, cpu_claims=beside.cpu_claims)
        return replace(told, known=known) if told.is_heard else told

    def _become(self, state: Following) -> None:
        before, self.state = self.state, state
        if state.is_heard:
            self._heard_at = self._clock()
        if state.problem != before.problem:
            if state.problem:
                _log.warning("the service is not heard", extra={"reason": state.problem})
            else:
                _log.info("the service is heard")
        for tell in self.changed:
            tell()
