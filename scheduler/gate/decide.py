"""
What is answered to a write of a claim's status, and what is recorded before it is let through.

Rule: docs/contracts/dra.md. A write is one of two: an allocation appears, or it goes. What appears
is reserved under the ledger's constraint before the answer; what goes is released once the watch
shows that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ledger.domain.annotations.wire import a_quantity
from ledger.domain.devices import DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import version_number
from ledger.domain.log import events as log
from ledger.domain.log.state import NodeState
from ledger.domain.systems import Claimant
from scheduler.gate import exchange
from scheduler.gate.claims import Allocated, ClaimSeen
from scheduler.gate.cpus import ClaimCpus, CpusBarred, cpus_of, with_class, with_cpus
from scheduler.gate.leaving import ON_LOST_NODE, Stays
from scheduler.gate.room import NoRoom, expecting, no_room

NOT_STORED: Final = "not stored"
"""Why a reservation is void whose claim moved on without it."""
DEALLOCATED: Final = "deallocated"

DEVICE_TAKEN: Final = "DeviceTaken"
DEVICE_CLOSED: Final = "DeviceClosed"
ZERO_SHARE: Final = "ZeroShare"
NODE_UNKNOWN: Final = "NodeUnknown"
DRIVER_UNLISTED: Final = "DriverUnlisted"
"""Whoever asks lists more drivers than we do: nothing is let through that nobody looks at."""
STALE_WRITE: Final = "StaleWrite"
OUTCOME_OPEN: Final = "OutcomeOpen"
ALLOCATION_CHANGED: Final = "AllocationChanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    What the ledger has of a claim that has not ended.

    Attributes:
        opening: the event that opened it.
        stored: the allocation was seen in the claim.
        unreal: no write was on top of the version that it names: the API server has not come to it.
    """

    opening: log.ClaimReserved | log.ClaimObserved
    stored: bool
    unreal: bool = False

    @property
    def key(self) -> str:
        """Return the holding's key."""
        return f"{self.opening.claim_uid}/{self.opening.attempt}"

    @property
    def full_name(self) -> str:
        """Return namespace and name of the claim."""
        return f"{self.opening.namespace}/{self.opening.claim_name}"

    @property
    def fence(self) -> int:
        """Return the claim's version that the write was on top of."""
        return 0 if self.unreal else version_number(self.opening.resource_version) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounted:
    """
    What an allocation is of physical devices.

    Attributes:
        shares: one of each account, ordered by (device_type, minor, device_id).
        models: one per share, same order.
    """

    shares: tuple[DeviceShare, ...]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unaccounted:
    """Why it can't be told which physical devices an allocation is of, by a word and in words."""

    reason: str
    message: str


