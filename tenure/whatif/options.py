"""The command line of `tenure defrag plan`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ledger.domain.dialects.names import OUR_DIALECT, Dialect
from tenure.options import LedgerUrl, ObjectFiles, Output
from tenure.output import OutputFormat

_of_request = partial(typer.Option, rich_help_panel="The request")
_of_search = partial(typer.Option, rich_help_panel="The search")


class CpuScope(StrEnum):
    """Where CPUs of its own must be together."""

    NUMA = "numa"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was typed; of a request one of `name`, `file` and the options about amounts."""

    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE/POD", help="A Pod that waits, of the ledger or of --objects."
        ),
    ] = None
    file: Annotated[
        Path | None, _of_request("--file", "-f", metavar="FILE", help="A Pod manifest.")
    ] = None
    dialect: Annotated[Dialect, _of_request(help="The words of the options below.")] = OUR_DIALECT
    gpus: Annotated[
        str | None, _of_request(metavar="N", help="GPUs: whole ones, or a part of one such as 0.5.")
    ] = None
    gpu_memory: Annotated[
        str | None, _of_request(metavar="SIZE", help="GPU memory in all, such as 20Gi.")
    ] = None
    gpu_model: Annotated[
        str | None, _of_request(metavar="MODEL", help="Only GPUs of this model.")
    ] = None
    cpu: Annotated[str | None, _of_request(metavar="N", help="CPUs.")] = None
    memory: Annotated[str | None, _of_request(metavar="SIZE", help="Memory, such as 8Gi.")] = None
    own_cpus: Annotated[bool, _of_request("--own-cpus", help="The CPUs for itself (LSR).")] = False
    cpu_scope: Annotated[
        CpuScope | None, _of_request(help="Its own CPUs on one NUMA node or socket.")
    ] = None
    keep: Annotated[
        list[str] | None,
        _of_search(
            metavar="NAMESPACE/POD", help="A Pod that may not be moved. May be given several times."
        ),
    ] = None
    decisions: Annotated[
        int | None,
        _of_search(min=1, max=10_000_000, help="Bound of the search. Default: 20000."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Accepted as with every act: a plan never acts.")
    ] = True
    objects: ObjectFiles = None
    ledger: LedgerUrl = None
    output: Output = OutputFormat.TABLE

    @property
    def has_amounts(self) -> bool:
        """Tell whether the options describe a request."""
        amounts = (self.gpus, self.gpu_memory, self.gpu_model, self.cpu, self.memory)
        return self.own_cpus or any(value is not None for value in amounts)
