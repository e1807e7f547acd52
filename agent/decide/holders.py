"""Which Pods have CPUs of their own on a node, folded from the events of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from agent.decide.pools import PodCpus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet
from ledger.domain.log.cpu_holders import given_by_kubelet
from ledger.domain.log.events import (
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    ClaimVoided,
    Ending,
    LedgerEvent,
    Opening,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)

Holders = Mapping[str, PodCpus]
"""UID and attempt of a Pod or a claim -> its own CPUs; those without any are missing."""

NOBODY: Final[Holders] = MappingProxyType({})
_CLASSES: Final = {str(qos): qos for qos in QosClass}


def holders_after(holders: Holders, node_uid: str, event: LedgerEvent) -> Holders:
    """
    Return who has CPUs of the node to himself after an event. Pure and total.

    Events of other nodes change nothing, and neither does a second release.
    """
    match event:
        case PodReserved() | PodObserved() if event.node_uid == node_uid and event.cpuset:
            return {**holders, _key(event): own_cpus(event)}
        case ClaimReserved() | ClaimObserved() if event.node_uid == node_uid and event.cpuset:
            return {**holders, _key(event): claimed_cpus(event.cpuset)}
        case PodReleased() | PodVoided() | ClaimReleased() | ClaimVoided() if (
            event.node_uid == node_uid
        ):
            gone = _key(event)
            return {key: pod for key, pod in holders.items() if key != gone}
        case _:
            return holders


def claimed_cpus(cpus: CpuSet) -> PodCpus:
    """Return the CPUs of a claim: nobody runs beside it on them."""
    return PodCpus(cpus=cpus, qos=QosClass.LSE, by_kubelet=False)


def _key(event: Opening | Ending) -> str:
    return f"{event.pod_uid}/{event.attempt}"


def own_cpus(event: PodReserved | PodObserved) -> PodCpus:
    """
    Return the CPUs of one holder; kubelet gave them where no `resource-status` names any.

    Rule: CPU proposal, QoS principles 2, 3 and 6.
    """
    return PodCpus(
        cpus=event.cpuset,
        qos=_CLASSES.get(event.snapshot.qos, QosClass.NONE),
        by_kubelet=given_by_kubelet(event),
    )
