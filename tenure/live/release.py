"""`tenure release --force`: what a Pod that has ended holds is over, by somebody's word."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ledger.domain.errors import InputError
from tenure.exits import AnswerIsNo, note, with_next
from tenure.live.place import Place, asks, service_of
from tenure.names import PodName, parse_name


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("release")(release)


@asks(but=("ledger", "namespace"))
def release(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="A Pod that has ended.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Who made sure that nothing runs, how.")],
    force: Annotated[
        bool, typer.Option("--force", help="Its node does not say so: by your word alone.")
    ] = False,
    uid: Annotated[str, typer.Option("--uid", help="Which Pod, where several had the name.")] = "",
    place: Place,
) -> None:
    """
    Release what an ended Pod holds on a node that does not confirm that nothing is left of it.

    The live service does it, in your name. Exit 1: nothing of the Pod waits for its node.

    Example: tenure release ml/train-7 --force --reason "node powered off, ticket 12" --live
    """
    if not force:
        error = InputError("a node that answers releases by itself", field="--force")
        raise with_next(error, "make sure that nothing of the Pod runs, then give --force")
    if not reason.strip():
        raise InputError("say who made sure that nothing runs, and how", field="--reason")
    name = next((one for one in parse_name(pod) if isinstance(one, PodName)), None)
    if name is None:
        raise InputError(f"expected NAMESPACE/POD: value={pod!r}", field="NAMESPACE/POD")
    released = service_of(place).release(name.namespace, name.name, uid=uid, reason=reason)
    for one in released:
        sys.stdout.write(f"released: pod={pod}, pod_uid={one}\n")
    if not released:
        note(f"nothing of it waits for its node: pod={pod}")
        raise AnswerIsNo
