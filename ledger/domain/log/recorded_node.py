"""What deciding reads of a node beside its inventory, as a ledger keeps it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.bounds import Count, Index
from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.derived_links import derive_links
from ledger.domain.log.codec import common_fields
from ledger.domain.nodes import NodeFacts, NodeTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAmounts:
    """What one GPU has beside core percent and memory, by resource name, sorted."""

    minor: Index
    amounts: tuple[tuple[str, Count], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGroups:
    """The groups of so many GPUs that a node can hand out together."""

    count: Count
    groups: tuple[GpuPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode(NodeTerms):
    """
    The facts of a node that its inventory does not have.

    Rule: docs/adr/0011. Every field is that of `NodeFacts`; tables are arrays in the order of their
    keys. `cpu_milli` and `memory_bytes` tell no limit (None) from none of it.
    """

    newest_version: ClassVar[int] = 1
    version: Annotated[int, Meta(ge=1, le=1)]
    dialects: tuple[Dialect, ...] | None = None
    card_amounts: tuple[CardAmounts, ...] = ()
    partitions: tuple[PartitionGroups, ...] | None = None
    extended: tuple[tuple[str, Count], ...] = ()


def recorded_node(node: NodeFacts) -> RecordedNode:
    """Return what a ledger keeps of a node beside its inventory."""
    tables = node.partitions
    return RecordedNode(
        version=RecordedNode.newest_version,
        dialects=None if node.dialects is None else tuple(sorted(node.dialects)),
        card_amounts=tuple(
            CardAmounts(minor=minor, amounts=tuple(sorted(amounts.items())))
            for minor, amounts in sorted(node.card_amounts.items())
        ),
        partitions=None
        if tables is None
        else tuple(PartitionGroups(count=n, groups=groups) for n, groups in sorted(tables.items())),
        extended=tuple(sorted(node.extended.items())),
        **common_fields(node, NodeTerms),
    )


def node_from(
    recorded: RecordedNode, inventory: NodeFacts, devices: tuple[DeviceRecord, ...]
) -> NodeFacts:
    """Return the node again, with what its inventory says and these devices."""
    tables = recorded.partitions
    partitions = None if tables is None else {each.count: each.groups for each in tables}
    return dataclasses.replace(
        inventory,
        devices=devices,
        dialects=None if recorded.dialects is None else frozenset(recorded.dialects),
        card_amounts={each.minor: dict(each.amounts) for each in recorded.card_amounts},
        partitions=partitions,
        derived_links=None if recorded.links else derive_links(devices, partitions),
        extended=dict(recorded.extended),
        **common_fields(recorded, NodeTerms),
    )
