"""The certificate that the extender is served with, kept by somebody else."""

from __future__ import annotations

from datetime import UTC, datetime

from certs.serving import Folder, Serving
from scheduler.service.metrics import Metrics
from tenure.serving.listening import HTTP1, HTTP2
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.sources.text import content_of


class ServingFolder:
    """
    The folder of the serving certificate, read again when it changes.

    Raises:
        InputError: the authority of callers can't be read.
        CertificateError: what is in it can't be served.
    """

    def __init__(self, options: SchedulerOptions, metrics: Metrics) -> None:
        authority = options.clients or options.certificates / "ca.crt"
        self.serving = Serving(clients=content_of(authority), protocols=(HTTP2, HTTP1))
        self._metrics = metrics
        self._folder = Folder(
            options.certificates, self.serving, names=options.names, clock=lambda: datetime.now(UTC)
        )
        self.look()

    def look(self) -> None:
        """Read it where it changed, and show when its leaf ends."""
        self._folder.look()
        leaf = self.serving.leaf
        if leaf is not None:
            self._metrics.certificate_not_after.set(leaf.not_after.timestamp())
