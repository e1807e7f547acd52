"""The modes beside slots on the real kubelet: by the environment, and GPU share's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.annotations.tenure import visible_key
from ledger.domain.dialects.gpushare.annotations import GpuShareAnswer, encode_gpushare_answer
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from tests.support.kube.inventory import DEVICES
from tests.support.node.agents import CARDS, Agent, agent
from tests.support.node.node import BY_ENVIRONMENT, NODE_NAME, Node
from tests.support.node.pods import Pods, container

UNITS = 15
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"


def by_environment(name: str, place: str | None) -> dict[str, Any]:
    """Return a container as admission writes it in `env`; None = it holds no card."""
    made = container(name)
    entry: dict[str, Any] = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    if place is not None:
        path = f"metadata.annotations['{visible_key(place)}']"
        entry = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return {**made, "env": [entry]}


@pytest.fixture
def handler(machine: Node) -> str:
    """Return the name of the RuntimeClass that shows cards by the environment."""
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    if not machine.plane.api().get(f"{path}/{BY_ENVIRONMENT}").ok:
        made = {"metadata": {"name": BY_ENVIRONMENT}, "handler": BY_ENVIRONMENT}
        assert machine.plane.api().create(path, made).ok
    return BY_ENVIRONMENT


def cards_of(pods: Pods, name: str, container: str = "main", runs: int = 1) -> list[list[str]]:
    """Return the cards that each run of a container saw."""
    return [seen["cards"] for seen in pods.node.seen(pods.get(name), container, runs=runs)]


def test_a_container_sees_what_its_annotation_says_when_it_is_made(
    handler: str, pods: Pods
) -> None:
    """
    Each its own; without an annotation none; one that starts again reads the annotation again.

    So an annotation that somebody edits counts at the next start: admission's policy keeps it.
    """
    said = {visible_key("0"): "GPU-a,GPU-c", visible_key("1"): "GPU-b"}
    containers = [
        by_environment("main", "0"),
        by_environment("other", "1"),
        by_environment("lost", "2"),
        by_environment("blind", None),
    ]
    pods.make("env", containers, annotations=said, runtime=handler)

    pods.running("env")

    assert cards_of(pods, "env") == [["card-a", "card-c"]]
    assert cards_of(pods, "env", "other") == [["card-b"]]
    assert cards_of(pods, "env", "lost") == [[]]
    assert cards_of(pods, "env", "blind") == [[]]
    pods.kill(pods.get("env"))
    assert cards_of(pods, "env", runs=2) == [["card-a", "card-c"]] * 2


@pytest.fixture
def sharing(machine: Node, tmp_path: Path) -> Iterator[Agent]:
    """Run an agent that gives GiB of its cards."""
    with agent(machine, tmp_path, shares=UNITS * len(CARDS)) as running:
        yield running
    machine.plane.api().delete(f"{DEVICES}/{NODE_NAME}")  # else its closed card stays closed


def share(
    agent: Agent, pods: Pods, name: str, *units: int, card: int, after_ns: int, runtime: str = ""
) -> None:
    """Make a Pod with a share of a card, as admission and Binding leave it."""
    answer = GpuShareAnswer(
        card=card, pod_units=sum(units), card_units=UNITS, assume_time_ns=10**18 + after_ns
    )
    annotations = encode_gpushare_answer(answer)
    containers = []
    for number, amount in enumerate(units):
        annotations[visible_key(str(number))] = CARDS[card]
        made = by_environment(f"c{number}", str(number))
        limits = {GPUSHARE_MEMORY: str(amount)}
        containers.append({**made, "resources": {"limits": limits, "requests": limits}})
    pod = pods.make(name, containers, annotations=annotations, runtime=runtime)
    agent.hold(pod, **{f"c{number}": [CARDS[card]] for number in range(len(units))})


def test_shares_of_cards_are_given_as_the_proposal_says(
    sharing: Agent, pods: Pods, handler: str
) -> None:
    """Equal amounts on different cards, assumed in the other order; marked by the agent."""
    share(sharing, pods, "late", 2, 3, card=1, after_ns=2, runtime=handler)
    share(sharing, pods, "early", 2, 3, card=2, after_ns=1, runtime=handler)

    for name, card in (("late", 1), ("early", 2)):
        pod = pods.running(name)
        for number, units in enumerate((2, 3)):
            (seen,) = pods.node.seen(pod, f"c{number}")
            told = {
                "NVIDIA_VISIBLE_DEVICES": CARDS[card],
                "ALIYUN_COM_GPU_MEM_IDX": str(card),
                "ALIYUN_COM_GPU_MEM_POD": "5",
                "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
                "ALIYUN_COM_GPU_MEM_DEV": str(UNITS),
            }
            assert {key: seen["environment"].get(key) for key in told} == told
            assert seen["cards"] == [f"card-{CARDS[card].rpartition('-')[2]}"]

    def marks() -> list[str]:
        return [pods.get(name)["metadata"]["annotations"][ASSIGNED] for name in ("late", "early")]

    pods.node.until(lambda: marks() == ["true", "true"], f"not marked\n{sharing.words()}")
    sharing.kill()
    sharing.start()
    pods.kill(pods.get("late"), "c0")
    assert cards_of(pods, "late", "c0", runs=2) == [["card-b"]] * 2
    sharing.find(closed=CARDS[0])
    pods.node.until(
        lambda: pods.node.allocatable(GPUSHARE_MEMORY) == 2 * UNITS, "a closed card is offered"
    )
