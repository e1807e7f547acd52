"""Room by the end of Pods, for one that waits for what sums do not show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from ledger.domain.log.events import PodReserved, PreemptionDecided
from ledger.domain.resources import SCHEDULER_NAME
from scheduler.service.evicting import LOOK_SECONDS, MINUTE_SECONDS, Evicting, Mode
from scheduler.service.holds import HOLD_SECONDS
from scheduler.service.kept import Namespaces
from scheduler.service.preempting import DUE_SECONDS, STUCK_SECONDS, Preempting
from scheduler.service.telling import Telling
from tests.support import grouped
from tests.support.fake_api import ApiClient, ApiServer, path_of
from tests.support.live import START_US, MemoryLedger
from tests.support.objects import container, node, pod


class Scene(grouped.Scene):
    """Two cards with a low Pod of 60 % each, and a Pod of 70 %: 80 are left in all."""

    def __init__(self, mode: Mode = "dry-run", ledger: MemoryLedger | None = None) -> None:
        super().__init__("a", "b", gpus=2, ledger=ledger)
        self.server.watchers.append(self._shown)
        self.preempting = Preempting(
            self.live.view,
            self.holds,
            self.binder.telling,
            self.live.clock,
            groups=self.groups,
            begun=self.live.ledger.beginning().preemptions,
        )
        self.extender.preempting = self.preempting
        self.events = ApiServer()
        api = ApiClient(self.events, self.live.clock.sleep)
        self.telling = Telling(api=api, clock=self.live.clock, reporter="test")
        self.binder.telling = self.telling
        self.namespaces = Namespaces()
        self.label("ml")
        self.evicting = Evicting(
            view=self.live.view,
            preempting=self.preempting,
            namespaces=self.namespaces,
            binder=self.binder,
            mode=mode,
            why_not=str,
        )
        self.reserved: dict[str, PodReserved] = {}

    def fill(self) -> Scene:
        """Let the Pods be there."""
        for number in range(2):
            self.run(f"a{number}", 60, "a")
            self.run(f"b{number}", 100, "b", priority=5)
        self.tell(self.asks("high", 70, priority=9))
        return self

    @property
    def high(self) -> dict[str, Any]:
        """The Pod that waits."""
        return self.pods["high"]

    def _shown(self, kind: str, value: dict[str, Any]) -> None:
        uid = value["metadata"]["uid"]
        if kind == "DELETED":
            self.preempting.drop(uid)
        else:
            self.preempting.put(uid, value)

    def label(self, name: str, word: str = "true") -> None:
        """Let a namespace have the label."""
        metadata = {"name": name, "labels": {"tenure.sh/preempt": word}}
        self.namespaces.put(f"uid-{name}", {"metadata": metadata})

    def asks(self, name: str, percent: int, *, priority: int) -> dict[str, Any]:
        """Return a Pod of ours that asks for so much of a card."""
        limits = {"koordinator.sh/gpu": percent}
        made = pod(
            container(limits=limits), name=name, uid=f"pod-{name}", schedulerName=SCHEDULER_NAME
        )
        made["spec"]["priority"] = priority
        made["status"] = {"phase": "Pending"}
        return made

    def run(self, name: str, percent: int, node: str, priority: int = 1) -> None:
        """Let a Pod run on a node."""
        body = self.asks(name, percent, priority=priority)
        self.tell(body)
        self.reserved[name] = self.reserve(name, node)
        body["spec"]["nodeName"] = node
        self.tell(body)

    def act(self) -> None:
        """Let the time of a look pass, and do what is due."""
        self.live.clock.now += LOOK_SECONDS
        asyncio.run(self.evicting.settle())

    def begun(self) -> list[PreemptionDecided]:
        """Return the preemptions that the ledger has."""
        return [event for event in self.said(PreemptionDecided) if not event.over]

    def over(self) -> list[PreemptionDecided]:
        """Return the preemptions that are over by the ledger."""
        return [event for event in self.said(PreemptionDecided) if event.over]

    def ended(self) -> list[str]:
        """Return whose end was asked for, really or by a dry run."""
        assert isinstance(self.binder.api, ApiClient)
        paths = [path for verb, path in self.binder.api.calls if verb == "create"]
        return [each.rpartition("/pods/")[2] for each in paths if "/eviction" in each]

    def ask(self, *names: str) -> list[str]:
        """Ask for the high one where kube-scheduler has room, and let its time pass."""
        found = self.passing("high", *(names or ("a",)))
        self.live.clock.now += STUCK_SECONDS
        return found

    def room(self) -> tuple[str, set[str]] | None:
        """Return who would end for the high one, and where."""
        self.live.clock.now += LOOK_SECONDS
        for request in self.preempting.stuck():
            room = self.preempting.room_for(request, self.evicting._is_able)
            if room is not None:
                return room.node_name, {uid.removeprefix("pod-") for uid in room.victims}
        return None


def test_a_pod_that_waits_for_fragmentation_alone_would_have_one_other_end() -> None:
    """The latest of two that are alike, where kube-scheduler offered the node."""
    scene = Scene().fill()

    assert scene.ask() == []

    assert scene.room() == ("a", {"a1"})


def test_nobody_ends_before_kube_scheduler_had_its_turn() -> None:
    """Its own preemption follows the filter at once."""
    scene = Scene().fill()
    scene.ask()
    scene.live.clock.now -= 0.5

    assert scene.preempting.stuck() == []


def test_nobody_ends_where_kube_scheduler_has_no_room() -> None:
    """It did not offer the node; or what there is in all is too little, and it knows or will."""
    scene = Scene().fill()
    scene.ask("b")
    assert scene.room() is None, "who is on b has whole cards of a lower priority"

    body = {"Pod": scene.high, "NodeNames": []}
    scene.extender.filter(json.dumps(body).encode())
    scene.live.clock.now += STUCK_SECONDS
    assert scene.room() is None


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda it: it.high["spec"].update(preemptionPolicy="Never"), id="policy"),
        pytest.param(lambda it: it.high["spec"].update(priority=1), id="as high as they"),
        pytest.param(
            lambda it: it.high.update(status={"nominatedNodeName": "b"}), id="nominated by others"
        ),
        pytest.param(
            lambda it: it.high["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            id="being deleted",
        ),
    ],
)
def test_nobody_ends_for_a_pod_that_may_not_have_others_end(
    spoil: Callable[[Scene], object],
) -> None:
    """By its own words, or since its room is on its way."""
    scene = Scene().fill()
    spoil(scene)
    scene.tell(scene.high)

    scene.ask()

    assert scene.room() is None


def test_pods_of_namespaces_without_the_label_neither_end_nor_have_others_end() -> None:
    """Whoever labels a namespace agrees to both."""
    scene = Scene().fill()
    scene.ask()
    scene.label("ml", "yes")
    assert scene.room() is None
    scene.label("ml")
    assert scene.room() is not None
    scene.namespaces.drop("uid-ml")
    assert scene.room() is None


def test_a_budget_spares_who_would_end() -> None:
    """The other one goes; where it protects both, nobody does."""
    scene = Scene().fill()
    protect(scene, "a1")
    scene.ask()
    assert scene.room() == ("a", {"a0"})

    protect(scene, "a0")
    assert scene.room() is None


def protect(scene: Scene, name: str) -> None:
    """Let a budget have a Pod that allows nobody's end."""
    budget = {
        "metadata": {"namespace": "ml"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0},
    }
    body = scene.pods[name]
    body["metadata"]["labels"] = {"app": "x"}
    scene.tell(body)
    scene.live.view.disruptions.put("budget", budget)


