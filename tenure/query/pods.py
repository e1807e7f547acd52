"""`tenure pods`: every Pod that the ledger knows, what it has, or why it waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.resources import TYPE_GPU
from tenure.asking import Answer, Sight
from tenure.card_totals import cards_text
from tenure.live.place import Place, asks
from tenure.opening import time_of
from tenure.options import Files, Output
from tenure.output import Column, OutputFormat, write_answer
from tenure.query.records import ENDED, FITS, PLACED, REFUSED, WAITING, state_of
from tenure.query.who import Others, by_others
from tenure.simulate.dump import ledger_of_files
from tenure.times import LedgerTime, decided_us, iso_time
from tenure.units import format_duration

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import HolderRow, PodSummary, RefusalRow

LIMIT: Final = 1000
_ORDER: Final = (WAITING, FITS, PLACED, REFUSED, ENDED)


@asks()
def pods(
    files: Files = None,
    *,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Those alone that wait for a place.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that ended, or were refused at admission.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000_000, help="How many are shown.")
    ] = LIMIT,
    place: Place,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Pods that wait, longest first, and Pods that have a place: where, with which devices and CPUs.

    Example: tenure pods --waiting

    Any cluster: kubectl get nodes,pods -A -o json | tenure pods --waiting -

    Also those that ended: tenure pods --all -o wide
    """
    question = PodsQuestion(waiting=waiting, every=every, limit=limit, output=output)
    place = place.over(files, ledger_of_files, decide=True)
    place.print("pods", answer_pods, question)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsQuestion:
    """Which Pods there are, and where each stands."""

    waiting: bool = False
    every: bool = False
    limit: int = LIMIT
    output: OutputFormat = OutputFormat.TABLE


def answer_pods(source: Ledger, question: PodsQuestion, sight: Sight) -> Answer:
    """Answer which Pods there are. Raises InputError: more rows than a service reads."""
    now = time_of(source)
    with source.connection.begin():
        found = [*_records(source, sight, now)]
    wanted = {WAITING, FITS} if question.waiting else {WAITING, FITS, PLACED}
    shown = [record for record in found if question.every or record["state"] in wanted]
    shown.sort(key=lambda record: (_ORDER.index(record["state"]), record["since"], record["pod"]))
    answer = Answer()
    columns = [
        each
        for each in _COLUMNS
        if not question.output.is_table
        or each.key == "pod"
        or any(record[each.key] for record in shown)
    ]
    write_answer(question.output, shown[: question.limit], columns, out=answer.out)
    if len(shown) > question.limit:
        answer.note(f"{len(shown) - question.limit} more: give --limit for more")
    return answer


_COLUMNS: Final = (
    Column(key="pod", title="POD"),
    Column(key="state", title="STATE"),
    Column(key="node", title="NODE"),
    Column(key="devices", title="DEVICES"),
    Column(key="cpus", title="CPUS"),
    Column(key="lasted", title="FOR", right=True),
    Column(key="why", title="WHY"),
    Column(key="asks", title="ASKS", wide=True),
    Column(key="owner", title="OWNER", wide=True),
    Column(key="since", title="SINCE", wide=True),
    Column(key="pod_uid", title="POD UID", wide=True),
)


def _records(source: Ledger, sight: Sight, now: LedgerTime) -> Iterator[dict[str, Any]]:
    from ledger.store.reading import pod_queries
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.views import When
    from scheduler.usage.picture import unplaced_on
    from tenure.picture import picture_of_ledger

    connection, namespace = source.connection, sight.namespace or None
    holders = defaultdict[int, list["HolderRow"]](list)
    for holder in queries.device_holders(connection):
        holders[holder.position].append(holder)
    whole = {holder.position: holder for holder in queries.pod_holders(connection)}
    for holder in by_others(Others(source, When()), [*whole.values()]):
        if holder.device_type is not None:
            holders[holder.position].append(holder)
        else:
            whole[holder.position] = holder
    cards = Counter[str]()
    for node in picture_of_ledger(source, None).nodes:
        for stranger in unplaced_on(node):
            cards[stranger.uid] += stranger.cards
    found = pod_queries.pods(connection, namespace=namespace)
    newest = {pod.refused_position for pod in found}
    reserved = {pod.pod_uid: pod.reserved_position for pod in found}
    last: dict[int, RefusalRow] = {}
    first_us: dict[str, int] = {}
    for each in pod_queries.refusals(connection):
        if each.position in newest:
            last[each.position] = each
        if each.position > reserved.get(each.pod_uid, 0):
            first_us.setdefault(each.pod_uid, each.at_us)
    for pod in found:
        own = whole.get(pod.reserved_position)
        refusal = last.get(pod.refused_position)
        state = state_of(pod, refusal, held=own is not None)
        if now.began and own is not None and own.opened_at_us > decided_us(now.began):
            state = FITS
        yield _record(
            pod,
            state,
            own,
            refusal,
            now,
            parts=tuple(holders[pod.reserved_position]) if own is not None else (),
            waits_since_us=first_us.get(pod.pod_uid) if state == WAITING else None,
            unknown_cards=cards[pod.pod_uid],
        )


def _record(
    pod: PodSummary,
    state: str,
    own: HolderRow | None,
    refusal: RefusalRow | None,
    now: LedgerTime,
    *,
    parts: Sequence[HolderRow],
    waits_since_us: int | None,
    unknown_cards: int,
) -> dict[str, Any]:
    """
    Return where one Pod stands, by its open reservation and its newest refusal.

    Args:
        waits_since_us: of the first refusal since it had a place last, if it waits.
        unknown_cards: how many cards it holds, at least, that nobody can name.
    """
    refused = refusal if state in {WAITING, REFUSED} else None
    since_us = own.opened_at_us if own is not None else refused.at_us if refused else None
    since_us = since_us if waits_since_us is None else waits_since_us
    since_us = None if since_us is None else now.since(pod.pod_uid, since_us)
    unknown = own.unknown_types.split(",") if own is not None and own.unknown_types else []
    many = f" ({unknown_cards} cards)" if unknown_cards > 1 else ""
    texts = (f"{kind}:?{many if kind == TYPE_GPU else ''}" for kind in unknown)
    devices = [cards_text(parts), *texts]
    lasted = "" if since_us is None else format_duration(max(0, now.now_us - since_us))
    return {
        "pod": f"{pod.namespace}/{pod.pod_name}",
        "state": state,
        "node": own.node_name if own is not None else "",
        "devices": " ".join(each for each in devices if each),
        "cpus": own.cpuset if own is not None else "",
        "lasted": lasted,
        "why": refused.message if refused else "",
        "asks": refusal.shape if refusal else "",
        "owner": pod.owner,
        "since": "" if since_us is None else iso_time(since_us),
        "pod_uid": pod.pod_uid,
    }
