"""Claims as the API server shows them to the gate: of each only what deciding reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from ledger.domain.bounds import Name
from ledger.domain.errors import InputError
from ledger.domain.log.events import ClaimResult
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import Claimant

RESULTS_MAX: Final = 32
CONSUMERS_MAX: Final = 256
"""As the API server has them at most."""
_NO_SNAPSHOT: Final = PodSnapshot()
_Text = Annotated[str, Meta(max_length=1_024)]


class _Owner(Struct, rename="camel"):
    kind: _Text = ""
    name: _Text = ""
    controller: bool = False


class _Metadata(Struct, rename="camel"):
    name: Name = ""
    namespace: Name = ""
    uid: Name = ""
    resource_version: Name = ""
    owner_references: list[_Owner] = []


class _Result(Struct, rename="camel"):
    driver: Name
    pool: Name
    device: Name
    request: Name = ""
    share_id: Name | None = field(default=None, name="shareID")
    consumed_capacity: Annotated[dict[Name, _Text], Meta(max_length=64)] | None = None
    admin_access: bool | None = None


class _Devices(Struct):
    results: Annotated[list[_Result], Meta(max_length=RESULTS_MAX)] | None = None


class _Expression(Struct):
    key: _Text = ""
    operator: _Text = ""
    values: list[Name] | None = None


class _Term(Struct, rename="camel"):
    match_fields: list[_Expression] | None = None


class _Selector(Struct, rename="camel"):
    node_selector_terms: list[_Term] | None = None


class _Allocation(Struct, rename="camel"):
    devices: _Devices | None = None
    node_selector: _Selector | None = None


class _Consumer(Struct):
    name: Name = ""
    uid: Name = ""
    resource: _Text = ""


class _Status(Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: Annotated[list[_Consumer], Meta(max_length=CONSUMERS_MAX)] | None = None


class _Amounts(Struct):
    requests: dict[Name, _Text] | None = None


class _Exactly(Struct, rename="camel"):
    device_class_name: Name = ""
    count: int | None = None
    capacity: _Amounts | None = None


class _Request(Struct, rename="camel"):
    name: Name = ""
    exactly: _Exactly | None = None


class _RequestedDevices(Struct):
    requests: list[_Request] | None = None


class _Spec(Struct):
    devices: _RequestedDevices | None = None


class _Claim(Struct):
    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)
    status: _Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """
    What a claim has of the listed drivers.

    Attributes:
        node_name: the one node that it is tied to; empty where it is to none or to several.
    """

    node_name: str
    results: tuple[ClaimResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """
    A claim as it was at one version.

    Attributes:
        version: its resourceVersion, which grows with every write of any object.
        allocated: None where it has nothing of the listed drivers.
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


def claim_seen(item: Mapping[str, object], drivers: Collection[str]) -> ClaimSeen:
    """
    Read a claim object; what drivers that are not listed gave of it is passed over.

    Raises:
        InputError: it is not as the API describes it.
    """
    try:
        return _seen(msgspec.convert(item, _Claim), drivers)
    except msgspec.ValidationError as error:
        raise InputError(str(error), field="claim") from error


def _seen(claim: _Claim, drivers: Collection[str]) -> ClaimSeen:
    status, metadata = claim.status or _Status(), claim.metadata
    if not (metadata.uid and metadata.resource_version.isdecimal()):
        raise InputError("expected a UID and a resourceVersion", field="metadata")
    owner = next((each for each in metadata.owner_references if each.controller), None)
    return ClaimSeen(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        version=int(metadata.resource_version),
        allocated=None if status.allocation is None else _allocated(status.allocation, drivers),
        is_allocated=status.allocation is not None,
        consumers=tuple(
            Claimant(name=each.name, uid=each.uid)
            for each in status.reserved_for or ()
            if each.resource == "pods"
        ),
        snapshot=PodSnapshot(
            owner="" if owner is None else f"{owner.kind.lower()}/{owner.name}",
            original=dict(_asked(claim.spec)),
        ),
    )


def _allocated(allocation: _Allocation, drivers: Collection[str]) -> Allocated | None:
    told = (allocation.devices and allocation.devices.results) or ()
    results = tuple(
        ClaimResult(
            request=each.request,
            driver=each.driver,
            pool=each.pool,
            device=each.device,
            share_id=each.share_id or "",
            consumed=each.consumed_capacity or {},
            admin=bool(each.admin_access),
        )
        for each in told
        if each.driver in drivers
    )
    if not results:
        return None
    return Allocated(node_name=_node_of(allocation.node_selector), results=results)


def _node_of(selector: _Selector | None) -> str:
    """Return the one node of a selector of the form that kube-scheduler writes; else nothing."""
    terms = (selector and selector.node_selector_terms) or ()
    named = [
        one.values
        for term in terms
        for one in term.match_fields or ()
        if one.key == "metadata.name" and one.operator == "In"
    ]
    if len(terms) != 1 or len(named) != 1 or named[0] is None or len(named[0]) != 1:
        return ""
    return named[0][0]


def _asked(spec: _Spec) -> list[tuple[str, str]]:
    """Return what the claim asks for, as written: `<request>.<class>` -> its count, its amounts."""
    told = (spec.devices and spec.devices.requests) or ()
    asked = []
    for one in told:
        exactly = one.exactly or _Exactly()
        name = f"{one.name}.{exactly.device_class_name}" if one.exactly else one.name
        asked.append((name, "" if exactly.count is None else str(exactly.count)))
        amounts = (exactly.capacity and exactly.capacity.requests) or {}
        asked += [(f"{one.name}.{key}", amount) for key, amount in sorted(amounts.items())]
    return asked
