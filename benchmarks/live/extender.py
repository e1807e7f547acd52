"""
What kube-scheduler waits for: filter, prioritize and bind of `tenure serve scheduler` over mTLS.

    .venv/bin/python -m benchmarks.live.extender                  # 5,000 nodes, 20,000 running Pods
    .venv/bin/python -m benchmarks.live.extender --nodes 100 --running 400

The service is the real process with a ledger of its own, before an API server that is played. Pods
of several dialects come one after the other with bodies as kube-scheduler writes them: filter over
all nodes, prioritize over those that passed, bind on the best, so that every call meets another
state. In turn with it `names` gets the same bodies: an extender that only parses the names and
gives them back. Milliseconds by the client's clock, from the first byte sent to the last one read.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.live import cluster
from benchmarks.measure import pinned, say, say_machine
from tests.support.kube.control_plane import free_port
from tests.support.kube.schedulers import Identities, issue

START_SECONDS: Final = 600.0
WARM_UP: Final = 20
LIMITS: Final = {"filter p50": 6.6, "filter p99": 15.0, "to names, p50": 2.2}
Sample = dict[str, float]


class Client:
    """One connection that is kept, as kube-scheduler's."""

    def __init__(self, port: int, identities: Identities) -> None:
        context = ssl.create_default_context(cafile=str(identities.client / "ca.crt"))
        context.load_cert_chain(identities.client / "tls.crt", identities.client / "tls.key")
        raw = socket.create_connection(("127.0.0.1", port), timeout=60)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(raw, server_hostname="127.0.0.1")

    def call(self, verb: str, body: bytes) -> tuple[Any, float]:
        """Return what is answered, and the milliseconds until the last byte of it was here."""
        head = f"POST /{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        request = head.encode() + body
        began = time.perf_counter()
        self._socket.sendall(request)
        status, answer = self._read()
        took = 1000 * (time.perf_counter() - began)
        assert status == 200, (status, answer[:500])
        return json.loads(answer), took

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _read(self) -> tuple[int, bytes]:
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._some()
        head, _, body = got.partition(b"\r\n\r\n")
        words = head.decode().split("\r\n")
        lengths = [line for line in words if line.lower().startswith("content-length:")]
        length = int(lengths[0].split(":")[1])
        chunks, have = [body], len(body)
        while have < length:
            chunks.append(self._some())
            have += len(chunks[-1])
        return int(words[0].split()[1]), b"".join(chunks)

    def _some(self) -> bytes:
        some = self._socket.recv(1 << 18)
        assert some, "the connection was closed"
        return some


