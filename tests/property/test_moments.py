"""What a ledger says of a moment is what it said at that moment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import LedgerEvent, NodeLost
from ledger.store.open import Ledger
from scheduler.usage.picture import NodeNow
from tenure.picture import picture_of_ledger
from tests.support.examples import examples
from tests.support.stores import (
    MONDAY_US,
    Clock,
    SqliteStore,
    gpu,
    health,
    node,
    released,
    reserved,
    share,
    start,
)

SEEDS = range(examples(100))
NODES = {"uid-1": "n-1", "uid-2": "n-2", "uid-3": "n-1"}
MINUTE_US = 60_000_000


class Told:
    """Random events about Nodes of two machines; two of the Nodes are called alike."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._machines = {uid: self._rng.choice("mmmk") for uid in NODES}
        self._holders: list[tuple[str, str]] = []
        self._pods = 0

    def event(self) -> LedgerEvent:
        """One of an inventory, a loss, a grant, an end, or a card's health."""
        rng, uid = self._rng, self._rng.choice(sorted(NODES))
        match rng.choice(("told", "told", "lost", "held", "held", "ended", "health")):
            case "lost":
                return NodeLost(node_uid=uid, node_name=NODES[uid], reason="deleted")
            case "held":
                self._pods += 1
                self._holders.append((f"p{self._pods}", uid))
                card = share(rng.randrange(2), rng.choice((50, 100)), device_id=self._an_id())
                return reserved(f"p{self._pods}", card, node=NODES[uid], node_uid=uid)
            case "ended" if self._holders:
                pod, uid = self._holders.pop(rng.randrange(len(self._holders)))
                return released(pod, node=uid.removeprefix("uid-"))
            case "health":
                ill = rng.random() < 0.5
                return health(rng.randrange(2), healthy=not ill, node=uid.removeprefix("uid-"))
            case _:
                return self._inventory(uid)

    def _an_id(self) -> str:
        return f"GPU-{self._rng.randrange(3)}"

    def _inventory(self, uid: str) -> LedgerEvent:
        machine = self._machines[uid]
        ids = self._rng.sample(range(3), self._rng.randint(1, 3))
        return node(
            NODES[uid],
            node_uid=uid,
            system_uuid=f"system-{machine}",
            machine_id=f"machine-{machine}",
            devices=tuple(
                gpu(
                    minor, device_id=f"GPU-{each}", unique_id=True, healthy=self._rng.random() < 0.8
                )
                for minor, each in enumerate(ids)
            ),
        )


def drawn(ledger: Ledger, at_us: int | None) -> dict[str, NodeNow]:
    """The nodes of a map by UID."""
    return {each.uid: each for each in picture_of_ledger(ledger, at_us).nodes}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_map_of_a_moment_is_the_map_that_was_drawn_then(seed: int, tmp_path: Path) -> None:
    """Whichever Nodes were made anew, and whichever cards came, went or moved since."""
    told, store, clock = Told(seed), SqliteStore(path=tmp_path / "l.db"), Clock()
    store.open("create").close()
    then: list[tuple[int, dict[str, NodeNow]]] = []
    with store.open() as ledger:
        writer = start(ledger)
        for minute in range(1, 16):
            at_us = MONDAY_US + minute * MINUTE_US
            try:
                writer.append([clock.new(told.event(), at_us=at_us)])
            except LedgerError:
                continue  # what can't be, such as a card that is full
            then.append((at_us, drawn(ledger, None)))
        assert [(at_us, drawn(ledger, at_us)) for at_us, _ in then] == then
