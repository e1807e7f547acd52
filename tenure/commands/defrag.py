"""`tenure defrag plan`: the fewest moves that make room for a request, as data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ledger.domain.dialects.names import OUR_DIALECT, Dialect
from tenure.commands.ask import Ledger, Objects, Output
from tenure.output import OutputFormat

REQUEST = "The request"
SEARCH = "The search"


class CpuScope(StrEnum):
    """Where CPUs of its own must be together."""

    NUMA = "numa"
    SOCKET = "socket"


def register(app: typer.Typer) -> None:
    """Add the `defrag` group to the command line."""
    group = typer.Typer(help="Make room by moving Pods.", no_args_is_help=True)
    group.callback()(_group)
    group.command("plan")(plan)
    app.add_typer(group, name="defrag")


def _group() -> None:
    """Make room by moving Pods."""


def plan(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE/POD",
            help="A Pod that waits, of the ledger or of --objects.",
            show_default=False,
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="A Pod manifest.", rich_help_panel=REQUEST
        ),
    ] = None,
    dialect: Annotated[
        Dialect,
        typer.Option(help="The words of the options below.", rich_help_panel=REQUEST),
    ] = OUR_DIALECT,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="GPUs: whole ones, or a part of one such as 0.5.",
            show_default=False,
            rich_help_panel=REQUEST,
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="GPU memory in all, such as 20Gi.",
            show_default=False,
            rich_help_panel=REQUEST,
        ),
    ] = None,
    gpu_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Only GPUs of this model.",
            show_default=False,
            rich_help_panel=REQUEST,
        ),
    ] = None,
    cpu: Annotated[
        str | None,
        typer.Option(metavar="N", help="CPUs.", show_default=False, rich_help_panel=REQUEST),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory, such as 8Gi.", show_default=False, rich_help_panel=REQUEST
        ),
    ] = None,
    own_cpus: Annotated[
        bool,
        typer.Option("--own-cpus", help="The CPUs for itself (LSR).", rich_help_panel=REQUEST),
    ] = False,
    cpu_scope: Annotated[
        CpuScope | None,
        typer.Option(
            help="Its own CPUs on one NUMA node or socket.",
            show_default=False,
            rich_help_panel=REQUEST,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/POD",
            help="A Pod that may not be moved. May be given several times.",
            show_default=False,
            rich_help_panel=SEARCH,
        ),
    ] = None,
    decisions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000_000,
            help="Bound of the exact search. Default: 20000.",
            show_default=False,
            rich_help_panel=SEARCH,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Accepted as with every act: a plan never acts.")
    ] = True,
    objects: Objects = None,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Propose the fewest moves that make room for a request. Nothing is moved, nothing is written.

    Exit 0: a plan, or no move is needed. Exit 1: there is none, and why.

    Example: tenure defrag plan ml/big-1

    For what does not exist yet: tenure defrag plan --gpus 4 --dialect nvidia --cpu 32

    Eight CPUs of one NUMA node: tenure defrag plan --cpu 8 --own-cpus --cpu-scope numa

    A live cluster without a ledger: kubectl get nodes,pods -A -o json | tenure defrag plan
    -f pod.yaml --objects -
    """
    from tenure.asking.defrag import answer_defrag
    from tenure.asking.wanted import Wanted

    del dry_run
    wanted = Wanted(
        name=name,
        file=file,
        dialect=dialect,
        gpus=gpus,
        gpu_memory=gpu_memory,
        gpu_model=gpu_model,
        cpu=cpu,
        memory=memory,
        own_cpus=own_cpus,
        cpu_scope=None if cpu_scope is None else cpu_scope.value,
    )
    answer_defrag(
        wanted,
        keep=keep or (),
        decisions=decisions,
        objects=objects or (),
        ledger=ledger,
        output=output,
    )
