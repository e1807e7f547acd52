"""The groups of GPUs a node can hand out together: `gpu-partitions` on the Device object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from ledger.domain.annotations import wire
from ledger.domain.bounds import Exact, Number
from ledger.domain.errors import InputError
from ledger.domain.quantity import Quantity
from ledger.domain.resources import ANNOTATION_GPU_PARTITIONS, LABEL_GPU_PARTITION_POLICY
from ledger.domain.typed import read

_PATH: Final = wire.annotation_path(ANNOTATION_GPU_PARTITIONS)
_HOPPER_MODELS: Final = frozenset({"H100", "H800", "H20"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPartition:
    """One group of GPUs. `minors` ascending; a missing bandwidth meets no demand for one."""

    minors: Annotated[tuple[Number, ...], _minors]
    link_type: Annotated[str, "gpuLinkType"] = ""
    ring_bus_bandwidth: Quantity | None = None
    allocation_score: Exact = 0


def _even(count: int, groups: Iterable[int]) -> tuple[GpuPartition, ...]:
    return tuple(
        GpuPartition(minors=tuple(range(first, first + count)), allocation_score=1)
        for first in groups
    )


HOPPER_PARTITIONS: Final[Mapping[int, tuple[GpuPartition, ...]]] = {
    count: _even(count, range(0, 8, count)) for count in (1, 2, 4, 8)
}
"""Eight GPUs behind switches: singles, pairs, quads, all (Koordinator contract 8.5)."""


# {"1": [{"minors": [0]}, {"minors": [1]}],
#  "2": [{"minors": [0, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "300Gi",
#         "allocationScore": 2},
#        {"minors": [1, 2], "ringBusBandwidth": "60Gi", "allocationScore": 1}]}


def decode_gpu_partitions(text: str) -> dict[int, tuple[GpuPartition, ...]]:
    """
    Read number of GPUs -> partitions, counts ascending, partitions in table order.

    Rule: Koordinator contract 2.5. Upstream treats a broken table as none; the caller decides.

    Raises:
        InputError: broken JSON, a key that is not decimal text, a partition whose minors repeat or
            do not match its key, a bad bandwidth.
    """
    table = {
        wire.a_decimal(key, _PATH, least=1): read(
            tuple[GpuPartition, ...], value, f"{_PATH}[{key}]"
        )
        for key, value in wire.an_object(wire.load(text, _PATH), _PATH).items()
    }
    for count, partitions in table.items():
        for number, partition in enumerate(partitions):
            if len(partition.minors) != count:
                raise InputError(
                    f"a partition of {count} lists {len(partition.minors)} GPUs",
                    field=f"{_PATH}[{count}][{number}].minors",
                )
    return dict(sorted(table.items()))


def honors_partitions(*labels: Mapping[str, str]) -> bool:
    """Tell if the table binds: `Honor` on Node or Device; else `Prefer` (contract 2.3, 8.5)."""
    return any(item.get(LABEL_GPU_PARTITION_POLICY) == "Honor" for item in labels)


def built_in_partitions(vendor: str, model: str) -> Mapping[int, tuple[GpuPartition, ...]] | None:
    """
    Return the table that a card model is known to have, None for others.

    Rule: Koordinator contract 8.5: nvidia (or no vendor) H100, H800 and H20. Ours: the model
    label goes on after the first dash (`H100-80GB-HBM3`), as 2.3 has the agent write it.
    """
    known = vendor in {"", "nvidia"} and model.partition("-")[0] in _HOPPER_MODELS
    return HOPPER_PARTITIONS if known else None


def _minors(value: object, path: str) -> tuple[int, ...]:
    minors = wire.each(value, path, wire.at_least(0))
    if len(set(minors)) != len(minors):
        raise InputError(f"a GPU is repeated: value={list(minors)}", field=path)
    return tuple(sorted(minors))
