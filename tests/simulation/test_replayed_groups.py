"""Groups beside other Pods while cards get sick and services start anew, decided again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import pytest

from ledger.domain.log.events import PodReserved
from ledger.domain.log.recorded import NewEvent
from ledger.store.writing.commands import Command, Recorded
from scheduler.record.so_far import InForce
from scheduler.service.ports import Chosen
from tests.support.examples import seeds
from tests.support.grouped import GANG, GROUP, Scene
from tests.support.replays import differing
from tests.support.runs import recorded
from tests.support.visible import wrongly_visible

CARDS: Final = 8
NODES: Final = ("a", "b")
RESERVATIONS: Final = 12
STEPS_MAX: Final = 5_000
WAITING_MAX: Final = 12
REPLICAS: Final = (3, 4)


class Rounds:
    """
    One service after another, of which each takes commands in any order.

    Args:
        seed: of what is drawn; of three worlds one shows members the cards of their group.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.number = 0
        self.scene = Scene(*NODES, gpus=CARDS, share_visible=seed % 3 == 2, slot_mode="plugin")
        self.passed: dict[str, list[str]] = {}  # Pod -> nodes that its filter left
        self.chosen: list[Chosen] = []  # on their way into the ledger
        self.held: dict[str, PodReserved] = {}
        self.reserved = 0

    def run(self) -> None:
        """Do one thing after another."""
        acts: Sequence[tuple[int, Callable[[], None]]] = (
            (5, self.create),
            (6, self.ask),
            (8, self.choose),
            (6, self.record),
            (1, self.refuse),
            (4, self.change_a_card),
            (2, self.end),
            (1, self.delete),
            (2, self.settle),
            (1, self.restart),
            (1, self.lose_a_node),
        )
        weights = [weight for weight, _ in acts]
        for _ in range(STEPS_MAX):
            if self.reserved >= RESERVATIONS:
                return
            [(_, act)] = self.rng.choices(acts, weights)
            self.scene.live.clock.now += 0.01
            act()
        raise AssertionError("nothing is reserved any more")

    def create(self) -> None:
        """Let a Pod come: of a group, of a gang, of both, or alone."""
        if sum(map(self._waits, self.scene.pods)) >= WAITING_MAX:
            return
        name, more = f"p{self.number}", dict[str, Any]()
        kind, replica = self.rng.randrange(5), self.rng.choice(REPLICAS)
        if kind < 3:
            more["labels"] = {f"{GROUP}/name": f"job-{replica}", f"{GROUP}/replica": str(replica)}
        if kind in {2, 3}:
            about = {"name": f"gang-{replica}", "min-available": "2", "waiting-time": "10s"}
            more["annotations"] = {f"{GANG}/{key}": value for key, value in about.items()}
        self.number += 1
        self.scene.create(name, self.rng.choice((1, 1, 2)), **more)

    def ask(self) -> None:
        """Let kube-scheduler ask about a Pod that waits."""
        name = self._who_waits()
        if name:
            self.passed[name] = list(self.scene.filter(name).get("NodeNames") or ())

    def choose(self) -> None:
        """Let kube-scheduler bind a Pod that it asked about."""
        able = [name for name, nodes in self.passed.items() if nodes and self._waits(name)]
        if able:
            name = self.rng.choice(able)
            attempt = self.scene.books.attempts(f"pod-{name}") + 1
            found = self.scene.choose(name, self.rng.choice(self.passed[name]), attempt)
            if isinstance(found, Chosen):
                self.chosen.append(found)

    def record(self) -> None:
        """Let a command be durable, unless it counted what the ledger has not."""
        if self.chosen:
            made = self.chosen.pop(self.rng.randrange(len(self.chosen)))
            ledger = self.scene.live.ledger
            answer = asyncio.run(ledger.record(Command(events=made.events, after=made.after)))
            if isinstance(answer, Recorded):
                self.scene.books.recorded(made.events, answer.first)
                self.reserved += len(made.reservations)
                for event in made.reservations:
                    self.held[event.pod_name] = event
                    if self.rng.randrange(4):
                        self._bound(event)
            else:
                self.scene.books.refused(made)

    def _bound(self, event: PodReserved) -> None:
        pod = self.scene.pods.get(event.pod_name)
        if pod is not None:
            self.scene.tell({**pod, "spec": {**pod["spec"], "nodeName": event.node_name}})

    def refuse(self) -> None:
        """Let the ledger refuse a command."""
        if self.chosen:
            made = self.chosen.pop(self.rng.randrange(len(self.chosen)))
            self.scene.books.refused(made)

    def change_a_card(self) -> None:
        """Let a card of a node be sick, and the others well."""
        self.scene.add_node(self.rng.choice(NODES), CARDS, self.rng.randrange(-1, CARDS))
        self.scene.live.settle()

    def end(self) -> None:
        """Let what a Pod holds end, or its object alone."""
        if self.held:
            name = self.rng.choice(sorted(self.held))
            if self._is_chosen(name):
                return
            if name in self.scene.pods:
                self.scene.delete(name)
            if self.rng.randrange(3) and self._stands(name):
                self.scene.end(self.held.pop(name))

    def delete(self) -> None:
        """Let a Pod go that waits."""
        name = self._who_waits()
        if name and not self._is_chosen(name):
            self.passed.pop(name, None)
            self.scene.delete(name)

    def settle(self) -> None:
        """Let time pass, and what is due be done."""
        self.scene.settle(self.rng.choice((0.1, 1.0, 3.0)))

    def restart(self) -> None:
        """Let another service lead; what was on its way is fenced."""
        pods = list(self.scene.pods.values())
        sharing = self.scene.live.settings.share_visible
        ledger, now = self.scene.live.ledger, self.scene.live.clock.now
        self.scene = Scene(
            *NODES, gpus=CARDS, ledger=ledger, share_visible=sharing, slot_mode="plugin"
        )
        self.scene.live.clock.now = now
        self.chosen.clear()
        for pod in pods:
            self.scene.tell(pod)

    def lose_a_node(self) -> None:
        """Let a Node be gone, and come back."""
        name = self.rng.choice(NODES)
        self.scene.live.view.nodes.nodes.drop(f"uid-{name}")
        self.scene.live.settle()
        self.scene.add_node(name, CARDS)
        self.scene.live.settle()

    def _who_waits(self) -> str:
        waiting = sorted(filter(self._waits, self.scene.pods))
        return self.rng.choice(waiting) if waiting else ""

    def _waits(self, name: str) -> bool:
        pod = self.scene.pods.get(name)
        return pod is not None and name not in self.held and not self._is_chosen(name)

    def _stands(self, name: str) -> bool:
        """Tell whether something is reserved for a Pod, and not through a node that was lost."""
        return self.scene.books.standing(f"pod-{name}") is not None

    def _is_chosen(self, name: str) -> bool:
        return any(each.pod_name == name for made in self.chosen for each in made.reservations)

    def differences(self) -> list[Any]:
        """Return what comes out otherwise by the ledger alone."""
        log = [
            recorded(
                NewEvent(stream="s", event=event, actor="a", idempotency_key=str(n), wall_us=0), n
            )
            for n, event in enumerate(self.scene.live.ledger.log, start=1)
        ]
        by = InForce(settings=self.scene.live.settings, settings_hash="")
        found = differing(log, whole=False, by=by)
        return [(each.position, each.name, each.differences) for each in found]


@pytest.mark.parametrize("seed", seeds(10, 400))
def test_what_was_decided_beside_plans_is_decided_again_the_same(seed: int) -> None:
    """What a member sees and what others get, whatever was recorded since a plan was made."""
    rounds = Rounds(seed)
    rounds.run()
    assert rounds.differences() == []
    if not rounds.scene.live.settings.share_visible:
        assert wrongly_visible(rounds.scene.live.ledger.log) == []
