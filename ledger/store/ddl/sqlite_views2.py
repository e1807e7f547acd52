"""
The audit views of revision 0002 on SQLite: some in place of those of 0001, the others beside them.

Fields of a body are read with `json_each`, which any reader may call; SQLite 3.40 keeps the JSON
functions from views wherever the schema is not trusted, as it is for every reader of ours.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import audit_views

_REPLACED: Final = (
    "audit_holdings",
    "audit_cpu_holdings",
    "audit_reservations",
    "audit_device_health",
    "audit_refusals",
    "audit_usage_days",
    "audit_events",
)


class SqliteWords:
    """SQLite's words; see `audit_views.Words`."""

    def iso(self, us: str) -> str:
        """Return a moment as text."""
        return f"strftime('%Y-%m-%dT%H:%M:%SZ', {us} / 1000000, 'unixepoch')"

    def date(self, day: str) -> str:
        """Return a day as text."""
        return f"date({day} * 86400, 'unixepoch')"

    def least(self, a: str, b: str) -> str:
        """Return the smaller number."""
        return f"min({a}, {b})"

    def greatest(self, a: str, b: str) -> str:
        """Return the greater number."""
        return f"max({a}, {b})"

    def text(self, body: str, name: str) -> str:
        """Return a field as text."""
        return f"(SELECT f.value FROM json_each({body}, '$.{name}') AS f)"

    def number(self, body: str, name: str) -> str:
        """Return a field as an integer."""
        return self.text(body, name)

    def json(self, body: str, name: str) -> str:
        """Return a field as JSON text."""
        return f"(SELECT f.value FROM json_each({body}) AS f WHERE f.key = '{name}')"

    def elements(self, body: str, name: str, alias: str) -> str:
        """Return the elements of an array."""
        return f"json_each({body}, '$.{name}') AS {alias}"

    def pairs(self, body: str, alias: str) -> str:
        """Return the fields of an object."""
        return f"json_each({body}) AS {alias}"


V2: Final = (
    *(f"DROP VIEW {name}" for name in _REPLACED),
    *audit_views.create_views(SqliteWords()),
)
"""The statements of revision 0002."""
