"""What Pods hold: taken from the arrays when they get it, given back exactly when they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from ledger.domain.annotations.cpu import CpuExclusivePolicy
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.kube.shared_templates import Amounts
from ledger.domain.log.cpu_holders import holds_alone
from ledger.domain.log.events import PodObserved
from scheduler.decide.cpusets.pinned import CpuHolding
from scheduler.decide.dialects.registry import counts_containers
from scheduler.decide.nodes.accounts import ListedCard, same_device
from scheduler.decide.nodes.adopted_cpus import (
    exclusive_policy_of,
    misplaced,
    numa_parts_of,
    over_taken,
)
from scheduler.decide.nodes.card_amounts import adopted_amounts, reserved_amounts
from scheduler.decide.nodes.fleet import Fleet
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.outcome import NumaPart, Placement


class _Held(NamedTuple):
    """What one Pod holds. `node` is a place in the fleet."""

    path: str
    node: int
    cpu_milli: int
    memory_bytes: int
    shares: tuple[DeviceShare, ...]
    cpuset: CpuSet
    exclusive_policy: str = CpuExclusivePolicy.NONE
    alone: bool = False
    numa_parts: tuple[NumaPart, ...] = ()
    unknown_types: tuple[str, ...] = ()
    card_amounts: Mapping[int, Amounts] = {}
    counts_containers: bool = False
    closes: Sequence[ListedCard] = ()


class Holdings:
    """
    Every Pod's holdings by UID. Only the node that a Pod is on changes with it.

    Args:
        exclusive_policy: that of LSE and LSR Pods that name none.

    Attributes:
        gpu_core_percent: core percent of GPUs that are held, all Pods together.
    """

    def __init__(
        self,
        fleet: Fleet,
        pins: CpuPins,
        *,
        exclusive_policy: str = CpuExclusivePolicy.NONE,
    ) -> None:
        self._fleet = fleet
        self._exclusive_policy = exclusive_policy
        self._pins = pins
        self._held: dict[str, _Held] = {}
        self.gpu_core_percent = 0

    def reserve(self, placement: Placement, node: int) -> None:
        """Take what was placed on the node at this position."""
        request = placement.request
        held = _Held(
            f"{request.namespace}/{request.name}",
            node,
            request.cpu_milli,
            request.memory_bytes,
            placement.shares,
            placement.cpuset,
            CpuExclusivePolicy.NONE if request.cpuset is None else request.cpuset.exclusive_policy,
            request.snapshot.qos == QosClass.LSE,
            placement.numa_parts,
            card_amounts=reserved_amounts(placement),
            counts_containers=counts_containers(request.dialect),
        )
        self._enter(request.uid, held)

    def release(self, pod_uid: str) -> None:
        """Give back all that the Pod holds."""
        held = self._held.pop(pod_uid, None)
        assert held is not None, f"released twice or never reserved: pod_uid={pod_uid}"
        self._count(held, -1)

    def adopt(self, pod: PodObserved, node: int) -> list[str]:
        """
        Take what a running Pod holds, whether or not it fits; return what contradicts itself.

        Rule: cli.md, Running Pods. Over-full cards close; a card that the inventory lacks is
        unknown and closes the node for its type. CPUs and parts of NUMA nodes count as what the
        Pod reserved would, and what the node lacks or keeps back is named. What is held through
        one Node of a machine is held on the one that grants; what another machine lists is closed
        there.
        """
        devices = self._fleet.devices
        closes = [card for share in pod.shares for card in self._fleet.ids.elsewhere(node, share)]
        node, pod, amounts = self._on_account(node, pod)
        known: list[DeviceShare] = []
        strange: list[DeviceShare] = []
        for share in pod.shares:
            arrays = devices.get(share.device_type)
            exists = arrays is not None and arrays.column(node, share.minor) is not None
            (known if exists else strange).append(share)
        path = f"{pod.namespace}/{pod.pod_name}"
        facts = self._fleet.nodes[node]
        held = _Held(
            path,
            node,
            pod.cpu_milli,
            pod.memory_bytes,
            tuple(known),
            pod.cpuset,
            exclusive_policy_of(pod, self._exclusive_policy),
            holds_alone(pod),
            numa_parts_of(pod),
            unknown_types=(*pod.unknown_types, *(share.device_type for share in strange)),
            card_amounts=amounts,
            counts_containers=counts_containers(pod.dialect),
            closes=closes,
        )
        cpus_before = self._pins.over_held(node)
        taken_before = over_taken(facts, self._pins.parts(node))
        self._enter(pod.pod_uid, held)
        name = facts.name
        conflicts = [
            f"{name}/{share.device_type} {share.minor}: held by {path}, not in the inventory"
            for share in strange
        ]
        conflicts += [
            f"{name}/{share.device_type} {share.minor}: over-held by "
            + ", ".join(self._holders(node, share.key))
            for share in known
            if self._is_over_full(node, share)
        ]
        cpus = [str(cpu) for cpu in self._pins.over_held(node) if cpu not in cpus_before]
        if cpus:
            conflicts.append(f"{name}: CPUs {','.join(cpus)} held by {path} and others")
        conflicts += misplaced(facts, pod)
        taken = over_taken(facts, self._pins.parts(node))
        conflicts += [text for numa, text in taken.items() if numa not in taken_before]
        return conflicts

    def _on_account(
        self, node: int, pod: PodObserved
    ) -> tuple[int, PodObserved, Mapping[int, Amounts]]:
        """Return where the Pod's holding is counted, and what it is in that Node's minors."""
        account = self._fleet.accounts[node]
        there = self._fleet.nodes[account]
        amounts = adopted_amounts(pod) if there.card_amounts else {}
        if account == node:
            return node, pod, amounts
        listed = there.devices
        found = [(share, same_device(share, listed)) for share in pod.shares]
        shares = [
            structs.replace(share, minor=card.minor) for share, card in found if card is not None
        ]
        lost = {share.device_type for share, card in found if card is None}
        minors = {s.minor: card.minor for s, card in found if card and s.device_type == GPU}
        held = structs.replace(
            pod, shares=tuple(shares), unknown_types=tuple(sorted({*pod.unknown_types, *lost}))
        )
        return account, held, {minors[m]: each for m, each in amounts.items() if m in minors}

    def _enter(self, pod_uid: str, held: _Held) -> None:
        assert pod_uid not in self._held, f"holds already: pod_uid={pod_uid}"
        self._held[pod_uid] = held
        self._count(held, 1)

    def _count(self, held: _Held, sign: int) -> None:
        fleet, node = self._fleet, held.node
        cpu_milli = fleet.nodes[node].cpu_cost_milli(held.cpu_milli, len(held.cpuset))
        fleet.add(
            node, cpu_milli=sign * cpu_milli, memory_bytes=sign * held.memory_bytes, pods=sign
        )
        for share in held.shares:
            devices = fleet.devices[share.device_type]
            column = devices.column(node, share.minor)
            assert column is not None, share
            instances = share.instances if held.counts_containers else 0
            devices.add(node, column, share, sign, instances=instances)
            if share.device_type == GPU:
                self.gpu_core_percent += sign * share.core_percent
                if held.card_amounts:
                    amounts = held.card_amounts.get(share.minor, ())
                    devices.add_amounts(node, column, amounts, sign)
        for device_type in held.unknown_types:
            if device_type in fleet.devices:
                fleet.devices[device_type].add_unknown(node, sign)
        if held.cpuset:
            holding = CpuHolding(
                cpus=held.cpuset.mask, exclusive_policy=held.exclusive_policy, alone=held.alone
            )
            self._pins.count(node, holding, sign)
        if held.numa_parts:
            self._pins.count_parts(node, held.numa_parts, sign)
        fleet.log.append(node, gave_back=sign < 0)
        for place, device in held.closes:
            fleet.bar(place, device, sign)
            fleet.log.append(place, gave_back=sign < 0)

    def _is_over_full(self, node: int, share: DeviceShare) -> bool:
        devices = self._fleet.devices[share.device_type]
        column = devices.column(node, share.minor)
        return column is not None and devices.is_over_held(node, column)

    def _holders(self, node: int, key: tuple[str, int]) -> Sequence[str]:
        return [
            held.path
            for held in self._held.values()
            if held.node == node and any(share.key == key for share in held.shares)
        ]
