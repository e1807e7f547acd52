"""What the report draws beside the history, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.resources import TYPE_GPU
from ledger.store.reading.report_rows import UsageRecord
from scheduler.usage.model import CapacityPoint, History
from scheduler.usage.picture import NONE, CardGroup, Many, Picture, cards_of, exactly
from tenure.report.waiting import CauseRow, Wait


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
    usage: Sequence[UsageRecord] = ()
    waits: Sequence[Wait] = ()
    of_objects: bool = False
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(slots=True, kw_only=True)
class ModelRow:
    """One model's cards: `full` and `partly` are held; an unnamed card counts as held in whole."""

    model: str
    is_gpu: bool
    nodes: set[str] = field(default_factory=set)
    cards: Many = NONE
    full: Many = NONE
    partly: Many = NONE
    free: Many = NONE
    closed: int = 0
    level_percent: int = 0

    @property
    def percent(self) -> float:
        """Return how much of them is held."""
        most = WHOLE_PERCENT * self.cards.least
        return round(WHOLE_PERCENT * min(most, self.level_percent) / most, 1) if most else 0.0


def models_in(picture: Picture) -> tuple[ModelRow, ...]:
    """Return the cards of a picture by model, GPUs and the most first; other types by type."""
    rows: dict[str, ModelRow] = {}
    for node in picture.nodes:
        for group in node.groups:
            if group.cards == NONE:
                continue
            model, is_gpu = group.model or group.device_type, group.device_type == TYPE_GPU
            row = rows.setdefault(model, ModelRow(model=model, is_gpu=is_gpu))
            row.nodes.add(node.name)
            _add(row, group)
    return tuple(
        sorted(rows.values(), key=lambda row: (not row.is_gpu, -row.cards.least, row.model))
    )


def _add(row: ModelRow, group: CardGroup) -> None:
    devices = cards_of(group)
    levels = [card.level_percent for card in devices if card.holders]
    idle = len(devices) - len(levels) or len(devices)
    row.cards += group.cards
    row.free += group.free
    row.closed += sum(not card.is_good for card in devices)
    held = sum(pod.level_percent for pod in group.unplaced)
    row.level_percent += sum(levels) + min(WHOLE_PERCENT * idle, held)
    if group.mode in {"replicas", "slices"} and group.held is not None:
        row.partly += group.held
        return
    full = sum(level == WHOLE_PERCENT for level in levels)
    row.full += exactly(full + min(idle, sum(pod.cards for pod in group.unplaced)))
    row.partly += exactly(len(levels) - full)
