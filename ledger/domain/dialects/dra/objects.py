"""
ResourceSlice and ResourceClaim of `resource.k8s.io/v1`, as values.

Rule: docs/contracts/dra.md, 1 to 3. What is read is read strictly: a field of another kind than the
API's is an error with its place.

Worked example, pools. Of a pool its highest generation counts, and only when all of its slices are
there; until then what was whole before stays.

    slices seen                                   the pool is
    generation 1, 1 of 2                          not known
    generation 1, 2 of 2                          generation 1
    generation 1, 2 of 2; generation 2, 1 of 2    generation 1, where it was known
    generation 2, 2 of 2; generation 1, 1 of 2    generation 2
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Final

from msgspec import Struct, field
from msgspec.structs import replace

from ledger.domain.annotations.wire import (
    Named,
    a_flag,
    a_name,
    a_quantity,
    a_text,
    an_object,
    at_least,
    dump,
    each,
)
from ledger.domain.cpuset import CpuSet
from ledger.domain.dialects.dra.cpus import CPU_DRIVER, CpusSaid, cpus_said
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import metadata_of, owner_of, spec_of
from ledger.domain.log.events import ClaimResult
from ledger.domain.quantity import NANO
from ledger.domain.systems import Claimant
from ledger.domain.typed import read

PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
MEMORY: Final = "memory"
CORES: Final = "cores"
_DIGITS: Final = 32
_SLICE_FIELDS: Final = frozenset(
    {
        *("allNodes", "devices", "driver", "nodeName", "nodeSelector", "perDeviceNodeSelection"),
        *("pool", "sharedCounters"),
    }
)
_DEVICE_FIELDS: Final = frozenset(
    {
        *("allNodes", "allowMultipleAllocations", "attributes", "bindingConditions"),
        *("bindingFailureConditions", "bindsToNode", "capacity", "consumesCounters", "name"),
        *("nodeName", "nodeSelector", "taints"),
    }
)
"""What a device can say of itself in v1 of Kubernetes 1.36: more than that is not compared."""
_VALUES: Final = frozenset({"bool", "int", "string", "version"})
_CAPACITY: Final = frozenset({"requestPolicy", "value"})
_CONSUMED: Final = frozenset({"counters", "counterSet"})

Amounts = Mapping[str, int]
"""Amounts in whole units by name."""


class Taint(Struct, frozen=True, kw_only=True):
    """Why a device, or some of them, take no claims but those that tolerate it."""

    key: str
    value: str = ""
    effect: str = ""


class SlicedDevice(Struct, frozen=True, kw_only=True):
    """
    One device of a ResourceSlice.

    Attributes:
        node: where it is; empty where it is on no single node.
        attributes: texts by name as written; a name without a domain is of the driver's.
        capacity: rounded down.
        consumes: (counter set, amounts), rounded up; in the slice's order.
        is_shared: several claims may be given parts of it.
        traits: a digest of all that it says but its name, the values of its attributes and which
            counter sets it consumes; empty where it says what is not known here.
    """

    name: Named
    node: Annotated[str, "nodeName"] = ""
    attributes: Mapping[str, Annotated[str, _attribute]] = field(default_factory=dict)
    capacity: Mapping[str, Annotated[int, _rounded_down]] = field(default_factory=dict)
    consumes: Annotated[tuple[tuple[str, Amounts], ...], "consumesCounters", _consumed] = ()
    taints: tuple[Taint, ...] = ()
    is_shared: Annotated[bool, "allowMultipleAllocations"] = False
    traits: Annotated[str, None] = ""


class CounterSet(Struct, frozen=True, kw_only=True):
    """Counters that devices of a pool share, rounded down."""

    name: Named
    counters: Mapping[str, Annotated[int, _rounded_down]] = field(default_factory=dict)


class PoolPart(Struct, frozen=True, kw_only=True):
    """Which part of a pool a slice is; `of` says how many the pool's generation has."""

    name: Named
    generation: Annotated[int, at_least(0)]
    of: Annotated[int, "resourceSliceCount", at_least(1)]


