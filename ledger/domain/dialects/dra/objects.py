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
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from ledger.domain.annotations.wire import (
    a_flag,
    a_quantity,
    a_text,
    an_integer,
    an_object,
    dump,
    each,
)
from ledger.domain.cpuset import CpuSet
from ledger.domain.dialects.dra.cpus import CPU_DRIVER, CpusSaid, cpus_said
from ledger.domain.errors import InputError
from ledger.domain.log.events import ClaimResult
from ledger.domain.quantity import NANO
from ledger.domain.systems import Claimant

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

Amounts = Mapping[str, int]
"""Amounts in whole units by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Why a device, or some of them, take no claims but those that tolerate it."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedDevice:
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

    name: str
    node: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    capacity: Amounts = field(default_factory=dict)
    consumes: tuple[tuple[str, Amounts], ...] = ()
    taints: tuple[Taint, ...] = ()
    is_shared: bool = False
    traits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSlice:
    """One slice of a pool; `of` says how many the pool's generation has."""

    driver: str
    pool: str
    generation: int
    of: int
    devices: tuple[SlicedDevice, ...] = ()
    counters: Mapping[str, Amounts] = field(default_factory=dict)  # set -> rounded down


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
    spec, path = an_object(body.get("spec"), "spec"), "spec"
    pool = an_object(spec.get("pool"), f"{path}.pool")
    node = a_text(spec.get("nodeName"), f"{path}.nodeName")
    is_known = _SLICE_FIELDS.issuperset(spec)
    return ResourceSlice(
        driver=_name(spec, "driver", path),
        pool=_name(pool, "name", f"{path}.pool"),
        generation=an_integer(pool.get("generation"), f"{path}.pool.generation", least=0),
        of=an_integer(pool.get("resourceSliceCount"), f"{path}.pool.resourceSliceCount", least=1),
        devices=each(
            spec.get("devices"),
            f"{path}.devices",
            lambda item, at: _device(item, at, node, is_known=is_known),
        ),
        counters=dict(each(spec.get("sharedCounters"), f"{path}.sharedCounters", _counter_set)),
    )


def read_claim(body: Mapping[str, object]) -> ResourceClaim:
    """Return a ResourceClaim. Raises InputError where a field is not as the API has it."""
    metadata = an_object(body.get("metadata"), "metadata")
    status = an_object(body.get("status"), "status")
    path = "status.allocation"
    allocation = an_object(status.get("allocation"), path)
    devices = an_object(allocation.get("devices"), f"{path}.devices")
    asked = an_object(an_object(body.get("spec"), "spec").get("devices"), "spec.devices")
    users = each(status.get("reservedFor"), "status.reservedFor", _consumer)
    requests = each(asked.get("requests"), "spec.devices.requests", _watching)
    watching = frozenset(name for name in requests if name)
    owners = each(metadata.get("ownerReferences"), "metadata.ownerReferences", _owner)
    said = cpus_said(devices.get("config"), f"{path}.devices.config")
    return ResourceClaim(
        uid=_name(metadata, "uid", "metadata"),
        namespace=a_text(metadata.get("namespace"), "metadata.namespace"),
        name=_own_name(body),
        resource_version=a_text(metadata.get("resourceVersion"), "metadata.resourceVersion"),
        is_allocated=status.get("allocation") is not None,
        node=_node_of(allocation.get("nodeSelector"), f"{path}.nodeSelector"),
        results=each(
            devices.get("results"),
            f"{path}.devices.results",
            lambda item, at: _result(item, at, watching, said),
        ),
        consumers=tuple(user for user in users if user is not None),
        owner=next((owner for owner in owners if owner), ""),
        cpus_fault=said.fault,
    )


def pools_of(slices: Iterable[ResourceSlice], before: Iterable[Pool] = ()) -> tuple[Pool, ...]:
    """
    Return the whole pools by driver and name, each once.

    One with two devices of one name is none: to the API it is invalid, and which is meant by a
    claim that names it nobody can tell.

    Args:
        before: as they were known; one whose newest generation is not whole stays as it was there,
            one without any slice is gone.
    """
    known = {pool.key: pool for pool in before}
    of: dict[tuple[str, str], list[ResourceSlice]] = {}
    for each_slice in slices:
        of.setdefault((each_slice.driver, each_slice.pool), []).append(each_slice)
    found = []
    for key in sorted(of):
        newest = max(each_slice.generation for each_slice in of[key])
        parts = [each_slice for each_slice in of[key] if each_slice.generation == newest]
        names = [device.name for part in parts for device in part.devices]
        if len(parts) == parts[0].of and len(names) == len(set(names)):
            found.append(_pool(key, newest, parts))
        elif key in known:
            found.append(known[key])
    return tuple(found)


