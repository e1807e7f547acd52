"""What kubelet and Prometheus ask of every service, on a plain port."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


def probes_app(registry: CollectorRegistry, why_not_ready: Callable[[], str]) -> web.Application:
    """Return the application for kubelet and Prometheus: `/livez`, `/readyz`, `/metrics`."""

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = why_not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app
