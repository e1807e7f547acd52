"""A live scheduler over an API server in memory, and a clock that a test moves."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from certs.ports import ApiError
from ledger.domain.annotations.signed import Checker
from ledger.domain.errors import LedgerError
from ledger.domain.log.events import DriftFound, DriftResolved, LedgerEvent
from ledger.signing import PrivateKey, published, trusting
from ledger.store.open import Ledger
from ledger.store.writing.commands import Command, Outcome, record
from scheduler.decide.settings import SchedulingSettings
from scheduler.service.assembly import Assembly, assemble
from scheduler.service.beginning import Beginning, begin
from scheduler.service.freshness import Freshness
from scheduler.service.ports import BindCall
from scheduler.service.proofs import Signing
from scheduler.service.world import Ports
from tenure.sources.yaml_text import yaml_documents
from tests.support import fake_api, objects
from tests.support.binding import Tasks
from tests.support.fake_api import ApiClient, ApiServer, Json
from tests.support.live import WORDS, MemoryLedger, StillClock, leads
from tests.support.stores import ORIGIN, start

CLUSTER: Final = ORIGIN
NAMESPACE: Final = "/api/v1/namespaces/ml"
PROOF_KEY: Final = PrivateKey.new("proofs")
LEDGER_KEY: Final = PrivateKey.new("ledger")
SINKS: Final = {
    "Pod": "pods",
    "Node": "nodes",
    "Device": "devices",
    "NodeResourceTopology": "noderesourcetopologies",
    "Namespace": "namespaces",
    "ConfigMap": "templates",
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
}


class StoreLedger:
    """A real writer on a real database, without threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._number = 0
        self.take_over()

    def take_over(self) -> None:
        """Let another process write from now on."""
        self._number += 1
        self._writer = start(self._ledger, f"scheduler/{self._number}")

    @property
    def epoch(self) -> int:
        """The epoch that is written in."""
        return self._writer.head.epoch

    @property
    def position(self) -> int:
        """The last position."""
        return self._writer.head.position

    async def record(self, command: Command) -> Outcome:
        """Record a command whole or not at all."""
        await asyncio.sleep(0)
        [outcome] = record(self._writer, [command])
        return outcome

    def beginning(self) -> Beginning:
        """Return what a process that starts now is told."""
        return begin(self._ledger)

    @property
    def log(self) -> list[LedgerEvent]:
        """What was recorded."""
        return [one.event for one in self._ledger.read_events()]


class Listed:
    """A collection that is always fresh."""

    synced = True

    def staleness(self) -> float | None:
        """Return the seconds since anything was told."""
        return 0.0


