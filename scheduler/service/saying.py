"""
Says of Pods in Events what the ledger has of them: why they wait, what they have, their end.

The bound and the rate are those of `telling`; what is said is what was recorded, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ledger.domain.amounts import format_bytes
from ledger.domain.cpuset import format_cpuset
from ledger.domain.devices import DeviceShare
from ledger.domain.log.events import LedgerEvent, PodBound, PodReleased, RequestRefused
from ledger.domain.log.state import Holding
from scheduler.decide.outcome import what_release_means
from scheduler.service.telling import NORMAL, WARNING, Telling, about_pod
from scheduler.service.view import ClusterView

WAITS: Final = "DevicesRefused"
BOUND: Final = "DevicesBound"
RELEASED: Final = "DevicesReleased"


class Saying:
    """
    Tells of each new event about a Pod, while this process is the one that decides.

    Args:
        why_not: why nothing may be decided now, empty when it may: who only follows says nothing.
    """

    def __init__(self, view: ClusterView, telling: Telling, *, why_not: Callable[[], str]) -> None:
        self._view = view
        self._telling = telling
        self._why_not = why_not
        view.tellers.append(self._took)

    def _took(self, _position: int, event: LedgerEvent, holding: Holding | None) -> None:
        if not isinstance(event, PodBound | PodReleased | RequestRefused) or self._why_not():
            return
        if isinstance(event, RequestRefused):
            if event.pod_uid in self._view.pods.seen:  # one that admission refused is not there
                pod = about_pod(event.namespace, event.pod_name, event.pod_uid)
                note = refusal_words(event)
                self._telling.tell(pod, WAITS, note, action="Scheduling", kind=WARNING)
            return
        if holding is None or not (holding.shares or holding.cpuset):
            return
        pod = about_pod(holding.namespace, holding.pod_name, holding.pod_uid)
        state = self._view.recorded(event.node_uid)
        node = event.node_uid if state is None else state.name
        held = held_words(holding)
        if isinstance(event, PodBound):
            self._telling.tell(pod, BOUND, f"{held} of {node}", action="Binding", kind=NORMAL)
        else:
            note = f"{held} of {node}: {event.reason}"
            self._telling.tell(pod, RELEASED, note, action="Releasing", kind=NORMAL)


def refusal_words(event: RequestRefused) -> str:
    """Return why a Pod waits, and what would help at the node that came closest."""
    first = max(event.reasons, key=lambda each: each.nodes, default=None)
    if first is None or not first.remedy:
        return event.message
    where = f" on {first.nearest_node}" if first.nearest_node else ""
    said = f"{event.message} Nearest{where}: {first.remedy}."
    told = what_release_means([first.remedy])
    return f"{said} {told[0].upper()}{told[1:]}." if told else said


def held_words(holding: Holding) -> str:
    """Return what is held in short: `gpu 0 (GPU-1): 50 core, 8 GiB; cpus 0-3`."""
    parts = [_share_words(share) for share in holding.shares]
    if holding.cpuset:
        parts.append(f"cpus {format_cpuset(holding.cpuset)}")
    return "; ".join(parts)


def _share_words(share: DeviceShare) -> str:
    name = f"{share.device_type} {share.minor}"
    if share.device_id:
        name += f" ({share.device_id})"
    amounts = ", ".join(_amounts(share))
    return f"{name}: {amounts}" if amounts else name


def _amounts(share: DeviceShare) -> Iterator[str]:
    if share.exclusive:
        yield "whole"
        return
    if share.core_percent:
        yield f"{share.core_percent} % core"
    if share.memory_bytes:
        yield format_bytes(share.memory_bytes)
