"""`tenure defrag plan`: the cluster, the request, and the plan as a table or as data."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.cpuset import CpuSet
from ledger.domain.errors import InputError
from tenure.commands import Commands, command_of
from tenure.exits import AnswerIsNo, warn, with_next
from tenure.names import PodName, parse_name
from tenure.opening import LEDGER_VARIABLE, opened
from tenure.options import LedgerUrl, ObjectFiles, Output
from tenure.output import Column, OutputFormat, fitted, one_line, write_answer

if TYPE_CHECKING:
    from ledger.domain.devices import DeviceShare
    from ledger.domain.request.requests import PodRequest
    from ledger.domain.vocabulary import Vocabulary
    from scheduler.cluster.model import ClusterSnapshot
    from scheduler.cluster.snapshot import FileObjects
    from scheduler.whatif.defrag import DefragPlan, Move, NoPlan
    from scheduler.whatif.what_if import WhatIf
    from tenure.manifests import Manifests


_of_search = partial(typer.Option, rich_help_panel="The search")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was typed; of a request either `name` or `file`."""

    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE/POD", help="A Pod that waits, of the ledger or of --objects."
        ),
    ] = None
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="A Pod manifest.")
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


def register(app: typer.Typer) -> None:
    """Add the `defrag` group to the command line."""
    group = typer.Typer(
        cls=Commands,
        help="Make room by moving Pods.",
        no_args_is_help=True,
    )
    group.callback()(_group)
    group.command("plan")(command_of(Options, _plan))
    app.add_typer(group, name="defrag")


def _group() -> None:
    """Make room by moving Pods."""


def _plan(options: Options) -> None:
    """
    Propose moves that make room for a request. Nothing is moved, nothing is written.

    Exit 0: a plan, or no move is needed. Exit 1: none was found, and why.

    Example: tenure defrag plan ml/big-1

    For a Pod that does not exist yet: tenure defrag plan -f pod.yaml

    A live cluster without a ledger: kubectl get nodes,pods -A -o json | tenure defrag plan
    -f pod.yaml --objects -
    """
    from scheduler.whatif.defrag import DECISIONS_MAX, NoPlan, plan_moves
    from scheduler.whatif.what_if import what_if_of

    if (options.name is None) == (options.file is None):
        error = InputError("one request is needed: NAMESPACE/POD or --file")
        raise with_next(error, "see `tenure defrag plan --help`")
    kept = frozenset(str(_pod_name(name, "--keep")) for name in options.keep or ())
    cluster = _scene(options.objects or (), options.ledger)
    if not cluster.knows_nodes:
        error = InputError("the ledger does not record what deciding reads of the nodes")
        raise with_next(error, "name their files by --objects")
    request = _request(options, cluster)
    unknown = kept - {holder.path for holder in cluster.holders}
    if unknown:
        raise InputError(f"holds nothing: {', '.join(sorted(unknown))}", field="--keep")
    what_if = what_if_of(cluster, request.uid, kept=kept)
    answer = plan_moves(request, what_if, decisions_max=options.decisions or DECISIONS_MAX)
    document = _document(request, answer, what_if, cluster)
    _write(request, answer, document, options.output)
    if isinstance(answer, NoPlan):
        raise AnswerIsNo


def _scene(files: Sequence[str], ledger: str | None) -> ClusterSnapshot:
    from scheduler.cluster.snapshot import (
        of_files,
        read_objects,
        settings_of,
        snapshot_of_ledger,
        snapshot_of_objects,
    )
    from scheduler.decide.settings import SchedulingSettings
    from tenure.manifests import as_admitted, read_manifests

    manifests = as_admitted(read_manifests(files)) if files else None

    def objects(manifests: Manifests, settings: SchedulingSettings) -> FileObjects:
        found = read_objects(manifests, settings)
        for each in found.unreadable:
            warn(str(each))
        return found

    if manifests and ledger is None and not os.environ.get(LEDGER_VARIABLE):
        settings = of_files(SchedulingSettings(), manifests)
        return snapshot_of_objects(objects(manifests, settings), settings)
    with opened(ledger) as source:
        settings = settings_of(source)
        found = objects(manifests, settings) if manifests else None
        return snapshot_of_ledger(source, found, settings)


def _request(wanted: Options, cluster: ClusterSnapshot) -> PodRequest:
    if wanted.file is not None:
        return _request_of_file(wanted.file, cluster.settings.vocabulary)
    return _waiting(_pod_name(wanted.name or "", "NAMESPACE/POD"), cluster)


def _request_of_file(path: Path, vocabulary: Vocabulary) -> PodRequest:
    from ledger.domain.request.normalise import examine_pod
    from tenure.manifests import as_admitted, read_manifests

    pods = as_admitted(read_manifests([str(path)])).of_kind("Pod")
    if len(pods) != 1:
        raise InputError(f"one Pod is needed: pods={len(pods)}", field="--file", place=str(path))
    try:
        request, errors = examine_pod(pods[0].body, vocabulary)
        errors = (*pods[0].errors, *errors)
    except InputError as error:
        raise pods[0].blame(error) from None
    if errors:
        raise pods[0].blame(InputError("; ".join(map(str, errors))))
    return request


