"""The certificate that the extender is served with, kept by somebody else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from certs.serving import Folder, Serving
from ledger.domain.errors import InputError
from scheduler.service.metrics import Metrics
from tenure.serving.scheduling.options import SchedulerOptions


class ServingFolder:
    """
    The folder of the serving certificate, read again when it changes.

    Raises:
        InputError: the authority of callers can't be read.
        CertificateError: what is in it can't be served.
    """

    def __init__(self, options: SchedulerOptions, metrics: Metrics) -> None:
        authority = options.clients or options.certificates / "ca.crt"
        self.serving = Serving(clients=_read(authority))
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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fact = f"can't read it: {(error.strerror or str(error)).lower()}"
        raise InputError(fact, place=str(path)) from error
