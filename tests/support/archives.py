"""A ledger with something of every kind open across the cut of an archive, and how it is moved."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec import structs
from sqlalchemy import Connection

from ledger.domain.log.events import SegmentArchived
from ledger.domain.log.recorded import NewEvent
from ledger.signing import PrivateKey, sign_note
from ledger.store import schema
from ledger.store.archives.archive import Archived, archive
from ledger.store.open import Ledger
from ledger.store.writing.append import Writer
from tenure.offline import check
from tests.support.stores import (
    Clock,
    SqliteStore,
    Store,
    bound,
    claim,
    claim_bound,
    claim_ended,
    health,
    node,
    observed,
    planned,
    refused,
    released,
    reserved,
    seen_claim,
    share,
    start,
)

KEY = PrivateKey.new("archive")
TOGETHER = 60
"""Events of one commit: each has its own price, and what is in the log is the same."""


def history(ledger: Ledger, clock: Clock, events: int = 560) -> Writer:
    """Record so many events; Pods, claims, observed ones, CPUs, a slot and a plan stay open."""
    writer = start(ledger)
    writer.append(
        clock.all(
            node("n-1", gpus=4, cpus=8, refs=2),
            node("n-2", gpus=2),
            reserved("long", share(0, 50, vf_bus_ids=("0000:01:00.1",)), cpus=(0, 1)),
            bound("long"),
            observed("seen", share(1, 50), cpus=(1,)),
            observed("early", node="n-9", unknown_types=("gpu",)),
            claim("shared", share(0, 25)),
            claim_bound("shared"),
            seen_claim("past", share(1, 25), cpus=(5,)),
            claim("over", share(2, 50)),
            claim_ended("over"),
            planned("group", ("member", (0,)), node="n-2"),
            refused("big"),
        )
    )
    number, batch = 0, list[NewEvent]()
    while writer.head.position + len(batch) < events:
        number += 1
        pod = f"p{number}"
        batch += clock.all(reserved(pod, share(2, 25), cpus=(2, 3)), bound(pod))
        batch += clock.all(released(pod), refused(f"r{number}"))
        if number == 40:
            batch += clock.all(health(3, healthy=False))
        if len(batch) >= TOGETHER:
            writer.append(batch)
            batch = []
    if batch:
        writer.append(batch)
    return writer


def afterwards(clock: Clock) -> list[Any]:
    """Return what releases everything that was open across the cut, and takes it again."""
    return clock.all(
        released("long"),
        released("seen"),
        claim_ended("shared"),
        claim_ended("past"),
        reserved("member", share(0, 100, node="n-2"), node="n-2"),
        health(3, healthy=True),
        node("n-1", gpus=3, cpus=8, refs=2),
        reserved("again", share(0, 100, vf_bus_ids=("0000:01:00.1",)), cpus=(0, 1)),
        reserved("next", share(1, 100), cpus=(0, 1, 2)),
        node("n-9", gpus=1),
    )


def archive_up_to(ledger: Ledger, folder: Path, up_to: int) -> Archived | None:
    """Archive the whole tiles up to a position, if there is one more."""
    return archive(
        ledger,
        folder,
        up_to=up_to,
        sign=lambda text: sign_note(text, KEY),
        check=_check,
        holder="archivist",
        version="0.1.0",
        wall_us=0,
    )


def move(ledger: Ledger, folder: Path) -> Archived:
    """Archive every whole tile there is."""
    moved = archive_up_to(ledger, folder, ledger.head().position)
    assert moved is not None
    return moved


class Meddled:
    """A ledger to whose writer something is done before it writes."""

    def __init__(self, ledger: Ledger, meddle: Callable[[Writer], None]) -> None:
        self._ledger = ledger
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the ledger has
        return getattr(self._ledger, name)

    def start_epoch(self, *words: Any, **more: Any) -> Writer:  # noqa: ANN401 - as the ledger's
        """Take the ledger over, and meddle."""
        writer = self._ledger.start_epoch(*words, **more)
        self._meddle(writer)
        return writer


def _silence(writer: Writer) -> None:
    """Let an event that archives a segment say nothing of rows, as before there were digests."""
    commit = writer.commit

    def without(events: Sequence[NewEvent], beside: Callable[[Connection], None]) -> int:
        (new,) = events
        assert isinstance(new.event, SegmentArchived)
        return commit([structs.replace(new, event=structs.replace(new.event, rows={}))], beside)

    writer.commit = without  # type: ignore[method-assign, assignment]


def archive_silently(ledger: Ledger, folder: Path, up_to: int) -> None:
    """Archive, and say nothing of rows."""
    archive_up_to(cast("Ledger", Meddled(ledger, _silence)), folder, up_to)


def _check(path: Path) -> None:
    check(path, str(KEY.public))


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the lines of a segment file, and pack them again."""
    with gzip.open(path) as file:
        lines = [json.loads(line) for line in file]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for line in change(lines):
            file.write(f"{json.dumps(line, sort_keys=True, separators=(',', ':'))}\n".encode())


def changed(store: Store, *statements: str) -> None:
    """Do something to the ledger past all its rules, as its owner can, and put them back."""
    raw: Any
    with store.raw() as raw:
        put_back = _silenced(raw) if isinstance(store, SqliteStore) else _disabled(raw)
        for statement in statements:
            assert raw.execute(statement).rowcount > 0, statement
        for text in put_back:
            raw.execute(text)


def _silenced(raw: Any) -> list[str]:  # noqa: ANN401 - either driver's
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = raw.execute(query).fetchall()
    for name, _ in triggers:
        raw.execute(f"DROP TRIGGER {name}")
    return [text for _, text in triggers]


def _disabled(raw: Any) -> list[str]:  # noqa: ANN401 - likewise
    raw.execute("SET tenure.migration = 'on'")
    names = ", ".join(f"'{table.name}'" for table in (*schema.PROJECTIONS, schema.ledger_segments))
    rules = raw.execute(
        "SELECT relname, tgname FROM pg_trigger JOIN pg_class AS c ON c.oid = tgrelid"
        f" WHERE NOT tgisinternal AND relname IN ({names})"
    ).fetchall()
    for table, name in rules:
        raw.execute(f"ALTER TABLE {table} DISABLE TRIGGER {name}")
    return [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}" for table, name in rules]
