"""Pods of every dialect come and go on one node while all that runs there is killed at random."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from sqlalchemy import text

from agent.witness.history import BAD
from ledger.store.open import open_ledger
from tests.support.forked import forked
from tests.support.kube.bursts import DIALECTS, eventually
from tests.support.kube.control_plane import free_port
from tests.support.kube.schedulers import Served
from tests.support.kube.webhooks import serving
from tests.support.node.agents import CARDS, Agent, agent, shows
from tests.support.node.clusters import CARD_BYTES, Cluster
from tests.support.node.node import NODE_NAME
from tests.support.node.pods import Pods, container
from tests.support.recount import held_by_ledger, most

SLOTS: Final = 12
PODS_MAX: Final = 6
TICK_SECONDS: Final = 0.5
SETTINGS: Final = "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\nslotMode: plugin\n"
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "whole": DIALECTS["nvidia"],
    "two": {"amounts": {"nvidia.com/gpu": "2"}},
    "koordinator": DIALECTS["koordinator"],
    "mgpu": DIALECTS["mgpu"],
    "gpushare": {"amounts": {"aliyun.com/gpu-mem": "4096"}},
    "hami": {**DIALECTS["hami"], "labels": {"hami.io/webhook": "ignore"}},
}
"""The CPU sets are not among them: the agent does not tell of CPUs yet."""
VICTIMS: Final = ("kubelet", "agent", "containerd", "service")
LIMITS: Final = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
Json = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Scene:
    """
    A cluster of one node, and who was made, seen and killed there.

    Attributes:
        down: who is dead, and when he starts again.
        made: name -> the Pod as it was made.
        told: what each run of a container printed, by UID, container and number of the run.
    """

    cluster: Cluster
    pods: Pods
    agent: Agent
    rng: Random
    services: contextlib.ExitStack
    served: Served
    down: dict[str, float] = field(default_factory=dict)
    made: dict[str, Json] = field(default_factory=dict)
    told: dict[tuple[str, str, int], Json] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    def serve(self) -> None:
        """Start the service again, where it was."""
        port = self.served.port
        again = self.cluster.served(port=port, remembered=True, ready=False)
        self.served = self.services.enter_context(again)

    def kill(self, who: str) -> None:
        """End somebody without a word, for a while."""
        machine = self.cluster.machine
        {
            "kubelet": machine.kubelet.end,
            "containerd": machine.containerd.end,
            "agent": self.agent.kill,
            "service": self.served.kill,
        }[who]()
        self.count[f"killed {who}"] += 1
        self.down[who] = time.monotonic() + self.rng.choice((0.0, 0.5, 2.0, 4.0))

    def start(self, who: str) -> None:
        """Start him again."""
        machine = self.cluster.machine
        {
            "kubelet": machine.kubelet.start,
            "containerd": machine.containerd.start,
            "agent": self.agent.begin,
            "service": self.serve,
        }[who]()
        del self.down[who]

    def supervise(self) -> None:
        """Start who is due, and a kubelet that went because containerd was not there."""
        now, kubelet = time.monotonic(), self.cluster.machine.kubelet
        for who in [who for who, when in self.down.items() if now >= when]:
            self.start(who)
        if "kubelet" not in self.down and not kubelet.runs():
            kubelet.start()
            self.count["kubelet again"] += 1
        assert "agent" in self.down or self.agent.runs(), self.agent.words()[-4_000:]
        assert "service" in self.down or self.served.process.poll() is None, self.served.words()

    def step(self) -> None:
        """Make a Pod, delete one, or end a container, at random; those that are rejected go."""
        there = {one["metadata"]["name"]: one for one in self.pods.all()}
        live = [name for name, one in there.items() if "deletionTimestamp" not in one["metadata"]]
        for name in live:
            if there[name]["status"].get("phase") == "Failed":
                self.count[f"rejected: {there[name]['status'].get('reason')}"] += 1
                self.pods.delete(name)
        if len(live) < PODS_MAX and self.rng.random() < 0.5:
            self.make()
        if live and self.rng.random() < 0.15:
            self.pods.delete(self.rng.choice(live))
            self.count["deleted"] += 1
        if live and self.rng.random() < 0.1:
            for pid in self.cluster.machine.processes(there[self.rng.choice(live)]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.count["ended inside"] += 1

    def comes_to_rest(self) -> bool:
        """Tell whether whoever was placed runs; rejected ones go."""
        self.supervise()
        placed = [one for one in self.pods.all() if one["spec"].get("nodeName")]
        for one in placed:
            if one["status"].get("phase") == "Failed":
                self.pods.delete(one["metadata"]["name"])
        return bool(placed) and all(map(_runs, placed))

    def make(self) -> None:
        """Make a Pod of some dialect; its second container asks for nothing."""
        kind = self.rng.choice(list(SHAPES))
        shape = SHAPES[kind]
        name = f"{kind}-{len(self.made)}"
        containers = [container(resources=shape["amounts"])]
        if self.rng.random() < 0.25:
            containers.append(container("blind"))
        self.made[name] = self.pods.make(
            name,
            containers,
            labels=shape.get("labels"),
            annotations=shape.get("annotations"),
        )
        self.count[f"made {kind}"] += 1

    def look(self) -> None:
        """
        Hold what every container printed against the ledger.

        By what the ledger has of its Pod, and by what the running ones may use of a card together.
        """
        machine = self.cluster.machine
        new: dict[tuple[str, str, int], Json] = {}
        for pod in self.made.values():
            for one in ("main", "blind"):
                for number, seen in machine.said(pod, one).items():
                    if (pod["metadata"]["uid"], one, number) not in self.told:
                        new[pod["metadata"]["uid"], one, number] = seen
        held = self.held()
        for (uid, one, number), seen in new.items():
            wanted = expected(held.get(uid, {})) if one == "main" else ([], {})
            found = (
                seen["cards"],
                {
                    key: value
                    for key, value in seen["environment"].items()
                    if key.startswith(LIMITS)
                },
            )
            assert found == wanted, (uid, one, number, found, wanted)
            assert seen["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void", seen
            own = ",".join(CARDS[minor] for minor in sorted(held.get(uid, {})))
            usable = seen["environment"].get("CUDA_VISIBLE_DEVICES", "")
            assert usable == (own if one == "main" else ""), seen
        self.told |= new
        assert not BAD & set(self.agent.verdicts()), self.agent.words()[-4_000:]
        recorded = held_by_ledger(self.cluster.url)
        assert most(recorded, "core") <= 100
        assert most(recorded, "memory") <= CARD_BYTES
        self.together()

    def together(self) -> None:
        """Check that what runs now may not use more of a card than there is, by its own words."""
        core: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        whose: dict[str, list[str]] = {}
        for name, pod in self.made.items():
            uid = pod["metadata"]["uid"]
            runs = [number for pod_uid, one, number in self.told if (pod_uid, one) == (uid, "main")]
            if not runs or not self.cluster.machine.processes(pod):
                continue
            seen = self.told[uid, "main", max(runs)]
            limit, percent = (seen["environment"].get(one) for one in LIMITS)
            for card in seen["cards"]:
                whose.setdefault(card, []).append(name)
                memory[card] += int(limit) if limit else CARD_BYTES
                core[card] += int(percent) if percent else 0 if limit else 100
        assert max(memory.values(), default=0) <= CARD_BYTES, whose
        assert max(core.values(), default=0) <= 100, whose

    def held(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Return what the ledger has of every Pod: UID -> minor -> percent and bytes."""
        query = (
            "SELECT position, pod_uid, minor, core_percent, memory_bytes FROM audit_holdings"
            " WHERE device_type = 'gpu' ORDER BY position"
        )
        found: dict[str, dict[int, tuple[int, int]]] = {}
        attempt: dict[str, int] = {}
        with open_ledger(self.cluster.url, mode="read") as ledger, ledger.connection.begin():
            for position, uid, minor, core, size in ledger.connection.execute(text(query)):
                if attempt.get(uid) != position:  # what was tried before it was never bound
                    found[uid], attempt[uid] = {}, position
                found[uid][minor] = (core, size)
        return found


