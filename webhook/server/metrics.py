"""What the webhook counts and times. Names and units as Prometheus asks; one registry each."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counted: dict[tuple[str, str, str], Counter] = {}
        self.requests = Counter(
            "tenure_admission_requests_total",
            "Admission requests by hook, operation and what became of them.",
            ("hook", "operation", "decision"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tenure_admission_duration_seconds",
            "Time from the first byte of a request to its answer.",
            ("hook",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.remembered = Counter(
            "tenure_admission_remembered_total",
            "Answers taken over from the decision about a Pod that is alike.",
            registry=self.registry,
        )
        self.violations = Counter(
            "tenure_admission_violations_total",
            "Violations by rule and by what they did.",
            ("rule", "mode"),
            registry=self.registry,
        )
        self.broken = Counter(
            "tenure_admission_broken_requests_total",
            "Requests that were no AdmissionReview, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "tenure_admission_in_flight_requests",
            "Admission requests that are being answered.",
            registry=self.registry,
        )
        self.lookups = Counter(
            "tenure_admission_lookups_total",
            "Look-ups in the API by what was asked and whether it answered.",
            ("object", "outcome"),
            registry=self.registry,
        )
        self.refusals_dropped = Counter(
            "tenure_admission_refusals_dropped_total",
            "Refusals that could not be handed on because too many waited.",
            registry=self.registry,
        )
        self.settings_reloads = Counter(
            "tenure_admission_settings_reloads_total",
            "Readings of a changed settings file, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self.vocabulary = Gauge(
            "tenure_admission_vocabulary_info",
            "1 for the vocabulary that requests are read by, by its SHA-256.",
            ("sha256",),
            registry=self.registry,
        )
        self.background_failures = Counter(
            "tenure_webhook_background_failures_total",
            "Failures of the work beside answering: certificates, rotation, settings, watches.",
            ("what",),
            registry=self.registry,
        )
        self.rotation_phase = Gauge(
            "tenure_certificate_rotation_phase",
            "1 for the phase that the rotation of certificates is in, 0 for the others.",
            ("phase",),
            registry=self.registry,
        )
        self.certificate_not_after = Gauge(
            "tenure_certificate_not_after_seconds",
            "End of the serving certificate, Unix time.",
            registry=self.registry,
        )

    def count(self, hook: str, operation: str, decision: str) -> None:
        """Count a request; the few series there are were looked up before."""
        key = (hook, operation, decision)
        series = self._counted.get(key)
        if series is None:
            series = self._counted[key] = self.requests.labels(*key)
        series.inc()
