"""`groups.shareVisible`: a card that a container can see is for its group alone until that ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.annotations.tenure import cards_in, read_shown
from ledger.domain.dialects.dra.shares import holders_of
from ledger.domain.log.events import (
    LedgerEvent,
    NodeCleared,
    NodeInventoried,
    NodeLost,
    PodReserved,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.resources import ANNOTATION_TENURE_SHOWN
from scheduler.decide.claims import cards_of
from scheduler.gate.room import no_room
from scheduler.record.so_far import InForce
from scheduler.service.guard import node_with_seeing
from scheduler.service.ports import NotChosen
from tests.support.grouped import GROUP, Scene, cards
from tests.support.live import MemoryLedger
from tests.support.objects import container, pod
from tests.support.replays import replayed
from tests.support.runs import recorded
from tests.support.stores import share


def shown(event: PodReserved) -> set[str]:
    """Return the cards that a member's containers are shown, by minor."""
    return {each.rpartition("-")[2] for each in cards_in(read_shown(event.annotations))}


def pair(*, on: bool = True, slot_mode: str = "env") -> tuple[Scene, PodReserved, PodReserved]:
    """Return a node of two cards with two members of a group on it."""
    scene = Scene(gpus=2, share_visible=on, slot_mode=slot_mode)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    return scene, scene.reserve("job-0", "a"), scene.reserve("job-1", "a")


def differences(scene: Scene) -> list[Any]:
    """Return what comes out otherwise when the ledger is decided again."""
    log = [
        recorded(NewEvent(stream="s", event=event, actor="a", idempotency_key=str(n), wall_us=0), n)
        for n, event in enumerate(scene.live.ledger.log, start=1)
    ]
    by = InForce(settings=scene.live.settings, settings_hash="")
    found = replayed(log, whole=False, by=by)
    assert len(found) == len(scene.said(PodReserved))
    return [(each.name, each.differences) for each in found if each.differences]


def test_both_members_are_shown_both_cards() -> None:
    """The first is, though the second is only planned."""
    scene, first, second = pair()
    assert shown(first) == shown(second) == {"0", "1"}
    assert differences(scene) == []


def test_without_the_setting_nothing_is_said_and_a_card_is_free_at_once() -> None:
    """The Binding is as it was before there was the setting."""
    scene, first, second = pair(on=False)
    assert not {*first.annotations, *second.annotations} & {ANNOTATION_TENURE_SHOWN}
    scene.create("c", 1)
    scene.end(second)
    assert scene.passing("c") == ["a"]
    assert cards(scene.reserve("c", "a")) == cards(second)
    assert differences(scene) == []


def test_a_stranger_waits_until_who_sees_the_card_has_ended() -> None:
    """B has ended, and its node has confirmed it; A still runs, and sees B's card."""
    scene, first, second = pair()
    scene.create("c", 1)
    scene.end(second)
    assert scene.passing("c") == []
    assert isinstance(scene.choose("c", "a"), NotChosen)
    scene.end(first)
    assert scene.passing("c") == ["a"]
    scene.reserve("c", "a")
    assert differences(scene) == []


def test_who_waits_is_told_who_sees_the_card() -> None:
    """`why` has the reason, the group and what would help."""
    scene, _, second = pair()
    scene.create("c", 1)
    scene.end(second)
    scene.passing("c")
    [refusal] = scene.explain()
    assert isinstance(refusal, RequestRefused)
    [reason] = refusal.reasons
    assert reason.reason == "GPUVisibleToGroup"
    assert reason.detail == f"GPU {cards(second)[0]} shown to containers of group/ml/job/2"
    assert reason.remedy == "end the Pods of group/ml/job/2 on a"


def test_a_new_member_of_the_group_gets_the_card_at_once() -> None:
    """Also while a stranger waits for it."""
    scene, first, second = pair()
    scene.create("c", 1)
    scene.end(second)
    assert scene.passing("c") == []
    scene.create("job-2", 1, labels={f"{GROUP}/name": "job", f"{GROUP}/replica": "2"})
    assert scene.passing("job-2") == ["a"]
    third = scene.reserve("job-2", "a")
    assert cards(third) == cards(second)
    assert shown(third) == {"0", "1"}
    scene.end(third)
    assert scene.passing("c") == []
    scene.end(first)
    assert scene.passing("c") == ["a"]
    scene.reserve("c", "a")
    assert differences(scene) == []


