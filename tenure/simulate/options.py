"""`tenure simulate`: manifests or a trace in, placements out, every decision in a ledger."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from scheduler.decide.settings import PolicyName
from tenure.commands import command_of
from tenure.output import OutputFormat

_input = partial(typer.Option, rich_help_panel="Input")
_deciding = partial(typer.Option, rich_help_panel="Deciding")
_recording = partial(typer.Option, rich_help_panel="Recording and output")
SEED = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of `tenure simulate`, as typed."""

    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="YAML, JSON, lists, directories, or - for stdin: Nodes, Devices, Pods and so on.",
        ),
    ] = None
    openb_nodes: Annotated[Path | None, _input(metavar="CSV", help="Nodes of the openb trace.")] = (
        None
    )
    openb_pods: Annotated[Path | None, _input(metavar="CSV", help="Pods of the openb trace.")] = (
        None
    )
    openb_arrivals: Annotated[
        Path | None, _input(metavar="CSV", help="An exact order of arrival.")
    ] = None
    openb_node_rank: Annotated[
        Path | None, _input(metavar="CSV", help="An exact order of equal nodes.")
    ] = None
    inflate: Annotated[
        str | None,
        _input(
            metavar="RATIO",
            help="Shuffle, then draw more Pods until they ask for RATIO times the GPUs.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        _input(
            metavar="DIR",
            help="A trace of `tenure trace generate --like week`: Pods arrive, leave and wait.",
        ),
    ] = None
    schedule: Annotated[
        Path | None,
        _input(
            metavar="CSV",
            help="What happens when to the objects of FILE: Pods arrive and go, Nodes are lost, "
            "labels change, GPUs die.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        _deciding(metavar="FILE", help="Settings of scheduling, kind: SchedulerConfiguration."),
    ] = None
    policy: Annotated[
        PolicyName | None, _deciding(help="Node policy; default: the settings', else scarcity.")
    ] = None
    compare: Annotated[
        str | None,
        _deciding(
            metavar="P,P,...",
            help="Run several policies over the same arrivals and print one table.",
        ),
    ] = None
    seed: Annotated[
        int, _deciding(min=0, max=2**53 - 1, help="Of --inflate and the policy random.")
    ] = SEED
    now: Annotated[
        str | None,
        _deciding(
            metavar="TIME",
            help="Time of the events and annotations, with zone, or a date. Default: the present "
            "for manifests, 2023-01-01T00:00:00Z for openb, a trace's own time.",
        ),
    ] = None
    learn: Annotated[
        str | None,
        _deciding(
            metavar="URL",
            help="Learn what Pods are typical from this ledger, not from the arrivals.",
        ),
    ] = None
    ledger: Annotated[
        str | None,
        _recording(
            metavar="FILE",
            help="Keep the ledger here; must be new or empty. Default: temporary. TENURE_LEDGER is "
            "not read.",
        ),
    ] = None
    resume: Annotated[
        bool, _recording("--resume", help="Go on with an interrupted run of the same inputs.")
    ] = False
    batch: Annotated[
        int | None,
        _recording(
            min=1,
            max=1_000_000,
            help="Decisions per durable commit. Default: 1; 1000 in a temporary ledger.",
        ),
    ] = None
    strict: Annotated[bool, _recording("--strict", help="Exit 1 if a Pod has no place.")] = False
    output: Annotated[OutputFormat, _recording("--output", "-o", help="Form of the answer.")] = (
        OutputFormat.TABLE
    )


def _simulate(options: Options) -> None:
    """
    Decide where Pods go, as the live scheduler would, and record it in a ledger.

    Example: tenure simulate examples/

    A live cluster: kubectl get nodes,pods -A -o json | tenure simulate - -o json

    Policies compared: tenure simulate --openb-nodes nodes.csv --openb-pods pods.csv
    --inflate 1.3 --compare random,bestfit,fgd

    With times: tenure simulate examples/ --schedule schedule.csv

    A ledger to ask: tenure simulate examples/ --ledger run.db; tenure map --ledger run.db
    """
    from tenure.simulate.command import simulate_command

    simulate_command(options)


simulate: Final = command_of(Options, _simulate)
