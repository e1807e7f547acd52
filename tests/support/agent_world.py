"""An agent that follows a service in memory and looks at a node, whose sources a test sets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.checkpoint import CheckpointError, DeviceCheckpoint
from agent.discover.host_files import HostFiles
from agent.discover.machine import Card, CardProcess, Place
from agent.https import Authority, Caller
from agent.kubelet.watch import PodsHere
from agent.plugin.files import SpecFolder
from agent.service.link import ServiceLink
from agent.witness.asking import AwayError, PodResources, Runtime
from agent.witness.confirmer import Confirmer, Gate, Quarantine, Sources
from agent.witness.said import RUNNING, Given, Inside, KubeletSaid, Listed
from certs.material import issue_authority
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.annotations.tenure import cards_in
from tests.support.agent_scene import Scene
from tests.support.certs import START

Json = dict[str, Any]
Act = Callable[[ServiceLink], Coroutine[Any, Any, None]]


class Linked:
    """A service, what it is asked by, and a link to it."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene()
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        self.connections: set[object] = set()
        (folder / "token").write_text("secret\n")
        authority = issue_authority("test", now=START, lifetime=timedelta(days=1))
        (folder / "ca.crt").write_bytes(authority.certificate)

    def run(self, act: Act) -> None:
        """Act with a link to a listener of the service."""

        @web.middleware
        async def note(request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401
            self.asked.append((request.path_qs, request.headers["Authorization"]))
            self.connections.add(request.transport)
            answer: web.StreamResponse = await handler(request)
            return answer

        app = self.scene.app()
        app.middlewares.append(note)
        self.run_with(app, act)

    def run_with(self, app: web.Application, act: Act) -> None:
        """Act with a link to a listener."""

        async def running() -> None:
            server = TestServer(app)
            await server.start_server()
            async with aiohttp.ClientSession() as session:
                await act(self.link(session, str(server.make_url("")).rstrip("/")))
            await server.close()

        asyncio.run(running())

    def link(self, session: aiohttp.ClientSession, url: str) -> ServiceLink:
        """Return a link to somewhere."""
        caller = Caller(
            session=session,
            url=url,
            authority=Authority(self.folder / "ca.crt"),
            token=self.folder / "token",
        )
        return ServiceLink(caller, clock=time.monotonic, draw=lambda: 0.0)


class Kubelet(PodResources):
    """Kubelet's answer, as it is given here."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.given: tuple[Given, ...] | None = ()
        self.claims: frozenset[tuple[str, str]] = frozenset()

    async def answer(self) -> KubeletSaid:
        """Return it, or be away."""
        if self.given is None:
            raise AwayError("away")
        return KubeletSaid(given=self.given, claims=self.claims)


class Containers(Runtime):
    """The runtime's containers, likewise."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.there: dict[Listed, Inside | None] = {}

    async def containers(self) -> tuple[tuple[Listed, ...], Mapping[str, Inside]]:
        """Return them."""
        inside = {one.container_id: made for one, made in self.there.items() if made is not None}
        return tuple(self.there), inside

    def run(self, pod: str, inside: Inside | None) -> None:
        """Let the container `main` of a Pod run; None = nobody is told what it was made with."""
        one = Listed(
            container_id=f"c-{pod}",
            state=RUNNING,
            pod_uid=f"pod-{pod}",
            namespace="ml",
            pod_name=pod,
            name="main",
        )
        self.there[one] = inside

    def end(self, pod: str) -> None:
        """Let it be gone."""
        self.there = {one: made for one, made in self.there.items() if one.pod_name != pod}


class Held:
    """The service's word, believed as it is."""

    def __init__(self, link: ServiceLink) -> None:
        self._link = link

    def devices_of(self, pod_uid: str, _: str) -> Sequence[ProvenDevice] | None:
        """Return the devices of all containers."""
        held = () if self._link.holdings is None else self._link.holdings.of_pod(pod_uid)
        return [each for one in held for part in one.containers for each in part.devices] or None

    def shown_to(self, pod_uid: str) -> Sequence[str]:
        """Return what all of its holdings show."""
        held = () if self._link.holdings is None else self._link.holdings.of_pod(pod_uid)
        return [each for one in held for each in cards_in(one.shown)]

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether there are any."""
        return self.devices_of(pod_uid, "") is not None


class AgentWorld:
    """Node `a` with two cards, what runs on it, and a link to the service."""

    def __init__(self, folder: Path) -> None:
        self.linked = Linked(folder)
        self.scene = self.linked.scene
        self.folder = folder
        self.kubelet, self.runtime = Kubelet(), Containers()
        self.listed: list[Json] = []
        self.kept: tuple[Any, ...] = ()
        self.fault: CheckpointError | None = None
        self.pids: tuple[int, ...] = ()
        self.driver_is_away = False
        self.off_the_bus: set[int] = set()
        (folder / "cdi").mkdir()
        self.specifications = SpecFolder(folder / "cdi")
        self.gate: Gate

    async def pods(self) -> Sequence[Json]:
        """Return what kubelet runs, as a PodSource."""
        return self.listed

    async def cards(self) -> tuple[Sequence[Card], bool]:
        """Return two cards, the first with the processes, as Discoveries."""
        cards = [
            Card(
                uuid=f"GPU-a-{number}",
                minor=number,
                memory_bytes=1,
                place=Place(bus_id=f"0000:0{number}:00.0"),
                processes=tuple(CardProcess(pid=pid) for pid in self.pids if not number),
            )
            for number in range(2)
            if not (self.driver_is_away or number in self.off_the_bus)
        ]
        return cards, len(cards) == 2

    def checkpoint(self) -> DeviceCheckpoint:
        """Return kubelet's file."""
        if self.fault is not None:
            raise self.fault
        return DeviceCheckpoint(entries=self.kept)

    def create(self, pod: str, **status: str) -> None:
        """Let kubelet have a Pod."""
        metadata = {"uid": f"pod-{pod}", "namespace": "ml", "name": pod}
        spec = {"containers": [{"name": "main"}]}
        self.listed.append({"metadata": metadata, "spec": spec, "status": status})

    def confirmer(self, link: ServiceLink, *, own_pod: str = "") -> Confirmer:
        """Return what looks and confirms, as after a start of the process."""
        pods = PodsHere(self)
        self.gate = Gate(Held(link), self.folder)
        sources = Sources(
            cards=self,
            checkpoint=self.checkpoint,
            checkpoint_path=self.folder / "token",
            kubelet=self.kubelet,
            runtime=self.runtime,
            pods=pods,
            host=HostFiles(root=self.folder),
            specifications=self.specifications,
            aside=Quarantine(self.folder / "aside"),
        )
        return Confirmer(link, sources, self.gate, lambda: 0.0, own_pod=own_pod)

    def run(self, act: Act) -> None:
        """Act with a link that follows the service."""

        async def following(link: ServiceLink) -> None:
            heard = asyncio.Event()
            link.changed.append(lambda: heard.set() if link.is_heard else None)
            running = asyncio.create_task(link.run())
            async with asyncio.timeout(60):
                await heard.wait()
                try:
                    await act(link)
                finally:
                    running.cancel()
                    with suppress(asyncio.CancelledError):
                        await running

        self.linked.run(following)
