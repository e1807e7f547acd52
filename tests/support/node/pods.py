"""Pods on the real node, and what their containers say of themselves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.node.node import NODE_NAME, SHOWS, Node


def container(
    name: str = "main",
    *,
    image: str = SHOWS,
    resources: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
    **more: object,
) -> dict[str, Any]:
    """Return a container that asks for so much of extended resources."""
    limits = {resource: str(amount) for resource, amount in (resources or {}).items()}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "resources": {"limits": limits},
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        **more,
    }


class Pods:
    """The Pods of one namespace."""

    def __init__(self, node: Node, namespace: str) -> None:
        self.node = node
        self.namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    def make(
        self,
        name: str,
        containers: Sequence[Mapping[str, Any]],
        *,
        init: Sequence[Mapping[str, Any]] = (),
        restarts: bool = True,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        runtime: str = "",
        scheduler: str = "default-scheduler",
        claims: Sequence[Mapping[str, str]] = (),
    ) -> dict[str, Any]:
        """
        Create a Pod on the machine's own network, for the scheduler to place.

        Args:
            annotations: as our scheduler's Binding would write them.
            runtime: a RuntimeClass; empty = the node's own.
        """
        spec = {
            "containers": list(containers),
            "initContainers": list(init),
            "hostNetwork": True,
            "restartPolicy": "Always" if restarts else "Never",
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": NODE_NAME},
            "automountServiceAccountToken": False,
            "schedulerName": scheduler,
            "resourceClaims": list(claims),
        }
        if runtime:
            spec["runtimeClassName"] = runtime
        metadata = {
            "name": name,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        }
        made = self.node.plane.api().create(self._path, {"metadata": metadata, "spec": spec})
        assert made.ok, made.message
        return dict(made.body)

    def get(self, name: str) -> dict[str, Any]:
        """Return a Pod as it is now; empty when it is gone."""
        found = self.node.plane.api().get(f"{self._path}/{name}")
        return dict(found.body) if found.ok else {}

    def statuses(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the statuses of a Pod's containers by their names."""
        status = self.get(name).get("status", {})
        both = ("initContainerStatuses", "containerStatuses")
        return {one["name"]: one for kind in both for one in status.get(kind, ())}

    def running(self, name: str, *, restarts: int = 0, soon: bool = False) -> dict[str, Any]:
        """
        Wait until all app containers run, each for at least this many times again.

        Args:
            soon: let kubelet try again at once: it does when a Pod changes, else only 10 s after
                one of its containers was refused.
        """

        def runs() -> bool:
            if soon:
                tried = {"metadata": {"annotations": {"test/seconds": f"{time.monotonic():.0f}"}}}
                self.node.plane.api().patch(f"{self._path}/{name}", tried)
            status = self.get(name).get("status", {})
            assert status.get("phase") != "Failed", status
            states = status.get("containerStatuses", ())
            return bool(states) and all(
                "running" in one["state"] and one["restartCount"] >= restarts for one in states
            )

        self.node.until(runs, f"it does not run: {self.get(name).get('status')}")
        return self.get(name)

    def kill(self, pod: Mapping[str, Any], container_name: str = "main") -> None:
        """End a container's processes, so that kubelet starts it again."""
        states = self.statuses(pod["metadata"]["name"])
        identity = states[container_name]["containerID"].rpartition("/")[2]
        for pid in self.node.processes(dict(pod), identity):
            os.kill(pid, signal.SIGKILL)

    def all(self) -> list[dict[str, Any]]:
        """Return every Pod of the namespace as it is now."""
        found = self.node.plane.api().get(self._path)
        assert found.ok, found.message
        return list(found.body["items"])

    def delete(self, name: str) -> None:
        """Delete a Pod as people do."""
        self.node.plane.api().call("DELETE", f"{self._path}/{name}")

    def force(self, name: str) -> None:
        """Let a Pod be gone at once, whatever still runs of it."""
        assert self.node.plane.api().delete(f"{self._path}/{name}").ok

    def remove(self, name: str) -> None:
        """Delete a Pod as people do, and wait until kubelet has let it go."""
        self.delete(name)
        self.node.until(lambda: not self.get(name), f"it does not go: {name}")

    def delete_all(self) -> None:
        """Delete every Pod of the namespace as people do; those that have ended go at once."""
        self.node.plane.api().call("DELETE", self._path)

    def remove_all(self) -> None:
        """Delete every Pod of the namespace, and wait until kubelet has let them go."""
        self.delete_all()
        self.node.until(lambda: not self.all(), "they do not go")
