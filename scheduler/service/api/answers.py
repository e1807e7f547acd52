"""The routes of questions: who may ask is looked at first, then somebody else answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from ledger.domain.kube.object_fields import is_label
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import OpenRoute, RefusedError, Route, json_answer
from scheduler.service.api.rights import Rights
from scheduler.service.api.words import GROUP, NO, NO_HEADER, RESOURCE, ROOT, VERSION

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
    """
    Return what clients are told of the group, which says nothing of the cluster.

    Every replica tells it, whatever else is down: while a group can't be discovered, no namespace
    of the whole cluster is deleted.
    """
    return [OpenRoute(path=path, act=_said(body)) for path, body in _DOCUMENTS.items()]


def _said(body: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def said(_: web.Request) -> web.StreamResponse:
        return json_answer(body)

    return said


NOTES_MAX: Final = 16
_NOTE_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer, and what is noted beside it."""

    text: str
    notes: Sequence[str] = ()
    is_no: bool = False


AnswerQuestion = Callable[[str, Sequence[tuple[str, str]], str], Awaitable[Said]]
"""Name of a question, its parameters, and whose lines are seen, empty = everybody's."""


def answer_routes(names: Sequence[str], rights: Rights, answer: AnswerQuestion) -> list[Route]:
    """Return the routes of these questions, for everybody's lines and for one namespace's."""

    async def act(request: web.Request, caller: Caller) -> web.StreamResponse:
        name, namespace = request.match_info["name"], request.match_info.get("namespace", "")
        if name not in names or (namespace and not is_label(namespace)):
            raise RefusedError(404, "NotFound", f"no such question: known are {', '.join(names)}")
        await rights.expect(caller, name, namespace)
        said = await answer(name, list(request.query.items()), namespace)
        response = web.Response(text=said.text, content_type="text/plain", charset="utf-8")
        if said.is_no:
            response.headers[NO_HEADER] = NO
        for note in said.notes[:NOTES_MAX]:
            response.headers.add("Warning", f'299 tenure "{_quoted(note)}"')
        return response

    paths = (f"{ROOT}/{RESOURCE}/{{name}}", f"{ROOT}/namespaces/{{namespace}}/{RESOURCE}/{{name}}")
    return [Route(method="GET", path=path, act=act) for path in paths]


def _quoted(note: str) -> str:
    """Return a note as a header may have it: on one line, in ASCII, without a quote's end."""
    plain = "".join(one if one.isprintable() else " " for one in note)
    plain = plain.encode("ascii", "backslashreplace").decode()
    return plain[:_NOTE_MAX].replace("\\", "\\\\").replace('"', '\\"')
