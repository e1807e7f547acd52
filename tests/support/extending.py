"""Parts of an extender that keep nothing."""

from __future__ import annotations

from certs.ports import Object
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import RefusedPod
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import Placement


class NoHolds:
    """Keeps no soft holds."""

    def asked_again(self, pod_uid: str) -> None:
        """Do nothing."""

    def expected(self, placement: Placement, pod: Object, decided_at: int = -1) -> None:
        """Do nothing."""


class NoRefusals:
    """Keeps no refusals."""

    def noted(
        self, asked: PodRequest | RefusedPod, offered: IntArray | None = None, why: str = ""
    ) -> None:
        """Do nothing."""