def main() -> None:
    """Measure, and print one JSON object per line."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # what runs for us ends too
    say_machine(nodes=options.nodes, running=options.running)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        identities = issue(folder / "identities")
        api = stack.enter_context(_api(options.nodes, options.running))
        began = time.monotonic()
        least = options.nodes + sum(1 for _ in cluster.running(options.running, options.nodes))
        ours = stack.enter_context(_service(folder, identities, api, pinned(cores[0]), least))
        say(first_start_seconds=round(time.monotonic() - began, 1))
        names = stack.enter_context(_names(identities, pinned(cores[0])))
        pods = list(cluster.coming(WARM_UP + options.pods))
        pods = [_post(f"{api}/api/v1/namespaces/{cluster.NAMESPACE}/pods", pod) for pod in pods]
        time.sleep(2)  # until the watch has told of them
        mine, theirs = Client(ours, identities), Client(names, identities)
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[-1]})
        found = [_one(pod, options.nodes, number, mine, theirs) for number, pod in enumerate(pods)]
    figures = _figures(found[WARM_UP:])
    say(**figures, pods=options.pods, load=round(os.getloadavg()[0], 1))
    over = {key: figures[key] for key, limit in LIMITS.items() if figures[key] > limit}
    if options.limits and over:
        sys.exit(f"over the limit: {over}")


def _one(pod: cluster.Json, nodes: int, number: int, ours: Client, names: Client) -> Sample:
    """Place one Pod; return how long each call took."""
    turn = number * 97 % nodes
    every = [cluster.node_name((turn + at) % nodes) for at in range(nodes)]
    body = _body(pod, every)
    answer, took = ours.call("filter", body)
    assert not answer["Error"], answer["Error"]
    passing = answer["NodeNames"]
    _, plain = names.call("filter", body)
    body = _body(pod, passing)
    scores, took_more = ours.call("prioritize", body)
    _, plain_more = names.call("prioritize", body)
    best = max(scores, key=lambda one: one["Score"])["Host"]
    call = {
        "PodName": pod["metadata"]["name"],
        "PodNamespace": pod["metadata"]["namespace"],
        "PodUID": pod["metadata"]["uid"],
        "Node": best,
    }
    answer, bound = ours.call("bind", json.dumps(call).encode())
    assert not answer["Error"], answer["Error"]
    return {
        "filter": took,
        "prioritize": took_more,
        "both": took + took_more,
        "names": plain + plain_more,
        "bind": bound,
        "passing": len(passing),
    }


def _body(pod: cluster.Json, names: Sequence[str]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}).encode()


def _figures(found: Sequence[Sample]) -> dict[str, float]:
    figures = {}
    for key in ("filter", "prioritize", "both", "names", "bind"):
        values = sorted(one[key] for one in found)
        figures[f"{key} p50"] = round(statistics.median(values), 2)
        figures[f"{key} p99"] = round(values[len(values) * 99 // 100], 2)
    figures["passing"] = round(statistics.mean(one["passing"] for one in found))
    figures["to names, p50"] = round(figures["both p50"] / figures["names p50"], 2)
    return figures


# --- The processes ----------------------------------------------------------------------------


@contextmanager
def _api(nodes: int, pods: int) -> Iterator[str]:
    port = free_port()
    size = ("--nodes", str(nodes), "--pods", str(pods))
    command = [sys.executable, "-m", "benchmarks.live.api", "--port", str(port), *size]
    with running(command):
        url = f"http://127.0.0.1:{port}"
        wait(f"{url}/api/v1/namespaces/kube-system")
        yield url


@contextmanager
def _service(
    folder: Path, identities: Identities, api: str, pin: Sequence[str], least: int
) -> Iterator[int]:
    """Run the live scheduler until the block ends; yield its port once it has recorded `least`."""
    ledger = f"sqlite:///{folder / 'ledger.db'}"
    made = [sys.executable, "-m", "tenure", "ledger", "init", "--ledger", ledger]
    subprocess.run(made, check=True, stdout=-3)
    port, probes = free_port(), free_port()
    ours = command_of(identities, kubeconfig_of(folder, api), ledger, port, probes)
    command = [*pin, *ours]
    with running(command, log=folder / "log"):
        wait(f"http://127.0.0.1:{probes}/readyz", log=folder / "log")
        _settle(f"http://127.0.0.1:{probes}/metrics", least)
        yield port


def kubeconfig_of(folder: Path, api: str) -> Path:
    """Write and return a kubeconfig for the played API server."""
    path, named = folder / "kubeconfig", {"name": "played"}
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{**named, "cluster": {"server": api}}],
                "users": [{**named, "user": {}}],
                "contexts": [{**named, "context": {"cluster": "played", "user": "played"}}],
                "current-context": "played",
            }
        )
    )
    return path


def command_of(
    identities: Identities, kubeconfig: Path, ledger: str, port: int, probes: int
) -> list[str]:
    """Return the command of a live scheduler."""
    return [
        *(sys.executable, "-m", "tenure", "serve", "scheduler", "--ledger", ledger),
        *("--name", "127.0.0.1", "--extender", f"127.0.0.1:{port}"),
        *("--probes", f"127.0.0.1:{probes}", "--kubeconfig", str(kubeconfig)),
        *("--certificates", str(identities.server)),
        *("--proof-key", str(identities.keys / "proof.key")),
        *("--ledger-key", str(identities.keys / "ledger.key"), "--drain-seconds", "0"),
    ]


@contextmanager
def _names(identities: Identities, pin: Sequence[str]) -> Iterator[int]:
    port = free_port()
    command = [*pin, sys.executable, "-m", "benchmarks.live.names", "--port", str(port)]
    with running([*command, "--certificates", str(identities.server)]):
        until = time.monotonic() + START_SECONDS
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < until, "names does not listen"
            time.sleep(0.05)
        yield port


@contextmanager
def running(command: Sequence[str], *, log: Path | None = None) -> Iterator[None]:
    """Run a process until the block ends."""
    with ExitStack() as stack:
        words = None if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(command, stderr=words)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def wait(url: str, *, log: Path | None = None) -> None:
    """Wait until a URL answers with success."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60):  # noqa: S310 - our own
                return
        except OSError:
            words = "" if log is None else log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < until, f"no answer: {url}\n{words}"
            time.sleep(0.1)


def _settle(url: str, least: int) -> None:
    """Wait until every node is recorded and every Pod that runs adopted, and no more comes."""
    until, before = time.monotonic() + START_SECONDS, 0.0
    while True:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own
            lines = answer.read().decode().splitlines()
        now = float(next(line for line in lines if 'what="position"' in line).split()[-1])
        if now == before and now >= least:
            return
        assert time.monotonic() < until, f"it still records: {now}"
        before = now
        time.sleep(3)


def _post(url: str, body: cluster.Json) -> cluster.Json:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        made: cluster.Json = json.loads(answer.read())
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.extender")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--running", type=int, default=20_000, help="Pods that run already")
    parser.add_argument("--pods", type=int, default=400, help="Pods that come")
    parser.add_argument("--limits", action="store_true", help="exit status 1 over a limit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
