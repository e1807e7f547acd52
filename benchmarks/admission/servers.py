"""The two webhooks and what they need: certificates, programs built by Go, an API to look up in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from certs.material import issue_authority, issue_leaf
from ledger.domain.resources import LABEL_TENURE_MANAGED

START_SECONDS: Final = 60.0
_HERE: Final = Path(__file__).parent
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running webhook."""

    name: str
    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used in all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def write_certificates(folder: Path) -> None:
    """Write an authority and a serving certificate of it, as both servers and the clients read."""
    now = datetime.now(UTC)
    authority = issue_authority("benchmark", now=now, lifetime=timedelta(days=1))
    leaf = issue_leaf(authority, ("localhost",), now=now, lifetime=timedelta(days=1))
    (folder / "ca.crt").write_bytes(authority.certificate)
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)


def build(folder: Path) -> tuple[Path, Path]:
    """Return the peer and the load generator, built by the machine's Go."""
    go = shutil.which("go")
    if go is None:
        sys.exit("Go is needed for the peer and the load generator")
    built = []
    for name in ("peer", "load"):
        program = folder / name
        command = [go, "build", "-trimpath", "-o", str(program), "."]
        subprocess.run(command, cwd=_HERE / name, check=True)
        built.append(program)
    return built[0], built[1]


@contextmanager
def api() -> Iterator[str]:
    """Serve the one namespace there is, managed and without quotas; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer every read alike."""
        labels = {LABEL_TENURE_MANAGED: "true"}
        body = json.dumps({"metadata": {"name": "any", "labels": labels}, "items": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def ours(folder: Path, api_url: str, pin: list[str]) -> Iterator[Server]:
    """Run `tenure serve webhook` as it is run in a cluster, its log in a file."""
    kubeconfig = folder / "kubeconfig.json"
    kubeconfig.write_text(json.dumps(_kubeconfig(api_url)))
    command = [
        *pin, sys.executable, "-m", "tenure", "serve", "webhook", "--listen", "127.0.0.1:0",
        "--probes", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--certificates", str(folder),
        "--name", "localhost", "--drain-seconds", "0",
    ]  # fmt: skip
    log = folder / "ours.log"
    with log.open("wb") as lines, _running(command, stderr=lines) as process:
        yield Server(name="ours", pid=process.pid, port=_hooks_port(log, process))


@contextmanager
def peer(folder: Path, program: Path, pin: list[str]) -> Iterator[Server]:
    """Run the Go webhook on one core; it logs and counts nothing."""
    pair = ["-cert", str(folder / "tls.crt"), "-key", str(folder / "tls.key")]
    command = [*pin, str(program), *pair]
    with (
        (folder / "peer.log").open("wb") as lines,
        _running(command, stderr=lines, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None, "a pipe was asked for"
        yield Server(name="peer", pid=process.pid, port=int(process.stdout.readline()))


@contextmanager
def _running(command: list[str], **how: object) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "GOMAXPROCS": "1"}
    process: subprocess.Popen[bytes] = subprocess.Popen(command, env=environ, **how)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)


def _hooks_port(log: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            said = json.loads(line) if line.endswith("}") else {}
            if said.get("event") == "listening" and said["what"] == "hooks":
                return int(said["port"])
        time.sleep(0.05)
    sys.exit(f"`tenure serve webhook` does not listen:\n{log.read_text()}")


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "clusters": [{"name": "only", "cluster": {"server": url}}],
        "users": [{"name": "only", "user": {"token": "none"}}],  # a stand-in checks nobody
        "contexts": [{"name": "only", "context": {"cluster": "only", "user": "only"}}],
    }
