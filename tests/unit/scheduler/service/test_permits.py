"""Bind calls of a gang's members wait for each other, and then all are bound or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from certs.ports import ApiError
from ledger.domain.log.events import GroupPlanned, PodBound, PodReserved
from scheduler.decide.group.permit import NEWER, WAIT_SECONDS
from scheduler.service.budgets import FIRST_SECONDS
from scheduler.service.permits import DRAINING, WAITS, Permits
from scheduler.service.ports import BindCall
from scheduler.service.starts import ELSEWHERE, GANG_BACKOFF, GONE
from scheduler.service.telling import NORMAL, WARNING, Subject, Telling
from tests.support.fake_api import ApiClient
from tests.support.grouped import GANG, GROUP, Scene
from tests.support.live import MemoryLedger
from tests.support.objects import node as node_object
from tests.unit.scheduler.service.test_gangs import GATED, victims

Act = Callable[[], Coroutine[Any, Any, None]]
LATE: Final = WAIT_SECONDS + 0.1


class Start:
    """A scene whose bind calls wait, and the calls that kube-scheduler has made."""

    def __init__(self, *names: str, gpus: int = 8, ledger: MemoryLedger | None = None) -> None:
        self.scene = Scene(*names, gpus=gpus, ledger=ledger)
        self.why = ""
        self.permits = Permits(
            self.scene.groups.starts,
            self.scene.binder,
            self.scene.live.clock,
            self.scene.live.wakeups,
            start=self.scene.tasks.start,
            why_not=lambda: self.why,
        )
        self.calls: dict[str, asyncio.Task[str]] = {}

    async def come(self, name: str, node: str = "", *, caller: str = "") -> str:
        """Filter a Pod, unless its node is given, and let kube-scheduler ask for its bind."""
        where = node or self.scene.passing(name)[0]
        call = BindCall(namespace="ml", pod_name=name, pod_uid=f"pod-{name}", node_name=where)
        self.calls[caller or name] = asyncio.ensure_future(self.permits.bind(call))
        await self.turn()
        return where

    async def turn(self) -> None:
        """Let what is due happen, and nothing of what waits for time."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def wait(self, seconds: float) -> None:
        """Let time pass, and look at who waits."""
        self.scene.live.clock.now += seconds
        self.permits.expire()
        await self.scene.gangs.settle()
        await self.scene.tasks.all_done()
        await self.turn()

    def answers(self) -> dict[str, str]:
        """Return what the calls were answered that do not wait."""
        return {name: one.result() for name, one in self.calls.items() if one.done()}

    def bound(self) -> dict[str, str]:
        """Return the node of every Pod that has one."""
        pods = self.scene.pods.items()
        return {name: one["spec"]["nodeName"] for name, one in pods if "nodeName" in one["spec"]}


class Notes(Telling):
    """Writes no Event, and remembers who was told what of its gang."""

    def __init__(self, **more: Any) -> None:  # noqa: ANN401 - as the real one
        super().__init__(**more)
        self.heard: list[tuple[str, str]] = []

    def tell(
        self, subject: Subject, reason: str, note: str, *, action: str, kind: str = WARNING
    ) -> None:
        """Remember it."""
        if (reason, action, kind) == (WAITS, "Binding", NORMAL):
            self.heard.append((subject.name, note))


def test_all_are_bound_once_enough_have_come() -> None:
    """Nothing is recorded before; then one transaction of all, and their Bindings."""
    start = Start()
    start.scene.gang(3, 3)

    async def act() -> None:
        for name in ("gang-0", "gang-1"):
            await start.come(name)
        await start.wait(1)
        assert not start.answers()
        assert not start.scene.said(PodReserved)
        await start.come("gang-2")
        await start.scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert start.answers() == dict.fromkeys(("gang-0", "gang-1", "gang-2"), "")
    kinds = (GroupPlanned, PodReserved, PodBound)
    said = [type(one) for one in start.scene.live.ledger.log if isinstance(one, kinds)]
    assert said == [GroupPlanned, *[PodReserved] * 3, *[PodBound] * 3]


def test_at_the_deadline_nobody_is_bound_and_the_plan_is_given_back() -> None:
    """Its waiting time is 10 s. The other's room is free at once; words say who is missing."""
    start = Start("a", gpus=4)
    start.scene.gang(2, 2)
    start.scene.create("other", 2)

    async def act() -> None:
        await start.come("gang-0")
        await start.wait(8.9)
        assert not start.answers()
        assert not start.scene.passing("other"), "the plan's"
        await start.wait(0.2)

    asyncio.run(act())
    late = "the gang is not begun: 1 of 2 members came in time; missing: ml/gang-1"
    assert start.answers() == {"gang-0": late}
    assert start.scene.passing("other") == ["a"]
    assert not start.scene.said(PodReserved)
    assert not start.bound()


