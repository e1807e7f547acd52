"""`tenure ledger ...`: make, upgrade, rebuild and query a ledger."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ledger.domain.errors import InputError
from tenure.asking.opening import ledger_url, opened
from tenure.asking.proof import FINDINGS_SHOWN
from tenure.exits import AnswerIsNo, with_next
from tenure.output import Column, OutputFormat, one_line, write_answer
from tenure.parquet import Parquet

_VIEWS: Final = "SELECT name, sql FROM sqlite_schema WHERE type = 'view'"
_DIFFERENCE_COLUMNS: Final = (Column(key="difference", title="DIFFERENCE"),)


def answer_init(*, ledger: str | None) -> None:
    """
    Make a new, empty ledger.

    Raises:
        InputError: there is one already, or the place can't be written.
    """
    from ledger.store.open import open_ledger

    url = ledger_url(ledger)
    try:
        with open_ledger(url, mode="create") as made:
            sys.stdout.write(f"made {made.url}\n")
    except InputError as error:
        raise with_next(error, "name a file that does not exist yet: --ledger FILE") from None


def answer_upgrade(*, ledger: str | None) -> None:
    """Bring the schema of a ledger to this release; events are never touched."""
    from ledger.store.migrate import upgrade

    with opened(ledger, mode="upgrade") as source:
        upgrade(source.connection)
        sys.stdout.write("schema is that of this release\n")


def answer_rebuild(
    *, ledger: str | None, output: OutputFormat, segments: Path | None = None
) -> None:
    """
    Make the projections again from the events, and say whether they were equal.

    Args:
        segments: the folder of the archive, for a ledger whose first events moved there.

    Raises:
        InputError: events are in an archive, and its files are not at hand.
        AnswerIsNo: they were not; the differences are printed.
    """
    from ledger.store.projections.rebuild import rebuild

    with opened(ledger, mode="write") as source:
        report = rebuild(source, segments=segments)
    rows = [{"difference": str(difference)} for difference in report.differences]
    if output.is_table and report.equal:
        sys.stdout.write("projections rebuilt, byte for byte equal to the ones before\n")
    else:
        document = {"equal": report.equal, "differences": [row["difference"] for row in rows]}
        write_answer(output, rows[:FINDINGS_SHOWN], _DIFFERENCE_COLUMNS, document=document)
    if not report.equal:
        raise AnswerIsNo


def answer_sql(
    statement: str, *, ledger: str | None, output: OutputFormat, parquet: Parquet | None = None
) -> None:
    """
    Print the rows of a SELECT over the ledger, opened read-only, or write them as Parquet.

    Raises:
        InputError: SQL that does not run, or that would write.
    """
    from ledger.store.reading.query import run_sql

    with opened(ledger) as source:
        try:
            names, rows = run_sql(source, statement)
        except InputError as error:
            raise with_next(error, f'the views to ask: tenure ledger sql "{_VIEWS}"') from None
    keys = _distinct(names)
    records = [{key: _value(value) for key, value in zip(keys, row, strict=True)} for row in rows]
    if parquet is not None:
        parquet.write(records, keys)
        return
    columns = [Column(key=name, title=one_line(name)) for name in keys]
    write_answer(output, records, columns)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the column names, a second `x` as `x_2`, so that a record can carry both."""
    result: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in result:
            number += 1
            candidate = f"{name}_{number}"
        result.append(candidate)
    return result


def _value(value: object) -> object:
    """Return a value that every form of output can carry: bytes as hex."""
    return value.hex() if isinstance(value, bytes) else value