def _runs(pod: Json) -> bool:
    states = pod["status"].get("containerStatuses", ())
    return bool(states) and all("running" in one["state"] for one in states)


def expected(held: dict[int, tuple[int, int]]) -> tuple[list[str], dict[str, str]]:
    """Return the cards and limits that a container with these parts of cards prints."""
    limits = {}
    for core, size in held.values():
        if 0 < size < CARD_BYTES:
            limits[LIMITS[0]] = str(size)
        if 0 < core < 100:
            limits[LIMITS[1]] = str(core)
    return sorted(shows(CARDS[minor]) for minor in held), limits


@pytest.fixture
def scene(
    cluster: Cluster, pods: Pods, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """All of it, up."""
    plane, machine = cluster.plane, cluster.machine
    path = f"/api/v1/nodes/{NODE_NAME}"
    marks = {"vke.node.gpu.schedule": "mgpu"}
    policy = {"vke.volcengine.com/mgpu-compute-policy": "native-burst-share"}
    assert plane.api().patch(path, {"metadata": {"labels": {**marks, **policy}}}).ok
    own = {"metadata": {"labels": {"tenure.sh/managed": "true"}}}
    assert plane.api().patch(f"/api/v1/namespaces/{pods.namespace}", own).ok
    (tmp_path / "locks").mkdir()
    (tmp_path / "libvgpu.so").touch()
    settings = tmp_path / "admission.yaml"
    settings.write_text(SETTINGS)
    isolating = ("--isolation", "hami-core", "--isolation-library", str(tmp_path / "libvgpu.so"))
    offers = ("--offers", "mgpu", "--offers", "gpushare")
    with contextlib.ExitStack() as services:
        port = free_port()
        served = services.enter_context(cluster.served(port=port))
        services.enter_context(serving(plane, arguments=("--config", str(settings))))
        told = (*cluster.told(), *isolating, *offers)
        running = services.enter_context(agent(machine, tmp_path, slots=SLOTS, told=told))
        eventually(lambda: "by service" in running.whose_word())
        services.enter_context(cluster.scheduling(served))
        made = Scene(
            cluster=cluster,
            pods=pods,
            agent=running,
            rng=Random(request.node.callspec.params["seed"]),
            services=services,
            served=served,
        )
        yield made
        for who in list(made.down):
            made.start(who)
        pods.remove_all()
    gone = {"metadata": {"labels": dict.fromkeys((*marks, *policy))}}
    assert plane.api().patch(path, gone).ok


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [
        pytest.param(1, 120.0, id="2 minutes"),
        pytest.param(2, 600.0, id="10 minutes", marks=pytest.mark.slow),
    ],
)
def test_no_container_ever_has_a_wrong_card_and_nothing_is_left(
    scene: Scene, seed: int, seconds: float, tmp_path: Path
) -> None:
    """Kubelet, agent, containerd and the service are killed; each container has what is its own."""
    end = time.monotonic() + seconds
    next_kill = time.monotonic() + 5
    while (now := time.monotonic()) < end:
        scene.supervise()
        if now >= next_kill:
            up = [who for who in VICTIMS if who not in scene.down]
            if up:
                scene.kill(scene.rng.choice(up))
            next_kill = now + scene.rng.uniform(2, 8)
        scene.step()
        scene.look()
        time.sleep(TICK_SECONDS)

    for who in list(scene.down):
        scene.start(who)
    scene.served.wait_ready()
    eventually(scene.comes_to_rest)
    scene.look()
    for name in scene.made:
        scene.pods.delete(name)
    eventually(lambda: not scene.pods.all())
    eventually(lambda: not held_by_ledger(scene.cluster.url))
    eventually(lambda: forked("drift", "--ledger", scene.cluster.url, cwd=tmp_path).returncode == 0)
    eventually(lambda: scene.cluster.machine.allocatable("koordinator.sh/gpu") == 100 * len(CARDS))
    scene.pods.make("all", [container(resources={"nvidia.com/gpu": len(CARDS)})])
    pod = scene.made["all"] = scene.pods.running("all")
    scene.cluster.machine.seen(pod)
    scene.look()
    assert len(scene.told[pod["metadata"]["uid"], "main", 0]["cards"]) == len(CARDS)
    eventually(lambda: len(scene.agent.specifications()) == 1)
    verified = forked("verify", "--ledger", scene.cluster.url, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    sys.stdout.write(f"\n{seed=} runs={len(scene.told)} {dict(sorted(scene.count.items()))}\n")
    assert all(scene.count[f"killed {who}"] for who in VICTIMS), scene.count
    assert len(scene.told) >= len(SHAPES), scene.count
