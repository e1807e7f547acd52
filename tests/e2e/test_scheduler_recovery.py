"""An older ledger is put back while Pods run: nothing is granted until it was recovered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.signing import PrivateKey
from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from scheduler.service.witnesses import RECOVERING, config_map_path
from tests.support.kube.bursts import DIALECTS, eventually, remove_pods
from tests.support.kube.control_plane import ADMIN, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure
from tests.support.stores import PostgresStore, SqliteStore, Store

HEAD = config_map_path("tenure-system")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Pods of one namespace on one node of six cards, and what runs around them."""

    plane: ControlPlane
    where: str
    identities: Identities
    folder: Path

    def submit(self, *names: str) -> None:
        """Ask for a card each."""
        for name in names:
            asked = pod(name, schedulerName="tenure", **DIALECTS["nvidia"])
            made = self.plane.api().create(self.where, asked)
            assert made.ok, made.message

    def bound(self) -> dict[str, dict[str, Any]]:
        """Return the Pods that have a node, by name."""
        items = self.plane.api().get(self.where).body["items"]
        return {one["metadata"]["name"]: one for one in items if one["spec"].get("nodeName")}

    def place(self, url: str, *names: str) -> None:
        """Let Pods be bound from a ledger."""
        with (
            extender(self.plane, url, self.identities, remembered=True) as served,
            self.plane.scheduler(asking(self.plane, served, self.identities)),
        ):
            self.submit(*names)
            eventually(lambda: set(names) <= self.bound().keys())

    def recover(self, url: str, *more: str) -> str:
        """Recover a ledger from the cluster."""
        keys = [
            str(PrivateKey.parse((self.identities.keys / f"{name}.key").read_text()).public)
            for name in ("ledger", "proof")
        ]
        answer = tenure(
            *("ledger", "recover", "--ledger", url),
            *("--kubeconfig", str(self.plane.kubeconfig(ADMIN)), "--all-pods", *more),
            *(word for key in keys for word in ("--public-key", key)),
            cwd=self.folder,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout


@pytest.fixture
def cluster(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
) -> Iterator[Cluster]:
    """A node of six cards, and a namespace."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    plane.api().delete(HEAD)
    add_gpu_node(plane, "restored", gpus=6)
    where = pods_in(namespace(managed=False))
    made = Cluster(plane=plane, where=where, identities=identities, folder=tmp_path)
    yield made
    names = [one["metadata"]["name"] for one in plane.api().get(where).body["items"]]
    remove_pods(plane, where, names)
    remove_node(plane, "restored")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A new ledger, on either database."""
    if request.param == "postgres":
        empty: PostgresStore = request.getfixturevalue("empty_postgres")
        return empty.copy()
    made = SqliteStore(path=tmp_path / "live.db")
    made.open("create").close()
    return made


def held(url: str) -> Counter[str]:
    """Return the Pods that hold something by the ledger, and on how many cards."""
    with open_ledger(url, mode="read") as ledger:
        nodes = load_state(ledger).state.nodes.values()
        return Counter(
            {one.pod_name: len(one.shares) for node in nodes for one in node.holdings.values()}
        )


def position(url: str) -> int:
    """Return the head's position."""
    with open_ledger(url, mode="read") as ledger:
        return ledger.head().position


def quarantined(served: Served) -> str:
    """Wait until the service says why it grants nothing."""
    return str(
        eventually(
            lambda: words if (words := served.probe("readyz")).startswith(RECOVERING) else ""
        )
    )


def test_an_older_ledger_grants_nothing_until_it_is_recovered(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    """Pods run on untouched; afterwards the ledger is what the annotations say, and proves it."""
    cluster.place(store.url, "before")
    backup = store.copy(tmp_path / "backup.db")
    cluster.place(store.url, "after-1", "after-2")
    before, at = cluster.bound(), position(backup.url)

    with (
        extender(
            cluster.plane, backup.url, cluster.identities, remembered=True, ready=False
        ) as one,
        cluster.plane.scheduler(asking(cluster.plane, one, cluster.identities)),
    ):
        why = quarantined(one)
        assert "run `tenure ledger recover`" in why
        cluster.submit("waits")
        api = cluster.plane.api()
        said = eventually(
            lambda: [
                each["message"]
                for each in api.get(f"{cluster.where}/waits").body["status"].get("conditions", ())
                if RECOVERING in (each.get("message") or "")
            ]
        )
        assert "the ledger lacks positions" in said[0]
        assert 'tenure_scheduler_view{what="quarantined"} 1.0' in one.probe("metrics")
        assert "quarantined: nothing is granted or recorded" in one.words()
        assert position(backup.url) == at, "nothing was recorded"
        assert cluster.bound() == before, "running Pods are untouched"

        recovered = cluster.recover(backup.url)
        assert "lost: positions" in recovered
        eventually(lambda: "waits" in cluster.bound())
        one.wait_ready()
    assert held(backup.url) == Counter(dict.fromkeys(cluster.bound(), 1))
    verified = tenure("verify", "--ledger", backup.url, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with open_ledger(backup.url, mode="read") as ledger:
        query = "SELECT lost_from, lost_to, incarnation FROM audit_unknown_ranges"
        [row] = ledger.connection.exec_driver_sql(query).all()
    assert (row[0], row[2] != "first") == (at + 1, True)

    cluster.place(backup.url, "restarted")
    assert held(backup.url) == Counter(dict.fromkeys(cluster.bound(), 1))


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_ledger_behind_the_config_map_alone_is_quarantined(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    """All Pods of the lost range are gone, and still the ledger says less than was seen."""
    cluster.place(store.url, "before")
    backup = store.copy(tmp_path / "backup.db")
    cluster.place(store.url, "after")
    eventually(lambda: cluster.plane.api().get(HEAD).ok)
    remove_pods(cluster.plane, cluster.where, ["after"])
    with extender(
        cluster.plane, backup.url, cluster.identities, remembered=True, ready=False
    ) as served:
        assert "seen by ConfigMap" in quarantined(served)
        cluster.plane.api().patch(HEAD, {"data": {"witness": "{"}})
        eventually(lambda: "can't be read" in served.probe("readyz"))
        assert cluster.plane.api().delete(HEAD).ok
        served.wait_ready()


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_the_ledger_of_another_cluster_is_refused_at_the_start(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    """One sentence with both names, and nothing is written."""
    with store.open() as ledger:
        ledger.start_epoch("another", "ledger/another-cluster", "0.1.0")
    at = position(store.url)
    keys, plane = cluster.identities.keys, cluster.plane
    answer = tenure(
        *("serve", "scheduler", "--ledger", store.url, "--extender", "127.0.0.1:0"),
        *("--probes", "127.0.0.1:0", "--kubeconfig", str(plane.kubeconfig(SCHEDULER_ACCOUNT))),
        *("--certificates", str(cluster.identities.server), "--name", "127.0.0.1"),
        *("--proof-key", str(keys / "proof.key"), "--ledger-key", str(keys / "ledger.key")),
        cwd=tmp_path,
    )
    assert answer.returncode == 2
    assert "the ledger belongs to another cluster: origin=ledger/another-cluster" in answer.stderr
    assert position(store.url) == at
