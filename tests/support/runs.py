"""Small runs of the simulation, and a ledger that is a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ledger.domain.devices import GPU, DeviceRecord
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import FieldError
from ledger.domain.log.events import LedgerEvent, encode_event
from ledger.domain.log.recorded import Envelope, NewEvent, RecordedEvent
from ledger.domain.nodes import NodeFacts
from ledger.domain.proofs.hashing import GENESIS
from ledger.domain.request.requests import DeviceDemand, GangRef, PodRequest
from scheduler.cluster.model import HealthChange, RefusedPod
from scheduler.cluster.settings import settings_hash, settings_json
from scheduler.decide.engine import Engine
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.core import Placed
from scheduler.record.events import DecidedBy
from tenure.simulate.model import Arrival, Change, Run
from tenure.simulate.recorder import Recorder
from tenure.simulate.results import Outcome
from tenure.simulate.simulator import Simulator, decide_all
from tenure.simulate.timed import VirtualClock
from tests.support.replays import differing

GIB = 2**30
START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


def gpu_node(name: str, cards: int = 2, *, cpu_milli: int = 16_000) -> NodeFacts:
    """Return a node with whole cards of 16 GiB."""
    devices = tuple(
        DeviceRecord(
            device_type=GPU,
            minor=minor,
            device_id=f"GPU-{name}-{minor}",
            model="T4",
            memory_bytes=16 * GIB,
        )
        for minor in range(cards)
    )
    return NodeFacts(
        uid=f"uid-{name}",
        name=name,
        cpu_milli=cpu_milli,
        memory_bytes=256 * GIB,
        pods_max=None,
        devices=devices,
    )


def gpu_pod(
    name: str, cards: int = 1, percent: int = 100, *, gang: GangRef | None = None
) -> PodRequest:
    """Return a Pod that asks for as much of each of its cards; cards 0 for none."""
    demand = DeviceDemand(
        device_type=GPU,
        count=cards,
        core_percent=percent,
        memory_ratio_percent=percent,
        exclusive=percent == 100,
    )
    return PodRequest(
        uid=f"uid-{name}",
        namespace="ml",
        name=name,
        cpu_milli=1000,
        memory_bytes=GIB,
        dialect=Dialect.KOORDINATOR if cards else None,
        devices=(demand,) if cards else (),
        gang=gang,
    )


def broken_pod(name: str) -> RefusedPod:
    """Return a Pod that breaks a rule."""
    error = FieldError(field="spec.x", reason="FieldValueForbidden", message="Forbidden: no")
    return RefusedPod(uid=f"uid-{name}", namespace="ml", name=name, errors=(error,))


def arrival(pod: PodRequest | RefusedPod, at: int = 0, lifetime: int | None = None) -> Arrival:
    """Return an arrival; times in seconds from the start."""
    return Arrival(
        at_us=START_US + at * SECOND_US,
        pod=pod,
        lifetime_us=None if lifetime is None else lifetime * SECOND_US,
    )


def health(at: int, node: int, minor: int, *, healthy: bool) -> HealthChange:
    """Return the death or return of a GPU, `at` seconds from the start."""
    return HealthChange(
        at_us=START_US + at * SECOND_US,
        node=node,
        device_type=GPU,
        minor=minor,
        healthy=healthy,
        reason="XidError",
    )


def run_of(
    nodes: Sequence[NodeFacts],
    arrivals: Sequence[Arrival],
    *,
    changes: Sequence[Change] = (),
    timed: bool = False,
) -> Run:
    """Return a run of these."""
    return Run(
        source="test",
        nodes=tuple(nodes),
        arrivals=tuple(arrivals),
        start_us=START_US,
        inputs_hash="0" * 64,
        changes=tuple(changes),
        timed=timed,
    )


@dataclass
class ListLedger:
    """A writer that keeps what it is given: one inner list per commit."""

    commits: list[list[NewEvent]] = field(default_factory=list)

    def append(self, events: Sequence[NewEvent]) -> int:
        """Keep one commit."""
        self.commits.append(list(events))
        return len(self.events)

    @property
    def events(self) -> list[NewEvent]:
        """All events in order."""
        return [event for commit in self.commits for event in commit]

    def of_type(self, kind: type[LedgerEvent]) -> list[NewEvent]:
        """The events of one type."""
        return [event for event in self.events if isinstance(event.event, kind)]

    def recorded(self) -> Iterator[RecordedEvent]:
        """The events as a reader sees them (hashes aside)."""
        for position, new in enumerate(self.events, start=1):
            yield recorded(new, position)


def recorded(new: NewEvent, position: int) -> RecordedEvent:
    """Return an event as a ledger would hold it, with empty hashes."""
    envelope = Envelope(
        position=position,
        stream=new.stream,
        stream_version=1,
        event_type=new.event.event_type,
        body=encode_event(new.event),
        actor=new.actor,
        epoch=1,
        causation_position=new.causation_position,
        correlation_id=new.correlation_id,
        idempotency_key=new.idempotency_key,
        args_hash="",
        at_us=new.wall_us,
        wall_us=new.wall_us,
    )
    return RecordedEvent(envelope=envelope, leaf_hash=GENESIS, chain_hash=GENESIS, event=new.event)


@dataclass(frozen=True)
class Played:
    """What a run came to, without a database."""

    simulator: Simulator
    ledger: ListLedger
    outcomes: Sequence[Outcome]
    conflicts: tuple[str, ...]

    def node_of(self, name: str) -> str | None:
        """Return the node a Pod got, None if it has no place."""
        for outcome in self.outcomes:
            if isinstance(outcome, Placed) and outcome.placement.request.name == name:
                return outcome.placement.node_name
        return None


def play(
    run: Run, *, policy: str = "binpack", batch: int = 1, share_visible: bool = False
) -> Played:
    """Decide a run on a list, and all of it again from its events: equal, whatever the run."""
    settings = SchedulingSettings(node_policy=policy, share_visible=share_visible)
    ledger = ListLedger()
    workload = workload_of(a.pod for a in run.arrivals if isinstance(a.pod, PodRequest))
    simulator = Simulator(
        run,
        engine=Engine(run.nodes, settings, workload=workload, seed=1, rank=run.rank),
        recorder=Recorder(ledger, batch=batch),
        settings=settings,
        words=DecidedBy(
            policy=policy, settings_hash=settings_hash(settings, seed=1), tenure_version="test"
        ),
        keep_nodes=True,
    )
    conflicts = simulator.begin(settings_json(settings, seed=1), workload)
    if run.timed:
        VirtualClock(simulator).run()
    else:
        decide_all(simulator)
    outcomes = simulator.finish()
    other = differing(ledger.recorded())
    assert not other, other
    return Played(simulator=simulator, ledger=ledger, outcomes=outcomes, conflicts=conflicts)