def test_nobody_ends_while_kube_schedulers_own_victims_are_due() -> None:
    """It was told on another node whom to end."""
    scene = Scene().fill()
    scene.ask()

    assert preempt(scene, {"b": ["b0"]}).keys() == {"b"}
    assert scene.room() is None


def preempt(scene: Scene, wanted: dict[str, list[str]]) -> dict[str, Any]:
    """Ask as kube-scheduler whom to end on which node."""
    entries = {
        node: {"Pods": [{"UID": f"pod-{name}"} for name in names], "NumPDBViolations": 0}
        for node, names in wanted.items()
    }
    body = {"Pod": scene.high, "NodeNameToMetaVictims": entries}
    answer = json.loads(scene.extender.preempt(json.dumps(body).encode()))
    found: dict[str, Any] = answer["NodeNameToMetaVictims"]
    return found


def notes(scene: Scene) -> list[tuple[str, str]]:
    """Return the Events that were written, with their reasons."""
    asyncio.run(scene.telling.send())
    return [(one["reason"], one["note"]) for one in scene.events.objects.values()]


def test_a_dry_run_tells_whom_it_would_end_and_ends_nobody() -> None:
    """In an Event of the Pod, once in a while."""
    scene = Scene().fill()
    scene.ask()

    scene.act()

    assert notes(scene) == [("WouldPreempt", "would end 1 Pod on node a: ml/a1")]
    assert scene.evicting.counts == {"room": 1}
    assert scene.ended() == []


