"""The listener for people, agents and webhooks: routes, who calls, limits, refusals as Status."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from certs.ports import ApiError
from certs.serving import common_names
from ledger.domain.errors import InputError, LedgerError
from scheduler.service.api.callers import Caller, Headers, UnknownCallerError
from scheduler.service.api.remembered import TooManyError
from scheduler.service.http import Answering

BODY_BYTES_MAX: Final = 1 << 20
SECONDS_MAX: Final = 30.0
"""kube-apiserver gives up after 60 s."""

_log: Final = logging.getLogger("tenure.scheduler.api")

Took = Callable[[str, int, float], None]


class TakesIn(Protocol):
    """Counts a token's connections; see `tenure.serving.connections.Connections`."""

    def __call__(self, one: RequestHandler, caller: Caller, /, *, is_agent: bool) -> bool:
        """Tell whether it may stay."""


Act = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
OpenAct = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RefusedError(Exception):
    """
    A request that gets another status than 200, in the words of a Kubernetes Status.

    Attributes:
        retry: it may be asked again, here or of another replica: its connection is closed.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry = retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """
    What is answered at a path.

    Attributes:
        act: given who calls; what they may do is its own affair.
        seconds_max: how long it may take; a stream ends by itself before.
        agents: users whose connections have a budget of their own, for they wait here.
    """

    method: str
    path: str
    act: Act
    seconds_max: float = SECONDS_MAX
    agents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRoute:
    """What is answered to whoever connects: it says nothing of the cluster, and needs nothing."""

    path: str
    act: OpenAct


class LateRoutes(web.PlainResource):
    """
    Routes that come once there is something to answer from, and go before it does.

    Meanwhile whoever asks for anything else than open routes is told to ask again.

    Args:
        agents: tells which agent calls, so that their questions to the API server are not people's.
    """

    def __init__(
        self, callers: Knows, agents: Knows, believed: Believed, takes_in: TakesIn
    ) -> None:
        super().__init__("/")
        self._callers = callers
        self._agents = agents
        self._believed = believed
        self._takes_in = takes_in
        self.there: web.UrlDispatcher | None = None  # once they have come

    def come(self, routes: Iterable[Route]) -> None:
        """Answer these from now on."""
        there = web.UrlDispatcher()
        for route in routes:
            callers = self._agents if route.agents else self._callers
            handler = _handler(route, callers, self._believed, self._takes_in)
            there.add_route(route.method, route.path, handler)
        self.there = there

    def go(self) -> None:
        """Answer them no more."""
        self.there = None

    async def resolve(
        self, request: web.Request
    ) -> tuple[web.UrlMappingMatchInfo | None, set[str]]:
        """Return what is answered at a path, if anything."""
        found = None if self.there is None else await self.there.resolve(request)
        return (None if found is None or found.http_exception else found), set()


class Believed(Protocol):
    """Whose client certificates count; see `certs.serving.Serving`."""

    def believes(self, context: ssl.SSLContext) -> bool:
        """Tell whether a leaf that a connection of this context showed is one to believe now."""


class Knows(Protocol):
    """Tells who calls; see `scheduler.service.api.callers.Callers`."""

    async def who(
        self, headers: Headers, common_names: tuple[str, ...], address: str = ""
    ) -> Caller:
        """Return who calls."""


def api_app(
    routes: Iterable[Route | OpenRoute],
    callers: Knows,
    believed: Believed,
    answering: Answering,
    took: Took = lambda *_: None,
    *,
    takes_in: TakesIn = lambda _, __, *, is_agent: True,  # noqa: ARG005 - it counts nothing
    late: LateRoutes | None = None,
) -> web.Application:
    """
    Return the application, TLS outside.

    Args:
        late: routes that come later.
        answering: keeps a connection for as long as its request is being answered.
        took: told of every answer: the pattern of its path, its status, and its seconds.
    """

    @web.middleware
    async def timed(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        with answering(request.protocol):
            answer = await handler(request)
        resource = request.match_info.route.resource
        route = "" if resource is None else resource.canonical
        took(route, answer.status, time.perf_counter() - started)
        return answer

    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[timed])
    for route in routes:
        method = "GET" if isinstance(route, OpenRoute) else route.method
        app.router.add_route(method, route.path, _handler(route, callers, believed, takes_in))

    if late is not None:
        app.router.register_resource(late)

    async def nothing(_: web.Request) -> web.StreamResponse:
        if late is None or late.there is not None:
            return refusal(404, "NotFound", "the server could not find the requested resource")
        answer = refusal(503, "ServiceUnavailable", "this replica does not answer now", retry=True)
        answer.force_close()  # the next connection may find another replica
        return answer

    app.router.add_route("*", "/{rest:.*}", nothing)
    return app


def refusal(status: int, reason: str, message: str, *, retry: bool = False) -> web.Response:
    """Return a refusal as clients of the Kubernetes API read it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }
    headers = {"Retry-After": "1"} if retry else {}
    return web.json_response(body, status=status, headers=headers)


