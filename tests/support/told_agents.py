"""The service and a kubelet, played on one listener of this machine, as an agent asks them."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agent.decide.node_holdings import NodeHoldings
from agent.service.wire import written
from certs.material import issue_authority, issue_leaf
from ledger.domain.resources import ANNOTATION_TENURE_PROOF


class Listener(BaseHTTPRequestHandler):
    """
    Answers as the service and as kubelet, as far as they are up.

    Attributes:
        known: the service's word; `pods`: kubelet's, with the proof of each; None = away.
        waits: seconds that a question for changes is kept open.
        confirmed: confirmations that were taken.
    """

    known: NodeHoldings | None = None
    pods: dict[str, str] | None = None
    waits: float = 0.05
    confirmed: int = 0

    def do_GET(self) -> None:
        """Answer one question."""
        if self.path.startswith("/agents/v1/"):
            is_new = "/holdings" in self.path
            known = type(self).known
            if not is_new and known is not None:
                time.sleep(type(self).waits)
                self._answer(410 if f"after={known.position}&" not in self.path else 200, known)
            else:
                self._answer(503 if known is None else 200, known)
        elif type(self).pods is None:
            self.send_error(401)
        else:
            pods = [pod(uid, proof) for uid, proof in (type(self).pods or {}).items()]
            self._send(200, json.dumps({"items": pods}).encode())

    def do_POST(self) -> None:
        """Take what is confirmed."""
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).confirmed += 1
        self._answer(503 if type(self).known is None else 200, type(self).known)

    def _answer(self, status: int, known: NodeHoldings | None) -> None:
        self._send(
            status,
            b"{}" if known is None else written(known, changes=[], sequence=type(self).confirmed),
        )

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def pod(uid: str, proof: str) -> dict[str, Any]:
    """Return a Pod with one container."""
    metadata = {"uid": uid, "name": uid, "annotations": {ANNOTATION_TENURE_PROOF: proof}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


def token_of(folder: Path, node: str) -> None:
    """Write a token as kubelet mounts it on a node."""
    claims = {"kubernetes.io": {"node": {"name": node, "uid": f"uid-{node}"}}}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    (folder / "token").write_text(f"e30.{body}.c2ln")


class Server(ThreadingHTTPServer):
    """Whose callers may go at any time."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listening(folder: Path, listener: type[Listener] = Listener) -> Iterator[int]:
    """Listen as service and kubelet until the block ends."""
    now, day = datetime.now(UTC), timedelta(days=1)
    authority = issue_authority("test", now=now, lifetime=day)
    leaf = issue_leaf(authority, ["127.0.0.1", "a"], now=now, lifetime=day)
    (folder / "ca.crt").write_bytes(authority.certificate)
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    listener.known, listener.pods, listener.waits, listener.confirmed = None, None, 0.05, 0
    server = Server(("127.0.0.1", 0), listener)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
