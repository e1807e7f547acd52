"""Parts of an extender that keep nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from certs.ports import Object
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import RefusedPod
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import Placement
from scheduler.record.refusing import Told
from scheduler.service.groups import LiveGroups
from scheduler.service.ports import BindCall
from scheduler.service.preempting import Places, Preempting
from scheduler.service.telling import Telling
from scheduler.service.view import ClusterView
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.live import StillClock


class NoBinds:
    """Nobody binds here."""

    async def bind(self, call: BindCall) -> str:
        """Refuse."""
        await asyncio.sleep(0)
        return call.pod_name


class NoHolds:
    """Keeps no soft holds."""

    def asked_again(self, pod_uid: str) -> None:
        """Do nothing."""

    def expected(self, placement: Placement, pod: Object, decided_at: int = -1) -> None:
        """Do nothing."""

    def node_of(self, pod_uid: str) -> str:  # noqa: ARG002
        """Return none."""
        return ""

    def promise(self, request: PodRequest, node_name: str, seconds: float = 0) -> bool:  # noqa: ARG002
        """Do nothing."""
        return False


class NoRefusals:
    """Keeps no refusals."""

    def noted(self, asked: PodRequest | RefusedPod, offered: IntArray | None = None) -> None:
        """Do nothing."""


async def no_history(_pod_uids: Sequence[str] | None) -> Mapping[str, Told]:
    """Return that a ledger says nothing of why Pods waited."""
    await asyncio.sleep(0)
    return {}


def preempting(
    view: ClusterView, places: Places, groups: LiveGroups, clock: StillClock
) -> Preempting:
    """Return what answers preempt, whose Events nobody writes."""
    telling = Telling(api=ApiClient(ApiServer(), clock.sleep), clock=clock, reporter="test")
    return Preempting(view, places, telling, clock, groups=groups)
