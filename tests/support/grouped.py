"""A live scheduler without a process, and groups and gangs that come to it."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, Final

from ledger.domain.log.events import (
    LedgerEvent,
    PlanDropped,
    PodObserved,
    PodReleased,
    PodReserved,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from scheduler.service.answering import Extender
from scheduler.service.assembly import giving_way
from scheduler.service.binding import Binder
from scheduler.service.books import LiveBooks
from scheduler.service.gangs import Gangs, Lifting
from scheduler.service.holds import Holds
from scheduler.service.ports import BindCall, Chosen, NotChosen
from scheduler.service.refusing import AGAIN_SECONDS, Refusing
from scheduler.service.telling import Telling
from tests.support import fake_api
from tests.support.binding import Tasks, Unsigned, always
from tests.support.extending import no_history, preempting
from tests.support.fake_api import ANSWERED, ApiClient, ApiServer
from tests.support.live import WORDS, Live, MemoryLedger
from tests.support.objects import Json, container, device, gpu_device, node, pod
from tests.support.stores import share
from tests.support.topologies import EIGHT_GPU_NVLINK

GROUP: Final = "gputopology.scheduling.koordinator.sh"
GANG: Final = "gang.scheduling.koordinator.sh"


class Scene:
    """Nodes of eight cards with the proposal's links, and all that answers without waiting."""

    def __init__(
        self,
        *names: str,
        ledger: MemoryLedger | None = None,
        gpus: int = 8,
        all_or_nothing: bool = False,
        share_visible: bool = False,
        slot_mode: str = "env",
    ) -> None:
        self.live = Live(
            ledger,
            all_or_nothing=all_or_nothing,
            share_visible=share_visible,
            slot_mode=slot_mode,
        )
        self.names = names or ("a",)
        for name in self.names:
            self.add_node(name, gpus)
        self.live.settle()
        view, begun = self.live.view, self.live.ledger.beginning()
        self.groups = self.live.groups
        self.holds = Holds(
            view.engine, self.live.clock.monotonic, view.directory.number, self.live.wakeups
        )
        lifted = giving_way(self.holds, self.groups)
        self.books = LiveBooks(view, self.live.clock, WORDS, begun, self.groups, lifted=lifted)
        self.server, self.tasks = ApiServer(), Tasks()
        self.fates: deque[str | int] = deque()
        api = ApiClient(
            self.server,
            self.live.clock.sleep,
            fate=lambda _: self.fates.popleft() if self.fates else ANSWERED,
        )
        lifting = Lifting(self.groups)
        self.binder = Binder(
            recorder=self.live.ledger,
            api=api,
            clock=self.live.clock,
            books=self.books,
            proofs=Unsigned(),
            telling=Telling(api=api, clock=self.live.clock, reporter="scheduler/test"),
            actor="scheduler/test",
            start=self.tasks.start,
            wakeups=self.live.wakeups,
            ready=lifting.ready,
            is_gone=always,
            is_awaited=self.groups.starts.is_awaited,
        )
        self.refusing = Refusing(
            view, self.books, self.binder, self.groups, told=no_history, why_not=str
        )
        self.gangs = Gangs(
            view, self.binder, self.groups, lifting, refusals=self.refusing, why_not=str
        )
        self.preempting = preempting(view, self.holds, self.groups, self.live.clock)
        self.extender = Extender(
            view,
            self.binder,
            why_not=str,
            groups=self.groups,
            holds=self.holds,
            refusals=self.refusing,
            preempting=self.preempting,
        )
        self.server.watchers.append(self._changed)
        self.pods: dict[str, dict[str, Any]] = {}

    def add_node(self, name: str, gpus: int, closed: int = -1) -> None:
        """Let a node be there, or be another than it was; `closed`: the minor of a sick card."""
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        amounts["koordinator.sh/gpu"] = str(gpus * 100)
        self.live.tell("nodes", node(name, allocatable=amounts), uid=f"uid-{name}")
        cards = [
            gpu_device(minor, id=f"GPU-{name}-{minor}", health=minor != closed)
            for minor in range(gpus)
        ]
        rows = [row[:gpus] for row in EIGHT_GPU_NVLINK.rows[:gpus]]
        links = {"gpu": [{"name": "bandwidth", "topology": json.dumps(rows)}]}
        self.live.tell("devices", device(*cards, name=name, topologies=links), uid=f"d-{name}")

    def create(self, name: str, gpus: int = 2, **more: Json) -> None:
        """Let a Pod be there, and every sink be told."""
        limits = {"koordinator.sh/gpu": gpus * 100}
        made = pod(container(limits=limits), name=name, uid=f"pod-{name}", **more)
        self.tell({**made, "status": {"phase": "Pending"}})

    def tell(self, value: dict[str, Any]) -> None:
        """Tell of a Pod that came or changed."""
        self.server.put(fake_api.path_of(value), value)

    def delete(self, name: str) -> None:
        """Let a Pod be gone, and do all that this began."""

        async def deleting() -> None:
            self.server.delete(fake_api.path_of(self.pods[name]))
            await self.tasks.all_done()

        asyncio.run(deleting())

    def _changed(self, kind: str, value: dict[str, Any]) -> None:
        """Take what a watch tells."""
        metadata = value["metadata"]
        for sink in (self.live.view.pods, self.holds, self.groups.members, self.refusing):
            if kind == "DELETED":
                sink.drop(metadata["uid"])
            else:
                sink.put(metadata["uid"], value)
        if kind == "DELETED":
            del self.pods[metadata["name"]]
        else:
            self.pods[metadata["name"]] = value

    def job(self, count: int, gpus: int = 2, name: str = "job", replica: int = 0) -> None:
        """Create the Pods of a topology group."""
        labels = {f"{GROUP}/name": name, f"{GROUP}/replica": str(replica or count)}
        for number in range(count):
            self.create(f"{name}-{number}", gpus, labels=labels)

    def gang(self, count: int, least: int, gpus: int = 2, name: str = "gang", **spec: Json) -> None:
        """Create Pods of a gang that waits for ten seconds."""
        about = {"name": name, "min-available": str(least), "waiting-time": "10s"}
        annotations = {f"{GANG}/{key}": value for key, value in about.items()}
        for number in range(count):
            self.create(f"{name}-{number}", gpus, annotations=annotations, **spec)

    def bind(self, name: str, where: str) -> str:
        """Bind a Pod, and do all that this began."""
        body = {"PodNamespace": "ml", "PodName": name, "PodUID": f"pod-{name}", "Node": where}

        async def binding() -> str:
            answer = await self.extender.bind(json.dumps(body).encode())
            await self.tasks.all_done()
            return str(json.loads(answer)["Error"])

        return asyncio.run(binding())

    def settle(self, seconds: float = 1.0) -> None:
        """Let time pass, and do what is due."""
        self.live.clock.now += seconds

        async def settling() -> None:
            await self.gangs.settle()
            await self.tasks.all_done()

        asyncio.run(settling())

    def explain(self) -> list[RequestRefused]:
        """Record why Pods wait, and return all that is recorded of it."""
        asyncio.run(self.refusing.settle())
        self.live.clock.now += AGAIN_SECONDS
        return self.said(RequestRefused)

    def filter(self, name: str, *names: str) -> Json:
        """Ask about a Pod, on all nodes or on these."""
        body = {"Pod": self.pods[name], "NodeNames": list(names or self.names)}
        return json.loads(self.extender.filter(json.dumps(body).encode()))

    def passing(self, name: str, *names: str) -> list[str]:
        """Return the nodes that a Pod passes."""
        return list(self.filter(name, *names)["NodeNames"])

    def choose(self, name: str, where: str, attempt: int = 1) -> Chosen | NotChosen:
        """Choose for a Pod that kube-scheduler wants to bind."""
        call = BindCall(namespace="ml", pod_name=name, pod_uid=f"pod-{name}", node_name=where)
        return self.books.choose(call, attempt, str(self.server.version), None)

    def chosen(self, name: str, where: str, attempt: int = 1) -> Chosen:
        """Choose for a Pod that gets something."""
        found = self.choose(name, where, attempt)
        assert isinstance(found, Chosen), found
        return found

    def reserve(self, name: str, where: str, attempt: int = 1) -> PodReserved:
        """Reserve for a Pod, and let that be durable."""
        chosen = self.chosen(name, where, attempt)
        self.record(*chosen.events)
        return chosen.reservation

    def record(self, *new: NewEvent) -> None:
        """Let events be durable."""
        first = len(self.live.ledger.log) + 1
        for each in new:
            assert each.idempotency_key not in self.live.ledger.keys, each.idempotency_key
            self.live.ledger.keys.append(each.idempotency_key)
        self.live.ledger.log += [each.event for each in new]
        self.books.recorded(new, first)

    def observe(self, name: str, minor: int, group: str = "gang/ml/gang") -> PodObserved:
        """Let a Pod run on the first node that somebody else gave a card there."""
        where = self.names[0]
        about = {"name": "gang", "min-available": "2"}
        annotations = {f"{GANG}/{key}": value for key, value in about.items()}
        self.create(name, 1, annotations=annotations, nodeName=where)
        event = PodObserved(
            pod_uid=f"pod-{name}",
            attempt=1,
            namespace="ml",
            pod_name=name,
            node_uid=f"uid-{where}",
            node_name=where,
            source="device-allocated",
            shares=(share(minor, 100, node=where),),
            group=group,
        )
        self.live.ledger.log.append(event)
        self.books.take(len(self.live.ledger.log), event)
        return event

    def end(self, event: PodReserved | PodObserved, reason: str = "deleted") -> None:
        """Let a holding end."""
        ended = PodReleased(
            pod_uid=event.pod_uid, attempt=event.attempt, node_uid=event.node_uid, reason=reason
        )
        self.live.ledger.log.append(ended)
        self.books.take(len(self.live.ledger.log), ended)

    def said(self, kind: type[LedgerEvent]) -> list[Any]:
        """Return the recorded events of a type."""
        return [event for event in self.live.ledger.log if type(event) is kind]

    def tell_drops(self) -> list[PlanDropped]:
        """Record the ends of plans that are due."""
        drops = self.groups.plans.begin_drops()
        self.record(*drops)
        return [each.event for each in drops if isinstance(each.event, PlanDropped)]


def cards(event: PodReserved) -> list[int]:
    """Return the minors of what was reserved."""
    return [share.minor for share in event.shares]
