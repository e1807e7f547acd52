"""API objects as JSON through kubernetes-asyncio, with a time limit on every call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from multidict import CIMultiDictProxy
from yaml import YAMLError

from certs.ports import ApiError, ConflictError, Object
from ledger.domain.kube.object_fields import found_in
from tenure.kube import library

TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 << 20
READ_BYTES: Final = 2 << 20
"""Of a watch: an event may hold an object of 1.5 MiB, etcd's largest."""

_USER_AGENT: Final = "tenure"
_JSON: Final = "application/json"
_JSON_PATCH: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_BOUNDED_BY_US: Final = aiohttp.ClientTimeout()
_OK: Final = 200
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_LATER: Final = frozenset({403, 429})  # not allowed yet, or too often
_SERVER_ERROR: Final = 500
_INVALID: Final = 422  # a failing `test` of a JSON patch too, which alone has no causes
_MESSAGE_MAX: Final = 500
_MISSHAPEN: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What the client library makes of a kubeconfig that is none."""


@asynccontextmanager
async def connected(
    kubeconfig: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> AsyncIterator[KubeObjects]:
    """Connect by kubeconfig, else as our Pod or `kubectl`. Raises ApiError: no credentials."""
    settings = library.Configuration()
    _check_there(kubeconfig)
    try:
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            library.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=settings
            )
        else:
            await library.load_kube_config(kubeconfig, client_configuration=settings)
    except (library.ConfigException, OSError, YAMLError, *_MISSHAPEN) as error:
        why = " ".join(str(error).split()).replace(r"character '\t'", "a tab")
        raise ApiError(f"no credentials for a cluster: {why}") from error
    settings.proxy = settings.proxy or _proxy_of_environment(settings.host or "")
    rest = library.RESTClientObject(settings)
    _leave_environment(rest)
    try:
        yield KubeObjects(rest, settings, timeout_seconds=timeout_seconds)
    finally:
        await rest.close()


def _proxy_of_environment(url: str) -> str | None:
    """Return the proxy between us and a URL that the environment names, as it does for kubectl."""
    there = urlsplit(url)
    return None if proxy_bypass(there.hostname or "") else getproxies().get(there.scheme)


def _leave_environment(rest: library.RESTClientObject) -> None:
    """Ask no environment on each call: the proxy is known, and kubectl reads no `.netrc`."""
    connector = rest.pool_manager.connector
    rest.pool_manager.detach()
    rest.pool_manager = aiohttp.ClientSession(connector=connector, read_bufsize=READ_BYTES)


def _check_there(kubeconfig: str | None) -> None:
    if kubeconfig is not None and not Path(kubeconfig).is_file():
        raise ApiError(f"no such kubeconfig: file={kubeconfig}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer:
    """A text that was answered; `message` is why there is none, where the status is not 200."""

    status: int
    text: str
    message: str
    headers: CIMultiDictProxy[str]


def text_answer(status: int, raw: bytes, headers: CIMultiDictProxy[str]) -> TextAnswer:
    """Return an answer in text, or the message of a refusal."""
    text = raw.decode("utf-8", "replace")
    body = None if status == _OK else _object(raw)
    message = "" if status == _OK else str((body or {}).get("message") or text)[:_MESSAGE_MAX]
    return TextAnswer(status=status, text=text, message=message.strip(), headers=headers)


@dataclass(slots=True, eq=False)
class KubeObjects:
    """Reads and writes objects by path; see `certs.ports.Objects`."""

    rest: library.RESTClientObject
    settings: library.Configuration
    timeout_seconds: float = TIMEOUT_SECONDS
    _skew: timedelta = field(default_factory=timedelta)

    def within(self, seconds: float) -> KubeObjects:
        """Return the same over the same connections, with another time limit on every call."""
        return KubeObjects(self.rest, self.settings, timeout_seconds=seconds)

    def skew(self) -> timedelta:
        """Return how far our clock was ahead of the API server's when it last answered."""
        return self._skew

    async def read(self, path: str) -> Object | None:
        """Return an object or a list as the API server has it now; None if there is none."""
        status, body = await self._call("GET", path)
        return None if status == _NOT_FOUND else body

    async def read_list(self, path: str) -> Object | None:
        """
        Return a list, as `read` does, with `items` that can be gone through once.

        Each is made of its bytes when it is its turn, so that there is never more than one.
        """
        status, body = await self._call("GET", path, taken=_list)
        return None if status == _NOT_FOUND else body

    async def text(self, path: str, order: Object | None = None) -> TextAnswer:
        """Post an order, or read where it is None; return the text. Raises ApiError: no answer."""
        method = "GET" if order is None else "POST"
        with _as_api_errors(method, path, self.timeout_seconds):
            async with asyncio.timeout(self.timeout_seconds):
                answer = await self._asked(method, path, order, accept="*/*")
                return text_answer(int(answer.status), await _whole(answer), answer.headers)

    async def watch(self, path: str, seconds: int) -> AsyncGenerator[Object, None]:
        """
        Yield the events of a watch until the API server ends it, after that many seconds.

        Raises:
            ApiError: it could not be opened or broke off, or nobody ended it in time.
        """
        path = f"{path}&timeoutSeconds={seconds}"
        limit = seconds + self.timeout_seconds
        with _as_api_errors("GET", path, limit):
            async with asyncio.timeout(limit):
                answer = await self._asked("GET", path)
                try:
                    if answer.status != _OK:
                        status, raw = int(answer.status), await _whole(answer)
                        _answered("GET", path, status, _object(raw), answer.headers)
                        raise ApiError(f"the API can't be watched: {path}, status={status}")
                    async for line in _lines(answer):
                        event = _object(line)
                        if event is None:
                            raise ApiError(f"the API's answer is no object: GET {path}")
                        yield event
                finally:
                    answer.close()

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at `path`."""
        status, answer = await self._call("POST", path, body)
        if status == _NOT_FOUND:
            raise ApiError(f"there is nothing to create it in: path={path}", status=status)
        return answer

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

    async def apply(self, path: str, body: Object, *, manager: str, force: bool) -> Object:
        """
        Apply an object's fields as this manager's; what is theirs and left out goes.

        Raises:
            ConflictError: another manager has one of them and `force` is not given, or the object
                is another one than that of the resourceVersion in `body`.
            ApiError: the kind is not there, or the API server refuses.
        """
        query = urlencode({"fieldManager": manager, "force": str(force).lower()})
        status, answer = await self._call("PATCH", f"{path}?{query}", body, _APPLY)
        if status == _NOT_FOUND:
            raise ApiError(f"there is nothing to apply it to: path={path}", status=status)
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
        taken: Callable[[bytes], dict[str, Any] | None] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """
        Call the API; return status and body of a success or a 404.

        Raises:
            ConflictError: 409, or a patch whose `test` fails.
            ApiError: every other refusal, and no answer in time.
        """
        asked = datetime.now(UTC)
        with _as_api_errors(method, path, self.timeout_seconds):
            async with asyncio.timeout(self.timeout_seconds):
                answer = await self._asked(method, path, body, kind=kind)
                status = int(answer.status)
                date = answer.headers.get("Date", "")
                self._skew = _skew(date, asked, datetime.now(UTC))
                raw = await _whole(answer)
        take = taken if taken and status == _OK else _object
        return _answered(method, path, status, take(raw), answer.headers)

    async def _asked(
        self,
        method: str,
        path: str,
        body: Any = None,  # noqa: ANN401 - JSON
        *,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> aiohttp.ClientResponse:
        """Send over the library's connections, faster than by its models; the caller bounds it."""
        rest, settings = self.rest, self.settings
        headers: dict[str, str] = {
            "Accept": accept,
            "Content-Type": kind,
            "User-Agent": _USER_AGENT,
        }
        token = await settings.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        answer: aiohttp.ClientResponse = await rest.pool_manager.request(
            method,
            f"{settings.host}{path}",
            headers=headers,
            data=None if body is None else msgspec.json.encode(body),
            proxy=rest.proxy,
            proxy_headers=rest.proxy_headers,
            server_hostname=rest.server_hostname or None,
            timeout=_BOUNDED_BY_US,
        )
        return answer


