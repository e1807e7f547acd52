"""With whom Pods and claims with CPUs of their own share them."""

from __future__ import annotations

from typing import Final

from agent.decide.pools import PodCpus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet
from ledger.domain.log.cpu_holders import given_by_kubelet
from ledger.domain.log.events import PodObserved, PodReserved

_CLASSES: Final = {str(qos): qos for qos in QosClass}


def claimed_cpus(cpus: CpuSet) -> PodCpus:
    """Return the CPUs of a claim: nobody runs beside it on them."""
    return PodCpus(cpus=cpus, qos=QosClass.LSE, by_kubelet=False)


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
