"""Whose CPUs are whose alone, out of the events that gave them."""

from __future__ import annotations

from ledger.domain.annotations.cpu import decode_resource_status
from ledger.domain.annotations.qos import QosClass
from ledger.domain.log.events import PodObserved, PodReserved
from ledger.domain.resources import ANNOTATION_RESOURCE_STATUS


def given_by_kubelet(pod: PodReserved | PodObserved) -> bool:
    """Tell whether kubelet gave a Pod its CPUs: no `resource-status` names any."""
    if not isinstance(pod, PodObserved) or not pod.cpuset:
        return False
    text = pod.annotations.get(ANNOTATION_RESOURCE_STATUS)
    return text is None or not decode_resource_status(text).cpuset


def holds_alone(pod: PodReserved | PodObserved) -> bool:
    """
    Tell whether a Pod shares its CPUs with no other that has CPUs of its own.

    Rule: CPU proposal, QoS principle 2 (LSE) and Story 2 (what kubelet gave is as LSE).
    """
    return bool(pod.cpuset) and (pod.snapshot.qos == QosClass.LSE or given_by_kubelet(pod))
