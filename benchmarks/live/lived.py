"""A ledger that a cluster has lived with, and its Pods as they carry what it says."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from msgspec import structs

from benchmarks.live import cluster
from benchmarks.live.cluster import NAMESPACE, Json
from ledger.domain.dialects.dra.drivers import LookedAt
from ledger.domain.log.events import LedgerEvent, PodBound, PodReleased, PodReserved
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import node_uid_of
from ledger.signing import PrivateKey
from ledger.store.open import open_ledger
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.writing import commands
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Outcome
from scheduler.cluster.settings import settings_hash, settings_json
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.service.beginning import Beginning, begin
from scheduler.service.books import LiveBooks
from scheduler.service.groups import LiveGroups
from scheduler.service.inventory import Inventory
from scheduler.service.ports import BindCall, Chosen
from scheduler.service.proofs import Signing
from scheduler.service.slices import NodeModes, SliceBook
from scheduler.service.view import ClusterView
from scheduler.service.wakeups import Wakeups
from tenure.version import tenure_version

ORIGIN: Final = "ledger/namespace-kube-system"
"""Of the played API server."""
BATCH: Final = 600
_START_US: Final = 1_772_409_600_000_000


class Recorder:
    """The ledger's one writer, without a lane."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    @property
    def epoch(self) -> int:
        """The writer's epoch."""
        return self.writer.head.epoch

    @property
    def position(self) -> int:
        """The last position."""
        return self.writer.head.position

    async def record(self, command: Command) -> Outcome:
        """Record a command."""
        [outcome] = commands.record(self.writer, [command])
        return outcome


