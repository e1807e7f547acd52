"""The cluster's templates of shares: followed, recorded, and only then decided by."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from certs.ports import Object
from ledger.domain.errors import InputError
from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.log.events import LedgerEvent, SettingsChanged
from ledger.domain.log.state import Holding
from ledger.store.writing.commands import Command, Recorded
from scheduler.cluster import settings as stated
from scheduler.cluster.documents import Document
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.service.ports import Clock, Recorder
from scheduler.service.view import ClusterView

ACTOR: Final = "scheduler"

_log: Final = logging.getLogger("tenure.scheduler.templates")


class Templates:
    """
    A sink of the ConfigMap of templates, and the settings with what it says.

    Rule: Koordinator contract 8.7; design section 4, "Events say what was decided on". Without the
    ConfigMap the settings' own templates count. One that can't be read changes nothing: the last
    readable one counts, after a start the last that the ledger has.

    Args:
        view: made with the settings as they are in the file.
        said: the newest settings that the ledger has, as text.

    Attributes:
        fault: why the ConfigMap can't be read; empty where it can, or is not there.
    """

    def __init__(
        self,
        view: ClusterView,
        recorder: Recorder,
        clock: Clock,
        words: DecidedBy,
        *,
        said: str,
        documents_in: stated.InText,
    ) -> None:
        self._view = view
        self._recorder = recorder
        self._clock = clock
        self._words = words
        self._documents_in = documents_in
        self._given = self._due = view.settings
        self._templates: tuple[SharedTemplate, ...] | None = None
        self._number = 0
        self._due_text = ""
        self.said = said
        self._before = stated.recorded_settings(said).devices.shared_templates if said else None
        self.fault = ""
        view.wakeups.event_folded.subscribe(self._take_event)

    def put(self, uid: str, item: Object) -> None:
        """Take the ConfigMap as it is now."""
        metadata = item["metadata"]
        document = Document(
            kind="ConfigMap",
            ours=True,
            namespace=str(metadata.get("namespace") or ""),
            name=str(metadata["name"]),
            uid=uid,
            body=dict(item),
        )
        if not stated.is_of_templates(document):
            return
        try:
            self._templates = stated.templates_in(document, self._documents_in)
        except InputError as error:
            if self._templates is None:
                self._templates = self._before
            if self.fault != str(error):
                self.fault = str(error)
                _log.error("the templates can't be read", extra={"reason": self.fault})
        else:
            self.fault = ""

    def drop(self, _uid: str) -> None:
        """Take note that there is no ConfigMap any more."""
        self._templates = self._before = None
        self.fault = ""

    async def settle(self) -> None:
        """
        Record and decide by settings that are news.

        Raises LedgerError: the old ones count, unless fenced.
        """
        wanted = stated.with_templates(self._given, self._templates)
        text = stated.settings_json(wanted, seed=0)
        if text == self.said:
            self._decide_by(wanted)
            return
        if text != self._due_text:
            self._number += 1
            self._due, self._due_text = wanted, text
        new = events.settings_changed(self._worded(wanted), text, self._clock.wall_us())
        # Settings may come back: the same words are another change then.
        key = f"{new.idempotency_key}:{self._recorder.epoch}.{self._number}"
        command = Command(events=(events.by(ACTOR, new, key=key),))
        outcome = await self._recorder.record(command)
        if not isinstance(outcome, Recorded):
            raise outcome.error
        self._view.take(outcome.first, new.event)

    def _take_event(self, _position: int, event: LedgerEvent, _holding: Holding | None) -> None:
        """Decide by our settings from their position in the ledger on."""
        if not isinstance(event, SettingsChanged):
            return
        self.said = event.settings
        if event.settings == self._due_text:
            self._due_text = ""
            self._decide_by(self._due)

    def _decide_by(self, settings: SchedulingSettings) -> None:
        if settings == self._view.settings:
            return
        changed = self._view.decide_by(settings)
        wakeups = self._view.wakeups
        wakeups.settings_decided.publish(self._worded(settings))
        for name in changed:
            wakeups.room_freed.publish(name)

    def _worded(self, settings: SchedulingSettings) -> DecidedBy:
        return replace(self._words, settings_hash=stated.settings_hash(settings, seed=0))
