"""`tenure release --force`: what an ended Pod, or a claim, holds is over, by somebody's word."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ledger.domain.errors import InputError
from scheduler.cluster.objects import ALONE
from tenure.exits import AnswerIsNo, note, with_next
from tenure.live.place import Place, asks, service_of
from tenure.names import PodName, parse_name


@asks(but=("ledger", "namespace"))
def release(
    holder: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="A Pod that has ended, or a claim.")
    ],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Who made sure that nothing runs, how.")],
    force: Annotated[
        bool, typer.Option("--force", help="Its node does not say so: by your word alone.")
    ] = False,
    uid: Annotated[str, typer.Option("--uid", help="Which one, where several had the name.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be released.")
    ] = False,
    place: Place,
) -> None:
    """
    Release what an ended Pod, or a claim, holds on a node that does not confirm its end.

    Of a claim all Pods have ended. The live service does it, in your name. Exit 1: nothing of it
    waits for its node.

    Example: tenure release ml/train-7 --force --reason "node powered off, ticket 12" --live
    """
    if not force:
        error = InputError("a node that answers releases by itself", field="--force")
        raise with_next(error, "make sure that nothing of it runs, then give --force")
    if not reason.strip():
        raise InputError("say who made sure that nothing runs, and how", field="--reason")
    alone, _, pod_name = holder.rpartition("/")
    names = (PodName(namespace=alone, name=pod_name),) if alone == ALONE else parse_name(holder)
    name = next((one for one in names if isinstance(one, PodName)), None)
    if name is None:
        raise InputError(f"expected NAMESPACE/NAME: value={holder!r}", field="NAMESPACE/NAME")
    service = service_of(place)
    released, let_go = service.release(
        name.namespace, name.name, uid=uid, reason=reason, dry_run=dry_run
    )
    would = "would be " if dry_run else ""
    for one in released:
        sys.stdout.write(f"{would}released: name={holder}, uid={one}\n")
    for one in let_go:
        fact = "is free once its controller takes the allocation away, which it is told to"
        sys.stdout.write(f"{would}let go: claim={holder}, uid={one}: {fact}\n")
    if not (released or let_go):
        note(f"nothing of it waits for its node: name={holder}")
        raise AnswerIsNo
