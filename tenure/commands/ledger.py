"""`tenure ledger`: make, upgrade, rebuild and query a ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands.ask import Ledger, Output
from tenure.output import OutputFormat


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="Make, upgrade, rebuild and query a ledger.", no_args_is_help=True)
    group.command("init")(init)
    group.command("upgrade")(upgrade)
    group.command("rebuild")(rebuild)
    group.command("sql")(sql)
    app.add_typer(group, name="ledger")


def init(*, ledger: Ledger = None) -> None:
    """
    Make a new, empty ledger.

    Example: tenure ledger init --ledger tenure.db
    """
    from tenure.asking.admin import answer_init

    answer_init(ledger=ledger)


def upgrade(*, ledger: Ledger = None) -> None:
    """
    Bring the schema of a ledger to this release. Events are never touched.

    Example: tenure ledger upgrade --ledger tenure.db
    """
    from tenure.asking.admin import answer_upgrade

    answer_upgrade(ledger=ledger)


def rebuild(*, ledger: Ledger = None, output: Output = OutputFormat.TABLE) -> None:
    """
    Make every projection again from the events. Exit 1 if it was not equal to the one before.

    Example: tenure ledger rebuild --ledger run.db
    """
    from tenure.asking.admin import answer_rebuild

    answer_rebuild(ledger=ledger, output=output)


def sql(
    statement: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT statement.")],
    *,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Ask in SQL, read-only. The views audit_* are stable and documented.

    Example: tenure ledger sql "SELECT namespace, sum(gpu_hours) FROM audit_usage_days GROUP BY 1"
    """
    from tenure.asking.admin import answer_sql

    answer_sql(statement, ledger=ledger, output=output)
