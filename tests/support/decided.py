"""
One fixed history of Pods in every dialect, decided and written by every policy; prints a hash each.

    python -m tests.support.decided
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterable, Iterator

from ledger.domain.request.normalise import decode_pod
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import POLICIES, SchedulingSettings
from tests.support.mixed import (
    CARDS,
    KOORDINATOR,
    MGPU,
    NOW_NS,
    Amounts,
    asking,
    node_with_device,
    node_without_device,
)

ARRIVALS = 120
SEED = 7


def answers(policy: str) -> Iterator[str]:
    """Yield every answer of the history as text, in order."""
    rng = random.Random(SEED)
    nodes = [
        node_with_device(f"n{number}") if number % 2 else node_without_device(f"n{number}")
        for number in range(6)
    ]
    pods = [asking(f"p{number}", *_asks(rng)) for number in range(ARRIVALS)]
    requests = [decode_pod(body) for body in pods]
    settings = SchedulingSettings(node_policy=policy)
    engine = Engine(nodes, settings, workload=workload_of(requests[:40]), seed=SEED)
    held: list[str] = []
    for number, request in enumerate(requests):
        answer = engine.decide(request, ordinal=number)
        filtered = engine.filter(request, range(len(nodes)))
        yield repr((filtered.passing.tolist(), filtered.ratings.tolist(), filtered.reasons))
        if isinstance(answer, Placement):
            engine.reserve(answer)
            held.append(request.uid)
            written = encode(
                answer, node=nodes[answer.node], now_ns=NOW_NS + number, settings=settings
            )
            yield json.dumps([answer.node_name, list(written.items())])
        else:
            yield repr((answer.message, answer.reasons, answer.nodes))
        if len(held) > 12:
            engine.release(held.pop(rng.randrange(len(held))))


def _asks(rng: random.Random) -> tuple[str, Amounts, *tuple[Amounts, ...]]:
    percent, size = str(rng.randint(1, 99)), str(rng.randint(1, 30) * 512)
    part = {f"{MGPU}core": percent, f"{MGPU}memory": size}
    other = {f"{MGPU}core": str(rng.randint(1, 60)), f"{MGPU}memory": "2048"}
    nic = {f"{KOORDINATOR}gpu": percent, f"{KOORDINATOR}rdma": "30"}
    choices: tuple[tuple[str, Amounts, *tuple[Amounts, ...]], ...] = (
        ("nvidia", {"nvidia.com/gpu": str(rng.randint(1, CARDS))}),
        ("koordinator", {f"{KOORDINATOR}gpu": percent}),
        ("koordinator", nic),
        ("mgpu", part, other),
        ("gpushare", {"aliyun.com/gpu-mem": size}),
        ("group", {f"{KOORDINATOR}gpu": str(100 * rng.randint(1, CARDS))}),
    )
    return rng.choice(choices)


def digest(said: Iterable[str]) -> str:
    """Return the hash over all answers."""
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(json.dumps({policy: digest(answers(policy)) for policy in POLICIES}))
