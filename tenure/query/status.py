"""`tenure status`: which ledger this is, and where its head stands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tenure.opening import opened
from tenure.options import LedgerUrl, Output
from tenure.output import Column, OutputFormat, one_line, write_answer
from tenure.times import iso_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger

_COLUMNS: Final = (Column(key="what", title="WHAT"), Column(key="value", title="VALUE"))


def status(*, ledger: LedgerUrl = None, output: Output = OutputFormat.TABLE) -> None:
    """
    Which ledger this is, where its head stands, and how much it holds.

    Example: tenure status -o json
    """
    with opened(ledger) as source:
        record = status_record(source)
    rows = [
        {"what": key.replace("_", " "), "value": _shown(key, value)}
        for key, value in record.items()
    ]
    write_answer(output, rows, _COLUMNS, document=record)


def _shown(key: str, value: object) -> object:
    """Return a value as the table has it: bounds in words, and what 100 percent are."""
    from scheduler.usage.picture import Many
    from tenure.picture import many_text

    if isinstance(value, dict):
        return many_text(Many(least=value["min"], most=value["max"]))
    return f"{value} (100 = one card)" if key.startswith("percent_") else value


def status_record(source: Ledger) -> dict[str, Any]:
    """Return where a ledger stands, as one record."""
    from ledger.store.mending.recover import incarnations
    from ledger.store.reading import pod_queries
    from ledger.store.reading import report_queries as queries
    from scheduler.service.api.words import WEBHOOK_ACTOR
    from scheduler.usage.picture import NONE, cards_of, gpu_groups, held_cards
    from tenure.picture import many_record, picture_of_ledger

    head = source.head()
    with source.connection.begin():
        counts = pod_queries.counts(source.connection, admission=WEBHOOK_ACTOR)
        ahead_us = queries.ahead_us(source.connection)
        picture = picture_of_ledger(source, None)
    groups = [group for node in picture.nodes for group in gpu_groups(node)]
    sums = picture.summary
    lives, lost = incarnations(source)
    return {
        "ledger": source.url,
        "origin": one_line(head.origin),
        "head": head.position,
        "head_at": iso_time(source.now_us()) if head.position else None,
        "ahead_of_clock_us": ahead_us,
        "chain_head": head.chain_hash.hex(),
        "epoch": head.epoch,
        "incarnation": one_line(lives[-1].name),
        "unknown_positions": ", ".join(
            f"{each.first}-{each.last} of {one_line(each.incarnation)}"
            for each in lost
            if each.last >= each.first
        ),
        "nodes": len(picture.nodes),
        "cards": many_record(sums.cards),
        "cards_held": many_record(sum(map(held_cards, picture.nodes), NONE)),
        "cards_free": many_record(sums.free),
        "cards_gettable": many_record(sums.gettable),
        "cards_closed": sum(not card.is_good for group in groups for card in cards_of(group)),
        **{f"percent_{name}": part for name, part in asdict(picture.parts).items()},
        "pods_decided": counts.decided,
        "pods_placed": counts.placed,
        "pods_refused": counts.refused,
        "pods_waiting": counts.waiting,
        "pods_refused_at_admission": counts.at_admission,
    }
