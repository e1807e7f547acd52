"""
What is held on each node and what changed of it since, for the node's agent.

Rule: design section 5.4.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from sys import intern
from typing import Final

from ledger.domain.log import events
from ledger.domain.log.state import Holding, node_uid_of
from scheduler.service.view import ClusterView

TAKEN_SECONDS: Final = 1.0
"""Who waited and has lost their place is answered so much later: two of a node would race."""
CHANGES_MAX: Final = 256
"""Changes that are kept of each node; who lags further behind asks for all again."""
_OfPod = (
    events.PodReserved
    | events.PodObserved
    | events.PodBound
    | events.PodAssigned
    | events.PodReleased
    | events.PodVoided
)
_UPHEAVALS: Final = (events.NodeLost, events.NodeCleared)
"""After these a node's holdings are others, or stand otherwise, all at once."""


class TooOldError(Exception):
    """What changed since then is not known any more: all must be asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to one holding of a node, and the holding now; None where it has ended."""

    position: int
    what: str
    pod_uid: str
    attempt: int
    reason: str = ""
    holding: Holding | None = None


class NodeLog:
    """The newest changes of every node, as the view folds them in."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._changes: dict[str, deque[tuple[int, str, str, int, str]]] = {}  # by UID of the node
        self._since: dict[str, int] = {}  # UID of the node -> no change up to there is kept
        self._start = view.position
        self._waits: dict[str, dict[str, asyncio.Event]] = {}  # by UID of the node, by who waits
        view.wakeups.claim_end_asked.subscribe(self._wake)
        view.wakeups.event_folded.subscribe(self._take_event)

    def holdings(self, node_uid: str) -> tuple[int, list[Holding]]:
        """Return what is held on a node, oldest first, and as of which position."""
        state = self._view.recorded(node_uid)
        held = [] if state is None else list(state.holdings.values())
        return self._view.position, sorted(held, key=lambda each: each.opened_position)

    def cpu_claims(self, node_uid: str) -> list[Holding]:
        """Return the claims that have CPUs of a node, oldest first."""
        state = self._view.recorded(node_uid)
        held = () if state is None else (one for one in state.claims.values() if one.cpuset)
        return sorted(held, key=lambda each: each.opened_position)

    def changes(self, node_uid: str, after: int) -> tuple[int, list[Change]]:
        """
        Return what changed on a node after a position, oldest first, and up to which it is all.

        Raises:
            TooOldError: nobody knows any more.
        """
        if after > self._view.position or after < self._since.get(node_uid, self._start):
            raise TooOldError
        state = self._view.recorded(node_uid)
        held = {} if state is None else state.holdings
        found = [
            Change(
                position=position,
                what=what,
                pod_uid=pod_uid,
                attempt=attempt,
                reason=reason,
                holding=held.get(f"{pod_uid}/{attempt}"),
            )
            for position, what, pod_uid, attempt, reason in self._changes.get(node_uid, ())
            if position > after
        ]
        return self._view.position, sorted(found, key=lambda each: each.position)

    async def wait(self, node_uid: str, seconds: float, by: str) -> None:
        """Wait until something changes on a node, or so long; the same who asked soon goes on."""
        waits = self._waits.setdefault(node_uid, {})
        if by in waits:
            waits[by].set()
        mine = waits[by] = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await mine.wait()
                if waits.get(by) is not mine:
                    await asyncio.sleep(TAKEN_SECONDS)
        except TimeoutError:
            pass
        finally:
            if waits.get(by) is mine:
                del waits[by]
                if not waits:
                    self._waits.pop(node_uid, None)

    def _wake(self, node_uid: str) -> None:
        for waits in self._waits.get(node_uid, {}).values():
            waits.set()

    def _take_event(
        self, position: int, event: events.LedgerEvent, _holding: Holding | None
    ) -> None:
        uid = node_uid_of(event)
        if uid is None or isinstance(event, events.NodeInventoried):
            return
        if isinstance(event, _OfPod):
            self._note(uid, position, event)
        elif isinstance(event, _UPHEAVALS):
            self._changes.pop(uid, None)
            self._since[uid] = position
        self._wake(uid)

    def _note(self, uid: str, position: int, event: _OfPod) -> None:
        kept = self._changes.setdefault(uid, deque())
        what = intern(event.event_type.split(".")[1])  # of such as `pod.reserved.v1`
        reason = event.reason if isinstance(event, events.PodReleased | events.PodVoided) else ""
        kept.append((position, what, event.pod_uid, event.attempt, reason))
        if len(kept) > CHANGES_MAX:
            self._since[uid] = max(self._since.get(uid, 0), kept.popleft()[0])
