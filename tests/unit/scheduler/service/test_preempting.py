"""One preemption at a time for a Pod, of the least that makes room."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from random import Random
from typing import Any

import pytest

from ledger.domain.log.events import PodReserved
from ledger.domain.request.requests import PodRequest
from scheduler.service.answering import Extender
from scheduler.service.holds import Holds
from scheduler.service.preempting import BEGUN_SECONDS, DUE_SECONDS
from tests.support.extending import NoBinds, NoRefusals, preempting
from tests.support.live import Live
from tests.support.objects import container, pod


class Scene:
    """Nodes of two cards, full of Pods of a low priority, and one of a high one that comes."""

    def __init__(self, *percents: int, nodes: Sequence[str] = ("a", "b"), cards: int = 2) -> None:
        self.live = Live()
        for name in nodes:
            self.live.add_node(name, cards)
        self.live.settle()
        view = self.live.view
        self.holds = Holds(
            view.engine, self.live.clock.monotonic, view.directory.number, self.live.wakeups
        )
        self.preempting = preempting(view, self.holds, self.live.groups, self.live.clock)
        self.extender = Extender(
            view,
            NoBinds(),
            why_not=str,
            groups=self.live.groups,
            holds=self.holds,
            refusals=NoRefusals(),
            preempting=self.preempting,
        )
        self.woken: list[str] = []
        self.live.wakeups.room_freed.subscribe(self.woken.append)
        self.reserved: dict[str, PodReserved] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.nodes = nodes
        for name in nodes:
            for number, percent in enumerate(percents):
                self.run(f"{name}{number}", percent, name)
        self.high = asks("high", 100, priority=9)
        view.pods.put("pod-high", self.high)

    def run(
        self, name: str, percent: int, node: str, priority: int = 1, shown: tuple[str, ...] = ()
    ) -> None:
        """Let a Pod run on a node."""
        body = asks(name, percent, priority=priority)
        placement = self.live.placement(body, node)
        self.reserved[name] = self.live.reserve(placement, shown=shown)
        body["spec"]["nodeName"] = node
        self.bodies[name] = body
        self.live.view.pods.put(f"pod-{name}", body)

    def filter(self) -> list[str]:
        """Return the nodes that take the high one."""
        body = {"Pod": self.high, "NodeNames": list(self.nodes)}
        names: list[str] = json.loads(self.extender.filter(json.dumps(body).encode()))["NodeNames"]
        return names

    def preempt(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
        """Return who has to go for the high one by node, where kube-scheduler wants these to."""
        entries = {
            node: {"Pods": [{"UID": f"pod-{name}"} for name in names], "NumPDBViolations": 0}
            for node, names in wanted.items()
        }
        body = {"Pod": self.high, "NodeNameToMetaVictims": entries}
        answer = json.loads(self.extender.preempt(json.dumps(body).encode()))
        return {
            node: {one["UID"].removeprefix("pod-") for one in entry["Pods"]}
            for node, entry in answer["NodeNameToMetaVictims"].items()
        }

    def told_to_end(self, name: str, by: str = "2026-01-01T00:00:00Z") -> None:
        """Let the watch show that a Pod is being deleted."""
        body = self.bodies[name]
        body["metadata"]["deletionTimestamp"] = by
        self.live.view.pods.put(f"pod-{name}", body)

    def show_high(self) -> None:
        """Let the watch show the high one as it is."""
        for sink in (self.live.view.pods, self.holds, self.preempting):
            sink.put(self.high["metadata"]["uid"], self.high)

    def comes(self, name: str, priority: int) -> None:
        """Let another Pod come that asks for a whole card; the scene asks for it from now on."""
        self.high = asks(name, 100, priority=priority)
        self.show_high()

    def ends(self, name: str) -> None:
        """Let a Pod be gone, and the ledger have its end."""
        self.gone(name)
        self.release(name)

    def gone(self, name: str) -> None:
        """Let the watch show that a Pod is gone."""
        self.live.view.pods.drop(f"pod-{name}")

    def release(self, name: str) -> None:
        """Let the ledger have a Pod's end."""
        self.live.release(self.reserved[name])


