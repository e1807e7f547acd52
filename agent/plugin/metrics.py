"""What the device plugin counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


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
