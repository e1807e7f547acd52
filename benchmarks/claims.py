"""
Which cards claims get: by the gate's policy, against kube-scheduler's first fit stored as written.

    .venv/bin/python -m benchmarks.claims

1,000 fractions arrive one after the other and stay for a while, the same ones in both runs. A node
is chosen as a stock kube-scheduler would among nodes alike, the one with the fewest Pods; the card
on it is the first that has room, in the order of its slice. The gate decides each write as it does
live (slices, accounts, `decide`), with the policy or without. Whole cards left free is the mean
over the second half of the arrivals. The overfull row has fewer nodes than the fractions need, and
counts those that found a card when they came, on the node that was chosen or another.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ledger.domain.log.events import ClaimReserved, NodeInventoried
from ledger.domain.log.state import Folding, NodeState
from scheduler.decide.claims import cards_of, place_claim
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.claims import claim_seen
from scheduler.gate.decide import DEALLOCATED, Standing, Through, Write, decide, end_of
from scheduler.gate.exchange import Place
from scheduler.service.slices import LiveAccounts, SliceBook
from scheduler.service.wakeups import Wakeups

SEED: Final = 19
ARRIVALS: Final = 1_000
CARDS: Final = 8
CARD_GIB: Final = 16
SIZES_GIB: Final = (1, 2, 2, 4, 4, 4, 6, 8, 10, 12)
DRIVER: Final = "gpu.example.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A fraction of a card, and how many arrivals later it ends."""

    name: str
    gib: int
    stays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of one run."""

    placed: int
    free: float
    used: float
    us: float


class Cluster:
    """Nodes of eight cards that their driver gives in shares, and who has what of them."""

    def __init__(self, nodes: int) -> None:
        self.names = [f"n-{number:03}" for number in range(nodes)]
        self._folding, self._position = Folding(), 0
        self._slices = SliceBook({DRIVER}, Wakeups())
        self.pods = dict.fromkeys(self.names, 0)
        for name in self.names:
            self._slices.put(name, _slice(name))
            records = self._slices.records(name, (), ())
            self.take(NodeInventoried(node_uid=name, node_name=name, devices=records))
        self.accounts = LiveAccounts(self._slices, self.state)

    def take(self, event: Any) -> None:  # noqa: ANN401 - any event
        """Fold an event in."""
        self._position += 1
        self._folding.add(self._position, event)

    def state(self, name: str) -> NodeState | None:
        """Return what is held of a node."""
        return self._folding.node(name)

    def first_fit(self, gib: int) -> Iterator[tuple[str, str]]:
        """Yield nodes and the card that a scheduler would write, the emptiest node first."""
        for name in sorted(self.names, key=lambda each: (self.pods[each], each)):
            state = self.state(name)
            assert state is not None, name
            for card in cards_of(state):
                if card.memory_free >= gib << 30:
                    yield name, f"gpu-{card.record.minor}"
                    break

    def free(self) -> int:
        """Return how many cards nobody has anything of."""
        states = (self.state(name) for name in self.names)
        return sum(not one.tenants for state in states if state for one in cards_of(state))


def main() -> None:
    """Run both ways over clusters with room and without, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    head = ("placed", "cards free", "of cards", "memory held", "us a write")
    sys.stdout.write(f"{'':<34}" + "".join(f"{name:>14}" for name in head) + "\n")
    for words, nodes in (("room for all, 32 nodes", 32), ("overfull, 12 nodes", 12)):
        for policy in (False, True):
            runs = [_run(nodes, SEED + seed, is_gated=policy) for seed in range(options.seeds)]
            name = f"{words}, {'policy' if policy else 'first fit'}"
            values = (
                f"{statistics.mean(one.placed for one in runs):.1f}",
                f"{statistics.mean(one.free for one in runs):.1f}",
                f"{nodes * CARDS}",
                f"{statistics.mean(one.used for one in runs):.1%}",
                f"{statistics.median(one.us for one in runs):.0f}",
            )
            sys.stdout.write(f"{name:<34}" + "".join(f"{value:>14}" for value in values) + "\n")


def _arrivals(seed: int) -> list[Arrival]:
    draw = random.Random(seed)
    return [
        Arrival(name=f"c-{number}", gib=draw.choice(SIZES_GIB), stays=draw.randint(200, 600))
        for number in range(ARRIVALS)
    ]


def _run(nodes: int, seed: int, *, is_gated: bool) -> Found:
    cluster = Cluster(nodes)
    place: Place = partial(place_claim, facts=None, settings=SchedulingSettings())
    ends: list[tuple[int, str, str, ClaimReserved]] = []  # when, whose, where, what
    free, used, times, placed, held = list[int](), list[int](), list[float](), 0, 0
    for number, arrival in enumerate(_arrivals(seed)):
        while ends and ends[0][0] <= number:
            _, _, node, opening = heapq.heappop(ends)
            cluster.take(end_of(Standing(opening=opening, stored=True), DEALLOCATED))
            cluster.pods[node] -= 1
            held -= opening.shares[0].memory_bytes
        for node, device in cluster.first_fit(arrival.gib):
            began = time.process_time()
            answer = decide(
                _write(arrival, node, device, is_gated=is_gated),
                cluster.accounts,
                None,
                place=place if is_gated else None,
            )
            times.append(time.process_time() - began)
            if isinstance(answer, Through):
                (reserved,) = answer.events
                assert isinstance(reserved, ClaimReserved), reserved
                cluster.take(reserved)
                cluster.pods[node] += 1
                heapq.heappush(ends, (number + arrival.stays, arrival.name, node, reserved))
                held += reserved.shares[0].memory_bytes
                placed += 1
                break
        if number >= ARRIVALS // 2 and not number % 10:
            free.append(cluster.free())
            used.append(held)
    return Found(
        placed=placed,
        free=statistics.mean(free),
        used=statistics.mean(used) / (nodes * CARDS * CARD_GIB << 30),
        us=statistics.median(times) * 1e6,
    )


def _write(arrival: Arrival, node: str, device: str, *, is_gated: bool) -> Write:
    result = {
        "request": "g",
        "driver": DRIVER,
        "pool": node,
        "device": device,
        "shareID": arrival.name,
        "consumedCapacity": {"memory": f"{arrival.gib}Gi"},
    }
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [named]}]},
    }
    item: Mapping[str, Any] = {
        "metadata": {
            "name": arrival.name,
            "namespace": "ml",
            "uid": arrival.name,
            "resourceVersion": "1",
        },
        "status": {"allocation": allocation},
    }
    new = claim_seen(item, {DRIVER})
    old = replace(new, allocated=None, is_allocated=False)
    return Write(old=old, new=new, free=frozenset({"g"}) if is_gated else frozenset())


def _slice(node: str) -> dict[str, Any]:
    def card(number: int) -> dict[str, Any]:
        return {
            "name": f"gpu-{number}",
            "attributes": {"uuid": {"string": f"GPU-{node}-{number}"}},
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": f"{CARD_GIB}Gi"}},
        }

    return {
        "metadata": {"name": node, "uid": node, "resourceVersion": "1"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [card(number) for number in range(CARDS)],
        },
    }


if __name__ == "__main__":
    main()