def asks(name: str, percent: int, *, priority: int) -> dict[str, Any]:
    """Return a Pod that asks for so much of a card."""
    limits = {"koordinator.sh/gpu": percent}
    made = pod(container(limits=limits), name=name, uid=f"pod-{name}")
    made["spec"]["priority"] = priority
    return made


def test_nobody_else_ends_while_the_first_victims_are_not_given_back() -> None:
    """kube-scheduler asks again as soon as they are gone; the ledger has it later."""
    scene = Scene(100, 100)
    assert scene.filter() == []
    assert scene.preempt({"a": ["a0"], "b": ["b0"]}) == {"a": {"a0"}, "b": {"b0"}}
    assert scene.preempt({"b": ["b0"]}) == {}, "no watch has told of it yet"
    scene.gone("a0")
    scene.live.clock.now += BEGUN_SECONDS + 1
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {}
    assert scene.preempting.counts["waits for ends"] == 2
    scene.release("a0")
    assert scene.holds.node_of("pod-high") == "a", "nobody else has what came free"
    assert scene.filter() == ["a"]


def test_who_ended_nobody_is_answered_anew_in_time() -> None:
    """kube-scheduler was ended between the answer and the deletion."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    assert scene.preempt({"a": ["a0"]}) == {}
    scene.preempting.expire()
    assert scene.woken == []
    scene.live.clock.now += BEGUN_SECONDS
    scene.preempting.expire()
    scene.preempting.expire()
    assert scene.woken == ["a"]
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}


@pytest.mark.parametrize("seen", [Scene.told_to_end, Scene.gone])
def test_a_service_that_starts_meanwhile_waits_by_the_nomination(seen: Any) -> None:  # noqa: ANN401
    """For a bounded time, at the end of which the Pod is woken."""
    scene = Scene(100, 100)
    scene.high["status"] = {"nominatedNodeName": "a"}
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}, "nobody is about to end there"
    scene.preempting.drop("pod-high")
    seen(scene, "a0")
    assert scene.preempt({"b": ["b0"]}) == {}
    scene.live.clock.now += DUE_SECONDS
    scene.preempting.expire()
    assert scene.woken == ["a"]
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


def test_a_nomination_that_was_taken_back_changes_nothing() -> None:
    """kube-scheduler clears it where a filter fails, as while the service starts again."""
    scene = Scene(100, 100)
    scene.gone("a0")
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {}
    scene.live.clock.now += DUE_SECONDS
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


@pytest.mark.parametrize("nominated", ["a", ""], ids=["nominated", "the nomination is lost"])
def test_a_pod_that_leaves_is_waited_for_though_the_ledger_has_it_not(nominated: str) -> None:
    """A watch that lags shows one again that was released, or others' scheduler bound it."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.ends("a0")
    scene.holds.end("pod-high", "")
    scene.high["status"] = {"nominatedNodeName": nominated}
    scene.told_to_end("a0")
    for _ in range(2):
        assert scene.filter() == []
        assert scene.preempt({"b": ["b0"]}) == {}
    scene.woken.clear()
    scene.gone("a0")
    assert scene.woken == ["a"], "kube-scheduler knew of its end before"
    assert scene.filter() == ["a"]


def test_a_pod_that_stays_and_that_the_ledger_has_not_is_waited_for_by_nobody() -> None:
    """It closes the node for as long as it runs."""
    scene = Scene(100, 100)
    scene.ends("a0")
    scene.live.view.pods.put("pod-a0", scene.bodies["a0"])
    scene.told_to_end("a1")
    scene.high["status"] = {"nominatedNodeName": "a"}
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


