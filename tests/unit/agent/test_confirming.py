"""What an agent confirms, and a node's life with everything that can go wrong in it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from agent.decide.confirming import (
    AGAIN_SECONDS,
    PODS_MAX,
    Confirming,
    Look,
    Observed,
    Said,
    answered,
    said,
    unanswered,
)
from agent.decide.node_holdings import GRANTED, HeldByPod, NodeHoldings, Origin, all_holdings
from ledger.domain.annotations.proof import EVERY, ProvenContainer, ProvenDevice
from tests.support.proofs import held_by_pod

ORIGIN: Final = Origin(node_name="a", node_uid="uid-a")


def container(index: str, *ids: str) -> ProvenContainer:
    """Return a part of a holding."""
    return ProvenContainer(
        index=index,
        devices=tuple(
            ProvenDevice(device_type="gpu", device_id=each, minor=number)
            for number, each in enumerate(ids)
        ),
    )


def held(
    pod: str, *containers: ProvenContainer, phase: str = "bound", kind: str = GRANTED
) -> HeldByPod:
    """Return a holding of a Pod."""
    return held_by_pod(
        pod_uid=pod,
        namespace="ml",
        pod_name=pod,
        containers=containers or (container("0", "g"),),
        phase=phase,
        kind=kind,
    )


def known(*holdings: HeldByPod) -> NodeHoldings:
    """Return the service's word."""
    return all_holdings(ORIGIN, 7, holdings)


def look(
    *runs: str,
    started: dict[tuple[str, str], str] | None = None,
    places: dict[str, dict[str, str]] | None = None,
    **more: object,
) -> Look:
    """Return a look at Pods that kubelet has, each with a container `main` that was made."""
    made = {(pod, "main"): "g" for pod in runs} if started is None else started
    facts: dict[str, object] = {
        "places": {pod: {"main": "0"} for pod in runs} if places is None else places,
        "live": frozenset(runs),
        "complete": True,
        "started": {key: frozenset(ids.split()) for key, ids in made.items()},
        **more,
    }
    return Look(**facts)  # type: ignore[arg-type]


def once(now: NodeHoldings, seen: Look, state: Confirming | None = None) -> Said:
    """Return what is said of a look."""
    return said(state or Confirming(), now, seen, now=0.0)[1]


def test_what_a_container_was_given_is_confirmed_once_it_is_there() -> None:
    """Not before: kubelet may have admitted it, and nothing more."""
    reserved = held("p")
    waits = look("p", started={})
    assert once(known(reserved), waits).assigned == ()
    assert once(known(reserved), look("p")).assigned == (("p", 1, reserved.containers),)


def test_all_containers_with_devices_have_to_be_there() -> None:
    """Init containers have their turn, and may not be listed any more."""
    reserved = held("p", container("0", "g"), container("1", "h"), container("init-0", "g"))
    places = {"p": {"main": "0", "side": "1", "first": "init-0"}}
    steps = {
        "the init container": ({("p", "first"): "g"}, False),
        "one of two": ({("p", "first"): "g", ("p", "main"): "g"}, False),
        "all": ({("p", "first"): "g", ("p", "main"): "g", ("p", "side"): "h"}, True),
        "all that are left": ({("p", "main"): "g", ("p", "side"): "h"}, True),
    }
    for name, (started, is_said) in steps.items():
        message = once(known(reserved), look("p", started=started, places=places))
        assert bool(message.assigned) is is_said, name
        assert not message.assigned or message.assigned[0][2] == reserved.containers


def test_what_every_container_has_is_confirmed_with_the_first() -> None:
    """The Pod's own holding, of one that names no container."""
    reserved = held("p", container(EVERY, "g"))
    assert once(known(reserved), look("p")).assigned[0][2] == reserved.containers


@pytest.mark.parametrize("ids", ["h", "g h", ""])
def test_what_differs_is_told_with_what_it_is(ids: str) -> None:
    """More, less or another device: the service says how it is."""
    [(_, _, containers)] = once(known(held("p")), look("p", started={("p", "main"): ids})).assigned
    given = {device.device_id for each in containers for device in each.devices}
    assert given == set(ids.split())


