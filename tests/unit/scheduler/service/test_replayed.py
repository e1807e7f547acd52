"""What the live service chose is chosen again from its ledger alone, whatever came in between."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ledger.domain.errors import LedgerError, NotAfterError, UnknownOutcomeError
from ledger.domain.log.events import GroupPlanned, NodeLost, PlanDropped, PodReleased, PodReserved
from ledger.domain.log.recorded import NewEvent
from ledger.domain.resources import ANNOTATION_GPU_TOPOLOGY
from ledger.store.writing.commands import Command, Outcome, Refused
from scheduler.decide.group.groups import gpu_minors
from scheduler.decide.group.life import NODE_GONE, NODE_REFUSES
from scheduler.record.replay import Again
from scheduler.record.so_far import InForce
from scheduler.service.binding import BEHIND_SECONDS
from scheduler.service.groups import MEMBERS_SECONDS
from scheduler.service.holds import HOLD_WITH_VOLUMES_SECONDS
from scheduler.service.ports import NotChosen
from scheduler.service.view import BEHIND
from tests.support.grouped import GROUP, Scene, cards
from tests.support.live import MemoryLedger
from tests.support.objects import container, node, nrt, pod
from tests.support.replays import replayed
from tests.support.runs import recorded


class LostAnswers(MemoryLedger):
    """A ledger that records, and whose answers are lost at times."""

    loses = False

    async def record(self, command: Command) -> Outcome:
        """Record a command; raise where its answer is lost."""
        outcome = await super().record(command)
        if self.loses:
            raise UnknownOutcomeError("the answer was lost")
        return outcome


def again(scene: Scene) -> list[Again]:
    """Return every decision of a scene's ledger, decided again."""
    log = [
        recorded(NewEvent(stream="s", event=event, actor="a", idempotency_key=str(n), wall_us=0), n)
        for n, event in enumerate(scene.live.ledger.log, start=1)
    ]
    by = InForce(settings=scene.live.settings, settings_hash="")
    return replayed(log, whole=False, by=by)


def differences(scene: Scene, decisions: int) -> list[Any]:
    """Return what comes out otherwise of so many decisions."""
    found = again(scene)
    assert len(found) == decisions
    return [(each.name, each.differences) for each in found if each.differences]


def follow(scene: Scene) -> None:
    """Let the ledger's feed tell of everything."""
    for position, event in enumerate(scene.live.ledger.log, start=1):
        scene.books.take(position, event)


def seen(event: PodReserved) -> list[str]:
    """Return the cards that a member is shown."""
    shown: list[str] = json.loads(event.annotations[ANNOTATION_GPU_TOPOLOGY])["visibleGPUs"]
    return shown


def ready(scene: Scene, *names: str, gpus: int = 1) -> None:
    """Let Pods come, and kube-scheduler ask about them."""
    for name in names:
        scene.create(name, gpus)
        scene.passing(name)


def test_nothing_is_chosen_on_a_node_that_the_feed_tells_of_first() -> None:
    """The ledger has the new inventory, the answer was lost, and the node is still the old one."""
    ledger = LostAnswers()
    scene = Scene(gpus=4, ledger=ledger)
    ready(scene, "p")
    scene.add_node("a", 4, closed=0)
    ledger.loses = True
    with pytest.raises(UnknownOutcomeError):
        scene.live.settle()
    ledger.loses = False
    follow(scene)
    assert isinstance(scene.choose("p", "a"), NotChosen)
    scene.live.settle()
    assert cards(scene.reserve("p", "a")) == [1]
    assert differences(scene, 1) == []


def test_a_node_that_is_as_before_again_is_recorded_again() -> None:
    """What the ledger was told counts, not what its answers said."""
    ledger = LostAnswers()
    scene = Scene(gpus=4, ledger=ledger)
    ready(scene, "p")
    scene.add_node("a", 4, closed=0)
    ledger.loses = True
    with pytest.raises(UnknownOutcomeError):
        scene.live.settle()
    ledger.loses = False
    follow(scene)
    scene.add_node("a", 4)
    scene.live.settle()
    assert cards(scene.reserve("p", "a")) == [0]
    assert differences(scene, 1) == []


