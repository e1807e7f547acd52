"""
What slices and claims tell (docs/contracts/dra.md): of each node its devices, of each Pod its part.

The card of a device is resolved here, so that nobody who reads an event has to know of slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.domain.dialects.dra.drivers import names_a_card
from ledger.domain.systems import DRA, Claimant, DeviceSystems, KeptClaim, SystemCard, SystemPart


@dataclass(frozen=True, slots=True, kw_only=True)
class DraDevice:
    """
    One device of a ResourceSlice.

    Attributes:
        card: what is one card: its counter set where it has one, else the device by itself.
        kind: what the driver calls it, such as `gpu` or `mig`; empty where it says nothing.
        parent: the id of the card that it is a part of; empty for a card.
        closed: the taint that keeps Pods off it.
        is_shared: several claims may be allocated parts of it.
    """

    node: str
    driver: str
    pool: str
    name: str
    card: str
    kind: str = ""
    id: str = ""
    parent: str = ""
    minor: int | None = None
    model: str = ""
    memory_mib: int | None = None
    closed: str | None = None
    is_shared: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what an allocation calls it."""
        return self.driver, self.pool, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DraPart:
    """What a claim has of one device; amounts where it has not all of it."""

    driver: str
    pool: str
    device: str
    core_percent: int | None = None
    memory_mib: int | None = None
    is_part: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return which device that is."""
        return self.driver, self.pool, self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class DraClaim:
    """An allocated claim; reserved for `pods` (name, uid), and `others`, such as a PodGroup."""

    namespace: str
    name: str
    node: str
    parts: tuple[DraPart, ...]
    pods: tuple[tuple[str, str], ...]
    others: tuple[str, ...] = ()
    is_deleted: bool = False

    def state_without(self, ended: Mapping[str, bool]) -> str:
        """Return why no Pod tells of it; `ended`: UID of a Pod of the input -> it has ended."""
        what = "has ended" if all(uid in ended for _, uid in self.pods) else "is not there"
        names = ", ".join(name for name, _ in self.pods)
        whose = f"its Pod {what} ({names})" if names else ""
        whose = f"reserved for {', '.join(self.others)}" if self.others else whose
        return ", ".join(filter(None, ("being deleted" if self.is_deleted else "", whose)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dra:
    """
    What the objects of dynamic resource allocation tell.

    Attributes:
        names: resources that a DeviceClass serves under a name of a device plugin.
        served: node name -> such resources that Pods there were given by a claim.
        claimed: UIDs of Pods whose request for such a resource is one of the claims.
        nodes: the names of those that have devices.
        has_slices: some slice is told, so that a node without one has no such devices.
    """

    devices: tuple[DraDevice, ...] = ()
    claims: tuple[DraClaim, ...] = ()
    names: frozenset[str] = frozenset()
    served: Mapping[str, frozenset[str]] = field(default_factory=dict)
    claimed: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    has_slices: bool = False

    def by_claims(self, node: str, offers: Mapping[str, int]) -> tuple[str, ...]:
        """
        Return the resources that a node may give by claims: where a plugin offers one, it does not.

        Rule: docs/contracts/dra.md 3.
        """
        there = not self.has_slices or node in self.nodes
        names = (self.names if there else frozenset()) | self.served.get(node, frozenset())
        return tuple(sorted(name for name in names if not offers.get(name)))


NO_DRA: Final = Dra()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """
    What there is by slices, and who was given what of it.

    Attributes:
        systems: by the name of the node.
        parts: UID of a Pod -> what it was given on the node where it runs.
    """

    systems: Mapping[str, DeviceSystems] = field(default_factory=dict)
    parts: Mapping[str, tuple[SystemPart, ...]] = field(default_factory=dict)


def with_claims(systems: DeviceSystems, given: Given, node: str) -> DeviceSystems:
    """Return what a node's objects say, with what slices and claims say of it."""
    more = given.systems.get(node)
    if more is None:
        return systems
    cards = (*systems.cards, *more.cards)
    return replace(systems, cards=cards, others=more.others, claims=more.claims)


