"""
How an agent follows the service: what it asks next, and what each answer changes.

Rule: docs/contracts/agents.md, "Answers" and "Errors". Pure: who calls, waits and draws is the
process (`agent/service/link.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from agent.decide import node_holdings
from agent.decide.claim_ends import NOTHING_ASKED, AskedClaims

WAIT_SECONDS: Final = 25
"""For so long the service may keep a question for changes open, which is the most that it does."""
BACKOFF_SECONDS: Final = 0.5
BACKOFF_SECONDS_MAX: Final = 30.0
RETRY_AFTER_SECONDS_MAX: Final = 60.0
SETTLE_SECONDS: Final = 0.2
"""Changes beyond an answer's position are told again and again until it has come to them."""
_DOUBLINGS_MAX: Final = 10

EXPIRED: Final = 410
OTHER_NODE: Final = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """
    What is asked next: all holdings, or changes `after` a position.

    At most `pause_seconds` are waited before, and at least half of them.
    """

    after: int | None
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """
    Where an agent stands with the service.

    Attributes:
        known: the last word, of the service or of a copy of it; None = nothing is known.
        is_heard: the last question was answered, so that `known` is the service's word of now.
        again: what changed is not known: all holdings are asked for.
        failures: questions in a row that brought nothing.
        retry_after: seconds that the service wants to be left alone.
        problem: why the last question was not answered.
        settles: the last answer told changes, and its position has not come to them.
        asked: of which claims that end the last answer asked.
    """

    known: node_holdings.NodeHoldings | None = None
    is_heard: bool = False
    again: bool = True
    failures: int = 0
    retry_after: float = 0.0
    problem: str = ""
    settles: bool = False
    asked: AskedClaims = NOTHING_ASKED

    def ask(self) -> Ask:
        """Return what is to be asked next, and when."""
        pause = SETTLE_SECONDS if self.settles else 0.0
        if self.failures:
            doublings = min(self.failures - 1, _DOUBLINGS_MAX)
            pause = min(BACKOFF_SECONDS * 2**doublings, BACKOFF_SECONDS_MAX)
        pause = max(pause, 2 * self.retry_after)  # half of it is waited at least
        after = None if self.again or self.known is None else self.known.position
        return Ask(after=after, pause_seconds=pause)


def told_all(
    state: Following,
    origin: node_holdings.Origin,
    position: int,
    held: Iterable[node_holdings.HeldByPod],
) -> Following:
    """Take an answer with all holdings: whatever was known before counts no more."""
    known = node_holdings.all_holdings(origin, position, held)
    # What failed before is forgotten by the first answer to changes: else a service that answers
    # 410 to each of them would be asked without a pause.
    return Following(known=known, is_heard=True, again=False, failures=state.failures)


def told_changes(
    state: Following,
    origin: node_holdings.Origin,
    position: int,
    changes: Iterable[node_holdings.Change],
    asked: AskedClaims = NOTHING_ASKED,
) -> Following:
    """Take an answer with changes; where they do not follow, ask for all holdings."""
    known, told = state.known, tuple(changes)
    after = None if known is None else node_holdings.after_changes(known, origin, position, told)
    if after is None:
        return failed(replace(state, again=True), "the ledger is another one: asking for all again")
    settles = any(change.position > position for change in told)
    return Following(known=after, is_heard=True, again=False, settles=settles, asked=asked)


def refused(state: Following, status: int, message: str, *, retry_after: float = 0.0) -> Following:
    """
    Take an answer that is none.

    After 410 all is asked for again. After 409 the Node of our token is gone, and with it what was
    held there. Anything else says nothing of the holdings: the last word stays, as an old one.
    """
    after = failed(state, f"{status}: {message}")
    wanted = min(max(0.0, retry_after), RETRY_AFTER_SECONDS_MAX)
    if status == EXPIRED:
        return replace(after, again=True)
    if status == OTHER_NODE:
        return replace(after, again=True, known=None, retry_after=wanted)
    return replace(after, again=state.again or status == 404, retry_after=wanted)


def failed(state: Following, reason: str) -> Following:
    """Take note that a question was not answered."""
    return replace(
        state,
        is_heard=False,
        failures=state.failures + 1,
        retry_after=0.0,
        problem=reason,
        settles=False,
    )
