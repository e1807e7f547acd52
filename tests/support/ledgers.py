"""A ledger of one morning, small enough to know every answer by heart."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import GPU, DeviceRecord, DeviceShare
from ledger.domain.log.events import (
    DeviceHealthChanged,
    LedgerEvent,
    NodeInventoried,
    PodObserved,
    PodReleased,
    PodReserved,
    RefusalReason,
    RequestRefused,
    SettingsChanged,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.topology import Cpu
from ledger.store.open import open_ledger

GIB = 1 << 30
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
EIGHT = int(datetime(2026, 3, 2, 8, 0, tzinfo=UTC).timestamp()) * SECOND
NOON = EIGHT + 4 * HOUR
ORIGIN = "simulation/morning"


def _card(node: str, minor: int, model: str = "A100") -> DeviceRecord:
    return DeviceRecord(
        device_type=GPU,
        minor=minor,
        device_id=f"GPU-{node}-{minor}",
        model=model,
        memory_bytes=16 * GIB,
    )


def _reserved(
    pod: str, node: str, shares: tuple[DeviceShare, ...], snapshot: PodSnapshot, cpus: str = ""
) -> PodReserved:
    return PodReserved(
        pod_uid=f"uid-{pod}",
        attempt=1,
        namespace="ml",
        pod_name=pod,
        node_uid=f"uid-{node}",
        node_name=node,
        cpu_milli=2000,
        memory_bytes=4 * GIB,
        shares=shares,
        cpuset=parse_cpuset(cpus),
        device_models=("A100",) * len(shares),
        policy="binpack",
        snapshot=snapshot,
    )


def morning() -> list[tuple[int, str, LedgerEvent]]:
    """
    Return (moment, stream, event): two nodes, four Pods and a card that dies.

    08:00 inventory; 08:10 nb-7 gets 25 % of gpu-a/0; 09:00 train-0 gets gpu-a/1 alone and CPUs
    0-1; 09:30 and 09:40 big-1 is refused; 10:00 nb-7 ends; 11:00 gpu-a/0 is closed; 12:00 legacy
    is found to hold a card of gpu-b that nobody can name.
    """
    cpus = tuple(Cpu(id=i, core=i // 2, socket=0, numa=0) for i in range(4))
    share = DeviceShare(
        device_type=GPU,
        minor=0,
        device_id="GPU-gpu-a-0",
        core_percent=25,
        memory_bytes=4 * GIB,
        memory_ratio_percent=25,
    )
    whole = DeviceShare(
        device_type=GPU,
        minor=1,
        device_id="GPU-gpu-a-1",
        core_percent=100,
        memory_bytes=16 * GIB,
        memory_ratio_percent=100,
        exclusive=True,
    )
    refusal = RequestRefused(
        pod_uid="uid-big-1",
        namespace="ml",
        pod_name="big-1",
        stage="scheduling",
        message="0/2 nodes are available: 2 Insufficient gpu devices.",
        reasons=(
            RefusalReason(
                reason="Insufficient gpu devices",
                nodes=2,
                nearest_node="gpu-a",
                detail="asks 2 whole GPU, 0 untouched",
                remedy="release 2 whole GPU on gpu-a",
            ),
        ),
        shape="2 x whole gpu, 2 cpu, 4 GiB",
        gpu_core_percent=200,
        policy="binpack",
        snapshot=PodSnapshot(owner="job/big", labels={"team": "blue"}),
    )
    a, b = "node/uid-gpu-a", "node/uid-gpu-b"
    return [
        (
            EIGHT,
            "sys",
            SettingsChanged(settings_hash="s", settings='{"seed":42}', tenure_version="1"),
        ),
        (
            EIGHT,
            a,
            NodeInventoried(
                node_uid="uid-gpu-a",
                node_name="gpu-a",
                cpu_milli=16_000,
                memory_bytes=64 * GIB,
                devices=(_card("gpu-a", 0), _card("gpu-a", 1)),
                cpus=cpus,
            ),
        ),
        (
            EIGHT,
            b,
            NodeInventoried(
                node_uid="uid-gpu-b",
                node_name="gpu-b",
                cpu_milli=16_000,
                memory_bytes=64 * GIB,
                devices=(_card("gpu-b", 0, "T4"),),
            ),
        ),
        (
            EIGHT + 10 * MINUTE,
            a,
            _reserved(
                "nb-7",
                "gpu-a",
                (share,),
                PodSnapshot(owner="replicaset/nb-5d8f", labels={"team": "red"}),
            ),
        ),
        (
            EIGHT + HOUR,
            a,
            _reserved(
                "train-0",
                "gpu-a",
                (whole,),
                PodSnapshot(owner="job/train", labels={"team": "blue"}),
                cpus="0-1",
            ),
        ),
        (EIGHT + 90 * MINUTE, "sys", refusal),
        (EIGHT + 100 * MINUTE, "sys", refusal),
        (
            EIGHT + 2 * HOUR,
            a,
            PodReleased(pod_uid="uid-nb-7", attempt=1, node_uid="uid-gpu-a", reason="completed"),
        ),
        (
            EIGHT + 3 * HOUR,
            a,
            DeviceHealthChanged(
                node_uid="uid-gpu-a",
                device_type=GPU,
                minor=0,
                device_id="GPU-gpu-a-0",
                healthy=False,
                reason="Xid79",
            ),
        ),
        (
            NOON,
            b,
            PodObserved(
                pod_uid="uid-legacy",
                attempt=1,
                namespace="old",
                pod_name="legacy",
                node_uid="uid-gpu-b",
                node_name="gpu-b",
                source="",
                unknown_types=(GPU,),
                snapshot=PodSnapshot(original={"main.nvidia.com/gpu": "1"}),
            ),
        ),
    ]


def write_ledger(path: Path, events: list[tuple[int, str, LedgerEvent]]) -> Path:
    """Record the events in a new ledger and return its path."""
    with open_ledger(str(path), mode="create") as ledger:
        writer = ledger.start_epoch(holder="test", origin=ORIGIN, version="1", wall_us=EIGHT)
        writer.append(
            [
                NewEvent(
                    stream=stream,
                    event=event,
                    actor="test",
                    idempotency_key=f"test:{number}",
                    wall_us=at_us,
                )
                for number, (at_us, stream, event) in enumerate(events)
            ]
        )
    return path
