"""The `tenure` command: its groups, its exit codes, and nothing else."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ledger.domain.errors import InputError
from tenure.commands import Commands, Verbs
from tenure.exits import run, with_next
from tenure.version import tenure_version

VERBS: Final = {
    "simulate": "tenure.simulate.options:simulate",
    "check": "tenure.check.options:check",
    "who": "tenure.query.who:who",
    "why": "tenure.query.why:why",
    "pods": "tenure.query.pods:pods",
    "usage": "tenure.query.usage:usage",
    "verify": "tenure.admin.verify:verify",
    "status": "tenure.query.status:status",
    "top": "tenure.query.top:top",
    "drift": "tenure.query.drift:drift",
    "doctor": "tenure.check.doctor:doctor",
    "release": "tenure.live.release:release",
    "map": "tenure.report.map:draw",
    "report": "tenure.report.report:report",
    "demo": "tenure.demo:demo",
    "help": "",
    "defrag": "tenure.whatif.defrag",
    "ledger": "tenure.admin.ledger",
    "trace": "tenure.simulate.trace.generate",
    "quota": "tenure.check.quota",
    "serve": "tenure.serving.serve",
    "agent": "tenure.serving.restoring",
    "manifests": "tenure.serving.manifests",
    "certs": "tenure.serving.certs",
}
"""
Every verb in the order of the help, and its function; of a group the module that registers it.

Our own have none.
"""

FIRST: Final = """\b
To begin with:
  tenure demo                                       a cluster's week, made up
  kubectl get nodes,pods -A -o json | tenure map -  who holds what, on any one
  tenure check FILE                                 what becomes of a manifest
"""


class _Tenure(Commands):
    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**given)
        self.commands = Verbs(VERBS, self.commands)


app = typer.Typer(
    name="tenure",
    cls=_Tenure,
    help="Who holds which device and which CPU, since when, and why.",
    epilog=FIRST,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tenure {tenure_version()}")
        raise typer.Exit


@app.callback()
def _tenure(
    *,
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Say which release this is and exit.",
            is_eager=True,
            callback=_say_version,
        ),
    ] = False,
) -> None:
    """Nothing but the options that come before a command."""


@app.command("help", context_settings={"ignore_unknown_options": True})
def _help(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]")] = None,
) -> None:
    """
    Show what a command does and takes.

    Example: tenure help who
    """
    assert context.parent is not None
    here, command = context.parent, context.parent.command
    for word in words or ():
        below = command.get_command(here, word) if isinstance(command, TyperGroup) else None
        if below is None:
            raise with_next(InputError(f"no such command: {word!r}"), "see `tenure --help`")
        here, command = type(here)(below, info_name=word, parent=here), below
    typer.echo(command.get_help(here))


def main() -> None:
    """Run the command line: exit 0 done, 1 the answer is no, 2 wrong usage or unreadable input."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy begins threads that nobody asks
    gc.set_threshold(50_000, 20, 100)  # what we keep is no cycles: a tenth of `verify` and `replay`
    sys.exit(run(app))
