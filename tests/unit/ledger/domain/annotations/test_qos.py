from __future__ import annotations

import pytest

from ledger.domain.annotations.qos import (
    PriorityClass,
    QosClass,
    priority_class_of_qos,
    read_priority_class,
    read_qos_class,
    read_sub_priority,
)
from ledger.domain.errors import InputError


@pytest.mark.parametrize(
    ("text", "qos"),
    [
        ("LSE", QosClass.LSE),
        ("LSR", QosClass.LSR),
        ("LS", QosClass.LS),
        ("BE", QosClass.BE),
        ("SYSTEM", QosClass.SYSTEM),
        ("", QosClass.NONE),
        ("lsr", QosClass.NONE),
        ("Guaranteed", QosClass.NONE),
    ],
    ids=["LSE", "LSR", "LS", "BE", "SYSTEM", "empty", "another case", "Kubernetes' own class"],
)
def test_qos_labels_are_read(text: str, qos: QosClass) -> None:
    """Koordinator contract 2.1: any other text is none."""
    assert read_qos_class({"koordinator.sh/qosClass": text}) is qos
    assert read_qos_class({}) is QosClass.NONE


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (9999, PriorityClass.PROD),
        (9000, PriorityClass.PROD),
        (8999, PriorityClass.NONE),
        (7000, PriorityClass.MID),
        (5999, PriorityClass.BATCH),
        (3000, PriorityClass.FREE),
        (0, PriorityClass.NONE),
        (10000, PriorityClass.NONE),
        (None, PriorityClass.NONE),
    ],
)
def test_priorities_fall_into_classes(priority: int | None, expected: PriorityClass) -> None:
    """Koordinator contract 5.3, both ends inclusive."""
    assert read_priority_class({}, priority) is expected


def test_the_class_label_overrides_the_number() -> None:
    """Koordinator contract 5.3; a label that names no class is as good as none."""
    label = "koordinator.sh/priority-class"

    assert read_priority_class({label: "koord-batch"}, 9500) is PriorityClass.BATCH
    assert read_priority_class({label: "gold"}, 9500) is PriorityClass.PROD
    assert read_priority_class({label: ""}, 9500) is PriorityClass.PROD


def test_qos_implies_a_class() -> None:
    """Koordinator contract 5.3."""
    implied = {str(qos): str(priority_class_of_qos(qos)) for qos in QosClass}

    assert implied == {
        "": "",
        "LSE": "koord-prod",
        "LSR": "koord-prod",
        "LS": "koord-prod",
        "SYSTEM": "koord-prod",
        "BE": "koord-batch",
    }


def test_the_sub_priority_is_an_integer() -> None:
    """Koordinator contract 2.1."""
    label = "koordinator.sh/priority"

    assert read_sub_priority({}) is None
    assert read_sub_priority({label: "-7"}) == -7
    with pytest.raises(InputError, match=r"metadata\.labels\[koordinator\.sh/priority\]"):
        read_sub_priority({label: "high"})
