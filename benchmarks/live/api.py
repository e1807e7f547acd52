"""
An API server of a cluster that is only there to be read: lists, watches, Pods, Bindings, patches.

    python -m benchmarks.live.api --port 8001 --nodes 5000 --pods 20000

Nothing is checked and nothing is kept: what a client pays for is the size of lists and events.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from benchmarks.live import cluster
from benchmarks.live.cluster import NAMESPACE, Json
from ledger.domain.resources import CALLER_NODE_NAME, CALLER_NODE_UID
from scheduler.service.api import callers, rights
from scheduler.service.api.words import AGENT_ACCOUNT, user_of
from tenure.serving.scheduling.cluster import PATHS

BOOKMARK_SECONDS: Final = 15.0
_OWN: Final = (
    "/api/v1/namespaces/tenure-system/configmaps",
    "/apis/coordination.k8s.io/v1/namespaces/tenure-system/leases",
)
_KINDS: Final = {
    **dict.fromkeys(PATHS.values(), "None"),  # of most there is no object
    PATHS["nodes"]: "Node",
    PATHS["pods"]: "Pod",
    PATHS["namespaces"]: "Namespace",
    PATHS["devices"]: "Device",
    PATHS["noderesourcetopologies"]: "NodeResourceTopology",
}


@dataclass(slots=True)
class Collection:
    """Objects of one kind by name, and who watches them."""

    items: dict[str, Json] = field(default_factory=dict)
    watches: set[asyncio.Queue[Json]] = field(default_factory=set)

    def tell(self, kind: str, item: Json) -> None:
        """Tell everybody who watches."""
        for watch in self.watches:
            watch.put_nowait({"type": kind, "object": item})


class Api:
    """The whole of it."""

    def __init__(self, node_count: int, pods: Iterable[Json], equipped: int | None = None) -> None:
        equipped = node_count if equipped is None else equipped
        self._own: dict[str, Json] = {}  # objects of the service's own, by path
        self._pages: dict[tuple[str, int, int], bytes] = {}
        self._versions = itertools.count(1)
        self._all = {path: Collection() for path in _KINDS}
        names = ("default", "kube-system", NAMESPACE)
        self._fill(PATHS["namespaces"], ({"metadata": {"name": name}} for name in names))
        self._fill(PATHS["nodes"], cluster.nodes(node_count))
        self._fill(PATHS["devices"], cluster.devices(equipped))
        self._fill(PATHS["noderesourcetopologies"], cluster.topologies(equipped))
        self._fill(PATHS["pods"], pods)

    def app(self) -> web.Application:
        """Return it as an application."""
        app = web.Application(client_max_size=1 << 26)
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        for path in _KINDS:
            app.router.add_get(path, self._list)
        app.router.add_post(pods, self._create_pod)
        for path in _OWN:
            app.router.add_post(path, self._create_own)
            app.router.add_get(f"{path}/{{name}}", self._read_own)
            app.router.add_put(f"{path}/{{name}}", self._replace_own)
            app.router.add_patch(f"{path}/{{name}}", self._read_own)
        app.router.add_post(f"{pods}/{{name}}/binding", self._bind)
        app.router.add_post(callers.REVIEWS, _review_token)
        app.router.add_post(rights.REVIEWS, _review_right)
        for path in ("/api/v1/namespaces/{name}", f"{pods}/{{name}}", "/api/v1/nodes/{name}"):
            app.router.add_get(path, self._read)
            app.router.add_patch(path, self._patch)
        return app

    def _fill(self, path: str, items: Iterable[Json]) -> None:
        for item in items:
            self._put(path, item)

    def _put(self, path: str, item: Json) -> Json:
        metadata = item["metadata"]
        self._pages.clear()
        metadata.setdefault("uid", f"{_KINDS[path]}-{metadata['name']}".lower())
        metadata["resourceVersion"] = str(next(self._versions))
        self._all[path].items[metadata["name"]] = item
        return item

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        items = list(self._all[request.path].items.values())
        begin, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        page = request.path, begin, limit
        if page not in self._pages:
            following = begin + limit
            metadata = {
                "continue": str(following) if following < len(items) else "",
                "resourceVersion": str(next(self._versions)),
            }
            answer = {"metadata": metadata, "items": items[begin:following]}
            self._pages[page] = json.dumps(answer).encode()
        return web.Response(body=self._pages[page], content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        told: asyncio.Queue[Json] = asyncio.Queue()
        watches = self._all[request.path].watches
        watches.add(told)
        try:
            loop = asyncio.get_running_loop()
            end = loop.time() + float(request.query["timeoutSeconds"])
            while (left := end - loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                        event = await told.get()
                except TimeoutError:
                    metadata = {"name": "now", "resourceVersion": str(next(self._versions))}
                    event = {"type": "BOOKMARK", "object": {"metadata": metadata}}
                await answer.write(json.dumps(event).encode() + b"\n")
        except ConnectionError:
            return answer
        finally:
            watches.discard(told)
        return answer

    async def _create_pod(self, request: web.Request) -> web.Response:
        pod = self._put("/api/v1/pods", await request.json())
        self._all["/api/v1/pods"].tell("ADDED", pod)
        return web.json_response(pod, status=201)

    async def _bind(self, request: web.Request) -> web.Response:
        body = await request.json()
        pods = self._all["/api/v1/pods"]
        pod = pods.items[request.match_info["name"]]
        metadata = {**pod["metadata"]}
        metadata["annotations"] = {
            **metadata["annotations"],
            **body["metadata"].get("annotations", {}),
        }
        spec = {**pod["spec"], "nodeName": body["target"]["name"]}
        pods.tell(
            "MODIFIED", self._put("/api/v1/pods", {**pod, "metadata": metadata, "spec": spec})
        )
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async def _create_own(self, request: web.Request) -> web.Response:
        body = await request.json()
        return self._kept(f"{request.path}/{body['metadata']['name']}", body, 201)

    async def _replace_own(self, request: web.Request) -> web.Response:
        return self._kept(request.path, await request.json(), 200)

    async def _read_own(self, request: web.Request) -> web.Response:
        found = self._own.get(request.path)
        return web.json_response(found or {}, status=404 if found is None else 200)

    def _kept(self, path: str, body: Json, status: int) -> web.Response:
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        self._own[path] = body
        return web.json_response(body, status=status)

    async def _read(self, request: web.Request) -> web.Response:
        found = self._all[_collection(request)].items.get(request.match_info["name"])
        if found is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(found)

    async def _patch(self, request: web.Request) -> web.Response:
        path = _collection(request)
        item = json.loads(json.dumps(self._all[path].items[request.match_info["name"]]))
        for operation in json.loads(await request.read()):
            *steps, last = operation["path"].strip("/").split("/")
            target = item
            for step in steps:
                target = target.setdefault(step, {})
            if operation["op"] in ("add", "replace"):
                target[last.replace("~1", "/")] = operation["value"]
        self._all[path].tell("MODIFIED", self._put(path, item))
        return web.json_response(item)


async def _review_token(request: web.Request) -> web.Response:
    """Say whose a token is: `agent.NODE` a node's agent's, any other the user's of its name."""
    token = (await request.json())["spec"]["token"]
    user: Json = {"username": token}
    if token.startswith("agent."):
        node = token.partition(".")[2]
        extra = {CALLER_NODE_NAME: [node], CALLER_NODE_UID: [f"node-{node}"]}
        user = {"username": user_of(AGENT_ACCOUNT), "extra": extra}
    return web.json_response({"status": {"authenticated": True, "user": user}}, status=201)


async def _review_right(_: web.Request) -> web.Response:
    """Let whoever asks get everything."""
    return web.json_response({"status": {"allowed": True}}, status=201)


def _collection(request: web.Request) -> str:
    kind = request.path.split("/")[-2]
    return f"/api/v1/{kind}"


def main() -> None:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.api")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--equipped", type=int, help="that have devices and CPUs; default: all")
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--pods-file", type=Path, help="Pods, a line of JSON each")
    asked = parser.parse_args()
    pods: Iterable[Json] = cluster.running(asked.pods, asked.nodes)
    if asked.pods_file is not None:
        pods = map(json.loads, asked.pods_file.read_text().splitlines())
    app = Api(asked.nodes, pods, asked.equipped).app()
    web.run_app(app, host="127.0.0.1", port=asked.port, print=None)


if __name__ == "__main__":
    main()
