"""
Machines behind Node objects: which Nodes are one machine, and which claims can't both be true.

Node objects come and go over a machine. What is held through one of them is held of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from ledger.domain.devices import DeviceRecord, DeviceShare, device_in
from ledger.domain.nodes import NodeFacts

MACHINE_ID_CLONED: Final = "MachineIdCloned"
MACHINE_REGISTERED_TWICE: Final = "MachineRegisteredTwice"
DEVICE_ID_CLONED: Final = "DeviceIdCloned"
MACHINE_IDS_TAKEN: Final = "MachineIdsTaken"

Machine: TypeAlias = tuple[str, str]
"""System UUID and machine id; of a machine that does not tell both, empty text and the Node UID."""


class Registered(Protocol):
    """A Node object, as facts or as the fold knows it. Those that are lost claim nothing."""

    @property
    def uid(self) -> str:
        """Return the UID of the Node object."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def system_uuid(self) -> str:
        """Return what the firmware calls the machine."""

    @property
    def machine_id(self) -> str:
        """Return what the operating system calls it."""

    @property
    def lost(self) -> bool:
        """Tell whether it was deleted or is out of service."""

    @property
    def devices(self) -> tuple[DeviceRecord, ...]:
        """Return what it lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """
    What two live Nodes claim and can't both have.

    Attributes:
        kind: a name that drift is found by.
        node_uid, node_name: the later claimant.
        device: of `DeviceIdCloned`, the later claimant's record of it.
    """

    kind: str
    node_uid: str
    node_name: str
    detail: str
    device: DeviceRecord | None = None

    def __str__(self) -> str:
        return f"{self.node_name}: {self.kind}: {self.detail}"


def machine_of(node: Registered) -> Machine:
    """
    Return the machine that a Node is: what it tells of itself if it tells both, else its own.

    Rule: design section 4, "One account per physical device": an empty one equals nothing.
    """
    told = node.system_uuid and node.machine_id
    return (node.system_uuid, node.machine_id) if told else ("", node.uid)


def in_order_of_registration(nodes: Sequence[NodeFacts]) -> list[int]:
    """Return the nodes' numbers in order of registration: by time of creation, then as given."""
    return sorted(range(len(nodes)), key=lambda number: nodes[number].created)


def granting_nodes(nodes: Sequence[NodeFacts]) -> list[int]:
    """
    Return for every node the one that its machine's grants and holdings are counted on.

    Rule: design section 4, "One account per physical device". Of a machine's live Nodes the one
    that registered last; of a machine whose Nodes are all lost the last one, which grants nothing.
    """
    chosen: dict[Machine, int] = {}
    for number in in_order_of_registration(nodes):
        machine = machine_of(nodes[number])
        before = chosen.get(machine)
        if before is None or not nodes[number].lost or nodes[before].lost:
            chosen[machine] = number
    return [chosen[machine_of(node)] for node in nodes]


def same_device(share: DeviceShare, devices: Iterable[DeviceRecord]) -> DeviceRecord | None:
    """Return the device of a share among those another Node of its machine lists."""
    return device_in(devices, share.device_type, minor=share.minor, device_id=share.device_id)


def is_witness(node: Registered, lost: Registered) -> bool:
    """
    Tell whether a Node's agent may say what runs of a lost Node's Pods.

    Rule: docs/adr/0010. A kubelet writes any ids into its own Node, and has its own name alone.
    """
    if node.uid == lost.uid:
        return True
    return node.name == lost.name and machine_of(node) == machine_of(lost)


def ids_taken(nodes: Iterable[Registered], lost: Iterable[Registered]) -> Iterator[Contradiction]:
    """Yield the live Nodes that tell the ids of a lost Node's machine and are no witness of it."""
    by_machine = {machine_of(one): one for one in lost if one.lost}
    for node in nodes:
        before = None if node.lost else by_machine.get(machine_of(node))
        if before is not None and not is_witness(node, before):
            yield Contradiction(
                kind=MACHINE_IDS_TAKEN,
                node_uid=node.uid,
                node_name=node.name,
                detail=f"it tells the ids of the machine of {before.name}, which is lost, and its"
                f" agent's word ends nothing there: system_uuid={node.system_uuid},"
                f" machine_id={node.machine_id}",
            )


def contradictions(nodes: Sequence[Registered]) -> list[Contradiction]:
    """
    Return what live Nodes claim and can't both have, of the first claims first.

    Rule: design section 4, "One account per physical device". A lost Node claims nothing. `nodes`
    are in the order in which they registered.
    """
    live = [node for node in nodes if not node.lost]
    return [*_registered_twice(live), *_cloned_machines(live), *_cloned_devices(live)]


def cloned_ids(nodes: Iterable[Registered]) -> dict[tuple[str, str], frozenset[Machine]]:
    """Return the (type, id) of devices that live Nodes of several machines list, with those."""
    found: dict[tuple[str, str], set[Machine]] = {}
    for node in nodes:
        for device in () if node.lost else node.devices:
            if device.unique_id and device.device_id:
                key = (device.device_type, device.device_id)
                found.setdefault(key, set()).add(machine_of(node))
    return {key: frozenset(machines) for key, machines in found.items() if len(machines) > 1}


def _registered_twice(nodes: Iterable[Registered]) -> Iterator[Contradiction]:
    first: dict[Machine, Registered] = {}
    for node in nodes:
        before = first.setdefault(machine_of(node), node)
        if before is not node:
            yield Contradiction(
                kind=MACHINE_REGISTERED_TWICE,
                node_uid=node.uid,
                node_name=node.name,
                detail=f"the machine is registered already, as {before.name}:"
                f" system_uuid={node.system_uuid}, machine_id={node.machine_id}",
            )


def _cloned_machines(nodes: Iterable[Registered]) -> Iterator[Contradiction]:
    first: dict[str, Registered] = {}
    named: set[Machine] = set()
    for node in nodes:
        if not node.machine_id:
            continue
        before, machine = first.setdefault(node.machine_id, node), machine_of(node)
        if machine_of(before) == machine or machine in named:
            continue
        named.add(machine)
        yield Contradiction(
            kind=MACHINE_ID_CLONED,
            node_uid=node.uid,
            node_name=node.name,
            detail=f"another machine has the machine id of {before.name}:"
            f" machine_id={node.machine_id}, system_uuid={node.system_uuid or 'none'},"
            f" first_system_uuid={before.system_uuid or 'none'}",
        )


def _cloned_devices(nodes: Sequence[Registered]) -> Iterator[Contradiction]:
    cloned = cloned_ids(nodes)
    first: dict[tuple[str, str], Registered] = {}
    named: set[tuple[str, str, Machine]] = set()
    for node in nodes if cloned else ():
        machine = machine_of(node)
        for device in node.devices:
            key = (device.device_type, device.device_id)
            if key not in cloned:
                continue
            before = first.setdefault(key, node)
            if machine_of(before) == machine or (*key, machine) in named:
                continue
            named.add((*key, machine))
            yield Contradiction(
                kind=DEVICE_ID_CLONED,
                node_uid=node.uid,
                node_name=node.name,
                detail=f"{device.device_type} {device.minor} has the id of a device of"
                f" {before.name}, both are closed to new grants: device_id={device.device_id}",
                device=device,
            )
