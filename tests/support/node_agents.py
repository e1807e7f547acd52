"""
The nodes of a simulated cluster: kubelets that start and stop containers, and agents that say so.

What runs on a machine is one thing, what the API says of it another: a Pod's object may be gone
while its containers still end. An agent tells of the machine, or is silent, or tells lies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ledger.domain.annotations.proof import BoundContainer, ProvenContainer, containers_of
from ledger.domain.errors import LedgerError
from ledger.domain.log.state import GRANTED
from scheduler.service import agents
from scheduler.service.agents import Given
from scheduler.service.node_log import TooOldError
from tests.support import fake_api

if TYPE_CHECKING:
    from tests.support.two_services import Service, World

Json = dict[str, Any]
STOP_SECONDS = (0.0, 0.5, 5.0, 20.0)
SILENT_SECONDS = 300.0
ENDED = ("Failed", "Succeeded")


class Machine:
    """
    One Node's machine.

    Attributes:
        running: UID of a Pod -> the cards that its containers are using, with their percent.
        is_known: the ledger knows that there is an agent; the node takes no Pods before.
    """

    def __init__(self, world: World, name: str, cards_of: Callable[[Json], list[Any]]) -> None:
        self.world = world
        self.name = name
        self.running: dict[str, list[tuple[str, int]]] = {}
        self.is_known = False
        self._due: dict[str, Json] = {}
        self._cards_of = cards_of
        self._after = -1
        self._asked: object = None

    def reboot(self) -> None:
        """Let nothing run any more: the Node came again."""
        self.running = {}  # what ends late is another machine's
        self._due.clear()
        self.is_known = False
        self._after = -1

    def told(self, kind: str, pod: Json) -> None:
        """Let kubelet do what a Pod's object says."""
        uid, faults = pod["metadata"]["uid"], self.world.faults
        if kind == "DELETED" or pod["status"]["phase"] in ENDED:
            self._due.pop(uid, None)
            is_late = kind == "DELETED" and not faults.calm
            seconds = faults.rng.choice(STOP_SECONDS) if is_late else 0.0
            running = self.running
            self.world.later(seconds, lambda: running.pop(uid, None))
        elif uid not in self.running:
            self._due[uid] = pod
            self._start()

    def _start(self) -> None:
        due, self._due = (self._due, {}) if self.is_known else ({}, self._due)
        for uid, pod in due.items():
            self.running[uid] = self._cards_of(pod)
            self.world.server.change(fake_api.path_of(pod), _runs)
        self.check()

    def check(self) -> None:
        """Note every card that running containers use more of than there is."""
        used: Counter[str] = Counter()
        for cards in self.running.values():
            for card, percent in cards:
                used[card] += percent
        over = {card: percent for card, percent in used.items() if percent > 100}
        if over:
            self.world.broken.append(f"two run on one card of {self.name}: {over}")

    async def report(self) -> None:
        """Ask and confirm for as long as the world is, as an agent does."""
        from tests.support.two_services import CrashedError

        faults = self.world.faults
        while True:
            await asyncio.sleep(1.0)
            if faults.hits("agent silent"):
                await asyncio.sleep(SILENT_SECONDS)
            service = self.world.leader
            if service is not None and service.alive and service.ready:
                with suppress(LedgerError, CrashedError):
                    await self._report(service)

    async def _report(self, service: Service) -> None:
        uid = service.view.uid(self.name)
        if uid is None or uid != self.world.uids[self.name][-1]:
            return
        said = service.agents
        said.heard(self.name, uid)
        state = service.view.recorded(uid)
        self.is_known = self.is_known or (state is not None and state.by_agent)
        self._start()
        if self._asked is service:
            try:
                self._after, _ = said.log.changes(uid, self._after)
            except TooOldError:
                self._asked = None
        if self._asked is not service:
            self._asked = service
        self._after, held = said.log.holdings(uid)
        if self.world.faults.hits("agent lies"):
            await self._lie(service, uid)
        there = {pod["metadata"]["uid"]: pod for pod in self.world.pods()}
        gone = []
        for holding in held:
            pod = there.get(holding.pod_uid)
            is_over = pod is None or pod["status"]["phase"] in ENDED
            if holding.pod_uid not in self.running and is_over:
                gone.append(holding.pod_uid)
            elif holding.pod_uid in self.running and holding.kind == GRANTED:
                given = containers_of(holding)
                answer, _ = await said.assigned(
                    uid, _given(holding.pod_uid, holding.attempt, given)
                )
                expected = {agents.ASSIGNED, agents.LATER, agents.UNKNOWN, agents.AMISS}
                assert answer in expected, answer
        said.gone(uid, gone)

    async def _lie(self, service: Service, own_uid: str) -> None:
        """Say of another node's Pods that they are gone, and of own ones that they got others."""
        others = [uids[-1] for name, uids in self.world.uids.items() if name != self.name]
        for uid in others:
            _, held = service.agents.log.holdings(uid)
            answers = service.agents.gone(own_uid, [each.pod_uid for each in held])
            mine = {each.pod_uid for each in service.agents.log.holdings(own_uid)[1]}
            assert all(
                answer == agents.NOTHING for pod, answer in answers.items() if pod not in mine
            )
        for holding in service.agents.log.holdings(own_uid)[1]:
            if holding.kind == GRANTED and holding.shares:
                answer, _ = await service.agents.assigned(
                    own_uid, _given(holding.pod_uid, holding.attempt, ())
                )
                assert answer in {agents.DIFFERENT, agents.UNKNOWN}, answer


def _given(pod_uid: str, attempt: int, containers: tuple[ProvenContainer, ...]) -> Given:
    has = (
        BoundContainer(index=one.index, devices=one.devices, cpus=one.cpus) for one in containers
    )
    return Given(pod_uid=pod_uid, attempt=attempt, containers=tuple(has))


def _runs(value: Json) -> None:
    value["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