def test_who_waits_is_told_how_many_have_come_and_until_when() -> None:
    """Once for each number, of a gang whose members have not all come by the next look."""
    start = Start()
    start.scene.gang(3, 3)
    notes = start.scene.binder.telling = Notes(
        api=start.scene.binder.api, clock=start.scene.live.clock, reporter="test"
    )

    async def act() -> None:
        await start.come("gang-0")
        await start.wait(1)
        await start.come("gang-1")
        for _ in range(2):
            await start.wait(1)
        assert start.permits.waiting() == {
            f"ml/{name}": (f"pod-{name}", both) for name in ("gang-0", "gang-1")
        }
        await start.wait(LATE)

    first, both = (f"held: {n} of 3 members have come, until 08:00:09 UTC" for n in (1, 2))
    asyncio.run(act())
    assert not start.permits.waiting()
    assert notes.heard == [("gang-0", first), ("gang-0", both), ("gang-1", both)]


def test_a_gang_that_failed_is_refused_until_it_has_a_new_plan_and_then_woken() -> None:
    """No member takes the room that it gave back; the pause is longer after each failure."""
    start = Start("a", gpus=4)
    start.scene.gang(2, 2)

    def versions() -> list[str]:
        return [one["metadata"]["resourceVersion"] for one in start.scene.pods.values()]

    async def act() -> None:
        await start.come("gang-0")
        await start.wait(LATE)
        for name in ("gang-0", "gang-1"):
            refused = start.scene.filter(name)["FailedAndUnresolvableNodes"]
            assert refused == {"a": GANG_BACKOFF}
            assert (
                await start.permits.bind(
                    BindCall(namespace="ml", pod_name=name, pod_uid=f"pod-{name}", node_name="a")
                )
                == GANG_BACKOFF
            )
        before = versions()
        await start.wait(FIRST_SECONDS - 0.5)
        assert versions() == before
        await start.wait(1)
        assert not set(versions()) & set(before), "both are woken"
        await start.come("gang-0")
        await start.wait(LATE)
        await start.wait(FIRST_SECONDS + 0.5)
        assert not start.scene.passing("gang-1"), "twice as long"
        await start.wait(FIRST_SECONDS)
        for name in ("gang-1", "gang-0"):
            await start.come(name)
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound() == {"gang-0": "a", "gang-1": "a"}


def test_a_member_goes_elsewhere_while_another_stays_on_its_way() -> None:
    """kube-scheduler keeps the second one off the node of the first: one worker on each host."""
    start = Start("a", "b", gpus=4)
    start.scene.gang(2, 2)

    async def act() -> None:
        where = await start.come("gang-0")
        [other] = {"a", "b"} - {where}
        assert start.scene.passing("gang-1", other) == [other]
        await start.come("gang-1", other)
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert sorted(start.bound().values()) == ["a", "b"]


def test_a_member_without_another_place_changes_nothing_of_the_plan() -> None:
    """The place of the one that is on its way stays, and so does its own."""
    start = Start("a", "b", gpus=4)
    start.scene.create("large", 4)
    start.scene.reserve("large", "b")
    start.scene.gang(2, 2)

    async def act() -> None:
        assert await start.come("gang-0") == "a"
        assert not start.scene.passing("gang-1", "b")
        await start.come("gang-1", "a")
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound() == {"gang-0": "a", "gang-1": "a"}


def deleted(start: Start) -> None:
    """Let a member be gone."""
    start.scene.server.delete("/api/v1/namespaces/ml/pods/gang-0")


def terminating(start: Start) -> None:
    """Let a member be on its way out."""
    one = start.scene.pods["gang-0"]
    leaving = {**one["metadata"], "deletionTimestamp": "2027-01-15T08:00:00Z"}
    start.scene.tell({**one, "metadata": leaving})


@pytest.mark.parametrize("change", [deleted, terminating])
def test_a_member_that_is_going_ends_the_attempt_at_once(change: Callable[[Start], None]) -> None:
    """It is not counted; those that are left begin once they are enough again."""
    start = Start()
    start.scene.gang(3, 3)

    async def act() -> None:
        await start.come("gang-0")
        await start.come("gang-1")
        change(start)
        await start.turn()
        over = f"the gang is not begun: ml/gang-0: {GONE}"
        assert start.answers() == {"gang-0": over, "gang-1": over}
        await start.wait(1)
        await start.come("gang-1", "a")
        await start.come("gang-2", "a")
        assert not start.bound()
        about = start.scene.pods["gang-1"]["metadata"]["annotations"]
        start.scene.create("gang-3", 2, annotations=about)
        await start.wait(1)
        for name in ("gang-1", "gang-2", "gang-3"):
            await start.come(name)
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound().keys() == {"gang-1", "gang-2", "gang-3"}


