"""One real node for all tests of a worker: kubelet, containerd and runc, in a control plane."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.kube.binaries import MissingProgramError, programs
from tests.support.kube.control_plane import ControlPlane, control_plane
from tests.support.kube.inventory import TOPOLOGIES
from tests.support.node.clusters import Cluster
from tests.support.node.cpu_processes import define, report_two_cpus
from tests.support.node.node import NODE_NAME, Node, node
from tests.support.node.pods import Pods
from tests.support.node.programs import node_programs
from tests.support.node.room import NoRoomError, check_machine, room

_numbers: Final = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, so that it is left to `make node`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("node")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running etcd, kube-apiserver and kube-scheduler."""
    try:
        check_machine()
        found = programs()
        node_programs()
    except (MissingProgramError, NoRoomError) as error:
        pytest.fail(str(error), pytrace=False)
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, found) as running:
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(running.kubeconfig("admin"))},
            "leaderElection": {"leaderElect": False},
        }
        config = folder / "scheduler.yaml"
        config.write_text(yaml.safe_dump(settings))
        with running.scheduler(config):
            yield running


@pytest.fixture(scope="session")
def machine(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that is ready."""
    with (
        room(tmp_path_factory.mktemp("node")) as made,
        node(made, plane, node_programs()) as running,
    ):
        yield running


@pytest.fixture
def pods(machine: Node) -> Iterator[Pods]:
    """Pods in a namespace of the test's own, all gone at its end."""
    namespace = f"team-{next(_numbers)}"
    made = machine.plane.api().create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    assert made.ok, made.message
    own = Pods(machine, namespace)
    yield own
    own.remove_all()


@pytest.fixture
def cluster(plane: ControlPlane, machine: Node, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster of the node, without its service yet."""
    made = Cluster(plane, machine, tmp_path)
    yield made
    made.end()


@pytest.fixture
def two_cpus(plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """The node's CPUs, as the scheduler reads them: without a word on what kubelet keeps."""
    define(plane, tmp_path)
    report_two_cpus(plane)
    yield
    plane.api().delete(f"{TOPOLOGIES}/{NODE_NAME}")
