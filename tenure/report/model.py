"""What the report draws beside the history, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.usage.model import CapacityPoint, History
from scheduler.usage.picture import NONE, Many
from tenure.report.models import ModelRow
from tenure.report.waiting import CauseRow, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """GPU-hours and CPU-hours of one group, such as a namespace."""

    group: str
    pods: int
    gpu_hours: float
    cpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """
    The counts of the headline.

    Attributes:
        decided: Pods that got an answer, either way.
        placed: Pods that were reserved a place at least once.
        refused: Pods that were refused at least once.
        waiting: Pods whose last answer is a refusal, but for those whose objects never were.
        at_admission: these: they were refused at admission.
        over: cards that were ever above 100 %, None when nobody looked.
        verified_seconds: how long the proof took, None when it was not made.
        findings: what the proof found; empty when all is well.
        unread: so many events, from the first on, are in an archive and were not read.
    """

    decided: int
    placed: int
    refused: int
    waiting: int
    events: int
    at_admission: int = 0
    over: int | None = None
    verified_seconds: float | None = None
    findings: tuple[str, ...] = ()
    unread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """Where a report comes from, for its footer."""

    command: str
    ledger: str
    origin: str
    seed: str
    chain_head: str
    position: int
    head_at_us: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    The whole page, before it is HTML.

    Attributes:
        mean: what became of the GPUs over the whole run, in percent by part; None without any.
        of_objects: it is of a cluster's objects, which know one moment and nothing that ended.
    """

    totals: Totals
    history: History
    source: ReportSource
    cards: Many = NONE
    models: Sequence[ModelRow] = ()
    capacity: Sequence[CapacityPoint] = ()
    mean: Mapping[str, float] | None = None
    causes: Sequence[CauseRow] = ()
    usage: Sequence[UsageRow] = ()
    waits: Sequence[Wait] = ()
    of_objects: bool = False
    notes: Sequence[str] = field(default_factory=tuple)