def cordoned(start: Start) -> None:
    """Let the node take nobody more."""
    value = node_object("a", allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
    value["spec"] = {**value.get("spec", {}), "unschedulable": True}
    start.scene.live.tell("nodes", value, uid="uid-a")


def not_ready(start: Start) -> None:
    """Let kubelet keep it Ready no more, of which kube-controller-manager's taint tells."""
    value = node_object("a", allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    value["spec"] = {**value.get("spec", {}), "taints": [taint]}
    start.scene.live.tell("nodes", value, uid="uid-a")


@pytest.mark.parametrize("change", [cordoned, not_ready])
def test_nodes_are_looked_at_again_before_anybody_is_bound(
    change: Callable[[Start], None],
) -> None:
    """kube-scheduler filtered the first member seconds ago."""
    start = Start()
    start.scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        change(start)
        await start.scene.live.inventory.settle()
        await start.come("gang-1", "a")
        await start.scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert not start.bound()
    assert len(set(start.answers().values())) == 1
    assert "the gang is not begun" in start.answers()["gang-0"]


def test_a_caller_that_is_gone_binds_nobody() -> None:
    """Its Pod is bound by a newer call alone, and not by the quorum of the others."""
    start = Start()
    start.scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        start.calls["gang-0"].cancel()
        await start.turn()
        await start.come("gang-1")
        assert not start.bound()
        await start.come("gang-0", caller="again")
        await start.scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert start.bound() == {"gang-0": "a", "gang-1": "a"}
    assert start.permits.counts["caller gone"] == 1


@pytest.mark.parametrize("fate", [503, 409])
def test_members_that_could_not_be_woken_are_woken_later(fate: int) -> None:
    """Until then they are refused: kube-scheduler would not ask again by itself for minutes."""
    start = Start("a", gpus=4)
    scene = start.scene
    scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        await start.wait(LATE)
        scene.fates.extend([fate, fate])
        before = scene.server.version
        await start.wait(FIRST_SECONDS)
        assert not scene.fates
        assert scene.server.version == before
        assert not scene.passing("gang-0")
        await start.wait(2 * FIRST_SECONDS)
        assert scene.server.version == before + 2
        assert scene.passing("gang-0") == ["a"]

    asyncio.run(act())


def test_a_gate_that_can_not_be_lifted_keeps_no_other_gang_in_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy refuses the patch each time."""
    start = Start("a", gpus=8)
    scene = start.scene
    scene.gang(2, 2)
    patch = ApiClient.patch

    async def refusing(api: ApiClient, path: str, body: Any) -> Any:  # noqa: ANN401 - as there
        if path.endswith("gated-0"):
            raise ApiError("a policy says no", status=403)
        return await patch(api, path, body)

    async def act() -> None:
        await start.come("gang-0")
        await start.wait(LATE)
        scene.gang(1, 1, name="gated", schedulingGates=GATED)
        monkeypatch.setattr(ApiClient, "patch", refusing)
        for _ in range(3):
            with pytest.raises(ApiError):
                await start.wait(FIRST_SECONDS)

    asyncio.run(act())
    assert scene.passing("gang-0") == ["a"]


def test_a_gang_that_is_begun_is_bound_whoever_waits() -> None:
    """Its callers may be gone between the decision and the Bindings."""
    start = Start()
    start.scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        call = BindCall(namespace="ml", pod_name="gang-1", pod_uid="pod-gang-1", node_name="a")
        last = asyncio.ensure_future(start.permits.bind(call))
        await asyncio.sleep(0)
        for one in (last, start.calls["gang-0"]):
            one.cancel()
        await start.turn()
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound() == {"gang-0": "a", "gang-1": "a"}


def test_of_two_calls_for_a_pod_the_newer_counts() -> None:
    """Two kube-schedulers ask for a while; a node that was not planned ends nobody's wait."""
    start = Start("a", "b", gpus=4)
    start.scene.gang(2, 2)

    async def act() -> None:
        where = await start.come("gang-0")
        [other] = {"a", "b"} - {where}
        await start.come("gang-0", other, caller="misled")
        await start.come("gang-0", where, caller="newer")
        assert start.answers() == {"misled": ELSEWHERE, "gang-0": NEWER}
        assert start.scene.groups.starts.is_coming("pod-gang-0"), "its place stays"
        await start.come("gang-1")
        await start.scene.tasks.all_done()
        await start.turn()

    asyncio.run(act())
    assert start.answers() | {"newer": "", "gang-1": ""} == start.answers()


@pytest.mark.parametrize("why", ["NotLeader", DRAINING])
def test_who_leads_no_more_answers_all_at_once(why: str) -> None:
    """Nobody is bound, and the gang does not back off: another replica takes the calls."""
    start = Start()
    start.scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        if why == DRAINING:
            start.permits.drain()
        else:
            start.why = why
            start.permits.expire()
        await start.turn()
        await start.come("gang-1", "a")

    asyncio.run(act())
    assert start.answers() == {"gang-0": why, "gang-1": why}
    assert not start.bound()
    assert start.scene.passing("gang-0") == ["a"]


def test_members_of_a_gang_that_has_begun_wait_for_nobody() -> None:
    """Late ones beyond the least, and those whose Binding a crash prevented."""
    start = Start()
    start.scene.gang(3, 2)

    async def act() -> None:
        await start.come("gang-0")
        await start.come("gang-1")
        await start.scene.tasks.all_done()
        await start.come("gang-2")
        await start.scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound().keys() == {"gang-0", "gang-1", "gang-2"}


def test_the_rest_of_a_topology_group_that_began_in_part_waits_for_nobody() -> None:
    """One was bound and the other given up: it is placed alone, so that no plan has it."""
    start = Start("a")
    scene = start.scene
    about = {"name": "gang", "min-available": "2", "waiting-time": "10s"}
    annotations = {f"{GANG}/{key}": value for key, value in about.items()}
    labels = {f"{GROUP}/name": "gang", f"{GROUP}/replica": "2"}
    for name in ("gang-0", "gang-1"):
        scene.create(name, annotations=annotations, labels=labels)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    for _ in range(2):
        scene.settle(10)

    async def act() -> None:
        await start.come("gang-1")
        await scene.tasks.all_done()

    asyncio.run(act())
    assert start.bound() == {"gang-0": "a", "gang-1": "a"}


@pytest.mark.parametrize(
    "early",
    [
        {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]},
    ],
    ids=["a claim", "a volume"],
)
def test_a_gang_with_claims_or_volumes_is_bound_as_they_come(early: dict[str, Any]) -> None:
    """A claim is allocated before the bind, and stays so: no member waits for the others."""
    start = Start()
    start.scene.gang(2, 2, **early)

    in_part = start.scene.groups.starts.in_part

    async def act() -> None:
        await start.come("gang-0")
        await start.scene.tasks.all_done()
        assert not in_part(), "all that must start together are reserved for"

    [why] = set(in_part().values())
    assert why.startswith(f"ml/gang-0: spec.{next(iter(early))}: kube-scheduler gives them")
    assert in_part().keys() == {"ml/gang-0", "ml/gang-1"}
    asyncio.run(act())
    assert start.bound() == {"gang-0": "a"}


def test_a_member_that_waits_to_be_bound_is_nobodys_victim() -> None:
    """Its node is left out; so many seconds later it is bound, or has given its room back."""
    start = Start("a", gpus=4)
    start.scene.gang(2, 2, gpus=1)

    async def act() -> None:
        await start.come("gang-0")
        assert victims(start.scene, 2, {"a": ["gang-0"]}) == {}
        await start.wait(LATE)
        assert victims(start.scene, 2, {"a": ["gang-0"]}) == {"a": {"gang-0"}}

    asyncio.run(act())


def test_a_pod_that_was_put_off_for_a_gang_is_woken_once_that_has_begun() -> None:
    """By the end of the attempt its victims can be named, and kube-scheduler would not ask."""
    start = Start("a", gpus=4)
    scene, woken = start.scene, list[str]()
    scene.gang(2, 2)

    async def act() -> None:
        await start.come("gang-0")
        assert victims(scene, 2, {"a": ["gang-0"]}) == {}
        await start.come("gang-1")
        await scene.tasks.all_done()
        scene.live.wakeups.room_freed.subscribe(woken.append)
        scene.preempting.expire()
        assert not woken
        await start.wait(WAIT_SECONDS)
        scene.preempting.expire()

    asyncio.run(act())
    assert woken == ["a"]
    assert victims(scene, 2, {"a": ["gang-0"]}) == {"a": {"gang-0", "gang-1"}}