def test_who_came_to_a_node_meanwhile_goes_though_others_end_there_yet() -> None:
    """kube-scheduler asks when its own fit has changed, and no wake of ours makes it ask again."""
    scene = Scene(100, 100, nodes=("a",))
    scene.high["spec"]["containers"][0]["resources"]["limits"]["koordinator.sh/gpu"] = 200
    scene.show_high()
    assert scene.preempt({"a": ["a0", "a1"]}) == {"a": {"a0", "a1"}}
    scene.ends("a0")
    body = asks("other", 50, priority=1)
    scene.live.view.pods.put("pod-other", body)
    scene.holds.asked_again("pod-high")  # a bind is decided by the ledger alone
    scene.live.reserve(scene.live.placement(body, "a"))
    scene.gone("a1")
    assert scene.preempt({"a": ["other"]}) == {"a": {"other"}}
    scene.live.clock.now += BEGUN_SECONDS
    assert scene.preempt({"a": ["other"]}) == {"a": {"other"}}


@pytest.mark.parametrize("is_gone", [False, True], ids=["being deleted", "gone"])
@pytest.mark.parametrize(
    ("by", "count"), [("2027-01-15T07:59:59Z", 1), ("2026-01-15T08:00:00Z", 2)], ids=["due", "late"]
)
def test_an_end_counts_as_room_for_as_long_as_it_is_due(
    by: str, count: int, *, is_gone: bool
) -> None:
    """Two cards need two of four gone. One alone ends in vain, and nobody asks a second time."""
    scene = Scene(60, 60, 60, 60, nodes=("a",), cards=4)
    scene.high["spec"]["containers"][0]["resources"]["limits"]["koordinator.sh/gpu"] = 200
    scene.show_high()
    scene.told_to_end("a0", by)
    if is_gone:
        scene.gone("a0")
    assert len(scene.preempt({"a": ["a1"]})["a"]) == count


def test_who_is_about_to_end_is_waited_for_where_that_helps() -> None:
    """A node on which a half comes free has no room for a whole card."""
    scene = Scene(50, 50, 100)
    scene.high["status"] = {"nominatedNodeName": "a"}
    scene.told_to_end("a0")
    assert scene.preempt({"b": ["b2"]}) == {"b": {"b2"}}


def test_nobody_ends_where_room_came_free_since_the_filter() -> None:
    """Once for each filter: kube-scheduler may have reasons of its own."""
    scene = Scene(100, 100)
    assert scene.filter() == []
    scene.gone("b1")
    scene.release("b1")
    assert scene.preempt({"a": ["a0"]}) == {}
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}