def test_another_group_is_a_stranger_too() -> None:
    """Its members are planned elsewhere, or not at all."""
    scene, first, second = pair()
    scene.end(second)
    scene.job(1, gpus=1, name="other")
    assert scene.passing("other-0") == []
    scene.end(first)
    assert scene.passing("other-0") == ["a"]


class Archived(MemoryLedger):
    """A ledger whose events have moved to a file."""

    def beginning(self) -> Any:  # noqa: ANN401 - a Beginning
        """Return what is told without them."""
        begun = super().beginning()
        begun.opened.clear()  # type: ignore[attr-defined]
        return begun


@pytest.mark.parametrize("kind", [MemoryLedger, Archived])
@pytest.mark.parametrize("on", [True, False], ids=["on", "off by now"])
def test_a_service_that_starts_anew_knows_who_sees_the_card(
    kind: type[MemoryLedger], *, on: bool
) -> None:
    """It was recorded, and counts whatever the setting is by now."""
    scene, first, second = pair()
    scene.create("c", 1)
    waiting = scene.pods["c"]
    scene.end(second)
    scene = Scene(gpus=2, ledger=kind(list(scene.live.ledger.log)), share_visible=on)
    scene.tell(waiting)
    assert scene.passing("c") == []
    scene.end(first)
    assert scene.passing("c") == ["a"]


def test_a_card_that_a_stranger_has_is_not_shown() -> None:
    """A member that goes where the group was before sees what the group has there now."""
    scene = Scene(gpus=3, share_visible=True)
    scene.job(3, gpus=1)
    scene.passing("job-0")
    first = scene.reserve("job-0", "a")
    scene.end(first)
    scene.create("c", 1)
    assert scene.passing("c") == ["a"]
    stranger = scene.reserve("c", "a")
    second = scene.reserve("job-1", "a")
    assert cards(stranger) == cards(first)
    assert shown(second) == {"0", "1", "2"} - {str(cards(stranger)[0])}
    assert differences(scene) == []


def test_who_has_a_part_of_a_card_is_shown_its_own_alone_and_is_not_shown_to_others() -> None:
    """A stranger may have the rest of it; and a part is limited by its place among the cards."""
    scene = Scene(gpus=2, share_visible=True)
    scene.job(1, gpus=1, replica=2)
    labels = scene.pods["job-0"]["metadata"]["labels"]
    half = container(limits={"koordinator.sh/gpu": 50})
    for name, about in (("part", labels), ("c", {})):
        made = pod(half, name=name, uid=f"pod-{name}", labels=about)
        scene.tell({**made, "status": {"phase": "Pending"}})
    for name in ("part", "c", "job-0"):
        scene.passing(name)
    part, stranger, whole = (scene.reserve(name, "a") for name in ("part", "c", "job-0"))
    assert cards(part) == cards(stranger)
    assert shown(part) == set()
    assert shown(whole) == set(map(str, cards(whole)))
    assert differences(scene) == []


@pytest.mark.parametrize(
    ("mode", "waits"), [("env", True), ("plugin", False)], ids=["by environment", "by slots"]
)
def test_turned_on_what_containers_see_by_their_environment_counts(
    mode: str, *, waits: bool
) -> None:
    """Nothing says `tenure.sh/shown` of members of before; `visible.*` reached them in mode env."""
    scene, first, second = pair(on=False, slot_mode=mode)
    scene.create("c", 1)
    waiting = scene.pods["c"]
    ledger = MemoryLedger(list(scene.live.ledger.log))
    scene = Scene(gpus=2, ledger=ledger, share_visible=True, slot_mode=mode)
    scene.tell(waiting)
    scene.end(second)
    assert scene.passing("c") == ([] if waits else ["a"])
    scene.end(first)
    assert scene.passing("c") == ["a"]
    scene.reserve("c", "a")
    assert differences(scene)[2:] == []


def test_who_has_a_part_of_a_card_does_not_close_the_rest() -> None:
    """Its environment shows its own card, which is shared as before."""
    scene = Scene(gpus=1, share_visible=True)
    for name in ("part", "c"):
        half = container(limits={"koordinator.sh/gpu": 50})
        made = pod(half, name=name, uid=f"pod-{name}")
        scene.tell({**made, "status": {"phase": "Pending"}})
        assert scene.passing(name) == ["a"]
        assert scene.reserve(name, "a").annotations["tenure.sh/visible.0"]
    assert not seen_by(scene)