class ResourceSlice(Struct, frozen=True, kw_only=True):
    """One slice of a pool."""

    driver: Named
    pool: PoolPart
    node: Annotated[str, "nodeName"] = ""
    devices: tuple[SlicedDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Return what names its pool."""
        return self.driver, self.pool.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A whole pool at one generation: its devices in the slices' order, its counter sets."""

    driver: str
    name: str
    generation: int
    devices: tuple[SlicedDevice, ...]
    counters: Mapping[str, Amounts]

    @property
    def key(self) -> tuple[str, str]:
        """Return what names the pool."""
        return self.driver, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceClaim:
    """
    A claim, with its allocation if it has one.

    Attributes:
        node: that the allocation is tied to; empty where it is to none, or not allocated.
        results: empty where it is not allocated; access of an administrator is what the claim asked
            for by that word, and nothing that its status alone says.
        consumers: the Pods that it is reserved for.
        owner: its controller, `pod/<name>`; empty without.
        cpus_fault: why the driver of CPUs would not take what it is told, empty where it would.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    is_allocated: bool
    node: str = ""
    results: tuple[ClaimResult, ...] = ()
    consumers: tuple[Claimant, ...] = ()
    owner: str = ""
    cpus_fault: str = ""


def read_slice(body: Mapping[str, object]) -> ResourceSlice:
    """Return a ResourceSlice. Raises InputError where a field is not as the API has it."""
    spec = spec_of(body)
    found = read(ResourceSlice, spec, "spec")
    bodies: list[dict[str, object]] = spec.get("devices") or []  # type: ignore[assignment]
    is_known = _SLICE_FIELDS.issuperset(spec)
    devices = tuple(
        replace(one, node=one.node or found.node, traits=_traits(item) if is_known else "")
        for one, item in zip(found.devices, bodies, strict=True)
    )
    return replace(found, devices=devices)


def read_claim(body: Mapping[str, object]) -> ResourceClaim:
    """Return a ResourceClaim. Raises InputError where a field is not as the API has it."""
    metadata = metadata_of(body)
    status = an_object(body.get("status"), "status")
    path = "status.allocation"
    allocation = an_object(status.get("allocation"), path)
    devices = an_object(allocation.get("devices"), f"{path}.devices")
    asked = an_object(spec_of(body).get("devices"), "spec.devices")
    users = each(status.get("reservedFor"), "status.reservedFor", _consumer)
    requests = each(asked.get("requests"), "spec.devices.requests", _watching)
    watching = frozenset(name for name in requests if name)
    said = cpus_said(devices.get("config"), f"{path}.devices.config")
    return ResourceClaim(
        uid=a_name(metadata.get("uid"), "metadata.uid"),
        namespace=a_text(metadata.get("namespace"), "metadata.namespace"),
        name=a_name(metadata.get("name"), "metadata.name"),
        resource_version=a_text(metadata.get("resourceVersion"), "metadata.resourceVersion"),
        is_allocated=status.get("allocation") is not None,
        node=_node_of(allocation.get("nodeSelector"), f"{path}.nodeSelector"),
        results=each(
            devices.get("results"),
            f"{path}.devices.results",
            lambda item, at: _result(item, at, watching, said),
        ),
        consumers=tuple(user for user in users if user is not None),
        owner=owner_of(metadata),
        cpus_fault=said.fault,
    )


def pools_of(slices: Iterable[ResourceSlice], before: Iterable[Pool] = ()) -> tuple[Pool, ...]:
    """
    Return the whole pools by driver and name, each once.

    One with two devices of one name is none: to the API it is invalid.

    Args:
        before: as they were known; one whose newest generation is not whole stays as it was there,
            one without any slice is gone.
    """
    known = {pool.key: pool for pool in before}
    of: dict[tuple[str, str], list[ResourceSlice]] = {}
    for each_slice in slices:
        of.setdefault(each_slice.key, []).append(each_slice)
    found = []
    for key in sorted(of):
        newest = max(each_slice.pool.generation for each_slice in of[key])
        parts = [each_slice for each_slice in of[key] if each_slice.pool.generation == newest]
        names = [device.name for part in parts for device in part.devices]
        if len(parts) == parts[0].pool.of and len(names) == len(set(names)):
            found.append(_pool(key, newest, parts))
        elif key in known:
            found.append(known[key])
    return tuple(found)


def _pool(key: tuple[str, str], generation: int, parts: list[ResourceSlice]) -> Pool:
    return Pool(
        driver=key[0],
        name=key[1],
        generation=generation,
        devices=tuple(device for part in parts for device in part.devices),
        counters={one.name: one.counters for part in parts for one in part.shared_counters},
    )


def unknown_fields(spec: Mapping[str, object], device: Mapping[str, object]) -> list[str]:
    """Return what a slice and a device of it say that is not known here, by name."""
    inside = (
        *((_VALUES, one) for one in an_object(device.get("attributes"), "attributes").values()),
        *((_CAPACITY, one) for one in an_object(device.get("capacity"), "capacity").values()),
        *((_CONSUMED, one) for one in each(device.get("consumesCounters"), "", an_object)),
    )
    found = (spec.keys() - _SLICE_FIELDS) | (device.keys() - _DEVICE_FIELDS)
    return sorted(found.union(*(an_object(one, "devices").keys() - known for known, one in inside)))


def _traits(body: Mapping[str, object]) -> str:
    """Return the digest of what devices that are alike say in the same words."""
    if not _DEVICE_FIELDS.issuperset(body):
        return ""
    attributes = an_object(body.get("attributes"), "attributes")
    consumed = each(body.get("consumesCounters"), "consumesCounters", an_object)
    said = {
        **body,
        "name": "",
        "attributes": {name: sorted(an_object(attributes[name], name)) for name in attributes},
        "consumesCounters": [{**one, "counterSet": ""} for one in consumed],
    }
    return sha256(dump(said).encode()).hexdigest()[:_DIGITS]


def _attribute(value: object, path: str) -> str:
    said = list(an_object(value, path).values())
    if len(said) != 1:
        raise InputError(f"expected one value: values={len(said)}", field=path)
    return str(said[0]).lower() if isinstance(said[0], bool) else str(said[0])


def _rounded_down(item: object, path: str) -> int:
    return _nanos(item, path) // NANO


def _rounded_up(item: object, path: str) -> int:
    return -(-_nanos(item, path) // NANO)


def _nanos(item: object, path: str) -> int:
    return a_quantity(an_object(item, path).get("value"), f"{path}.value").nanos


class _Consumed(Struct):
    counter_set: Named
    counters: Mapping[str, Annotated[int, _rounded_up]] = {}


def _consumed(value: object, path: str) -> tuple[tuple[str, Amounts], ...]:
    found = read(tuple[_Consumed, ...], value, path)
    return tuple((one.counter_set, one.counters) for one in found)


def _result(item: object, path: str, watching: Collection[str], said: CpusSaid) -> ClaimResult:
    body = an_object(item, path)
    is_of_cpus = body.get("driver") == CPU_DRIVER
    consumed = an_object(body.get("consumedCapacity"), f"{path}.consumedCapacity")
    for name, amount in consumed.items():
        a_quantity(amount, f"{path}.consumedCapacity[{name}]")
    return ClaimResult(
        **{
            word: a_name(body.get(word), f"{path}.{word}")
            for word in ("request", "driver", "pool", "device")
        },
        share_id=a_text(body.get("shareID"), f"{path}.shareID"),
        consumed={name: str(amount) for name, amount in consumed.items()},
        admin=a_flag(body.get("adminAccess"), f"{path}.adminAccess", default=False)
        and body.get("request") in watching,
        cpus=said.of(str(body.get("request"))) if is_of_cpus else CpuSet(),
    )


def _consumer(item: object, path: str) -> Claimant | None:
    body = an_object(item, path)
    return read(Claimant, body, path) if body.get("resource") == "pods" else None


def _watching(item: object, path: str) -> str:
    """Return the name of a request for an administrator's access, empty of any other."""
    body = an_object(item, path)
    exactly = an_object(body.get("exactly"), f"{path}.exactly")
    is_one = a_flag(exactly.get("adminAccess"), f"{path}.exactly.adminAccess", default=False)
    return a_name(body.get("name"), f"{path}.name") if is_one else ""


def _node_of(selector: object, path: str) -> str:
    terms = each(
        an_object(selector, path).get("nodeSelectorTerms"), f"{path}.nodeSelectorTerms", an_object
    )
    if len(terms) != 1:
        return ""
    fields = each(terms[0].get("matchFields"), f"{path}.matchFields", an_object)
    for one in fields:
        values = each(one.get("values"), f"{path}.values", a_text)
        if (one.get("key"), one.get("operator")) == ("metadata.name", "In") and len(values) == 1:
            return values[0]
    return ""
