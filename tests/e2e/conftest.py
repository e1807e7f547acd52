"""One real API server for all tests here; every test gets namespaces of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from ledger.domain.resources import LABEL_TENURE_MANAGED
from tests.support.kube.binaries import CURRENT, MissingProgramError, programs
from tests.support.kube.bursts import remove_pods
from tests.support.kube.control_plane import ControlPlane, control_plane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import Identities, issue
from tests.support.kube.webhooks import NAMESPACE
from tests.support.process import tenure
from tests.support.stores import PostgresStore

NODES: Final = "/api/v1/nodes"

_numbers: Final = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, so that `make test` leaves it to `make e2e`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A running etcd and kube-apiserver, of the release that a test names, or the current one."""
    try:
        found = programs(release=getattr(request, "param", CURRENT))
    except MissingProgramError as error:
        pytest.fail(str(error), pytrace=False)
    with control_plane(tmp_path_factory.mktemp("plane"), found) as running:
        made = running.api().create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        assert made.ok, made.message
        yield running


@pytest.fixture(scope="module", autouse=True)
def alone(plane: ControlPlane) -> None:
    """No Pod, Node or description of a node is left of another module, even of one that failed."""
    for one in plane.api().get("/api/v1/pods").body["items"]:
        remove_pods(plane, pods_in(one["metadata"]["namespace"]), [one["metadata"]["name"]])
    for path in (NODES, DEVICES, TOPOLOGIES):
        found = plane.api().get(path)
        for one in found.body["items"] if found.ok else ():
            plane.api().delete(f"{path}/{one['metadata']['name']}")


@pytest.fixture
def namespace(plane: ControlPlane) -> Callable[..., str]:
    """Make a namespace with these labels, managed by default, and return its name."""

    def make(*, managed: bool = True, **labels: str) -> str:
        name = f"team-{next(_numbers)}"
        wanted = {LABEL_TENURE_MANAGED: "true", **labels} if managed else labels
        body = {"metadata": {"name": name, "labels": wanted}}
        made = plane.api().create("/api/v1/namespaces", body)
        assert made.ok, made.message
        return name

    return make


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    """Certificates and signer keys."""
    return issue(tmp_path_factory.mktemp("identities"))


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new ledger's URL, on either database."""
    if request.param == "postgres":
        empty: PostgresStore = request.getfixturevalue("empty_postgres")
        copy = empty.copy()
        yield copy.url
        copy.server.run(f"DROP DATABASE {copy.database} WITH (FORCE)")
        return
    url = f"sqlite:///{tmp_path / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    yield url