def test_nothing_is_looked_for_where_that_is_off() -> None:
    """As by default."""
    scene = Scene("off").fill()
    scene.ask()

    scene.act()

    assert not scene.evicting.counts


def test_one_pod_ends_and_its_room_is_for_the_one_that_waits() -> None:
    """First in a dry run; the ledger has it before the end, and it ends with the Pod's bind."""
    scene = Scene("on").fill()
    scene.ask()
    scene.act()

    assert scene.ended() == ["a1/eviction?dryRun=All", "a1/eviction"]
    [begun] = scene.begun()
    assert (begun.pod_uid, begun.node_name, begun.victims) == ("pod-high", "a", ("pod-a1",))
    assert scene.high["status"]["nominatedNodeName"] == "a"
    assert notes(scene) == [("Preempts", "ends 1 Pod on node a: ml/a1")]
    assert scene.passing("high", "a") == [], "its cards are not given back yet"
    assert preempt(scene, {"b": ["b0"]}) == {}

    scene.act()
    assert len(scene.ended()) == 2
    scene.end(scene.reserved["a1"])
    assert scene.holds.node_of("pod-high") == "a"
    assert scene.passing("high", "a") == ["a"]
    assert scene.bind("high", "a") == ""
    scene.act()
    assert [each.over for each in scene.over()] == ["the Pod waits no more"]
    scene.act()
    assert len(scene.begun()) == len(scene.over()) == 1


def test_nobody_ends_where_a_dry_run_is_refused() -> None:
    """And nothing is recorded; it is tried again later."""
    scene = Scene("on").fill()
    scene.ask()
    scene.fates.extend(["answered", 429])

    scene.act()

    assert (scene.ended(), scene.begun()) == (["a1/eviction?dryRun=All"], [])
    scene.act()
    assert len(scene.begun()) == 1


def test_after_a_refusal_no_more_pods_end_for_it() -> None:
    """Neither of this set nor of another, until the time is over; the ledger has why."""
    scene = Scene("on").fill()
    scene.ask()
    scene.fates.extend(["answered", "answered", "answered", 429])

    scene.act()

    [ended] = scene.over()
    assert ended.over.startswith("the end of ml/a1 was refused")
    scene.live.clock.now += DUE_SECONDS / 2
    assert scene.preempting.stuck() == []


@pytest.mark.parametrize("minor", ["38", "38+", "40", ""])
def test_nobody_ends_where_kube_scheduler_asks_for_such_pods_itself(minor: str) -> None:
    """From 1.38 on; nor where the version is not known."""
    scene = Scene("on").fill()
    scene.server.minor = minor
    scene.ask()

    scene.act()

    assert scene.ended() == []


def test_nobody_ends_once_kube_scheduler_has_asked_without_victims() -> None:
    """Whatever version the API server is of: its answer has the victims."""
    scene = Scene("on").fill()
    assert preempt(scene, {"a": []})["a"]["Pods"] == [{"UID": "pod-a1"}]
    scene.live.clock.now += DUE_SECONDS + 1
    scene.ask()

    scene.act()

    assert scene.ended() == []


def test_whoever_leads_next_goes_on_with_the_same_pods() -> None:
    """Crashed between the record and the end; nobody else ends, and the room is kept."""
    scene = Scene("on").fill()
    scene.ask()
    scene.fates.extend(["answered", "answered", "lost", "dropped"])
    scene.act()
    log = scene.live.ledger.log
    log[:] = [event for event in log if not getattr(event, "over", "")]  # it crashed
    after = Scene("on", ledger=scene.live.ledger)
    for body in scene.pods.values():
        after.tell(body)
    after.live.clock.now = scene.live.clock.now

    assert preempt(after, {"b": ["b0"]}) == {}
    after.act()

    assert after.ended() == ["a1/eviction"]
    assert len(after.begun()) == 1


def test_ten_pods_end_within_a_minute_at_most() -> None:
    """The eleventh waits; what a ledger has of the last minute counts after a start, too."""
    ledger = MemoryLedger()
    scene = Scene("on", ledger=ledger).fill()
    until_us = scene.live.clock.wall_us() + int(DUE_SECONDS * 1e6)
    uids = tuple(f"pod-x{number}" for number in range(10))
    begun = PreemptionDecided(
        pod_uid="pod-other",
        namespace="ml",
        pod_name="other",
        node_uid="uid-b",
        node_name="b",
        victims=uids,
        until_us=until_us,
    )
    scene.live.record(begun)
    scene.ask()
    scene.act()
    assert scene.ended() == []
    assert scene.evicting.counts["too many in a minute"] == 1
    scene.live.clock.now += 60
    scene.act()
    assert scene.ended() == ["a1/eviction?dryRun=All", "a1/eviction"]


