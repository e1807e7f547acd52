"""On a real kubelet every container sees the cards of its own Pod, whatever ends in between."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.agents import Agent, agent, holder
from tests.support.node.node import Node
from tests.support.node.pods import Pods


@pytest.fixture
def one_slot(machine: Node, tmp_path: Path) -> Iterator[Agent]:
    """An agent with one slot, so that each Pod gets the slot of the one before."""
    with agent(machine, tmp_path) as running:
        yield running


def cards_of(pods: Pods, name: str, container: str = "main", *, runs: int = 1) -> list[list[str]]:
    """Return the cards that each run of a container saw; wait for so many runs."""
    return [seen["cards"] for seen in pods.node.seen(pods.get(name), container, runs=runs)]


def start(pods: Pods, agent: Agent, name: str, *cards: str) -> None:
    """Run a Pod that holds these cards."""
    agent.hold(pods.make(name, [holder()]), main=list(cards))
    pods.running(name)


def test_a_pod_sees_the_cards_that_it_holds(one_slot: Agent, pods: Pods) -> None:
    """And what the vendor's specification does for any of its cards."""
    start(pods, one_slot, "two", "GPU-a", "GPU-c")

    assert cards_of(pods, "two") == [["card-a", "card-c"]]
    (seen,) = pods.node.seen(pods.get("two"))
    assert seen["environment"]["SHOWN_BY"] == "vendor"


def test_a_slot_means_other_cards_for_the_next_pod(one_slot: Agent, pods: Pods) -> None:
    """The name of the Pod that is gone has no meaning any more, at the latest by the next sweep."""
    of_others = one_slot.specifications().keys()
    start(pods, one_slot, "first", "GPU-a")
    (old,) = one_slot.specifications().keys() - of_others
    pods.remove("first")

    start(pods, one_slot, "second", "GPU-b")

    assert cards_of(pods, "second") == [["card-b"]]
    pods.node.until(lambda: old not in one_slot.specifications(), "its name stays")
    assert len(one_slot.specifications()) == 1


def test_a_container_that_starts_again_sees_the_same_cards(one_slot: Agent, pods: Pods) -> None:
    """By the name that kubelet kept for it, which is not written again."""
    start(pods, one_slot, "again", "GPU-b")
    before = one_slot.specifications()
    pods.kill(pods.get("again"))

    pods.running("again", restarts=1)

    assert cards_of(pods, "again", runs=2) == [["card-b"], ["card-b"]]
    assert one_slot.specifications() == before


def test_a_container_that_starts_without_the_agent_waits(one_slot: Agent, pods: Pods) -> None:
    """And runs with its own cards once the agent is back, which remembers nothing."""
    start(pods, one_slot, "waits", "GPU-c")
    one_slot.kill()
    pods.kill(pods.get("waits"))
    pods.node.until(lambda: "waiting" in pods.statuses("waits")["main"]["state"], "it runs")

    one_slot.start()

    pods.running("waits", restarts=1, soon=True)
    assert cards_of(pods, "waits", runs=2) == [["card-c"], ["card-c"]]


@pytest.mark.parametrize("program", ["kubelet", "containerd"])
def test_what_runs_on_the_node_starts_again(one_slot: Agent, pods: Pods, program: str) -> None:
    """The agent registers again by itself; Pods keep their cards, new ones get theirs."""
    start(pods, one_slot, "before", "GPU-a")

    if program == "kubelet":
        with one_slot.registering():
            pods.node.restart_kubelet(pods.get("before"))
    else:
        pods.node.restart_containerd()
    assert one_slot.is_ready()
    pods.kill(pods.get("before"))
    pods.running("before", restarts=1)
    pods.remove("before")
    start(pods, one_slot, "after", "GPU-b")

    assert cards_of(pods, "after") == [["card-b"]]