@contextmanager
def _as_api_errors(method: str, path: str, seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        fact = f"the API did not answer: {method} {path}, seconds={seconds}"
        raise ApiError(fact) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(f"the API can't be reached: {method} {path}: {error}") from error
    except (
        library.ConfigException,
        library.OpenApiException,
    ) as error:  # such as a token that can't be read
        raise ApiError(f"the API can't be asked: {method} {path}: {error}") from error


def waiting_helps(error: ApiError) -> bool:
    """
    Tell whether the same call may succeed later, with nothing changed by anybody.

    An API server that starts answers 403 until it has read its roles.
    """
    if error.status is None:
        lasting = (aiohttp.ClientConnectorCertificateError, library.ConfigException)
        return not isinstance(error.__cause__, lasting)
    return error.status in _LATER or error.status >= _SERVER_ERROR


def _skew(date: str, asked: datetime, heard: datetime) -> timedelta:
    """
    Return how far our clock is ahead at least of an answer's; nothing where it tells no time.

    It was made between `asked` and `heard`, and says whole seconds: what came late is no skew.
    """
    made = _moment(date)
    if made is None:
        return timedelta()
    behind = heard - made
    return behind if behind < timedelta() else max(asked - made - timedelta(seconds=1), timedelta())


@lru_cache(maxsize=4)  # answers of one second say the same
def _moment(date: str) -> datetime | None:
    """Return the moment that a `Date` tells, None where it tells none."""
    try:
        made = parsedate_to_datetime(date)
    except ValueError:
        return None
    return None if made.tzinfo is None else made


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """Read an answer to its end, and no further than is sane."""
    raw = bytearray()
    try:
        async for chunk in answer.content.iter_any():
            raw += chunk
            if len(raw) > ANSWER_BYTES_MAX:
                raise ApiError(f"the API's answer is too large: bytes_max={ANSWER_BYTES_MAX}")
    finally:
        if answer.content.at_eof():
            answer.release()
        else:
            answer.close()
    return bytes(raw)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield an answer's lines as they come, each no longer than is sane."""
    rest = bytearray()
    async for chunk in answer.content.iter_any():
        rest += chunk
        if len(rest) > ANSWER_BYTES_MAX:
            raise ApiError(f"the API's answer is too large: bytes_max={ANSWER_BYTES_MAX}")
        *whole, last = rest.split(b"\n") if b"\n" in chunk else (rest,)
        for line in whole:
            if line.strip():
                yield bytes(line)
        rest = last
    if rest.strip():
        raise ApiError("the API's answer broke off within a line")


def _answered(
    method: str,
    path: str,
    status: int,
    body: dict[str, Any] | None,
    headers: Mapping[str, str],
) -> tuple[int, Mapping[str, Any]]:
    if status == _NOT_FOUND:
        return status, body or {}
    if 200 <= status < 300:
        if body is None:
            raise ApiError(f"the API's answer is no object: {method} {path}, status={status}")
        return status, body
    # What is said of a Secret may repeat what was sent, so it is not repeated here.
    secret = "/secrets" in path
    message = "" if secret else str((body or {}).get("message", ""))[:_MESSAGE_MAX]
    if status == _CONFLICT or (
        method == "PATCH" and status == _INVALID and not found_in(body, "details", "causes")
    ):
        raise ConflictError(f"{method} {path}: {message}")
    raise ApiError(
        f"the API refused: {method} {path}, status={status}: {message}",
        status=status,
        retry_after_seconds=_seconds(headers.get("Retry-After", "")),
    )


def _seconds(text: str) -> float | None:
    """Return the seconds of a `Retry-After`; a date in it is not what an API server writes."""
    return float(text) if text.isascii() and text.isdigit() else None


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


class _Listed(msgspec.Struct):
    """What is read of a list, its items not yet made."""

    metadata: Any = None
    items: list[msgspec.Raw] | None = None


def _list(raw: bytes) -> dict[str, Any] | None:
    """Return what is read of a list, its items made one by one; None for anything else."""
    try:
        listed = _read_list(raw) if raw else _Listed()
    except (ValueError, RecursionError):
        return None
    return {"metadata": listed.metadata, "items": _each(listed.items or ())}


def _each(items: Sequence[msgspec.Raw]) -> Iterator[Any]:
    for item in items:
        try:
            made = msgspec.json.decode(item)
        except (ValueError, RecursionError) as error:
            raise ApiError(f"the API's answer has an object that can't be read: {error}") from error
        yield made


_read_list: Final = msgspec.json.Decoder(_Listed).decode
