"""A ledger with something of every kind open across the cut of an archive, and how it is moved."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger.domain.log.recorded import NewEvent
from ledger.signing import PrivateKey, sign_note
from ledger.store.archives.archive import Archived, archive
from ledger.store.open import Ledger
from ledger.store.writing.append import Writer
from tenure.offline import check
from tests.support.stores import (
    Clock,
    SqliteStore,
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


def _check(path: Path) -> None:
    check(path, str(KEY.public))


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the lines of a segment file, and pack them again."""
    with gzip.open(path) as file:
        lines = [json.loads(line) for line in file]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for line in change(lines):
            file.write(f"{json.dumps(line, sort_keys=True, separators=(',', ':'))}\n".encode())


def changed(store: SqliteStore, *statements: str) -> None:
    """Do something to the ledger past all its rules, and put them back."""
    with store.raw() as raw:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = raw.execute(query).fetchall()
        for name, _ in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert raw.execute(statement).rowcount > 0, statement
        for _, text in triggers:
            raw.execute(text)
