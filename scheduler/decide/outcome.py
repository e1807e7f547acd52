"""The answers of deciding: a placement, or why there is none, node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from msgspec import Struct

from ledger.domain.annotations.cpu import CpuSharedPool
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import RefusalReason
from ledger.domain.request.requests import PodRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """
    This node can't serve the request: a value, not an error.

    Attributes:
        reason: low-cardinality text without node names or numbers (kube-scheduler counts it).
        requested, available: the numbers behind it, in `unit`; -1 when there are none.
        preemptible: removing lower-priority Pods could help (FailedNodes), otherwise it could not
            (FailedAndUnresolvableNodes; Koordinator contract 13).
    """

    reason: str
    requested: int = -1
    available: int = -1
    unit: str = ""
    preemptible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """
    One device of a node with what is left of it, as the card choice sees it.

    `closed` for unhealthy, cordoned, lost, over-full or foreign-held devices. `instances`: how
    many containers are on the card of which it may hold so many only. `vfs_in_use`: bus ids of VFs
    that Pods hold.
    `amounts_free`, `amounts_cap`: what else there is of the card, by resource name.
    """

    record: DeviceRecord
    core_free: int
    memory_free: int
    tenants: int
    exclusive: bool
    instances: int
    closed: bool
    vfs_in_use: frozenset[str] = frozenset()
    amounts_free: tuple[tuple[str, int], ...] = ()
    amounts_cap: tuple[tuple[str, int], ...] = ()

    def emptied(self) -> CardView:
        """Return the card without holders; what closes it stays."""
        return replace(
            self,
            core_free=self.record.core_percent,
            memory_free=self.record.memory_bytes,
            tenants=0,
            exclusive=False,
            instances=0,
            vfs_in_use=frozenset(),
            amounts_free=self.amounts_cap,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaPart:
    """
    What one Pod takes of one NUMA node.

    Attributes:
        cpu_milli: raw, not amplified; of a Pod with a CPU set, 1000 a CPU.
        pinned: the CPUs are the Pod's own, and counted as such.
    """

    node: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    pinned: bool = False


class Rated(NamedTuple):
    """The rating of the node that was chosen, and the next best node with its own, if any."""

    score: int | None = None
    runner_up: str = ""
    runner_up_score: int | None = None


NOT_RATED: Final = Rated()


class Placement(Struct, frozen=True, kw_only=True):
    """
    Where one Pod goes and what it gets there.

    Attributes:
        node: index of the node in the engine's order.
        shares: ordered by (device_type, minor).
        devices: the inventory record of each share, same order.
        visible_minors: GPUs that the Pod's whole group has on this node; empty without a group.
        shown: ids of all cards that its containers are shown, where they see more than their own.
        search_cut: a bounded search stopped early; the answer fits but may not be the best.
        numa_parts: what the Pod takes of each NUMA node, where a NUMA policy chose them.
        shared_pools: the pools that a Pod without CPUs of its own is bound to.
        counted: GPUs that it gets by number: which of the node's they are is kubelet's choice.
        rated: what the node was rated, and the next best by the tests over arrays; `NOT_RATED`
            where it was drawn, or chosen with or for others of its group.
    """

    request: PodRequest
    node: int
    node_uid: str
    node_name: str
    shares: tuple[DeviceShare, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    cpuset: CpuSet = EMPTY
    visible_minors: tuple[int, ...] = ()
    shown: tuple[str, ...] = ()
    search_cut: bool = False
    numa_parts: tuple[NumaPart, ...] = ()
    shared_pools: tuple[CpuSharedPool, ...] = ()
    counted: int = 0
    rated: Rated = NOT_RATED


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReasons:
    """
    Why each node of the cluster refused, compressed: one code per node, few distinct texts.

    Attributes:
        texts: the distinct reason lists; an entry has several reasons when kube-scheduler's
            resource fit would name several (cpu and memory).
        codes: index into `texts` for every node, in the order the engine was given them; immutable.
        names: at the same places, what `why` calls the reasons (`reasons.Reason.name`).
    """

    texts: tuple[tuple[str, ...], ...]
    codes: Sequence[int]
    names: tuple[tuple[str, ...], ...] = ()

    def by_node(self, names: tuple[str, ...]) -> Mapping[str, list[str]]:
        """Return node name -> reasons, for every node."""
        return {name: list(self.texts[code]) for name, code in zip(names, self.codes, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """
    No node can take the Pod now.

    Attributes:
        message: `0/N nodes are available: 3 reason, 2 reason.` by count, then text; for a Pod
            refused by our rules the field errors.
        reasons: the same as values, same order.
        nodes: per node; None for a Pod refused by rules.
        never: what no node of the cluster has, whoever holds what; empty where one has all of it.
    """

    request: PodRequest
    message: str
    reasons: tuple[RefusalReason, ...] = ()
    nodes: NodeReasons | None = None
    never: str = ""


_RELEASE: Final = "release: what is short of that alone; once it is empty the node takes the Pod"


def what_release_means(remedies: Iterable[str]) -> str:
    """Return what has to be said once beside these where people read them; empty for nothing."""
    return _RELEASE if any(each.startswith("release ") for each in remedies) else ""