def test_what_has_begun_is_over_where_the_setting_is_off_after_a_start() -> None:
    """Else kube-scheduler would be told for ever that nobody can end for the Pod."""
    scene = Scene("on").fill()
    scene.ask()
    scene.act()
    after = Scene("off", ledger=scene.live.ledger)
    for body in scene.pods.values():
        after.tell(body)
    after.live.clock.now = scene.live.clock.now

    after.act()

    assert [each.over for each in after.over()] == ["no more Pods end, by the setting"]
    assert preempt(after, {"b": ["b0"]}) == {}
    after.live.clock.now += DUE_SECONDS
    assert preempt(after, {"b": ["b0"]}).keys() == {"b"}


def test_what_is_long_over_says_nothing_to_who_starts() -> None:
    """No node is woken for it, and nobody waits by it."""
    scene = Scene("on").fill()
    scene.ask()
    scene.act()
    scene.end(scene.reserved["a1"])
    assert scene.bind("high", "a") == ""
    scene.act()
    log = scene.live.ledger.log
    for number, event in enumerate(log):
        if isinstance(event, PreemptionDecided):
            log[number] = structs.replace(event, until_us=START_US - 1)
    after = Scene("on", ledger=scene.live.ledger)
    woken: list[str] = []
    after.live.wakeups.room_freed.subscribe(woken.append)

    after.preempting.expire()
    assert woken == []
    after.act()

    assert (after.preempting.own, woken) == ({}, [])


def fragments(fates: tuple[str | int, ...] = ()) -> Scene:
    """Return two low Pods of 30 % on one card of three, all others' being high, and 90 % wanted."""
    scene = Scene("on")
    scene.add_node("a", 3)
    scene.live.settle()
    for name, percent, priority in (("l0", 30, 1), ("l1", 30, 1), ("h0", 75, 9), ("h1", 75, 9)):
        scene.run(name, percent, "a", priority)
    for number in range(2):
        scene.run(f"b{number}", 100, "b", priority=5)
    scene.tell(scene.asks("high", 90, priority=8))
    scene.ask()
    scene.fates.extend(fates)
    scene.act()
    return scene


def again(scene: Scene) -> Scene:
    """Return the scene of whoever leads next."""
    after = Scene("on", ledger=scene.live.ledger)
    for body in scene.pods.values():
        after.tell(body)
    after.reserved.update(scene.reserved)
    after.live.clock.now = scene.live.clock.now
    return after


def crashed() -> Scene:
    """Return the scene of who leads next, where none was asked to end after the record."""
    scene = Scene("on").fill()
    scene.ask()
    scene.fates.extend(["answered", "answered", "lost", "dropped"])
    scene.act()
    log = scene.live.ledger.log
    log[:] = [event for event in log if not getattr(event, "over", "")]
    return again(scene)


def is_refused(scene: Scene, percent: int) -> bool:
    """Tell whether a low Pod finds no room on the node."""
    scene.tell(scene.asks("x", percent, priority=0))
    return scene.passing("x", "a") == []


def pass_time(scene: Scene, seconds: float = DUE_SECONDS) -> None:
    """Let time pass, and kube-scheduler try again, which nominates nobody then."""
    scene.live.clock.now += seconds
    scene.high["status"].pop("nominatedNodeName", None)
    scene.tell(scene.high)
    scene.act()
    scene.ask()
    scene.act()
    scene.act()


def test_room_that_comes_free_in_parts_is_for_the_pod_that_waits() -> None:
    """Also what is free already; a stranger that takes it would make a second set end."""
    scene = fragments()
    assert set(scene.ended()[2:]) == {"l0/eviction", "l1/eviction"}
    scene.end(scene.reserved["l0"])

    assert is_refused(scene, 30)
    scene.live.clock.now += HOLD_SECONDS + 1
    assert is_refused(scene, 30), "as long as it stands"
    assert scene.passing("high", "a") == []
    assert is_refused(scene, 30), "though it was asked about"

    scene.end(scene.reserved["l1"])
    assert scene.passing("high", "a") == ["a"]
    assert scene.bind("high", "a") == ""


