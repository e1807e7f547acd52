"""Statements of the proposals about what is decided and written, by a stock kube-scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.cpuset import parse_cpuset
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure

SETTINGS: Final = """\
apiVersion: tenure.sh/v1alpha1
kind: SchedulerConfiguration
mgpu: {scheduleMode: id}
"""
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
SEEN: Final = "topology.scheduling.koordinator.sh/gpu"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
SPEC: Final = "scheduling.koordinator.sh/resource-spec"
PINNED: Final = "node.koordinator.sh/pod-cpu-allocs"
SHARE: Final = "ALIYUN_COM_GPU_MEM"
MGPU: Final = "vke.volcengine.com"
POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
NODES: Final = ("static", "none", "cards", "others")
TEAM: Final = "statements"
PODS: Final = pods_in(TEAM)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A service with its kube-scheduler, and what Pods become there."""

    plane: ControlPlane
    ledger: str
    folder: Path

    def create(self, body: Json) -> Json:
        """Create a Pod."""
        made = self.plane.api().create(PODS, body)
        assert made.ok, made.message
        return dict(made.body)

    def words(self, body: Json) -> dict[str, Any]:
        """Create a Pod, wait until it is bound, and return its annotations."""
        self.create(body)
        path = f"{PODS}/{body['metadata']['name']}"
        eventually(lambda: self.plane.api().get(path).body["spec"].get("nodeName"))
        return dict(self.plane.api().get(path).body["metadata"]["annotations"])

    def why(self, body: Json) -> str:
        """Create a Pod that waits, and return what kube-scheduler says of it."""
        self.create(body)
        path = f"{PODS}/{body['metadata']['name']}"

        def said() -> Json | None:
            conditions = self.plane.api().get(path).body["status"].get("conditions") or ()
            return next((one for one in conditions if one["type"] == "PodScheduled"), None)

        found = eventually(said)
        assert found["status"] == "False", "it is bound"
        return str(found["message"])

    def remove(self, *names: str) -> None:
        """Delete Pods at once."""
        remove_pods(self.plane, PODS, names)

    def pools(self, node: str) -> dict[str, set[int]]:
        """Return the CPUs of each pool of a node, by the ledger alone."""
        done = tenure("map", "--cpus", "--ledger", self.ledger, "-o", "json", cwd=self.folder)
        assert done.returncode == 0, done.stderr
        found = next(one for one in json.loads(done.stdout) if one["node"] == node)["pools"]
        texts = {
            name: [pool] if isinstance(pool, str) else [one["cpuset"] for one in pool]
            for name, pool in found.items()
        }
        return {
            name: {cpu for one in of for cpu in parse_cpuset(one)} for name, of in texts.items()
        }


