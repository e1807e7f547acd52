"""KAI-Scheduler's words on Pods: every rule of docs/contracts/kai.md by itself."""

from __future__ import annotations

import pytest

from ledger.domain.annotations.kai import groups_of, keeps_a_place, part_asked

QUEUE = {"kai.scheduler/queue": "q"}


@pytest.mark.parametrize(
    ("annotations", "has"),
    [
        ({"gpu-fraction": "0.5"}, (0.5, 0, "0.5 of a GPU")),
        (
            {"gpu-fraction": ".25", "gpu-fraction-num-devices": "2"},
            (0.25, 0, ".25 of each of 2 GPUs"),
        ),
        ({"gpu-memory": "4000"}, (0, 4000, "4000 MiB of a GPU")),
        ({"gpu-fraction": "half"}, (0, 0, "half of a GPU")),
        ({"gpu-fraction": "1e999999999"}, (0, 0, "1e999999999 of a GPU")),
        ({"gpu-fraction": "2"}, (0, 0, "2 of a GPU")),
        ({"gpu-memory": "4Gi"}, (0, 0, "4Gi MiB of a GPU")),
    ],
)
def test_what_is_asked_of_a_card(annotations: dict[str, str], has: tuple[float, int, str]) -> None:
    """What can't be read is nothing, and said."""
    found = part_asked(annotations, QUEUE, "kai-scheduler")

    assert found is not None
    assert (float(found.fraction), found.memory_mib, found.text) == has


@pytest.mark.parametrize(
    ("labels", "scheduler", "is_read"),
    [
        ({}, "", False),
        ({}, "default-scheduler", False),
        ({}, "runai-scheduler", True),
        ({"runai/queue": "q"}, "", True),
        ({"runai-gpu-group": "g"}, "", True),
    ],
)
def test_who_means_something_by_it(
    *, labels: dict[str, str], scheduler: str, is_read: bool
) -> None:
    """A Pod of the default scheduler without a word of KAI's asks for no card."""
    assert (part_asked({"gpu-fraction": "0.5"}, labels, scheduler) is not None) == is_read


def test_groups_are_cards() -> None:
    """One label, or one for each of several cards."""
    assert groups_of({"runai-gpu-group": "a", "app": "x"}) == ("a",)
    assert groups_of({"runai-gpu-group/b": "b", "runai-gpu-group/a": "a"}) == ("a", "b")
    assert groups_of({"runai-gpu-groups": "a"}) == ()


def test_a_reservation_pod_is_told_by_its_name() -> None:
    """As KAI tells it."""
    assert keeps_a_place("gpu-reservation-n1-x2k4f")
    assert keeps_a_place("runai-reservation-gpu-n1-x")
    assert not keeps_a_place("llm-gpu-reservation")
