from __future__ import annotations

import pytest

from ledger.domain.log import drift
from scheduler.service.drift import Disagreement
from scheduler.service.reconciling import GRACE_SECONDS, OVER_SECONDS, SCOPE_MAX, Lasting


def differs(uid: str = "p", kind: str = drift.ANNOTATION_DIFFERS) -> Disagreement:
    """Return a disagreement about a Pod."""
    return Disagreement(kind=kind, words="", about=uid, node_uid="uid-a", pod_uid=uid)


ONE = differs()


def test_what_is_gone_by_the_next_look_is_no_drift() -> None:
    """A watch that lags: however often it comes back."""
    lasting = Lasting()
    for turn in range(20):
        there = [ONE] if turn % 2 else []
        assert lasting.look("a", there, now=turn * GRACE_SECONDS).found == ()
    lasting.look("a", [], now=9_999.0)
    assert not lasting.is_watched("a")


def test_what_was_seen_twice_over_a_grace_is_recorded_once() -> None:
    """Neither two looks nor the grace alone are enough."""
    lasting = Lasting()
    assert lasting.look("a", [ONE], now=0.0).found == ()
    assert lasting.look("a", [ONE], now=GRACE_SECONDS - 1).found == ()
    assert lasting.look("a", [ONE], now=GRACE_SECONDS).found == (ONE,)
    assert lasting.look("a", [ONE], now=GRACE_SECONDS + 1).found == (ONE,), "nobody recorded it"
    lasting.recorded("a", ONE.drift_id, ONE.kind, ONE.pod_uid)
    assert lasting.look("a", [ONE], now=GRACE_SECONDS + 2).found == ()
    assert lasting.counts() == {ONE.kind: 1}


def test_one_look_is_not_enough_however_late() -> None:
    """A sweep comes by once in two minutes."""
    lasting = Lasting()
    lasting.look("a", [ONE], now=0.0)
    assert lasting.look("a", [ONE], now=GRACE_SECONDS).found == (ONE,)
    assert Lasting().look("a", [ONE], now=9_999.0).found == ()


def test_it_is_over_after_two_looks_without_it_over_a_while() -> None:
    """One that comes back meanwhile was never gone."""
    lasting = Lasting()
    lasting.recorded("a", ONE.drift_id, ONE.kind, ONE.pod_uid)
    assert lasting.look("a", [], now=0.0).over == ()
    assert lasting.look("a", [], now=1.0).over == ()
    assert lasting.look("a", [ONE], now=2.0).over == ()
    assert lasting.look("a", [], now=3.0).over == ()
    assert lasting.look("a", [], now=3.0 + OVER_SECONDS).over == (ONE.drift_id,)
    lasting.forget("a", ONE.drift_id)
    assert not lasting.is_watched("a")
    assert lasting.look("a", [], now=99.0).over == ()


def test_what_is_open_already_is_not_recorded_again() -> None:
    """A restart: the ledger has it, and it is still so, or no longer."""
    lasting = Lasting()
    two = differs("q")
    for one in (ONE, two):
        lasting.recorded("a", one.drift_id, one.kind, one.pod_uid)
    for now in (0.0, GRACE_SECONDS, 2 * GRACE_SECONDS):
        changes = lasting.look("a", [ONE], now=now)
        assert changes.found == ()
    assert changes.over == (two.drift_id,)


def test_nothing_is_told_of_a_pod_that_is_on_its_way() -> None:
    """Its drift is neither found nor over."""
    lasting = Lasting()
    lasting.recorded("a", ONE.drift_id, ONE.kind, ONE.pod_uid)
    unsure = frozenset({"p"})
    for now in (0.0, 10.0, 20.0):
        assert lasting.look("a", [], now=now, unsure=unsure).over == ()
    assert lasting.open("a") == {ONE.drift_id}


@pytest.mark.parametrize("scope", ["a", ""])
def test_of_one_node_only_so_many_are_recorded(scope: str) -> None:
    """A node with a thousand Pods that were forged is one fault, not a thousand events."""
    lasting = Lasting()
    many = [differs(f"p{number}") for number in range(SCOPE_MAX + 5)]
    lasting.look(scope, many, now=0.0)
    found = lasting.look(scope, many, now=GRACE_SECONDS).found
    assert len(found) == SCOPE_MAX
    for one in found:
        lasting.recorded(scope, one.drift_id, one.kind, one.pod_uid)
    assert lasting.look(scope, many, now=2 * GRACE_SECONDS).found == ()
    assert lasting.counts().total() == SCOPE_MAX


def test_what_is_mended_by_itself_has_a_longer_grace() -> None:
    """A release that waits for its node is drift after ten minutes."""
    lasting = Lasting()
    waits = differs(kind=drift.RELEASE_UNCONFIRMED)
    for now in (0.0, 60.0, 599.0):
        assert lasting.look("a", [waits], now=now).found == ()
    assert lasting.look("a", [waits], now=600.0).found == (waits,)
