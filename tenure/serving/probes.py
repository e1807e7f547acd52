"""What kubelet and Prometheus ask of every service, on a plain port."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


def probes_app(
    registry: CollectorRegistry,
    why_not_ready: Callable[[], str],
    beside: Callable[[], Sequence[str]] = tuple,
) -> web.Application:
    """Return `/livez`, `/readyz` and `/metrics`; `beside` has lines for people, after readiness."""

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = why_not_ready()
        text = "\n".join((why or "ok", *beside(), ""))
        return web.Response(text=text, status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app
