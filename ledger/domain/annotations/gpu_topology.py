"""The GPU-topology proposal: group labels, the group's answer, the Device's bandwidth matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations import wire
from ledger.domain.errors import InputError
from ledger.domain.request.requests import GroupRef
from ledger.domain.resources import (
    ANNOTATION_GPU_TOPOLOGY,
    LABEL_GPU_GROUP_NAME,
    LABEL_GPU_GROUP_REPLICA,
    TYPE_GPU,
)
from ledger.domain.topology import LinkMatrix, format_link_matrix, parse_link_matrix

_PATH: Final = wire.annotation_path(ANNOTATION_GPU_TOPOLOGY)
_BANDWIDTH: Final = "bandwidth"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTopologyAllocation:
    """
    The GPUs of a Pod of a group, as minors.

    Attributes:
        allocated: container index and the GPUs it may use, by container.
        visible: the GPUs this node gives to the whole group.
    """

    allocated: tuple[tuple[int, tuple[int, ...]], ...] = ()
    visible: tuple[int, ...] = ()


# gputopology.scheduling.koordinator.sh/name: "job-7"
# gputopology.scheduling.koordinator.sh/replica: "3"


def read_gpu_group(labels: Mapping[str, str]) -> GroupRef | None:
    """
    Return the group a Pod belongs to, None without the labels.

    Rule: Koordinator GPU-topology proposal, "How to identify pods are in the same group".

    Raises:
        InputError: one label without the other, an empty name, or a replica below 1.
    """
    name, replica = labels.get(LABEL_GPU_GROUP_NAME), labels.get(LABEL_GPU_GROUP_REPLICA)
    if name is None and replica is None:
        return None
    if not name:
        raise InputError("missing beside the replica", field=wire.label_path(LABEL_GPU_GROUP_NAME))
    path = wire.label_path(LABEL_GPU_GROUP_REPLICA)
    if replica is None:
        raise InputError("missing beside the name", field=path)
    return GroupRef(name=name, replica=wire.a_decimal(replica, path, least=1))


# {"allocatedGPUs": {"0": ["4", "5"]}, "visibleGPUs": ["4", "5", "6", "7"]}


def decode_gpu_topology(text: str) -> GpuTopologyAllocation:
    """
    Read the GPUs of a Pod of a group; containers ascending, GPUs in the order written.

    Rule: the proposal, "Record the allocation information to the pod annotation".

    Raises:
        InputError: broken JSON, or an index that is not decimal text.
    """
    value = wire.an_object(wire.load(text, _PATH), _PATH)
    path = f"{_PATH}.allocatedGPUs"
    allocated = wire.an_object(value.get("allocatedGPUs"), path)
    pairs = (
        (wire.a_decimal(container, path, least=0), wire.each(gpus, f"{path}[{container}]", _index))
        for container, gpus in allocated.items()
    )
    return GpuTopologyAllocation(
        allocated=tuple(sorted(pairs)),
        visible=wire.each(value.get("visibleGPUs"), f"{_PATH}.visibleGPUs", _index),
    )


def encode_gpu_topology(allocation: GpuTopologyAllocation) -> str:
    """Write the GPUs of a Pod of a group; every index is text, as the proposal has it."""
    allocated = {
        str(container): [str(minor) for minor in minors]
        for container, minors in allocation.allocated
    }
    visible = [str(minor) for minor in allocation.visible]
    return wire.dump({"allocatedGPUs": allocated, "visibleGPUs": visible})


# spec.topologies of a Device: {"gpu": [{"name": "bandwidth", "topology": "[[0,1],[1,0]]"}]}


def decode_gpu_links(topologies: object) -> LinkMatrix | None:
    """
    Return the GPU bandwidth matrix of a Device's `spec.topologies`, None when it has none.

    Rule: the proposal, "GPU topology resource reporting". Fields of errors start at `spec`.
    """
    path = f"spec.topologies.{TYPE_GPU}"
    by_type = wire.an_object(topologies, "spec.topologies")
    for entry_path, entry in wire.each(by_type.get(TYPE_GPU), path, _named):
        if wire.a_text(entry.get("name"), f"{entry_path}.name") == _BANDWIDTH:
            matrix_path = f"{entry_path}.topology"
            return wire.within(
                matrix_path, parse_link_matrix, wire.a_text(entry.get("topology"), matrix_path)
            )
    return None


def encode_gpu_links(matrix: LinkMatrix) -> dict[str, object]:
    """Return the `spec.topologies` object of a Device."""
    return {TYPE_GPU: [{"name": _BANDWIDTH, "topology": format_link_matrix(matrix)}]}


def _index(value: object, path: str) -> int:
    return wire.a_decimal(wire.a_text(value, path), path, least=0)


def _named(value: object, path: str) -> tuple[str, dict[str, object]]:
    return path, wire.an_object(value, path)
