"""A standby decides by what the ledger says, writes nothing, and goes on where the leader ended."""

from __future__ import annotations

from scheduler.service.ending import Wakes
from tests.support.live import Live, StillClock, types
from tests.support.objects import Json, container, pod


class Pair:
    """A leader, and a standby that is told the same by the API."""

    def __init__(self) -> None:
        self.leader = Live()
        self.standby = Live(self.leader.ledger)
        self.followed = 0

    def both(self, act: str, *arguments: object, **more: object) -> None:
        """Tell both of a change."""
        for one in (self.leader, self.standby):
            getattr(one, act)(*arguments, **more)

    def follow(self) -> None:
        """Let the standby hear what was recorded."""
        log = self.leader.ledger.log
        for position in range(self.followed + 1, len(log) + 1):
            event = log[position - 1]
            self.standby.view.take(position, event)
            self.standby.inventory.follow(event)
        self.followed = len(log)
        self.stand_by()

    def stand_by(self) -> None:
        """Let the standby look at what changed; it records nothing."""
        before = len(self.leader.ledger.log)
        self.standby.inventory.stand_by()
        assert len(self.leader.ledger.log) == before


def _asking(percent: int = 100) -> Json:
    return pod(container(limits={"koordinator.sh/gpu": percent}), name="p", uid="pod-p")


def test_a_node_counts_once_the_leader_has_recorded_it() -> None:
    """In whatever order API and feed tell of it; then nothing is left to be recorded."""
    pair = Pair()
    pair.both("add_node", "a")
    pair.stand_by()
    assert pair.standby.passing(_asking(), "a") == []
    pair.leader.settle()
    pair.follow()
    assert pair.standby.passing(_asking(), "a") == ["a"]
    before = list(pair.leader.ledger.log)
    pair.standby.settle()
    assert pair.leader.ledger.log == before
    assert pair.standby.inventory.settled


def test_what_is_held_is_held_for_the_standby_too() -> None:
    """Its arrays are the leader's."""
    pair = Pair()
    pair.both("add_node", "a", 1)
    pair.leader.settle()
    held = pair.leader.reserve(pair.leader.placement(_asking(), "a"))
    pair.follow()
    assert pair.standby.passing(_asking(), "a") == []
    pair.leader.release(held)
    pair.follow()
    assert pair.standby.passing(_asking(), "a") == ["a"]


def test_a_node_that_changed_waits_for_its_event() -> None:
    """It is decided by as it was recorded last, as with the leader."""
    pair = Pair()
    pair.both("add_node", "a", 1)
    pair.leader.settle()
    pair.follow()
    pair.standby.add_node("a", 2)
    pair.stand_by()
    assert pair.standby.passing(_asking(200), "a") == []
    pair.leader.add_node("a", 2)
    pair.leader.settle()
    pair.follow()
    assert pair.standby.passing(_asking(200), "a") == ["a"]


def test_a_node_goes_and_comes_again_under_its_name() -> None:
    """Once the loss is recorded it is gone for the standby, and the next one counts."""
    pair = Pair()
    pair.both("add_node", "a")
    pair.leader.settle()
    pair.follow()
    pair.both("drop_node", "a")
    pair.stand_by()
    assert pair.standby.view.uid("a") is not None, "its loss is not recorded yet"
    pair.leader.settle()
    pair.follow()
    assert pair.standby.view.uid("a") is None
    pair.both("add_node", "a", uid="uid-again")
    pair.leader.settle()
    pair.follow()
    assert pair.standby.view.uid("a") == "uid-again"


def test_whoever_takes_over_records_what_was_left() -> None:
    """A node that the leader never saw, and one that went when nobody led."""
    pair = Pair()
    pair.both("add_node", "a")
    pair.leader.settle()
    pair.follow()
    pair.standby.add_node("b")
    pair.standby.drop_node("a")
    pair.stand_by()
    begun = len(pair.leader.ledger.log)
    pair.standby.settle()
    assert types(pair.leader.ledger.log[begun:]) == [
        *("node.lost", "node.inventoried", "node.described")
    ]
    assert pair.standby.passing(_asking(), "b") == ["b"]


def test_nothing_is_looked_at_before_all_lists_are_there() -> None:
    """Before that a node may look as if it had no devices."""
    pair = Pair()
    pair.leader.add_node("a")
    pair.leader.settle()
    pair.standby.synced = False
    pair.standby.add_node("a")
    pair.follow()
    assert pair.standby.view.uid("a") is None
    pair.standby.synced = True
    pair.stand_by()
    assert pair.standby.view.uid("a") == "uid-a"


def test_only_late_releases_are_told_of_after_a_takeover() -> None:
    """Of the earlier ones the leader told; who died may not have told of the last."""
    clock = StillClock()
    wakes = Wakes(clock.monotonic)
    wakes.released("early")
    clock.now = 50.0
    wakes.released("late")
    clock.now = 70.0
    wakes.forget(60.0)
    assert wakes.take() == ["late"]
