"""Slots, given again and again, while the runtime learns too late what their names mean."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.node.agents import CARDS, Agent, agent, holder, shows
from tests.support.node.node import SHOWS_AND_ENDS, Node
from tests.support.node.pods import Pods

EVENTS: Final = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
LANES: Final = 10
HELD: Final[Sequence[Sequence[Sequence[str]]]] = (
    (["GPU-a"], ["GPU-b"], ["GPU-c"]),
    (["GPU-a", "GPU-b"], ["GPU-a", "GPU-c"], ["GPU-b", "GPU-c"], CARDS),
)
"""What Pods hold, in even turns and in odd ones: never what the Pod before had by their slot."""


@dataclass(slots=True, kw_only=True)
class Reuse:
    """
    Slots that are all given to other Pods at once, turn after turn.

    Attributes:
        lanes: how many slots there are.
        given: how many Pods each slot was given to.
        late: of how many the runtime stood still from the writing to kubelet's request; of others,
            on a slow machine, kubelet asked again later.
        rejected: Pods that kubelet admitted to no slot, and that were made again: where it hears
            late of the agent before, it takes that one's end for the end of the one that is there.
        wrong: Pods that saw other cards than theirs: what they hold, and what they saw.
    """

    pods: Pods
    agent: Agent
    lanes: int
    given: Counter[str] = field(default_factory=Counter)
    late: int = 0
    rejected: int = 0
    wrong: list[tuple[str, list[str], list[str]]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Return how often a slot was given to another Pod than before."""
        return sum(self.given.values()) - len(self.given)

    def turn(self, number: int, *, deaf: bool) -> None:
        """
        Run a Pod on each slot to its end.

        The runtime stands still from before their names are written until kubelet has asked for
        their containers; with `deaf` it misses the events of the writing too.
        """
        node, kinds = self.pods.node, HELD[number % 2]
        held = {
            f"pod-{number}-{lane}": list(kinds[(number + lane) % len(kinds)])
            for lane in range(self.lanes)
        }
        self.agent.held.clear()
        said = self.agent.log.stat().st_size
        made = {name: self._made(name) for name in held}
        node.until(lambda: self._are_asked_for(made, said), "not asked for")
        with node.containerd.frozen():
            if deaf:
                flood(node.cdi)
            for name, pod in made.items():
                self.agent.hold(pod, main=held[name])
            node.until(lambda: len(self._slots("container may", said)) == self.lanes, "they wait")
            self.late += len(self._slots("container may start", said))
            time.sleep(0.02)
        node.until(self._are_over, "they do not end")
        for name, pod in made.items():
            (seen,) = node.seen(pod)
            if seen["cards"] != [shows(card) for card in held[name]]:
                self.wrong.append((name, held[name], seen["cards"]))
        self.given.update(self._slots("container may start", said))
        self.pods.delete_all()

    def _made(self, name: str) -> dict[str, Any]:
        return self.pods.make(name, [holder(image=SHOWS_AND_ENDS)], restarts=False)

    def _are_asked_for(self, made: dict[str, dict[str, Any]], said: int) -> bool:
        if len(self._slots("container waits", said)) == self.lanes:
            return True
        for pod in self.pods.all():
            if pod["status"].get("reason") == "UnexpectedAdmissionError":
                name = pod["metadata"]["name"]
                self.pods.force(name)
                made[name] = self._made(name)
                self.rejected += 1
        return False

    def _slots(self, what: str, said: int) -> set[str]:
        """Return of which slots the agent said this, since its log had so many bytes."""
        with self.agent.log.open("rb") as log:
            log.seek(said)
            lines = [line for line in log if what.encode() in line and line.endswith(b"\n")]
        return {slot for line in lines for slot in json.loads(line)["ids"]}

    def _are_over(self) -> bool:
        phases = [one["status"]["phase"] for one in self.pods.all()]
        assert "Failed" not in phases, self.pods.all()
        return phases == ["Succeeded"] * self.lanes


def flood(folder: Path) -> None:
    """
    Fill the queue of whoever watches a folder, so that it never hears of what comes next.

    By changes that the runtime does not care for; two files in turn, for alike events are one.
    """
    files = [folder / "flood-0", folder / "flood-1"]
    for file in files:
        file.touch()
    for number in range(EVENTS + 1_000):
        files[number % 2].chmod(0o644)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(200, id="200 times"),
        *(
            pytest.param(500, id=f"500 times, part-{part}", marks=pytest.mark.slow)
            for part in range(1, 21)
        ),
    ],
)
def test_no_container_sees_the_cards_of_the_slot_before_it(
    machine: Node, pods: Pods, tmp_path: Path, times: int
) -> None:
    """Other cards each time, containerd late each time; kubelet and agent end in between."""
    with agent(machine, tmp_path, slots=LANES) as running:
        reuse = Reuse(pods=pods, agent=running, lanes=LANES)
        for number in range(1 + times // LANES):
            if number % 8 == 3:
                running.kill()
                running.start()
            if number % 8 == 7:
                with running.registering():
                    machine.restart_kubelet()
            reuse.turn(number, deaf=number % 3 == 2)
            if number % 10 == 0:
                said = f"re-uses={reuse.count} late={reuse.late} rejected={reuse.rejected}"
                sys.stdout.write(f"{said} wrong={reuse.wrong}\n")
                sys.stdout.flush()

    assert reuse.wrong == []
    assert reuse.count == times
    assert reuse.late
    assert len(reuse.given) == LANES


def test_a_plugin_that_gives_a_name_again_is_caught(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """The same with one name for ever: a runtime that missed the writing shows the cards before."""
    with agent(machine, tmp_path, naive=True) as running:
        reuse = Reuse(pods=pods, agent=running, lanes=1)
        for number in range(4):
            reuse.turn(number, deaf=number % 2 == 1)

    assert reuse.wrong == [
        ("pod-1-0", ["GPU-a", "GPU-c"], ["card-a"]),
        ("pod-3-0", list(CARDS), ["card-c"]),
    ]
