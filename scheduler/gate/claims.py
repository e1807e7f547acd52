"""Claims as the API server shows them to the gate: of each only what deciding reads."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.wire import an_object, each
from ledger.domain.dialects.dra.objects import read_claim
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import is_label, is_name, version_number
from ledger.domain.log.events import ClaimResult
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import Claimant

CONSUMERS_MAX: Final = 256
RESULTS_MAX: Final = 32
CAPACITIES_MAX: Final = 32
"""What the API allows in a claim's status."""
CAPACITY_LENGTH_MAX: Final = 320
"""Of a capacity's name, with its domain."""
_NO_SNAPSHOT: Final = PodSnapshot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """
    What a claim has of the drivers that are looked at.

    Attributes:
        node_name: the one node that it is tied to; empty where it is to none or to several.
        cpus_fault: why the driver of CPUs would not take what it is told, empty where it would.
    """

    node_name: str
    results: tuple[ClaimResult, ...]
    cpus_fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """
    A claim as it was at one version.

    Attributes:
        version: its resourceVersion, which grows with every write of any object.
        allocated: None where it has nothing of drivers that are looked at.
        is_allocated: it has something, of whichever driver.
        consumers: the Pods that it is reserved for.
    """

    uid: str
    namespace: str
    name: str
    version: int
    allocated: Allocated | None = None
    is_allocated: bool = False
    consumers: tuple[Claimant, ...] = ()
    snapshot: PodSnapshot = _NO_SNAPSHOT

    @property
    def full_name(self) -> str:
        """Return namespace and name."""
        return f"{self.namespace}/{self.name}"


def claim_seen(item: Mapping[str, object], drivers: Container[str]) -> ClaimSeen:
    """
    Read a claim object; what drivers that are not looked at gave of it is passed over.

    Raises:
        InputError: it is not as the API describes it.
    """
    claim = read_claim(item)
    version = version_number(claim.resource_version)
    if version is None:
        fact = f"expected a number of at most 19 digits: value={claim.resource_version[:40]!r}"
        raise InputError(fact, field="metadata.resourceVersion")
    results = tuple(one for one in claim.results if one.driver in drivers)
    allocated = Allocated(node_name=claim.node, results=results, cpus_fault=claim.cpus_fault)
    return ClaimSeen(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        version=version,
        allocated=allocated if results else None,
        is_allocated=claim.is_allocated,
        consumers=claim.consumers,
        snapshot=PodSnapshot(owner=claim.owner, original=dict(_asked(item))),
    )


def check_names(old: ClaimSeen, new: ClaimSeen) -> None:
    """
    Check that a write is of one claim, and that all its names and UIDs are as the API's are.

    Raises:
        InputError: no API server sends such a write.
    """
    if (old.uid, old.full_name) != (new.uid, new.full_name):
        raise InputError("another claim than oldObject", field="object.metadata")
    users = [one for claim in (old, new) for one in claim.consumers]
    for name, is_one, path in (
        (old.namespace, is_label, "metadata.namespace"),
        (old.name, is_name, "metadata.name"),
        (old.uid, is_label, "metadata.uid"),
        *((one.name, is_name, "status.reservedFor.name") for one in users),
        *((one.uid, is_label, "status.reservedFor.uid") for one in users),
    ):
        if not is_one(name):
            raise InputError(f"no object is called so: value={name[:40]!r}", field=path)
    results = () if new.allocated is None else new.allocated.results
    for path, count, most in (
        ("status.reservedFor", len(new.consumers), CONSUMERS_MAX),
        ("status.allocation.devices.results", len(results), RESULTS_MAX),
        *(("consumedCapacity", len(one.consumed), CAPACITIES_MAX) for one in results),
        *(
            ("consumedCapacity", len(name), CAPACITY_LENGTH_MAX)
            for one in results
            for name in one.consumed
        ),
    ):
        if count > most:
            raise InputError(f"too many, or too long: count={count}, most={most}", field=path)


def _asked(item: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield what a claim asks for, as written: `<request>.<class>` and its count, its amounts."""
    path = "spec.devices.requests"
    devices = an_object(an_object(item.get("spec"), "spec").get("devices"), "spec.devices")
    for one in each(devices.get("requests"), path, an_object):
        exactly = an_object(one.get("exactly"), f"{path}.exactly")
        yield (
            f"{one.get('name')}.{exactly.get('deviceClassName', '')}",
            str(exactly.get("count", "")),
        )
        capacity = an_object(exactly.get("capacity"), f"{path}.capacity")
        amounts = an_object(capacity.get("requests"), f"{path}.capacity.requests")
        yield from ((f"{one.get('name')}.{key}", str(amounts[key])) for key in sorted(amounts))
