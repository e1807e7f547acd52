from __future__ import annotations

from typing import Any

from ledger.domain.log.events import (
    DeviceHealthChanged,
    LedgerEvent,
    PodBound,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.log.recorded import NewEvent
from scheduler.record.so_far import InForce
from scheduler.service.books import LATE_SECONDS
from scheduler.service.ports import BindCall, Chosen, NotChosen
from tests.support.live import WORDS, Live, MemoryLedger, types
from tests.support.objects import container, pod
from tests.support.replays import replayed
from tests.support.runs import recorded
from tests.support.stores import observed


class Scene:
    """One node with one card, and books over its view."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.live = Live(ledger)
        self.live.add_node("a", 1)
        self.live.settle()
        self.why = ""
        begun = self.live.ledger.beginning()
        self.books = self.live.books(begun, why_not=lambda: self.why)

    def choose(self, name: str = "p", attempt: int = 1, node: str = "a") -> Chosen | NotChosen:
        """Choose for a Pod on the node."""
        call = BindCall(namespace="ml", pod_name=name, pod_uid=f"pod-{name}", node_name=node)
        return self.books.choose(call, attempt, "7", _pod(name))

    def chosen(self, name: str = "p", attempt: int = 1, node: str = "a") -> Chosen:
        """Choose for a Pod that gets something."""
        chosen = self.choose(name, attempt, node)
        assert isinstance(chosen, Chosen), chosen
        return chosen

    def record(self, *events: LedgerEvent) -> None:
        """Let events be durable."""
        for event in events:
            self.live.ledger.log.append(event)
            self.books.take(len(self.live.ledger.log), event)

    def reserve(self, chosen: Chosen) -> PodReserved:
        """Let what was chosen be durable."""
        first = len(self.live.ledger.log) + 1
        self.live.ledger.log += [new.event for new in chosen.events]
        self.books.recorded(chosen.events, first)
        return chosen.reservation


def _pod(name: str) -> dict[str, Any]:
    return pod(container(limits={"koordinator.sh/gpu": 100}), name=name, uid=f"pod-{name}")


def test_what_is_chosen_counts_at_once_and_what_was_refused_is_given_back() -> None:
    """Two Pods on their way to one card: the second is told before the ledger has to."""
    scene = Scene()
    first = scene.chosen("p")
    assert scene.choose("q") == NotChosen(message="Insufficient gpu devices")
    scene.books.refused(first)
    assert isinstance(scene.choose("q"), Chosen)


def test_a_reservation_says_by_what_it_was_made_and_what_it_asked_for() -> None:
    """The request is described once, before the first reservation that is of its kind."""
    scene = Scene()
    chosen = scene.chosen()
    assert types([new.event for new in chosen.events]) == ["request.described", "pod.reserved"]
    assert (chosen.reservation.attempt, chosen.reservation.resource_version) == (1, "7")
    assert chosen.reservation.annotations
    assert chosen.reservation.request
    event = scene.reserve(chosen)
    scene.record(
        PodReleased(pod_uid=event.pod_uid, attempt=1, node_uid=event.node_uid, reason="deleted")
    )
    assert types([new.event for new in scene.chosen("q").events]) == ["pod.reserved"]


def test_two_commands_never_share_a_key() -> None:
    """Each describes a request under a key of its own until one is durable."""
    scene = Scene()
    first = scene.chosen("p")
    scene.books.refused(first)
    second = scene.chosen("q")
    keys = [new.idempotency_key for new in (*first.events, *second.events)]
    assert len(set(keys)) == len(keys)


def test_what_is_durable_stays_held_and_is_counted_once() -> None:
    """What was expected becomes what is held, without a second holder in between."""
    scene = Scene()
    event = scene.reserve(scene.chosen())
    assert scene.live.passing(_pod("q"), "a") == []
    scene.record(
        PodVoided(pod_uid=event.pod_uid, attempt=1, node_uid=event.node_uid, reason="test")
    )
    assert scene.live.passing(_pod("q"), "a") == ["a"]


def test_the_standing_of_a_pod_is_its_newest_reservation_until_that_ends() -> None:
    """Reserved, bound, released: what a repeated bind is answered by."""
    scene = Scene()
    assert scene.books.standing("pod-p") is None
    assert scene.books.attempts("pod-p") == 0
    event = scene.reserve(scene.chosen())
    standing = scene.books.standing("pod-p")
    assert standing is not None
    assert (standing.attempt, standing.is_bound, standing.node_name) == (1, False, "a")
    scene.record(PodBound(pod_uid="pod-p", attempt=1, node_uid=event.node_uid))
    bound = scene.books.standing("pod-p")
    assert bound is not None
    assert bound.is_bound
    scene.record(
        PodReleased(pod_uid="pod-p", attempt=1, node_uid=event.node_uid, reason="completed")
    )
    assert scene.books.standing("pod-p") is None
    assert scene.books.attempts("pod-p") == 0, "it is gone, and asks no more"


def test_a_pod_is_known_by_one_name() -> None:
    """As the watch has it, or its reservation where that is gone; of another UID any name is."""
    scene, item = Scene(), _pod("p")

    def is_named(name: str = "p", namespace: str = "ml", uid: str = "pod-p") -> bool:
        call = BindCall(namespace=namespace, pod_name=name, pod_uid=uid, node_name="a")
        return scene.books.is_named(call)

    def found() -> list[bool]:
        return [is_named(), is_named("q"), is_named(namespace="ops"), is_named("q", uid="new")]

    assert found() == [True] * 4
    item["metadata"] |= {"namespace": "ml", "resourceVersion": "7"}
    scene.live.view.pods.put("pod-p", item)
    assert found() == [True, False, False, True]
    scene.live.view.pods.drop("pod-p")
    assert found() == [True] * 4
    scene.reserve(scene.chosen())
    assert found() == [True, False, False, True]


def test_a_pod_that_was_gone_before_its_reservation_was_heard_of_is_forgotten() -> None:
    """A standby may hear of the ledger later than of Pods: no event of the API comes again."""
    scene = Scene()
    scene.books.drop("pod-p")
    event = scene.reserve(scene.chosen())
    scene.record(
        PodBound(pod_uid="pod-p", attempt=1, node_uid=event.node_uid),
        PodReleased(pod_uid="pod-p", attempt=1, node_uid=event.node_uid, reason="deleted"),
    )
    assert scene.books.attempts("pod-p") == 0


def test_a_pod_that_was_gone_before_its_reservation_was_taken_back_is_forgotten() -> None:
    """Also where the end that is heard of does not say that the Pod is gone, and more than once."""
    scene = Scene()
    scene.books.drop("pod-p")
    for attempt in (1, 2):
        event = scene.reserve(scene.chosen(attempt=attempt))
        end = PodVoided(
            pod_uid="pod-p", attempt=attempt, node_uid=event.node_uid, reason="taken back"
        )
        scene.record(end)
        assert scene.books.attempts("pod-p") == 0


def test_a_pod_that_was_gone_before_others_gave_it_something_is_forgotten() -> None:
    """Nothing was reserved for it, and nothing ever will be."""
    scene = Scene()
    scene.books.drop("pod-p")
    node_uid = scene.live.view.uid("a")
    assert node_uid is not None
    scene.record(observed("p", pod_uid="pod-p", node_uid=node_uid, node_name="a"))
    assert scene.books.attempts("pod-p") == 0


def test_a_pod_that_only_seemed_to_be_gone_keeps_the_number_of_its_attempts() -> None:
    """A list from before it came does not have it; the next watch event does."""
    scene = Scene()
    scene.books.drop("pod-p")
    scene.books.put("pod-p", {})
    event = scene.reserve(scene.chosen())
    scene.record(
        PodVoided(pod_uid="pod-p", attempt=1, node_uid=event.node_uid, reason="taken back")
    )
    assert scene.books.attempts("pod-p") == 1


def test_pods_that_went_are_let_go_once_the_ledger_will_not_tell_of_them() -> None:
    """Else a cluster's whole past would stay in memory."""
    scene = Scene()
    scene.books.drop("pod-p")
    scene.live.clock.now += LATE_SECONDS
    scene.books.drop("pod-q")
    scene.live.clock.now += 1.0
    scene.books.compare()
    assert set(scene.books._late) == {"pod-q"}


def test_a_process_that_starts_knows_what_nobody_knows_to_be_bound() -> None:
    """It has no memory of what was sent; the version is that of the reservation."""
    scene = Scene()
    scene.reserve(scene.chosen())
    again = Scene(scene.live.ledger)
    standing = again.books.standing("pod-p")
    assert standing is not None
    assert (standing.is_bound, standing.resource_version) == (False, "7")


def test_nothing_is_chosen_while_the_view_is_behind() -> None:
    """The reason is the answer."""
    scene = Scene()
    scene.why = "LedgerUnavailable"
    assert scene.choose() == NotChosen(message="LedgerUnavailable")


def test_the_version_of_a_pod_is_told_while_it_waits() -> None:
    """Of one that has a node, or that nobody told of, there is none."""
    scene = Scene()
    assert scene.books.version("pod-p") is None
    body = _pod("p")
    body["metadata"]["resourceVersion"] = "12"
    scene.live.view.pods.put("pod-p", body)
    assert scene.books.version("pod-p") == "12"
    body["spec"]["nodeName"] = "a"
    scene.live.view.pods.put("pod-p", body)
    assert scene.books.version("pod-p") is None


def test_a_replay_chooses_the_same_again_from_the_ledger_alone() -> None:
    """
    Cards are chosen on the position that the reservation tells, and on what was chosen since.

    The second is chosen before the first is durable, and a card dies before either is.
    """
    scene = Scene()
    scene.live.add_node("b", 3)
    scene.live.settle()
    first, second = scene.chosen("p", node="b"), scene.chosen("q", node="b")
    dead = DeviceHealthChanged(
        node_uid="uid-b", device_type="gpu", minor=2, device_id="", healthy=False, reason="Xid"
    )
    scene.record(dead)
    for chosen in (first, second):
        scene.reserve(chosen)
    scene.reserve(scene.chosen("r"))
    log = [
        recorded(NewEvent(stream="s", event=event, actor="a", idempotency_key=str(n), wall_us=0), n)
        for n, event in enumerate(scene.live.ledger.log, start=1)
    ]
    by = InForce(settings=scene.live.view.settings, settings_hash=WORDS.settings_hash)

    again = replayed(log, whole=False, by=by)

    assert [each.name for each in again] == ["ml/p", "ml/q", "ml/r"]
    assert [each.differences for each in again if each.differences] == []