def given_by_claims(
    dra: Dra, placed: Mapping[str, str], ended: Mapping[str, bool] | None = None
) -> Given:
    """
    Return each node's devices, and each Pod's part of them.

    Args:
        placed: UID of a Pod -> the node where it runs. What a claim keeps for nobody, or for others
            than these, is said of the node.
        ended: UID of every Pod that there is -> it has ended; None = nobody told.
    """
    cards: dict[tuple[str, str, str], list[DraDevice]] = {}
    others: dict[str, Counter[str]] = {}
    for device in dra.devices:
        if _is_card(device):
            cards.setdefault((device.node, device.driver, device.card), []).append(device)
        else:
            others.setdefault(device.node, Counter())[device.driver] += 1
    of_node: dict[str, list[SystemCard]] = {}
    first_of: dict[tuple[str, str, str], DraDevice] = {}
    for (node, _, _), some in cards.items():
        first = _first(some)
        first_of |= dict.fromkeys((each.key for each in some), first)
        of_node.setdefault(node, []).append(_system_card(first, some))
    devices = {device.key: device for device in dra.devices}
    parts: dict[str, list[SystemPart]] = {}
    kept: dict[str, list[KeptClaim]] = {}
    for claim in dra.claims:
        name = f"{claim.namespace}/{claim.name}"
        on: dict[str, list[SystemPart]] = {}
        for each in claim.parts:
            known = devices.get(each.key)
            node = claim.node if known is None else known.node
            part = _system_part(each, known, first_of.get(each.key), name)
            on.setdefault(node, []).append(part)
        for node, some_parts in on.items():
            there = [uid for _, uid in claim.pods if placed.get(uid) == node]
            for uid in there:
                parts.setdefault(uid, []).extend(some_parts)
            away = [
                Claimant(name=pod, uid=uid)
                for pod, uid in claim.pods
                if uid not in there and (ended is None or not ended.get(uid, True))
            ]
            if away or not there:
                state = "" if away else claim.state_without(ended or {})
                told = KeptClaim(claim=name, parts=tuple(some_parts), pods=tuple(away), state=state)
                kept.setdefault(node, []).append(told)
    return Given(
        systems={
            node: DeviceSystems(
                cards=tuple(of_node.get(node, ())),
                others=tuple(sorted(others.get(node, {}).items())),
                claims=tuple(kept.get(node, ())),
            )
            for node in {**of_node, **others, **kept}
        },
        parts={uid: tuple(found) for uid, found in parts.items()},
    )


def _is_card(device: DraDevice) -> bool:
    return names_a_card(device.kind or device.driver.partition(".")[0])


def _first(parts: Sequence[DraDevice]) -> DraDevice:
    return max(parts, key=lambda each: (not each.parent, bool(each.id), each.memory_mib or 0))


def _system_card(first: DraDevice, parts: Sequence[DraDevice]) -> SystemCard:
    mode = "slices" if len(parts) > 1 else "whole"
    return SystemCard(
        system=DRA,
        key=first.card,
        driver=first.driver,
        id=first.id or first.parent,
        minor=-1 if first.minor is None else first.minor,
        model=first.model,
        memory_mib=first.memory_mib,
        mode="shares" if any(each.is_shared for each in parts) else mode,
        closed=first.closed or "",
    )


def _system_part(
    part: DraPart, device: DraDevice | None, first: DraDevice | None, claim: str
) -> SystemPart:
    """
    Return what a claim has of a card.

    Args:
        device: the one that the part is of; None where no slice lists it.
        first: what stands for its card; None where it is no card.
    """
    memory = part.memory_mib if part.is_part or device is None else device.memory_mib
    return SystemPart(
        system=DRA,
        card=f"{part.pool}/{part.device}" if first is None else first.card,
        driver=part.driver,
        claim=claim,
        core_percent=part.core_percent,
        memory_mib=memory,
        whole=device is not None and device is first and not part.is_part,
        is_card=first is not None
        or (device is None and names_a_card(part.driver.partition(".")[0])),
    )
