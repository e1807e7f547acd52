"""An agent's reporter on a real API server, and what it and kubelet have written there."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from agent.decide.node_cpus import FoundCpus
from agent.decide.node_holdings import HeldByPod
from agent.discover.machine import Discovery
from agent.report.held import Asked
from agent.report.reporter import DEVICES, Reported, Reporter
from ledger.domain.dialects.names import Dialect
from tenure.kube.objects import connected
from tests.support.kube.control_plane import ADMIN, ControlPlane
from tests.support.machines_found import TWO_CARDS

NOW: Final = "2026-01-01T00:00:00Z"


def as_kubelet(plane: ControlPlane, name: str, status: dict[str, Any]) -> None:
    """Write a Node's status as kubelet does."""
    path = f"/api/v1/nodes/{name}/status?fieldManager=kubelet"
    kind = "application/strategic-merge-patch+json"
    assert plane.api().patch(path, {"status": status}, kind).ok


def device(plane: ControlPlane, name: str) -> dict[str, Any]:
    """Return the Device object."""
    got = plane.api().get(f"{DEVICES}/{name}")
    assert got.ok, got.message
    return dict(got.body)


def quantities(plane: ControlPlane, name: str, section: str = "allocatable") -> dict[str, str]:
    """Return what the Node offers in our names."""
    found = plane.api().get(f"/api/v1/nodes/{name}").body["status"][section]
    return {key: text for key, text in found.items() if "/" in key}


class Agent:
    """Reports one node, a connection for each round."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self._config = str(plane.kubeconfig(ADMIN))
        self._made: Reporter | None = None
        self._name = name
        self.seconds = 0.0
        self.now = NOW

    def report(
        self,
        found: Discovery = TWO_CARDS,
        pods: tuple[HeldByPod, ...] = (),
        asked: dict[str, int] | None = None,
        cpus: FoundCpus | None = None,
    ) -> Reported:
        """Report once."""

        async def run() -> Reported:
            async with connected(self._config) as objects:
                if self._made is None:
                    self._made = Reporter(
                        objects=objects,
                        node_name=self._name,
                        clock=lambda: self.seconds,
                        now=lambda: self.now,
                        dialects=frozenset({Dialect.KOORDINATOR, Dialect.MGPU, Dialect.GPUSHARE}),
                    )
                self._made.objects = objects
                uids = frozenset(pod.pod_uid for pod in pods)
                told = None if asked is None else Asked(amounts=asked, pod_uids=uids)
                return await self._made.report(found, pods, told, cpus)

        return asyncio.run(run())
