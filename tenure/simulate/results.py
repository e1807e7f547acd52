"""What a run came to, Pod by Pod and in sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.domain.devices import GPU
from ledger.domain.log.events import PodObserved
from ledger.domain.log.machines import granting_nodes
from ledger.domain.nodes import NodeFacts
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.model import RefusedPod
from scheduler.decide.outcome import Unplaced
from scheduler.record.core import Placed
from scheduler.usage.picture import Picture
from tenure.simulate.model import Arrival

Outcome = Placed | Unplaced | RefusedPod


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSpan:
    """Where the run is recorded: positions `first` to `last`. `url` is empty if it is deleted."""

    url: str
    first: int
    last: int
    chain_hash: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """
    The sums that grow with every decision.

    Attributes:
        placed: Pods that got a place at any time.
        failed: Pods that have none at the end.
        decisions: answers that were asked for; a Pod tried again counts again.
        nodes_used, cards_used: places that held a Pod at any time; GPUs as (node, minor).
        cards_counted: GPUs that somebody had by number, node by node, one of two Pods twice.
        asked_core_percent: GPU core percent of all Pods that arrived.
        series: after every arrival of an untimed run, (asked so far, allocated then).
    """

    placed: int = 0
    failed: int = 0
    decisions: int = 0
    nodes_used: set[int] = field(default_factory=set)
    cards_used: set[tuple[int, int]] = field(default_factory=set)
    cards_counted: Counter[int] = field(default_factory=Counter)
    asked_core_percent: int = 0
    series: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    The whole answer of one run.

    Attributes:
        outcomes: one per arrival, same order; of a Pod that was tried again the last one, and a
            place once had is never replaced.
        core_percent_allocated: at the end, GPUs only, of each at most all of it.
        picture: all cards at the end, as `map` has them of the ledger; None if not asked for.
        fragmentation_percent: of all GPU capacity, at the end.
        seconds: deciding and recording, without reading the inputs.
    """

    source: str
    policy: str
    vocabulary: Vocabulary
    seed: int
    nodes: tuple[NodeFacts, ...]
    arrivals: Sequence[Arrival]
    outcomes: Sequence[Outcome]
    adopted: tuple[PodObserved, ...]
    tally: Tally
    core_percent_capacity: int
    core_percent_allocated: int
    picture: Picture | None
    fragmentation_percent: float
    conflicts: tuple[str, ...]
    warnings: tuple[str, ...]
    ledger: LedgerSpan
    seconds: float

    @property
    def cards(self) -> int:
        """Return the number of GPUs that are decided on, those of a machine once."""
        granting = granting_nodes(self.nodes)
        return sum(
            card.device_type == GPU
            for number, node in enumerate(self.nodes)
            for card in node.devices
            if granting[number] == number
        )

    @property
    def cards_untouched(self) -> int:
        """Return how many GPUs certainly held no Pod at any time."""
        touched = self.tally.cards_counted.copy()
        for node, _ in self.tally.cards_used:
            touched[node] += 1
        there = [sum(card.device_type == GPU for card in node.devices) for node in self.nodes]
        return sum(max(0, cards - touched[node]) for node, cards in enumerate(there))

    @property
    def arrived_percent(self) -> float:
        """Return the GPU share of all arrivals in percent of the capacity."""
        return _percent(self.tally.asked_core_percent, self.core_percent_capacity)

    @property
    def allocated_percent(self) -> float:
        """Return the GPU share that is allocated in percent of the capacity."""
        return _percent(self.core_percent_allocated, self.core_percent_capacity)

    def allocated_at_arrived_percent(self) -> dict[int, float]:
        """
        Return the allocated percent at 10, 20, ... percent arrived, as papers print it.

        Rule: FGD paper's rows: the mean of allocated % over arrivals whose arrived % rounds to t.
        """
        sums: dict[int, list[float]] = {}
        for asked, allocated in self.tally.series:
            step = round(_percent(asked, self.core_percent_capacity))
            if step and step % 10 == 0:
                sums.setdefault(step, []).append(_percent(allocated, self.core_percent_capacity))
        return {step: round(sum(values) / len(values), 2) for step, values in sorted(sums.items())}


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