def seen_by(scene: Scene, name: str = "a") -> list[str]:
    """Return why claims are not given the cards of a node that no Pod holds, for who sees them."""
    node = node_with_seeing(scene.live.view, name)
    assert node is not None
    free = [card for card in node.devices if not holders_of(node, card)]
    found = {
        card.device_id: no_room(node, [share(gib=1, device_id=card.device_id)]) for card in free
    }
    closed = {card.record.device_id for card in cards_of(node) if card.closed}
    assert {card for card, why in found.items() if why} == closed & found.keys()
    return [why.message for why in found.values() if why]


def test_claims_are_not_given_what_a_container_sees_by_its_environment() -> None:
    """The gate counts it as filters do."""
    scene, first, second = pair(on=False)
    scene = Scene(gpus=2, ledger=MemoryLedger(list(scene.live.ledger.log)), share_visible=True)
    scene.end(second)
    assert seen_by(scene) == ["gpu GPU-a-1 of node a is shown to containers: held by Pod ml/job-0"]
    scene.end(first)
    assert seen_by(scene) == []


def test_claims_are_not_given_what_a_member_sees_that_is_being_recorded() -> None:
    """Its append may succeed after the claim's."""
    scene = Scene(gpus=3, share_visible=True)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    chosen = scene.chosen("job-0", "a")
    assert len(seen_by(scene)) == 2
    scene.books.refused(chosen)
    assert seen_by(scene) == []


def test_claims_are_not_given_what_a_pod_sees_that_runs_through_a_node_that_is_lost() -> None:
    """The Node of its machine is made anew, and gives by claims."""
    scene, _, second = pair()
    scene.end(second)
    view, before = scene.live.view, scene.live.view.facts("a")
    assert before is not None
    before = replace(before, system_uuid="board", machine_id="disk")
    view.put_node(before)
    scene.live.record(NodeLost(node_uid="uid-a", node_name="a", reason="deleted"))
    view.drop_node("uid-a")
    scene.live.record(
        NodeInventoried(
            node_uid="uid-b",
            node_name="a",
            devices=before.devices,
            system_uuid="board",
            machine_id="disk",
        )
    )
    view.put_node(replace(before, uid="uid-b"))
    recorded = view.recorded("uid-b")
    assert recorded is not None
    assert recorded.holdings == {}
    assert len(seen_by(scene)) == 2
    scene.live.record(NodeCleared(node_uid="uid-a", node_name="a", evidence="agent"))
    assert seen_by(scene) == []


@pytest.mark.parametrize("restarts", [(), (1,), (2,)], ids=["no restart", "lost", "cleared"])
def test_what_a_member_had_on_a_node_that_was_cleared_is_not_visible(
    restarts: tuple[int, ...],
) -> None:
    """The node is there again, and the group as well; the service may start anew meanwhile."""
    scene = Scene(gpus=2)
    scene.job(2, gpus=1)
    scene.passing("job-0")
    first = scene.reserve("job-0", "a")
    facts = scene.live.view.facts("a")
    assert facts is not None
    inventory = next(e for e in scene.live.ledger.log if isinstance(e, NodeInventoried))
    ended: tuple[LedgerEvent, ...] = (
        NodeLost(node_uid="uid-a", node_name="a", reason="out-of-service"),
        NodeCleared(node_uid="uid-a", node_name="a", evidence="agent"),
        inventory,
    )
    pods = list(scene.pods.values())
    for number, event in enumerate(ended):
        if number in restarts:
            scene = Scene(gpus=2, ledger=MemoryLedger(list(scene.live.ledger.log)))
            for each in pods:
                scene.tell(each)
        scene.live.record(event)
    scene.live.view.put_node(facts)
    scene.create("other", 1)
    stranger = scene.reserve("other", "a")
    assert cards(stranger) == cards(first)
    assert scene.passing("job-1") == ["a"]
    second = scene.reserve("job-1", "a")
    assert second.annotations["tenure.sh/visible.0"] == f"GPU-a-{cards(second)[0]}"
    assert differences(scene) == []
