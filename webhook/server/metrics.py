"""What the webhook counts and times. Names and units as Prometheus asks; one registry each."""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self._counted: dict[tuple[str, str, str], Counter] = {}
        self.requests = counter(
            "tenure_admission_requests_total",
            "Admission requests by hook, operation and what became of them.",
            ("hook", "operation", "decision"),
        )
        self.seconds = histogram(
            "tenure_admission_duration_seconds",
            "Time from the first byte of a request to its answer.",
            ("hook",),
        )
        self.remembered = counter(
            "tenure_admission_remembered_total",
            "Answers taken over from the decision about a Pod that is alike.",
        )
        self.violations = counter(
            "tenure_admission_violations_total",
            "Violations by rule and by what they did.",
            ("rule", "mode"),
        )
        self.broken = counter(
            "tenure_admission_broken_requests_total",
            "Requests that were no AdmissionReview, by reason.",
            ("reason",),
        )
        self.in_flight = gauge(
            "tenure_admission_in_flight_requests", "Admission requests that are being answered."
        )
        self.lookups = counter(
            "tenure_admission_lookups_total",
            "Look-ups in the API by what was asked and whether it answered.",
            ("object", "outcome"),
        )
        self.refusals_dropped = counter(
            "tenure_admission_refusals_dropped_total",
            "Refusals that could not be handed on because too many waited.",
        )
        self.settings_reloads = counter(
            "tenure_admission_settings_reloads_total",
            "Readings of a changed settings file, by outcome.",
            ("outcome",),
        )
        self.vocabulary = gauge(
            "tenure_admission_vocabulary_info",
            "1 for the vocabulary that requests are read by, by its SHA-256.",
            ("sha256",),
        )
        self.background_failures = counter(
            "tenure_webhook_background_failures_total",
            "Failures of the work beside answering: certificates, rotation, settings, watches.",
            ("what",),
        )
        self.rotation_phase = gauge(
            "tenure_certificate_rotation_phase",
            "1 for the phase that the rotation of certificates is in, 0 for the others.",
            ("phase",),
        )
        self.certificate_not_after = gauge(
            "tenure_certificate_not_after_seconds", "End of the serving certificate, Unix time."
        )

    def count(self, hook: str, operation: str, decision: str) -> None:
        """Count a request; the few series there are were looked up before."""
        key = (hook, operation, decision)
        series = self._counted.get(key)
        if series is None:
            series = self._counted[key] = self.requests.labels(*key)
        series.inc()