def test_whoever_leads_next_holds_what_has_come_free() -> None:
    """Else a stranger takes it, and another set ends."""
    scene = Scene("on").fill()
    scene.ask()
    scene.act()
    scene.end(scene.reserved["a1"])
    after = again(scene)
    assert is_refused(after, 60)

    after.act()

    assert after.holds.node_of("pod-high") == "a"
    assert after.ended() == []


def test_kube_scheduler_ends_nobody_after_a_refusal_half_way() -> None:
    """Until the time is over; then it may."""
    scene = fragments(("answered",) * 5 + (429,))
    assert len(scene.over()) == 1
    for name in {"l0", "l1"}.difference(scene.pods):
        scene.end(scene.reserved[name])
    scene.live.clock.now += 20
    scene.passing("high", "a", "b")

    assert preempt(scene, {"b": ["b0"]}) == {}
    assert preempt(again(scene), {"b": ["b0"]}) == {}, "nor when another leads"
    scene.live.clock.now += DUE_SECONDS
    assert preempt(scene, {"b": ["b0"]}).keys() == {"b"}


def test_no_second_set_ends_while_the_first_ones_cards_are_not_given_back() -> None:
    """However long the node says nothing, and whoever leads."""
    scene = Scene("on").fill()
    scene.ask()
    scene.act()
    for _ in range(2):
        pass_time(scene)
        scene = again(scene)
    pass_time(scene)

    assert [each.victims for each in scene.begun()] == [("pod-a1",)]


def test_no_pod_ends_on_a_node_where_the_end_of_another_is_overdue() -> None:
    """Its cards may come free at any time."""
    scene = Scene("on").fill()
    scene.delete("a1")
    scene.ask()
    for _ in range(3):
        pass_time(scene)

    assert scene.begun() == []


def remove_label(scene: Scene) -> None:
    """Let the namespace agree no more."""
    scene.label("ml", "no")


def be_newer(scene: Scene) -> None:
    """Let kube-scheduler ask for such Pods itself."""
    scene.server.minor = "38+"


def have_room(scene: Scene) -> None:
    """Let another Pod have ended by itself."""
    scene.end(scene.reserved["a0"])


def cordon(scene: Scene) -> None:
    """Let the node take nobody."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "koordinator.sh/gpu": "200"}
    body = node("a", allocatable=amounts, unschedulable=True)
    scene.live.tell("nodes", body, uid="uid-a")
    scene.live.settle()


@pytest.mark.parametrize("change", [remove_label, be_newer, have_room, cordon])
def test_whoever_goes_on_looks_again_before_anybody_ends(change: Callable[[Scene], None]) -> None:
    """The world may have changed since the ledger has it."""
    after = crashed()
    change(after)

    after.act()

    assert after.ended() == []


def test_pods_that_are_asked_to_end_late_count_from_then() -> None:
    """Not from when it was decided."""
    after = crashed()
    after.live.clock.now += 65
    after.act()
    after.live.clock.now += 30

    assert after.ended() == ["a1/eviction"]
    assert after.preempting.ends_since(MINUTE_SECONDS) == 1


def test_an_end_without_an_answer_is_asked_for_again() -> None:
    """It may have been done, so that the ledger has no refusal."""
    scene = Scene("on").fill()
    scene.ask()
    scene.fates.extend(["answered", "answered", "answered", "lost"])
    scene.act()
    assert ("a1" not in scene.pods, scene.over()) == (True, [])

    scene = Scene("on").fill()
    scene.ask()
    scene.fates.extend(["answered", "answered", "answered", 503, 429])
    scene.act()
    assert scene.over() == []
    scene.act()
    [over] = scene.over()
    assert over.over.startswith("the end of ml/a1 was refused")
    assert over.over.endswith("asked to end, or gone: none")


def test_the_mirror_of_a_static_pod_does_not_end() -> None:
    """Its eviction ends nothing on the node."""
    scene = Scene("on").fill()
    for name in ("a0", "a1"):
        body = scene.pods[name]
        body["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
        scene.tell(body)
    scene.ask()
    scene.act()

    assert scene.ended() == []


def test_a_pod_that_goes_while_that_is_recorded_is_called_by_its_uid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else is known of it."""
    scene = Scene("on").fill()
    scene.ask()
    record = scene.evicting._record

    async def recording(event: PreemptionDecided) -> bool:
        found = await record(event)
        scene.server.delete(path_of(scene.pods["a1"]))
        return found

    monkeypatch.setattr(Evicting, "_record", lambda _, event: recording(event))
    scene.act()

    assert notes(scene) == [("Preempts", "ends 1 Pod on node a: pod-a1")]