def test_nothing_is_chosen_while_the_ledger_has_what_nobody_told_of() -> None:
    """The answer of a release was lost, and what was recorded behind it is known."""
    scene = Scene(gpus=4)
    ready(scene, "p", "q", "r")
    first, ledger = scene.reserve("p", "a"), scene.live.ledger
    ledger.log.append(
        PodReleased(pod_uid=first.pod_uid, attempt=1, node_uid="uid-a", reason="deleted")
    )
    chosen = scene.choose("q", "a")
    assert not isinstance(chosen, NotChosen)
    scene.record(*chosen.events)
    assert isinstance(scene.choose("r", "a"), NotChosen)
    follow(scene)
    assert cards(scene.reserve("r", "a")) == [0]
    assert differences(scene, 3) == []


def test_a_bind_waits_for_the_feed_and_then_says_that_it_is_behind() -> None:
    """What the ledger has between two positions that are known is not known yet."""
    scene = Scene(gpus=4)
    ready(scene, "p")
    log = scene.live.ledger.log
    log += [PodReleased(pod_uid=uid, attempt=1, node_uid="uid-a", reason="deleted") for uid in "xy"]
    scene.books.take(len(log), log[-1])
    began = scene.live.clock.now
    assert scene.bind("p", "a") == BEHIND
    assert scene.live.clock.now - began >= BEHIND_SECONDS
    follow(scene)
    assert scene.bind("p", "a") == ""


def test_nothing_is_chosen_between_a_nodes_last_inventory_and_its_loss() -> None:
    """Both are recorded one after the other, and the node is decided on as before until then."""

    class Asking(MemoryLedger):
        asked: NotChosen | None = None

        async def record(self, command: Command) -> Outcome:
            if any(isinstance(new.event, NodeLost) for new in command.events):
                self.asked = scene.choose("p", "a")  # type: ignore[assignment]
            return await super().record(command)

    ledger = Asking()
    scene = Scene(gpus=4, ledger=ledger)
    ready(scene, "p")
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    scene.live.tell("nodes", node("a", allocatable=amounts, taints=[taint]), uid="uid-a")
    scene.live.settle()
    assert isinstance(ledger.asked, NotChosen)


def test_what_was_chosen_meanwhile_does_not_count_where_it_is_recorded_first() -> None:
    """The command of the second is sent again, and comes behind the third."""
    scene = Scene(gpus=4)
    ready(scene, "p", "q", "r")
    first, second = scene.chosen("p", "a"), scene.chosen("q", "a")
    scene.record(*first.events)
    third = scene.chosen("r", "a")
    scene.record(*third.events)
    scene.record(*second.events)
    got = [cards(each.reservation) for each in (first, second, third)]
    assert got == [[0], [1], [2]]
    assert differences(scene, 3) == []


def test_who_counted_what_the_ledger_refuses_is_chosen_again() -> None:
    """Its command is not recorded before what it counted: nothing would tell what that held."""
    scene = Scene(gpus=4)
    ready(scene, "p", "q")
    refused, chosen = scene.chosen("p", "a"), scene.chosen("q", "a")
    scene.books.refused(refused)
    assert chosen.after == ("reserve:pod-p:1",)
    command = Command(events=chosen.events, after=chosen.after)
    answer = asyncio.run(scene.live.ledger.record(command))
    assert isinstance(answer, Refused)
    assert isinstance(answer.error, NotAfterError)
    scene.books.refused(chosen)
    assert cards(scene.reserve("q", "a")) == [0]
    assert differences(scene, 1) == []


def test_what_counted_and_is_not_there_is_a_difference() -> None:
    """No ledger of ours says so."""
    scene = Scene(gpus=4)
    ready(scene, "p", "q")
    scene.books.refused(scene.chosen("p", "a"))
    ready(scene, "p")
    scene.chosen("p", "a")
    scene.record(*scene.chosen("q", "a").events)
    [(name, [found])] = differences(scene, 1)
    assert (name, found.what, found.recorded) == ("ml/q", "beside", "pod-p/1")


