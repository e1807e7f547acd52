"""Small events with sensible words, and the databases that the contract suite runs on."""

# ruff: noqa: ANN401 - a builder takes any field of its event

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import (
    ClaimBound,
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    ClaimResult,
    ClaimVoided,
    DeviceHealthChanged,
    GroupPlanned,
    LedgerEvent,
    NodeInventoried,
    PlannedMember,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import node_uid_of
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import Claimant
from ledger.domain.topology import Cpu
from ledger.store.open import Ledger, Mode, open_ledger
from ledger.store.writing.append import Writer
from tests.support.postgres import Server

GIB = 1 << 30
MONDAY_US = 1_772_409_600_000_000  # 2026-03-02T00:00:00Z
HOUR_US = 3_600_000_000
ORIGIN = "simulation/test"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteStore:
    """One SQLite file: the contract's first database."""

    path: Path

    @property
    def url(self) -> str:
        """The ledger's URL."""
        return f"sqlite:///{self.path}"

    def open(self, mode: Mode = "write") -> Ledger:
        """Open it through the store."""
        return open_ledger(self.url, mode=mode)

    @contextmanager
    def raw(self) -> Iterator[sqlite3.Connection]:
        """Open it past the store, as anyone with the file can: default pragmas, autocommit."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            yield connection

    def copy(self, path: Path) -> SqliteStore:
        """Return a copy of the closed database."""
        with self.raw() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self.path, path)
        return SqliteStore(path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresStore:
    """One database of a Postgres server: the contract's second database."""

    server: Server
    database: str

    @property
    def url(self) -> str:
        """The ledger's URL."""
        return self.server.url(self.database)

    def open(self, mode: Mode = "write") -> Ledger:
        """Open it through the store."""
        return open_ledger(self.url, mode=mode)

    @contextmanager
    def raw(self) -> Iterator[psycopg.Connection[Any]]:
        """Open it past the store, as a superuser can: autocommit."""
        with self.server.connected(self.database) as connection:
            yield connection

    def copy(self, path: Path | None = None) -> PostgresStore:
        """Return a copy of the database, which nobody may have open; `path` is a file's alone."""
        del path
        return PostgresStore(server=self.server, database=self.server.new_database(self.database))


Store = SqliteStore | PostgresStore
"""What the contract runs on: the same surface on every database."""


def start(ledger: Ledger, holder: str = "test") -> Writer:
    """Take the ledger over, at the start of Monday."""
    return ledger.start_epoch(holder, ORIGIN, "0.1.0", wall_us=MONDAY_US)


def gpu(minor: int, *, node: str = "n-1", **changes: Any) -> DeviceRecord:
    """Return a whole 80 GiB card."""
    words: dict[str, Any] = {
        "device_type": "gpu",
        "minor": minor,
        "device_id": f"GPU-{node}-{minor}",
        "model": "A100",
        "memory_bytes": 80 * GIB,
    }
    return DeviceRecord(**words | changes)


def node(
    name: str = "n-1", *, gpus: int = 8, cpus: int = 0, refs: int = 1, **changes: Any
) -> NodeInventoried:
    """Return the inventory of a node whose UID is `uid-<name>`."""
    words: dict[str, Any] = {
        "node_uid": f"uid-{name}",
        "node_name": name,
        "machine_id": f"machine-{name}",
        "cpu_milli": 96_000,
        "memory_bytes": 512 * GIB,
        "devices": tuple(gpu(minor, node=name) for minor in range(gpus)),
        "cpus": tuple(Cpu(id=i, core=i // 2, socket=0, numa=0) for i in range(cpus)),
        "cpu_ref_count_max": refs,
    }
    return NodeInventoried(**words | changes)


def share(
    minor: int = 0, core: int = 50, *, node: str = "n-1", gib: int | None = None, **changes: Any
) -> DeviceShare:
    """Return a part of a card, memory in proportion unless `gib` says otherwise."""
    words: dict[str, Any] = {
        "device_type": "gpu",
        "minor": minor,
        "device_id": f"GPU-{node}-{minor}",
        "core_percent": core,
        "memory_bytes": (80 * GIB * core // 100) if gib is None else gib * GIB,
        "memory_ratio_percent": core if gib is None else gib * 100 // 80,
    }
    return DeviceShare(**words | changes)


def reserved(
    pod: str,
    *shares: DeviceShare,
    node: str = "n-1",
    attempt: int = 1,
    cpus: tuple[int, ...] = (),
    **changes: Any,
) -> PodReserved:
    """Return a reservation of the Pod `team-a/<pod>` with UID `uid-<pod>`."""
    words: dict[str, Any] = {
        "pod_uid": f"uid-{pod}",
        "attempt": attempt,
        "namespace": "team-a",
        "pod_name": pod,
        "node_uid": f"uid-{node}",
        "node_name": node,
        "cpu_milli": 4_000,
        "memory_bytes": 16 * GIB,
        "shares": shares,
        "cpuset": cpuset_of(cpus) if cpus else CpuSet(),
        "device_models": tuple("A100" for _ in shares),
        "dialect": "koordinator",
        "policy": "binpack",
        "snapshot": PodSnapshot(owner="job/train", labels={"team": "a"}, created_at_us=MONDAY_US),
    }
    return PodReserved(**words | changes)


def observed(
    pod: str,
    *shares: DeviceShare,
    node: str = "n-1",
    attempt: int = 1,
    cpus: tuple[int, ...] = (),
    **changes: Any,
) -> PodObserved:
    """Return a holding that someone else gave to the Pod `kube/<pod>`."""
    words: dict[str, Any] = {
        "pod_uid": f"uid-{pod}",
        "attempt": attempt,
        "namespace": "kube",
        "pod_name": pod,
        "node_uid": f"uid-{node}",
        "node_name": node,
        "source": "checkpoint",
        "shares": shares,
        "cpuset": cpuset_of(cpus) if cpus else CpuSet(),
        "dialect": "nvidia",
    }
    return PodObserved(**words | changes)


def released(
    pod: str, *, node: str = "n-1", attempt: int = 1, reason: str = "completed"
) -> PodReleased:
    """Return the end of a reservation."""
    return PodReleased(pod_uid=f"uid-{pod}", attempt=attempt, node_uid=f"uid-{node}", reason=reason)


def bound(pod: str, *, node: str = "n-1", attempt: int = 1) -> PodBound:
    """Return the Binding of a reservation."""
    return PodBound(pod_uid=f"uid-{pod}", attempt=attempt, node_uid=f"uid-{node}")


def claim(
    name: str,
    *shares: DeviceShare,
    node: str = "n-1",
    attempt: int = 1,
    cpus: tuple[int, ...] = (),
    **changes: Any,
) -> ClaimReserved:
    """Return a reservation of the claim `team-c/<name>` with UID `uid-<name>`, used by one Pod."""
    return ClaimReserved(**_of_claim(name, shares, node, attempt, cpus) | changes)


def seen_claim(
    name: str,
    *shares: DeviceShare,
    node: str = "n-1",
    attempt: int = 1,
    cpus: tuple[int, ...] = (),
    **changes: Any,
) -> ClaimObserved:
    """Return the holding of a claim `team-c/<name>` that no gate let through."""
    words = _of_claim(name, shares, node, attempt, cpus) | {"source": "resourceclaim"}
    return ClaimObserved(**words | changes)


def _of_claim(
    name: str, shares: tuple[DeviceShare, ...], node: str, attempt: int, cpus: tuple[int, ...]
) -> dict[str, Any]:
    return {
        "claim_uid": f"uid-{name}",
        "attempt": attempt,
        "namespace": "team-c",
        "claim_name": name,
        "node_uid": f"uid-{node}",
        "node_name": node,
        "results": tuple(
            ClaimResult(
                request="g", driver="gpu.example.com", pool=node, device=f"gpu-{each.minor}"
            )
            for each in shares
        ),
        "shares": shares,
        "cpuset": cpuset_of(cpus) if cpus else CpuSet(),
        "device_models": tuple("A100" for _ in shares),
        "consumers": (Claimant(name=f"{name}-pod", uid=f"uid-{name}-pod"),),
        "snapshot": PodSnapshot(owner="job/train", labels={"team": "c"}, created_at_us=MONDAY_US),
    }


def claim_ended(
    name: str,
    *,
    node: str = "n-1",
    attempt: int = 1,
    reason: str = "deallocated",
    kind: type[ClaimReleased | ClaimVoided] = ClaimReleased,
) -> ClaimReleased | ClaimVoided:
    """Return the end of a claim's holding."""
    return kind(claim_uid=f"uid-{name}", attempt=attempt, node_uid=f"uid-{node}", reason=reason)


def claim_bound(name: str, *, node: str = "n-1", attempt: int = 1) -> ClaimBound:
    """Return that the allocation of a claim is stored."""
    return ClaimBound(claim_uid=f"uid-{name}", attempt=attempt, node_uid=f"uid-{node}")


def health(
    minor: int,
    *,
    healthy: bool,
    node: str = "n-1",
    device_id: str = "",
    reason: str = "Xid79",
) -> DeviceHealthChanged:
    """Return a card that died, or came back."""
    return DeviceHealthChanged(
        node_uid=f"uid-{node}",
        device_type="gpu",
        minor=minor,
        device_id=device_id or f"GPU-{node}-{minor}",
        healthy=healthy,
        reason=reason,
    )


def refused(
    pod: str, message: str = "0/1 nodes are available: 1 Insufficient GPU."
) -> RequestRefused:
    """Return the refusal of a Pod."""
    return RequestRefused(
        pod_uid=f"uid-{pod}",
        namespace="team-a",
        pod_name=pod,
        stage="scheduling",
        message=message,
        shape="1 x 50 % gpu",
        gpu_core_percent=50,
        policy="binpack",
    )


def planned(group: str, *members: tuple[str, tuple[int, ...]], node: str = "n-1") -> GroupPlanned:
    """Return the plan of a group: each member is a Pod and the whole cards that wait for it."""
    return GroupPlanned(
        group=group,
        members=tuple(
            PlannedMember(
                pod_uid=f"uid-{pod}",
                namespace="team-a",
                pod_name=pod,
                node_uid=f"uid-{node}",
                minors=minors,
                whole=minors,
            )
            for pod, minors in members
        ),
    )


class Clock:
    """Words around events: streams, keys that never repeat, a second per event."""

    def __init__(self, now_us: int = MONDAY_US) -> None:
        self.now_us = now_us
        self.made = 0

    def new(
        self, event: LedgerEvent, *, key: str | None = None, at_us: int | None = None
    ) -> NewEvent:
        """Return `event` on its way into the ledger."""
        self.made += 1
        self.now_us = self.now_us + 1_000_000 if at_us is None else at_us
        uid = node_uid_of(event)
        return NewEvent(
            stream=f"node/{uid}" if uid else "sys",
            event=event,
            actor="test",
            idempotency_key=key or f"test:{self.made}",
            wall_us=self.now_us,
            correlation_id="c",
        )

    def all(self, *events: LedgerEvent) -> list[NewEvent]:
        """Return several events, a second apart."""
        return [self.new(event) for event in events]
