"""The bind protocol, act by act: GPU-sharing contract C.6 and design section 5.3 as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from scheduler.bind.protocol import (
    CONTRADICTED,
    DEPOSED,
    ELSEWHERE,
    GONE,
    GONE_UNSEEN,
    MOVED,
    UNSETTLED,
    Act,
    Answer,
    Deposed,
    Done,
    Effect,
    NoAnswer,
    NotThere,
    PatchFence,
    PodNow,
    PostBinding,
    ReadPod,
    RecordBound,
    RecordVoided,
    Rejected,
    Reserve,
    begin,
    settle,
    step,
)

DONE: Final[Effect] = Done()
NOBODY_KNOWS: Final[Effect] = NoAnswer()
REFUSED: Final[Effect] = Rejected("no")
SAYS_WHY: Final = f"{UNSETTLED}: no"
FIRST: Final[list[Act]] = [Reserve(1, "7"), PostBinding(1, "7")]
FENCED: Final[list[Act]] = [*FIRST, PatchFence(), ReadPod()]
Line = tuple[Sequence[Effect], Sequence[Act]]

LINES: Final[dict[str, Line]] = {
    "bound": ([DONE, DONE, DONE], [*FIRST, RecordBound(1), Answer("")]),
    "the card is taken": ([Rejected("held")], [Reserve(1, "7"), Answer("held")]),
    "another leads": ([Deposed()], [Reserve(1, "7"), Answer(DEPOSED)]),
    "another leads since the Binding": (
        [DONE, DONE, Deposed()],
        [*FIRST, RecordBound(1), Answer(DEPOSED)],
    ),
    "the Pod is gone": (
        [DONE, NotThere(), DONE],
        [*FIRST, RecordVoided(1, GONE), Answer(GONE)],
    ),
    "409, and it was us": (
        [DONE, REFUSED, PodNow("8", "n", 1), DONE],
        [*FIRST, ReadPod(), RecordBound(1), Answer("")],
    ),
    "409, bound elsewhere": (
        [DONE, REFUSED, PodNow("8", "m"), DONE],
        [*FIRST, ReadPod(), RecordVoided(1, ELSEWHERE), Answer(ELSEWHERE)],
    ),
    "409, an older attempt of ours is bound": (
        [DONE, REFUSED, PodNow("8", "n", 3), DONE],
        [*FIRST, ReadPod(), RecordVoided(1, ELSEWHERE), Answer(ELSEWHERE)],
    ),
    "409 on the version alone: once more": (
        [DONE, REFUSED, PodNow("8"), DONE, DONE, DONE, DONE],
        [
            *FIRST,
            ReadPod(),
            RecordVoided(1, MOVED),
            Reserve(2, "8"),
            PostBinding(2, "8"),
            RecordBound(2),
            Answer(""),
        ],
    ),
    "409, and the version is the same: a fence first": (
        [DONE, REFUSED, PodNow("7"), DONE, PodNow("8"), DONE],
        [*FIRST, ReadPod(), PatchFence(), ReadPod(), RecordVoided(1, SAYS_WHY), Answer(SAYS_WHY)],
    ),
    "409, and it is being deleted": (
        [DONE, REFUSED, PodNow("7", deleting=True), DONE],
        [*FIRST, ReadPod(), RecordVoided(1, GONE), Answer(GONE)],
    ),
    "ended by an act before it was confirmed": (
        [DONE, DONE, Rejected("ended")],
        [*FIRST, RecordBound(1), Answer("ended")],
    ),
    "ended by an act before it was voided": (
        [DONE, NotThere(), Rejected()],
        [*FIRST, RecordVoided(1, GONE), Answer(CONTRADICTED)],
    ),
    "no answer, and it was bound": (
        [DONE, NOBODY_KNOWS, DONE, PodNow("9", "n", 1), DONE],
        [*FENCED, RecordBound(1), Answer("")],
    ),
    "no answer, and it was not": (
        [DONE, NOBODY_KNOWS, DONE, PodNow("8"), DONE],
        [*FENCED, RecordVoided(1, UNSETTLED), Answer(UNSETTLED)],
    ),
    "no answer, and it is gone": (
        [DONE, NOBODY_KNOWS, NotThere(), DONE],
        [*FIRST, PatchFence(), RecordVoided(1, GONE_UNSEEN), Answer(GONE_UNSEEN)],
    ),
    "nobody answers for long": (
        [
            *(NOBODY_KNOWS, DONE),
            *(NOBODY_KNOWS, NOBODY_KNOWS, NOBODY_KNOWS, DONE),
            *(NOBODY_KNOWS, PodNow("9")),
            *(NOBODY_KNOWS, DONE),
        ],
        [
            *(Reserve(1, "7"), Reserve(1, "7"), PostBinding(1, "7")),
            *(PatchFence(), PatchFence(), PatchFence()),
            *(ReadPod(), ReadPod()),
            *(RecordVoided(1, UNSETTLED), RecordVoided(1, UNSETTLED)),
            Answer(UNSETTLED),
        ],
    ),
}


@pytest.mark.parametrize(("told", "acts"), LINES.values(), ids=LINES.keys())
def test_what_follows_what(told: Sequence[Effect], acts: Sequence[Act]) -> None:
    """Every failure of the contract, from the reservation to the answer."""
    state, act = begin(node="n", attempt=1, resource_version="7")
    done: list[Act] = [act]
    for each in told:
        state, act = step(state, each)
        done.append(act)

    assert done == acts


def test_a_pod_that_keeps_changing_is_reserved_three_times() -> None:
    """Then kube-scheduler is told; its next attempt reads the Pod anew."""
    state, act = begin(node="n", attempt=4, resource_version="7")
    reserved: list[Reserve] = []
    for version in range(8, 30):
        if isinstance(act, Answer):
            break
        if isinstance(act, Reserve):
            reserved.append(act)
        answers: dict[type[Act], Effect] = {PostBinding: REFUSED, ReadPod: PodNow(str(version))}
        told = answers.get(type(act), DONE)
        state, act = step(state, told)

    assert act == Answer(MOVED)
    assert [each.attempt for each in reserved] == [4, 5, 6]
    assert len({each.resource_version for each in reserved}) == 3


@pytest.mark.parametrize(
    ("told", "acts"),
    [
        pytest.param([PodNow("9", "n", 2)], [RecordBound(2), Answer("")], id="it was bound"),
        pytest.param(
            [PodNow("9")], [RecordVoided(2, UNSETTLED), Answer(UNSETTLED)], id="it was not"
        ),
        pytest.param(
            [PodNow("9", "m")], [RecordVoided(2, ELSEWHERE), Answer(ELSEWHERE)], id="elsewhere"
        ),
    ],
)
def test_whoever_takes_over_fences_first(told: Sequence[Effect], acts: Sequence[Act]) -> None:
    """Nobody remembers what was sent; and nothing is reserved in the old call's name."""
    state, act = settle(node="n", attempt=2, resource_version="7")
    done: list[Act] = [act]
    for each in (DONE, *told, DONE):
        state, act = step(state, each)
        done.append(act)

    assert done == [PatchFence(), ReadPod(), *acts]
