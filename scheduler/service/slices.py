"""Devices that drivers tell of in slices, node by node, and the accounts that they are."""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from collections.abc import (
    Set as AbstractSet,
)
from contextlib import contextmanager
from typing import Final

from certs.ports import Object
from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.dra import objects
from ledger.domain.dialects.dra.accounts import Listed, NodeAccounts, UntoldDevices, accounts_of
from ledger.domain.dialects.dra.alike import likeness
from ledger.domain.dialects.dra.asking import Giver
from ledger.domain.dialects.dra.cpus import CPU_DRIVER
from ledger.domain.dialects.dra.drivers import LookedAt
from ledger.domain.dialects.dra.shares import UNLISTED, Untold, shares_of
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_in, version_number
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from scheduler.gate.claims import Allocated
from scheduler.gate.decide import Accounted, Unaccounted
from scheduler.gate.exchange import Alike, Device
from scheduler.gate.modes import Mode, closed_to_pods, mode_of
from scheduler.gate.selectors import class_selectors
from scheduler.service.wakeups import Wakeups

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
NOT_RECORDED: Final = "NodeNotRecorded"

_AlikeTo = Mapping[Device, tuple[Alike, ...]]

_log: Final = logging.getLogger("tenure.scheduler.slices")


class Readings:
    """What the API server is read for beside a watch, which may show meanwhile what went."""

    def __init__(self) -> None:
        self._open: list[set[str]] = []

    def gone(self, uid: str) -> None:
        """Take note that an object went: what is being read may have it yet."""
        for went in self._open:
            went.add(uid)

    @contextmanager
    def one(self) -> Iterator[AbstractSet[str]]:
        """Yield the UIDs of what goes until the block ends."""
        went = set[str]()
        self._open.append(went)
        try:
            yield went
        finally:
            self._open = [each for each in self._open if each is not went]


