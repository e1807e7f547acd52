"""
What clients are told of the group: its version, its one resource, and that it has no schemas.

Says nothing of the cluster, so whoever connects is told, by every replica, whatever else is down:
while a group can't be discovered, no namespace of the whole cluster is deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from scheduler.service.api.http import OpenRoute, json_answer
from scheduler.service.api.words import GROUP, RESOURCE, ROOT, VERSION

_VERSION: Final = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_NAMED: Final = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}
_INFO: Final = {"title": "Tenure", "version": VERSION}
_SCHEMA: Final = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_DOCUMENTS: Final[dict[str, dict[str, Any]]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_NAMED]},
    f"/apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_NAMED},
    ROOT: {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [
            {
                "name": RESOURCE,
                "singularName": "answer",
                "namespaced": True,
                "kind": "Answer",
                "verbs": ["get"],
            }
        ],
    },
    "/openapi/v2": {"swagger": "2.0", "info": _INFO, "paths": {}},
    "/openapi/v3": {
        "paths": {_SCHEMA.removeprefix("/openapi/v3/"): {"serverRelativeURL": _SCHEMA}}
    },
    _SCHEMA: {"openapi": "3.0.0", "info": _INFO, "paths": {}},
}


def discovery_routes() -> list[OpenRoute]:
    """Return what is said to clients that look around."""
    return [OpenRoute(path=path, act=_said(body)) for path, body in _DOCUMENTS.items()]


def _said(body: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def said(_: web.Request) -> web.StreamResponse:
        return json_answer(body)

    return said
