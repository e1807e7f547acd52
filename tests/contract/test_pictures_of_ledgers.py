"""What a ledger draws of its cards is what the objects draw that it was told, at every moment."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from ledger.domain.devices import DeviceRecord
from ledger.domain.log.events import PodObserved, PodReleased
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_node import recorded_node
from ledger.domain.nodes import NodeFacts
from scheduler.cluster.mending import cluster_as_far_as_read
from scheduler.cluster.model import Cluster
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.usage.picture import NodeNow, Picture
from tenure.manifests import read_manifests
from tenure.picture import picture_of_cluster, picture_of_ledger
from tests.support.cards_of_others import a_cluster
from tests.support.examples import examples
from tests.support.stores import MONDAY_US, Store, start

SECOND_US = 1_000_000
SEEDS = range(examples(24) // 3)
CASES = [*(("sqlite", seed) for seed in SEEDS), ("postgres", 3), ("postgres", 5)]
STEPS = 12


def read_of(seed: int) -> Cluster:
    """A random cluster of every system."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": a_cluster(Random(seed))})
    objects = read_manifests(["-"], stdin=io.BytesIO(text.encode()))
    return cluster_as_far_as_read(objects, SchedulingSettings())


def drawn_of(nodes: list[NodeFacts], pods: list[PodObserved]) -> Picture:
    """What is drawn of values that objects told."""
    cluster = Cluster(nodes=tuple(nodes), adopted=tuple(pods))
    return picture_of_cluster(cluster, SchedulingSettings().vocabulary)


def by_name(picture: Picture) -> dict[str, NodeNow]:
    """The nodes, in whichever order."""
    return {node.name: node for node in picture.nodes}


def changed(node: NodeFacts, rng: Random) -> NodeFacts:
    """The node cordoned, or open again, or with another number of healthy devices."""
    systems = node.systems
    if not systems.offers or rng.random() < 0.3:
        return replace(node, unschedulable=not node.unschedulable)
    there = systems.there()
    offers = {name: max(0, amount - rng.randint(0, 2)) for name, amount in there.items()}
    ill = {name: amount for name, amount in there.items() if offers[name] != amount}
    more = replace(systems, offers=tuple(offers.items()), capacity=tuple(ill.items()))
    return replace(node, systems=more)


def told(node: NodeFacts, at_us: int, number: int) -> NewEvent:
    """Everything that deciding reads of a node beside its inventory."""
    return events.node_described(node, recorded_node(node), at_us, number, place=0, rank=0)


def gone(pod: PodObserved, at_us: int) -> NewEvent:
    """The end of a Pod, in the words around its beginning."""
    released = PodReleased(
        pod_uid=pod.pod_uid, attempt=pod.attempt, node_uid=pod.node_uid, reason="deleted"
    )
    first = events.of_pod(pod, at_us)
    return structs.replace(first, event=released, idempotency_key=f"release:{pod.pod_uid}")


@pytest.mark.parametrize(("database", "seed"), CASES)
def test_a_ledger_draws_what_its_objects_draw_at_every_moment(
    database: str, seed: int, request: pytest.FixtureRequest
) -> None:
    """
    Over random lives of clusters of every system, in the words of the product's own writers.

    Pods come and go, nodes are cordoned, plugins lose cards and find them again: every number,
    holder and resource is the same, now and asked of the past.
    """
    store: Store = request.getfixturevalue(f"{database}_store")
    rng, cluster = Random(seed), read_of(seed)
    nodes, pods = list(cluster.nodes), list[PodObserved]()
    waiting = [pod for pod in cluster.adopted if pod.node_uid]
    drawn: list[tuple[int, Picture]] = []
    with store.open() as ledger:
        writer, at_us = start(ledger), MONDAY_US
        for number, node in enumerate(nodes):
            at_us += SECOND_US
            writer.append([events.inventoried(node, at_us), told(node, at_us, number)])
        for step in range(STEPS):
            at_us += SECOND_US
            if waiting and rng.random() < 0.6:
                pods.append(waiting.pop(rng.randrange(len(waiting))))
                writer.append([events.of_pod(pods[-1], at_us)])
            elif pods and rng.random() < 0.4:
                writer.append([gone(pods.pop(rng.randrange(len(pods))), at_us)])
            else:
                number = rng.randrange(len(nodes))
                nodes[number] = changed(nodes[number], rng)
                writer.append([told(nodes[number], at_us, 100 + step)])
            drawn.append((at_us, drawn_of(nodes, pods)))
            assert by_name(picture_of_ledger(ledger, None)) == by_name(drawn[-1][1]), step
        for moment, picture in drawn[::4]:
            assert by_name(picture_of_ledger(ledger, moment)) == by_name(picture), moment
        assert picture_of_ledger(ledger, None).summary == drawn[-1][1].summary


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_machine_is_on_the_map_from_its_first_inventory_on(
    database: str, request: pytest.FixtureRequest
) -> None:
    """
    What registered later was not there, and before the first event nothing was.

    A Node made anew on the same machine has its cards from then on; before, they are the other's.
    """
    store: Store = request.getfixturevalue(f"{database}_store")
    first, again, second = (
        NodeFacts(
            uid=f"uid-{name}",
            name=name,
            system_uuid=system,
            machine_id=system,
            devices=(DeviceRecord(device_type="gpu", minor=0, device_id=f"GPU-{system}"),),
        )
        for name, system in (("n1", "a"), ("n1-again", "a"), ("n2", "b"))
    )
    with store.open() as ledger:
        writer = start(ledger)
        for step, node in enumerate((first, second, again), start=1):
            writer.append([events.inventoried(node, MONDAY_US + step * SECOND_US)])
        cards = [
            {
                node.name: len(group.devices)
                for node in picture_of_ledger(ledger, MONDAY_US + step * SECOND_US).nodes
                for group in node.groups
            }
            for step in range(4)
        ]
    assert cards == [{}, {"n1": 1}, {"n1": 1, "n2": 1}, {"n1-again": 1, "n2": 1}]
