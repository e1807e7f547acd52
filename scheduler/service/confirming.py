"""
What the API server itself has of what a write of a claim says, before any of it is recorded.

Rule: docs/dra.md, "Who may ask". Anybody may call the gate: it counts what the watch shows. The API
server is asked of what is not shown yet, and before anything is freed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from certs.ports import ApiError, Object, Objects
from ledger.domain.kube.object_fields import is_full_name, is_name, items_in, section, text_in
from ledger.domain.log.events import ClaimBound
from ledger.domain.systems import Claimant
from scheduler.gate.claims import ClaimSeen
from scheduler.gate.decide import STALE_WRITE, Barred, Write
from scheduler.service.answering import NotNowError
from scheduler.service.binding import pod_path
from scheduler.service.budgets import Budgets, SharedBudgets
from scheduler.service.claims import ClaimBook, claim_path
from scheduler.service.ending import life_of
from scheduler.service.ports import Clock, PendingPod

WATCH_SECONDS: Final = 0.02
WATCH_LOOKS: Final = 10
"""So often within that time the watch is looked at for a version that it has not shown yet."""
NOT_STORED_TOO_OFTEN: Final = "NotStoredTooOften"
GRANTS_BURST: Final = 20.0
GRANTS_SECONDS: Final = 30.0
"""
Grants of one claim after its first, where callers are not known: so many at once, and one more
after each so many seconds. What is stored costs none. A grant that nobody stores ends by then.
"""
ALL_GRANTS_BURST: Final = 2_000.0
ALL_GRANTS_SECONDS: Final = 1.0
"""Of all claims together: two events each, some 100 MB of ledger in a day."""
CALLS_BURST: Final = 200.0
CALLS_SECONDS: Final = 0.05
"""Calls of the API server for callers that are not known, likewise: it has its own work."""


class Confirming:
    """
    Asks the watch, and where that does not say the API server, whether claims are as they are said.

    Attributes:
        knows_callers: whoever asks has shown to be the API server. Else no refusal is recorded, nor
            an Event written: its words would be the caller's.
    """

    def __init__(self, book: ClaimBook, api: Objects, clock: Clock, pod: PendingPod) -> None:
        self._book = book
        self._api = api
        self._pod = pod
        self._clock = clock
        now = clock.monotonic
        self._calls = Budgets(now, burst=CALLS_BURST, seconds=CALLS_SECONDS)
        self._grants = SharedBudgets(
            Budgets(now, burst=GRANTS_BURST, seconds=GRANTS_SECONDS),
            Budgets(now, burst=ALL_GRANTS_BURST, seconds=ALL_GRANTS_SECONDS),
        )
        self.knows_callers = False

    def may_call(self) -> bool:
        """Tell whether the API server may be called for whoever asks now; it counts as a call."""
        return self.knows_callers or self._calls.take(None)

    def may_grant(self, uid: str) -> bool:
        """Tell whether a claim may be granted something, which counts until it is stored."""
        return self.knows_callers or not self._book.attempts(uid) or self._grants.take(uid)

    def stored(self, event: ClaimBound) -> None:
        """Take note that what was granted is stored, as the watch shows it."""
        if event.attempt > 1:
            self._grants.give_back(event.claim_uid)

    def confirmed(self, old: ClaimSeen, new: ClaimSeen) -> ClaimSeen:
        """Return a claim without what a write of its status can't say, or its caller invents."""
        users = new.consumers
        if not self.knows_callers:
            users = tuple(
                one for one in users if one in old.consumers or self._waits(new.namespace, one)
            )
        return replace(new, consumers=users, snapshot=old.snapshot)

    def _waits(self, namespace: str, user: Claimant) -> bool:
        pod = self._pod(user.uid)
        named = None if pod is None else (pod["metadata"]["namespace"], pod["metadata"]["name"])
        return named == (namespace, user.name)

    async def untrue(self, write: Write) -> Barred | None:
        """
        Return that a claim is not as a write says that would change what the claim has.

        Raises:
            NotNowError: the API server can't be asked.
        """
        old, new = write.old, write.new
        if (old.is_allocated, old.allocated) == (new.is_allocated, new.allocated):
            return None
        for _ in range(WATCH_LOOKS):
            if self._book.version(old.uid) >= old.version:
                break
            await self._clock.sleep(WATCH_SECONDS / WATCH_LOOKS)
        standing = self._book.standing(old.uid)
        frees = standing is not None and not old.is_allocated and old.version != standing.fence
        is_there = not frees and self._book.seen.get(old.uid) == old
        if not is_there:
            self._check_may_call()
            try:
                is_there = await self.is_there(old.uid, old.namespace, old.name)
            except ApiError as error:
                raise NotNowError(str(error)) from error
            if is_there:
                self.doubt(old.uid)
        if is_there and self._book.seen.get(old.uid) == old and old.version == new.version:
            return None
        fact = f"claim {old.full_name} is not as it is said to be: version={old.version}"
        return Barred(reason=STALE_WRITE, message=fact)

    def doubt(self, uid: str) -> None:
        """Disbelieve a holding whose version is above that at which its claim was just read."""
        standing, seen = self._book.standing(uid), self._book.seen.get(uid)
        if standing is None or seen is None or uid in self._book.unreadable:
            return
        if seen.version < standing.fence:
            self._book.disbelieve(uid)

    async def is_there(self, uid: str, namespace: str, name: str) -> bool:
        """Tell whether the API server itself has a claim; the book has it then. Raises ApiError."""
        if not is_full_name(namespace, name):
            return False
        with self._book.readings.one() as went:
            found = await self._api.read(claim_path(namespace, name))
        if found is None or found["metadata"]["uid"] != uid or uid in went:
            return False
        self._book.put(uid, found)
        return True

    def _check_may_call(self) -> None:
        if not self.may_call():
            raise NotNowError("callers without a certificate asked too often: try again")

    async def pod(self, namespace: str, name: str, uid: str) -> Object | None:
        """Return a Pod that waits for a node, or else as it is. Raises NotNowError: no answer."""
        pod = self._pod(uid)
        if pod is None:
            self._check_may_call()
            try:
                pod = await self._api.read(pod_path(namespace, name))
            except ApiError as error:
                raise NotNowError(str(error)) from error
        return None if pod is None or pod["metadata"]["uid"] != uid else pod

    async def runs(self, namespace: str, users: Sequence[Claimant], claim: str) -> bool:
        """
        Tell whether one of these Pods runs by the API server itself. Raises ApiError.

        Args:
            claim: that the Pod has to name; empty = none. Nobody may have checked who uses it.
        """
        for one in dict.fromkeys(users):
            if not is_name(one.name):
                continue  # no Pod is called so
            pod = await self._api.read(pod_path(namespace, one.name))
            if pod is not None and pod["metadata"]["uid"] == one.uid:
                life, named = life_of(pod), claim in {"", *_claims_of(pod)}
                if life.node and not life.ended and named:
                    return True
        return False


def _claims_of(pod: Object) -> Iterator[str]:
    """Yield the names of the claims that a Pod names."""
    for one in (
        *items_in(pod, "spec", "resourceClaims"),
        *items_in(pod, "status", "resourceClaimStatuses"),
        section(pod, "status", "extendedResourceClaimStatus"),
    ):
        yield text_in(one, "resourceClaimName")
