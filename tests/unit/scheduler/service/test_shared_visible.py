"""`groups.shareVisible`: a card that a container can see is for its group alone until that ends."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.annotations.tenure import cards_in, read_shown
from ledger.domain.log.events import PodReserved, RequestRefused
from ledger.domain.log.recorded import NewEvent
from ledger.domain.resources import ANNOTATION_TENURE_SHOWN
from scheduler.record.so_far import InForce
from scheduler.service.ports import NotChosen
from tests.support.grouped import GROUP, Scene, cards
from tests.support.live import MemoryLedger
from tests.support.objects import container, pod
from tests.support.replays import replayed
from tests.support.runs import recorded


def shown(event: PodReserved) -> set[str]:
    """Return the cards that a member's containers are shown, by minor."""
    return {each.rpartition("-")[2] for each in cards_in(read_shown(event.annotations))}


def pair(*, on: bool = True) -> tuple[Scene, PodReserved, PodReserved]:
    """Return a node of two cards with two members of a group on it."""
    scene = Scene(gpus=2, share_visible=on)
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
