"""What the device plugin counts."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0)


class Metrics:
    """Counters and gauges of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registered = Gauge(
            "tenure_agent_registered", "Whether kubelet knows our slots", registry=registry
        )
        self.registrations = Counter(
            "tenure_agent_registrations",
            "How often we registered with kubelet: once for each start of it or of us",
            registry=registry,
        )
        self.names = Counter(
            "tenure_agent_names", "Names given to containers with devices", registry=registry
        )
        self.starts = Counter(
            "tenure_agent_container_starts",
            "Starts of containers with devices, by whether they may",
            ["result"],
            registry=registry,
        )
        for result in ("prepared", "refused"):
            self.starts.labels(result)
        self.start_seconds = Histogram(
            "tenure_agent_start_seconds",
            "How long kubelet waited for us before a container that may start",
            buckets=SECONDS,
            registry=registry,
        )
