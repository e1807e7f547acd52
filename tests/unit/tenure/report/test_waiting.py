import json
from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.log.events import STAGE_GONE, RefusalReason, RequestRefused, encode_event
from ledger.store.reading.report_rows import PlacingRow, RefusalRow
from scheduler.service.api.words import WEBHOOK_ACTOR
from tenure.report.waiting import Wait, pack_waits, waits_of, waits_within

NODES = {"u-1": "gpu-1"}


def refusal(
    position: int,
    *,
    uid: str = "p",
    actor: str = "scheduler",
    nodes: int = 3,
    stage: str = "scheduling",
) -> RefusalRow:
    """One refusal, a second per position."""
    event = RequestRefused(
        pod_uid=uid,
        namespace="ml",
        pod_name=f"train-{uid}",
        stage=stage,
        message=f"0/{nodes} nodes are available",
        reasons=(
            RefusalReason(
                reason="Insufficient cpu",
                nodes=nodes,
                nearest_node="gpu-1",
                detail="asks 4 cpu, 2 free",
                remedy="release 2 cpu on gpu-1",
            ),
        ),
    )
    return RefusalRow(
        position=position,
        at_us=position * 1_000_000,
        pod_uid=uid,
        namespace="ml",
        pod_name=f"train-{uid}",
        owner="",
        stage=stage,
        message=event.message,
        shape="1 x gpu",
        policy="",
        body=encode_event(event),
        actor=actor,
    )


def placing(position: int, uid: str = "p") -> PlacingRow:
    """A place that a Pod got."""
    return PlacingRow(
        position=position, pod_uid=uid, node_uid="u-1", opened_at_us=position * 1_000_000
    )


def waits(*refusals: RefusalRow, placed: tuple[PlacingRow, ...] = ()) -> tuple[Wait, ...]:
    """The waits of these refusals."""
    return waits_of(refusals, placed, axis="time", nodes=NODES)


def test_a_wait_lasts_from_the_first_refusal_to_the_place() -> None:
    """All refusals between stand in it, the reasons are those of the last."""
    (wait,) = waits(refusal(3), refusal(5, nodes=2), placed=(placing(9),))

    assert (wait.opened, wait.closed, wait.node) == (3_000_000, 9_000_000, "gpu-1")
    assert [message for _, message in wait.refusals] == [
        "0/3 nodes are available",
        "0/2 nodes are available",
    ]
    assert wait.reasons == (
        RefusalReason(
            reason="Insufficient cpu",
            nodes=2,
            nearest_node="gpu-1",
            detail="asks 4 cpu, 2 free",
            remedy="release 2 cpu on gpu-1",
        ),
    )


def test_a_pod_that_waits_again_after_a_place_has_two_waits() -> None:
    """The second has no end yet."""
    first, second = waits(refusal(3), refusal(12), placed=(placing(9),))

    assert (first.closed, second.closed) == (9_000_000, None)
    assert second.node == ""


def test_a_place_before_the_first_refusal_ends_no_wait() -> None:
    """Evicted, then refused: it waits."""
    (wait,) = waits(refusal(12), placed=(placing(9),))

    assert wait.closed is None


def test_a_wait_ends_where_the_pod_is_deleted() -> None:
    """Its words stay those of the last refusal."""
    (wait,) = waits(refusal(3), refusal(7, stage=STAGE_GONE))

    assert (wait.opened, wait.closed, wait.node) == (3_000_000, 7_000_000, "")
    assert [message for _, message in wait.refusals] == ["0/3 nodes are available"]
    assert wait.reasons


def test_what_was_refused_at_admission_is_told_from_what_waits() -> None:
    """Its object never was."""
    one, other = waits(refusal(3, uid="a", actor=WEBHOOK_ACTOR), refusal(4, uid="b"))

    assert (one.admission, other.admission) == (True, False)


def test_where_there_is_no_time_positions_are_told() -> None:
    """As the rest of the page does."""
    (wait,) = waits_of([refusal(3)], [placing(9)], axis="position", nodes=NODES)

    assert (wait.opened, wait.closed) == (3, 9)


def test_a_part_of_a_week_has_the_waits_of_that_part() -> None:
    """Also those that began before, and not those that were over."""
    all_of_them = waits(
        refusal(1, uid="a"), refusal(2, uid="b"), refusal(8, uid="c"), placed=(placing(3, "a"),)
    )

    part = waits_within(all_of_them, 5_000_000, 7_000_000)

    assert [wait.name for wait in part] == ["train-b"]


@pytest.mark.parametrize(
    ("remedy", "words"),
    [
        (
            "release 2 cpu on gpu-1",
            "release: what is short of that alone; once it is empty the node takes the Pod",
        ),
        ("ask for at most 2 cpu", ""),
    ],
)
def test_a_wait_has_what_its_advice_means(remedy: str, words: str) -> None:
    """As a last word of its row, in those of `why`."""
    (wait,) = waits(refusal(3))
    advised = replace(wait, reasons=(structs.replace(wait.reasons[0], remedy=remedy),))

    document, _ = pack_waits((advised,), 0)

    ((*_, means),) = document["rows"]
    assert document["texts"][means] == words


def test_of_too_many_waits_the_earliest_are_left_out_and_counted() -> None:
    """The document keeps within its bytes; who waits still is told, however early it began."""
    many = waits(
        *(refusal(n, uid=f"{n:04}", nodes=n) for n in range(1, 500)),
        placed=tuple(placing(1000 + n, f"{n:04}") for n in range(2, 500)),
    )

    document, left_out = pack_waits(many, 0, 20_000)

    assert 0 < left_out == document["left_out"] < 499
    assert len(document["rows"]) == 499 - left_out
    assert len(json.dumps(document, separators=(",", ":"))) < 20_100
    assert document["texts"][document["rows"][-1][1]] == "train-0499"
    assert document["texts"][document["rows"][0][1]] == "train-0001"
    assert "train-0002" not in document["texts"]