def test_the_places_of_a_plan_count_that_is_recorded_with_another_pod() -> None:
    """A member that came after the plan is shown the cards of all, and recorded first."""
    scene = Scene(gpus=8)
    scene.job(2, gpus=1, replica=3)
    scene.live.clock.now += MEMBERS_SECONDS
    [where] = scene.passing("job-0")
    scene.job(3, gpus=1)
    scene.passing("job-2")
    late = scene.reserve("job-2", where)
    assert len(seen(late)) == 3
    scene.reserve("job-0", where)
    assert differences(scene, 2) == []


def test_the_places_of_other_groups_count_while_their_plan_is_on_its_way() -> None:
    """What the ledger will have is no soft hold, and nobody gets it."""
    scene = Scene(gpus=4)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    ready(scene, "x")
    with_plan, other = scene.chosen("job-0", "a"), scene.chosen("x", "a")
    scene.record(*with_plan.events)
    scene.record(*other.events)
    assert with_plan.reservation.node_name == other.reservation.node_name
    [plan] = scene.said(GroupPlanned)
    assert not {minor for place in plan.members for minor in place.minors} & {
        *cards(other.reservation)
    }
    assert differences(scene, 2) == []


def test_a_place_is_kept_for_who_holds_something_through_a_lost_node() -> None:
    """A member was reserved for there and not bound; the group is planned again elsewhere."""
    scene = Scene("a", "b", gpus=4)
    scene.job(2, gpus=1)
    scene.passing("job-1", "a")
    scene.reserve("job-1", "a")
    scene.live.view.nodes.nodes.drop("uid-a")
    scene.live.settle()
    scene.settle()
    scene.passing("job-0", "b")
    first = scene.reserve("job-0", "b")
    [kept] = scene.groups.groups.all_kept()
    assert (kept.request.name, kept.node_name) == ("job-1", "b")
    scene.create("x", 1)
    scene.passing("x", "b")
    other = scene.reserve("x", "b")
    assert not {*cards(first), *gpu_minors(kept)}.intersection(cards(other))
    assert differences(scene, 3) == []


def test_a_gang_that_is_planned_at_its_bind_is_chosen_for_at_the_next_one() -> None:
    """Its plan ran out, and the feed told first of a node that the new one has a place on."""
    ledger = LostAnswers()
    scene = Scene("a", "b", gpus=4, ledger=ledger)
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    scene.gang(2, 2, gpus=3, volumes=[volume])
    [where] = scene.passing("gang-0")
    [other] = {"a", "b"} - {where}
    scene.live.clock.now += HOLD_WITH_VOLUMES_SECONDS
    scene.groups.plans.expire()
    scene.add_node(other, 4, closed=0)
    ledger.loses = True
    with pytest.raises(UnknownOutcomeError):
        scene.live.settle()
    ledger.loses = False
    follow(scene)
    assert isinstance(scene.choose("gang-0", where), NotChosen)
    scene.live.settle()
    [where] = scene.passing("gang-0")
    scene.reserve("gang-0", where)
    assert differences(scene, 2) == []


def test_a_plan_that_ended_keeps_nothing_before_its_end_is_recorded() -> None:
    """A member that waited is gone, and another Pod gets its card at once."""
    scene = Scene(gpus=4)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    scene.reserve("job-0", "a")
    scene.delete("job-1")
    ready(scene, "x")
    assert cards(scene.reserve("x", "a")) == [1]
    scene.tell_drops()
    assert differences(scene, 2) == []


def test_every_end_of_a_plan_is_recorded_once_the_ledger_is_back() -> None:
    """It was away at the first of two; nobody of a group is bound while its plan's end is due."""
    scene = Scene(gpus=8)
    for job in ("job", "other"):
        scene.job(2, gpus=1, name=job)
        scene.passing(f"{job}-0")
        scene.reserve(f"{job}-0", "a")
    scene.delete("job-1")
    scene.delete("other-1")
    scene.live.ledger.away = LedgerError("down")
    with pytest.raises(LedgerError):
        scene.settle()
    scene.live.ledger.away = None
    scene.settle()
    assert len(scene.said(PlanDropped)) == 2
    assert not scene.groups.plans.ends_due()


