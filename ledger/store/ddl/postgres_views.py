"""
The audit views on Postgres. Rows are the same as on SQLite.

Numbers are bigint, flags 0 or 1, hours double precision, everything else text.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import audit_views, sqlite_views


class PostgresWords:
    """Postgres's words; see `audit_views.Words`."""

    def iso(self, us: str) -> str:
        """Return a moment as text."""
        moment = f"to_timestamp({us} / 1000000) AT TIME ZONE 'UTC'"
        return f"""to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""

    def date(self, day: str) -> str:
        """Return a day as text."""
        return f"to_char(to_timestamp({day} * 86400) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"

    def least(self, a: str, b: str) -> str:
        """Return the smaller number."""
        return f"least({a}, {b})"

    def greatest(self, a: str, b: str) -> str:
        """Return the greater number."""
        return f"greatest({a}, {b})"

    def text(self, body: str, name: str) -> str:
        """Return a field as text."""
        return f"(CAST({body} AS json) ->> '{name}')"

    def number(self, body: str, name: str) -> str:
        """Return a field as an integer."""
        value = self.text(body, name)
        number = f"CASE {value} WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE {value} END"
        return f"CAST({number} AS bigint)"

    def json(self, body: str, name: str) -> str:
        """Return a field as JSON text."""
        return f"CAST(CAST({body} AS json) -> '{name}' AS text)"

    def elements(self, body: str, name: str, alias: str) -> str:
        """Return the elements of an array."""
        return f"json_array_elements(CAST({body} AS json) -> '{name}') AS {alias} (value)"

    def pairs(self, body: str, alias: str) -> str:
        """Return the fields of an object."""
        return f"json_each_text(CAST({body} AS json)) AS {alias} (key, value)"


VIEWS: Final = (
    *(text.strip() for text in (sqlite_views.DEVICES, sqlite_views.NODES)),
    *audit_views.create_views(PostgresWords()),
)
"""Every view, in the order in which they are made. The first two have no words of their own."""
CORRECTED: Final = audit_views.corrected_views(PostgresWords())
"""The views of a ledger whose clock was corrected, by name: in the place of those above."""
