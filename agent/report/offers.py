"""What the Node offers, as every way to ask for cards and devices counts, less what is held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.decide.node_holdings import HeldByPod
from agent.discover.machine import Card, Discovery
from agent.report.held import Amounts, Asked, DeviceKey, held_of
from ledger.domain.device_types import Unit
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import CardLeft
from ledger.domain.dialects.registry import READERS
from ledger.domain.quantity import quantity_from_int
from ledger.domain.resources import RDMA, TYPE_GPU, TYPE_RDMA
from ledger.domain.vocabulary import Vocabulary


def node_offers(
    found: Discovery,
    pods: Sequence[HeldByPod] | None,
    asked: Asked | None,
    *,
    dialects: frozenset[Dialect],
    vocabulary: Vocabulary,
) -> dict[str, str]:
    """
    Return the quantities that the Node should have, by resource, as the API writes them.

    Rule: Koordinator contract 1.2; design section 8: every dialect advertises whole cards, so that
    what one gives out the others lose, and none says less than the Pods that live here ask for in
    its words. kubelet counts those against it. A closed device has nothing left to give. In whose
    words a Pod holds a device is not known before it is among `asked`: until then its devices are
    told of as if it held none, and as if they were open.

    Args:
        pods: what the ledger says is held; None = not known, and then everybody may hold anything.
        asked: what the Pods that live on this node ask for; None = not known.
        dialects: those whose resources this node patches into its Node.
    """
    counted = frozenset() if asked is None else asked.pod_uids
    others = None if pods is None else [pod for pod in pods if pod.pod_uid not in counted]
    found = _with_held_open(found, None if others is None else held_of(others))
    held = held_of([pod for pod in pods or () if pod.pod_uid in counted])
    amounts = {} if asked is None or pods is None else asked.amounts
    left: dict[str, int] = {}
    cards = _cards(found.cards, held, dialects, vocabulary)
    for name, amount in (*cards, *_others(found, held, vocabulary)):
        left[name] = left.get(name, 0) + amount
    return {
        name: str(quantity_from_int(amount + max(0, amounts.get(name, 0))))
        for name, amount in sorted(left.items())
    }


def _with_held_open(found: Discovery, held: Mapping[DeviceKey, Amounts] | None) -> Discovery:
    """Return the machine with no fault on a device that somebody holds, or may hold."""

    def is_free(device_type: str, device_id: str) -> bool:
        return held is not None and (device_type, device_id) not in held

    return replace(
        found,
        cards=tuple(
            one if is_free(TYPE_GPU, one.uuid) else replace(one, faults=()) for one in found.cards
        ),
        nics=tuple(
            one if is_free(TYPE_RDMA, one.place.bus_id) else replace(one, faults=())
            for one in found.nics
        ),
        others=tuple(
            one if is_free(one.device_type, one.device_id) else replace(one, faults=())
            for one in found.others
        ),
    )


def _cards(
    cards: Iterable[Card],
    held: Mapping[DeviceKey, Amounts],
    dialects: frozenset[Dialect],
    vocabulary: Vocabulary,
) -> Iterator[tuple[str, int]]:
    for card in cards:
        core, size = held.get((TYPE_GPU, card.uuid), (0, 0))
        left = CardLeft(
            core_percent=0 if card.faults else max(0, WHOLE_PERCENT - core),
            memory_bytes=0 if card.faults else max(0, card.memory_bytes - size),
            total_bytes=card.memory_bytes,
            is_open=not card.faults,
        )
        for reader in READERS:
            if reader.dialect in dialects:
                yield from reader.offers(left, vocabulary).items()


def _others(
    found: Discovery, held: Mapping[DeviceKey, Amounts], vocabulary: Vocabulary
) -> Iterator[tuple[str, int]]:
    for nic in found.nics:
        core, _ = held.get((TYPE_RDMA, nic.place.bus_id), (0, 0))
        yield RDMA, 0 if nic.faults else max(0, WHOLE_PERCENT - core)
    for one in found.others:
        kind = vocabulary.type_named(one.device_type)
        core, size = held.get((one.device_type, one.device_id), (0, 0))
        units = 0 if one.faults else max(0, one.percent - core)
        yield kind.resource, units // WHOLE_PERCENT if kind.unit is Unit.COUNT else units
        if kind.memory:
            yield kind.memory, 0 if one.faults else max(0, one.memory_bytes - size)
