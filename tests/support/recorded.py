"""A ledger that one event after another is appended to, and what it then says."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from ledger.store.open import Ledger
from ledger.store.proving.verify import verify
from ledger.store.writing.append import Writer
from tests.support.stores import Clock, start


class Recorded:
    """A ledger that one event after another is appended to."""

    def __init__(self, ledger: Ledger, *events: LedgerEvent) -> None:
        self.ledger = ledger
        self.writer: Writer = start(ledger)
        self.clock = Clock()
        self.add(*events)

    def add(self, *events: LedgerEvent) -> None:
        """Append events, one commit each."""
        for event in events:
            self.writer.append([self.clock.new(event)])

    def refuses(self, event: LedgerEvent, message: str) -> None:
        """Expect that the database refuses `event`, and that nothing of it is left."""
        before = self.writer.head
        with pytest.raises(CapacityError, match=message):
            self.writer.append([self.clock.new(event)])
        assert self.writer.head == self.ledger.head() == before

    def device(self, minor: int = 0) -> dict[str, Any]:
        """Return the row of a GPU."""
        sql = f"SELECT * FROM ledger_devices WHERE device_type = 'gpu' AND minor = {minor}"
        with self.ledger.connection.begin():
            return dict(self.ledger.connection.exec_driver_sql(sql).mappings().one())

    def used(self, minor: int = 0) -> tuple[int, int, int, int]:
        """Return core percent, memory bytes, tenants and exclusive holders of a GPU."""
        row = self.device(minor)
        return row["core_used"], row["memory_used"], row["tenants"], row["exclusive_holders"]

    def proved(self) -> bool:
        """Verify all of it."""
        report = verify(self.ledger)
        assert report.findings == (), report.findings
        return report.ok
