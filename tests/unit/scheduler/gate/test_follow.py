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
from scheduler.gate.decide import Standing, Through, decide
from scheduler.gate.follow import follow, gone
from tests.support.gated import FoldedAccounts, appears, result, seen

TRAIN = (Claimant(name="train", uid="uid-train"),)


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
    return follow(shown, before, held, FoldedAccounts(), 1)


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


def test_what_was_stored_otherwise_than_reserved_is_observed_as_stored() -> None:
    """A webhook behind ours rewrote it: what was reserved is void, for its version is over."""
    voided, observed = followed(standing(5), 6, result(1))

    assert isinstance(voided, ClaimVoided)
    assert isinstance(observed, ClaimObserved)
    assert [each.device_id for each in observed.shares] == ["GPU-1"]


def test_what_is_shown_late_ends_no_reservation() -> None:
    """An older allocation is told after a newer one was reserved."""
    assert followed(standing(5), 5, result(1)) == ()


def test_a_device_that_nobody_can_tell_closes_its_kind() -> None:
    """What is observed of a slice that vanished is of some card there."""
    shown = seen("a", 9, result(0))

    (event,) = follow(shown, None, (), FoldedAccounts(gone=frozenset({"gpu-0"})), 0)

    assert isinstance(event, ClaimObserved)
    assert (event.shares, event.unknown_types) == ((), ("gpu",))


def test_a_claim_that_is_gone_is_held_while_its_pod_runs() -> None:
    """Its finalizer was stripped, or a store put back."""
    before = replace(standing(), stored=True)

    assert gone(before, TRAIN, lambda _: True) == ()

    (event,) = gone(before, TRAIN, lambda _: False)
    assert isinstance(event, ClaimReleased)
