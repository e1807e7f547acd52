"""Which nodes are to be looked at, and in which order."""

from __future__ import annotations

from scheduler.service.due import NodesDue


class Scene:
    """A clock, nodes, and which of them are due."""

    def __init__(self, *names: str, together: int = 2, delays: tuple[float, ...] = (0.0,)) -> None:
        self.now = 0.0
        self.names = list(names)
        self.due = NodesDue(
            lambda: self.now,
            lambda: self.names,
            together=together,
            sweep_seconds=30.0,
            delays=delays,
        )


def test_noted_nodes_come_before_those_whose_turn_it_is() -> None:
    """Each once in one look, and never more than are looked at together."""
    scene = Scene("a", "b", "c")
    for name in ("c", "d", "c"):
        scene.due.note(name)
    assert scene.due.take() == ["c", "d"]
    assert scene.due.take() == ["c", "b"]
    assert scene.due.take() == ["a"]
    assert scene.due.take() == []


def test_a_sweep_begins_when_it_is_time_and_the_last_one_has_ended() -> None:
    """However long one takes, every node has its turn."""
    scene = Scene("a", "b", "c")
    assert scene.due.take() == ["c", "b"]
    scene.now = 31.0
    assert scene.due.take() == ["a"]
    assert scene.due.take() == ["c", "b"]
    assert scene.due.take() == ["a"]
    scene.now = 60.0
    assert scene.due.take() == []
    scene.now, scene.names = 61.0, ["d"]
    assert scene.due.take() == ["d"]


def test_a_node_is_due_after_its_delay_and_keeps_its_time_when_it_is_noted_again() -> None:
    """Those of the first delay come first; one that is noted by both comes once."""
    scene = Scene(together=3, delays=(2.0, 10.0))
    scene.due.note("late", 10.0)
    scene.due.note("soon", 2.0)
    scene.now = 1.0
    scene.due.note("soon", 2.0)
    assert scene.due.take() == []
    scene.now = 2.0
    assert scene.due.take() == ["soon"]
    scene.due.note("late", 2.0)
    scene.now = 10.0
    assert scene.due.take_noted() == ["late"]
    assert scene.due.take_noted() == []


def test_who_stands_by_takes_noted_nodes_alone() -> None:
    """The sweep is left for whoever records."""
    scene = Scene("a")
    scene.due.note("b")
    assert scene.due.take_noted() == ["b"]
    assert scene.due.take() == ["a"]