class SliceBook:
    """
    A sink of ResourceSlices: of each pool its newest generation, once all of it is there.

    Args:
        drivers: whose slices are looked at.

    Attributes:
        faults: UID of a slice -> why it can't be read.
        readings: lists that are being read.
    """

    def __init__(
        self,
        drivers: Container[str],
        wakeups: Wakeups,
        *,
        untold: UntoldDevices = "refuse",
    ) -> None:
        self._drivers = drivers
        self._listed = Listed(drivers=drivers, untold=untold)
        self._givers: dict[str, Giver] = {}
        self._wakeups = wakeups
        self._slices: dict[str, objects.ResourceSlice] = {}
        self._parts: dict[
            tuple[str, str], dict[str, objects.ResourceSlice]
        ] = {}  # of a pool, by UID
        self._pools: dict[tuple[str, str], objects.Pool] = {}
        self._by_node: dict[str, dict[tuple[str, str], objects.Pool]] = {}
        self._accounts: dict[str, tuple[tuple[DeviceRecord, ...], NodeAccounts]] = {}
        self._alike: dict[tuple[str, bool], tuple[NodeAccounts, _AlikeTo]] = {}
        self._versions: dict[str, int] = {}
        self.faults: dict[str, str] = {}
        self.readings = Readings()

    def put(self, uid: str, item: Object) -> None:
        """Take a slice that came or changed, if it is newer; one that can't be read is none."""
        version = _version(item)
        if version < self._versions.get(uid, 0):
            return
        try:
            now = objects.read_slice(item)
        except InputError as error:
            self._forget(uid)
            self._versions[uid] = version
            self.faults[uid] = str(error)
            _log.warning("unreadable slice", extra={"slice": uid, "reason": str(error)})
            return
        self._versions[uid] = version
        self.faults.pop(uid, None)
        before = self._slices.get(uid)
        if before is not None and before.key != now.key:
            self._forget(uid)
            self._versions[uid] = version
        if now.driver not in self._drivers:
            return
        self._slices[uid] = now
        self._parts.setdefault(now.key, {})[uid] = now
        self._settle(now.key)

    def drop(self, uid: str) -> None:
        """Forget a slice that is gone."""
        self.readings.gone(uid)
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        self.faults.pop(uid, None)
        self._versions.pop(uid, None)
        gone = self._slices.pop(uid, None)
        if gone is not None:
            key = gone.key
            del self._parts[key][uid]
            self._settle(key)

    def take_list(self, listed: Object, went: Container[str]) -> None:
        """Take a list of all slices, beside a watch that may be late, but for what went since."""
        at = _version(listed)
        items = {item["metadata"]["uid"]: item for item in listed.get("items", ())}
        for uid in [uid for uid, version in self._versions.items() if version <= at]:
            if uid not in items:
                self._forget(uid)
        for uid, item in items.items():
            if uid not in went:
                self.put(uid, item)

    def device(self, key: Device) -> objects.SlicedDevice | None:
        """Return what is said of a device, None of one that is in no whole pool."""
        pool = self._pools.get(key[:2])
        there = () if pool is None else pool.devices
        return next((each for each in there if each.name == key[2]), None)

    def node_of(self, device: Device) -> str:
        """Return the name of a device's node, empty of one that is in no whole pool."""
        found = self.device(device)
        return "" if found is None else found.node

    def is_whole(self, driver: str, pool: str) -> bool:
        """Tell whether all of a pool's newest generation is there."""
        parts = self._parts.get((driver, pool), {}).values()
        newest = max((each.pool.generation for each in parts), default=-1)
        known = self._pools.get((driver, pool))
        return known is not None and known.generation == newest

    def _settle(self, key: tuple[str, str]) -> None:
        parts = self._parts[key]
        if not parts:
            del self._parts[key]
        before = self._pools.pop(key, None)
        for now in objects.pools_of(parts.values(), () if before is None else (before,)):
            self._pools[key] = now
        now_there = self._pools.get(key)
        if now_there == before:
            return
        self._givers.clear()
        nodes = {
            device.node
            for pool in (before, now_there)
            if pool is not None
            for device in pool.devices
            if device.node
        }
        for node in nodes:
            self._accounts.pop(node, None)
            for anywhere in (False, True):
                self._alike.pop((node, anywhere), None)
            pools = self._by_node.setdefault(node, {})
            pools.pop(key, None)
            if now_there is not None and any(each.node == node for each in now_there.devices):
                pools[key] = now_there
            if not pools:
                del self._by_node[node]
        self._wakeups.pools_changed.publish(nodes)

    def has_pool(self, node: str, drivers: Container[str]) -> bool:
        """Tell whether one of these drivers has a pool with a device of a node."""
        return any(driver in drivers for driver, _ in self._by_node.get(node, ()))

    def nodes(self) -> list[str]:
        """Return the names of the nodes that have a pool, in order."""
        return sorted(self._by_node)

    def giver(self, driver: str) -> Giver:
        """Return what a driver's cards are, for claims of ours: by the class of its name."""
        if driver not in self._givers:
            cards = [
                device
                for (name, _), pool in self._pools.items()
                if name == driver
                for device in pool.devices
                if device.is_shared
            ]
            self._givers[driver] = Giver(
                driver=driver,
                device_class=driver,
                sizes=tuple(sorted({card.capacity.get(objects.MEMORY, 0) for card in cards} - {0})),
                has_cores=any(objects.CORES in card.capacity for card in cards),
            )
        return self._givers[driver]

    def accounts(self, node: str, inventory: Collection[DeviceRecord]) -> NodeAccounts:
        """Return the accounts of a node's pools, beside what is known of it already."""
        pools, known = self._by_node.get(node), tuple(inventory)
        if pools is None:
            return accounts_of(node, (), known, self._listed)
        before = self._accounts.get(node)
        if before is not None and before[0] == known:
            return before[1]
        found = accounts_of(node, pools.values(), known, self._listed)
        self._accounts[node] = known, found
        return found

    def alike(self, node: str, accounts: NodeAccounts, *, anywhere: bool) -> _AlikeTo:
        """Return the devices that are like each of a node's, with the cards that they are."""
        before = self._alike.get((node, anywhere))
        if before is None or before[0] is not accounts:
            pools = self._by_node.get(node, {}).values()
            before = accounts, _alike(node, pools, accounts, anywhere=anywhere)
            self._alike[node, anywhere] = before
        return before[1]

    def records(
        self, node: str, own: Collection[DeviceRecord], recorded: Collection[DeviceRecord]
    ) -> tuple[DeviceRecord, ...]:
        """
        Return the devices of a node with those that slices alone tell of, by type and minor.

        Args:
            own: as its own objects tell them.
            recorded: as the ledger was told of them last: what stays keeps its minor.
        """
        if node not in self._by_node:
            return tuple(own)
        keys = {each.key for each in own}
        kept = [each for each in recorded if each.by_claims and each.key not in keys]
        found = self.accounts(node, (*own, *kept)).records
        return tuple(sorted((*own, *found), key=lambda each: each.key))