def test_a_preemption_that_others_took_the_room_of_is_over() -> None:
    """Its victims hold nothing any more, and the Pod has no place."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.gone("a0")
    scene.release("a0")
    scene.holds.end("pod-high", "")
    scene.run("other", 100, "a", priority=9)
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


def test_who_sees_a_card_ends_for_it() -> None:
    """Nobody holds it, and the node is one where an end helps."""
    scene = Scene(nodes=("a",))
    scene.run("sees", 100, "a", shown=("GPU-a-0", "GPU-a-1"))
    scene.high = asks("high", 200, priority=9)
    body = {"Pod": scene.high, "NodeNames": ["a"]}
    answer = json.loads(scene.extender.filter(json.dumps(body).encode()))
    assert answer["FailedNodes"].keys() == {"a"}
    assert not answer["FailedAndUnresolvableNodes"]
    assert scene.preempt({"a": ["sees"]}) == {"a": {"sees"}}
    scene.ends("sees")
    assert scene.filter() == ["a"]


def test_victims_on_different_cards_give_way_to_as_many_on_one() -> None:
    """kube-scheduler counts sums, and names halves of two cards for a whole one."""
    scene = Scene(50, 50, 50, 50, nodes=("a",))
    cards = {name: scene.reserved[name].shares[0].minor for name in scene.reserved}
    for wanted in combinations(sorted(cards), 2):
        scene.preempting.drop("pod-high")
        [victims] = scene.preempt({"a": wanted}).values()
        assert len(victims) == 2
        assert len({cards[name] for name in victims}) == 1


@pytest.mark.parametrize("names", [("p", "q"), ("q", "p")])
def test_of_two_pods_alike_the_later_one_ends(names: tuple[str, str]) -> None:
    """kube-scheduler names nobody, as 1.38 asks where sums have room; UIDs decide nothing."""
    scene = Scene(nodes=("a",))
    for name in names:
        scene.run(name, 60, "a")
    scene.high = asks("high", 70, priority=9)
    assert scene.preempt({"a": []}) == {"a": {names[1]}}


def test_what_kube_scheduler_wants_back_is_given_back() -> None:
    """Of a Pod that holds more CPUs than the others nobody else is a match."""
    scene = Scene(50, 50, 50, nodes=("a",))
    body = asks("large", 50, priority=1)
    body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    scene.reserved["large"] = scene.live.reserve(scene.live.placement(body, "a"))
    body["spec"]["nodeName"] = "a"
    scene.live.view.pods.put("pod-large", body)
    beside = next(
        name
        for name, event in scene.reserved.items()
        if name != "large" and event.shares[0].minor == scene.reserved["large"].shares[0].minor
    )
    [other] = {"a0", "a1", "a2"} - {beside, "a0" if beside != "a0" else "a1"}
    assert scene.preempt({"a": ["large", other]}) == {"a": {"large", beside}}


@pytest.mark.parametrize("seed", range(40))
def test_no_smaller_set_of_pods_alike_makes_room(seed: int) -> None:
    """By trying all of them, whatever kube-scheduler wants."""
    rng = Random(seed)
    percent, cards = rng.choice([25, 50, 100]), rng.choice([1, 2, 3])
    scene = Scene(*([percent] * (cards * 100 // percent)), nodes=("a",), cards=cards)
    low = list(scene.reserved)
    on = {name: scene.reserved[name].shares[0].minor for name in low}
    need = rng.choice([percent, 100, 100 * cards])
    scene.high["spec"]["containers"][0]["resources"]["limits"]["koordinator.sh/gpu"] = need
    wanted = rng.sample(low, max(1, need // percent))
    answer = scene.preempt({"a": wanted})

    def fits(gone: Sequence[str]) -> bool:
        free = [percent * sum(on[name] == card for name in gone) for card in range(cards)]
        return sum(each >= min(need, 100) for each in free) >= max(1, need // 100)

    least = next(size for size in range(1, len(low) + 1) if any(map(fits, combinations(low, size))))
    assert fits(sorted(answer["a"]))
    assert len(answer["a"]) == least


def test_what_comes_free_long_after_is_for_everybody() -> None:
    """The victims never ended; the Pod waits for reasons of kube-scheduler's own."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.live.clock.now += DUE_SECONDS
    scene.ends("a0")
    assert scene.holds.node_of("pod-high") == ""


def test_one_wait_holds_no_room_for_ever() -> None:
    """Each Pod that ended on the node was taken for the one that was waited for."""
    scene = Scene(100, 100)
    scene.gone("a0")
    scene.high["status"] = {"nominatedNodeName": "a"}
    assert scene.preempt({"b": ["b0"]}) == {}
    scene.release("a0")
    assert scene.holds.node_of("pod-high") == "a"
    scene.live.clock.now += DUE_SECONDS
    scene.holds.expire()
    scene.preempting.expire()
    scene.ends("a1")
    assert scene.holds.node_of("pod-high") == ""


def test_nothing_is_held_for_a_pod_that_is_being_deleted() -> None:
    """It is asked about no more."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.high["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    scene.show_high()
    scene.ends("a0")
    assert scene.holds.node_of("pod-high") == ""


def test_old_preemptions_are_forgotten() -> None:
    """After the Pod was woken, and could be asked about again."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    for _ in range(3):
        scene.live.clock.now += DUE_SECONDS
        scene.preempting.expire()
    scene.told_to_end("a0")
    scene.high["status"] = {"nominatedNodeName": "a"}
    assert scene.preempt({"a": ["a1"]}) == {}, "that is waited for anew"