def test_kubelet_that_does_not_ask_before_a_start_shows_the_same_cards(
    one_slot: Agent, pods: Pods
) -> None:
    """
    After its own restart kubelet does not know that we want to be asked, until we register.

    It starts containers without us then. Their names are written, so they mean what they meant.
    """
    start(pods, one_slot, "unasked", "GPU-c")
    one_slot.kill()
    pods.node.restart_kubelet(pods.get("unasked"))
    pods.kill(pods.get("unasked"))

    pods.running("unasked", restarts=1)

    assert cards_of(pods, "unasked", runs=2) == [["card-c"], ["card-c"]]


def test_a_name_without_a_meaning_starts_nothing(one_slot: Agent, pods: Pods) -> None:
    """As above, where the names were lost, such as by a reboot: the container waits for us."""
    start(pods, one_slot, "lost", "GPU-a")
    one_slot.kill()
    for name in one_slot.specifications():
        (pods.node.cdi / name).unlink()
    pods.node.restart_kubelet(pods.get("lost"))
    pods.kill(pods.get("lost"))
    pods.node.until(lambda: "unresolvable CDI" in str(pods.statuses("lost")), "it is not refused")

    one_slot.start()

    pods.running("lost", restarts=1, soon=True)
    assert cards_of(pods, "lost", runs=2) == [["card-a"], ["card-a"]]


def test_containers_that_share_a_slot_see_each_their_own(one_slot: Agent, pods: Pods) -> None:
    """Kubelet lends the slot of an init container to the app container after it."""
    init = holder("before", image="node.test/show-and-end:1")
    pod = pods.make("shared", [holder()], init=[init])
    one_slot.hold(pod, before=["GPU-a", "GPU-b"], main=["GPU-b"])

    pods.running("shared")

    assert cards_of(pods, "shared", "before") == [["card-a", "card-b"]]
    assert cards_of(pods, "shared") == [["card-b"]]


def test_a_pod_whose_holding_comes_late_waits_for_it(one_slot: Agent, pods: Pods) -> None:
    """It is not started without cards, and not with what the Pod before it had."""
    start(pods, one_slot, "first", "GPU-a")
    pods.remove("first")
    late = pods.make("late", [holder()])
    pods.node.until(lambda: "slot-0000" in one_slot.words(), "it is not admitted")
    pods.node.until(lambda: bool(pods.get("late")["status"].get("containerStatuses")), "unseen")
    assert not pods.node.logs(pods.get("late"), "main")

    one_slot.hold(late, main=["GPU-b"])

    pods.running("late")
    assert cards_of(pods, "late") == [["card-b"]]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_an_upgrade_with_two_agents_at_once_leaves_kubelet_with_one(
    one_slot: Agent, pods: Pods, how: signal.Signals
) -> None:
    """
    The old one ends last, and kubelet takes that for the end of the new one.

    A container that ends in that moment starts by the new one, which registers once more.
    """
    start(pods, one_slot, "before", "GPU-a")
    new = Agent(node=one_slot.node, folder=one_slot.folder, slots=1, held=one_slot.held)
    new.start()
    try:
        assert one_slot.process is not None
        with new.registering():
            began = time.monotonic()
            one_slot.process.send_signal(how)
            pods.kill(pods.get("before"))
            one_slot.process.wait(30)
        pods.running("before", restarts=1)
        waited = time.monotonic() - began
        sys.stdout.write(
            f"\n{how.name}: a container that ended with its agent waited {waited:.1f} s\n"
        )
        assert new.words().count("registered with kubelet") == 3  # its log is the old one's too
        pods.remove("before")
        start(pods, new, "after", "GPU-b")

        assert cards_of(pods, "after") == [["card-b"]]
    finally:
        new.kill()


def test_the_agent_is_told_to_stop_and_goes(one_slot: Agent, pods: Pods) -> None:
    """What runs is not touched."""
    start(pods, one_slot, "stays", "GPU-a")
    assert one_slot.process is not None

    one_slot.process.send_signal(signal.SIGTERM)

    assert one_slot.process.wait(30) == 0, one_slot.words()
    pods.running("stays")
    assert len(cards_of(pods, "stays")) == 1
