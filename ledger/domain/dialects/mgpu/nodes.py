"""What Node labels and quantities say of mGPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord
from ledger.domain.dialects.mgpu.annotations import (
    MgpuNodeKind,
    read_mgpu_node_kind,
    read_node_compute_policy,
)
from ledger.domain.dialects.mgpu.words import (
    LABEL_MGPU_COMPUTE_POLICY,
    LABEL_MGPU_NODE,
    MGPU_CORE,
    MGPU_MEMORY,
)
from ledger.domain.dialects.protocol import Adverts
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import ZERO, Quantity
from ledger.domain.resources import TYPE_GPU
from ledger.domain.vocabulary import Vocabulary

_MIB: Final = 1 << 20


def adverts(units: Callable[[str], int], _vocabulary: Vocabulary) -> Adverts | None:
    """Return the cards that a Node's quantities mean; memory counts MiB of all of them."""
    count = units(MGPU_CORE) // WHOLE_PERCENT
    memory_bytes = units(MGPU_MEMORY) // max(1, count) * _MIB
    return Adverts(name=MGPU_CORE, count=count, memory_bytes=memory_bytes)


def on_node(node: NodeFacts) -> NodeFacts:
    """Return a Node with its compute policy, and whether its labels close it to mGPU Pods."""
    policy = read_node_compute_policy(node.labels)
    return replace(
        node,
        mgpu_policy="" if policy is None else str(policy),
        mgpu_invalid=policy is None or not _may_serve(node.labels),
    )


def node_warnings(
    labels: Mapping[str, str],
    quantities: Mapping[str, Quantity],
    devices: Sequence[DeviceRecord] | None,
) -> Iterator[str]:
    """Say why a Node that offers mGPU gets no mGPU Pod, and where its objects disagree."""
    if quantities.get(MGPU_CORE) and not _may_serve(labels):
        shown = labels[LABEL_MGPU_NODE]
        yield f"serves no mGPU Pod, because its label {LABEL_MGPU_NODE} is {shown!r}, not 'mgpu'"
    if read_node_compute_policy(labels) is None:
        shown = labels[LABEL_MGPU_COMPUTE_POLICY]
        yield f"serves no mGPU Pod, because {LABEL_MGPU_COMPUTE_POLICY} is no policy: {shown!r}"
    yield from _drift(quantities, devices or ())


def _may_serve(labels: Mapping[str, str]) -> bool:
    """
    Tell whether the node's labels leave it open to mGPU Pods.

    Rule: GPU-sharing contract A.1: `nvidia` and unknown values close it. Without the label it is
    open, since cli.md lets what a node advertises (or a Device object) say what its cards serve.
    """
    return LABEL_MGPU_NODE not in labels or read_mgpu_node_kind(labels) is MgpuNodeKind.MGPU


def _drift(quantities: Mapping[str, Quantity], devices: Sequence[DeviceRecord]) -> Iterator[str]:
    """
    Say where mGPU's quantities and the Device object describe other cards; the Device counts.

    Rule: GPU-sharing contract A.1, ours. Per card floor(memory / cards), in MiB.
    """
    cards = quantities.get(MGPU_CORE, ZERO).ceil() // WHOLE_PERCENT
    found = [record.memory_bytes // _MIB for record in devices if record.device_type == TYPE_GPU]
    if not cards or not devices:
        return
    each = quantities.get(MGPU_MEMORY, ZERO).ceil() // cards
    if found != [each] * cards:
        listed = ", ".join(map(str, found)) or "none"
        yield (
            f"mGPU's quantities mean {cards} cards of {each} MiB, the Device object lists cards of "
            f"{listed} MiB; the Device object counts"
        )