def test_a_member_is_chosen_once_the_plan_of_its_group_is_recorded() -> None:
    """Else the ledger had a member before its plan, which would keep a place for it."""
    scene = Scene(gpus=4)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    first = scene.chosen("job-0", "a")
    assert isinstance(scene.choose("job-1", "a"), NotChosen)
    scene.record(*first.events)
    scene.reserve("job-1", "a")
    assert differences(scene, 2) == []


def test_members_are_shown_the_same_cards_after_a_restart() -> None:
    """A card of a member got sick before it was recorded, and another service leads then."""
    scene = Scene(gpus=4)
    scene.job(3, gpus=1)
    scene.passing("job-0")
    scene.reserve("job-0", "a")
    second = scene.chosen("job-1", "a")
    [sick] = cards(second.reservation)
    scene.add_node("a", 4, closed=sick)
    scene.live.settle()
    scene.record(*second.events)
    waiting = scene.pods["job-2"]
    scene = Scene(gpus=4, ledger=scene.live.ledger)
    scene.add_node("a", 4, closed=sick)
    scene.live.settle()
    scene.tell(waiting)
    scene.passing("job-2")
    assert len(seen(scene.reserve("job-2", "a"))) == 3
    assert differences(scene, 3) == []


def test_members_of_a_gang_on_one_node_get_cpus_of_their_own() -> None:
    """They are chosen one after the other, and each counts for the next."""
    scene = Scene(gpus=4)
    cpus = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(16)]
    scene.live.tell("topologies", nrt("a", cpu_topology={"detail": cpus}), uid="nrt-a")
    scene.live.settle()
    about = {"name": "gang", "min-available": "3", "waiting-time": "10s"}
    annotations = {f"gang.scheduling.koordinator.sh/{key}": value for key, value in about.items()}
    for name in ("g-0", "g-1", "g-2"):
        limits = {"koordinator.sh/gpu": 100, "cpu": "4", "memory": "1Gi"}
        made = pod(
            container(limits=limits, requests={"cpu": "4", "memory": "1Gi"}),
            name=name,
            uid=f"pod-{name}",
            annotations=annotations,
            labels={"koordinator.sh/qosClass": "LSR"},
        )
        scene.tell({**made, "status": {"phase": "Pending"}})
    scene.passing("g-0")
    chosen = scene.chosen("g-0", "a")
    sets = [event.cpuset for event in chosen.reservations]
    assert all(sets)
    assert len(sets) == 3
    assert (sets[0].mask | sets[1].mask | sets[2].mask).bit_count() == 12
    scene.record(*chosen.events)
    assert differences(scene, 3) == []


def test_a_command_says_of_each_of_its_reservations_once_what_it_counted() -> None:
    """Named by each that came after them, they grew with the square of a gang."""
    scene = Scene(*"abcd", gpus=8)
    ready(scene, "x")
    other = scene.chosen("x", "a")
    scene.gang(8, 8)
    [where] = scene.passing("gang-0")
    chosen = scene.chosen("gang-0", where)
    scene.record(*other.events)
    scene.record(*chosen.events)
    made = [each for each in scene.said(PodReserved) if each.group]
    named = [key for each in made for key in each.beside or () if key != "pod-x/1"]
    assert len(made) == 8
    assert len(named) == len(set(named)) == 7
    assert differences(scene, 9) == []


