"""`tenure agent ...`: acts of whoever is root on a node."""

from __future__ import annotations

import sys

import typer

from tenure.commands import Commands
from tenure.exits import AnswerIsNo, note
from tenure.serving.cpus_options import RestoreOptions
from tenure.serving.serve import serve_command

AGENT = typer.Typer(
    cls=Commands, name="agent", help="Act on the node that this runs on.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    AGENT.command("restore-cpus")(serve_command(RestoreOptions, restore_cpus))
    app.add_typer(AGENT)


def restore_cpus(options: RestoreOptions) -> None:
    """
    Give all CPUs back on this node, which `tenure serve cpus` is gone from, and have it say so.

    While it runs, take the Node's label tenure.sh/bind-cpus off: then it does this itself. Options
    are those of `tenure serve cpus`. Exit 1: something could not be given back.

    Example: tenure agent restore-cpus --dry-run
    """
    import asyncio

    from tenure.extras import needs

    with needs("agent,service"):
        from tenure.serving.cpus import restore

    done, failed = asyncio.run(restore(options))
    would = "would be " if options.dry_run else ""
    for line in done:
        sys.stdout.write(f"{would}written: {line}\n")
    for line in failed:
        note(f"not written: {line}")
    if failed:
        raise AnswerIsNo
