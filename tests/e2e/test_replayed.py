"""Bursts while nodes change: what the real service decided is decided again from its ledger."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import pytest

from tests.support.kube.bursts import GROUPED, burst, remove_pods, settled
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure

NODES: Final = ("re-0", "re-1", "re-2")
EACH: Final = 4
"""Pods of each dialect in a burst; with group and gang they take about half of the cards."""
CHANGE_SECONDS: Final = 0.05
SEEDS: Final = 9


@pytest.fixture
def where(plane: ControlPlane, namespace: Callable[..., str]) -> Iterator[str]:
    """Three nodes of eight cards, and where Pods are to be submitted."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in NODES:
        add_gpu_node(plane, name)
    yield pods_in(namespace(managed=False))
    for name in NODES:
        remove_node(plane, name)


@contextmanager
def changing(plane: ControlPlane, rng: Random) -> Iterator[None]:
    """Let cards get sick and well and labels of Nodes change, until the block ends."""
    api, ended = plane.api(), threading.Event()
    well = {name: api.get(f"{DEVICES}/{name}").body["spec"]["devices"] for name in NODES}

    def put(name: str, sick: int) -> None:
        cards = [
            {**each, "health": each["type"] != "gpu" or each["minor"] != sick}
            for each in well[name]
        ]
        assert api.patch(f"{DEVICES}/{name}", {"spec": {"devices": cards}}).ok

    def change() -> None:
        number = 0
        while not ended.wait(CHANGE_SECONDS):
            number += 1
            name = rng.choice(NODES)
            if rng.randrange(3):
                put(name, rng.randrange(8))
            else:
                labels = {"metadata": {"labels": {"round": str(number)}}}
                assert api.patch(f"/api/v1/nodes/{name}", labels).ok

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)
        for name in NODES:
            put(name, -1)


@pytest.mark.parametrize(
    ("ledger", "seed"),
    [
        pytest.param(
            database,
            seed,
            id=f"{database}, " + (f"two rounds, seed {seed}" if seed else "one round"),
            marks=[] if (database, seed) == ("postgres", 0) else pytest.mark.slow,
        )
        for database in ("postgres", "sqlite")
        for seed in range(SEEDS + 1)
    ],
    indirect=["ledger"],
)
def test_a_ledger_of_bursts_while_nodes_change_is_decided_again_the_same(
    plane: ControlPlane,
    where: str,
    ledger: str,
    identities: Identities,
    seed: int,
) -> None:
    """Every dialect, a group and a gang; each further round has a service that starts anew."""
    rng, rounds = Random(seed), 2 if seed else 1
    for number in range(rounds):
        with (
            extender(plane, ledger, identities, forked=True) as served,
            plane.scheduler(asking(plane, served, identities)),
        ):
            with changing(plane, rng):
                made = burst(plane, where, EACH, tuple(GROUPED), prefix=f"r{number}-")
                bound = settled(plane, where, len(made) // 2)
            assert len(bound) >= len(made) // 2, served.words()
            bound = settled(plane, where, len(made))
            assert len(bound) == len(made), served.words()
        remove_pods(plane, where, made)
    answer = tenure("ledger", "replay", "--ledger", ledger, "-o", "json", cwd=identities.keys)
    told = json.loads(answer.stdout)
    sys.stdout.write(f"decisions={told['decisions']} {told['not_decided_again']}\n")
    assert told["differences"] == []
    assert answer.returncode == 0, answer.stderr
    assert told["placed"] >= rounds * len(made), told["not_decided_again"]