class Clock:
    """A millisecond for every look."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def monotonic(self) -> float:
        """Return seconds."""
        return next(self._ticks) / 1000

    def wall_us(self) -> int:
        """Return microseconds."""
        return _START_US + 1000 * next(self._ticks)

    async def sleep(self, seconds: float) -> None:
        """Come back."""
        await asyncio.sleep(0)
        del seconds


def live_through(
    path: Path, *, nodes: int, running: int, total: int, tail: int, keys: tuple[PrivateKey, ...]
) -> list[Json]:
    """
    Fill a ledger of about `total` events whose last snapshot is `tail` behind; return its Pods.

    Args:
        keys: of proofs, and of allocations.
    """
    clock, settings = Clock(), SchedulingSettings()
    words = DecidedBy(
        policy=settings.node_policy,
        settings_hash=settings_hash(settings, seed=0),
        tenure_version=tenure_version(),
    )
    with open_ledger(str(path), mode="write") as ledger:
        writer = ledger.start_epoch("lived", ORIGIN, tenure_version(), wall_us=clock.wall_us())
        recorder = Recorder(writer)
        said = events.settings_changed(words, settings_json(settings, seed=0), clock.wall_us())
        writer.append([events.by("scheduler", said)])
        begun = begin(ledger)
        view = _view(settings, begun, recorder, clock, nodes)
        pods = list(cluster.running(running, nodes))
        books = LiveBooks(
            view,
            clock,
            words,
            begun,
            LiveGroups(view, clock, begun),
            lifted=lambda _pod_uid, _node_name: nullcontext(),
        )
        chosen = [_chosen(view, books, pod) for pod in pods]
        described: dict[object, NewEvent] = {}
        for one in chosen:
            for new in one.events[:-1]:
                described.setdefault(getattr(new.event, "request", None), new)
        writer.append([events.by("scheduler", new) for new in described.values()])
        lived = [one.reservation for one in chosen]
        live = 2 * len(lived)
        ended = (total - writer.head.position - live) // 3
        behind = total - tail
        is_taken = False
        for batch in itertools.chain(_churn(lived, ended, clock), _holding(lived, clock)):
            writer.append(batch)
            if not is_taken and writer.head.position >= behind:
                take_snapshot(ledger, writer, wall_us=clock.wall_us())
                is_taken = True
        return _carried(path, pods, lived, keys)


def _view(
    settings: SchedulingSettings, begun: Beginning, recorder: Recorder, clock: Clock, nodes: int
) -> ClusterView:
    """Return a view of all nodes, which are recorded."""
    drivers, wakeups = LookedAt(frozenset()), Wakeups()
    view = ClusterView(settings, wakeups, NodeModes(drivers, SliceBook(drivers, wakeups)))
    view.begin(begun.position, begun.state, begun.opened)
    for kind, sink, items in (
        ("node", view.nodes.nodes, cluster.nodes(nodes)),
        ("device", view.nodes.devices, cluster.devices(nodes)),
        ("noderesourcetopology", view.nodes.topologies, cluster.topologies(nodes)),
    ):
        for item in items:
            uid = f"{kind}-{item['metadata']['name']}"
            sink.put(uid, {**item, "metadata": {**item["metadata"], "uid": uid}})
    inventory = Inventory(view, recorder, clock, begun, synced=lambda: True, reported=frozenset())
    asyncio.run(inventory.settle())
    assert not inventory.faults, inventory.faults
    return view


def _chosen(view: ClusterView, books: LiveBooks, pod: Json) -> Chosen:
    """Choose for a Pod on the node that it runs on, and count it as held."""
    metadata = pod["metadata"]
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    waits = {**pod, "spec": spec, "metadata": {**metadata, "annotations": {}}}
    view.requests.read(waits)
    call = BindCall(
        namespace=NAMESPACE,
        pod_name=metadata["name"],
        pod_uid=metadata["uid"],
        node_name=pod["spec"]["nodeName"],
    )
    chosen = books.choose(call, 1, "1", None)
    assert isinstance(chosen, Chosen), chosen
    return chosen


def _churn(lived: list[PodReserved], ended: int, clock: Clock) -> Iterator[list[NewEvent]]:
    """Yield Pods that came, were bound and ended, generation after generation."""
    for first in range(0, ended, BATCH // 3):
        batch: list[LedgerEvent] = []
        for number in range(first, min(first + BATCH // 3, ended)):
            like = lived[number % len(lived)]
            uid, node = f"uid-ended-{number}", like.node_uid
            batch += (
                structs.replace(like, pod_uid=uid, pod_name=f"ended-{number}"),
                PodBound(pod_uid=uid, attempt=1, node_uid=node),
                PodReleased(pod_uid=uid, attempt=1, node_uid=node, reason="completed"),
            )
        yield [_new(event, clock) for event in batch]


def _holding(lived: list[PodReserved], clock: Clock) -> Iterator[list[NewEvent]]:
    """Yield what is held at the end."""
    for first in range(0, len(lived), BATCH // 2):
        batch: list[NewEvent] = []
        for one in lived[first : first + BATCH // 2]:
            bound = PodBound(pod_uid=one.pod_uid, attempt=1, node_uid=one.node_uid)
            batch += (_new(one, clock), _new(bound, clock))
        yield batch


def _new(event: LedgerEvent, clock: Clock) -> NewEvent:
    about = f"{event.event_type}:{getattr(event, 'pod_uid', '')}"
    return NewEvent(
        stream=f"node/{node_uid_of(event)}",
        event=event,
        actor="scheduler/lived",
        idempotency_key=about,
        wall_us=clock.wall_us(),
    )


def _carried(
    path: Path, pods: list[Json], lived: list[PodReserved], keys: tuple[PrivateKey, ...]
) -> list[Json]:
    """Return the Pods with what the scheduler wrote on them."""
    signing = Signing(
        cluster=ORIGIN,
        incarnation=lambda: "first",
        proof_key=keys[0],
        ledger_key=keys[1],
        machine_of=lambda uid: ("s-" + str(int(uid[-5:])), "m-" + str(int(uid[-5:]))),
    )
    with open_ledger(str(path), mode="read") as ledger, ledger.connection.begin():
        rows = ledger.connection.exec_driver_sql(
            "SELECT pod_uid, position FROM ledger_reservations WHERE closed_position IS NULL"
        ).all()
    positions = {row[0]: row[1] for row in rows}
    for pod, one in zip(pods, lived, strict=True):
        signed = signing.annotations(one, epoch=1, position=positions[one.pod_uid], at_us=1)
        pod["metadata"]["annotations"] = {**one.annotations, **signed}
    return pods


def write_lines(path: Path, items: list[Json]) -> None:
    """Write objects, a line each."""
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), "utf-8")
