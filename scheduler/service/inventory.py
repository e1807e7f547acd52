"""Records what nodes are, and only then lets the view decide by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from msgspec import structs

from ledger.domain.errors import InputError, LedgerError
from ledger.domain.log import events as log
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_node import recorded_node
from ledger.domain.log.state import Holding
from ledger.domain.nodes import NodeFacts
from ledger.store.writing.commands import Command, Recorded
from scheduler.record import events
from scheduler.service.beginning import Beginning, Said, as_told
from scheduler.service.ports import Clock, Recorder
from scheduler.service.recording import gravest
from scheduler.service.view import UNREADABLE, UNRECORDED, ClusterView

ACTOR: Final = "scheduler"
DELETED: Final = "deleted"
TOGETHER: Final = 200
"""Nodes that are recorded at once; the writer takes on about a thousand commands."""

_log: Final = logging.getLogger("tenure.scheduler.inventory")


class Inventory:
    """
    Records every node of the API, and puts it into the view.

    Rule: design section 4, "Events say what was decided on". A node is recorded where it differs
    from its last record, and the view decides by it once that is durable. One that can't be read or
    recorded takes nothing, with a reason of its own; the others go on.

    Nodes that are as recorded are put at once, as are the holders of nodes that are gone. Until
    then nothing is decided. A standby writes nothing: it puts the nodes that are as recorded
    (`stand_by`, `follow`), and leaves the others until it takes over.

    Args:
        synced: every list that describes nodes was read once: before that a node may look as if it
            had no devices.
        reported: UIDs of nodes whose agent has reported since this process began: their next
            inventory says so, and so do all later ones.

    Attributes:
        settled: all nodes that the first lists had were dealt with.
        faults: name of a node -> why it can't be read or recorded, in words.
        woken: set once a node changed; the loop of `settle` waits for it.
    """

    def __init__(
        self,
        view: ClusterView,
        recorder: Recorder,
        clock: Clock,
        begun: Beginning,
        *,
        synced: Callable[[], bool],
        reported: AbstractSet[str],
    ) -> None:
        self._view = view
        self._recorder = recorder
        self._clock = clock
        self.synced = synced
        self._reported = reported
        self._said: dict[str, Said] = dict(begun.said)
        self._live: dict[str, str] = {
            uid: node.name for uid, node in begun.state.nodes.items() if not node.lost
        }
        self._number = 0
        self._begun = False
        self._left: dict[str, None] = {}  # names of nodes of which something is to be recorded
        self.settled = False
        self.faults: dict[str, str] = {}
        self.woken = asyncio.Event()
        view.wakeups.node_changed.subscribe(self.wake)
        view.wakeups.event_folded.subscribe(self._take_event)

    def wake(self, _name: str = "") -> None:
        """Let `settle` be called soon."""
        self.woken.set()

    async def settle(self) -> None:
        """
        Record nodes that changed, or failed before.

        Raises LedgerError: call it again, unless fenced.
        """
        if not self.synced():
            return
        if not self._begun:
            self.stand_by()
        view = self._view
        view.nodes.note((*self.faults, *self._left))
        self._left.clear()
        names = view.nodes.take_changed()
        try:
            await self._settle(names)
        except LedgerError:
            view.nodes.note(names)
            raise

    def stand_by(self) -> None:
        """Decide by every node that changed and is as the ledger says; record nothing."""
        if not self.synced():
            return
        view = self._view
        names = view.nodes.take_changed()
        facts = self._read(names)
        recorded: list[NodeFacts] = []
        for name in _oldest_first(facts):
            if self._is_recorded(facts[name]):
                recorded.append(self._shared(facts[name]))
            else:
                self._left[name] = None
        view.put_nodes(recorded)
        if not self._begun:
            self._begun = True
            for held in view.unlaid():
                self._know(held)
        for name in names:
            if name in facts or name in self.faults:
                continue
            uid = view.uid(name)
            if uid is None:
                continue
            if self._is_lost(uid):
                view.drop_node(uid)
            else:
                self._left[name] = None

    def follow(self, event: log.LedgerEvent) -> None:
        """Take what another replica recorded of a node, once the view has it."""
        match event:
            case log.NodeInventoried():
                self._live[event.node_uid] = event.node_name
            case log.NodeDescribed():
                pass
            case log.NodeLost():
                self._live.pop(event.node_uid, None)
            case log.PodReserved() | log.PodObserved():
                self._know(event.node_uid)
            case _:
                return
        if event.node_name in self._left:
            del self._left[event.node_name]
            self._view.nodes.note((event.node_name,))

    def _know(self, uid: str) -> None:
        """Let a node that the API has not told of here count as gone: it has holders."""
        state = self._view.recorded(uid)
        if self._begun and state is not None and (state.holdings or state.claims):
            self._view.put_gone(as_told(state, self._said.get(uid, Said())))

    def _is_lost(self, uid: str) -> bool:
        state = self._view.recorded(uid)
        return state is None or state.lost

    def _is_recorded(self, facts: NodeFacts) -> bool:
        before = self._view.uid(facts.name)
        if before not in (None, facts.uid) and not self._is_lost(before):
            return False
        return not self._news(facts) and self._is_lost(facts.uid) == facts.lost

    async def _settle(self, names: list[str]) -> None:
        view = self._view
        if not self.settled:
            there = view.nodes.uids()
            for uid, name in list(self._live.items()):
                if uid not in there:
                    await self._lose(uid, name, DELETED)
        facts = self._read(names)
        failures: list[BaseException] = []
        order = _oldest_first(facts)
        for start in range(0, len(order), TOGETHER):
            part = order[start : start + TOGETHER]
            outcomes = await asyncio.gather(
                *(self._put(facts[name]) for name in part), return_exceptions=True
            )
            failures += [one for one in outcomes if one is not None]
            if not all(isinstance(one, LedgerError) for one in failures):
                break
        if failures:
            raise gravest(failures)
        for name in names:
            if name not in facts and name not in self.faults:
                await self._gone(name)
        self.settled = True

    def _read(self, names: list[str]) -> dict[str, NodeFacts]:
        read: dict[str, NodeFacts] = {}
        for name in names:
            try:
                facts = self._view.read(name)
            except InputError as error:
                self._fault(name, UNREADABLE, str(error))
                continue
            if self.faults.pop(name, None) is not None:
                self._view.wakeups.node_fault_changed.publish(name)
            if facts is not None:
                read[name] = facts
            elif self._view.uid(name) is None:
                self._view.forget_fault(name)
        return read

    async def _gone(self, name: str) -> bool:
        """Record that a Node was deleted, and let it go; tell whether it is gone."""
        uid = self._view.uid(name)
        if uid is None:
            return True
        if not await self._lose(uid, name, DELETED):
            return False
        self._view.drop_node(uid)
        return True

    async def _put(self, facts: NodeFacts) -> None:
        before = self._view.uid(facts.name)
        if before != facts.uid and not await self._gone(facts.name):
            return
        new = [self._ours(one, verb, facts.uid) for verb, one in self._news(facts).items()]
        if new and not await self._record(facts.name, new):
            return
        if facts.lost and not await self._lose(facts.uid, facts.name, events.OUT_OF_SERVICE):
            return
        self._view.put_node(facts)
        if new and self.settled and self._view.pods.waiting():
            # kube-scheduler may have asked between the change and its record, and waits since
            self._view.wakeups.room_freed.publish(facts.name)

    def _shared(self, facts: NodeFacts) -> NodeFacts:
        """Return a node that is as recorded, with what of it is in memory already."""
        said = self._said[facts.uid].inventory
        if said is None:
            return facts
        labels = said.labels if said.labels == facts.labels else facts.labels
        if said.devices is facts.devices and labels is facts.labels:
            return facts
        return replace(facts, devices=said.devices, labels=labels)

    def _news(self, facts: NodeFacts) -> dict[str, NewEvent]:
        """Return what the ledger was not told of a node, by what it tells."""
        said = self._said.get(facts.uid, Said())
        state = self._view.recorded(facts.uid)
        back = state is not None and state.lost and not facts.lost
        new = {}
        at_us = self._clock.wall_us()
        inventory = events.inventoried(facts, at_us)
        had_agent = said.inventory is not None and said.inventory.by_agent
        if had_agent or facts.uid in self._reported:
            inventory = events.by_agent(inventory)
        if back or inventory.event != said.inventory:
            new["inventory"] = inventory
        words = recorded_node(facts)
        if said.described is None or said.described.facts != words:
            new["describe"] = events.node_described(facts, words, at_us, 0, place=0, rank=0)
        else:  # the same, of parts that are in memory anyhow
            said.described = structs.replace(said.described, facts=words)
        return new

    async def _lose(self, uid: str, name: str, reason: str) -> bool:
        state = self._view.recorded(uid)
        if state is None or state.lost:
            return True
        node = NodeFacts(uid=uid, name=name)
        lost = events.node_lost(node, self._clock.wall_us(), reason=reason)
        return await self._record(name, [self._ours(lost, "lost", uid)])

    async def _record(self, name: str, new: list[NewEvent]) -> bool:
        outcome = await self._recorder.record(Command(events=tuple(new)))
        if not isinstance(outcome, Recorded):
            self._fault(name, UNRECORDED, str(outcome.error))
            return False
        for position, one in enumerate(new, start=outcome.first):
            self._view.take(position, one.event)
        return True

    def _take_event(self, _position: int, event: log.LedgerEvent, _holding: Holding | None) -> None:
        """Take note of what the ledger was told, also where the answer was lost."""
        match event:
            case log.NodeInventoried():
                self._said.setdefault(event.node_uid, Said()).inventory = event
            case log.NodeDescribed():
                self._said.setdefault(event.node_uid, Said()).described = event
            case _:
                pass

    def _ours(self, new: NewEvent, verb: str, uid: str) -> NewEvent:
        """Return the event with a key that no other change of the node has."""
        self._number += 1
        key = f"{verb}:{uid}:{self._recorder.epoch}.{self._number}"
        return events.by(ACTOR, new, key=key)

    def _fault(self, name: str, reason: str, words: str) -> None:
        self._view.close_node(name, reason)
        if self.faults.get(name) != words:
            self.faults[name] = words
            self._view.wakeups.node_fault_changed.publish(name)
            _log.error(reason, extra={"node_name": name, "reason": words})


def _oldest_first(facts: Mapping[str, NodeFacts]) -> list[str]:
    return sorted(facts, key=lambda name: facts[name].created)
