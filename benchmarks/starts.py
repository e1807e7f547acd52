"""
What Tenure adds to the start of a container, on a real kubelet, containerd and runc.

Pods that the service gave a part of a card, and the same Pods that ask for nothing, bound by the
stock scheduler to the same kubelet: one after the other, in turns, with service and agent running.
From the moment in which kubelet learns of the bound Pod, by its log, to the first line that the
container prints, by the runtime's. Root, as `make node`.

    .venv/bin/python -m benchmarks.starts [--pairs 100]
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from benchmarks.measure import processor_seconds
from ledger.domain.resources import SLOT
from tests.support.kube.binaries import programs
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, control_plane
from tests.support.node.agents import Agent, agent
from tests.support.node.clusters import Cluster
from tests.support.node.node import Node, node
from tests.support.node.pods import Pods, container
from tests.support.node.programs import node_programs
from tests.support.node.room import room

AT_ONCE: Final = 40
"""Pairs that are left running beside one another."""
PART: Final = {"koordinator.sh/gpu": 5, SLOT: 1}
_ADDED: Final = re.compile(r'^I(\d{4} [\d:.]+) .*"SyncLoop ADD" source="api" pods=\["([^"]+)"\]')
_BUCKET: Final = re.compile(
    r'^tenure_agent_start_seconds_bucket\{le="([^"]+)"\} ([\d.]+)$', re.MULTILINE
)


def main() -> None:
    """Measure, and print lines."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=100)
    pairs = arguments.parse_args().pairs
    with (
        tempfile.TemporaryDirectory() as made,
        _plane(Path(made)) as plane,
        room(_folder(made, "node")) as inside,
        node(inside, plane, node_programs()) as machine,
    ):
        _measure(plane, machine, _folder(made, "cluster"), pairs)


def _folder(within: str, name: str) -> Path:
    path = Path(within, name)
    path.mkdir()
    return path


@contextmanager
def _plane(folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane with a stock scheduler of its own."""
    with control_plane(_folder(str(folder), "plane"), programs()) as plane:
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(plane.kubeconfig("admin"))},
            "leaderElection": {"leaderElect": False},
        }
        config = folder / "scheduler.yaml"
        config.write_text(yaml.safe_dump(settings))
        with plane.scheduler(config):
            yield plane


def _measure(plane: ControlPlane, machine: Node, folder: Path, pairs: int) -> None:
    cluster = Cluster(plane, machine, folder)
    made = plane.api().create("/api/v1/namespaces", {"metadata": {"name": "starts"}})
    assert made.ok, made.message
    pods = Pods(machine, "starts")
    found: dict[str, list[float]] = {"ours": [], "plain": []}
    with (
        cluster.served() as served,
        agent(machine, folder, slots=AT_ONCE, told=cluster.told()) as own,
        cluster.scheduling(served),
    ):
        eventually(lambda: "by service" in own.whose_word())
        _start(pods, "warm", PART, "tenure")
        assert own.process is not None
        before = processor_seconds(own.process.pid)
        for number in range(pairs):
            kinds = [("ours", PART, "tenure"), ("plain", {}, "default-scheduler")]
            for kind, resources, scheduler in kinds if number % 2 else reversed(kinds):
                found[kind].append(_start(pods, f"{kind}-{number}", resources, scheduler))
            if number % AT_ONCE == AT_ONCE - 2:
                pods.remove_all()
        used = processor_seconds(own.process.pid) - before
        buckets = _buckets(own)
        pods.remove_all()
        cluster.end()
    for kind, seconds in found.items():
        print(f"{kind}: {_words(seconds)}")
    print(f"added: {_words([a - b for a, b in zip(*found.values(), strict=True)])}")
    ends = {
        rank: _quantile(found["ours"], rank) - _quantile(found["plain"], rank) for rank in _RANKS
    }
    print("difference: " + " ".join(f"p{rank}={1000 * one:.0f}ms" for rank, one in ends.items()))
    print(f"kubelet waited for the agent, at most so long: {buckets}")
    print(f"agent: {1000 * used / pairs:.1f} processor ms for each start, idle looks included")


def _start(pods: Pods, name: str, resources: Mapping[str, int], scheduler: str) -> float:
    """Create a Pod, and return the seconds from kubelet's knowing it to its first word."""
    made = pods.make(name, [container(resources=resources)], scheduler=scheduler)
    meta = made["metadata"]
    of_pod = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
    log = pods.node.room.folder / "pod-logs" / of_pod / "main" / "0.log"
    pods.node.until(lambda: log.exists() and "\n" in log.read_text(), f"it does not run: {name}")
    printed = datetime.fromisoformat(log.read_text().partition(" ")[0][:26] + "+00:00")
    return (printed - _added(pods.node, f"{meta['namespace']}/{name}")).total_seconds()


def _added(machine: Node, name: str) -> datetime:
    """Return when kubelet learned of a Pod, by its log, which has no year and no zone."""
    for line in reversed(machine.kubelet.log.read_text(errors="replace").splitlines()):
        match = _ADDED.match(line)
        if match and match[2] == name:
            year = datetime.now(UTC).year
            local = datetime.strptime(f"{year}{match[1]}", "%Y%m%d %H:%M:%S.%f")  # noqa: DTZ007
            return local.astimezone(UTC)
    raise AssertionError(f"kubelet does not say when it learned of a Pod: {name}")


_RANKS: Final = (50, 90, 99)


def _words(seconds: Sequence[float]) -> str:
    ranks = " ".join(f"p{rank}={1000 * _quantile(seconds, rank):.0f}ms" for rank in _RANKS)
    return f"n={len(seconds)} mean={1000 * statistics.mean(seconds):.0f}ms {ranks}"


def _quantile(seconds: Sequence[float], rank: int) -> float:
    """Return the nearest rank: the smallest that so many of a hundred are no larger than."""
    ordered = sorted(seconds)
    return ordered[-(-len(ordered) * rank // 100) - 1]


def _buckets(own: Agent) -> str:
    """Return which share of the starts the agent answered in which time."""
    found = [(le, float(count)) for le, count in _BUCKET.findall(own.probe("metrics"))]
    whole = found[-1][1]
    return ", ".join(f"{le}s {100 * count / whole:.0f}%" for le, count in found if count)


if __name__ == "__main__":
    main()