def _alike(
    node: str, pools: Iterable[objects.Pool], accounts: NodeAccounts, *, anywhere: bool
) -> _AlikeTo:
    """Return by each device that is one card, or is given in shares of one, those alike."""
    found: dict[Device, tuple[Alike, ...]] = {}
    for pool in pools:
        groups: dict[Hashable, list[Alike]] = {}
        for device in sorted(pool.devices, key=lambda each: each.name):
            of = accounts.devices.get((*pool.key, device.name))
            same = likeness(pool.driver, device, anywhere=anywhere)
            if device.node != node or of is None or same is None or len(of.parts) != 1:
                continue
            (part,) = of.parts
            if part.whole or of.is_shared:
                one = Alike(name=device.name, minor=part.card.minor)
                groups.setdefault(same, []).append(one)
        for group in groups.values():
            found.update({(*pool.key, one.name): tuple(group) for one in group})
    return found


class NodeModes:
    """Who gives the devices of nodes: we do to Pods, or listed drivers do by claims."""

    def __init__(self, drivers: LookedAt, slices: SliceBook) -> None:
        self.drivers = drivers
        self.slices = slices

    def mode(self, facts: NodeFacts | None) -> Mode:
        """Return the mode of a node; one that is not known is ours."""
        if facts is None:
            return Mode.EXTENDER
        has_pool = self.slices.has_pool(facts.name, self.drivers.of_cards)
        return mode_of(facts.taints, has_pool=has_pool)

    def why_closed(self, facts: NodeFacts) -> str:
        """Return why the mode of a node closes it to Pods, empty where it does not."""
        return closed_to_pods(self.mode(facts))


class LiveAccounts:
    """The accounts of the cluster's claims; `bars` tells which devices take no newcomers."""

    def __init__(
        self,
        slices: SliceBook,
        node: Callable[[str], NodeState | None],
        bars: Callable[[Device], bool] = lambda _: False,
    ) -> None:
        self._slices = slices
        self._node = node
        self._bars = bars

    def node(self, name: str) -> NodeState | None:
        """Return what the ledger has of the Node of this name."""
        return self._node(name)

    def account(self, allocated: Allocated) -> Accounted | Unaccounted:
        """Return which cards these results are of; CPUs are none."""
        state = self._node(allocated.node_name)
        if state is None:
            fact = f"the ledger has no node {allocated.node_name}"
            return Unaccounted(reason=NOT_RECORDED, message=fact)
        of_cards = [one for one in allocated.results if one.driver != CPU_DRIVER]
        for one in of_cards:
            if not self._slices.is_whole(one.driver, one.pool):
                fact = f"not all of pool {one.driver} {one.pool} is told in its newest generation"
                return Unaccounted(reason=UNLISTED, message=fact)
        accounts = self._slices.accounts(allocated.node_name, state.devices)
        try:
            found = shares_of(of_cards, accounts)
        except InputError as error:
            return Unaccounted(reason="Unreadable", message=str(error))
        if isinstance(found, Untold):
            return Unaccounted(reason=found.reason, message=str(found))
        return Accounted(shares=found.shares, models=found.models)

    def alike(self, node: str, device: Device, *, anywhere: bool = False) -> tuple[Alike, ...]:
        """Return the devices on this node that are like one of its, itself included, by name."""
        state = self._node(node)
        if state is None:
            return ()
        accounts = self._slices.accounts(node, state.devices)
        found = self._slices.alike(node, accounts, anywhere=anywhere).get(device, ())
        own = device[2]
        return tuple(
            one for one in found if one.name == own or not self._bars((*device[:2], one.name))
        )


class ClassBook:
    """A sink of DeviceClasses: the selectors of those that can be read, by name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # UID -> name
        self.selectors: dict[str, tuple[str, ...]] = {}

    def put(self, uid: str, item: Object) -> None:
        """Take a class that came or changed; for one that can't be read nothing is exchanged."""
        self.drop(uid)
        name = item["metadata"]["name"]
        try:
            self.selectors[name] = class_selectors(item)
        except InputError as error:
            _log.warning("unreadable class", extra={"device_class": name, "reason": str(error)})
            self.selectors.pop(name, None)
        self._names[uid] = name

    def drop(self, uid: str) -> None:
        """Forget a class that is gone."""
        self.selectors.pop(self._names.pop(uid, ""), None)


def _version(item: Object) -> int:
    """Return an object's or a list's resourceVersion; 0 of one that is no number."""
    return version_number(text_in(item, "metadata", "resourceVersion")) or 0
