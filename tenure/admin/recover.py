"""`tenure ledger recover`: a restored ledger beside the Pods and witnesses of its cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_in
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION, ANNOTATION_TENURE_PROOF
from tenure.exits import AnswerIsNo, with_next
from tenure.keys import public_key as read_key
from tenure.opening import clock_us, opened
from tenure.options import LedgerUrl, Output
from tenure.output import Column, OutputFormat, fitted, write_answer
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.domain.log.standing import Standing, Witness
    from ledger.store.mending.recover import Outcome, Recovery, SeenPod


HOLDER: Final = "tenure ledger recover"
_ENDED: Final = ("Succeeded", "Failed")
_PAGE: Final = 500
_PAGES_MAX: Final = 2_000
_COLUMNS: Final = (
    Column(key="what", title="WHAT"),
    Column(key="pod", title="POD"),
    Column(key="node", title="NODE"),
    Column(key="cards", title="CARDS", right=True),
    Column(key="cpus", title="CPUS", right=True),
    Column(key="fact", title="FACT"),
)


def recover(
    *,
    pods: Annotated[
        str | None,
        typer.Option(
            "--pods",
            metavar="FILE",
            help="The cluster's Pods: YAML or JSON, or -.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Read Pods, and what the scheduler has seen, from this cluster.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", help="Namespace of Tenure's own, with --kubeconfig.")
    ] = "tenure-system",
    public_keys: Annotated[
        list[str],
        typer.Option(
            "--public-key",
            metavar="VKEY",
            help="The key that signs allocations, or its file; again for another, or for proofs.",
        ),
    ],
    witness: Annotated[
        str | None,
        typer.Option(
            "--witness",
            metavar="FILE",
            help="What agents have seen of the ledger, or the scheduler's ConfigMap.",
            show_default=False,
        ),
    ] = None,
    all_pods: Annotated[
        bool,
        typer.Option("--all-pods", help="FILE is every Pod there is: release the other holdings."),
    ] = False,
    api_restored: Annotated[
        bool,
        typer.Option("--api-restored", help="The API server's store was put back from a backup."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, record nothing.")
    ] = False,
    ledger: LedgerUrl = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Open a restored ledger again: name what it lost, hold again what signed Pods hold.

    Exit 1 when a Pod's allocation is not believed.

    Example: tenure ledger recover --pods pods.yaml --public-key tenure.vkey --dry-run
    """
    import secrets

    from ledger.store.mending.recover import recover
    from ledger.store.proving.checkpoints import trusted_keys

    if (pods is None) == (kubeconfig is None):
        raise with_next(InputError("of --pods and --kubeconfig one is needed"), "give one of them")
    keys = [read_key(text) for text in public_keys]
    witnesses = _witnesses(Path(witness)) if witness else []
    if pods is not None:
        seen = _dumped(pods)
    else:
        seen, kept = _asked(kubeconfig, namespace)
        witnesses += kept
    with opened(ledger, mode="write") as source:
        trusted = trusted_keys(source, keys)
        try:
            found = recover(
                source,
                seen,
                witnesses,
                incarnation=f"i-{secrets.token_hex(4)}",
                check=trusted.check,
                doubt=trusted.doubt,
                holder=HOLDER,
                version=tenure_version(),
                wall_us=0 if source.is_simulation else clock_us(),
                all_pods=all_pods,
                api_restored=api_restored,
                dry_run=dry_run,
            )
        except InputError as error:
            raise with_next(error, "restore a copy of this cluster's own ledger") from None
    _write(found, dry_run=dry_run, output=output)
    if found.disbelieved:
        raise AnswerIsNo


def _dumped(path: str) -> list[SeenPod]:
    from tenure.manifests import read_manifests

    return [_pod(each.body, each.uid) for each in read_manifests([path]).of_kind("Pod")]