def test_gone_is_who_has_nothing_left_and_is_not_to_come() -> None:
    """Everybody that kubelet may start is to come; an observed Pod is told of likewise."""
    now = known(held("p"), held("q", kind="observed", phase="observed"), held("r"))
    assert once(now, look("r")).gone == ("p", "q")
    still = look("r", live=frozenset({"r", "p"}))
    assert once(now, still).gone == ("q",)


def test_a_card_that_hides_who_is_on_it_keeps_back_its_holders_alone() -> None:
    """And whoever was given cards by others, which may be more than could be named."""
    ours = held("p", container("0", "g")), held("q", container("0", "h")), held("r", container("0"))
    now = known(*ours, held("s", container("0", "h"), kind="observed", phase="observed"))
    assert once(now, look(hidden=frozenset({"g"}), blind=True)).gone == ("q", "r")
    assert once(now, look(blind=True)).gone == ("p", "q", "r")
    assert once(now, look(blind=True)).runs is None
    assert once(now, look()).gone == ("p", "q", "r", "s")
    moved = known(
        held("p", container("0", "g")), replace(held("p", container("0", "h")), attempt=2)
    )
    assert once(moved, look(hidden=frozenset({"g"}), blind=True)).gone == ()


@pytest.mark.parametrize(
    "seen",
    [look("r", complete=False), Look(places=None, live=frozenset(), complete=True)],
    ids=["a source is away", "kubelet says nothing"],
)
def test_where_a_look_is_not_whole_nobody_is_gone(seen: Look) -> None:
    """Nor is it said what runs."""
    message = once(known(held("p")), seen)
    assert (message.gone, message.runs) == ((), None)


def test_who_was_called_gone_starts_only_after_that_was_taken_back() -> None:
    """Also where no answer came: it may have been heard."""
    now = known(held("p"))
    state, message = said(Confirming(), now, look(), now=0.0)
    assert message.gone == ("p",)
    state = unanswered(state, message)
    assert not state.may_start("p")
    state, message = said(state, now, look(), now=1.0, wants={"p"})
    assert (message.here, message.gone) == (("p",), ())
    assert not unanswered(state, message).may_start("p")
    assert answered(state, message, {"p"}).may_start("p")


def test_who_holds_nothing_by_the_answer_does_not_start_by_an_older_word() -> None:
    """What it held may be another's by now; once we know that, nothing has to be remembered."""
    state, message = said(Confirming(gone=frozenset("pq")), known(), look("p", "q"), now=0.0)
    assert message.here == ("p", "q")
    state = answered(state, message, {"p", "q"}, {"p"})
    assert [state.may_start(uid) for uid in "pq"] == [False, True]
    state, message = said(state, known(held("q")), look("p", "q"), now=1.0)
    assert answered(state, message, {"q"}, {"p"}).gone == frozenset()


def test_what_is_assigned_is_said_again_once_in_a_while() -> None:
    """The service may have forgotten what it was told, or be another one."""
    now = known(held("p", phase="assigned"))
    state, message = said(Confirming(), now, look("p"), now=0.0)
    assert message.assigned
    assert message.runs == ("p",)
    state, message = said(state, now, look("p"), now=AGAIN_SECONDS - 1)
    assert message.is_empty
    state, message = said(state, now, look("p"), now=AGAIN_SECONDS)
    assert (len(message.assigned), message.runs) == (1, ("p",))
    _, message = said(unanswered(state, message), now, look("p"), now=AGAIN_SECONDS + 1)
    assert (len(message.assigned), message.runs) == (1, ("p",))


def test_a_message_is_bounded() -> None:
    """What is left comes with the next one."""
    many = known(*(held(f"p{number}") for number in range(2 * PODS_MAX)))
    others = tuple(
        Observed(pod_uid=f"o{number}", namespace="", pod_name="", cards={})
        for number in range(PODS_MAX)
    )
    message = once(many, look(observed=others))
    assert len(message.gone) + len(message.observed) <= PODS_MAX
    assert message.gone