class Cluster:
    """
    An API server with nodes, which outlives the processes that follow it.

    Attributes:
        live: the process that follows now.
        fates: what becomes of its next calls.
        lags: watch events wait until somebody delivers them.
    """

    def __init__(
        self,
        *,
        nodes: int = 2,
        cards: int = 2,
        ledger: MemoryLedger | StoreLedger | None = None,
        drivers: tuple[str, ...] = (),
    ) -> None:
        self.drivers = drivers
        self.server = ApiServer()
        self.ledger = ledger or MemoryLedger()
        self.clock = StillClock()
        self.fates: deque[str | int] = deque()
        self.skew = 0.0
        self.lags = False
        self.waiting: list[tuple[str, Json]] = []
        self.refused: Callable[[str, str], bool] = lambda _verb, _path: False
        self.server.watchers.append(self._changed)
        self.names = [f"n{number}" for number in range(nodes)]
        self.cards = cards
        self._numbers = itertools.count()
        self.server.put(
            NAMESPACE, {"kind": "Namespace", "metadata": {"name": "ml", "uid": "ml", "labels": {}}}
        )
        for name in self.names:
            self.put_node(name)
        self.start()

    # --- the cluster --------------------------------------------------------------------------

    def put_node(self, name: str) -> None:
        """Let a node come with its cards."""
        number = next(self._numbers)
        node = objects.node(name, allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
        node["kind"] = "Node"
        node["metadata"]["uid"] = f"uid-{name}-{number}"
        self.put_device(name, [f"GPU-{name}-{minor}" for minor in range(self.cards)])
        self.server.put(f"/api/v1/nodes/{name}", node)

    def put_device(self, name: str, ids: list[str]) -> None:
        """Let a node's Device object list these cards."""
        device = objects.device(
            *(objects.gpu_device(minor, id=each) for minor, each in enumerate(ids)), name=name
        )
        device["kind"] = "Device"
        device["metadata"]["uid"] = f"device-{name}"
        self.server.put(f"/devices/{name}", device)

    def put_pod(self, name: str, percent: int = 50, **more: Any) -> Json:  # noqa: ANN401
        """Create a Pod of our profile that asks for a part of a card."""
        limits = {"koordinator.sh/gpu": str(percent)} if percent else {"cpu": "1"}
        pod = objects.pod(objects.container(limits=limits), name=name, uid=f"uid-{name}")
        pod["metadata"]["annotations"] = {"tenure.sh/admitted": "true"}
        pod["spec"] |= {"schedulerName": "tenure", **more}
        pod["status"] = {"phase": "Running" if more.get("nodeName") else "Pending"}
        return self.server.put(fake_api.path_of(pod), pod)

    def change(self, name: str, change: Callable[[Json], None]) -> None:
        """Change a Pod as somebody else would."""
        self.server.change(f"{NAMESPACE}/pods/{name}", change)

    def annotate(self, name: str, **words: str | None) -> None:
        """Write annotations of a Pod, or take them off; `_` stands for what keys can't have."""

        def change(pod: Json) -> None:
            for key, text in words.items():
                pod["metadata"]["annotations"].pop(key, None)
                if text is not None:
                    pod["metadata"]["annotations"][key] = text

        self.change(name, change)

    def bound_pods(self) -> Cluster:
        """Bind a Pod of ours on each of the first two nodes."""
        for name, node in zip(("p", "q"), self.names, strict=False):
            self.put_pod(name)
            self.bind(name, node)
        self.wait(5)
        return self

    def words(self, name: str) -> dict[str, str]:
        """Return the annotations of a Pod."""
        pod = self.server.read(f"{NAMESPACE}/pods/{name}")
        assert pod is not None
        found: dict[str, str] = pod["metadata"]["annotations"]
        return found

    def delete_pod(self, name: str) -> None:
        """Let a Pod's object go."""
        self.server.delete(f"{NAMESPACE}/pods/{name}")

    def told(self, reason: str) -> list[tuple[str, str]]:
        """Return what people read for this reason: of what, and in which words."""
        return [
            (value["regarding"]["name"], value["note"])
            for path, value in self.server.objects.items()
            if "/events/" in path and value["reason"] == reason
        ]

    # --- the process --------------------------------------------------------------------------

    def start(self) -> None:
        """Let a process start that knows what the ledger says, and lists what there is."""
        self.waiting.clear()
        self.tasks = Tasks()
        check: Checker = trusting(published([PROOF_KEY.public]))
        freshness = Freshness()
        freshness.settled, freshness.followed = True, {"all": Listed()}

        def fate(verb: str) -> str | int:
            path = self.api.calls[-1][1]
            if self.refused(verb, path):
                return 403
            return self.fates.popleft() if self.fates else fake_api.ANSWERED

        self.api = ApiClient(self.server, _at_once, fate=fate)
        settings = SchedulingSettings()
        ports = Ports(
            origin=CLUSTER,
            recorder=self.ledger,
            api=self.api,
            clock=self.clock,
            freshness=freshness,
            leading=leads(self.ledger.epoch + 1, freshness.why_not),
            words=replace(WORDS, policy=settings.node_policy),
            proofs=lambda _: Signing(
                cluster=CLUSTER,
                incarnation=lambda: "first",
                proof_key=PROOF_KEY,
                ledger_key=LEDGER_KEY,
                machine_of=lambda _: ("", ""),
            ),
            told=_nothing_told,
            documents_in=yaml_documents,
            start=self.tasks.start,
            actor="scheduler/test",
            trusted=check,
            skew=lambda: self.skew,
            drivers=self.drivers,
        )
        self.ledger.take_over()
        self.live: Assembly = assemble(settings, self.ledger.beginning(), ports)
        self.sinks = self.live.sinks()
        for value in list(self.server.objects.values()):
            self._tell("ADDED", value)
        self.settle()

    def relist(self) -> None:
        """Let the process list all that there is, as after a watch that broke."""
        self.waiting.clear()
        for value in list(self.server.objects.values()):
            self._tell("MODIFIED", value)
        there = {value["metadata"].get("uid") for value in self.server.objects.values()}
        for uid in self.live.view.pods.seen.keys() - there:
            self.sinks["pods"].drop(uid)

    def _changed(self, kind: str, value: Json) -> None:
        if self.lags:
            self.waiting.append((kind, value))
        else:
            self._tell(kind, value)

    def deliver(self) -> None:
        """Let the watch tell of what it kept."""
        waiting, self.waiting = self.waiting, []
        for kind, value in waiting:
            self._tell(kind, value)

    def _tell(self, kind: str, value: Json) -> None:
        name = SINKS.get(value.get("kind", ""))
        if name is None or not hasattr(self, "sinks"):
            return
        uid = value["metadata"]["uid"]
        if kind == "DELETED":
            self.sinks[name].drop(uid)
        else:
            self.sinks[name].put(uid, value)

    def settle(self) -> None:
        """Do once what the process does all the time; what is away is away."""

        async def settling() -> None:
            live = self.live
            for act in (
                live.templates.settle,
                live.inventory.settle,
                live.guard.gate.settle,
                live.releasing.settle,
                live.announcing.tell,
                live.reconciling.settle,
                live.telling.send,
            ):
                try:
                    await act()
                except (ApiError, LedgerError):
                    continue
            await self.tasks.all_done()

        asyncio.run(settling())

    def wait(self, seconds: float, *, step: float = 2.0) -> None:
        """Let time pass in the process."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += step
            self.settle()

    def bind(self, name: str, node: str) -> None:
        """Let kube-scheduler ask about a Pod and have it bound."""
        pod = self.server.read(f"{NAMESPACE}/pods/{name}")
        assert pod is not None
        self.live.view.requests.read(pod)
        call = BindCall(namespace="ml", pod_name=name, pod_uid=f"uid-{name}", node_name=node)

        async def binding() -> str:
            answer = await self.live.binder.bind(call)
            await self.tasks.all_done()
            return answer

        assert asyncio.run(binding()) == ""

    # --- the ledger ---------------------------------------------------------------------------

    @property
    def log(self) -> list[tuple[str, str]]:
        """What was recorded of drift, in order: its kind where it was found, else empty; its id."""
        found = []
        for event in self.ledger.log:
            if isinstance(event, DriftFound):
                found.append((event.kind, event.drift_id))
            elif isinstance(event, DriftResolved):
                found.append(("", event.drift_id))
        return found

    @property
    def kinds(self) -> list[str]:
        """The kinds that were found, in order."""
        return [kind for kind, _ in self.log if kind]

    @property
    def open(self) -> set[str]:
        """The ids of what is open by the ledger."""
        there: set[str] = set()
        for kind, drift_id in self.log:
            if kind:
                assert drift_id not in there, f"found twice: {drift_id}"
                there.add(drift_id)
            else:
                assert drift_id in there, f"resolved, and not open: {drift_id}"
                there.remove(drift_id)
        return there


async def _at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


async def _nothing_told(_uids: Any) -> dict[str, Any]:  # noqa: ANN401
    return {}
