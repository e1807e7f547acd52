"""Ends of claims that wait for the word of their nodes, and what is written on claims meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from certs.ports import ApiError, ConflictError, Object, Objects
from ledger.domain.resources import ANNOTATION_TENURE_CONFIRMED, ANNOTATION_TENURE_FENCED
from ledger.domain.systems import Claimant
from scheduler.gate.claims import ClaimSeen
from scheduler.gate.decide import Standing
from scheduler.gate.leaving import ON_LOST_NODE, STILL_USED, Stays
from scheduler.service.budgets import Delays
from scheduler.service.claim_ends import ClaimEnds
from scheduler.service.claims import ClaimBook, claim_path
from scheduler.service.confirming import Confirming
from scheduler.service.ports import Clock

_log: Final = logging.getLogger("tenure.scheduler.gate")


class Leaves(Protocol):
    """
    Who says that what a claim has may go; see `scheduler.service.guard`.

    Attributes:
        asks: what nodes are asked.
    """

    asks: ClaimEnds

    def runs(self, pod_uid: str) -> bool:
        """Tell whether a Pod has a node and has not ended."""

    def kept(
        self, name: str, standing: Standing | None, consumers: Sequence[Claimant]
    ) -> Stays | None:
        """Return why what a claim has stays, given who uses it or did so last."""

    def ask(self, standing: Standing, consumers: Sequence[Claimant]) -> None:
        """Ask the node of a claim whether nothing of it is left."""


async def fence(api: Objects, claim: ClaimSeen) -> None:
    """Move the claim's version, so that a write on the one before is stored nowhere."""
    await _annotate(api, claim, ANNOTATION_TENURE_FENCED, "resourceVersion", str(claim.version))


async def _annotate(api: Objects, claim: ClaimSeen, key: str, field: str, same: str) -> bool:
    """Annotate a claim with its version if a field is the same; tell whether it needs no more."""
    only: Object = {"op": "test", "path": f"/metadata/{field}", "value": same}
    place = f"/metadata/annotations/{key.replace('/', '~1')}"
    note: Object = {"op": "add", "path": place, "value": str(claim.version)}
    first: Object = {"op": "add", "path": "/metadata/annotations", "value": {}}
    for operations in ([only, note], [only, first, note]):  # it may have no annotations
        try:
            await api.patch(claim_path(claim.namespace, claim.name), operations)
        except ConflictError:
            continue  # it has no annotations, or has moved by itself
        except ApiError as error:
            words = {"claim": claim.full_name, "reason": str(error), "annotation": key}
            _log.warning("not annotated", extra=words)
            return False
        else:
            break
    return True


class WaitingEnds:
    """Claims that are to go, and stay until their node says that nothing of them is left."""

    def __init__(
        self,
        book: ClaimBook,
        api: Objects,
        clock: Clock,
        leaving: Leaves,
        confirming: Confirming,
    ) -> None:
        self._book = book
        self._api = api
        self._clock = clock
        self._leaving = leaving
        self._confirming = confirming
        self._held_back: set[str] = set()  # UIDs of claims whose release was refused
        self._unlooked: set[str] = set()  # UIDs of claims that held something as we began
        self._waits: dict[str, tuple[str, str, float]] = {}  # claim -> node, holding, since when
        self.delays = Delays[str](clock.monotonic)  # claim -> when the API server is asked again
        self.forced: dict[str, tuple[str, str, str]] = {}  # claim -> holding let go, why, by whom

    def begin(self) -> Collection[str]:
        """Take every claim that holds something for one not looked at yet; return their UIDs."""
        self._unlooked = set(self._book.standing_uids())
        return self._unlooked

    def hold_back(self, uid: str) -> None:
        """Take note that a claim's release was refused until its node has confirmed it."""
        self._held_back.add(uid)

    def key_of(self, uid: str) -> str:
        """Return the key of what of a claim waits for its node, empty where nothing does."""
        return self._waits.get(uid, ("", ""))[1]

    def waiting(self, node: str = "") -> dict[str, float]:
        """Return the keys of ends that wait, and since when by our clock; no node = of all."""
        return {key: since for name, key, since in self._waits.values() if node in {"", name}}

    async def is_gone(self, standing: Standing) -> bool:
        """Tell whether the API server itself says that it has no such claim."""
        opening = standing.opening
        uid = opening.claim_uid
        if not self.delays.is_due(uid):
            return False
        try:
            is_there = await self._confirming.is_there(uid, opening.namespace, opening.claim_name)
        except ApiError:
            is_there = True
        if is_there and uid not in self._book.seen:  # no answer, or one that can't be read
            self.delays.failed(uid)
        return not is_there

    async def ask(
        self, uid: str, seen: ClaimSeen | None, users: Sequence[Claimant], kept: Stays | None
    ) -> bool:
        """
        Ask a claim's node where its end waits for that; tell whether it is to be looked at again.

        Its controller tries again at ever longer delays, so it is woken once the node has answered.
        Refusals from before we began are not known: all claims that could wait so are asked about.
        """
        standing = self._book.standing(uid)
        if standing is None:
            self._unlooked.discard(uid)
            self.over(uid)
            return False
        if kept is not None:
            self.forced.pop(uid, None)  # a word of before it stayed counts no more
        is_stored = seen is not None and seen.allocated is not None
        asks = kept is not None and kept.asks
        if asks and not is_stored and not await self._is_taken(standing, seen):
            return True  # its Pods may start yet: a word of now would say nothing of them
        is_new = is_stored and uid in self._unlooked
        is_new = is_new and self._book.is_guarded(standing.opening.results)
        if is_stored:
            self._unlooked.discard(uid)
        if asks and (is_new or not is_stored or uid in self._held_back):
            if is_stored:
                self._held_back.add(uid)
            self._leaving.ask(standing, users)
            _, before, since = self._waits.get(uid, ("", "", 0.0))
            if before != standing.key:
                since = self._clock.monotonic()
            self._waits[uid] = standing.opening.node_name, standing.key, since
            return True
        self._wait_no_more(uid)
        if kept is not None and kept.reason == STILL_USED:
            self._leaving.asks.deny(uid)  # it may have been asked of before that was known
        if seen is None:
            return True
        if uid in self._held_back:
            self._held_back.discard(uid)
            may_go = kept is None or kept.reason == ON_LOST_NODE
            if may_go and is_stored and not await self._woken(seen):
                self._held_back.add(uid)
                return True
        return False

    async def _woken(self, claim: ClaimSeen) -> bool:
        if not self.delays.is_due(claim.uid):
            return False
        is_woken = await _annotate(self._api, claim, ANNOTATION_TENURE_CONFIRMED, "uid", claim.uid)
        (self.delays.over if is_woken else self.delays.failed)(claim.uid)
        return is_woken

    async def _is_taken(self, standing: Standing, seen: ClaimSeen | None) -> bool:
        """Tell whether what a claim had was taken away for good, not only unseen so far."""
        if seen is not None:
            return standing.stored and seen.version > standing.fence
        _, waits, _ = self._waits.get(standing.opening.claim_uid, ("", "", 0.0))
        return waits == standing.key or await self.is_gone(standing)

    def _wait_no_more(self, uid: str) -> None:
        self._waits.pop(uid, None)
        self._leaving.asks.forget(uid)

    def over(self, uid: str) -> None:
        """Forget that the end of a claim waits: it goes on, or has ended."""
        self._held_back.discard(uid)
        self.forced.pop(uid, None)
        self.delays.over(uid)
        self._wait_no_more(uid)