# --- a node's life ----------------------------------------------------------------------------


@dataclass(slots=True)
class World:
    """
    A service, an agent and a kubelet, with messages and agents that are lost at any point.

    Attributes:
        api: Pods that there are by the API; `held`: who holds the one card; `runs`: on it.
        lingers: who is on it by a process whose container has ended.
        gone: Pods that the service thinks are gone; `taken`: the last message that it took.
        knows: what of that the agent knows; `late`: messages that are on their way.
    """

    rng: random.Random
    api: set[str] = field(default_factory=set)
    kubelet: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    lingers: set[str] = field(default_factory=set)
    waits: set[str] = field(default_factory=set)
    holder: str = ""
    phase: str = "bound"
    gone: set[str] = field(default_factory=set)
    state: Confirming = field(default_factory=Confirming)
    number: int = 0
    taken: int = 0
    knows: int = 0
    late: list[tuple[int, Said]] = field(default_factory=list)
    now: float = 0.0

    def step(self) -> None:
        """Let one thing happen."""
        self.now += self.rng.choice((0.1, 1.0, AGAIN_SECONDS))
        acts = (self.create, self.learn, self.start, self.end, self.delete, self.agent, self.agent)
        more = (self.crash, self.release, self.release, self.die, self.arrive)
        self.rng.choice((*acts, *more))()
        there = self.runs | self.lingers
        assert len(there) <= 1, there
        assert there <= {self.holder}, (there, self.holder)

    def create(self) -> None:
        """Let a Pod be bound, if the card is free; the next one of the same name is another."""
        if not self.holder:
            self.number += 1
            self.holder, self.phase = f"train-{self.number}", "bound"
            self.api.add(self.holder)

    def learn(self) -> None:
        """Let kubelet hear of the API's Pods; it starts nothing of one that it has not heard of."""
        self.kubelet = self.api | self.runs
        self.waits = {uid for uid in self.kubelet if uid not in self.runs and uid == self.holder}

    def start(self) -> None:
        """Let a container start that waits, where our gate lets it."""
        for uid in sorted(self.waits & self.kubelet):
            if self.state.may_start(uid) and self.is_known(uid):
                self.waits.discard(uid)
                self.runs.add(uid)

    def is_known(self, uid: str) -> bool:
        """Tell whether the agent knows what the container is to get."""
        return uid == self.holder

    def end(self) -> None:
        """Let kubelet end what the API does not have any more."""
        for uid in sorted(self.runs - self.api):
            self.runs.discard(uid)
            self.kubelet.discard(uid)
            if self.rng.random() < 0.3:
                self.lingers.add(uid)

    def die(self) -> None:
        """Let what lingers end."""
        self.lingers.clear()

    def delete(self) -> None:
        """Let the Pod's object go, at once, as by force."""
        self.api.discard(self.holder)

    def crash(self) -> None:
        """Let the agent end: it remembers nothing but whom it called gone, which is on disk."""
        self.state = Confirming(gone=self.state.gone)
        self.knows = self.taken

    def arrive(self) -> None:
        """Let a message arrive long after its agent has given it up."""
        if self.late:
            self.hear(*self.late.pop(self.rng.randrange(len(self.late))))

    def release(self) -> None:
        """Let the service end what is gone by the API and by the node."""
        if self.holder and self.holder not in self.api and self.holder in self.gone:
            self.gone.discard(self.holder)
            self.holder = ""

    def agent(self) -> None:
        """Let the agent look and say; the message, or its answer, may be lost."""
        holding = [held(self.holder, phase=self.phase)] if self.holder else []
        places = {uid: {"main": "0"} for uid in self.kubelet | self.runs}
        is_lost = self.is_lost()
        seen = look(
            *sorted(self.runs),
            started={(uid, "main"): "g" for uid in self.runs},
            places=places,
            live=frozenset(self.runs if is_lost else self.runs | self.lingers),
            complete=self.rng.random() > 0.2,
            hidden=frozenset({"g"}) if is_lost else frozenset(),
            blind=is_lost,
        )
        self.state, message = said(
            self.state, known(*holding), seen, now=self.now, wants=self.waits & self.kubelet
        )
        number = self.knows + 1
        fate = self.rng.choice(("answered", "answered", "lost", "unheard", "late"))
        if fate == "late":
            self.late.append((number, message))
        if fate in {"unheard", "late"}:
            self.state = unanswered(self.state, message)
            return
        is_taken = self.hear(number, message)
        if self.rng.random() < 0.3:  # a proxy may say it twice
            self.hear(number, message)
        if fate == "answered":
            self.knows = self.taken
        if fate == "lost" or not is_taken:
            self.state = unanswered(self.state, message)
        else:
            self.state = answered(self.state, message, {self.holder})

    def is_lost(self) -> bool:
        """Tell whether nobody is told now who is on the card."""
        return self.rng.random() < 0.3

    def takes(self, number: int) -> bool:
        """Tell whether a message is taken."""
        return number == self.taken + 1

    def hear(self, number: int, message: Said) -> bool:
        """Do what the service does (`scheduler/service/agents.py`); tell whether it counts."""
        if not self.takes(number):
            return False
        self.taken += 1
        self.gone -= set(message.here)
        for uid, _, containers in message.assigned:
            self.gone.discard(uid)
            if uid == self.holder:
                assert containers == held(uid).containers
                self.phase = "assigned"
        self.gone |= {uid for uid in message.gone if uid == self.holder}
        return True

    def settle(self) -> None:
        """Let everything work for a while."""
        self.api.clear()
        for _ in range(4):
            self.end()
            self.die()
            self.learn()
            places: dict[str, dict[str, str]] = {uid: {"main": "0"} for uid in self.kubelet}
            holding = [held(self.holder, phase=self.phase)] if self.holder else []
            seen = look(*sorted(self.runs), places=places)
            self.state, message = said(self.state, known(*holding), seen, now=self.now)
            assert self.hear(self.taken + 1, message)
            self.state = answered(self.state, message, {self.holder})
            self.release()