def _handler(
    route: Route | OpenRoute, callers: Knows, believed: Believed, takes_in: TakesIn
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def act(request: web.Request) -> web.StreamResponse:
        if isinstance(route, OpenRoute):
            return await route.act(request)
        names = _common_names(request, believed)
        caller = await callers.who(request.headers, names, request.remote or "")
        is_agent = caller.user in route.agents
        if caller.how == "token" and not takes_in(
            request.protocol, caller.identity, is_agent=is_agent
        ):
            fact = "too many connections, of this token or of agents: end one, or wait"
            raise RefusedError(429, "TooManyRequests", fact, retry=True)
        return await route.act(request, caller)

    seconds = SECONDS_MAX if isinstance(route, OpenRoute) else route.seconds_max

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(seconds):
                return await act(request)
        except RefusedError as error:
            answer = refusal(error.status, error.reason, str(error), retry=error.retry)
            if error.retry:
                answer.force_close()  # the next connection may find another replica
            return answer
        except UnknownCallerError as error:
            return refusal(401, "Unauthorized", str(error))
        except web.HTTPRequestEntityTooLarge:
            fact = f"too large: bytes_max={BODY_BYTES_MAX}"
            return refusal(413, "RequestEntityTooLarge", fact)
        except InputError as error:
            steps = getattr(error, "__notes__", ())[:1]
            return refusal(400, "BadRequest", "; next: ".join([str(error), *steps]))
        except TooManyError as error:
            return refusal(429, "TooManyRequests", str(error), retry=True)
        except (ApiError, LedgerError) as error:
            _log.warning("not answered", extra={"path": route.path, "reason": str(error)})
            away = "the API server" if isinstance(error, ApiError) else "the ledger"
            return refusal(503, "ServiceUnavailable", f"{away} does not answer now", retry=True)
        except web.HTTPException:
            raise
        except TimeoutError:
            return refusal(504, "Timeout", f"no answer in time: seconds={seconds:g}")
        except Exception as error:  # the edge of the process
            transport = request.transport
            if isinstance(error, ConnectionError) and (transport is None or transport.is_closing()):
                raise  # the caller hung up
            _log.exception("our mistake", extra={"path": route.path})
            return refusal(500, "InternalError", "it is our mistake, and logged")

    return handle


def read_object(body: bytes, words: str = "expected an object") -> dict[str, Any]:
    """Return the JSON object of a body. Raises InputError, with these words if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", field="body") from error
    if not isinstance(value, dict):
        raise InputError(words, field="body")
    return value


def _common_names(request: web.Request, believed: Believed) -> tuple[str, ...]:
    """
    Return the common names of a certificate that is believed now, none without one.

    Raises:
        RefusedError: the connection showed one to an authority that is not believed any more.
    """
    transport = request.transport
    shown = None if transport is None else transport.get_extra_info("ssl_object")
    if shown is None or not shown.getpeercert():
        return ()
    if not believed.believes(shown.context):
        fact = "whose certificates are believed has changed: connect again"
        raise RefusedError(503, "ServiceUnavailable", fact, retry=True)
    return common_names(shown)


def json_answer(body: object) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=json.dumps(body).encode(), content_type="application/json")
