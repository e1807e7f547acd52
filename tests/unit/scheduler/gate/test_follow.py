"""What is recorded of a claim as the watch shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ledger.domain.log.events import (
    ClaimBound,
    ClaimConsumed,
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    ClaimVoided,
    LedgerEvent,
)
from ledger.domain.systems import Claimant
from scheduler.gate.decide import Barred, Standing, Through, decide
from scheduler.gate.follow import REWRITTEN, follow, gone
from scheduler.gate.leaving import STILL_USED, Stays
from tests.support.gated import CARD_BYTES, FoldedAccounts, appears, result, seen

TRAIN = (Claimant(name="train", uid="uid-train"),)
USED = Stays(reason=STILL_USED, message="it is used")


def standing(version: int = 5, *, stored: bool = False) -> Standing:
    """Return card 0 reserved for claim a, on top of a version."""
    answer = decide(appears("a", version, result(0), pods=["train"]), FoldedAccounts(), None)
    assert isinstance(answer, Through)
    opening = answer.events[-1]
    assert isinstance(opening, ClaimReserved)
    return Standing(opening=opening, stored=stored)


def followed(
    before: Standing | None,
    version: int,
    *results: dict[str, Any],
    pods: tuple[str, ...] = ("train",),
) -> tuple[LedgerEvent, ...]:
    """Return what is recorded of claim a, which was used by one Pod before."""
    held = () if before is None else before.opening.consumers
    shown = seen("a", version, *results, pods=pods)
    return follow(shown, before, held, FoldedAccounts(), attempts=1)


def test_what_was_reserved_and_is_stored_is_bound_once() -> None:
    """The watch tells it, and tells it again."""
    (event,) = followed(standing(), 6, result(0))

    assert isinstance(event, ClaimBound)
    assert followed(standing(stored=True), 7, result(0)) == ()


def test_consumers_that_came_later_are_recorded() -> None:
    """A claim may serve many Pods, and be reserved for none."""
    (more,) = followed(standing(stored=True), 7, result(0), pods=("train", "other"))
    (none,) = followed(standing(stored=True), 7, result(0), pods=())

    assert isinstance(more, ClaimConsumed)
    assert [each.name for each in more.consumers] == ["train", "other"]
    assert isinstance(none, ClaimConsumed)
    assert none.consumers == ()


def test_a_pod_that_runs_uses_its_claim_also_once_it_was_taken_off_the_list() -> None:
    """Who empties the list first and deallocates then frees nothing: the ledger has its users."""
    shown, before = seen("a", 7, result(0), pods=["other"]), standing(stored=True)

    def told(*, runs: bool) -> tuple[LedgerEvent, ...]:
        return follow(shown, before, TRAIN, FoldedAccounts(), attempts=1, runs=lambda _: runs)

    (event,), (after,) = told(runs=True), told(runs=False)

    assert isinstance(event, ClaimConsumed)
    assert isinstance(after, ClaimConsumed)
    assert [each.name for each in event.consumers] == ["other", "train"]
    assert [each.name for each in after.consumers] == ["other"]


def test_a_reservation_is_void_once_its_claim_moved_on_without_it() -> None:
    """At the version that it was on top of its outcome is open."""
    assert followed(standing(5), 5, pods=()) == ()
    assert followed(standing(5), 4, pods=()) == ()

    (event,) = followed(standing(5), 6, pods=())

    assert isinstance(event, ClaimVoided)


def test_what_was_stored_and_is_gone_is_released() -> None:
    """Whoever took it off: the gate let it."""
    (event,) = followed(standing(stored=True), 9, pods=())

    assert isinstance(event, ClaimReleased)


def test_what_got_past_the_gate_is_observed() -> None:
    """It is held, outside of the constraint."""
    (event,) = followed(None, 9, result(0))

    assert isinstance(event, ClaimObserved)
    assert (event.attempt, event.source) == (2, "resourceclaim")
    assert [each.device_id for each in event.shares] == ["GPU-0"]


def test_what_was_stored_otherwise_than_reserved_is_held_beside_it() -> None:
    """A webhook behind ours rewrote it: whoever prepares devices may have read either."""
    voided, observed = followed(standing(5), 6, result(1))

    assert isinstance(voided, ClaimVoided)
    assert isinstance(observed, ClaimObserved)
    assert [each.device_id for each in observed.shares] == ["GPU-0", "GPU-1"]
    assert [each.device for each in observed.results] == ["gpu-1"]
    assert observed.source == REWRITTEN
    held = Standing(opening=observed, stored=True)
    assert followed(held, 7, result(1)) == ()
    (released,) = followed(held, 8, pods=())
    assert isinstance(released, ClaimReleased)


def test_of_a_card_that_was_rewritten_to_less_or_more_the_greater_is_held() -> None:
    """On one card it is one holding, not two."""
    _, observed = followed(standing(5), 6, result(0, memory="4Gi"))

    assert isinstance(observed, ClaimObserved)
    assert [each.memory_bytes for each in observed.shares] == [CARD_BYTES]


def test_what_a_pod_runs_with_is_held_beside_what_was_written_past_the_gate() -> None:
    """It was taken away and another allocated while nobody asked us; the Pod was not told."""
    before = standing(5, stored=True)
    shown = seen("a", 9, result(1), pods=("train",))

    *_, kept = follow(shown, before, TRAIN, FoldedAccounts(), attempts=1, kept=USED)
    *_, alone = follow(shown, before, TRAIN, FoldedAccounts(), attempts=1)

    assert isinstance(kept, ClaimObserved)
    assert isinstance(alone, ClaimObserved)
    assert [each.device_id for each in kept.shares] == ["GPU-0", "GPU-1"]
    assert [each.device_id for each in alone.shares] == ["GPU-1"]


def test_what_is_shown_late_ends_no_reservation() -> None:
    """An older allocation is told after a newer one was reserved."""
    assert followed(standing(5), 5, result(1)) == ()


def test_a_device_that_nobody_can_tell_closes_its_kind() -> None:
    """What is observed of a slice that vanished is of some card there."""
    shown = seen("a", 9, result(0))

    (event,) = follow(shown, None, (), FoldedAccounts(gone=frozenset({"gpu-0"})), attempts=0)

    assert isinstance(event, ClaimObserved)
    assert (event.shares, event.unknown_types) == ((), ("gpu",))


def test_a_claim_that_is_gone_is_held_while_its_pod_runs() -> None:
    """Its finalizer was stripped, or a store put back."""
    before = replace(standing(), stored=True)

    assert gone(before, USED) == ()

    (event,) = gone(before, None)
    assert isinstance(event, ClaimReleased)

    (event,) = gone(standing(), None)
    assert isinstance(event, ClaimVoided)


def test_a_claim_that_came_and_went_while_nobody_looked_is_held_while_its_pod_runs() -> None:
    """No watch showed it stored: the Pod that runs with it does."""
    assert gone(standing(), USED) == ()


def test_what_is_taken_away_past_the_gate_is_held_while_its_pod_runs() -> None:
    """The configuration was removed for a while, and a Pod was not asked."""
    before, shown = standing(stored=True), seen("a", 9)

    assert follow(shown, before, TRAIN, FoldedAccounts(), attempts=1, kept=USED) == ()

    (event,) = follow(shown, before, TRAIN, FoldedAccounts(), attempts=1)
    assert isinstance(event, ClaimReleased)


def test_an_allocation_in_the_place_of_one_that_a_pod_runs_with_is_refused() -> None:
    """Else the card would be free that was taken away past the gate."""
    write = appears("a", 9, result(1), pods=["late"])
    before = standing(stored=True)

    refused = decide(write, FoldedAccounts(), before, consumers=TRAIN, kept=lambda _: USED)

    assert isinstance(refused, Barred)
    assert refused.reason == STILL_USED
    assert isinstance(decide(write, FoldedAccounts(), before, consumers=TRAIN), Through)


def test_what_is_observed_of_unknown_devices_is_named_once_they_are_told() -> None:
    """Its pool was not whole when it was seen first: its node is not closed for ever."""
    shown, vanished = seen("a", 9, result(0)), FoldedAccounts(gone=frozenset({"gpu-0"}))
    (event,) = follow(shown, None, (), vanished, attempts=0)
    assert isinstance(event, ClaimObserved)
    before = Standing(opening=event, stored=True)

    assert follow(shown, before, (), vanished, attempts=1) == ()
    ended, named = follow(shown, before, (), FoldedAccounts(), attempts=1)

    assert isinstance(ended, ClaimReleased)
    assert isinstance(named, ClaimObserved)
    assert (named.attempt, named.unknown_types, len(named.shares)) == (2, (), 1)


def test_of_a_card_no_more_is_observed_than_there_is() -> None:
    """An administrator wrote a number that no row has room for: the card is held all the same."""
    (event,) = followed(None, 9, result(0, memory="99999999999Gi"))

    assert isinstance(event, ClaimObserved)
    assert [one.memory_bytes for one in event.shares] == [CARD_BYTES]
