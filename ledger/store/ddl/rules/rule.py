"""
A rule of the database as a value: where it is asked, in which case it refuses, and in which words.

Conditions and messages are SQL that both databases read alike. What they do not is a word with a
dollar in front, `$says(e.body, reason, NEW.reason)`, that `Dialect` names and each one writes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

Event = Literal["INSERT", "UPDATE", "DELETE"]
PREFIX: Final = "tenure ledger: "
ALWAYS: Final = ""
"""The condition of what is refused whatever the row is."""
_WORD: Final = re.compile(r"\$(\w+)\(")
_HOLE: Final = re.compile(r"\{(.*?)\}", re.DOTALL)


class Dialect(Protocol):
    """What databases say differently. `value` is `e.body` of an event, or `r.value` of an array."""

    def same(self, a: str, b: str) -> str:
        """Return that two values or rows are the same, NULL for NULL."""

    def differ(self, a: str, b: str) -> str:
        """Return that they are not."""

    def max(self, a: str, b: str) -> str:
        """Return the greater number."""

    def find(self, text: str, part: str) -> str:
        """Return where the part begins in the text, from 1; 0 if nowhere."""

    def begins(self, text: str, start: str) -> str:
        """Return that the text begins so; `start` ends with a literal."""

    def hex(self, column: str) -> str:
        """Return bytes as small hexadecimal digits."""

    def body(self, event: str) -> str:
        """Return what stands behind an event in FROM, so that its body is parsed once."""

    def each(self, value: str, field: str, alias: str) -> str:
        """Return the elements of an array, `alias.value`, to select from."""

    def says(self, value: str, field: str, column: str) -> str:
        """Return that the field has the value of the column: one of the same kind."""

    def tells(self, value: str, field: str, column: str) -> str:
        """Return that a truth in the field is what the column has as 1 or 0."""

    def has(self, value: str, field: str, column: str) -> str:
        """Return that the array in the field has the number of the column in it."""

    def text(self, value: str, field: str) -> str:
        """Return the field's text."""

    def flag(self, value: str, field: str) -> str:
        """Return a truth in the field as 1 or 0."""

    def json(self, value: str, field: str) -> str:
        """Return the field's JSON as it was written."""

    def no_object(self, text: str) -> str:
        """Return that the text is no JSON object."""

    def unclear(self, text: str, arrays: str) -> str:
        """
        Return that JSON functions could read this object differently.

        A name is there twice, in it or in an object of these `arrays`, or a number is not exact.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """
    The words of a refusal.

    Attributes:
        text: the message; what stands in braces is an expression of SQL.
        short: the message where a value in it is not known.
    """

    text: str
    short: str


class Case(NamedTuple):
    """
    A condition and how what meets it is refused.

    None lets a row through whatever comes behind; only the first case may, and it asks no other
    table.
    """

    condition: str
    refusal: Refusal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
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
) -> Rule:
    """Return a rule; see `Rule`."""
    return Rule(
        name=name,
        table=table,
        event=event,
        cases=cases,
        columns=columns,
        reads=reads,
        besides=besides,
    )


def said(text: str, short: str = "") -> Refusal:
    """Return words whose short form is, unless it is given, what stands before the first colon."""
    return Refusal(text=text, short=short or text.partition(":")[0])


def no_event(does: str, short: str = "", *, at: str = "NEW.position") -> Refusal:
    """Return the words for a row that its event does not tell of."""
    return Refusal(text=f"no event at position {{{at}}} {does}", short=f"no event {short or does}")


def never_changes(table: str, what: str, at: str = "position") -> Rule:
    """Return the rule that lets no row of `table` change."""
    refusal = said(f"{what} does not change: position {{OLD.{at}}}")
    return rule(f"{table}_no_update", table, "UPDATE", Case(ALWAYS, refusal))


def never_goes(table: str, what: str) -> Rule:
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


def message(refusal: Refusal) -> str:
    """Return the expression for the words of a refusal."""
    parts = _HOLE.split(PREFIX + refusal.text)
    literals = ["'" + part.replace("'", "''") + "'" for part in parts[::2]]
    woven = [text for pair in zip(literals, [*parts[1::2], "''"], strict=True) for text in pair]
    return " || ".join(each for each in woven if each != "''")


def written(text: str, dialect: Dialect) -> str:
    """Return a text of the rules with the dialect's words in the place of the common ones."""
    found = _WORD.search(text)
    if found is None:
        return text
    *given, rest = _arguments(text[found.end() :])
    word: str = getattr(dialect, found[1])(*(written(each, dialect) for each in given))
    return text[: found.start()] + word + written(rest, dialect)


def _arguments(text: str) -> Iterator[str]:
    """Yield what stands between commas up to the closing parenthesis, then what is behind it."""
    depth = start = 0
    for place, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            yield text[start:place].strip()
            start = place + 1
            if letter == ")":
                yield text[start:]
                return
        depth += {"(": 1, ")": -1}.get(letter, 0)
    raise AssertionError(text)