def _asked(kubeconfig: str | None, namespace: str) -> tuple[list[SeenPod], list[Witness]]:
    import asyncio

    from certs.ports import ApiError
    from scheduler.service.witnesses import config_map_path
    from tenure.kube.objects import connected

    async def asked() -> tuple[list[SeenPod], list[Witness]]:
        found: list[SeenPod] = []
        following = ""
        async with connected(kubeconfig) as objects:
            for _ in range(_PAGES_MAX):
                query = f"limit={_PAGE}&continue={quote(following)}"
                page = await objects.read(f"/api/v1/pods?{query}") or {}
                items = page.get("items") or ()
                found += [_pod(item, str(item["metadata"]["uid"])) for item in items]
                following = (page.get("metadata") or {}).get("continue") or ""
                if not following:
                    break
            kept = await objects.read(config_map_path(namespace))
        return found, [] if kept is None else [_kept(kept)]

    try:
        return asyncio.run(asked())
    except ApiError as error:
        raise with_next(InputError(str(error)), "give a dump with --pods instead") from error


def _pod(body: Mapping[str, Any], uid: str) -> SeenPod:
    from ledger.store.mending.recover import SeenPod

    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    return SeenPod(
        uid=uid,
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        node_name=text_in(body, "spec", "nodeName"),
        running=text_in(body, "status", "phase") not in _ENDED,
        allocation=annotations.get(ANNOTATION_TENURE_ALLOCATION),
        proof=annotations.get(ANNOTATION_TENURE_PROOF),
    )


def _kept(item: Mapping[str, Any]) -> Witness:
    from scheduler.service.witnesses import kept_witness

    return kept_witness(item)


def _witnesses(path: Path) -> list[Witness]:
    from ledger.domain.log.codec import decode_value
    from ledger.domain.log.standing import Witness
    from tenure.sources.text import read_source

    source = read_source(path)
    found: list[Witness] = []
    for number, document in enumerate(source.documents):
        if document is None:
            continue
        several = isinstance(document, list)
        for place, item in enumerate(document if several else [document]):
            at = f"[{place}]" if several else ""
            is_object = isinstance(item, dict) and item.get("kind") == "ConfigMap"
            try:
                found.append(_kept(item) if is_object else decode_value(Witness, item, at))
            except InputError as error:
                raise error.at(source.place_of(number, error.field)) from None
    return found


def _write(found: Recovery, *, dry_run: bool, output: OutputFormat) -> None:
    rows = [
        *(_row(f"{each.kind} again", each) for each in found.recreated),
        *(_row("released", each) for each in found.released),
        *(_row("unconfirmed", each) for each in found.unconfirmed),
        *(_row("not believed", each) for each in found.disbelieved),
    ]
    if output.is_table:
        sys.stdout.write(fitted(_summary(found, dry_run=dry_run)))
        if not rows:
            return
    write_answer(output, rows, _COLUMNS, document=_document(found, rows, dry_run=dry_run))


def _row(what: str, each: Outcome) -> dict[str, Any]:
    return {
        "what": what,
        "pod": each.pod,
        "pod_uid": each.pod_uid,
        "attempt": each.attempt or None,
        "node": each.node,
        "cards": each.cards if each.attempt else None,
        "cpus": each.cpus if each.attempt else None,
        "fact": each.fact,
    }


def _document(found: Recovery, rows: list[dict[str, Any]], *, dry_run: bool) -> dict[str, Any]:
    return {
        "standing": _standing(found.standing),
        "lost": _lost(found.standing),
        "incarnation": found.incarnation,
        "opened": found.opened,
        "dry_run": dry_run,
        "head": found.position,
        "epoch": found.epoch,
        "pods": rows,
    }


def _standing(standing: Standing) -> str:
    from ledger.domain.log.standing import Behind

    return "behind" if isinstance(standing, Behind) else "whole"


def _lost(standing: Standing) -> list[dict[str, Any]]:
    from ledger.domain.log.standing import Behind

    lost = standing.lost if isinstance(standing, Behind) else ()
    return [{"incarnation": e.incarnation, "from": e.first, "to": e.last} for e in lost]


def _summary(found: Recovery, *, dry_run: bool) -> str:
    lines = [
        f"lost: positions {each['from']} to {each['to']} of incarnation {each['incarnation']}"
        for each in _lost(found.standing)
    ] or ["lost: nothing that anybody has seen"]
    if found.opened and not dry_run:
        lines.append(f"opened: incarnation {found.incarnation}, epoch {found.epoch}")
    lines.append("dry run: nothing is recorded" if dry_run else f"head: position {found.position}")
    return "".join(f"{line}\n" for line in lines)
