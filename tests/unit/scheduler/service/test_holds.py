from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from certs.ports import Object
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.service import holds
from scheduler.service.holds import HOLD_SECONDS, HOLD_WITH_VOLUMES_SECONDS, Holds
from scheduler.service.wakeups import Wakeups
from tests.support.clusters import gpu_node, pod, share

NOTHING: Object = {}


@dataclass(slots=True)
class Scene:
    """Two nodes with two cards each, and the holds on them."""

    now: float = 0.0
    most: int = 8
    freed: list[str] = field(default_factory=list)
    engine: Engine = field(init=False)
    holds: Holds = field(init=False)

    def __post_init__(self) -> None:
        settings = SchedulingSettings(node_policy="binpack")
        self.engine = Engine([gpu_node("n-0"), gpu_node("n-1")], settings)
        wakeups, numbers = Wakeups(), {"n-0": 0, "n-1": 1}
        wakeups.room_freed.subscribe(self.freed.append)
        self.holds = Holds(self.engine, lambda: self.now, numbers.get, wakeups, most=self.most)

    def ask(self, request: PodRequest, pod: Object = NOTHING) -> str:
        """Answer a filter as the extender does; return the node that is expected, if any."""
        self.holds.asked_again(request.uid)
        best = self.engine.filter(request, [0, 1]).best
        if best is None:
            return ""
        self.holds.expected(best, pod)
        return best.node_name

    def bind(self, request: PodRequest, node: int) -> Placement | None:
        """Choose and take as binding does."""
        with self.holds.lifted(request.uid, f"n-{node}"):
            return self.engine.try_place(request, node)

    def wait(self, seconds: float) -> None:
        """Let time pass, and holds end that are too old."""
        self.now += seconds
        self.holds.expire()

    def free(self, node: int) -> int:
        """Return how many cards a filter would find free on a node."""
        return sum(not card.tenants for card in self.engine.view(node).cards)


def whole(uid: str, cards: int = 1) -> PodRequest:
    """Return a Pod that asks for whole cards."""
    return pod(uid, share(100, cards))


def seen(*, reason: str = "", nominated: str = "", node: str = "", **metadata: str) -> Object:
    """Return a Pod object; with a reason it is not scheduled."""
    condition = {"type": "PodScheduled", "status": "False", "message": reason}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node} if node else {},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}, *([condition] if reason else [])],
            "nominatedNodeName": nominated or None,
        },
    }


def test_a_burst_does_not_collide() -> None:
    """Five Pods are asked about before one is bound: four cards, each promised once."""
    scene = Scene()
    asked = [scene.ask(whole(f"p{number}")) for number in range(5)]

    assert asked == ["n-0", "n-0", "n-1", "n-1", ""]


def test_asking_again_moves_nothing_twice() -> None:
    """A Pod that is asked about again has one hold."""
    scene = Scene()

    assert [scene.ask(whole("p")) for _ in range(3)] == ["n-0"] * 3
    assert scene.free(0) == 1
    assert scene.holds.ended == {holds.ASKED_AGAIN: 2}


def test_an_answer_that_is_given_twice_holds_once() -> None:
    """A filter with one node may be followed by a prioritize all the same."""
    scene = Scene()
    best = scene.engine.filter(whole("p"), [0]).best
    assert best is not None

    scene.holds.expected(best, NOTHING)
    scene.holds.expected(best, NOTHING)
    assert (len(scene.holds), scene.free(0)) == (1, 1)


@pytest.mark.parametrize("is_known", [True, False], ids=["known when", "not known when"])
def test_room_that_was_taken_since_the_filter_is_not_held_twice(*, is_known: bool) -> None:
    """A bind may come between filter and prioritize."""
    scene = Scene()
    best = scene.engine.filter(whole("p", 2), [0]).best
    assert best is not None
    decided_at = scene.engine.position if is_known else -1
    scene.bind(whole("q"), 0)

    scene.holds.expected(best, NOTHING, decided_at)
    assert (len(scene.holds), scene.holds.ended) == (0, {holds.NO_ROOM: 1})


