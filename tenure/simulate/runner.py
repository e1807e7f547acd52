"""One run from its inputs to its result: opens the ledger, builds the engine, lets it decide."""

from __future__ import annotations

import gc
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from ledger.domain.annotations.tenure import read_search_cut
from ledger.domain.devices import GPU
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import UNSAID
from ledger.domain.log.events import SettingsChanged
from ledger.domain.nodes import NodeFacts
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.request.requests import PodRequest
from ledger.domain.resources import TAINT_NOT_READY, TAINT_UNREACHABLE
from ledger.store.open import Ledger, open_ledger
from ledger.store.place import is_postgres, sqlite_path
from scheduler.cluster.constraints import by_pod
from scheduler.cluster.settings import settings_hash, settings_json, simulated, with_templates
from scheduler.decide.engine import Engine
from scheduler.decide.nodes.labels import has_other_scheduler
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import DEFAULT_SCHEDULING, CpuSettings, SchedulingSettings
from scheduler.record.core import Placed
from scheduler.record.events import DecidedBy
from tenure.exits import note, with_next
from tenure.picture import picture_of_ledger
from tenure.simulate.model import Run
from tenure.simulate.recorder import Recorder, ResumedEvents
from tenure.simulate.results import LedgerSpan, Outcome, Result
from tenure.simulate.simulator import Progress, Simulator, decide_all
from tenure.simulate.timed import VirtualClock
from tenure.units import format_time

HOLDER: Final = "simulate"
ORIGIN: Final = "simulation/"
BATCH: Final = 1
"""Decisions per durable commit of a ledger that stays."""

TEMPORARY_BATCH: Final = 1000
"""Decisions per commit of a ledger that is deleted at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """
    Where and how a run is recorded.

    Attributes:
        ledger: path or URL; None = a temporary file, deleted at the end.
        resume: go on with an interrupted run; otherwise the ledger must be new or empty.
        batch: decisions per durable commit; None = `BATCH`, or `TEMPORARY_BATCH`.
    """

    ledger: str | None = None
    resume: bool = False
    batch: int | None = None


def run_simulation(
    run: Run,
    *,
    settings: SchedulingSettings,
    seed: int,
    version: str,
    clock: Callable[[], float],
    record: RunRecord = RunRecord(),
    keep_nodes: bool = False,
    draw: bool = False,
    progress: Progress | None = None,
) -> Result:
    """
    Decide and record a whole run.

    Rule: cli.md, `tenure simulate` and Ledger: the ledger's origin names the inputs, so that a run
    is only ever continued with the same ones.

    Args:
        clock: seconds, for the time the run takes; it decides nothing.
        keep_nodes: keep every refusal's reasons node by node, as JSON shows them.
        draw: make the picture of all cards at the end, as tables sum it up.

    Raises:
        InputError: the ledger is not new, not resumable, or of another run.
    """
    _refuse_disorder(run)
    asked = settings.cpu
    settings = with_templates(simulated(settings, run.vocabulary), run.shared_templates)
    words = DecidedBy(
        policy=settings.node_policy,
        settings_hash=settings_hash(settings, seed=seed),
        tenure_version=version,
    )
    workload = workload_of(_typical(run))
    engine = Engine(run.nodes, settings, workload=workload, seed=seed, rank=run.rank, by_count=True)
    origin = origin_of(run, settings, seed)
    with _opened(record) as ledger, _rare_collections():
        replay = _replay(ledger, origin)
        writer = ledger.start_epoch(HOLDER, origin, version, wall_us=run.start_us)
        batch = record.batch or (TEMPORARY_BATCH if record.ledger is None else BATCH)
        simulator = Simulator(
            run,
            engine=engine,
            recorder=Recorder(writer, batch=batch, replay=replay),
            settings=settings,
            words=words,
            keep_nodes=keep_nodes,
        )
        started = clock()
        conflicts = simulator.begin(settings_json(settings, seed=seed), workload)
        if run.timed:
            VirtualClock(simulator).run(progress)
        else:
            decide_all(simulator, progress)
        outcomes = simulator.finish()
        seconds = clock() - started
        head = ledger.head()
        return Result(
            source=run.source,
            policy=settings.node_policy,
            vocabulary=settings.vocabulary,
            seed=seed,
            nodes=run.nodes,
            arrivals=run.arrivals,
            outcomes=outcomes,
            adopted=run.adopted,
            tally=simulator.tally,
            core_percent_capacity=engine.core_percent_capacity,
            core_percent_allocated=engine.core_percent_allocated,
            picture=picture_of_ledger(ledger, None) if draw else None,
            fragmentation_percent=engine.fragmentation_percent(),
            conflicts=conflicts,
            warnings=(
                *run.warnings,
                *by_pod(run.unread),
                *_cut_short(outcomes),
                *_by_count(outcomes),
                *unlike_service(outcomes, run.nodes, asked),
            ),
            ledger=LedgerSpan(
                url="" if record.ledger is None else ledger.url,
                first=1,
                last=head.position,
                chain_hash=head.chain_hash.hex(),
            ),
            seconds=seconds,
        )


def origin_of(run: Run, settings: SchedulingSettings, seed: int) -> str:
    """Return the ledger's origin: a hash over the inputs and all that changes a decision."""
    text = canonical_json(
        {"inputs": run.inputs_hash, "settings": settings_json(settings, seed=seed)}
    )
    return f"{ORIGIN}{hashlib.sha256(text.encode()).hexdigest()}"


