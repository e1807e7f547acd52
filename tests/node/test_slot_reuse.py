"""One slot, given again and again, while the runtime learns too late what its names mean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.node.agents import CARDS, Agent, agent, holder, shows
from tests.support.node.node import SHOWS_AND_ENDS, Node
from tests.support.node.pods import Pods

EVENTS: Final = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


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


def run_late(pods: Pods, agent: Agent, name: str, held: list[str], *, deaf: bool) -> list[str]:
    """
    Run a Pod to its end, and return the cards that it saw.

    The runtime stands still from before its name is written until kubelet has asked for the
    container; with `deaf` it misses the event of the writing too.
    """
    said = agent.words().count
    waits, may = said("container waits"), said("container may start")
    pod = pods.make(name, [holder(image=SHOWS_AND_ENDS)], restarts=False)
    pods.node.until(lambda: agent.words().count("container waits") > waits, "it is not asked for")
    with pods.node.containerd.frozen():
        if deaf:
            flood(pods.node.cdi)
        agent.hold(pod, main=held)
        pods.node.until(lambda: agent.words().count("container may start") > may, "it waits")
        time.sleep(0.02)
    pods.ended(name)
    (seen,) = pods.node.seen(pods.get(name))
    return list(seen["cards"])


def wrong_cards(
    pods: Pods, agent: Agent, times: int, *, deaf_every: int, restarts: bool = False
) -> list[tuple[str, list[str], list[str]]]:
    """
    Run Pods one after the other on one slot; return those that saw another's cards.

    With `restarts` agent and kubelet are ended and started again in between.
    """
    wrong = []
    for number in range(times):
        if restarts and number % 10 == 3:
            agent.kill()
            agent.start()
        if restarts and number % 10 == 6:
            with agent.registering():
                pods.node.restart_kubelet()
        held = [CARDS[number % len(CARDS)]]
        if number % 5 == 4:
            held = sorted({*held, CARDS[(number + 1) % len(CARDS)]})
        deaf = number % deaf_every == deaf_every - 1
        seen = run_late(pods, agent, f"pod-{number}", held, deaf=deaf)
        if seen != [shows(card) for card in held]:
            wrong.append((f"pod-{number}", held, seen))
    return wrong


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(20, id="20 times"),
        pytest.param(200, id="200 times", marks=pytest.mark.slow),
    ],
)
def test_no_container_sees_the_cards_of_the_slot_before_it(
    machine: Node, pods: Pods, tmp_path: Path, times: int
) -> None:
    """One slot, other cards each time; containerd stands still from each writing to its use."""
    with agent(machine, tmp_path) as running:
        wrong = wrong_cards(pods, running, times, deaf_every=10, restarts=True)

    assert wrong == []


def test_a_plugin_that_gives_a_name_again_is_caught(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """The same with one name for ever: a runtime that missed the writing shows the cards before."""
    with agent(machine, tmp_path, naive=True) as running:
        wrong = wrong_cards(pods, running, 4, deaf_every=2)

    assert wrong == [
        ("pod-1", ["GPU-b"], ["card-a"]),
        ("pod-3", ["GPU-a"], ["card-c"]),
    ]
