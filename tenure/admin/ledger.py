"""`tenure ledger ...`: make, upgrade, rebuild and query a ledger."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Final

import typer

from ledger.domain.errors import InputError
from tenure.admin import checkpoint
from tenure.admin.archive import archive
from tenure.admin.export import export
from tenure.admin.mending import clear, correct_time, void, withdraw
from tenure.admin.recover import recover
from tenure.admin.replay import replay
from tenure.admin.state import snapshot, state
from tenure.admin.verify import FINDINGS_SHOWN
from tenure.commands import Commands
from tenure.exits import AnswerIsNo, with_next
from tenure.opening import ledger_url, opened
from tenure.options import DataOutput, LedgerUrl, Out, Output, Segments
from tenure.output import Column, DataFormat, OutputFormat, one_line, write_answer

_DIFFERENCE_COLUMNS: Final = (Column(key="difference", title="DIFFERENCE"),)


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Commands, help="Make, upgrade, rebuild and query a ledger.", no_args_is_help=True
    )
    for verb in (init, upgrade, rebuild, sql, recover):
        group.command()(verb)
    checkpoint.register(group)
    for more in (export, state, snapshot, replay, archive, void, withdraw, correct_time, clear):
        group.command()(more)
    app.add_typer(group, name="ledger")


def init(*, ledger: LedgerUrl = None) -> None:
    """
    Make a new, empty ledger.

    Example: tenure ledger init --ledger tenure.db
    """
    from ledger.store.open import open_ledger
    from ledger.store.place import is_postgres

    url = ledger_url(ledger)
    try:
        with open_ledger(url, mode="create") as made:
            sys.stdout.write(f"made {made.url}\n")
    except InputError as error:
        file = "name a file that does not exist yet: --ledger FILE"
        database = "make a new database with `createdb` and name that: --ledger URL"
        raise with_next(error, database if is_postgres(url) else file) from None


def upgrade(*, ledger: LedgerUrl = None) -> None:
    """
    Bring the schema of a ledger to this release. Events are never touched.

    Example: tenure ledger upgrade --ledger tenure.db
    """
    from ledger.store.migrate import upgrade

    with opened(ledger, mode="upgrade") as source:
        upgrade(source.connection)
        sys.stdout.write("schema is that of this release\n")


def rebuild(
    *, segments: Segments = None, ledger: LedgerUrl = None, output: Output = OutputFormat.TABLE
) -> None:
    """
    Make every projection again from the events. Exit 1 if it was not equal to the one before.

    Example: tenure ledger rebuild --ledger run.db
    """
    with opened(ledger, mode="write") as source:
        from ledger.store.projections.rebuild import rebuild

        report = rebuild(source, segments=segments)
    rows = [{"difference": text} for text in (*report.differences, *report.untold)]
    if output.is_table and report.equal:
        sys.stdout.write("projections rebuilt, byte for byte equal to the ones before\n")
    if rows or not output.is_table:
        document = {
            "equal": report.equal,
            "differences": list(report.differences),
            "untold": list(report.untold),
        }
        write_answer(output, rows[:FINDINGS_SHOWN], _DIFFERENCE_COLUMNS, document=document)
    if rows:
        raise AnswerIsNo


def sql(
    statement: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT statement.")],
    *,
    ledger: LedgerUrl = None,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    Ask in SQL, read-only. The views audit_* are stable and documented.

    Example: tenure ledger sql "SELECT namespace, sum(gpu_hours) FROM audit_usage_days GROUP BY 1"
    """
    from tenure.parquet import parquet_target

    parquet = parquet_target(output, out)
    with opened(ledger) as source:
        from ledger.store.reading.query import VIEWS, run_sql

        try:
            names, rows = run_sql(source, statement)
        except InputError as error:
            views = VIEWS[source.engine.dialect.name]
            raise with_next(error, f'the views to ask: tenure ledger sql "{views}"') from None
    keys = _distinct(names)
    texts = ([each.hex() if isinstance(each, bytes) else each for each in row] for row in rows)
    records = [dict(zip(keys, row, strict=True)) for row in texts]
    if parquet is not None:
        parquet.write(records, keys)
        return
    if output is DataFormat.JSON:
        records = [{key: _of_json(value) for key, value in each.items()} for each in records]
    columns = [Column(key=name, title=one_line(name)) for name in keys]
    write_answer(output.text_form, records, columns)


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


def _of_json(value: object) -> object:
    """Return a value that JSON has: infinities and NaN, which it has not, as text."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value
