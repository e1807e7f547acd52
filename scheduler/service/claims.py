"""Claims as the API last told of them, and what the ledger has of each."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from certs.ports import Object, api_path
from ledger.domain.errors import InputError
from ledger.domain.log import events
from ledger.domain.log.drift import REWRITTEN_AFTER_GATE, UNGATED
from ledger.domain.log.state import LOST, Holding
from ledger.domain.systems import Claimant
from scheduler.gate.claims import ClaimSeen, claim_seen
from scheduler.gate.decide import Standing
from scheduler.gate.follow import REWRITTEN
from scheduler.service.slices import Readings
from scheduler.service.wakeups import Wakeups

_log: Final = logging.getLogger("tenure.scheduler.claims")

CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"


def claim_path(namespace: str, name: str) -> str:
    """Return the path of a claim. Raises ApiError: no claim is called so."""
    return api_path("resource.k8s.io/v1", "namespaces", namespace, "resourceclaims", name)


class ClaimBook:
    """
    A sink of claims, and of the ledger's events about them.

    Args:
        drivers: whose devices are looked at.
        guarded: whose of them pass the gate.

    Attributes:
        unreadable: UID -> why a claim can't be read.
        changed: UIDs of claims that changed since `take_changed`, or are gone.
        readings: claims that are being read.
    """

    def __init__(
        self,
        drivers: Container[str],
        wakeups: Wakeups,
        opened: Iterable[tuple[events.ClaimReserved | events.ClaimObserved, Holding]] = (),
        *,
        guarded: Container[str] = (),
    ) -> None:
        self._guarded = guarded
        self._drivers = drivers
        self._standing: dict[str, Standing] = {}
        self._consumers: dict[str, tuple[Claimant, ...]] = {}
        self._attempts: dict[str, int] = {}
        self._lost: set[str] = set()  # UIDs of claims whose node was lost with what they hold
        self.seen: dict[str, ClaimSeen] = {}
        self.unreadable: dict[str, str] = {}
        self.changed: dict[str, None] = {}
        self.readings = Readings()
        for event, holding in opened:
            self.take(event)
            self._consumers[event.claim_uid] = holding.consumers
            if holding.phase != "reserved":
                self._stored(event.claim_uid, event.attempt)
            if holding.phase == LOST:
                self._lost.add(event.claim_uid)
        wakeups.event_folded.subscribe(self._take_event)

    # --- the API --------------------------------------------------------------------------------

    def put(self, uid: str, item: Object) -> None:
        """Take a claim that came or changed; what is older than what is known is passed over."""
        try:
            seen = claim_seen(item, self._drivers)
        except InputError as error:
            self.unreadable[uid] = str(error)
            _log.warning("unreadable claim", extra={"claim": uid, "reason": str(error)})
            return
        self.unreadable.pop(uid, None)
        before = self.seen.get(uid)
        if before is not None and before.version >= seen.version:
            return
        self.seen[uid] = seen
        if seen.allocated is not None or uid in self._standing:
            self.changed[uid] = None

    def drop(self, uid: str) -> None:
        """Take note that a claim is gone."""
        self.readings.gone(uid)
        self.seen.pop(uid, None)
        self.unreadable.pop(uid, None)
        if uid in self._standing:
            self.changed[uid] = None
        else:
            self._attempts.pop(uid, None)

    def take_list(self, listed: Object, went: Container[str]) -> None:
        """Take all there is at one moment, but for what is gone since."""
        for item in listed.get("items", ()):
            uid = item["metadata"]["uid"]
            if uid not in went:
                self.put(uid, item)

    def is_past_us(self) -> bool:
        """Tell whether a claim that changed holds what the ledger does not have of it."""
        return any(
            seen.allocated is not None
            and (held is None or held.opening.results != seen.allocated.results)
            for uid in self.changed
            if (seen := self.seen.get(uid)) is not None
            for held in (self._standing.get(uid),)
        )

    def is_open(self, uid: str) -> bool:
        """Tell whether a claim that is there is otherwise than the ledger has it."""
        seen, held = self.seen.get(uid), self._standing.get(uid)
        if seen is None:
            return False
        if seen.allocated is None:
            return held is not None and held.stored
        if held is None:
            return bool(seen.allocated.node_name)
        if self._consumers.get(uid) != seen.consumers:
            return True  # one that was taken off its list runs on
        return isinstance(held.opening, events.ClaimObserved) and bool(held.opening.unknown_types)

    def is_shown(self, uid: str) -> bool:
        """Tell whether the API shows a claim allocated: every scheduler knows what it has."""
        seen = self.seen.get(uid)
        return seen is not None and seen.is_allocated

    def is_gone(self, uid: str) -> bool:
        """Tell whether a claim is not there, or not allocated, that the ledger has stored."""
        seen, held = self.seen.get(uid), self._standing.get(uid)
        return held is not None and held.stored and (seen is None or seen.allocated is None)

    def version(self, uid: str) -> int:
        """Return the newest version of a claim that was seen; 0 of one that was not."""
        seen = self.seen.get(uid)
        return 0 if seen is None else seen.version

    def take_changed(self) -> list[str]:
        """Return the UIDs of the claims that changed, and take them for seen."""
        uids = list(self.changed)
        self.changed.clear()
        return uids

    # --- the ledger -----------------------------------------------------------------------------

    def standing(self, uid: str) -> Standing | None:
        """Return what the ledger has of a claim that has not ended."""
        return self._standing.get(uid)

    def standing_uids(self) -> frozenset[str]:
        """Return the UIDs of the claims that hold something."""
        return frozenset(self._standing)

    def called(self, full_name: str) -> list[str]:
        """Return the UIDs of the claims of this name that hold something."""
        return [uid for uid, one in self._standing.items() if one.full_name == full_name]

    def past_gate(self, uid: str) -> str:
        """Return by which kind of drift a claim has what no gate let through; empty = by none."""
        standing = self._standing.get(uid)
        if standing is None or not isinstance(standing.opening, events.ClaimObserved):
            return ""
        if standing.opening.source == REWRITTEN:
            return REWRITTEN_AFTER_GATE
        return UNGATED if self.is_guarded(standing.opening.results) else ""

    def is_guarded(self, results: Iterable[events.ClaimResult]) -> bool:
        """Tell whether a device of these passes the gate."""
        return any(one.driver in self._guarded for one in results)

    def consumers(self, uid: str) -> tuple[Claimant, ...]:
        """Return who uses a claim, as the ledger has it."""
        return self._consumers.get(uid, ())

    def users(self) -> frozenset[str]:
        """Return the UIDs of the Pods that use claims, as the ledger has it."""
        return frozenset(each.uid for some in self._consumers.values() for each in some)

    def attempts(self, uid: str) -> int:
        """Return the number of a claim's newest holding, ended or not; 0 without one."""
        return self._attempts.get(uid, 0)

    def without_attempts(self) -> Iterator[str]:
        """Yield the UIDs of claims of which it is not known whether they held something before."""
        return (uid for uid in self.seen if uid not in self._attempts)

    def learn(self, attempts: Mapping[str, int]) -> None:
        """Take note of what claims held before this process began."""
        for uid, attempt in attempts.items():
            self._attempts[uid] = max(attempt, self.attempts(uid))

    def _take_event(
        self, _position: int, event: events.LedgerEvent, _holding: Holding | None
    ) -> None:
        self.take(event)

    def take(self, event: events.LedgerEvent) -> None:
        """Take note of one event; those that are older than what is known change nothing."""
        match event:
            case events.ClaimReserved() | events.ClaimObserved():
                uid = event.claim_uid
                if event.attempt <= self.attempts(uid) and uid in self._standing:
                    return
                is_stored = isinstance(event, events.ClaimObserved)
                self._standing[uid] = Standing(opening=event, stored=is_stored)
                self._consumers[uid] = event.consumers
                self._attempts[uid] = max(event.attempt, self.attempts(uid))
                if uid not in self.seen:  # it may be gone already
                    self.changed[uid] = None
            case events.ClaimBound():
                self._stored(event.claim_uid, event.attempt)
            case events.ClaimConsumed():
                if event.claim_uid in self._standing:
                    self._consumers[event.claim_uid] = event.consumers
            case events.ClaimReleased() | events.ClaimVoided():
                standing = self._standing.get(event.claim_uid)
                if standing is not None and standing.opening.attempt == event.attempt:
                    self._ended(event.claim_uid)
            case events.NodeLost():
                self._lost |= {
                    uid
                    for uid, standing in self._standing.items()
                    if standing.opening.node_uid == event.node_uid
                }
            case events.NodeCleared():
                for uid in [*self._lost]:
                    if self._standing[uid].opening.node_uid == event.node_uid:
                        self._ended(uid)
                        self.changed[uid] = None
            case _:
                pass

    def _ended(self, uid: str) -> None:
        del self._standing[uid]
        self._consumers.pop(uid, None)
        self._lost.discard(uid)
        if uid not in self.seen:
            self._attempts.pop(uid, None)

    def disbelieve(self, uid: str) -> None:
        """Take note that the API server has not come to the version of a claim's holding."""
        standing = self._standing.get(uid)
        if standing is not None:
            self._standing[uid] = replace(standing, unreal=True)
            self.changed[uid] = None

    def _stored(self, uid: str, attempt: int) -> None:
        standing = self._standing.get(uid)
        if standing is not None and standing.opening.attempt == attempt:
            self._standing[uid] = replace(standing, stored=True)
