"""An API server of a few lines for tests: it stores objects, and fails in whatever way is asked."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jsonpatch
from aiohttp import web

from tests.support.kube.control_plane import SCHEDULER_ACCOUNT

CUT: Final = "cut"
HANG: Final = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canned:
    """
    An answer that is given whatever is asked.

    Attributes:
        how: `cut` ends the connection within the answer, `hang` never ends it.
        date: the Date header, for a server whose clock is another one.
    """

    status: int = 200
    body: bytes = b"{}"
    how: str = ""
    date: str = ""


@dataclass(slots=True)
class FakeApi:
    """
    Objects by path. Made by `fake_api`.

    Attributes:
        canned: path -> answer, before anything that is stored.
        seen: method and path of every request, in order.
        tokens: Authorization header of every request, in order.
        away: nobody is answered.
        gate: nobody is answered while a test has closed it.
    """

    url: str = ""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    canned: dict[str, Canned] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    away: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    versions: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.gate.set()

    def add_namespace(self, name: str, *, managed: bool = True) -> None:
        """Add a namespace, managed by default."""
        labels = {"tenure.sh/managed": "true"} if managed else {}
        self.objects[f"/api/v1/namespaces/{name}"] = {"metadata": {"name": name, "labels": labels}}

    def kubeconfig(self, folder: Path) -> Path:
        """Write and return a kubeconfig for this server."""
        path = folder / "kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{self.url}'}}}}]\n"
            "users: [{name: test, user: {token: sesame}}]\n"
            "contexts: [{name: test, context: {cluster: test, user: test}}]\n"
        )
        return path

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        path = request.path
        self.seen.append((request.method, path))
        self.tokens.append(request.headers.get("Authorization", ""))
        await self.gate.wait()
        canned = Canned(how=HANG) if self.away else self.canned.get(path)
        if canned is not None:
            return await _canned(request, canned)
        body = json.loads(await request.read() or b"null")
        match request.method:
            case "GET" if "watch" in request.query:
                return await self._watched(request)
            case "GET":
                return self._got(path)
            case "POST" if path.endswith("/selfsubjectreviews"):
                user = {"username": SCHEDULER_ACCOUNT}
                return web.json_response({**body, "status": {"userInfo": user}}, status=201)
            case "POST":
                return self._created(f"{path}/{body['metadata']['name']}", body)
            case "PUT":
                return self._replaced(path, body)
            case "PATCH":
                return self._patched(path, body)
            case _:
                found = self.objects.pop(path, None)
                return _status(200 if found else 404)

    def _got(self, path: str) -> web.Response:
        if path in self.objects:
            return web.json_response(self.objects[path])
        below = list(self._below(path).values())
        if below or path.endswith(("/leases", "/resourcequotas", "/namespaces")):
            metadata = {"resourceVersion": str(next(self.versions))}
            return web.json_response({"metadata": metadata, "items": below})
        return _status(404)

    def _below(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a collection, or of its kind in every namespace."""
        collection, _, kind = path.rpartition("/")
        return {
            name: one
            for name, one in self.objects.items()
            if name.rpartition("/")[0] == path
            or (name.startswith(f"{collection}/namespaces/") and name.split("/")[-2] == kind)
        }

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        """Tell what changes until nobody listens, or a failure is asked for."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        known: dict[str, dict[str, Any]] = {}
        while not self.away and request.path not in self.canned:
            now = self._below(request.path)
            changed = [("ADDED", one) for name, one in now.items() if known.get(name) != one]
            gone = [("DELETED", one) for name, one in known.items() if name not in now]
            for kind, one in (*changed, *gone):
                metadata = {"resourceVersion": str(next(self.versions)), **one["metadata"]}
                event = {"type": kind, "object": {**one, "metadata": metadata}}
                await response.write(json.dumps(event).encode() + b"\n")
            known = copy.deepcopy(now)
            await asyncio.sleep(0.01)
        return response

    def _created(self, path: str, body: dict[str, Any]) -> web.Response:
        return _status(409) if path in self.objects else self._stored(path, body, 201)

    def _replaced(self, path: str, body: dict[str, Any]) -> web.Response:
        known = self.objects.get(path)
        if known is None:
            return _status(404)
        version = body["metadata"].get("resourceVersion")
        if version != known["metadata"].get("resourceVersion"):
            return _status(409)
        return self._stored(path, body, 200)

    def _patched(self, path: str, operations: list[dict[str, Any]]) -> web.Response:
        if path not in self.objects:
            return _status(404)
        try:
            changed = jsonpatch.apply_patch(self.objects[path], operations)
        except jsonpatch.JsonPatchTestFailed:
            # word for word what a real one says, which names neither the test nor the path
            words = "the server rejected our request due to an error in our request"
            return _status(422, words)
        return self._stored(path, changed, 200)

    def _stored(self, path: str, body: dict[str, Any], status: int) -> web.Response:
        metadata = {**body["metadata"], "resourceVersion": str(next(self.versions))}
        self.objects[path] = {**body, "metadata": metadata}
        return web.json_response(self.objects[path], status=status)


@asynccontextmanager
async def fake_api(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeApi]:
    """Serve on a free port of the loopback until the block ends."""
    api = FakeApi()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    api.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()


async def _canned(request: web.Request, canned: Canned) -> web.StreamResponse:
    if canned.how == HANG:
        await asyncio.sleep(60)
    headers = {"Content-Type": "application/json"}
    if canned.date:
        headers["Date"] = canned.date
    if canned.how != CUT:
        return web.Response(status=canned.status, body=canned.body, headers=headers)
    response = web.StreamResponse(status=canned.status, headers=headers)
    response.content_length = len(canned.body) + 100
    await response.prepare(request)
    await response.write(canned.body)
    assert request.transport is not None, "somebody asked"
    request.transport.abort()
    return response


def _status(code: int, message: str = "") -> web.Response:
    said = {"kind": "Status", "code": code, "message": message or f"status {code}"}
    return web.json_response(said, status=code)
