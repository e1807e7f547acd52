"""
Which of several replicas answers: the Lease says who should, the ledger's epoch who may.

Rule: design sections 2 and 8: one replica is active, the others are hot standbys; Lease for
liveness, epoch for safety. The replica with the epoch records, and the ledger fences what it
writes. With the Lease besides, and a clock that is right, it gives things out. A leader that loses
the Lease falls silent before another may take it, and goes on if none did. One whose epoch is over
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ledger.domain.errors import FencedError
from scheduler.service.ports import WhyNot

NOT_LEADER: Final = "NotLeader"
CLOCK_SKEW: Final = "ClockSkew"


@dataclass(slots=True, kw_only=True, eq=False)
class Leading:
    """
    Whether one replica answers, and why not.

    Attributes:
        now: seconds that never run backwards.
        lease_until: until when the Lease is ours, by the same clock.
        skewed: our clock is too far off the API server's.
        quarantined: why the ledger may not be taken over, empty when it may.

    Attributes:
        epoch: the one that we write in; 0 before we took the ledger over.
    """

    now: Callable[[], float]
    lease_until: Callable[[], float]
    skewed: Callable[[], bool]
    fresh: WhyNot
    quarantined: WhyNot = str
    _newest: int = 0
    epoch: int = 0

    def took(self, epoch: int) -> None:
        """
        Begin to write in an epoch of ours; everything before it is known here.

        Raises:
            FencedError: another one has started since.
        """
        assert not self.epoch, "a process takes the ledger over once"
        self.epoch = epoch
        self._check()

    def heard(self, epoch: int) -> None:
        """Take note of an epoch that started. Raises FencedError: ours is over."""
        self._newest = max(self._newest, epoch)
        self._check()

    def _check(self) -> None:
        if self.is_deposed:
            raise FencedError(f"another writer took over: epoch={self._newest}")

    @property
    def is_deposed(self) -> bool:
        """Tell whether our epoch is over."""
        return bool(self.epoch) and self._newest > self.epoch

    def why_not(self) -> str:
        """Return why nothing is given out here, empty where it is."""
        if not self.epoch:
            return self.quarantined() or NOT_LEADER
        if self.is_deposed:
            return NOT_LEADER
        if self.skewed():
            return CLOCK_SKEW
        return self.fresh() or ("" if self.now() < self.lease_until() else NOT_LEADER)

    def why_unrecorded(self) -> str:
        """Return why nothing of what ends is recorded here, empty where it is: Lease or not."""
        if not self.epoch:
            return self.quarantined() or NOT_LEADER
        return NOT_LEADER if self.is_deposed else self.fresh()

    def why_unshown(self) -> str:
        """
        Return why agents are not shown what the ledger is, empty where they are.

        In quarantine they are, also before an epoch: then a node has to see for itself.
        """
        if not self.epoch:
            return "" if self.quarantined() else NOT_LEADER
        return NOT_LEADER if self.is_deposed else ""

    def is_silent(self) -> bool:
        """Tell whether callers should look for another replica; asked after every answer."""
        if self.epoch and not self.is_deposed and self.now() < self.lease_until():
            return False  # whatever else there may be, we lead
        return self.why_not() == NOT_LEADER
