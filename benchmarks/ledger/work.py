"""Events without end on 800 cards: half reservations of one whole GPU, half releases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import LedgerEvent, NodeInventoried, PodReleased, PodReserved
from ledger.domain.log.recorded import NewEvent

NODES: Final = 100
CARDS: Final = 8
MEMORY_BYTES: Final = 80 << 30
ORIGIN: Final = "simulation/benchmark"


class Work:
    """Events without end: every card gets a new Pod in turn, the one before leaves first."""

    def __init__(self) -> None:
        self.made = 0
        self._events = self._forever()

    def batch(self, count: int) -> list[NewEvent]:
        """Return the next `count` events."""
        return [next(self._events) for _ in range(count)]

    def inventories(self) -> list[NewEvent]:
        """Return what the nodes have, to be recorded first."""
        return [self._new(f"n-{number}", _inventory(number)) for number in range(NODES)]

    def _forever(self) -> Iterator[NewEvent]:
        pod = 0
        while True:
            card, turn = pod % (NODES * CARDS), pod // (NODES * CARDS)
            node = card % NODES
            if turn > 0:
                yield self._new(f"n-{node}", _released(pod - NODES * CARDS, node))
            yield self._new(f"n-{node}", _reserved(pod, node, card // NODES))
            pod += 1

    def _new(self, node: str, event: LedgerEvent) -> NewEvent:
        self.made += 1
        return NewEvent(
            stream=f"node/{node}",
            event=event,
            actor="benchmark",
            idempotency_key=f"benchmark:{self.made}",
            wall_us=1_772_409_600_000_000 + self.made * 1_000,
        )


def _inventory(number: int) -> NodeInventoried:
    devices = tuple(
        DeviceRecord(
            device_type="gpu",
            minor=minor,
            device_id=f"GPU-{number}-{minor}",
            model="A100",
            memory_bytes=MEMORY_BYTES,
        )
        for minor in range(CARDS)
    )
    return NodeInventoried(node_uid=f"n-{number}", node_name=f"node-{number}", devices=devices)


def _reserved(pod: int, node: int, minor: int) -> PodReserved:
    share = DeviceShare(
        device_type="gpu",
        minor=minor,
        device_id=f"GPU-{node}-{minor}",
        core_percent=100,
        memory_bytes=MEMORY_BYTES,
        memory_ratio_percent=100,
    )
    return PodReserved(
        pod_uid=f"pod-{pod}",
        attempt=1,
        namespace="team-a",
        pod_name=f"train-{pod}",
        node_uid=f"n-{node}",
        node_name=f"node-{node}",
        cpu_milli=4_000,
        memory_bytes=16 << 30,
        shares=(share,),
        device_models=("A100",),
        dialect="koordinator",
        policy="binpack",
    )


def _released(pod: int, node: int) -> PodReleased:
    return PodReleased(pod_uid=f"pod-{pod}", attempt=1, node_uid=f"n-{node}", reason="completed")
