"""The routes of questions: who may ask is looked at first, then somebody else answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from ledger.domain.kube.object_fields import is_label
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError, Route
from scheduler.service.api.rights import Rights
from scheduler.service.api.words import NO, NO_HEADER, RESOURCE, ROOT

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
