"""What the cards of a cluster have and what is given of them, summed by type and model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.devices import DeviceRecord
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays

MODELS_MAX: Final = 64
OTHER: Final = "other"
"""What models are called together that come when there are so many of a type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSums:
    """
    Of all cards of a type and model; core in percent of a card, memory in bytes.

    Attributes:
        held: cards with a tenant.
        closed: cards that take nobody, whatever is left on them.
    """

    device_type: str
    model: str
    cards: int
    held: int
    closed: int
    core_capacity: int
    core_allocated: int
    memory_capacity: int
    memory_allocated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardNow:
    """One card of a node, as it is."""

    node: str
    record: DeviceRecord
    core_allocated: int
    memory_allocated: int
    is_open: bool


class _Models:
    """The model of each card of a type as a number, brought up to date where a node's list is."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.codes: npt.NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        self._seen: list[tuple[DeviceRecord, ...]] = []

    def update(self, devices: DeviceArrays) -> None:
        shape = devices.core_cap.shape
        if self.codes.shape != shape:
            self.codes, self._seen = np.full(shape, -1, dtype=np.int64), [()] * shape[0]
        for row, records in enumerate(devices.records):
            if records is not self._seen[row]:
                self._seen[row] = records
                self.codes[row] = -1
                self.codes[row, : len(records)] = [self._code(each.model) for each in records]

    def _code(self, model: str) -> int:
        if model not in self.names:
            if len(self.names) >= MODELS_MAX:
                model = OTHER
            if model not in self.names:
                self.names.append(model)
        return self.names.index(model)


class CardCounts:
    """Counts the cards of arrays whenever somebody asks; cheap, for only what changed is read."""

    def __init__(self, arrays: NodeArrays) -> None:
        self._arrays = arrays
        self._models: dict[str, _Models] = {}

    def sums(self) -> Iterator[CardSums]:
        """Yield the sums of each type and model that there is; a machine's cards count once."""
        arrays = self._arrays
        own = np.array(arrays.accounts, dtype=np.int64) == arrays.everything
        for device_type, devices in sorted(arrays.devices.items()):
            models = self._models.setdefault(device_type, _Models())
            models.update(devices)
            there = devices.present & own[:, None]
            codes = models.codes[there]
            parts = {
                "cards": np.ones(len(codes)),
                "held": devices.tenants[there] > 0,
                "closed": ~devices.open[there],
                "core_capacity": devices.core_cap[there],
                "core_allocated": (devices.core_cap - devices.core_free)[there],
                "memory_capacity": devices.memory_cap[there],
                "memory_allocated": (devices.memory_cap - devices.memory_free)[there],
            }
            summed = {
                name: np.bincount(codes, weights=values, minlength=len(models.names))
                for name, values in parts.items()
            }
            for code, model in enumerate(models.names):
                if summed["cards"].item(code):
                    numbers = {name: int(values.item(code)) for name, values in summed.items()}
                    yield CardSums(device_type=device_type, model=model, **numbers)

    def cards(self) -> Iterator[CardNow]:
        """Yield every card of every node."""
        for _, devices in sorted(self._arrays.devices.items()):
            for row, records in enumerate(devices.records):
                for slot, record in enumerate(records):
                    core, memory = devices.core_cap, devices.memory_cap
                    yield CardNow(
                        node=self._arrays.nodes[row].name,
                        record=record,
                        core_allocated=int(core[row, slot] - devices.core_free[row, slot]),
                        memory_allocated=int(memory[row, slot] - devices.memory_free[row, slot]),
                        is_open=bool(devices.open[row, slot]),
                    )