def test_a_plan_keeps_the_card_of_a_member_that_got_sick_before_it_was_recorded() -> None:
    """The node said so between the filter of the first member and its bind."""
    scene = Scene(gpus=6)
    scene.job(3, gpus=1)
    scene.passing("job-0")
    [sick] = [gpu_minors(one) for one in scene.groups.groups.all_kept()][1]
    scene.add_node("a", 6, closed=sick)
    scene.live.settle()
    first = scene.reserve("job-0", "a")
    assert str(sick) in seen(first)
    scene.reserve("job-2", "a")
    ready(scene, "x")
    scene.reserve("x", "a")
    assert differences(scene, 3) == []


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_service_that_starts_gives_nobody_else_the_place_of_a_member(*, is_asked: bool) -> None:
    """Also before kube-scheduler asks it about a member, and where it asked another service."""
    scene = Scene(gpus=4)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    scene.reserve("job-0", "a")
    waiting = scene.pods["job-1"]
    [kept] = scene.groups.groups.all_kept()
    scene = Scene(gpus=4, ledger=scene.live.ledger)
    scene.tell(waiting)
    scene.create("x", 1)
    if is_asked:
        scene.passing("x")
    scene.reserve("x", "a")
    assert cards(scene.reserve("job-1", "a")) == [*gpu_minors(kept)]
    assert differences(scene, 3) == []


def test_what_a_group_without_pods_has_on_a_node_that_came_back_is_visible() -> None:
    """Its Pods are gone, and the node has not said so; a group of its name comes there."""
    scene = Scene()
    scene.job(2, gpus=1)
    scene.passing("job-0")
    before = {*cards(scene.reserve("job-0", "a")), *cards(scene.reserve("job-1", "a"))}
    lose_and_find(scene, "a", 8, "job-0", "job-1")
    scene.job(2, gpus=1, name="other")
    labels = scene.pods["other-0"]["metadata"]["labels"] | {f"{GROUP}/name": "job"}
    for name in ("new-0", "new-1"):
        scene.create(name, 1, labels=labels)
    scene.passing("new-0")
    assert before < {*map(int, seen(scene.reserve("new-0", "a")))}
    assert differences(scene, 3) == []


def lose_and_find(scene: Scene, name: str, gpus: int, *pods: str) -> None:
    """Let a Node be gone and these Pods, and the Node be there again."""
    scene.live.view.nodes.nodes.drop(f"uid-{name}")
    scene.live.settle()
    for each in pods:
        scene.delete(each)
    scene.settle()
    scene.add_node(name, gpus)
    scene.live.settle()


def test_a_plan_ends_with_a_node_of_it_that_nobody_holds_anything_on() -> None:
    """Else it stood without its places once the Node was there again."""
    scene = Scene("a", "b", gpus=4)
    scene.job(2, gpus=3)
    [where] = scene.passing("job-0")
    [other] = {"a", "b"} - {where}
    scene.reserve("job-0", where)
    scene.live.view.nodes.nodes.drop(f"uid-{other}")
    scene.live.settle()
    scene.add_node(other, 4)
    scene.live.settle()
    ready(scene, "x", gpus=4)
    scene.reserve("x", other)
    scene.tell_drops()
    [dropped] = scene.said(PlanDropped)
    assert (dropped.reason, dropped.pod_uid) == (NODE_GONE, "pod-job-1")
    assert differences(scene, 2) == []


def test_a_plan_ends_whose_member_was_refused_as_its_card_got_sick() -> None:
    """The member has no place any more, and is placed alone."""
    scene = Scene(gpus=4)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    scene.reserve("job-0", "a")
    refused = scene.chosen("job-1", "a")
    [sick] = cards(refused.reservation)
    scene.add_node("a", 4, closed=sick)
    scene.live.settle()
    scene.books.refused(refused)
    assert cards(scene.reserve("job-1", "a")) != [sick]
    assert [each.reason for each in scene.said(PlanDropped)] == [NODE_REFUSES]
    assert differences(scene, 2) == []


def test_what_is_held_through_a_lost_node_stays_though_its_pod_is_reserved_for_anew() -> None:
    """It was not bound there; the release that was under way changes nothing either."""
    scene = Scene("a", "b", gpus=4)
    ready(scene, "p", "q", "r")
    first, late = scene.reserve("p", "a"), scene.reserve("q", "a")
    lose_and_find(scene, "a", 4, "q")
    scene.end(late)
    scene.passing("p", "b")
    scene.reserve("p", "b", attempt=2)
    scene.passing("r", "a")
    third = scene.reserve("r", "a")
    assert not {*cards(third)} & {*cards(first), *cards(late)}
    assert differences(scene, 4) == []
