"""The modes beside slots on the real kubelet: by the environment, and GPU share's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.decide.env_proof import NAME
from ledger.domain.annotations.tenure import visible_key
from ledger.domain.dialects.gpushare.annotations import GpuShareAnswer, encode_gpushare_answer
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from ledger.domain.resources import SLOT
from tests.support.kube.inventory import DEVICES
from tests.support.kube.pods import pods_in
from tests.support.node.agents import CARDS, Agent, agent, shows
from tests.support.node.clusters import OURS, Cluster
from tests.support.node.node import BLIND, BY_ENVIRONMENT, NODE_NAME, Node
from tests.support.node.own_image import OWN, own_image
from tests.support.node.pods import Pods, container

UNITS = 15
CARD_MIB = 16276
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


def closed_by(machine: Node) -> list[str]:
    """Return why each card of the node is closed, by its Device object; none if it is open."""
    found = machine.plane.api().get(f"{DEVICES}/{NODE_NAME}")
    cards = found.body["spec"]["devices"] if found.ok else []
    return [
        one["reason"] for card in cards for one in card["conditions"] if one["type"] == "Healthy"
    ]


@pytest.fixture
def blind(machine: Node) -> Iterator[Path]:
    """The file while which is there the handler reads no variable."""
    path = machine.room.folder / BLIND
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def test_no_card_is_given_by_the_environment_before_a_pod_has_shown_that_it_is_read(
    cluster: Cluster, pods: Pods, handler: str, blind: Path, tmp_path: Path
) -> None:
    """
    While the runtime reads nothing, all cards are closed, and a Pod waits.

    Tried by the agent's own rights, with its own command in a container of its image; once the
    runtime reads the variable, the Pod that waited is placed, and sees its card.
    """
    machine = cluster.machine
    machine.load(own_image(tmp_path))
    told = cluster.told(probe=OWN, runtime=handler)
    holder = by_environment("main", "0")
    whole = {"koordinator.sh/gpu": "100"}
    asking = {**holder, "resources": {"limits": whole, "requests": whole}}

    def is_so(*words: str) -> bool:
        return condition(machine, "TenureEnvironment") == words

    with (
        cluster.served(mode="env") as served,
        cluster.scheduling(served),
        agent(machine, tmp_path, told=told, registers=False) as own,
    ):
        machine.until(lambda: is_so("False", "CardNotShown"), f"not told\n{own.words()}")
        closed = ["EnvironmentUnproved"] * len(CARDS)
        machine.until(lambda: closed_by(machine) == closed, "not closed")
        pods.make("waits", [asking], runtime=handler, scheduler="tenure")
        machine.until(
            lambda: "Insufficient koordinator.sh/gpu" in why_it_waits(pods, "waits"), "it is placed"
        )

        blind.unlink()

        pods.running("waits")
        assert is_so("True", "Proved")
        [[card]] = cards_of(pods, "waits")
        assert card == shows(pods.get("waits")["metadata"]["annotations"][visible_key("0")])
        assert "EnvironmentUnproved" not in closed_by(machine)
        there = machine.plane.api().get(pods_in(OURS)).body["items"]
        assert not [one for one in there if one["metadata"]["name"].startswith(NAME)]
        pods.remove_all()
    machine.plane.api().delete(f"{DEVICES}/{NODE_NAME}")


def condition(machine: Node, kind: str) -> tuple[str, str]:
    """Return status and reason of a condition of the Node."""
    found = [one for one in machine.status().get("conditions", ()) if one["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def why_it_waits(pods: Pods, name: str) -> str:
    """Return what kube-scheduler says of a Pod that it could not place."""
    found = pods.get(name).get("status", {}).get("conditions", ())
    return " ".join(one.get("message", "") for one in found if one["type"] == "PodScheduled")


def share(
    agent: Agent,
    pods: Pods,
    name: str,
    *units: int,
    card: int,
    after_ns: int,
    card_units: int = UNITS,
    runtime: str = "",
) -> None:
    """Make a Pod with a share of a card, as admission and Binding leave it."""
    answer = GpuShareAnswer(
        card=card, pod_units=sum(units), card_units=card_units, assume_time_ns=10**18 + after_ns
    )
    annotations = encode_gpushare_answer(answer)
    containers = []
    for number, amount in enumerate(units):
        annotations[visible_key(str(number))] = CARDS[card]
        made = by_environment(f"c{number}", str(number))
        limits = {GPUSHARE_MEMORY: str(amount), **({SLOT: "1"} if agent.in_mib else {})}
        containers.append({**made, "resources": {"limits": limits, "requests": limits}})
    pod = pods.make(name, containers, annotations=annotations, runtime=runtime)
    agent.hold(pod, **{f"c{number}": [CARDS[card]] for number in range(len(units))})


def told_of_share(card: int, pod_units: int, units: int, card_units: int) -> dict[str, str]:
    """Return what the proposal tells a container of its share."""
    return {
        "NVIDIA_VISIBLE_DEVICES": CARDS[card],
        "ALIYUN_COM_GPU_MEM_IDX": str(card),
        "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(card_units),
    }


@pytest.fixture
def in_mib(machine: Node, tmp_path: Path) -> Iterator[Agent]:
    """Run an agent that gives MiB of its cards, by slots."""
    with agent(machine, tmp_path, slots=4, in_mib=True) as running:
        yield running
    machine.plane.api().delete(f"{DEVICES}/{NODE_NAME}")


def test_mebibytes_of_cards_are_the_nodes_capacity_and_a_container_is_known_by_its_slot(
    in_mib: Agent, pods: Pods
) -> None:
    """Too many for ids: kubelet counts what is patched, and CDI shows the card with its words."""
    total = CARD_MIB * len(CARDS)
    pods.node.until(
        lambda: pods.node.allocatable(GPUSHARE_MEMORY) == total, "the Node does not offer them"
    )
    share(in_mib, pods, "late", 2048, 3072, card=1, after_ns=2, card_units=CARD_MIB)
    share(in_mib, pods, "early", 2048, 3072, card=2, after_ns=1, card_units=CARD_MIB)

    for name, card in (("late", 1), ("early", 2)):
        pod = pods.running(name)
        for number, units in enumerate((2048, 3072)):
            (seen,) = pods.node.seen(pod, f"c{number}")
            told = told_of_share(card, 5120, units, CARD_MIB)
            assert {key: seen["environment"].get(key) for key in told} == told
            assert seen["cards"] == [shows(CARDS[card])]

    def marks() -> list[str]:
        return [pods.get(name)["metadata"]["annotations"][ASSIGNED] for name in ("late", "early")]

    pods.node.until(lambda: marks() == ["true", "true"], f"not marked\n{in_mib.words()}")
    pods.kill(pods.get("late"), "c0")
    assert cards_of(pods, "late", "c0", runs=2) == [[shows(CARDS[1])]] * 2


@pytest.fixture
def sharing(machine: Node, tmp_path: Path) -> Iterator[Agent]:
    """Run an agent that gives GiB of its cards."""
    with agent(machine, tmp_path, shares=UNITS * len(CARDS)) as running:
        yield running
    machine.plane.api().delete(f"{DEVICES}/{NODE_NAME}")  # else its closed card stays closed
    machine.restart_kubelet(forgets=True)  # else it rejects who asks for what this plugin gave
    gone = {key: {GPUSHARE_MEMORY: None} for key in ("capacity", "allocatable")}
    done = machine.plane.api().patch(f"/api/v1/nodes/{NODE_NAME}/status", {"status": gone})
    assert done.ok, done.message  # else they stay kubelet's, and no agent fights for them


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
            told = told_of_share(card, 5, units, UNITS)
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
