"""Groups whose Pods are created late, and asked about before, between and after they are shown."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from scheduler.service.groups import MEMBERS_SECONDS, UNKNOWN_MEMBER
from scheduler.service.to_come import TO_COME_SECONDS
from tests.support.examples import seeds
from tests.support.grouped import GROUP, Scene, cards
from tests.support.objects import Json

SHAPES: Final = ((2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 1), (4, 2))
"""How many members, of how many cards each."""
BESIDE: Final = (1, 2, 3, 6)
"""Cards that another Pod has on one of the nodes."""
NODES: Final = ("a", "b")
STEPS_MAX: Final = 10_000
LATE_SECONDS: Final = MEMBERS_SECONDS + TO_COME_SECONDS / 2
"""Until then the last member is created, and the watch has shown it long before its room ends."""
SEEDS: Final = 20
"""In one test of the long tier: a scene takes longer to make than to play."""

Places = dict[str, tuple[str, list[int]]]


class LateWatch(Scene):
    """A scene whose watch shows a Pod when it is told to: kube-scheduler knows it before."""

    def __init__(self, *names: str) -> None:
        self.unshown: list[tuple[str, dict[str, Any]]] = []
        super().__init__(*names)

    def _changed(self, kind: str, value: dict[str, Any]) -> None:
        self.pods[value["metadata"]["name"]] = value
        self.unshown.append((kind, value))

    def show(self) -> None:
        """Show the change that is due next."""
        super()._changed(*self.unshown.pop(0))


def fill(scene: Scene, gpus: int) -> None:
    """Let a Pod run beside, on the first node."""
    scene.create("beside", gpus)
    if isinstance(scene, LateWatch):
        scene.show()
    scene.passing("beside", NODES[0])
    scene.reserve("beside", NODES[0])


def ask(scene: Scene, name: str) -> tuple[str, list[int]] | None:
    """Ask about a member and reserve for it; None where it waits."""
    answer = scene.filter(name)
    if answer.get("Error"):
        return None
    [node] = answer["NodeNames"]
    return node, cards(scene.reserve(name, node))


def of_job(count: int) -> dict[str, Json]:
    """Return what the members of a job of so many Pods have."""
    return {"labels": {f"{GROUP}/name": "job", f"{GROUP}/replica": str(count)}}


def by_order(seed: int) -> tuple[Places, Places]:
    """Return where members go whose order a seed draws, and where they go without delays."""
    rng = Random(seed)
    count, gpus = rng.choice(SHAPES)
    beside = rng.choice(BESIDE)
    late, soon = LateWatch(*NODES), Scene(*NODES)
    for scene in (late, soon):
        fill(scene, beside)
    names = [f"job-{number}" for number in range(count)]
    to_create, found = list(names), Places()
    for _ in range(STEPS_MAX):
        late.live.clock.now += 0.0001
        acts = ["ask"] * bool(late.pods.keys() & set(names) - found.keys())
        acts += ["create"] * bool(to_create) + ["show"] * bool(late.unshown)
        match rng.choice(acts):
            case "create":
                late.create(to_create.pop(0), gpus, **of_job(count))
            case "show":
                late.show()
            case _:
                name = rng.choice(sorted(late.pods.keys() & set(names) - found.keys()))
                place = ask(late, name)
                if place is not None:
                    found[name] = place
        if len(found) == count:
            break
    soon.job(count, gpus)
    return found, {name: place for name in names if (place := ask(soon, name))}


def created_late(seed: int) -> tuple[Places, Places]:
    """Return where members go that come over many seconds among strangers, and where at once."""
    rng = Random(seed)
    count, gpus = rng.choice(SHAPES)
    beside = rng.choice(BESIDE)
    late, soon = LateWatch(*NODES), Scene(*NODES)
    for scene in (late, soon):
        fill(scene, beside)
    began = late.live.clock.now
    names = [f"job-{number}" for number in range(count)]
    at = {name: began + rng.uniform(0.0, LATE_SECONDS) for name in names[1:]} | {names[0]: began}
    found, strangers = Places(), 0
    while len(found) < count:
        late.live.clock.now += rng.uniform(0.1, 1.0)
        late.groups.plans.review_all()
        for name in [name for name in names if at.get(name, began) <= late.live.clock.now]:
            late.create(name, gpus, **of_job(count))
            del at[name]
            names.remove(name)
        for _ in range(rng.randrange(len(late.unshown) + 1)):
            late.show()
        for name in sorted(late.pods.keys() - found.keys()):
            if name.startswith("job") and (place := ask(late, name)) is not None:
                found[name] = place
        if found and rng.randrange(3) == 0:
            strangers += 1
            late.create(f"stranger-{strangers}", 1)
            while late.unshown:
                late.show()
            passing = late.passing(f"stranger-{strangers}")
            if passing:
                late.reserve(f"stranger-{strangers}", rng.choice(passing))
    soon.job(count, gpus)
    names = [f"job-{number}" for number in range(count)]
    return found, {name: place for name in names if (place := ask(soon, name))}


def union(places: Places) -> set[tuple[str, int]]:
    """Return all cards of a group."""
    return {(node, card) for node, minors in places.values() for card in minors}


@pytest.mark.parametrize("first", seeds(2, 50))
def test_a_group_gets_the_cards_that_it_gets_when_the_watch_is_at_once(first: int) -> None:
    """A thousand orders: whatever kube-scheduler knows before the service does."""
    for seed in range(first * SEEDS, (first + 1) * SEEDS):
        late, soon = by_order(seed)
        assert len(late) == len(soon), seed
        assert union(late) == union(soon), seed


@pytest.mark.parametrize("first", seeds(2, 50))
def test_a_group_whose_members_come_late_gets_the_node_of_one_that_is_there(first: int) -> None:
    """A thousand orders: it is planned for its label's number, and strangers get other cards."""
    for seed in range(first * SEEDS, (first + 1) * SEEDS):
        late, soon = created_late(seed)
        [node] = {node for node, _ in soon.values()}
        assert {node for node, _ in late.values()} == {node}, seed


def test_a_member_that_no_watch_has_shown_waits_for_the_watch_and_not_for_a_time() -> None:
    """Of a group and of a gang: nothing is planned without it, however long it takes."""
    scene = LateWatch(*NODES)
    scene.job(1)
    scene.gang(1, 1)
    for name in ("job-0", "gang-0"):
        for seconds in (0.0, 3.0, 3_600.0):
            scene.live.clock.now += seconds
            assert scene.filter(name)["Error"] == UNKNOWN_MEMBER
    assert not len(scene.groups)
    scene.show()
    assert len(scene.passing("job-0")) == 1
    scene.show()
    assert len(scene.passing("gang-0")) == 1