class Accounts(Protocol):
    """The cluster's devices, as slices tell them and as the ledger has them."""

    def node(self, name: str) -> NodeState | None:
        """Return what the ledger has of the Node of this name; None where it has none."""

    def account(self, allocated: Allocated) -> Accounted | Unaccounted:
        """Return what these results are of, by whole pools in their newest generation alone."""

    def alike(
        self, node: str, device: exchange.Device, *, anywhere: bool = False
    ) -> tuple[exchange.Alike, ...]:
        """
        Return the devices on this node that are like one of its, itself included, by name.

        None where it is a part of a card, or of several.

        Args:
            anywhere: wherever on the node they are, by PCIe root or NUMA node.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """
    One write of a claim's status.

    Attributes:
        old, new: the claim before and after it.
        free: the requests for which one device is as good as one that is like it.
    """

    old: ClaimSeen
    new: ClaimSeen
    free: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """
    The write may be stored, once these events are recorded, if there are any.

    Attributes:
        results: what is to be stored of it, in the order in which it was written; None = as it is.
    """

    events: tuple[log.ClaimEvent, ...] = ()
    results: exchange.Results | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barred:
    """
    The write may not be stored.

    Attributes:
        reason: one word.
        taken: somebody holds the device: it is to be had once they end.
        fence: the claim's version is to be moved, so that what is open is decided.
        asks: it is let through once the node says that nothing of the claim is left.
    """

    reason: str
    message: str
    taken: bool = False
    fence: bool = False
    asks: bool = False


def decide(
    write: Write,
    accounts: Accounts,
    standing: Standing | None,
    *,
    seen: int = 0,
    attempts: int = 0,
    consumers: Sequence[Claimant] = (),
    on_their_way: Iterable[log.ClaimReserved | log.ClaimObserved] = (),
    kept: Callable[[Sequence[Claimant]], Stays | None] = lambda _: None,
    place: exchange.Place | None = None,
    cpus: ClaimCpus | None = None,
    may_be_none: Callable[[log.ClaimResult, str], bool] = lambda *_: False,
    settings_hash: str = "",
    tenure_version: str = "",
) -> Through | Barred:
    """
    Decide on one write.

    Args:
        standing: what the ledger has of the claim.
        seen: the claim's newest version that the watch showed; nothing is stored on an older one.
        attempts: the number of the claim's newest holding, ended or not.
        consumers: who uses the claim, as the ledger has them.
        on_their_way: openings that are being recorded.
        kept: tells why what the claim has stays, given who uses it.
        place: which of the devices that are alike is to be stored; None = as they were written.
        cpus: which CPUs are to be stored; None = none are given.
        may_be_none: tells of a result whether none of a capacity is what was asked for.
    """
    old, new = write.old, write.new
    if old.is_allocated and new.is_allocated:
        if old.allocated == new.allocated:
            return Through()
        fact = f"the allocation of claim {new.full_name} is another one: deallocate it first"
        return Barred(reason=ALLOCATION_CHANGED, message=fact)
    if not new.is_allocated:
        if old.allocated is None:
            return Through()
        why = kept(tuple(dict.fromkeys((*consumers, *old.consumers))))
        if why is None or why.reason == ON_LOST_NODE:  # of a Node that is gone it is held on
            return Through()
        return _stays(why)
    if new.allocated is None:
        fact = f"claim {new.full_name} has devices of drivers that are not listed here alone"
        return Barred(reason=DRIVER_UNLISTED, message=fact)
    if old.version < max(seen, 0 if standing is None else standing.fence):
        fact = f"claim {new.full_name} was written since: version={old.version}"
        return Barred(reason=STALE_WRITE, message=fact)
    zero = _zero(new.allocated.results, may_be_none)
    if zero:
        return Barred(reason=ZERO_SHARE, message=zero)
    node = accounts.node(new.allocated.node_name) if new.allocated.node_name else None
    if node is None:
        named = new.allocated.node_name or "one node"
        return Barred(reason=NODE_UNKNOWN, message=f"the ledger does not know {named} of the claim")
    found = accounts.account(new.allocated)
    if isinstance(found, Unaccounted):
        return Barred(reason=found.reason, message=found.message)
    if standing is not None and not standing.stored and old.version == standing.fence:
        return _again(write, standing, node, accounts)
    if standing is not None and standing.stored:
        why = kept(consumers)
        if why is not None:  # it was taken away past us
            return _stays(why)
    there = expecting(node, on_their_way, without=new.uid)
    had = _had(write, found, there, accounts, place)
    if isinstance(had, NoRoom):
        return _no_room(had)
    allocated, of = had
    results = with_cpus(allocated, there, cpus)
    if isinstance(results, CpusBarred):
        return Barred(reason=results.reason, message=results.message)
    if isinstance(results, NoRoom):
        return _no_room(results)
    allocated = replace(allocated, results=results)
    opening = log.ClaimReserved(
        claim_uid=new.uid,
        attempt=attempts + 1,
        node_uid=node.uid,
        namespace=new.namespace,
        claim_name=new.name,
        node_name=node.name,
        results=allocated.results,
        shares=of.shares,
        device_models=of.models,
        consumers=new.consumers,
        cpuset=cpus_of(allocated.results),
        resource_version=str(old.version),
        snapshot=with_class(new.snapshot, allocated.results),
        settings_hash=settings_hash,
        tenure_version=tenure_version,
    )
    ended = () if standing is None else (end_of(standing, DEALLOCATED),)
    other = None if results == new.allocated.results else results
    return Through(events=(*ended, opening), results=other)


def _again(
    write: Write, standing: Standing, node: NodeState, accounts: Accounts
) -> Through | Barred:
    """
    Answer a write on a version on which one was let through: with what is reserved, or not yet.

    What is reserved may be stored for either where devices may be exchanged.
    """
    before, written = standing.opening, write.new.allocated
    assert written is not None, "it appears"

    def among(result: log.ClaimResult) -> set[str]:
        if result.request not in write.free or result.admin:
            return set()
        return {one.name for one in accounts.alike(node.name, exchange.device_of(result))}

    is_fit = before.node_uid == node.uid and not written.cpus_fault
    if is_fit and exchange.may_stand_for(before.results, written.results, among):
        return Through(results=before.results if before.results != written.results else None)
    fact = f"claim {write.old.full_name} may be stored otherwise yet: this is asked again"
    return Barred(reason=OUTCOME_OPEN, message=fact, fence=True)


def _had(
    write: Write,
    found: Accounted,
    node: NodeState,
    accounts: Accounts,
    place: exchange.Place | None,
) -> tuple[Allocated, Accounted] | NoRoom:
    """Return the allocation that is to be had: the one that is chosen, else the one written."""
    written = write.new.allocated
    assert written is not None, "it appears"
    if place is not None and write.free:

        def shares(results: exchange.Results) -> tuple[DeviceShare, ...] | None:
            one = accounts.account(Allocated(node_name=written.node_name, results=results))
            return None if isinstance(one, Unaccounted) else one.shares

        def alike(device: exchange.Device) -> tuple[exchange.Alike, ...]:
            return accounts.alike(written.node_name, device)

        units, kept = exchange.units_of(written.results, alike, write.free, shares)
        for names in place(node, units, kept):
            other = replace(written, results=exchange.exchanged(written.results, names))
            of = accounts.account(other)
            if isinstance(of, Accounted) and no_room(node, of.shares) is None:
                return other, of
    lacking = no_room(node, found.shares)
    return (written, found) if lacking is None else lacking


def _no_room(why: NoRoom) -> Barred:
    reason = DEVICE_TAKEN if why.taken else DEVICE_CLOSED
    return Barred(reason=reason, message=why.message, taken=why.taken)


def _stays(why: Stays) -> Barred:
    return Barred(reason=why.reason, message=why.message, asks=why.asks)


def end_of(standing: Standing, reason: str) -> log.ClaimReleased | log.ClaimVoided:
    """Return the end of what a claim has: of what was never stored, that it was not."""
    before = standing.opening
    kind = log.ClaimReleased if standing.stored else log.ClaimVoided
    return kind(
        claim_uid=before.claim_uid,
        attempt=before.attempt,
        node_uid=before.node_uid,
        reason=reason if standing.stored else NOT_STORED,
    )


def _zero(
    results: Sequence[log.ClaimResult], may_be_none: Callable[[log.ClaimResult, str], bool]
) -> str:
    for one in results:
        for name, amount in sorted(one.consumed.items()):
            try:
                is_none = a_quantity(amount, name).nanos <= 0
            except InputError as error:
                return str(error)
            if is_none and not may_be_none(one, name):
                return f"a share of {name} {amount} of {one.driver} {one.pool}/{one.device}"
    return ""