def test_the_room_stays_with_its_pod_when_kube_scheduler_writes_the_nomination() -> None:
    """The condition of the attempt before, which the watch shows after the release."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.ends("a0")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    scene.high["status"] = {"nominatedNodeName": "a", "conditions": [condition]}
    scene.show_high()
    assert scene.holds.node_of("pod-high") == "a"
    scene.live.clock.now += 30
    scene.holds.expire()
    assert scene.holds.node_of("pod-high") == "", "for a bounded time"


def test_the_highest_gets_what_came_free_for_several() -> None:
    """Whichever was asked about first."""
    scene = Scene(100, nodes=("a",), cards=1)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.comes("higher", 50)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.ends("a0")
    assert scene.holds.node_of("pod-high") == ""
    assert scene.holds.node_of("pod-higher") == "a"
    assert scene.filter() == ["a"]


def test_what_comes_free_in_parts_is_for_the_pod_that_it_came_free_for() -> None:
    """A Pod of low priority waits too, for half of what is given back first."""
    scene = Scene(50, 50, 50, 50, nodes=["a"])
    high = scene.high = asks("high", 200, priority=9)
    scene.show_high()
    victims = ["a0", "a1", "a2", "a3"]

    def filter_for(body: dict[str, Any]) -> list[str]:
        scene.high = body
        return scene.filter()

    low = asks("low", 50, priority=1)
    scene.live.view.pods.put("pod-low", low)
    assert filter_for(high) == []
    assert scene.preempt({"a": victims}) == {"a": set(victims)}
    for name in victims:
        scene.told_to_end(name)
    for name in victims[:3]:
        scene.ends(name)
        assert filter_for(low) == [], "the high one has all that its victims have"
        assert filter_for(high) == [], "one of them has not ended"
        assert filter_for(low) == []
    scene.ends(victims[3])
    assert filter_for(low) == []
    assert filter_for(high) == ["a"]


def test_what_was_promised_to_a_lower_pod_gives_way() -> None:
    """The higher one has room only once the second Pod's end is in the ledger too."""
    scene = Scene(50, 50, nodes=("a",), cards=1)
    half = asks("half", 50, priority=5)
    scene.live.view.pods.put("pod-half", half)
    low, high = (scene.live.view.requests.read(body) for body in (half, scene.high))
    assert isinstance(low, PodRequest)
    assert isinstance(high, PodRequest)
    scene.ends("a0")
    assert scene.holds.promise(low, "a")
    assert not scene.holds.promise(high, "a")
    assert scene.holds.node_of("pod-half") == "a"
    scene.ends("a1")
    assert scene.holds.promise(high, "a")
    assert scene.holds.node_of("pod-half") == ""


def test_the_highest_gets_what_came_free_for_a_lower_one_too() -> None:
    """As soon as the first of its victims has ended, where one Pod ends for both."""
    scene = Scene(50, 50, nodes=("a",), cards=1)
    assert scene.preempt({"a": ["a0", "a1"]}) == {"a": {"a0", "a1"}}
    scene.high = asks("half", 50, priority=5)
    scene.show_high()
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.ends("a0")
    assert scene.holds.node_of("pod-high") == "a"
    assert scene.holds.node_of("pod-half") == ""


def test_what_comes_free_elsewhere_is_not_for_a_pod_that_is_nominated() -> None:
    """kube-scheduler took the victims of one node, and one of another ends by itself."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"], "b": ["b0"]}) == {"a": {"a0"}, "b": {"b0"}}
    scene.high["status"] = {"nominatedNodeName": "a"}
    scene.show_high()
    scene.ends("b0")
    assert scene.holds.node_of("pod-high") == ""


def test_victims_on_the_other_nodes_stay_while_the_chosen_ones_end() -> None:
    """One that was named of a node which was not chosen ends by itself."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"], "b": ["b0"]}) == {"a": {"a0"}, "b": {"b0"}}
    scene.ends("b0")
    scene.holds.end("pod-high", "")
    scene.run("other", 100, "b", priority=20)
    assert scene.preempt({"a": ["a1"]}) == {}, "no watch has told of a0 yet"
    scene.high["status"] = {"nominatedNodeName": "a"}
    assert scene.preempt({"a": ["a1"]}) == {}


