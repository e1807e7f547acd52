"""`tenure ledger`: make, upgrade, rebuild and query a ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands import archive, clear, correct_time, proof, replay, travel, void, withdraw
from tenure.commands.ask import DataOutput, Ledger, Out, Output, Segments
from tenure.output import DataFormat, OutputFormat


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="Make, upgrade, rebuild and query a ledger.", no_args_is_help=True)
    group.command("init")(init)
    group.command("upgrade")(upgrade)
    group.command("rebuild")(rebuild)
    group.command("sql")(sql)
    group.command("recover")(recover)
    proof.register(group)
    travel.register(group)
    replay.register(group)
    archive.register(group)
    void.register(group)
    withdraw.register(group)
    correct_time.register(group)
    clear.register(group)
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


def rebuild(
    *, segments: Segments = None, ledger: Ledger = None, output: Output = OutputFormat.TABLE
) -> None:
    """
    Make every projection again from the events. Exit 1 if it was not equal to the one before.

    Example: tenure ledger rebuild --ledger run.db
    """
    from tenure.asking.admin import answer_rebuild

    answer_rebuild(ledger=ledger, output=output, segments=segments)


def sql(
    statement: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT statement.")],
    *,
    ledger: Ledger = None,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    Ask in SQL, read-only. The views audit_* are stable and documented.

    Example: tenure ledger sql "SELECT namespace, sum(gpu_hours) FROM audit_usage_days GROUP BY 1"
    """
    from tenure.asking.admin import answer_sql
    from tenure.parquet import parquet_target

    parquet = parquet_target(output, out)
    answer_sql(statement, ledger=ledger, output=output.text_form, parquet=parquet)


def recover(
    *,
    pods: Annotated[
        str, typer.Option("--pods", metavar="FILE", help="The cluster's Pods: YAML or JSON, or -.")
    ],
    public_keys: Annotated[
        list[str],
        typer.Option(
            "--public-key",
            metavar="VKEY",
            help="The key that signs allocations, or its file; again for another that did.",
        ),
    ],
    witness: Annotated[
        str | None,
        typer.Option(
            "--witness",
            metavar="FILE",
            help="What agents and ConfigMaps have seen of the ledger.",
            show_default=False,
        ),
    ] = None,
    all_pods: Annotated[
        bool,
        typer.Option("--all-pods", help="FILE is every Pod there is: release the other holdings."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, record nothing.")
    ] = False,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Open a restored ledger again: name what it lost, hold again what signed Pods hold.

    Exit 1 when a Pod's allocation is not believed.

    Example: tenure ledger recover --pods pods.yaml --public-key tenure.vkey --dry-run
    """
    from tenure.asking.recover import answer_recover

    answer_recover(
        ledger=ledger,
        pods=pods,
        public_keys=public_keys,
        witness=witness,
        all_pods=all_pods,
        dry_run=dry_run,
        output=output,
    )
