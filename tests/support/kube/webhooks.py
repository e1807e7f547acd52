"""Replicas of `tenure serve webhook` before a real API server, behind one balancer."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.kube.balancer import Backend, Balancer, balancing
from tests.support.kube.control_plane import WEBHOOK_ACCOUNT, ControlPlane, free_port
from tests.support.manifests import printed

NAMESPACE: Final = "tenure-system"
READY_SECONDS: Final = 300.0
_PLURALS: Final = {
    "NetworkPolicy": "networkpolicies",
    "RuntimeClass": "runtimeclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


def collection_of(thing: dict[str, Any]) -> str:
    """Return the API path of the collection that an object belongs in."""
    group = thing["apiVersion"]
    base = f"/api/{group}" if group == "v1" else f"/apis/{group}"
    plural = _PLURALS.get(thing["kind"], f"{thing['kind'].lower()}s")
    namespace = thing["metadata"].get("namespace")
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


def apply(plane: ControlPlane, things: list[dict[str, Any]]) -> None:
    """Create objects that are not there yet."""
    for thing in things:
        reply = plane.api().create(collection_of(thing), thing)
        assert reply.status in (201, 409), (thing["kind"], reply.status, reply.message)


def expect_taken(plane: ControlPlane, things: Iterable[dict[str, Any]]) -> None:
    """Expect objects to be there, and policies among them to compile without a warning."""
    for thing in things:
        found = plane.api().get(f"{collection_of(thing)}/{thing['metadata']['name']}")
        assert found.ok, found.message
        status = found.body.get("status", {})
        assert not status.get("typeChecking", {}).get("expressionWarnings"), status


def remove(plane: ControlPlane, things: list[dict[str, Any]]) -> None:
    """Delete objects."""
    for thing in things:
        plane.api().delete(f"{collection_of(thing)}/{thing['metadata']['name']}")


@dataclass(slots=True, kw_only=True)
class Replica:
    """One process, with where it serves and where it logs."""

    name: str
    backend: Backend
    process: subprocess.Popen[bytes]
    log: Path

    def wait_ready(self) -> None:
        """Wait until it says it is ready."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            if self.backend.is_ready():
                return
            time.sleep(0.1)
        raise AssertionError(self.log.read_text()[-3_000:])

    def stop(self) -> int:
        """Tell it to stop, as kubelet does, and return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(60)


@dataclass(slots=True, kw_only=True)
class Webhooks:
    """The replicas of one API server's webhook."""

    plane: ControlPlane
    balancer: Balancer
    backends: list[Backend]
    arguments: tuple[str, ...] = ()
    replicas: list[Replica] = field(default_factory=list)
    made: int = 0

    def add(self) -> Replica:
        """Start one more replica and wait until it is ready."""
        self.made += 1
        name = f"replica-{self.made}"
        backend = Backend(port=free_port(), probes=free_port())
        log = self.plane.folder / f"{name}.log"
        command = [
            *(sys.executable, "-m", "tenure", "serve", "webhook"),
            *("--listen", f"127.0.0.1:{backend.port}", "--probes", f"127.0.0.1:{backend.probes}"),
            *("--kubeconfig", str(self.plane.kubeconfig(WEBHOOK_ACCOUNT)), "--name", "127.0.0.1"),
            *("--replica", name, "--drain-seconds", "1", "--settle-seconds", "2"),
            *self.arguments,
        ]
        with log.open("wb") as words:
            process = subprocess.Popen(command, stderr=words)
        replica = Replica(name=name, backend=backend, process=process, log=log)
        self.replicas.append(replica)
        replica.wait_ready()
        self.backends.append(backend)
        self.balancer.wait_for(backend)
        return replica

    def stop(self, replica: Replica) -> int:
        """Stop one replica; it is told first, as kubelet does."""
        code = replica.stop()
        self.backends.remove(replica.backend)
        self.replicas.remove(replica)
        return code


@contextlib.contextmanager
def serving(
    plane: ControlPlane, *, replicas: int = 1, arguments: tuple[str, ...] = ()
) -> Iterator[Webhooks]:
    """Register the webhooks and run replicas of them until the block ends."""
    apply(plane, printed("rbac"))
    backends: list[Backend] = []
    with balancing(backends) as balancer:
        configurations = printed("webhook", "--url", f"https://127.0.0.1:{balancer.port}")
        hooks = Webhooks(plane=plane, balancer=balancer, backends=backends, arguments=arguments)
        try:
            for _ in range(replicas):
                hooks.add()
            apply(plane, configurations)
            _wait_for_bundle(plane, configurations)
            yield hooks
        finally:
            remove(plane, configurations)
            for replica in hooks.replicas:
                replica.stop()


def _wait_for_bundle(plane: ControlPlane, configurations: list[dict[str, Any]]) -> None:
    """Wait until the rotation has written what clients shall trust."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        found = [
            plane.api().get(f"{collection_of(one)}/{one['metadata']['name']}").body
            for one in configurations
        ]
        if all(hook["clientConfig"].get("caBundle") for one in found for hook in one["webhooks"]):
            time.sleep(0.5)  # the API server learns of its own object a moment later
            return
        time.sleep(0.2)
    raise AssertionError("no caBundle was published")
