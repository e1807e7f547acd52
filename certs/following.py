"""A replica follows the Secret: what it reads it serves, and says so."""

from __future__ import annotations

from collections.abc import Callable
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


class Follower:
    """
    Keeps one replica's leaf that of the Secret.

    The first leaf is reported before it is served, and the Secret read again in between; every
    later one is served before it is reported. So an authority that is dropped because nobody
    reports its leaf has none that serves it.
    """

    def __init__(
        self,
        objects: Objects,
        reports: Reports,
        secret_path: str,
        serving: Serving,
        *,
        replica: str,
        names: tuple[str, ...],
        clock: Callable[[], datetime],
    ) -> None:
        self._objects = objects
        self._reports = reports
        self._secret_path = secret_path
        self._serving = serving
        self._replica = replica
        self._names = names
        self._clock = clock
        self._said: tuple[str, datetime] | None = None
        self._record_seen: SecretRecord | None = None
        self._confirmed_at: datetime | None = None

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
        if self._serving.leaf is None:
            record = await self._first(record)
        elif facts_of(record.leaf.certificate) != self._serving.leaf:
            self._swap(record)
        await self._say()
        self._record_seen = record
        self._confirmed_at = self._clock()
        return True

    async def leave(self) -> None:
        """Say that this replica serves no more. Raises ApiError: the report grows old by itself."""
        await self._reports.leave(self._replica)

    async def _first(self, record: SecretRecord) -> SecretRecord:
        for _ in range(_TRIES_MAX):
            leaf = facts_of(record.leaf.certificate)
            await self._reports.say(self._replica, leaf.fingerprint, self._clock())
            again = await self._record()
            if again is not None and facts_of(again.leaf.certificate) == leaf:
                self._swap(again)
                return again
            if again is not None:
                record = again
        raise CertificateError(f"the Secret keeps changing: secret={self._secret_path}")

    def _swap(self, record: SecretRecord) -> None:
        # One that leads renews the leaf when it wants another name. Until then, such as in the
        # middle of a roll-out, a leaf for some of our names is better than none.
        covered = facts_of(record.leaf.certificate).names
        names = [name for name in self._names if name in covered] or self._names
        self._serving.swap(record.leaf, record.bundle, names, now=self._clock())

    async def _say(self) -> None:
        leaf, now = self._serving.leaf, self._clock()
        assert leaf is not None, "something is served by now"
        known, at = self._said or ("", now)
        if known == leaf.fingerprint and now - at < SAY_AGAIN:
            return
        await self._reports.say(self._replica, leaf.fingerprint, now)
        self._said = (leaf.fingerprint, now)

    async def _record(self) -> SecretRecord | None:
        secret = await self._objects.read(self._secret_path)
        return None if secret is None else read_record(secret)