def _waiting(name: PodName, cluster: ClusterSnapshot) -> PodRequest:
    holding = {holder.uid for holder in cluster.holders}
    found = [
        request
        for uid, request in cluster.requests.items()
        if (request.namespace, request.name) == (name.namespace, name.name)
    ]
    waiting = [request for request in found if request.uid not in holding]
    if waiting:
        return waiting[-1]
    if found:
        raise with_next(
            InputError("it holds its place already", place=str(name)), f"see `tenure why {name}`"
        )
    error = InputError("no request of this name is known", place=str(name))
    raise with_next(error, "name its manifest by --file")


def _pod_name(text: str, field: str) -> PodName:
    for reading in parse_name(text):
        if isinstance(reading, PodName):
            return reading
    raise InputError(f"not NAMESPACE/POD: value={text!r}", field=field)


# --- as data ----------------------------------------------------------------------------------


def _document(
    request: PodRequest, answer: DefragPlan | NoPlan, what_if: WhatIf, cluster: ClusterSnapshot
) -> dict[str, Any]:
    from scheduler.record.events import shape_of
    from scheduler.whatif.defrag import DefragPlan, NoPlan

    fixed = Counter(holder.fixed for holder in what_if.holders.values() if holder.fixed)
    plan = None
    if isinstance(answer, DefragPlan):
        place = answer.place
        plan = {
            "moves": [_move(move) for move in answer.moves],
            "place": _place(place.node_name, place.shares, place.cpuset),
        }
    return {
        "request": {
            "namespace": request.namespace,
            "name": request.name,
            "uid": request.uid,
            "shape": shape_of(request),
        },
        "plan": plan,
        "proved": isinstance(answer, NoPlan) and answer.proved,
        "why": "" if isinstance(answer, DefragPlan) else answer.why,
        "cut": list(answer.cut),
        "not_moved": dict(sorted(fixed.items())),
        "untold": list(cluster.untold),
    }


def _move(move: Move) -> dict[str, Any]:
    held, to = move.holder.held, move.to
    return {
        "step": move.step,
        "pod": move.holder.path,
        "pod_uid": held.pod_uid,
        "group": move.holder.group,
        "from": _place(held.node_name or to.node_name, held.shares, held.cpuset),
        "to": _place(to.node_name, to.shares, to.cpuset),
        "room_first": move.room_first,
    }


def _place(node: str, shares: Sequence[DeviceShare], cpuset: CpuSet) -> dict[str, Any]:
    return {
        "node": node,
        "devices": [
            {
                "type": share.device_type,
                "minor": share.minor,
                "id": share.device_id,
                "core_percent": share.core_percent,
                "memory_bytes": share.memory_bytes,
            }
            for share in shares
        ],
        "cpuset": str(cpuset),
    }


# --- for people -------------------------------------------------------------------------------


def _write(
    request: PodRequest, answer: DefragPlan | NoPlan, document: dict[str, Any], output: OutputFormat
) -> None:
    def say(line: str) -> None:
        text = one_line(line) + "\n"
        sys.stdout.write(text if output is OutputFormat.WIDE else fitted(text))

    plan = document["plan"]
    moves = plan["moves"] if plan else []
    if not output.is_table:
        write_answer(output, moves, MOVE_COLUMNS, document=document)
        return
    say(_head(request, answer))
    if moves:
        write_answer(output, moves, MOVE_COLUMNS)
    if plan:
        say(f"then {request.path} fits on {_text(plan['place'])}")
    for text in document["cut"]:
        say(f"bound met: {text}")
    for why, count in document["not_moved"].items():
        say(f"not moved: {count} Pod{'' if count == 1 else 's'}: {why}")
    for text in document["untold"]:
        say(f"not recorded, so not looked at (--objects FILE tells): {text}")


def _head(request: PodRequest, answer: DefragPlan | NoPlan) -> str:
    from scheduler.record.events import shape_of
    from scheduler.whatif.defrag import NoPlan

    asks = f"{request.path}, which asks for {shape_of(request)}"
    if isinstance(answer, NoPlan):
        none = "no plan makes room" if answer.proved else "no plan was found that makes room"
        return f"{none} for {asks}: {answer.why}"
    if not answer.moves:
        return f"no move is needed for {asks}"
    if len(answer.moves) == 1:
        return f"1 move makes room for {asks}"
    return f"{len(answer.moves)} moves make room, perhaps fewer do, for {asks}"


def _text(place: dict[str, Any]) -> str:
    """Return a place as people read it: `n-1 gpu:0,gpu:1(50%) cpus 0-3`."""
    devices = ",".join(
        f"{device['type']}:{device['minor']}"
        + ("" if device["core_percent"] in {0, 100} else f"({device['core_percent']}%)")
        for device in place["devices"]
    )
    cpus = f"cpus {place['cpuset']}" if place["cpuset"] else ""
    return " ".join(part for part in (place["node"], devices, cpus) if part)


MOVE_COLUMNS: Final = (
    Column(key="step", title="STEP", right=True),
    Column(key="pod", title="POD"),
    Column(key="pod_uid", title="POD UID", wide=True),
    Column(key="group", title="GROUP", wide=True),
    Column(key="from", title="FROM", show=_text),
    Column(key="to", title="TO", show=_text),
    Column(key="room_first", title="ROOM FIRST", show=lambda first: "yes" if first else "no"),
)
