"""Quality of service and priority of a Pod: labels (Koordinator contract 2.1, 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ledger.domain.annotations.wire import a_decimal, label_path
from ledger.domain.resources import LABEL_PRIORITY, LABEL_PRIORITY_CLASS, LABEL_QOS_CLASS


class QosClass(StrEnum):
    """Koordinator's QoS classes; NONE is no label or a text that is none of them."""

    NONE = ""
    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


class PriorityClass(StrEnum):
    """Koordinator's priority classes; NONE is a priority outside all of their ranges."""

    NONE = ""
    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"


PRIORITY_RANGES: Final = {
    PriorityClass.PROD: range(9000, 10000),
    PriorityClass.MID: range(7000, 8000),
    PriorityClass.BATCH: range(5000, 6000),
    PriorityClass.FREE: range(3000, 4000),
}
_CLASS_BY_QOS: Final = {
    QosClass.SYSTEM: PriorityClass.PROD,
    QosClass.LSE: PriorityClass.PROD,
    QosClass.LSR: PriorityClass.PROD,
    QosClass.LS: PriorityClass.PROD,
    QosClass.BE: PriorityClass.BATCH,
}


def read_qos_class(labels: Mapping[str, str]) -> QosClass:
    """Return the QoS class of the Pod's label; any other text is none."""
    text = labels.get(LABEL_QOS_CLASS, "")
    return QosClass(text) if text in set(QosClass) else QosClass.NONE


def read_priority_class(labels: Mapping[str, str], priority: int | None) -> PriorityClass:
    """Return the label's class; where it names none, the one whose range holds `spec.priority`."""
    text = labels.get(LABEL_PRIORITY_CLASS, "")
    if text and text in set(PriorityClass):
        return PriorityClass(text)
    for priority_class, numbers in PRIORITY_RANGES.items():
        if priority is not None and priority in numbers:
            return priority_class
    return PriorityClass.NONE


def priority_class_of_qos(qos: QosClass) -> PriorityClass:
    """Return the class that a QoS label implies where the Pod names none (contract 5.3)."""
    return _CLASS_BY_QOS.get(qos, PriorityClass.NONE)


def read_sub_priority(labels: Mapping[str, str]) -> int | None:
    """Return the sub-priority inside the class, None without. Raises InputError: no integer."""
    text = labels.get(LABEL_PRIORITY)
    return None if text is None else a_decimal(text, label_path(LABEL_PRIORITY))
