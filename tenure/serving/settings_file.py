"""A settings file that is read again when it changes; wrong never replaces right."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger.domain.errors import InputError
from tenure.settings import read_admission_file
from tenure.sources.text import content_of
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings

if TYPE_CHECKING:
    from webhook.server.metrics import Metrics

_log: Final = logging.getLogger("tenure.settings")


class SettingsFile:
    """The settings of now: those of the file, or the defaults without one."""

    def __init__(self, path: Path | None, metrics: Metrics) -> None:
        """Read the file. Raises InputError as `read_admission_file`."""
        self._path = path
        self._metrics = metrics
        self._digest = ""
        self._refused = ""
        self._current = DEFAULT_ADMISSION
        if path is not None:
            content = content_of(path)
            self._current = read_admission_file(path, content)
            self._digest = hashlib.sha256(content).hexdigest()
        self._show()

    def _show(self) -> None:
        """Tell by which vocabulary Pods are read, for whoever compares it with the scheduler's."""
        self._metrics.vocabulary.clear()
        self._metrics.vocabulary.labels(self._current.vocabulary.digest).set(1)

    @property
    def current(self) -> AdmissionSettings:
        """The settings as last read and found right."""
        return self._current

    def look(self) -> None:
        """Read the file again if it changed; one that is wrong is logged, and nothing changes."""
        if self._path is None:
            return
        try:
            content = content_of(self._path)
            digest = hashlib.sha256(content).hexdigest()
            if digest == self._digest:
                self._refused = ""
                return
            self._current = read_admission_file(self._path, content)
            self._digest = digest
        except InputError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                self._metrics.settings_reloads.labels("refused").inc()
                _log.error("settings refused", extra={"reason": str(error)})
            return
        self._refused = ""
        self._metrics.settings_reloads.labels("read").inc()
        self._show()
        words = self._current.vocabulary.digest
        _log.info(
            "settings read",
            extra={"path": str(self._path), "sha256": digest, "vocabulary": words},
        )
