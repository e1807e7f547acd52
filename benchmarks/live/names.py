"""
An extender that only parses the names and gives them back: what any handler in Python has to do.

    python -m benchmarks.live.names --port 8002 --certificates FOLDER
"""

from __future__ import annotations

import argparse
import json
import ssl
from pathlib import Path

from aiohttp import web


async def _filter(request: web.Request) -> web.Response:
    names = json.loads(await request.read())["NodeNames"]
    answer = {
        "NodeNames": names,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


async def _prioritize(request: web.Request) -> web.Response:
    names = json.loads(await request.read())["NodeNames"]
    answer = [{"Host": name, "Score": 0} for name in names]
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def main() -> None:
    """Serve until it is ended, to callers with a certificate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.names")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificates", type=Path, required=True)
    asked = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(asked.certificates / "tls.crt", asked.certificates / "tls.key")
    context.load_verify_locations(asked.certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/filter", _filter)
    app.router.add_post("/prioritize", _prioritize)
    web.run_app(app, host="127.0.0.1", port=asked.port, ssl_context=context, print=None)


if __name__ == "__main__":
    main()
