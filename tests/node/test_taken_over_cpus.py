"""Tenure comes to a node that Koordinator served: its objects, running Pods and cgroups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from agent.report.reporter import path_of_topology
from ledger.store.open import open_ledger
from tests.node.test_reported_cpus import ALLOCS
from tests.node.test_served_cpus import (
    LSR,
    QOS,
    STATUS,
    WHOLE,
    asking,
    expect_bound,
    granted,
)
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.node.agents import agent
from tests.support.node.clusters import Cluster
from tests.support.node.cpu_processes import (
    binding,
    cgroups_of,
    define,
    folder_of,
    identity_of,
    main_process,
    managed,
    polled,
    report_two_cpus,
)
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import Pods, container

PATH: Final = path_of_topology(NODE_NAME)
POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"


def leave_what_koordlet_wrote(machine: Node, pods: Pods) -> None:
    """Write the node's object and the cgroups of `lsr` and `ls`, as Koordinator's agent does."""
    meta = pods.get("lsr")["metadata"]
    alloc = {key: meta[key] for key in ("namespace", "name", "uid")} | {"cpuset": "1"}
    pool = {"socket": 0, "node": 0}
    words = {
        ALLOCS: [alloc],
        POOLS: [{**pool, "cpuset": "0"}],
        BE_POOLS: [{**pool, "cpuset": "0-1"}],
        POLICY: {"policy": "none"},
    }
    texts = {key: json.dumps(value) for key, value in words.items()}
    report_two_cpus(machine.plane, manager="koordlet", **texts)
    for name, cpus in (("lsr", "1"), ("ls", "0")):
        pod = pods.get(name)
        for identity in cgroups_of(machine, pod):
            (folder_of(machine, identity) / "cpuset.cpus").write_text(cpus)
        if name == "lsr":  # a Pod's quota may not be below its containers'
            for own in (f"pod{pod['metadata']['uid']}", identity_of(pods, name)):
                (folder_of(machine, own, "cpu") / "cpu.cfs_quota_us").write_text("-1")


def holdings(cluster: Cluster, pod: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the ledger has open of a Pod: the kind of holding, and the CPUs."""
    rows = "audit_reservations WHERE pod_uid = :uid AND closed_at_us IS NULL"
    query = f"SELECT kind, cpuset FROM {rows}"
    with open_ledger(cluster.url, mode="read") as ledger, ledger.connection.begin():
        found = ledger.connection.execute(text(query), {"uid": pod["metadata"]["uid"]})
        return [(kind, cpus) for kind, cpus in found]


def managers(plane: ControlPlane) -> set[str]:
    """Return who has written fields of the node's object."""
    found = plane.api().get(PATH).body
    return {one["manager"] for one in found.get("metadata", {}).get("managedFields", ())}


def test_a_node_that_koordlet_served_is_taken_over_while_its_pods_run(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """
    A running LSR Pod has its CPU alone at each moment, and so have others theirs.

    The ledger adopts it. The node's object stays koordlet's until somebody deletes it; from then on
    it is the agent's, under the same label. Nobody is granted that CPU before or afterwards.
    """
    machine, plane = cluster.machine, cluster.plane
    define(plane, tmp_path)
    pods.make("lsr", [asking(WHOLE)], labels=LSR, annotations={STATUS: json.dumps({"cpuset": "1"})})
    pods.make("ls", [container()], labels={QOS: "LS"})
    lsr = pods.running("lsr")
    pods.running("ls")
    leave_what_koordlet_wrote(machine, pods)
    told = cluster.told(topology=True)
    with (
        polled(main_process(pods, "lsr")) as ran,
        polled(main_process(pods, "ls")) as shared,
        cluster.served() as served,
        cluster.scheduling(served),
    ):
        eventually(lambda: holdings(cluster, lsr) == [("observed", "1")])
        with agent(machine, tmp_path, told=told) as reporting:
            eventually(lambda: "ForeignFieldManager" in reporting.words())
            assert managers(plane) == {"koordlet"}
            pods.make("new", [asking(WHOLE)], labels=LSR, scheduler="tenure")
            machine.until(
                lambda: "CPUsNotBound" in json.dumps(pods.get("new")["status"]), "it is not refused"
            )
            pods.remove("new")

            assert plane.api().delete(PATH).ok
            eventually(lambda: managers(plane) == {"tenure-agent"})
            labels, words = (
                plane.api().get(PATH).body["metadata"][key] for key in ("labels", "annotations")
            )
            assert labels[MANAGED_BY] == "Koordinator"
            [alloc] = json.loads(words[ALLOCS])
            assert (alloc["uid"], alloc["cpuset"]) == (lsr["metadata"]["uid"], "1")
            assert [one["cpuset"] for one in json.loads(words[POOLS])] == ["0"]

            with binding(cluster) as own:
                machine.until(lambda: own.joins() == 1, "the runtime does not take it")
                assert managed(plane)
                expect_bound(pods, lsr="1", ls="0")
                assert holdings(cluster, lsr) == [("observed", "1")]
                assert (ran, shared) == ({frozenset({1})}, {frozenset({0})})

                pods.kill(lsr)
                pods.running("lsr", restarts=1)
                expect_bound(pods, lsr="1", ls="0")
                pods.remove("ls")
                pods.make("new", [asking(WHOLE)], labels=LSR, scheduler="tenure")
                assert granted(pods.running("new")) == "0"
                expect_bound(pods, lsr="1", new="0")
                pods.remove_all()
    plane.api().delete(PATH)
