"""
A rule of the database as a value: where it is asked, in which case it refuses, and in which words.

Conditions and messages are SQL that both databases read alike. What they do not is a word with a
dollar in front, `$says(e.body, reason, NEW.reason)`: `words.OF_RULES` has what each one writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Event = Literal["INSERT", "UPDATE", "DELETE"]
PREFIX: Final = "tenure ledger: "
ALWAYS: Final = ""
"""The condition of what is refused whatever the row is."""
_HOLE: Final = re.compile(r"\{(.*?)\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalWords:
    """The words of a refusal, with SQL in braces; `short` where a value in them is not known."""

    text: str
    short: str


class Case(NamedTuple):
    """A condition and its refusal. None, in the first case only, lets a row through at once."""

    condition: str
    refusal: RefusalWords | None  # a case with None asks no other table


class TableRule(NamedTuple):
    """
    Cases that are asked in turn of every row that an event on a table is about.

    Attributes:
        columns: the only ones whose UPDATE is asked.
        reads: a table, and what its row of the same keys is called in the cases; nulls if none is.
        cases: asked before the row is written; the first one that is met decides.
        besides: asked next, whatever the cases let through.
    """

    name: str
    table: str
    event: Event
    cases: tuple[Case, ...]
    columns: tuple[str, ...] = ()
    reads: tuple[str, str, tuple[str, ...]] | None = None
    besides: Case | None = None


def rule(
    name: str,
    table: str,
    event: Event,
    *cases: Case,
    columns: tuple[str, ...] = (),
    reads: tuple[str, str, tuple[str, ...]] | None = None,
    besides: Case | None = None,
) -> TableRule:
    """Return a rule; see `TableRule`."""
    return TableRule(name, table, event, cases, columns, reads, besides)


def said(text: str, short: str = "") -> RefusalWords:
    """Return words whose short form is, unless it is given, what stands before the first colon."""
    return RefusalWords(text=text, short=short or text.partition(":")[0])


def no_event(does: str, short: str = "", *, at: str = "NEW.position") -> RefusalWords:
    """Return the words for a row that its event does not tell of."""
    return RefusalWords(
        text=f"no event at position {{{at}}} {does}", short=f"no event {short or does}"
    )


def never_changes(table: str, what: str, at: str = "position") -> TableRule:
    """Return the rule that lets no row of `table` change."""
    refusal = said(f"{what} does not change: position {{OLD.{at}}}")
    return rule(f"{table}_no_update", table, "UPDATE", Case(ALWAYS, refusal))


def never_goes(table: str, what: str) -> TableRule:
    """Return the rule that lets no row of `table` go."""
    refusal = said(f"{what} are never deleted")
    return rule(f"{table}_no_delete", table, "DELETE", Case(ALWAYS, refusal))


def unchanged(columns: Iterable[str]) -> str:
    """Return the condition that an UPDATE leaves these columns as they are."""
    new, old = (", ".join(f"{row}.{each}" for each in columns) for row in ("NEW", "OLD"))
    return f"$same(({new}), ({old}))"


def event_is(*kinds: str) -> str:
    """Return the condition that the event `e` is of one of these types, in any version."""
    found = " OR ".join(f"$begins(e.event_type, '{kind}.v')" for kind in kinds)
    return f"({found})" if len(kinds) > 1 else found


def says_holder(row: str) -> str:
    """Return the condition that the event `e` is about the holder of a reservation's row."""
    return f"""CASE {row}.holder WHEN 'claim' THEN $says(e.body, claim_uid, {row}.pod_uid)
          ELSE $says(e.body, pod_uid, {row}.pod_uid) END
            AND $says(e.body, attempt, {row}.attempt)"""


def node_name(row: str) -> str:
    """Return the name of the node of NEW or OLD."""
    return f"(SELECT n.node_name FROM ledger_nodes AS n WHERE n.node_no = {row}.node_no)"


def card_of(row: str) -> str:
    """Return the words for the card that a row of devices is."""
    return f"""(
      SELECT 'card ' || n.node_name || '/' || {row}.device_type || '/' || {row}.minor
        || CASE {row}.device_id WHEN '' THEN '' ELSE ' (' || {row}.device_id || ')' END
      FROM ledger_nodes AS n WHERE n.node_no = {row}.node_no
    )"""


def held_card(row: str) -> str:
    """Return the words for the card of a holding."""
    return f"(SELECT {card_of('d')} FROM ledger_devices AS d WHERE d.device_no = {row}.device_no)"


def words(text: str) -> str:
    """Return the expression for words; what stands in braces is one itself."""
    parts = _HOLE.split(text)
    literals = ["'" + part.replace("'", "''") + "'" for part in parts[::2]]
    woven = [text for pair in zip(literals, [*parts[1::2], "''"], strict=True) for text in pair]
    return " || ".join(each for each in woven if each != "''")
