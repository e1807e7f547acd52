"""Resources that are numbers, given and taken back, against plain counting."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, PodSnapshot
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import POLICIES, SchedulingSettings

NAMES = ("example.com/a", "example.com/b", "rdma/hca", "nvidia.com/mig-1g.5gb", "x.io/e", "x.io/f")


def amounts(rng: Random, most: int) -> dict[str, int]:
    """Return how many of some of the resources."""
    return {name: rng.randint(1, most) for name in NAMES if rng.random() < 0.5}


@given(st.integers(0, 2**32), st.sampled_from(sorted(POLICIES)))
def test_what_is_given_is_what_there_is_less_what_is_held(seed: int, policy: str) -> None:
    """A Pod goes where every number suffices, and is refused by each that falls short."""
    rng = Random(seed)
    offers = [amounts(rng, 6) for _ in range(rng.randint(1, 4))]
    nodes = [
        NodeFacts(uid=f"n{number}", name=f"n{number}", extended=each)
        for number, each in enumerate(offers)
    ]
    engine = Engine(nodes, SchedulingSettings(node_policy=policy), by_count=True)
    held = [Counter[str]() for _ in nodes]
    there: dict[str, tuple[int, dict[str, int]]] = {}
    for step in range(rng.randint(1, 20)):
        uid, asked = f"p{step}", amounts(rng, 3)
        if there and rng.random() < 0.3:
            gone = rng.choice(sorted(there))
            number, had = there.pop(gone)
            engine.release(gone)
            held[number].subtract(had)
        if rng.random() < 0.2:
            number = rng.randrange(len(nodes))
            engine.adopt(number, running(uid, asked, nodes[number]))
            there[uid] = number, asked
            held[number].update(asked)
            continue
        request = PodRequest(
            uid=uid,
            namespace="ml",
            name=uid,
            cpu_milli=0,
            memory_bytes=0,
            extended=tuple(sorted(asked.items())),
        )
        short = [
            {name for name, n in asked.items() if offer.get(name, 0) - used[name] < n}
            for offer, used in zip(offers, held, strict=True)
        ]
        answer = engine.decide(request, ordinal=step)
        if isinstance(answer, Placement):
            assert not short[answer.node]
            engine.reserve(answer)
            there[uid] = answer.node, asked
            held[answer.node].update(asked)
        else:
            assert all(short)
            assert answer.nodes is not None
            told = answer.nodes.by_node(tuple(node.name for node in nodes))
            for node, lacking in zip(nodes, short, strict=True):
                assert set(told[node.name]) == words(asked, lacking)


def words(asked: dict[str, int], lacking: set[str]) -> set[str]:
    """Return the reasons for these: four of a Pod's resources have their own."""
    own = sorted(asked)[:4]
    named = {f"Insufficient {name}" for name in own if name in lacking}
    return named | ({"Insufficient extended resources"} if lacking - set(own) else set())


def running(uid: str, asked: dict[str, int], node: NodeFacts) -> PodObserved:
    """Return a Pod that runs there, whether or not it fits."""
    return PodObserved(
        pod_uid=uid,
        attempt=1,
        namespace="ml",
        pod_name=uid,
        node_uid=node.uid,
        node_name=node.name,
        source="",
        snapshot=PodSnapshot(original={f"main.{name}": str(n) for name, n in asked.items()}),
    )