@pytest.fixture(scope="module")
def scene(
    plane: ControlPlane, identities: Identities, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Nodes of two cards and 16 CPUs on two NUMA nodes."""
    folder = tmp_path_factory.mktemp(TEAM)
    for kind, title in ((DEVICES, "Device"), (TOPOLOGIES, "NodeResourceTopology")):
        know(plane, kind, title)
    made = plane.api().create("/api/v1/namespaces", {"metadata": {"name": TEAM}})
    assert made.ok, made.message
    for name in NODES:
        add_gpu_node(plane, name, gpus=2, cpus=16)
    settings, ledger = folder / "settings.yaml", f"sqlite:///{folder / 'live.db'}"
    settings.write_text(SETTINGS)
    assert tenure("ledger", "init", "--ledger", ledger, cwd=folder).returncode == 0
    with (
        extender(plane, ledger, identities, forked=True, config=settings) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        yield Scene(plane=plane, ledger=ledger, folder=folder)
    there = plane.api().get(PODS).body["items"]
    remove_pods(plane, PODS, [one["metadata"]["name"] for one in there])
    for name in NODES:
        remove_node(plane, name)


def asked(name: str, node: str, amounts: Mapping[str, str], **more: Any) -> Json:  # noqa: ANN401 - a Pod's fields
    """Return a Pod that our scheduler has to place on one node."""
    selector = {"kubernetes.io/hostname": node}
    return pod(name, amounts, schedulerName="tenure", nodeSelector=selector, **more)


def cpus(number: int) -> dict[str, str]:
    """Return amounts of a Guaranteed Pod."""
    return {"cpu": str(number), "memory": "1Gi"}


def classed(qos: str) -> dict[str, str]:
    """Return the labels of a QoS class and its priority class."""
    return {"koordinator.sh/qosClass": qos, "koordinator.sh/priority-class": "koord-prod"}


def run_by_kubelet(scene: Scene, node: str, policy: str, cpuset: str) -> None:
    """Let a Guaranteed Pod run that kubelet pinned to CPUs, if to any, and told of it then."""
    api, name = scene.plane.api(), f"g-{node}"
    made = scene.create(pod(name, cpus(2), nodeName=node, schedulerName="others"))
    assert api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}}).ok
    entry = {"namespace": TEAM, "name": name, "uid": made["metadata"]["uid"], "cpuset": cpuset}
    texts = {
        POLICY: json.dumps({"policy": policy, "reservedCPUs": "0-1"}),
        PINNED: json.dumps([{**entry, "managedByKubelet": True}] if cpuset else []),
    }
    told = api.patch(f"{TOPOLOGIES}/{node}", {"metadata": {"annotations": texts}})
    assert told.ok, told.message


def test_pools_are_what_cpus_of_their_own_and_kubelets_leave(scene: Scene) -> None:
    """
    The shared pool, the best effort pool and the exclusive CPUs, under either policy of kubelet's.

    Best effort has LSR's CPUs and neither LSE's nor those that kubelet pinned, which nobody else is
    given. Kubelet's reserved CPUs are in both pools, first in the one of best effort.
    """
    run_by_kubelet(scene, "static", "static", "14-15")
    run_by_kubelet(scene, "none", "none", "")
    every, first, kubelets = {*range(16)}, {0, 1}, {14, 15}
    eventually(lambda: scene.pools("static")["best_effort_first"] == first)
    own: dict[str, set[int]] = {}
    for qos in ("LSE", "LSR"):
        words = scene.words(asked(qos.lower(), "static", cpus(4), labels=classed(qos)))
        own[qos] = {*parse_cpuset(json.loads(words[STATUS])["cpuset"])}
    large = asked("large", "static", cpus(5), labels=classed("LSR"))
    assert "not enough cpus" in scene.why(large)

    assert [len(own["LSE"]), len(own["LSR"])] == [4, 4]
    assert not (own["LSE"] | own["LSR"]) & (first | kubelets)
    assert scene.pools("static") == {
        "shared": every - own["LSE"] - own["LSR"] - kubelets,
        "best_effort": every - own["LSE"] - kubelets,
        "best_effort_first": first,
        "exclusive": own["LSE"] | own["LSR"],
    }
    assert scene.pools("none") == {
        "shared": every,
        "best_effort": every,
        "best_effort_first": first,
        "exclusive": set(),
    }
    scene.remove("large", "lse", "lsr", "g-static", "g-none")


def test_cpus_that_another_scheduler_gave_are_nobody_elses(scene: Scene) -> None:
    """
    Koordinator gives CPUs to a Pod without a class where the node has a bind policy.

    Who was told pools or nothing at all keeps no CPU, and no node closed.
    """
    theirs = {0, 1}
    for name, status in (("pools", {"cpuSharedPools": [{"socket": 0, "node": 0}]}), ("empty", {})):
        told = {STATUS: json.dumps(status)}
        scene.create(pod(name, cpus(1), nodeName="others", schedulerName="o", annotations=told))
    given = {STATUS: json.dumps({"cpuset": "0-1"})}
    scene.create(pod("theirs", cpus(2), nodeName="others", schedulerName="o", annotations=given))
    words = scene.words(asked("ours", "others", cpus(4), labels=classed("LSR")))
    ours = {*parse_cpuset(json.loads(words[STATUS])["cpuset"])}
    assert len(ours - theirs) == 4, ours
    assert scene.pools("others")["exclusive"] == ours | theirs
    scene.remove("theirs", "ours", "pools", "empty")


def test_a_burst_is_told_its_pools_by_socket_and_numa_node(scene: Scene) -> None:
    """The fewest NUMA nodes whose pools hold the Pod's limit, and no CPU by number."""
    wish = {SPEC: json.dumps({"preferredCPUBindPolicy": "ConstrainedBurst"})}
    for limit, numas in (("7", [0]), ("10", [0, 1])):
        name = f"bursts-{limit}"
        body = asked(name, "cards", {"cpu": limit}, labels=classed("LS"), annotations=wish)
        body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
        assert json.loads(scene.words(body)[STATUS]) == {
            "cpuSharedPools": [{"socket": 0, "node": numa} for numa in numas]
        }
    scene.remove("bursts-7", "bursts-10")


def test_a_share_needs_one_card_and_is_written_with_its_amounts(scene: Scene) -> None:
    """Two cards that have too little each do not take what both together would."""
    share, before = "aliyun.com/gpu-mem", time.time_ns()
    for card, name in enumerate(("first", "second")):
        words = scene.words(asked(name, "cards", {share: "10000"}))
        assert before < int(words[f"{SHARE}_ASSUME_TIME"]) < time.time_ns()
        assert {
            key: words[key] for key in ("ALIYUN_GPU_ID", f"{SHARE}_POD", f"{SHARE}_ASSIGNED")
        } == {
            "ALIYUN_GPU_ID": str(card),
            f"{SHARE}_POD": "10000",
            f"{SHARE}_ASSIGNED": "false",
        }
    assert "Insufficient gpu devices" in scene.why(asked("third", "cards", {share: "8000"}))
    scene.remove("third")

    quarter = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "25"}
    words = scene.words(asked("quarter", "cards", quarter))
    given = {
        "id": "GPU-cards-0",
        "minor": 0,
        "resources": {
            "koordinator.sh/gpu-core": "50",
            "koordinator.sh/gpu-memory": str(4 << 30),
            "koordinator.sh/gpu-memory-ratio": "25",
        },
    }
    assert json.loads(words[ALLOCATED]) == {"gpu": [given]}
    scene.remove("first", "second", "quarter")