def test_what_a_filter_found_is_held_as_it_is_where_its_node_did_not_change() -> None:
    """Nothing is chosen again for a bind on another node."""
    scene = Scene()
    best = scene.engine.filter(whole("p"), [0]).best
    assert best is not None
    decided_at = scene.engine.position
    scene.bind(whole("q"), 1)

    scene.holds.expected(best, NOTHING, decided_at)
    assert scene.holds.placements()[0] is best


def test_what_is_bound_is_chosen_from_the_ledger_alone() -> None:
    """Kube-scheduler's choice comes before our guess; the Pod that was guessed there moves on."""
    scene = Scene()
    scene.ask(whole("first", 2))

    assert scene.bind(whole("second"), 0) is not None
    assert (scene.holds.node_of("first"), scene.free(0)) == ("", 1)
    assert scene.holds.ended == {holds.CROWDED_OUT: 1}


def test_a_hold_alone_on_a_node_that_did_not_change_is_what_is_chosen() -> None:
    """It is known only then: a rival, another node, or whatever happened there, has it chosen."""

    def nothing(_: Scene) -> None: ...

    def known(
        after: Callable[[Scene], object] = nothing,
        before: Callable[[Scene], object] = nothing,
        node: int = 0,
    ) -> bool:
        scene = Scene()
        scene.bind(whole("held"), 0)
        before(scene)
        assert scene.ask(whole("p")) == "n-0"
        placement = scene.holds.placements()[-1]
        after(scene)
        with scene.holds.lifted("p", f"n-{node}") as found:
            assert found is None or found == placement
            return found is not None

    assert known()
    assert known(lambda scene: scene.bind(whole("other"), 1))
    assert not known(node=1)
    assert not known(lambda scene: scene.engine.release("held"))
    assert not known(lambda scene: scene.engine.put_node(gpu_node("n-0")))
    assert not known(lambda scene: scene.ask(pod("rival")))
    assert not known(before=lambda scene: scene.ask(pod("rival")))
    assert not known(lambda scene: scene.holds.drop("p"))


def test_a_hold_that_still_fits_comes_back() -> None:
    """On the card that is left."""
    scene = Scene()
    scene.ask(whole("first"))

    scene.bind(whole("second"), 0)
    assert (scene.holds.node_of("first"), scene.free(0)) == ("n-0", 0)


def test_binding_where_another_node_was_expected_ends_the_hold() -> None:
    """The room on the node that lost is free at once."""
    scene = Scene()
    scene.ask(whole("p"))

    assert scene.bind(whole("p"), 1) is not None
    assert (scene.free(0), scene.free(1), len(scene.holds)) == (2, 1, 0)


def test_no_room_at_bind_leaves_the_holds() -> None:
    """Who was not bound changes nothing for the others."""
    scene = Scene()
    scene.bind(whole("a"), 0)
    scene.ask(whole("b"))

    assert scene.bind(whole("c", 2), 0) is None
    assert (scene.holds.node_of("b"), scene.free(0)) == ("n-0", 0)


def test_a_hold_ends_by_time() -> None:
    """30 seconds, or eleven minutes where volumes may have to be bound first."""
    scene = Scene()
    scene.ask(whole("p"))
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    scene.ask(whole("q"), {"spec": {"volumes": [{"name": "tmp", "emptyDir": {}}, claim]}})

    scene.now = HOLD_SECONDS - 0.1
    scene.holds.expire()
    assert len(scene.holds) == 2
    scene.now = HOLD_SECONDS
    scene.holds.expire()
    assert (scene.holds.node_of("p"), scene.holds.node_of("q")) == ("", "n-0")
    scene.now = HOLD_WITH_VOLUMES_SECONDS
    scene.ask(whole("r", 2))  # whoever asks next ends what is too old
    assert (scene.holds.node_of("r"), scene.holds.ended[holds.TOO_OLD]) == ("n-0", 2)


