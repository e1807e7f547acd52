"""The Kubernetes API as raw JSON, for tests: one call, one answer, a refusal's own words."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Final

TIMEOUT_SECONDS: Final = 120.0
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """
    What the API server answered.

    Attributes:
        warnings: the texts of its Warning headers, in order.
    """

    status: int
    body: Any
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the server did what was asked."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """What `kubectl` would show of a refusal."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)

    @property
    def causes(self) -> list[dict[str, str]]:
        """The field errors of a refusal."""
        details = self.body.get("details") or {}
        return list(details.get("causes", []))


class Api:
    """Calls the API server as one user; every call has a timeout."""

    def __init__(self, url: str, *, ca_file: Path, token: str) -> None:
        self._url = url
        self._token = token
        self._tls = ssl.create_default_context(cafile=str(ca_file))

    def is_ready(self) -> bool:
        """Tell whether the server says it is ready."""
        return self.call("GET", "/readyz").ok

    def get(self, path: str) -> Reply:
        """Read an object or a list."""
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Reply:
        """Create an object under a collection's path."""
        return self.call("POST", path + ("?dryRun=All" if dry_run else ""), body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Replace an object."""
        return self.call("PUT", path, body)

    def patch(self, path: str, body: Any, kind: str = MERGE_PATCH) -> Reply:  # noqa: ANN401 - JSON
        """Patch an object or one of its subresources."""
        return self.call("PATCH", path, body, kind)

    def delete(self, path: str) -> Reply:
        """Delete an object at once."""
        return self.call("DELETE", path, {"gracePeriodSeconds": 0})

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,  # noqa: ANN401 - JSON
        kind: str = "application/json",
    ) -> Reply:
        """
        Call the API and return its answer, whatever the status.

        Raises:
            OSError: the server can't be reached or does not answer in time.
        """
        request = urllib.request.Request(
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kind},
        )
        try:
            with urllib.request.urlopen(
                request, timeout=TIMEOUT_SECONDS, context=self._tls
            ) as answer:
                return _reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return _reply(refused.code, refused.headers, refused.read())


def _reply(status: int, headers: Message, raw: bytes) -> Reply:
    try:
        body = json.loads(raw)
    except ValueError:
        body = raw.decode(errors="replace")
    warnings = [text.split('"', 1)[-1].rsplit('"', 1)[0] for text in headers.get_all("Warning", [])]
    return Reply(status=status, body=body, warnings=tuple(warnings))