def test_mgpu_names_cards_by_id_and_whole_cards_have_their_topology(scene: Scene) -> None:
    """The settings' mode; a single Pod's own GPUs are those that it sees."""
    amounts = {f"{MGPU}/mgpu-core": "100", f"{MGPU}/mgpu-memory": "1024"}
    wish = {f"{MGPU}/mgpu-compute-policy": "native-burst-share"}
    two = {**wish, f"{MGPU}/container-multiple-gpu": "2"}
    words = scene.words(asked("by-id", "static", amounts, annotations=two))
    assert words[f"{MGPU}/gpu-index-container-main"] == "GPU-static-0,GPU-static-1"
    assert words[f"{MGPU}/assumed"] == "true"
    given = json.loads(words[ALLOCATED])["gpu"]
    assert [one["resources"]["koordinator.sh/gpu-core"] for one in given] == ["50", "50"]
    words = scene.words(asked("whole", "none", {"nvidia.com/gpu": "2"}))
    assert json.loads(words[SEEN]) == {
        "allocatedGPUs": {"0": ["0", "1"]},
        "visibleGPUs": ["0", "1"],
    }
    scene.remove("by-id", "whole")


def test_all_of_it_is_proved_and_decided_again_by_the_ledger_alone(scene: Scene) -> None:
    """What kubelet and another scheduler gave is in what was recorded, or replay would differ."""
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", scene.ledger, cwd=scene.folder)
        assert answer.returncode == 0, answer.stdout + answer.stderr
