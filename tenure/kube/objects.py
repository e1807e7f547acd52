"""API objects as JSON through kubernetes-asyncio, with a time limit on every call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config.config_exception import ConfigException

from certs.ports import ApiError, ConflictError, Object

TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 << 20

_JSON: Final = "application/json"
_JSON_PATCH: Final = "application/json-patch+json"
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_INVALID: Final = 422  # what a failing `test` of a JSON patch is answered with
_MESSAGE_MAX: Final = 500


@asynccontextmanager
async def connected(
    kubeconfig: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> AsyncIterator[KubeObjects]:
    """
    Connect as this kubeconfig's user; without one as the Pod that we run in, else as `kubectl`.

    Raises:
        ApiError: no credentials are found or they can't be read.
    """
    settings = client.Configuration()
    try:
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=settings
            )
        else:
            await config.load_kube_config(kubeconfig, client_configuration=settings)
    except (ConfigException, OSError) as error:
        raise ApiError(f"no credentials for a cluster: {error}") from error
    async with client.ApiClient(settings) as api:
        yield KubeObjects(api, timeout_seconds=timeout_seconds)


class KubeObjects:
    """Reads and writes objects by path; see `certs.ports.Objects`."""

    def __init__(self, api: client.ApiClient, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds

    async def read(self, path: str) -> Object | None:
        """Return an object or a list as the API server has it now; None if there is none."""
        status, body = await self._call("GET", path)
        return None if status == _NOT_FOUND else body

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at `path`."""
        return (await self._call("POST", path, body))[1]

    async def replace(self, path: str, body: Object) -> Object:
        """Replace an object if it still has the resourceVersion in `body`."""
        status, answer = await self._call("PUT", path, body)
        if status == _NOT_FOUND:
            raise ConflictError(f"the object is gone: path={path}")
        return answer

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Apply a JSON patch whole or not at all; a failing `test` is a conflict."""
        status, answer = await self._call("PATCH", path, list(operations), _JSON_PATCH)
        if status == _NOT_FOUND:
            raise ConflictError(f"the object is gone: path={path}")
        return answer

    async def remove(self, path: str) -> None:
        """Delete an object; one that is gone already is no error."""
        await self._call("DELETE", path)

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,  # noqa: ANN401 - JSON
        kind: str = _JSON,
    ) -> tuple[int, Mapping[str, Any]]:
        """
        Call the API; return status and body of a success or a 404.

        Raises:
            ConflictError: 409, or a patch whose `test` fails.
            ApiError: every other refusal, and no answer in time.
        """
        headers = {"Content-Type": kind, "Accept": _JSON}
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._api.call_api(
                    path,
                    method,
                    header_params=headers,
                    body=body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _request_timeout=self._timeout_seconds,
                )
                raw = await answer.content.read(ANSWER_BYTES_MAX)
                status = int(answer.status)
                answer.release()
        except TimeoutError as error:
            raise ApiError(
                f"the API did not answer: {method} {path}, seconds={self._timeout_seconds}"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(f"the API can't be reached: {method} {path}: {error}") from error
        return _answered(method, path, status, raw)


def _answered(method: str, path: str, status: int, raw: bytes) -> tuple[int, Mapping[str, Any]]:
    try:
        body = json.loads(raw) if raw else {}
    except ValueError as error:
        raise ApiError(f"the API's answer is no JSON: {method} {path}, status={status}") from error
    if 200 <= status < 300 or status == _NOT_FOUND:
        return status, body
    message = str(body.get("message", ""))[:_MESSAGE_MAX]
    if status == _CONFLICT or (status == _INVALID and method == "PATCH" and "test" in message):
        raise ConflictError(f"{method} {path}: {message}")
    raise ApiError(f"the API refused: {method} {path}, status={status}: {message}")
