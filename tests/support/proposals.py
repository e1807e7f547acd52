"""
The proposals, statement by statement: docs/proposals.csv as rows, docs/proposals.md made of them.

`python -m tests.support.proposals` writes the page anew.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGE: Final = DOCS / "proposals.md"
_COLUMNS: Final = ("proposal", "heading", "statement", "state", "built", "tests", "shown", "note")
_HEADER: Final = (
    "| heading | statement | state | built in | shown | shown by |\n"
    "| --- | --- | --- | --- | --- | --- |"
)
_INTRO: Final = """\
# The proposals, statement by statement

What each proposal says, in our words, where it is built and the tests that show it; of HAMi, which
has none, its [contract](contracts/hami.md). The page is made from [proposals.csv](proposals.csv) by
`python -m tests.support.proposals`; `tests/unit/test_proposals_doc.py` checks that each file and
test is there.

- **holds**: built as the proposal says.
- **differs**: ours is another reading, with its reason in [divergences](DIVERGENCES.md).
- **does not hold**: not as the proposal says, and nothing yet explains it.
- **can't be tested**: says what it is for, and nothing that could be false.
- **untested**: built, and no test of its own shows it.

Where the strongest of a statement's tests shows it:

- **offline**: without a running service.
- **live**: on the real control plane (`tests/e2e`).
- **node**: on a real kubelet, with containerd and runc (`tests/node`).

What the webhook, the live scheduler or the agent serves is shown on a running cluster. The same
test checks it, by the files where a statement is built.
"""


class State(StrEnum):
    """How a statement stands."""

    HOLDS = "holds"
    DIFFERS = "differs"
    BROKEN = "does not hold"
    VAGUE = "can't be tested"
    UNTESTED = "untested"


class Shown(StrEnum):
    """Where the strongest of a statement's tests shows it."""

    OFFLINE = "offline"
    LIVE = "live"
    NODE = "node"
    NOWHERE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a proposal; `note` begins a row of DIVERGENCES.md, or says why."""

    proposal: str
    heading: str
    says: str
    state: State
    built: tuple[str, ...]
    tests: tuple[str, ...]
    shown: Shown
    note: str


def statements() -> tuple[Statement, ...]:
    """Return all statements, in the order of the file."""
    with (DOCS / "proposals.csv").open() as lines:
        rows = csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
        assert tuple(next(rows)) == _COLUMNS
        return tuple(_statement(row) for row in rows)


def _statement(row: list[str]) -> Statement:
    proposal, heading, says, state, built, tests, shown, note = row
    return Statement(
        proposal=proposal,
        heading=heading,
        says=says,
        state=State(state),
        built=tuple(built.split()),
        tests=tuple(tests.split()),
        shown=Shown(shown),
        note=note,
    )


def render(rows: tuple[Statement, ...]) -> str:
    """Return the page: a count by proposal, then a table for each."""
    proposals = [(name, list(group)) for name, group in groupby(rows, lambda row: row.proposal)]
    parts = [_INTRO, _totals(proposals)]
    for name, group in proposals:
        parts.append("\n".join([f"## {name}\n", _HEADER, *map(_line, group)]) + "\n")
    return "\n".join(parts)


def _totals(proposals: list[tuple[str, list[Statement]]]) -> str:
    lines = [f"| proposal | {' | '.join(State)} |", "| --- " * (1 + len(State)) + "|"]
    for name, group in proposals:
        counts = Counter(row.state for row in group)
        lines.append(f"| {name} | {' | '.join(str(counts[state]) for state in State)} |")
    return "\n".join(lines) + "\n"


def _line(row: Statement) -> str:
    built = ", ".join(f"[`{path}`](../{path})" for path in row.built)
    tests = ", ".join(f"[`{name}`](../{path})" for path, _, name in map(_parts, row.tests))
    return f"| {row.heading} | {row.says} | {_state(row)} | {built} | {row.shown} | {tests} |"


def _parts(test: str) -> tuple[str, str, str]:
    return test.partition("::")


def _state(row: Statement) -> str:
    if row.state is State.DIFFERS:
        return f"[differs](DIVERGENCES.md): {row.note}"
    return f"{row.state}: {row.note}" if row.note else str(row.state)


if __name__ == "__main__":
    PAGE.write_text(render(statements()))