def recorded_start_us(url: str) -> int | None:
    """Return the virtual time at which the run in this ledger began; None if it has not begun."""
    if _is_new(url):
        return None
    with open_ledger(url, mode="read") as ledger:
        for recorded in ledger.read_events(limit=2):  # the epoch, then the settings
            if isinstance(recorded.event, SettingsChanged):
                return recorded.envelope.wall_us
    return None


@contextmanager
def _rare_collections() -> Iterator[None]:
    """
    Let the garbage collector look less often.

    A run makes many small values that stay and no circles: looking for them takes a sixth of it.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _refuse_disorder(run: Run) -> None:
    if not run.timed:
        return
    moments = [arrival.at_us for arrival in run.arrivals]
    changes = [change.at_us for change in run.changes]
    for before, after in chain(pairwise(moments), pairwise(changes)):
        if after < before:
            raise InputError(f"not in the order of time: {format_time(after)}", place=run.source)
    if run.end_us is not None and moments and moments[-1] >= run.end_us:
        fact = f"a Pod arrives after the end of the run: {format_time(moments[-1])}"
        raise InputError(fact, place=run.source)


def _typical(run: Run) -> Sequence[PodRequest]:
    if run.typical:
        return run.typical
    return [arrival.pod for arrival in run.arrivals if isinstance(arrival.pod, PodRequest)]


@contextmanager
def _opened(record: RunRecord) -> Iterator[Ledger]:
    if record.ledger is None:
        with (
            tempfile.TemporaryDirectory(prefix="tenure-") as folder,
            open_ledger(str(Path(folder) / "ledger.db"), mode="create") as ledger,
        ):
            yield ledger
        return
    with _kept(record.ledger, resume=record.resume) as ledger:
        yield ledger


def _kept(url: str, *, resume: bool) -> Ledger:
    if resume and not _is_new(url):
        return open_ledger(url, mode="write")
    if resume:
        note(f"nothing to resume, the run begins: ledger={url}")
    try:
        return open_ledger(url, mode="create")
    except InputError as error:
        step = "name a new file, or go on with an interrupted run by --resume"
        raise with_next(error, step) from None


def _is_new(url: str) -> bool:
    """Tell whether no run has begun here: killed early, it leaves a file without tables."""
    if not is_postgres(url):
        path = sqlite_path(url)
        if not path.is_file() or path.stat().st_size == 0:
            return True
    try:
        with open_ledger(url, mode="read") as ledger:
            return ledger.head().epoch == 0
    except InputError as error:
        return "tables are missing" in error.message or "it is empty" in error.message


def _cut_short(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Name the Pods whose search for cards was cut: they fit, and may not have the best."""
    for outcome in outcomes:
        if isinstance(outcome, Placed) and outcome.placement.search_cut:
            why = read_search_cut(outcome.annotations)
            yield f"{outcome.placement.request.path}: the search for cards was cut short: {why}"


def _by_count(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Say what kind of answer a place is that names no cards."""
    counted = [each for each in outcomes if isinstance(each, Placed) and each.placement.counted]
    if counted:
        fact = "placed by count: nodes have GPUs or parts free, and which nobody has written down"
        what = "kubelet chooses them, and refuses more than one part by MPS"
        yield f"{fact}; {what}: pods={len(counted)}"


def unlike_service(
    outcomes: Sequence[Outcome],
    nodes: Sequence[NodeFacts],
    asked: CpuSettings = DEFAULT_SCHEDULING.cpu,
) -> Iterator[str]:
    """Say which places the scheduler service, with these settings, would not give."""
    placed = [each.placement for each in outcomes if isinstance(each, Placed)]
    given = [nodes[one.node] for one in placed if GPU in {each.device_type for each in one.devices}]
    others = [node.other_scheduler for node in given if has_other_scheduler(node)]
    if others:
        who = ", ".join(sorted({*others}))
        fact = f"placed where another scheduler gives the cards too ({who})"
        fact += ", as it would be there; our own grants nothing there until the node is owned"
        yield f"{fact} (NodeOfOtherScheduler): pods={len(others)}"
    keys = {(key, UNSAID) for key in (TAINT_NOT_READY, TAINT_UNREACHABLE)}
    kept = [{(each.key, each.effect) for each in nodes[one.node].taints} for one in placed]
    asleep = [taints for taints in kept if keys & taints]
    if asleep:
        fact = "placed on nodes that are not ready and have no taint that says so"
        yield f"{fact}; kubelet starts nothing there: pods={len(asleep)}"
    unbound = [one for one in placed if one.cpuset and asked.leaves_unbound(nodes[one.node])]
    if unbound:
        fact = "nothing binds CPUs of their own on their nodes, which a live service keeps closed"
        yield f"CPUsNotBound: {fact}; pods={len(unbound)}"


def _replay(ledger: Ledger, origin: str) -> ResumedEvents | None:
    """Return the events to compare with; None where a run begins."""
    head = ledger.head()
    if head.epoch == 0:
        return None
    if head.origin != origin:
        error = InputError(
            "the ledger is of a run with other inputs, settings, policy or seed: "
            f"origin={head.origin}, expected={origin}",
            field="--resume",
            place=ledger.url,
        )
        raise with_next(error, "give the inputs and options of the interrupted run")
    return ResumedEvents(ledger.read_events())