def test_victims_that_hold_nothing_end_no_wait() -> None:
    """kube-scheduler wants one of another system's Pods on a node beside."""
    scene = Scene(100, 100)
    scene.ends("b1")
    assert scene.preempt({"a": ["a0"], "b": ["hog"]}) == {"a": {"a0"}, "b": {"hog"}}
    assert scene.preempt({"a": ["a1"]}) == {}


def test_a_question_is_answered_for_some_nodes_where_there_are_many() -> None:
    """In bounded time, those with fewest victims first; all others wait for the answer."""
    nodes = tuple(f"n{number}" for number in range(40))
    scene = Scene(*[25] * 8, nodes=nodes)
    wanted = {name: [f"{name}{number}" for number in (0, 1, 4, 5, 6)] for name in nodes[:-1]}
    answer = scene.preempt(
        wanted | {nodes[-1]: [f"{nodes[-1]}{number}" for number in (0, 1, 4, 5)]}
    )
    assert nodes[-1] in answer
    assert 10 < len(answer) < len(nodes)
    assert {len(victims) for victims in answer.values()} <= {4, 5}


def test_nodes_without_help_do_not_hide_one_that_helps() -> None:
    """The bound counts from the first answer on."""
    nodes = tuple(f"n{number}" for number in range(200))
    scene = Scene(100, nodes=nodes, cards=1)
    for name in nodes[:-1]:
        scene.live.view.pods.put(f"pod-{name}0", asks(f"{name}0", 100, priority=99))
    scene.preempting.drop("pod-high")
    wanted: dict[str, list[str]] = {name: [] for name in nodes[:-1]}
    wanted |= {nodes[-1]: [f"{nodes[-1]}0"]}
    assert scene.preempt(wanted) == {nodes[-1]: {f"{nodes[-1]}0"}}


def test_a_filter_of_long_ago_is_no_reason_to_end_nobody() -> None:
    """kube-scheduler refused the node with room by itself, and asked no filter."""
    scene = Scene(100, 100)
    assert scene.filter() == []
    scene.ends("b1")
    scene.live.clock.now += 1
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}


def test_a_pod_that_has_room_by_now_is_woken() -> None:
    """Room of the ledger's is no event of Kubernetes'."""
    scene = Scene(100, 100)
    assert scene.filter() == []
    scene.ends("b1")
    scene.woken.clear()
    assert scene.preempt({"a": ["a0"]}) == {}
    scene.live.clock.now += 1
    scene.preempting.expire()
    scene.preempting.expire()
    assert scene.woken == ["b"]


def test_long_grace_periods_are_waited_for() -> None:
    """They may be longer than the time for which an answer is due."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    by = 1_800_000_000 + 2 * int(DUE_SECONDS)
    scene.told_to_end("a0", by=f"{datetime.fromtimestamp(by, UTC):%Y-%m-%dT%H:%M:%SZ}")
    for seconds in (DUE_SECONDS, DUE_SECONDS, 29):
        scene.live.clock.now += seconds
        assert scene.preempt({"a": ["a1"]}) == {}
    scene.gone("a0")
    assert scene.preempt({"a": ["a1"]}) == {}, "its cards are not given back yet"
    scene.live.clock.now += 1
    assert scene.preempt({"a": ["a1"]}) == {"a": {"a1"}}


def test_whatever_holdings_do_not_count_is_given_back_too() -> None:
    """Who asks for huge pages gets them by kube-scheduler's victims alone."""
    scene = Scene(50, 50, 50, 50, nodes=("a",))
    cards = {name: scene.reserved[name].shares[0].minor for name in scene.reserved}
    wanted = {"a0", next(name for name in cards if cards[name] != cards["a0"])}
    requests = {"hugepages-2Mi": "2Mi"}
    scene.high["spec"]["containers"][0]["resources"]["requests"] = requests
    scene.high["spec"]["containers"][0]["resources"]["limits"].update(requests)
    [victims] = scene.preempt({"a": sorted(wanted)}).values()
    assert victims > wanted
    assert len(victims) == 3
