"""
Where a ledger stands beside what others have seen of it: in step, ahead, behind, or another one.

A restored backup is a sound ledger that says less than the world has seen. Positions continue
after a loss, so a position alone names nothing: (incarnation, position) does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.bounds import Count, Exact
from ledger.domain.log.events import LedgerRecovered

FIRST: Final = "first"
"""The incarnation of a ledger that was never recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """
    What someone has seen of a ledger: an agent, a ConfigMap, a bound Pod.

    Attributes:
        chain: the chain value at `position`, hex; empty when it was not seen.
        seen_by: who, for people.
    """

    origin: str
    incarnation: str
    epoch: Count
    position: Exact
    chain: str = ""
    seen_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One life of the ledger, from its first position in this ledger on."""

    name: str
    began_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Positions `first`..`last` of an incarnation that others saw and the ledger lacks."""

    incarnation: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """
    What a ledger says of itself.

    Attributes:
        origin: empty for a ledger that nobody ever wrote.
        incarnations: oldest first; the last one is open.
        lost: what earlier recoveries have named.
        chains: chain values, hex, at least at the witnessed positions that it has.
    """

    origin: str
    position: int
    epoch: int
    incarnations: tuple[Incarnation, ...] = (Incarnation(name=FIRST, began_at=1),)
    lost: tuple[Lost, ...] = ()
    chains: Mapping[int, str] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        """Return the name of the open incarnation."""
        return self.incarnations[-1].name

    def kept_to(self, incarnation: str) -> int | None:
        """Return the last position of an incarnation that is in this ledger, None if unheard of."""
        ends = [each.began_at - 1 for each in self.incarnations[1:]] + [self.position]
        for each, end in zip(self.incarnations, ends, strict=True):
            if each.name == incarnation:
                return end
        return None

    def known_lost_to(self, incarnation: str) -> int:
        """Return the last position of an incarnation that a recovery named as lost, or 0."""
        return max((lost.last for lost in self.lost if lost.incarnation == incarnation), default=0)

    def has(self, incarnation: str, position: int) -> bool:
        """Tell whether that position of that incarnation is in this ledger."""
        kept = self.kept_to(incarnation)
        return kept is not None and position <= kept


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """Somebody has seen the head as it is."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Nobody has seen more than the ledger says; `seen` is the highest position that was seen."""

    position: int
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """
    Others have seen what the ledger does not say: no grants until it is recovered.

    Attributes:
        lost: per incarnation, in the order of their names.
        epoch: the highest that was seen; the next one must be beyond it.
    """

    lost: tuple[Lost, ...]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """Ledger and witness say different things of one position: one of them is another history."""

    witness: Witness
    fact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOrigin:
    """The witness saw another ledger."""

    witness: Witness


Standing = InStep | Ahead | Behind | Forked | ForeignOrigin


def standing(own: Own, witnesses: Sequence[Witness]) -> Standing:
    """
    Compare a ledger with what was seen of it; the gravest finding counts.

    Rule: design section 8, "Restore". Order: another origin, another history, a loss, none.
    """
    for witness in witnesses:
        if witness.origin != (own.origin or witnesses[0].origin):
            return ForeignOrigin(witness=witness)
    for witness in witnesses:
        fact = _fork(own, witness)
        if fact:
            return Forked(witness=witness, fact=fact)
    lost = _lost(own, witnesses)
    if lost:
        return Behind(lost=lost, epoch=max(witness.epoch for witness in witnesses))
    seen = max((w.position for w in witnesses if own.has(w.incarnation, w.position)), default=0)
    if seen == own.position:
        return InStep(position=seen)
    return Ahead(position=own.position, seen=seen)


def _fork(own: Own, witness: Witness) -> str:
    if own.has(witness.incarnation, witness.position):
        known = own.chains.get(witness.position, "") if witness.position else ""
        if witness.chain and known and witness.chain != known:
            return f"another event at the position: position={witness.position}"
        if witness.epoch > own.epoch:
            return f"a later epoch at the position: epoch={witness.epoch}"
        return ""
    unheard_of = own.kept_to(witness.incarnation) is None
    if not unheard_of or own.known_lost_to(witness.incarnation):
        return ""
    if witness.position <= own.position:
        return f"an incarnation that began before this copy's end: {witness.incarnation}"
    return ""


def _lost(own: Own, witnesses: Iterable[Witness]) -> tuple[Lost, ...]:
    highest: dict[str, int] = {}
    for witness in witnesses:
        seen = highest.get(witness.incarnation, 0)
        highest[witness.incarnation] = max(seen, witness.position)
    found = []
    for name, last in sorted(highest.items()):
        kept = own.kept_to(name)
        floor = max(kept or 0, own.known_lost_to(name))
        if kept is None and not floor:  # a life of which this copy never heard
            floor = own.position
        if last > floor:
            found.append(Lost(incarnation=name, first=floor + 1, last=last))
    return tuple(found)


def incarnations_of(
    recovered: Iterable[LedgerRecovered],
) -> tuple[tuple[Incarnation, ...], tuple[Lost, ...]]:
    """Return the incarnations that these events tell of, and what they name as lost."""
    lives = [Incarnation(name=FIRST, began_at=1)]
    lost: list[Lost] = []
    for event in recovered:
        if event.incarnation != lives[-1].name:
            lives.append(Incarnation(name=event.incarnation, began_at=event.began_at))
        lost.append(
            Lost(incarnation=event.lost_incarnation, first=event.lost_from, last=event.lost_to)
        )
    return tuple(lives), tuple(lost)
