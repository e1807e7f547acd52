"""What the Node offers, as every way to ask for cards and devices counts, less what is held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.discover.machine import Card, Discovery
from agent.report.held import Amounts, DeviceKey
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
    held: Mapping[DeviceKey, Amounts],
    requested: Mapping[str, int],
    *,
    dialects: frozenset[Dialect],
    vocabulary: Vocabulary,
) -> dict[str, str]:
    """
    Return the quantities that the Node should have, by resource, as the API writes them.

    Rule: Koordinator contract 1.2; design section 8: every dialect advertises whole cards, so that
    what one gives out the others lose, and none says less than the Pods that live here ask for in
    its words. kubelet counts those against it. A closed device has nothing left to give.

    Args:
        held: what the ledger says is held of each device.
        requested: what the Pods that live on this node ask for in sum, by resource.
        dialects: those whose resources this node patches into its Node.
    """
    left: dict[str, int] = {}
    cards = _cards(found.cards, held, dialects, vocabulary)
    for name, amount in (*cards, *_others(found, held, vocabulary)):
        left[name] = left.get(name, 0) + amount
    return {
        name: str(quantity_from_int(amount + max(0, requested.get(name, 0))))
        for name, amount in sorted(left.items())
    }


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