ENDS: dict[str, tuple[Object, str]] = {
    "bound": (seen(reason="old", node="n-1"), holds.BOUND),
    "being deleted": (seen(reason="old", deletionTimestamp="14:00"), holds.DELETED),
    "unschedulable since": (seen(reason="new"), holds.UNSCHEDULABLE),
    "unschedulable before, and nothing since": (seen(reason="old"), ""),
    "touched by somebody": (seen(), ""),
    "nominated where it is held": (seen(reason="old", nominated="n-0"), ""),
    "nominated to a node without room": (seen(nominated="n-1"), holds.NO_ROOM),
    "nominated to a node that nobody knows": (seen(nominated="n-9"), holds.MOVED),
}


@pytest.mark.parametrize(("pod", "why"), ENDS.values(), ids=ENDS)
def test_what_a_watch_tells_of_a_pod_may_end_its_hold(pod: Object, why: str) -> None:
    """The room is free then; a condition of an earlier attempt says nothing of this one."""
    scene = Scene()
    scene.bind(whole("other"), 1)
    scene.ask(whole("p", 2), seen(reason="old"))
    scene.holds.put("p", pod)

    assert scene.free(0) == (2 if why else 0)
    assert set(scene.holds.ended) - {holds.MOVED} == {why} - {"", holds.MOVED}


def test_a_hold_follows_the_nominated_node() -> None:
    """There and nowhere else."""
    scene = Scene()
    scene.ask(whole("p", 2))

    scene.holds.put("p", seen(nominated="n-1"))
    assert (scene.holds.node_of("p"), scene.free(0), scene.free(1)) == ("n-1", 2, 0)


def test_holds_are_bounded() -> None:
    """Who comes when there are too many has none, and is counted."""
    scene = Scene(most=1)

    assert [scene.ask(whole(uid)) for uid in "ab"] == ["n-0", "n-0"]
    assert (len(scene.holds), scene.holds.ended[holds.TOO_MANY]) == (1, 1)


def test_a_node_that_goes_takes_its_holds_along() -> None:
    """The engine has given them back already."""
    scene = Scene()
    scene.ask(whole("p"))

    scene.holds.dropped(scene.engine.drop_node("uid-n-0"))
    assert (len(scene.holds), scene.holds.ended) == (0, {holds.NODE_GONE: 1})


def test_a_hold_that_ends_without_a_bind_tells_of_its_node() -> None:
    """By time, by its Pod, for another node, for who took its card; never by its own bind."""
    scene = Scene()
    scene.ask(whole("p", 2))
    scene.ask(whole("p", 2))
    assert scene.freed == ["n-0"], "it may get less this time"
    scene.holds.expected(scene.holds.placements()[0], NOTHING)
    assert scene.freed == ["n-0"], "the same place again"
    assert scene.bind(whole("p", 2), 0)
    scene.engine.release("p")
    assert scene.freed == ["n-0"]
    acts: dict[str, Callable[[], None]] = {
        "time": partial(scene.wait, HOLD_SECONDS),
        "gone": partial(scene.holds.drop, "p"),
        "deleted": partial(scene.holds.put, "p", seen(deletionTimestamp="now")),
        "unschedulable": partial(scene.holds.put, "p", seen(reason="no")),
        "moved": partial(scene.holds.put, "p", seen(nominated="n-1")),
        "bound elsewhere": partial(scene.holds.put, "p", seen(node="n-1")),
    }
    for why, act in acts.items():
        assert scene.ask(whole("p", 2)) == "n-0", why
        scene.freed.clear()
        act()
        assert scene.freed == ["n-0"], why
        scene.holds.drop("p")
    assert scene.ask(whole("p", 2)) == "n-0"
    scene.freed.clear()
    assert scene.bind(whole("q"), 0)
    assert scene.freed == ["n-0"], "one card of two is left"
    scene.ask(whole("r", 1))
    scene.freed.clear()
    assert scene.bind(whole("r"), 1)
    assert scene.freed == ["n-0"]


def test_ending_what_is_not_held_changes_nothing() -> None:
    """A deletion may come after the binding."""
    scene = Scene()

    scene.holds.drop("p")
    scene.holds.put("p", seen(reason="new"))
    scene.holds.dropped(["p"])
    assert not scene.holds.ended
