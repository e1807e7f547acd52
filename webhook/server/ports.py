"""What the server needs of others: settings, look-ups, and somebody who takes note of refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from aiohttp.web_protocol import RequestHandler

from webhook.decide.facts import QuotaFact
from webhook.decide.settings import AdmissionSettings


class LookupFailedError(Exception):
    """The API could not be asked. Asking again later may work."""


class Lookups(Protocol):
    """Lookups in the API, with a time limit on every call. Each raises LookupFailedError."""

    async def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; none for one that does not exist."""

    async def quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        """Return the namespace's ResourceQuotas."""

    async def pod(self, namespace: str, name: str) -> Mapping[str, object] | None:
        """Return a Pod; None for one that does not exist."""


class SettingsSource(Protocol):
    """Where the settings of now come from."""

    @property
    def current(self) -> AdmissionSettings:
        """The settings as last read and found right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRecord:
    """
    One refusal, as the scheduler's API takes it for the ledger.

    Attributes:
        uid: of the admission request; the Pod has none yet when it is created.
        rule, field, message: of the violation.
        mode: `enforce` when it refused the object, `warn` when it was only said.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    user: str
    rule: str
    mode: str
    field: str
    message: str


TakeRefusal = Callable[[RefusalRecord], None]
"""Takes a refusal; when too many wait it is dropped and counted, never waited for."""
Answering = Callable[[RequestHandler | None], AbstractContextManager[object]]
"""Keeps a connection, which has a request, until the block ends."""
