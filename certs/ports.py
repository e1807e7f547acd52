"""What the rotator needs of a Kubernetes API; `tenure.kube` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

Object = Mapping[str, Any]
"""An API object as JSON."""


class ConflictError(Exception):
    """The object is not the one that was read: it has changed, exists already, or is gone."""


class ApiError(Exception):
    """
    The API can't be reached, does not answer in time, or refuses; the message says which.

    Attributes:
        status: HTTP status of a refusal; None where there was no answer.
        retry_after_seconds: how long the API server wants to be left alone, where it says so.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


def api_path(version: str, *words: str) -> str:
    """
    Return the path of what `words` name, such as `"namespaces", namespace, "pods", name`.

    Args:
        version: of the API, with its group if it has one.

    Raises:
        ApiError: a word that names no object; the API server would take it for another path.
    """
    for word in words:
        if word in {"", ".", ".."} or "/" in word or "%" in word:
            raise ApiError(f"no object is called so: name={word!r}", status=400)
    return quote("/".join(("", "apis" if "/" in version else "api", version, *words)))


class Objects(Protocol):
    """API objects by path, each call bounded. Raises ApiError; writes also ConflictError."""

    async def read(self, path: str) -> Object | None:
        """Return an object as the API server has it now; None if there is none."""

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at `path`."""

    async def replace(self, path: str, body: Object) -> Object:
        """Replace an object if it still has the resourceVersion in `body`."""

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Apply a JSON patch whole or not at all; a failing `test` is a conflict."""

    async def remove(self, path: str) -> None:
        """Delete an object; one that is gone already is no error."""