def _pool(key: tuple[str, str], generation: int, parts: list[ResourceSlice]) -> Pool:
    counters: dict[str, Amounts] = {}
    for part in parts:
        counters.update(part.counters)
    return Pool(
        driver=key[0],
        name=key[1],
        generation=generation,
        devices=tuple(device for part in parts for device in part.devices),
        counters=counters,
    )


def _device(item: object, path: str, node: str, *, is_known: bool) -> SlicedDevice:
    body = an_object(item, path)
    attributes = an_object(body.get("attributes"), f"{path}.attributes")
    capacity = an_object(body.get("capacity"), f"{path}.capacity")
    return SlicedDevice(
        name=_name(body, "name", path),
        node=a_text(body.get("nodeName"), f"{path}.nodeName") or node,
        attributes={
            name: _attribute(value, f"{path}.attributes[{name}]")
            for name, value in attributes.items()
        },
        capacity=_amounts(capacity, f"{path}.capacity"),
        consumes=each(body.get("consumesCounters"), f"{path}.consumesCounters", _consumes),
        taints=each(body.get("taints"), f"{path}.taints", _taint),
        is_shared=a_flag(
            body.get("allowMultipleAllocations"), f"{path}.allowMultipleAllocations", default=False
        ),
        traits=_traits(body, attributes) if is_known else "",
    )


def _traits(body: Mapping[str, object], attributes: Mapping[str, object]) -> str:
    """Return the digest of what devices that are alike say in the same words."""
    if not _DEVICE_FIELDS.issuperset(body):
        return ""
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


def _amounts(value: Mapping[str, object], path: str, *, up: bool = False) -> Amounts:
    read = {}
    for name, item in value.items():
        at = f"{path}[{name}]"
        nanos = a_quantity(an_object(item, at).get("value"), f"{at}.value").nanos
        read[name] = -(-nanos // NANO) if up else nanos // NANO
    return read


def _counter_set(item: object, path: str) -> tuple[str, Amounts]:
    body = an_object(item, path)
    counters = an_object(body.get("counters"), f"{path}.counters")
    return _name(body, "name", path), _amounts(counters, f"{path}.counters")


def _consumes(item: object, path: str) -> tuple[str, Amounts]:
    body = an_object(item, path)
    counters = an_object(body.get("counters"), f"{path}.counters")
    return _name(body, "counterSet", path), _amounts(counters, f"{path}.counters", up=True)


def _taint(item: object, path: str) -> Taint:
    body = an_object(item, path)
    return Taint(
        key=a_text(body.get("key"), f"{path}.key"),
        value=a_text(body.get("value"), f"{path}.value"),
        effect=a_text(body.get("effect"), f"{path}.effect"),
    )


def _result(item: object, path: str, watching: Collection[str], said: CpusSaid) -> ClaimResult:
    body = an_object(item, path)
    is_of_cpus = body.get("driver") == CPU_DRIVER
    consumed = an_object(body.get("consumedCapacity"), f"{path}.consumedCapacity")
    for name, amount in consumed.items():
        a_quantity(amount, f"{path}.consumedCapacity[{name}]")
    return ClaimResult(
        **{word: _name(body, word, path) for word in ("request", "driver", "pool", "device")},
        share_id=a_text(body.get("shareID"), f"{path}.shareID"),
        consumed={name: str(amount) for name, amount in consumed.items()},
        admin=a_flag(body.get("adminAccess"), f"{path}.adminAccess", default=False)
        and body.get("request") in watching,
        cpus=said.of(str(body.get("request"))) if is_of_cpus else CpuSet(),
    )


def _consumer(item: object, path: str) -> Claimant | None:
    body = an_object(item, path)
    if body.get("resource") != "pods":
        return None
    return Claimant(name=_name(body, "name", path), uid=_name(body, "uid", path))


def _owner(item: object, path: str) -> str:
    body = an_object(item, path)
    if body.get("controller") is not True:
        return ""
    return f"{_name(body, 'kind', path).lower()}/{_name(body, 'name', path)}"


def _watching(item: object, path: str) -> str:
    """Return the name of a request for an administrator's access, empty of any other."""
    body = an_object(item, path)
    exactly = an_object(body.get("exactly"), f"{path}.exactly")
    is_one = a_flag(exactly.get("adminAccess"), f"{path}.exactly.adminAccess", default=False)
    return _name(body, "name", path) if is_one else ""


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


def _own_name(body: Mapping[str, object]) -> str:
    return _name(an_object(body.get("metadata"), "metadata"), "name", "metadata")


def _name(parent: Mapping[str, object], key: str, path: str) -> str:
    value = a_text(parent.get(key), f"{path}.{key}")
    if not value:
        raise InputError("missing; expected a name", field=f"{path}.{key}")
    return value
