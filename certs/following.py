"""A replica follows the Secret: what it reads it serves, and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from certs.material import CertificateError, facts_of
from certs.plan import Phase
from certs.ports import Objects
from certs.record import SecretRecord, read_record
from certs.reports import Reports
from certs.serving import Serving

SAY_AGAIN: Final = timedelta(minutes=1)
_TRIES_MAX: Final = 5


@dataclass(slots=True, eq=False)
class Follower:
    """
    Keeps one replica's leaf that of the Secret.

    The first leaf is reported before it is served, and the Secret read again in between; every
    later one is served before it is reported. So an authority that is dropped because nobody
    reports its leaf has none that serves it.
    """

    objects: Objects
    reports: Reports
    secret_path: str
    serving: Serving
    replica: str
    names: tuple[str, ...]
    clock: Callable[[], datetime]
    _said: tuple[str, datetime] | None = None
    _record_seen: SecretRecord | None = None
    _confirmed_at: datetime | None = None

    @property
    def confirmed_at(self) -> datetime | None:
        """When the Secret was last read and found to be what is served."""
        return self._confirmed_at

    @property
    def phase(self) -> Phase | None:
        """Where a rotation stood when the Secret was last read; None before."""
        return None if self._record_seen is None else self._record_seen.phase

    async def look(self) -> bool:
        """
        Read the Secret and serve what it holds; False while it holds nothing yet.

        Raises:
            CertificateError: what it holds can't be served; the leaf before is served on.
            ApiError: the API fails; the leaf before is served on.
        """
        record = await self._record()
        if record is None:
            return False
        if self.serving.leaf is None:
            record = await self._first(record)
        elif facts_of(record.leaf.certificate) != self.serving.leaf:
            self._swap(record)
        await self._say()
        self._record_seen = record
        self._confirmed_at = self.clock()
        return True

    async def leave(self) -> None:
        """Say that this replica serves no more. Raises ApiError: the report grows old by itself."""
        await self.reports.leave(self.replica)

    async def _first(self, record: SecretRecord) -> SecretRecord:
        for _ in range(_TRIES_MAX):
            leaf = facts_of(record.leaf.certificate)
            await self.reports.say(self.replica, leaf.fingerprint, self.clock())
            again = await self._record()
            if again is not None and facts_of(again.leaf.certificate) == leaf:
                self._swap(again)
                return again
            if again is not None:
                record = again
        raise CertificateError(f"the Secret keeps changing: secret={self.secret_path}")

    def _swap(self, record: SecretRecord) -> None:
        # One that leads renews the leaf when it wants another name. Until then, such as in the
        # middle of a roll-out, a leaf for some of our names is better than none.
        covered = facts_of(record.leaf.certificate).names
        names = [name for name in self.names if name in covered] or self.names
        self.serving.swap(record.leaf, record.bundle, names, now=self.clock())

    async def _say(self) -> None:
        leaf, now = self.serving.leaf, self.clock()
        assert leaf is not None, "something is served by now"
        known, at = self._said or ("", now)
        if known == leaf.fingerprint and now - at < SAY_AGAIN:
            return
        await self.reports.say(self.replica, leaf.fingerprint, now)
        self._said = (leaf.fingerprint, now)

    async def _record(self) -> SecretRecord | None:
        secret = await self.objects.read(self.secret_path)
        return None if secret is None else read_record(secret)
