"""Preemptions on a real control plane: full nodes, Pods of a higher priority, and who ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, Final

from tests.support.kube.bursts import SETTLE_SECONDS, eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import CARD_GIB, add_gpu_node, remove_node
from tests.support.kube.service_api import AGENT, OURS, Service, token_of
from tests.support.recount import held_by_pods

CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
LOW, HIGH = "preempted", "preempting"
CPUS: Final = 16
WHOLE: Final = 100
_LABELS: Final = {
    "koordinator.sh/qosClass": "LSR",
    "koordinator.sh/priority-class": "koord-prod",
}


def share(percent: int) -> dict[str, Any]:
    """Return what a Pod asks for that wants so much of cards, in Koordinator's words."""
    names = ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio")
    return {"amounts": dict.fromkeys(names, str(percent))}


def nvidia(count: int) -> dict[str, Any]:
    """Return the same in NVIDIA's."""
    return {"amounts": {"nvidia.com/gpu": str(count)}}


def mgpu(percent: int) -> dict[str, Any]:
    """Return what a Pod asks for that wants a part of a card, in mGPU's words."""
    memory = str(CARD_GIB * 1024 * percent // WHOLE)
    return {
        "amounts": {
            "vke.volcengine.com/mgpu-core": str(percent),
            "vke.volcengine.com/mgpu-memory": memory,
        },
        "annotations": {"vke.volcengine.com/mgpu-compute-policy": "native-burst-share"},
    }


def cpus(count: int) -> dict[str, Any]:
    """Return what a Pod asks for that wants CPUs of its own."""
    return {"amounts": {"cpu": str(count), "memory": "1Gi"}, "labels": _LABELS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """
    What fills a node, and who comes then.

    Attributes:
        low: what each Pod asks for that fills a node, in the order in which they come.
        high: what a Pod asks for that comes then, as `cards` of `percent` each and `cpus`.
        advertised: what the node says that it has, as its agent would write it.
    """

    low: Sequence[Mapping[str, Any]]
    high: Mapping[str, Any]
    gpus: int = 2
    cards: int = 0
    percent: int = WHOLE
    cpus: int = 0
    advertised: Mapping[str, str] = field(default_factory=dict)


SHAPES: Final[Mapping[str, Shape]] = {
    "a share": Shape(low=[share(50)] * 4, high=share(50), cards=1, percent=50),
    "a whole card": Shape(low=[nvidia(1)] * 2, high=nvidia(1), cards=1),
    "a whole card on halves": Shape(low=[share(50)] * 4, high=share(WHOLE), cards=1),
    "a whole node": Shape(low=[nvidia(4)], high=nvidia(4), cards=4, gpus=4),
    "a whole node on halves": Shape(low=[share(50)] * 8, high=share(4 * WHOLE), cards=4, gpus=4),
    "CPU sets": Shape(low=[cpus(4)] * 4, high=cpus(8), cpus=8),
    "mixed dialects": Shape(
        low=[nvidia(1)] * 2 + [mgpu(50)] * 4,
        high=nvidia(1),
        gpus=4,
        cards=1,
        advertised={
            "nvidia.com/gpu": "2",
            "vke.volcengine.com/mgpu-core": "200",
            "vke.volcengine.com/mgpu-memory": str(2 * CARD_GIB * 1024),
        },
    ),
}


def make_classes(plane: ControlPlane) -> None:
    """Let there be two priorities."""
    for name, value in ((LOW, 100), (HIGH, 9_000)):
        made = plane.api().create(
            CLASSES,
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            },
        )
        assert made.ok or made.status == 409, made.message


@dataclass(slots=True, kw_only=True)
class Agents:
    """The agents of some nodes, who say late that nothing is left of a Pod."""

    service: Service
    late_seconds: float
    tokens: dict[str, str] = field(default_factory=dict)

    def come(self, plane: ControlPlane, names: Iterable[str]) -> None:
        """Let each report for the first time."""
        for name in names:
            body = pod(f"agent-{name}", {}, nodeName=name, serviceAccountName=AGENT)
            made = plane.api().create(pods_in(OURS), body)
            assert made.ok, made.message
            token = self.tokens[name] = token_of(plane, AGENT, made.body)
            eventually(partial(self._confirm, token, ()))

    def confirm(self, ended: Mapping[str, tuple[str, float]]) -> None:
        """Say of Pods, by UID, with node and moment of their end, that nothing is left."""
        now = time.monotonic()
        for uid, (node, at) in ended.items():
            if now - at >= self.late_seconds:
                self._confirm(self.tokens[node], (uid,))

    def leave(self, plane: ControlPlane) -> None:
        """Let their Pods go."""
        remove_pods(plane, pods_in(OURS), [f"agent-{name}" for name in self.tokens])

    def _confirm(self, token: str, gone: Sequence[str]) -> bool:
        status, _ = self.service.call("/agents/v1/confirmations", token, {"gone": list(gone)})
        return status == 200


@dataclass(slots=True, kw_only=True)
class Played:
    """
    One cluster of full nodes, and the Pods that come then.

    Attributes:
        grace: seconds for which a Pod that was told to end goes on.
        waiting: Pods of the low priority that wait already for what comes free.
        coming: Pods of the high priority, all at once.
    """

    plane: ControlPlane
    where: str
    name: str
    shape: Shape
    nodes: int = 2
    grace: float = 0.0
    agents: Agents | None = None
    waiting: int = 0
    coming: int = 1
    _ending: dict[str, float] = field(default_factory=dict)
    _ended: dict[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the names of the nodes."""
        return [f"{self.name}-{number}" for number in range(self.nodes)]

    def run(self) -> tuple[int, int]:
        """Return how many Pods ended, and how many had to."""
        for name in self.names:
            self._add_node(name)
        if self.agents:
            self.agents.come(self.plane, self.names)
        low = self._fill()
        beside = [f"{self.name}-w{number}" for number in range(self.waiting)]
        for name in beside:
            self._ask(name, self.shape.low[0], LOW)
        if beside:
            eventually(lambda: all(map(self._is_refused, beside)))
        least = self._least(low)
        high = [f"{self.name}-h{number}" for number in range(self.coming)]
        known = {one["metadata"]["uid"]: one for one in self._pods()}
        for name in high:
            self._ask(name, self.shape.high, HIGH)
        self._until_bound(high, known)
        there = {one["metadata"]["uid"]: one for one in self._pods()}
        ended = [uid for uid in low if self._has_to_go(there.get(uid))]
        remove_pods(self.plane, self.where, [one["metadata"]["name"] for one in self._pods()])
        if self.agents:
            self.agents.leave(self.plane)
        for name in self.names:
            remove_node(self.plane, name)
        return len(ended), least

    def _add_node(self, name: str) -> None:
        add_gpu_node(self.plane, name, gpus=self.shape.gpus, cpus=CPUS)
        if self.shape.advertised:
            amounts = dict(self.shape.advertised)
            patch = {"status": {"capacity": amounts, "allocatable": amounts}}
            assert self.plane.api().patch(f"/api/v1/nodes/{name}/status", patch).ok

    def _fill(self) -> list[str]:
        """Fill every node; return the UIDs of its Pods."""
        uids = []
        for number, asked in enumerate(self.shape.low):
            names = [f"{node}-l{number}" for node in self.names]
            for node, name in zip(self.names, names, strict=True):
                uids.append(self._ask(name, asked, LOW, node=node))
            eventually(partial(self._all_bound, names))
        return uids

    def _ask(self, name: str, asked: Mapping[str, Any], priority: str, *, node: str = "") -> str:
        spec: dict[str, Any] = {
            "schedulerName": "tenure",
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": int(self.grace),
        }
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        made = self.plane.api().create(self.where, pod(name, **asked, **spec))
        assert made.ok, made.message
        return str(made.body["metadata"]["uid"])

    def _until_bound(self, names: Sequence[str], known: dict[str, dict[str, Any]]) -> None:
        """Play kubelet and agents until all of these Pods have a node; some were there before."""
        until = time.monotonic() + SETTLE_SECONDS
        while not self._all_bound(names):
            assert time.monotonic() < until, names
            now, pods = time.monotonic(), self._pods()
            there = {one["metadata"]["uid"]: one for one in pods}
            for uid in known.keys() - there.keys() - self._ended.keys():
                self._ended[uid] = (known[uid]["spec"].get("nodeName") or "", now)
            known.update(there)
            for one in pods:
                if one["metadata"].get("deletionTimestamp"):
                    since = self._ending.setdefault(one["metadata"]["uid"], now)
                    if now - since >= self.grace:
                        remove_pods(self.plane, self.where, [one["metadata"]["name"]])
            if self.agents:
                self.agents.confirm({uid: at for uid, at in self._ended.items() if at[0]})
            time.sleep(0.1)

    def _least(self, low: Sequence[str]) -> int:
        """Return the least number of Pods whose end makes room for all that come, by trying."""
        pods = [one for one in self._pods() if one["metadata"]["uid"] in low]
        held: dict[str, dict[str, dict[str, int]]] = {name: {} for name in self.names}
        for (uid, node, what), amount in held_by_pods(pods).items():
            kind, number, *of = what.split()
            if kind == "cpu" or of == ["core"]:
                held[node].setdefault(uid, {})[f"{kind} {number}"] = amount
        total = 0
        for _ in range(self.coming):
            sets = [(self._least_on(there), name) for name, there in held.items()]
            least, name = min(((len(gone), name) for gone, name in sets if gone is not None))
            gone = next(gone for gone, each in sets if each == name)
            assert gone is not None
            total += least
            there = held[name]
            freed = [what for uid in gone for what in there.pop(uid)]
            there[f"came-{total}"] = dict.fromkeys(freed, self.shape.percent)
        return total

    def _least_on(self, there: Mapping[str, Mapping[str, int]]) -> tuple[str, ...] | None:
        low = [uid for uid in there if not uid.startswith("came-")]
        for size in range(len(low) + 1):
            for gone in combinations(low, size):
                if self._fits([held for uid, held in there.items() if uid not in gone]):
                    return gone
        return None

    def _fits(self, held: Iterable[Mapping[str, int]]) -> bool:
        used: dict[str, int] = {}
        for each in held:
            for what, amount in each.items():
                used[what] = used.get(what, 0) + amount
        free = [WHOLE - used.get(f"gpu {minor}", 0) for minor in range(self.shape.gpus)]
        free_cpus = CPUS - sum(what.startswith("cpu ") for what in used)
        return (
            sum(each >= self.shape.percent for each in free) >= self.shape.cards
            and free_cpus >= self.shape.cpus
        )

    def _pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.api().get(self.where).body["items"]
        return found

    @staticmethod
    def _has_to_go(one: Mapping[str, Any] | None) -> bool:
        return one is None or bool(one["metadata"].get("deletionTimestamp"))

    def _all_bound(self, names: Sequence[str]) -> bool:
        bodies = [self.plane.api().get(f"{self.where}/{name}").body for name in names]
        return all(body["spec"].get("nodeName") for body in bodies)

    def _is_refused(self, name: str) -> bool:
        status = self.plane.api().get(f"{self.where}/{name}").body["status"]
        return any(one["type"] == "PodScheduled" for one in status.get("conditions") or ())


def know_kinds(plane: ControlPlane) -> None:
    """Let the API server know what describes nodes."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
