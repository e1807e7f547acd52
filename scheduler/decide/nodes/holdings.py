"""What Pods hold: taken from the arrays when they get it, given back exactly when they go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec import structs

from ledger.domain.annotations.cpu import CpuExclusivePolicy
from ledger.domain.annotations.qos import QosClass
from ledger.domain.annotations.tenure import cards_in, read_shown, read_visible
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceShare
from ledger.domain.dialects.registry import gives_by_number
from ledger.domain.kube.shared_templates import Amounts
from ledger.domain.log.cpu_holders import holds_alone
from ledger.domain.log.events import BY_CLAIM, PodObserved
from ledger.domain.log.machines import same_device
from ledger.domain.request import extended
from ledger.domain.request.requests import group_name
from scheduler.decide.cpusets.pinned import CpuHolding
from scheduler.decide.dialects.registry import counts_containers
from scheduler.decide.nodes import adopted_cpus
from scheduler.decide.nodes.accounts import DeviceId
from scheduler.decide.nodes.card_amounts import amounts_text, read_amounts, reserved_amounts
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import ABSENT, NodeArrays
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.outcome import NumaPart, Placement

_NO_AMOUNTS: Final[Mapping[int, Amounts]] = {}
_NOTHING: Final[Mapping[str, int]] = {}


class _Held(NamedTuple):
    """
    What one Pod holds, in the minors of the Node that it is held through.

    Attributes:
        number: in the order in which Pods got what they hold.
        home: UID of that Node; `through` is its row in the cluster, or of another Node of its
            machine once it has gone.
        amounts: what it has of cards beside core percent and memory, by minor of its GPUs.
        allocated: the annotation that says this of a running Pod, read where cards have such.
        counted: how many whole devices it has on cards that nobody can name, by type.
        extended: what it has of resources that nodes offer by their number alone, by name.
        by_claim: a claim has it: what of it the node does not list is not the node's to give.
        shown: ids of the cards that its containers are shown, its own among them.
    """

    number: int
    namespace: str
    name: str
    home: str
    through: int
    cpu_milli: int
    memory_bytes: int
    shares: tuple[DeviceShare, ...]
    cpuset: CpuSet
    exclusive_policy: str
    alone: bool
    numa_parts: tuple[NumaPart, ...]
    amounts: Mapping[int, Amounts]
    counts_containers: bool
    allocated: str | None = None
    unknown_types: tuple[str, ...] = ()
    counted: Mapping[str, int] = _NOTHING
    extended: Mapping[str, int] = _NOTHING
    by_claim: bool = False
    group: str = ""
    shown: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Return who it is, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def cpus(self) -> CpuHolding:
        """Return its CPUs as they are counted."""
        return CpuHolding(
            cpus=self.cpuset.mask, exclusive_policy=self.exclusive_policy, alone=self.alone
        )


class _Taken(NamedTuple):
    """
    Where and how a holding is counted now.

    Attributes:
        node: the row of the Node that grants what the machine has.
        cards: each share in the minors of that Node, with its column and what else it takes.
        unknown: types of the cards that nobody can name there.
        counted: likewise, those of which it is known how many they are, with their number.
        strange: shares that the Node has no card for.
        unlisted: ids that it holds and the Node does not list, as far as the share told one.
        viewed: columns of GPUs that it is shown and does not hold.
    """

    held: _Held
    node: int
    cpu_milli: int
    cards: Sequence[tuple[DeviceArrays, int, DeviceShare, Amounts]]
    unknown: Sequence[DeviceArrays]
    counted: Sequence[tuple[DeviceArrays, int]]
    strange: Sequence[DeviceShare]
    unlisted: Sequence[DeviceId]
    viewed: Sequence[int]


@dataclass(slots=True, eq=False)
class Holdings:
    """
    Every Pod's holdings by UID. Only the node that a Pod is on changes with it.

    Rule: design section 4, "One account per physical device": what is held through one Node of a
    machine is held on the one that grants, on the devices of the same ids.

    Attributes:
        exclusive_policy: that of LSE and LSR Pods that name none.
        by_count: whole cards that nobody can name close no node, where it is known how many. On
            nodes that give cards by number they never do.
        by_environment: what the environment of a running Pod shows it counts as shown.

    Attributes:
        gpu_core_percent: core percent of GPUs that are held, all Pods together.
    """

    arrays: NodeArrays
    pins: CpuPins
    exclusive_policy: str = CpuExclusivePolicy.NONE
    by_count: bool = False
    by_environment: bool = False
    _taken: dict[str, _Taken] = field(default_factory=dict)
    _on: dict[int, dict[str, None]] = field(default_factory=dict)
    _number: int = 0
    gpu_core_percent: int = 0

    def reserve(self, placement: Placement, node: int) -> None:
        """Take what was placed on the node at this position."""
        request = placement.request
        self._number += 1
        held = _Held(
            self._number,
            request.namespace,
            request.name,
            placement.node_uid,
            node,
            request.cpu_milli,
            request.memory_bytes,
            placement.shares,
            placement.cpuset,
            CpuExclusivePolicy.NONE if request.cpuset is None else request.cpuset.exclusive_policy,
            request.snapshot.qos == QosClass.LSE,
            placement.numa_parts,
            reserved_amounts(placement) or _NO_AMOUNTS,
            counts_containers(request.dialect),
            None,
            (GPU,) if placement.counted else (),
            {GPU: placement.counted} if placement.counted else _NOTHING,
            dict(request.extended) or _NOTHING,
            group=group_name(request),
            shown=placement.shown,
        )
        self._enter(request.uid, held)

    def release(self, pod_uid: str) -> None:
        """Give back all that the Pod holds."""
        taken = self._taken.pop(pod_uid, None)
        assert taken is not None, f"released twice or never reserved: pod_uid={pod_uid}"
        del self._on[taken.node][pod_uid]
        self._count(taken, -1)
        self._pin(taken, -1)
        self.arrays.log.append(taken.node, gave_back=True)

    def adopt(self, pod: PodObserved, node: int) -> list[str]:
        """
        Take what a running Pod holds, whether or not it fits; return what contradicts itself.

        Rule: cli.md, Running Pods. Over-full cards close; a card that the inventory lacks is
        unknown and closes the node for its type, unless a claim has it: that is no card of ours.
        CPUs and parts of NUMA nodes count as what the Pod reserved would, and what the node lacks
        or keeps back is named. What another machine lists is closed there.
        """
        account = self.arrays.accounts[node]
        facts = self.arrays.nodes[account]
        cpus_before = self.pins.over_held(account)
        taken_before = adopted_cpus.over_taken(facts, self.pins.parts(account))
        taken = self.take(pod, node)
        name, path = facts.name, taken.held.path
        conflicts = [
            f"{name}/{share.device_type} {share.minor}: held by {path}, not in the inventory"
            for share in taken.strange
        ]
        conflicts += [
            f"{name}/{share.device_type} {share.minor}: over-held by "
            + ", ".join(self._holders(account, share.key))
            for devices, column, share, _ in taken.cards
            if devices.is_over_held(account, column)
        ]
        cpus = [str(cpu) for cpu in self.pins.over_held(account) if cpu not in cpus_before]
        if cpus:
            conflicts.append(f"{name}: CPUs {','.join(cpus)} held by {path} and others")
        conflicts += adopted_cpus.misplaced(facts, pod)
        over = adopted_cpus.over_taken(facts, self.pins.parts(account))
        conflicts += [text for numa, text in over.items() if numa not in taken_before]
        return conflicts

    def take(self, pod: PodObserved, node: int) -> _Taken:
        """Take what a running Pod holds, as `adopt` does, and ask nothing of what contradicts."""
        self._number += 1
        held = _Held(
            self._number,
            pod.namespace,
            pod.pod_name,
            pod.node_uid or self.arrays.nodes[node].uid,
            node,
            pod.cpu_milli,
            pod.memory_bytes,
            pod.shares,
            pod.cpuset,
            adopted_cpus.exclusive_policy_of(pod, self.exclusive_policy),
            holds_alone(pod),
            adopted_cpus.numa_parts_of(pod),
            _NO_AMOUNTS,
            counts_containers(pod.dialect),
            amounts_text(pod.annotations),
            pod.unknown_types,
            pod.counted,
            extended.held(pod.snapshot) or _NOTHING,
            pod.source == BY_CLAIM,
            pod.group,
            self._shown(pod),
        )
        return self._enter(pod.pod_uid, held)

    def _shown(self, pod: PodObserved) -> tuple[str, ...]:
        """Return what it is shown; of a member of before `groups.shareVisible` others' cards."""
        shown = cards_in(read_shown(pod.annotations))
        if shown or not self.by_environment:
            return shown
        own = {share.device_id for share in pod.shares}
        return tuple(each for each in read_visible(pod.annotations) if each not in own)

    def seeing(self, node: int) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Return who is shown cards of a node's machine: namespace, name and the cards, by UID."""
        there = {uid: self._taken[uid].held for uid in self._on.get(self.arrays.accounts[node], ())}
        return {uid: (e.namespace, e.name, e.shown) for uid, e in there.items() if e.shown}

    def whole_gpus(self, node: int, group: str) -> frozenset[int]:
        """Return the minors of the GPUs that Pods of a group have whole, nobody beside them."""
        gpus, account = self.arrays.gpus, self.arrays.accounts[node]
        there = (self._taken[uid] for uid in self._on.get(account, ()))
        return frozenset(
            share.minor
            for taken in there
            for devices, column, share, _ in taken.cards
            if devices is gpus and taken.held.group == group and share.exclusive
            if gpus.tenants.item(account, column) == 1
        )

    def lift(self, rows: Iterable[int]) -> dict[str, _Held]:
        """Forget and return in order what is held on these nodes, whose rows are laid out anew."""
        lifted: dict[str, _Held] = {}
        for row in rows:
            for uid in self._on.pop(row, ()):
                taken = self._taken.pop(uid)
                lifted[uid] = taken.held
                self.gpu_core_percent -= _gpu_core_percent(taken)
                for key in taken.unlisted:
                    self.arrays.ids.hold(row, key, -1)
        return dict(sorted(lifted.items(), key=lambda each: each[1].number))

    def put_back(self, lifted: Mapping[str, _Held], rows: Sequence[int]) -> tuple[str, ...]:
        """
        Take again what was lifted; `rows` are the nodes whose rows were laid out anew.

        Returns:
            Who gives back what he held, for it was held through a Node that went, the last of its
            machine.
        """
        by_node: dict[int, list[_Held]] = {row: [] for row in rows}
        gone = []
        for uid, held in lifted.items():
            through = self._now_through(held, rows)
            if through is None:
                gone.append(uid)
                continue
            taken = self._count_in(uid, held._replace(through=through))
            by_node[taken.node].append(held)
        for node, there in by_node.items():
            cpus = [held.cpus for held in there if held.cpuset]
            self.pins.put(node, cpus, [part for held in there for part in held.numa_parts])
        self.arrays.bar((), {_id(share) for held in lifted.values() for share in held.shares})
        return tuple(gone)

    def _now_through(self, held: _Held, rows: Sequence[int]) -> int | None:
        """Return the row that a holding is held through: where its Node went, its account."""
        nodes, accounts = self.arrays.nodes, self.arrays.accounts
        if nodes[held.through] is not ABSENT:
            return held.through
        return next((accounts[row] for row in rows if nodes[row] is not ABSENT), None)

    def _enter(self, pod_uid: str, held: _Held) -> _Taken:
        taken = self._count_in(pod_uid, held)
        self._pin(taken, 1)
        self.arrays.log.append(taken.node, gave_back=False)
        return taken

    def _count_in(self, pod_uid: str, held: _Held) -> _Taken:
        assert pod_uid not in self._taken, f"holds already: pod_uid={pod_uid}"
        taken = self._resolve(held)
        self._taken[pod_uid] = taken
        self._on.setdefault(taken.node, {})[pod_uid] = None
        self._count(taken, 1)
        return taken

    def _resolve(self, held: _Held) -> _Taken:
        arrays = self.arrays
        node = arrays.accounts[held.through]
        facts = arrays.nodes[node]
        amounts = _amounts(held) if facts.card_amounts else _NO_AMOUNTS
        cards: list[tuple[DeviceArrays, int, DeviceShare, Amounts]] = []
        strange: list[DeviceShare] = []
        unlisted: list[DeviceId] = []
        unknown, is_elsewhere, is_lost = held.unknown_types, held.home != facts.uid, False
        for share in held.shares:
            there = share
            if is_elsewhere or held.by_claim:
                card = same_device(share, facts.devices)
                if card is None and held.by_claim:
                    continue
                if card is None:
                    is_lost = True
                    unknown = (*unknown, share.device_type)
                    unlisted.append(_id(share))
                    continue
                there = structs.replace(share, minor=card.minor)
            devices = arrays.devices.get(share.device_type)
            column = None if devices is None else devices.column(node, there.minor)
            if devices is None or column is None:
                strange.append(share)
                unlisted.append(_id(share))
                continue
            if devices.records[node][column].device_id != share.device_id:
                unlisted.append(_id(share))
            gives = amounts.get(share.minor, ()) if devices is arrays.gpus else ()
            cards.append((devices, column, there, gives))
        if is_elsewhere:
            unknown = tuple(dict.fromkeys(unknown))
        lost = (*unknown, *[share.device_type for share in strange])
        by_number = self.by_count or gives_by_number(facts)
        counted = held.counted if by_number and not (is_lost or strange) else _NOTHING
        return _Taken(
            held,
            node,
            facts.cpu_cost_milli(held.cpu_milli, len(held.cpuset)),
            tuple(cards),
            tuple(
                [arrays.devices[each] for each in lost if each in arrays.devices.keys() - counted]
            ),
            tuple(
                [(arrays.devices[each], n) for each, n in counted.items() if each in arrays.devices]
            ),
            tuple(strange),
            tuple([key for key in unlisted if key[1]]),
            self._viewed(held, node, cards) if held.shown else (),
        )

    def _viewed(
        self,
        held: _Held,
        node: int,
        cards: Iterable[tuple[DeviceArrays, int, DeviceShare, Amounts]],
    ) -> tuple[int, ...]:
        """Return the columns of the GPUs that who holds these cards is shown beside them."""
        gpus = self.arrays.gpus
        own = {column for devices, column, _, _ in cards if devices is gpus}
        there = enumerate(gpus.records[node])
        return tuple([at for at, each in there if each.device_id in held.shown and at not in own])

    def _count(self, taken: _Taken, sign: int) -> None:
        held, node, cpu_milli, cards, unknown, counted, _, unlisted, viewed = taken
        arrays = self.arrays
        arrays.add(
            node, cpu_milli=sign * cpu_milli, memory_bytes=sign * held.memory_bytes, pods=sign
        )
        if held.extended:
            arrays.extended.add(node, held.extended, sign)
        for devices, column, share, amounts in cards:
            instances = share.instances if held.counts_containers else 0
            devices.add(node, column, share, sign, instances=instances)
            if amounts:
                devices.add_amounts(node, column, amounts, sign)
        for devices in unknown:
            devices.add_unknown(node, sign)
        for devices, number in counted:
            devices.add_counted(node, sign * number)
        for column in viewed:  # whose group is not known is of none
            arrays.gpus.show(node, column, held.group or held.path, sign)
        self.gpu_core_percent += sign * _gpu_core_percent(taken)
        for key in unlisted:
            arrays.ids.hold(node, key, sign)
        if unlisted or arrays.ids.repeated:
            listed = {
                (each.device_type, each.records[node][column].device_id)
                for each, column, _, _ in cards
            }
            arrays.bar((), (listed & arrays.ids.repeated).union(unlisted))

    def _pin(self, taken: _Taken, sign: int) -> None:
        held = taken.held
        if held.cpuset:
            self.pins.count(taken.node, held.cpus, sign)
        if held.numa_parts:
            self.pins.count_parts(taken.node, held.numa_parts, sign)

    def _holders(self, node: int, key: tuple[str, int]) -> Sequence[str]:
        on = [self._taken[uid] for uid in self._on.get(node, ())]
        return [
            taken.held.path
            for taken in on
            if any(share.key == key for _, _, share, _ in taken.cards)
        ]


def _amounts(held: _Held) -> Mapping[int, Amounts]:
    return held.amounts if held.allocated is None else read_amounts(held.allocated)


def _gpu_core_percent(taken: _Taken) -> int:
    node, gpus = taken.node, [each for each in taken.counted if each[0].device_type == GPU]
    counted = sum([number for devices, number in gpus if not devices.made_up.item(node)])
    named = [share.core_percent for _, _, share, _ in taken.cards if share.device_type == GPU]
    return sum(named) + WHOLE_PERCENT * counted


def _id(share: DeviceShare) -> DeviceId:
    return share.device_type, share.device_id
