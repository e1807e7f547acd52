"""
When to rotate and what comes next: a pure function of what is recorded, published and served.

One rotation of the authority, so that no call fails at any moment:

    stable ------> publishing ------> serving ------> stable
      new authority   every API server    every replica   the old authority
      beside the old  may trust both      serves the new  is trusted no more
      one             by now: new leaf    leaf

At every moment what is published trusts whatever any replica serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from certs.material import CertificateFacts


class Phase(StrEnum):
    """Where a rotation stands."""

    STABLE = "stable"
    PUBLISHING = "publishing"
    SERVING = "serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    How long things last and how long to wait.

    Attributes:
        names: DNS names and addresses of the leaf, the first as its common name.
        authority_ahead, leaf_ahead: renew this long before the end.
        settle: how long a published bundle takes at most to reach every API server.
        silent: a replica that reported nothing for this long no longer counts, and none is
            given up sooner than this after a switch, however wrong its clock.
        forget: what a replica said last is cleared away after this long.
        pause: how long to wait before looking again when something is missing.
    """

    names: tuple[str, ...]
    authority_lifetime: timedelta = timedelta(days=3650)
    authority_ahead: timedelta = timedelta(days=365)
    leaf_lifetime: timedelta = timedelta(days=90)
    leaf_ahead: timedelta = timedelta(days=30)
    settle: timedelta = timedelta(seconds=30)
    silent: timedelta = timedelta(minutes=10)
    forget: timedelta = timedelta(days=1)
    pause: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        assert self.names, "a serving certificate needs a name"
        assert self.leaf_ahead < self.leaf_lifetime < self.authority_lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationRecord:
    """
    What the Secret says.

    Attributes:
        published_at: when every target was seen to trust what is recorded; None if not since then.
        authority: signs the leaf, in `serving` it is the new one already.
        other: the new authority while `publishing`, the old one while `serving`.
        requested: somebody asked for a rotation that has not begun.
        sound: the leaf's key is its own; somebody may have edited the Secret by hand.
    """

    phase: Phase
    since: datetime
    authority: CertificateFacts
    leaf: CertificateFacts
    published_at: datetime | None = None
    other: CertificateFacts | None = None
    requested: bool = False
    sound: bool = True

    @property
    def trusted(self) -> frozenset[str]:
        """Fingerprints of the authorities that clients must trust."""
        both = (self.authority, self.other)
        return frozenset(one.fingerprint for one in both if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One webhook configuration, with the fingerprints of the authorities it trusts."""

    name: str
    trusted: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What one replica said last: the fingerprint of the leaf it serves, and when."""

    name: str
    leaf: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make the first authority and leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Write the recorded bundle into these targets, then record that all of them have it."""

    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Make a new authority beside the recorded one: the phase becomes `publishing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Issue another leaf by the recorded authority; the phase stays what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Issue a leaf by the new authority: the phase becomes `serving`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Forget the old authority: the phase becomes `stable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before `until`."""

    until: datetime
    reason: str


Step = Create | Publish | Begin | Renew | Switch | Finish | Wait
_FOREVER: Final = timedelta(days=1)


def next_step(
    recorded: RotationRecord | None,
    targets: Iterable[Target],
    replicas: Iterable[Replica],
    settings: Settings,
    *,
    now: datetime,
) -> Step:
    """
    Return the one thing to do now.

    Doing a step twice, or being interrupted after any of them, is safe: what is recorded says what
    was done. Publishing comes before everything, so that a configuration that was put back by
    somebody else is mended in every phase.
    """
    if recorded is None:
        return Create()
    behind = tuple(one.name for one in targets if one.trusted != recorded.trusted)
    if behind or recorded.published_at is None:
        return Publish(targets=behind)
    match recorded.phase:
        case Phase.STABLE:
            return _when_stable(recorded, settings, now)
        case Phase.PUBLISHING:
            return _when_publishing(recorded.published_at, settings, now)
        case Phase.SERVING:
            return _when_serving(recorded, replicas, settings, now)


def _when_stable(recorded: RotationRecord, settings: Settings, now: datetime) -> Step:
    rotate_at = recorded.authority.not_after - settings.authority_ahead
    renew_at = recorded.leaf.not_after - settings.leaf_ahead
    if recorded.requested or now >= rotate_at:
        return Begin()
    signed_by_it = recorded.leaf.authority_key == recorded.authority.subject_key
    named_well = recorded.leaf.names == tuple(sorted(settings.names))
    if now >= renew_at or not signed_by_it or not named_well or not recorded.sound:
        return Renew()
    return Wait(until=min(rotate_at, renew_at, now + _FOREVER), reason="nothing is due")


def _when_publishing(published_at: datetime, settings: Settings, now: datetime) -> Step:
    until = published_at + settings.settle
    if now < until:
        return Wait(until=until, reason="the new bundle is on its way to every API server")
    return Switch()


def _when_serving(
    recorded: RotationRecord, replicas: Iterable[Replica], settings: Settings, now: datetime
) -> Step:
    if not recorded.sound:
        return Renew()
    old = sorted(
        replica.name
        for replica in replicas
        if replica.leaf != recorded.leaf.fingerprint
        and now - max(replica.at, recorded.since) < settings.silent
    )
    if old:
        return Wait(until=now + settings.pause, reason=f"still on the old leaf: {', '.join(old)}")
    return Finish()