@pytest.mark.parametrize("seed", range(60))
def test_no_card_is_free_while_somebody_is_on_it_and_none_is_lost(seed: int) -> None:
    """Agents that crash, messages and answers that are lost or come twice, Pods made again."""
    world = World(random.Random(seed))
    for _ in range(400):
        world.step()
    world.settle()
    assert (world.holder, world.runs) == ("", set())
    assert world.number > 3


def test_without_the_gate_a_card_would_be_given_twice() -> None:
    """So the simulation can fail: a Pod that starts after it was called gone, deleted by force."""
    found = 0
    for seed in range(60):
        world = World(random.Random(seed))
        try:
            for _ in range(400):
                world.state = Confirming(told=world.state.told)
                world.step()
        except AssertionError:
            found += 1
    assert found


def test_without_numbers_a_late_message_would_give_a_card_twice() -> None:
    """So the simulation can fail: a word that a Pod is gone arrives after it was taken back."""

    class Unordered(World):
        """The service takes every message as it comes."""

        def takes(self, _: int) -> bool:
            """Take it."""
            return True

    found = 0
    for seed in range(60):
        world = Unordered(random.Random(seed))
        try:
            for _ in range(400):
                world.step()
        except AssertionError:
            found += 1
    assert found


def test_a_card_that_hides_nobody_by_mistake_would_be_given_twice() -> None:
    """So the simulation can fail: a lost card whose holder is called gone all the same."""

    class Careless(World):
        """The agent takes a card that it can't look at for one that nobody is on."""

        def agent(self) -> None:
            """Look with the lingering process unseen, and hide nothing."""
            kept, self.lingers = self.lingers, set()
            super().agent()
            self.lingers = kept

    found = 0
    for seed in range(60):
        world = Careless(random.Random(seed))
        try:
            for _ in range(400):
                world.step()
        except AssertionError:
            found += 1
    assert found
