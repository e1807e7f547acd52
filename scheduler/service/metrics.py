"""What the scheduler counts and times. Names and units as Prometheus asks; one registry each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ledger.domain.log.drift import DRIFT_KINDS
from scheduler.decide.nodes.card_counts import CardCounts
from scheduler.service.freshness import Followed

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self.seconds = histogram(
            "tenure_extender_duration_seconds",
            "Time from the first byte of a call to its answer.",
            ("verb",),
        )
        self.broken = counter(
            "tenure_extender_broken_calls_total",
            "Calls that were not answered, by reason.",
            ("verb", "reason"),
        )
        self.api_seconds = histogram(
            "tenure_api_duration_seconds",
            "Time that people, agents and webhooks waited for an answer, by route and status.",
            ("route", "status"),
        )
        self.background_failures = counter(
            "tenure_scheduler_background_failures_total",
            "Failures of the work beside answering: watches, ledger, settings, certificates.",
            ("what",),
        )
        self.certificate_not_after = gauge(
            "tenure_certificate_not_after_seconds", "End of the serving certificate, Unix time."
        )
        self._read = gauge(
            "tenure_scheduler_view",
            "What the view has: Nodes, those with faults, soft holds, ledger position, what has"
            " ended unconfirmed by its node, Pods that can't be recorded.",
            ("what",),
        )
        self._drift = gauge(
            "tenure_drift", "Drift that is open, by kind; docs/drift.md.", ("kind",)
        )
        self._stale = gauge(
            "tenure_reflector_staleness_seconds",
            "Time since the API server last told anything of a collection.",
            ("collection",),
        )

    def read(self, **values: Callable[[], float]) -> None:
        """Read these numbers of the view whenever somebody asks."""
        for what, value in values.items():
            self._read.labels(what).set_function(value)

    def count(
        self, name: str, words: str, label: str, source: Callable[[], Mapping[str, int]]
    ) -> None:
        """Read these counts, which only grow, whenever somebody asks."""
        self.registry.register(_Counted(name, words, label, source))

    def count_cards(self, counts: Callable[[], CardCounts], *, each: bool) -> None:
        """Read sums of cards when asked; `each`: also every card, three lines of text each."""
        self.registry.register(_Cards(counts))
        if each:
            self.registry.register(_EachCard(counts))

    def count_drift(self, count: Callable[[str], int]) -> None:
        """Count drift that is open, of every kind there is, whenever somebody asks."""
        for kind in DRIFT_KINDS:
            self._drift.labels(kind).set_function(partial(count, kind))

    def watch_staleness(self, followed: Mapping[str, Followed]) -> None:
        """Read how old these collections are whenever somebody asks."""
        for name, one in followed.items():
            self._stale.labels(name).set_function(partial(_age, one))


class _Counted(Collector):
    """Counts that somebody else keeps."""

    def __init__(
        self, name: str, words: str, label: str, source: Callable[[], Mapping[str, int]]
    ) -> None:
        self._name, self._words, self._label = name, words, label
        self._source = source

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._words, labels=(self._label,))
        for what, number in sorted(self._source().items()):
            family.add_metric((what,), number)
        return (family,)


_OF_MODELS: Final = {
    "cards": ("tenure_cards", "Cards that there are."),
    "held": ("tenure_cards_held", "Cards with a tenant, soft holds included."),
    "closed": ("tenure_cards_closed", "Cards that take nobody, whatever is left on them."),
    "core_capacity": ("tenure_card_core_percent_capacity", "Core of the cards; 100 is one card."),
    "core_allocated": ("tenure_card_core_percent_allocated", "Core given, soft holds included."),
    "memory_capacity": ("tenure_card_memory_bytes_capacity", "Memory of the cards."),
    "memory_allocated": ("tenure_card_memory_bytes_allocated", "Memory given, likewise."),
}


class _Cards(Collector):
    def __init__(self, counts: Callable[[], CardCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        families = {
            key: GaugeMetricFamily(name, words, labels=("type", "model"))
            for key, (name, words) in _OF_MODELS.items()
        }
        for sums in self._counts().sums():
            for key, family in families.items():
                family.add_metric((sums.device_type, sums.model), getattr(sums, key))
        return families.values()


_OF_CARDS: Final = {
    "core_allocated": ("tenure_each_card_core_percent_allocated", "Core given of one card."),
    "memory_allocated": ("tenure_each_card_memory_bytes_allocated", "Memory given of one card."),
    "is_open": ("tenure_each_card_open", "1 where the card may be given."),
}


class _EachCard(Collector):
    def __init__(self, counts: Callable[[], CardCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        labels = ("node", "type", "minor", "id", "model")
        families = {
            key: GaugeMetricFamily(name, words, labels=labels)
            for key, (name, words) in _OF_CARDS.items()
        }
        for card in self._counts().cards():
            of = card.record
            named = (card.node, of.device_type, str(of.minor), of.device_id, of.model)
            for key, family in families.items():
                family.add_metric(named, getattr(card, key))
        return families.values()


def _age(one: Followed) -> float:
    age = one.staleness()
    return math.inf if age is None else age
