"""What others' objects tell of devices, as plain values: claims (docs/contracts/dra.md), vGPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


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
    """An allocated claim; `pods` are (name, uid) of those that it is reserved for."""

    namespace: str
    name: str
    node: str
    parts: tuple[DraPart, ...]
    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dra:
    """
    What the objects of dynamic resource allocation tell.

    Attributes:
        names: resources that a DeviceClass serves under a name of a device plugin.
        served: node name -> such resources that Pods there were given by a claim.
        claimed: UIDs of Pods whose request for such a resource is one of the claims.
        has_slices: some slice is told, so that a node without one has no such devices.
    """

    devices: tuple[DraDevice, ...] = ()
    claims: tuple[DraClaim, ...] = ()
    names: frozenset[str] = frozenset()
    served: Mapping[str, frozenset[str]] = field(default_factory=dict)
    claimed: frozenset[str] = frozenset()
    has_slices: bool = False

    def by_claims(self, node: str, offers: Mapping[str, int]) -> tuple[str, ...]:
        """
        Return the resources that a node may give by claims: where a plugin offers one, it does not.

        Rule: docs/contracts/dra.md 3.
        """
        there = not self.has_slices or any(device.node == node for device in self.devices)
        names = (self.names if there else frozenset()) | self.served.get(node, frozenset())
        return tuple(sorted(name for name in names if not offers.get(name)))


NO_DRA: Final = Dra()


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuCard:
    """A card that Volcano's plugin registers; `minor` is its place in the register."""

    id: str
    minor: int
    memory_mib: int
    model: str
    healthy: bool
    in_slices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuPart:
    """What Volcano gave one Pod of one card, all its containers together."""

    namespace: str
    name: str
    uid: str
    card: str
    core_percent: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vgpus:
    """
    Volcano's vGPUs.

    Attributes:
        cards, parts: by the name of their node.
        unread: object -> what of it can't be read.
    """

    cards: Mapping[str, tuple[VgpuCard, ...]] = field(default_factory=dict)
    parts: Mapping[str, Sequence[VgpuPart]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


NO_VGPUS: Final = Vgpus()
