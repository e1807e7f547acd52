from __future__ import annotations

from dataclasses import dataclass

from scheduler.service.freshness import AWAY, SILENT_SECONDS_MAX, STALE, Freshness


@dataclass(slots=True)
class Followed:
    """A collection as a test wants it."""

    synced: bool = True
    seconds: float | None = 0.0

    def staleness(self) -> float | None:
        """Return the seconds."""
        return self.seconds


def test_nothing_is_decided_before_all_is_listed_and_recorded() -> None:
    """Not without collections, not before each was listed, not before the nodes are recorded."""
    fresh = Freshness()
    assert not fresh.synced()
    assert fresh.why_not().startswith(STALE)
    nodes = Followed(synced=False, seconds=None)
    fresh.followed = {"nodes": nodes, "pods": Followed()}
    assert not fresh.synced()
    assert fresh.why_not() == f"{STALE}: nodes"
    nodes.synced, nodes.seconds = True, 1.0
    assert fresh.synced()
    assert fresh.why_not() == f"{STALE}: nodes are being recorded"
    fresh.settled = True
    assert fresh.why_not() == ""


def test_nothing_is_decided_by_a_watch_that_fell_silent() -> None:
    """Two watches' length without a word, bookmarks included."""
    pods = Followed(seconds=SILENT_SECONDS_MAX)
    fresh = Freshness()
    fresh.followed, fresh.settled = {"pods": pods}, True
    assert fresh.why_not() == ""
    pods.seconds = SILENT_SECONDS_MAX + 1
    assert fresh.why_not() == f"{STALE}: pods"


def test_a_ledger_that_is_away_is_the_first_reason() -> None:
    """Nothing could be recorded."""
    fresh = Freshness()
    fresh.away = True
    assert fresh.why_not() == AWAY
