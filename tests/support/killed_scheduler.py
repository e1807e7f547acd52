"""
`tenure serve scheduler`, killed by SIGKILL at a named point; `tests.support.forked` starts it.

A point is before or after an effect, of which the first is number 1: `record TYPE` for the last
event of a command, `VERB RESOURCE` for a call of the API that writes, `answer VERB` for a call of
kube-scheduler's. What is killed is the product's own process; only the seams between its parts are
watched here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from aiohttp import web

from ledger.store.writing.commands import Command, Outcome
from tenure.kube.objects import KubeObjects
from tenure.serving.http2 import Http2Connection, _Stream
from tenure.serving.scheduling.ledger import ProbedLane

_T = TypeVar("_T")


class Point:
    """Where it ends, and how many times it may pass there before."""

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._left = number

    def reached(self, name: str) -> None:
        """End here if this is the point and its number is up."""
        self._left -= name == self._name
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    async def around(self, effect: str, act: Awaitable[_T]) -> _T:
        """Do something that has an effect, which is a point before and one after."""
        self.reached(f"before:{effect}")
        done = await act
        self.reached(f"after:{effect}")
        return done


def watch(point: Point) -> None:
    """Watch every seam between our process and the ledger, the API server and kube-scheduler."""
    record = ProbedLane.record

    @wraps(record)
    async def recorded(self: ProbedLane, command: Command) -> Outcome:
        effect = command.events[-1].event.event_type.rpartition(".")[0]
        return await point.around(f"record {effect}", record(self, command))

    ProbedLane.record = recorded  # type: ignore[method-assign]
    for verb in ("create", "patch", "replace", "remove"):
        setattr(KubeObjects, verb, _called(point, verb, getattr(KubeObjects, verb)))
    written = web.Response.write_eof

    @wraps(written)
    async def answered(self: web.Response, data: bytes = b"") -> None:
        request = getattr(self, "_req", None)
        verb = "" if request is None else request.path.strip("/")
        await point.around(f"answer {verb}", written(self, data))

    web.Response.write_eof = answered  # type: ignore[method-assign]
    _watch_http2(point)


def _watch_http2(point: Point) -> None:
    """Watch what is said over HTTP/2, which has no response of aiohttp's."""
    run, say = Http2Connection._run, Http2Connection._say
    verbs: dict[tuple[Http2Connection, int], str] = {}

    @wraps(run)
    async def running(
        self: Http2Connection,
        number: int,
        stream: _Stream,
        method: str,
        path: str,
    ) -> None:
        verbs[self, number] = path.strip("/")
        await run(self, number, stream, method, path)
        verbs.pop((self, number), None)

    @wraps(say)
    def said(
        self: Http2Connection, number: int, stream: _Stream, answered: tuple[int, str, bytes]
    ) -> None:
        effect = f"answer {verbs.get((self, number), '')}"
        point.reached(f"before:{effect}")
        say(self, number, stream, answered)
        self._flush()
        point.reached(f"after:{effect}")

    Http2Connection._run = running  # type: ignore[method-assign]
    Http2Connection._say = said  # type: ignore[method-assign]


def _called(
    point: Point, verb: str, call: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    @wraps(call)
    async def called(self: KubeObjects, path: str, *rest: object) -> Any:  # noqa: ANN401 - JSON
        return await point.around(f"{verb} {resource(path)}", call(self, path, *rest))

    return called


def resource(path: str) -> str:
    """Return the resource that a path names, with its subresource: `pods/binding`."""
    steps = path.partition("?")[0].strip("/").split("/")
    steps = steps[2:] if steps[0] == "api" else steps[3:]
    if steps[0] == "namespaces" and len(steps) > 2:
        steps = steps[2:]
    return "/".join(steps[::2])
