"""
Records ends of holdings, and holdings that others gave.

Rule: design sections 5 and 8. `ending` decides node by node; in here it is done, again until the
ledger has it. A node is looked at when one of its Pods or holdings changed, and in every sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import structs

from certs.ports import ApiError, Object, Objects
from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.errors import InputError, LedgerError
from ledger.domain.kube.object_fields import is_full_name
from ledger.domain.log import events as log
from ledger.domain.log.machines import machine_of
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import OBSERVED, Holding, NodeState, node_uid_of
from scheduler.cluster.documents import Document
from scheduler.cluster.objects import ALONE, observed_on, stranger
from scheduler.record import events
from scheduler.service import ending
from scheduler.service.agents import NAMED, SeenPod, is_covered
from scheduler.service.beginning import Beginning
from scheduler.service.binding import Binder, pod_path
from scheduler.service.books import LiveBooks
from scheduler.service.due import NodesDue
from scheduler.service.ports import Attempts, Clock, WhyNot
from scheduler.service.recording import RecordUntilKnown, gravest
from scheduler.service.view import ClusterView

TOGETHER: Final = 50
"""Nodes that are looked at without a pause: a filter that comes meanwhile waits for them."""
SWEEP_SECONDS: Final = 30.0
FORCED: Final = "forced"
"""What the reason of a release begins with that somebody ordered."""

_log: Final = logging.getLogger("tenure.scheduler.releasing")


def gone_by(
    view: ClusterView, word: Callable[[NodeState], ending.NodeWord]
) -> Callable[[str, str], bool]:
    """Return what tells, by UIDs, whether a node has nothing left of a Pod whose object is gone."""

    def is_gone(node_uid: str, pod_uid: str) -> bool:
        state = view.recorded(node_uid)
        if state is None:
            return True
        seen = view.pods.gone.get(state.name, {}).get(pod_uid)
        has_cpus = any(one.cpuset for one in state.holdings.values() if one.pod_uid == pod_uid)
        return ending.is_confirmed(pod_uid, seen, word(state), has_cpus=has_cpus)

    return is_gone


class Releasing:
    """
    Records what ends and what runs unrecorded.

    Args:
        binder: also whose ledger, API, clock and name are used.
        why_not: a Pod that a list does not have is gone only where the list is complete.
        word: what a node says of what runs there.
        seen: what the agent of a node, by its UID, sees Pods have that others gave them.
        why_deleted: why we evicted a Pod, empty where we did not.

    Attributes:
        faults: UID of a Pod -> why it can't be released or adopted, in words.
        waiting: name of a node -> key of what has ended there and is not confirmed -> since when,
            as this process knows it.
    """

    def __init__(
        self,
        view: ClusterView,
        books: LiveBooks,
        binder: Binder,
        begun: Beginning,
        *,
        why_not: WhyNot,
        attempts: Attempts,
        word: Callable[[NodeState], ending.NodeWord],
        seen: Callable[[str], Mapping[str, SeenPod]],
        why_deleted: Callable[[str], str],
    ) -> None:
        self._view = view
        self._books = books
        self._binder = binder
        self._api: Objects = binder.api
        self._clock: Clock = binder.clock
        self._why_not = why_not
        self._attempts = attempts
        self._word = word
        self._seen = seen
        self._why_deleted = why_deleted
        self._names: dict[str, str] = {}  # UID -> name of every node that the ledger knows
        self._uids: dict[str, tuple[str, ...]] = {}  # name -> UIDs of the Nodes that had it
        self._due = NodesDue(
            self._clock.monotonic, self.names, together=TOGETHER, sweep_seconds=SWEEP_SECONDS
        )
        self._records = RecordUntilKnown(binder.recorder, books.recorded)  # by `_about`
        self._missed: dict[str, float] = {}  # UID -> since when a mirror was gone
        self.faults: dict[str, str] = {}
        self.waiting: dict[str, Mapping[str, float]] = {}
        for uid, node in begun.state.nodes.items():
            self._know(uid, node.name)
        wakeups = self._wakeups = view.wakeups
        wakeups.event_folded.subscribe(self._take_event)
        for topic in (
            wakeups.pod_moved,
            wakeups.agent_reported,
            wakeups.kubelet_ready_changed,
        ):
            topic.subscribe(self.look_at)

    # --- what is to be looked at ----------------------------------------------------------------

    def _know(self, uid: str, name: str) -> None:
        self._names[uid] = name
        uids = self._uids.get(name, ())
        if uid not in uids:
            self._uids[name] = (*uids, uid)

    def look_at(self, name: str) -> None:
        """Look at a node as soon as that may be."""
        self._due.note(name)
        self._wakeups.node_due.publish(name)

    def names(self) -> Collection[str]:
        """Return the names of all nodes that the ledger knows."""
        return self._uids

    def states(self, name: str) -> list[NodeState]:
        """Return the Nodes that had a name, as the ledger has them, by their UIDs."""
        found = map(self._view.recorded, sorted(self._uids.get(name, ())))
        return [state for state in found if state is not None]

    def _take_event(self, _position: int, event: log.LedgerEvent, _holding: Holding | None) -> None:
        uid = node_uid_of(event)
        if uid is None:
            return
        if isinstance(event, log.PodReleased | log.PodObserved):  # also where our own got no answer
            self._records.forget(_about(event))
        if (
            isinstance(event, log.NodeInventoried | log.PodReserved | log.PodObserved)
            and uid not in self._names
        ):
            self._know(uid, event.node_name)
        elif isinstance(event, log.PodObserved | log.PodReleased | log.PodVoided):
            # also where its node opens
            self._wakeups.room_freed.publish(self._names[uid])
        elif isinstance(event, log.NodeCleared):
            for name in self._names_of_machine(uid):
                self._wakeups.room_freed.publish(name)
        self.look_at(self._names[uid])

    def _names_of_machine(self, uid: str) -> set[str]:
        """Return the names of a Node and of the others that its machine had or has."""
        states = {each: self._view.recorded(each) for each in self._names}
        machines = {each: machine_of(one) for each, one in states.items() if one}
        machine = machines.get(uid)
        same = {each for each, one in machines.items() if one == machine}
        return {self._names[each] for each in (uid, *same)}

    def stand_by(self) -> None:
        """Forget what whoever records has dealt with; who begins to record looks at every node."""
        for name in self._due.take_noted():
            self._view.pods.forget_gone(name, self._held_on(name))

    def _held_on(self, name: str) -> set[str]:
        everyone = [one for state in self.states(name) for one in state.everyone()]
        used = {each.uid for one in everyone for each in one.consumers}
        return used.union(one.pod_uid for one in everyone)

    # --- the ledger -----------------------------------------------------------------------------

    async def settle(self) -> None:
        """
        Record what has ended and what runs unrecorded; settle what is not known as bound.

        Raises:
            FencedError: another writer took over.
            LedgerError, ApiError: one of them is away; the nodes are looked at again.
        """
        if self._why_not():
            return
        self._books.compare()
        names, holders = self._due.take(), cache(self._view.holders)
        outcomes = await asyncio.gather(
            *(self._look(name, holders) for name in names), return_exceptions=True
        )
        failures = [one for one in outcomes if one is not None]
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, LedgerError | ApiError):
                self.look_at(name)  # any other failure may not pass
        if failures:
            raise gravest(failures)

    async def _look(self, name: str, holders: Callable[[], Collection[str]]) -> None:
        found, uid = self._ends(name), self._view.nodes.uid(name)
        seen = {} if uid is None else self._seen(uid)
        await self._act(name, found, holders() if found.adopts or seen else ())
        for pod in list(seen.values()):
            await self._see(name, pod, holders())

    def _ends(self, name: str) -> ending.Ends:
        pods, states = self._view.pods, self.states(name)
        held = {holding.pod_uid for state in states for holding in state.holdings.values()}
        there = held.union(pods.running_on(name))
        found = ending.ends(
            {uid: pods.seen[uid] for uid in sorted(there) if uid in pods.seen},
            states,
            {state.uid: self._word(state) for state in states},
            is_under_way=self._binder.is_under_way,
            last_seen=pods.gone.get(name, {}),
            holds_devices=lambda pod: pods.seen[pod.uid].holds or self._seen_of(name, pod) != (),
            gone_seconds=self._gone_seconds,
        )
        if any(map(self._binder.is_under_way, there)):
            self.look_at(name)
        pods.forget_gone(name, self._held_on(name))
        before, now = self.waiting.pop(name, {}), self._clock.monotonic()
        if found.waiting:
            self.waiting[name] = {key: before.get(key, now) for key in found.waiting}
        return found

    def oldest_seconds(self) -> float:
        """Return for how long the oldest release waits for its node; 0 without one."""
        since = [at for each in self.waiting.values() for at in each.values()]
        return self._clock.monotonic() - min(since) if since else 0.0

    def _gone_seconds(self, pod_uid: str) -> float:
        now = self._clock.monotonic()
        return now - self._missed.setdefault(pod_uid, now)

    async def _act(self, name: str, found: ending.Ends, holders: Collection[str]) -> None:
        for uid in found.settles:
            standing = self._books.standing(uid)
            if standing is not None and not standing.is_bound:
                self._binder.settle(standing)
        for release in self._unsure():  # also one that would not be decided any more
            if self._names[release.node_uid] == name:
                await self._record(release.pod_uid, (events.of_pod(release, 0),))
        for release in found.releases:
            await self._release(name, release)
        adopts = [uid for uid in found.adopts if uid not in holders]
        before = await self._attempts(adopts) if adopts else {}
        for uid in adopts:
            await self._adopt(name, uid, before.get(uid, 0))

    async def _release(self, name: str, event: log.PodReleased) -> None:
        """Record a release; ask the API whether a Pod is gone if no watch told of that."""
        uid, state = event.pod_uid, self._view.recorded(event.node_uid)
        holding = None if state is None else state.holdings.get(f"{uid}/{event.attempt}")
        if state is None or holding is None:
            return
        if event.reason == ending.DELETED and uid not in self._view.pods.gone.get(name, {}):
            pod = await self._read(holding)
            if pod is not None and uid in _uids_of(pod):
                self.look_at(name)
                return
        word = self._word(state)
        words = (word, word.cpus) if holding.cpuset else (word,)
        if any(one and one.agent_ready and uid not in one.gone for one in words):
            self.look_at(name)  # it took that back meanwhile
            return
        if event.reason == ending.DELETED:
            event = structs.replace(event, reason=self._why_deleted(uid) or ending.DELETED)
        await self._record(uid, (events.of_pod(event, self._clock.wall_us()),))

    def is_ending(self, pod_uid: str) -> bool:
        """Tell whether a release of a Pod is being recorded, or may be recorded already."""
        return any(one.pod_uid == pod_uid for one in self._unsure())

    def _unsure(self) -> list[log.PodReleased]:
        found = (one.event for new in self._records.unsure.values() for one in new)
        return [event for event in found if isinstance(event, log.PodReleased)]

    async def force(
        self,
        namespace: str,
        pod_name: str,
        pod_uid: str,
        *,
        reason: str,
        actor: str,
        dry_run: bool = False,
    ) -> list[str]:
        """
        Release by somebody's act what a Pod that has ended holds, though its node is silent.

        Rule: design section 8, "When parts are down". Only what waits for its node can be released,
        and nothing of a Pod that runs by the API.

        Args:
            pod_uid: the Pod's; empty = any of that name.
            dry_run: only say what would be released.

        Returns:
            UIDs of the Pods that were released; none where nothing waits.

        Raises:
            FencedError: another writer took over.
            LedgerError: it is not recorded.
            ApiError: whether the Pod runs is not known.
        """
        released = []
        for state, holding in self._unconfirmed(namespace, pod_name, pod_uid):
            if await self._runs(state, holding):
                self.look_at(state.name)
                continue
            if dry_run:
                released.append(holding.pod_uid)
                continue
            event = log.PodReleased(
                pod_uid=holding.pod_uid,
                attempt=holding.attempt,
                node_uid=state.uid,
                reason=f"{FORCED}: {reason}",
            )
            new = events.of_pod(event, self._clock.wall_us())
            await self._record(holding.pod_uid, (new,), actor=actor)
            if holding.pod_uid in self.faults:
                raise LedgerError(self.faults[holding.pod_uid])
            released.append(holding.pod_uid)
        return released

    async def _runs(self, state: NodeState, holding: Holding) -> bool:
        """Tell whether a Pod that was seen to end runs by the API, or its mirror may come again."""
        uid = holding.pod_uid
        pod = await self._read(holding)
        if pod is not None and uid in _uids_of(pod):
            life = ending.life_of(pod)
            return not life.ended and life.node in {"", state.name}
        seen = self._view.pods.gone.get(state.name, {}).get(uid)
        is_mirror = seen is not None and bool(seen.static_uid)
        return is_mirror and self._gone_seconds(uid) < ending.MIRROR_SECONDS

    def _unconfirmed(
        self, namespace: str, pod_name: str, pod_uid: str
    ) -> list[tuple[NodeState, Holding]]:
        found = []
        for name, keys in self.waiting.items():
            for uid in sorted(self._uids.get(name, ())):
                state = self._view.recorded(uid)
                held = {} if state is None else state.holdings
                for holding in (held[key] for key in keys if key in held):
                    assert state is not None
                    is_named = (holding.namespace, holding.pod_name) == (namespace, pod_name)
                    if is_named and pod_uid in {"", holding.pod_uid}:
                        found.append((state, holding))
        return found

    def _seen_of(self, name: str, pod: ending.PodLife) -> tuple[DeviceCheckpoint, ...]:
        uid = self._view.nodes.uid(name)
        there = {} if uid is None else self._seen(uid)
        found = there.get(pod.uid) or there.get(pod.static_uid)
        return () if found is None else found.entries

    async def _see(self, name: str, pod: SeenPod, holders: Collection[str]) -> None:
        """Record what a node's agent sees where the ledger does not name it, or nobody else can."""
        state, facts = self._view.recorded(self._view.nodes.uid(name) or ""), self._view.facts(name)
        about, uid = self._view.nodes.documents(name), pod.pod_uid
        if state is None or facts is None or about is None or self._binder.is_under_way(uid):
            return
        held = [one for one in state.holdings.values() if one.pod_uid == uid]
        if any(one.kind != OBSERVED for one in held) or len(held) > 1:
            return
        life, whose = self._of_the_api(name, uid), held[0] if held else None
        if whose is None and (uid in holders or life is not None):
            return  # it is adopted, or holds something elsewhere
        is_covered_now = whose is not None and is_covered(whose, pod)
        is_alone = whose is None or whose.namespace == ALONE
        if is_covered_now and (not is_alone or life is None or life.node != name):
            return
        body = None
        if life is not None:
            body = await self._api.read(pod_path(life.namespace, life.name))
        if body is not None and uid in _uids_of(body):
            body = {**body, "metadata": {**body["metadata"], "uid": uid}}
        elif is_covered_now:
            return
        elif whose is None or is_alone:
            body = stranger(uid, name, namespace=ALONE, name=pod.pod_name)
        else:
            body = stranger(uid, name, namespace=whose.namespace, name=whose.pod_name)
        before = (await self._attempts([uid])).get(uid, 0)
        new = self._observed_by(name, body, pod.entries, before, after=held)
        there = new[-1].event if new else None
        if isinstance(there, log.PodObserved) and pod.ids <= {
            one.device_id for one in there.shares
        }:
            await self._record(uid, new)

    def _of_the_api(self, name: str, uid: str) -> ending.PodLife | None:
        """Return the Pod that the API has by this UID, or the node's mirror of the static one."""
        pods = self._view.pods
        there = (pods.seen[each] for each in pods.running_on(name))
        return pods.seen.get(uid) or next((pod for pod in there if pod.static_uid == uid), None)

    async def _read(self, holding: Holding) -> Object | None:
        """Ask the API server for a holder; there is none of a name that no Pod can have."""
        if not is_full_name(holding.namespace, holding.pod_name):
            return None
        return await self._api.read(pod_path(holding.namespace, holding.pod_name))

    async def _adopt(self, name: str, uid: str, before: int) -> None:
        seen = self._view.pods.seen.get(uid)
        if seen is None:
            return  # it went while another one was looked at
        pod = await self._api.read(pod_path(seen.namespace, seen.name))
        if pod is None or self._binder.is_under_way(uid):
            return
        life = ending.life_of(pod)
        if (life.uid, life.node, life.ended) != (uid, name, ""):
            return  # the watch tells of it
        new = self._observed_by(name, pod, self._seen_of(name, life), before)
        if new:
            await self._record(uid, new)

    def _observed_by(
        self,
        name: str,
        pod: Object,
        seen: tuple[DeviceCheckpoint, ...],
        before: int,
        *,
        after: Sequence[Holding] = (),
    ) -> tuple[NewEvent, ...]:
        """
        Return what is to be recorded of a Pod that others gave something, nothing if that can't be.

        Args:
            seen: what the node's agent sees it have.
            before: the number of the newest holding that the Pod ever had: a release is known by
                it, and one of a number that was used counts as a repetition.
            after: what it held so far, on cards without names.
        """
        facts, about = self._view.facts(name), self._view.nodes.documents(name)
        if facts is None or about is None:
            return ()
        life = ending.life_of(pod)
        document = Document(
            kind="Pod",
            ours=True,
            namespace=life.namespace,
            name=life.name,
            uid=life.uid,
            body=dict(pod),
        )
        vocabulary = self._view.settings.vocabulary
        try:
            event, request = observed_on(document, facts, about, vocabulary, seen)
        except InputError as error:
            self._fault(life.uid, str(error))
            return ()
        ended = [
            log.PodReleased(pod_uid=life.uid, attempt=one.attempt, node_uid=facts.uid, reason=NAMED)
            for one in after
        ]
        last = max((one.attempt for one in after), default=before)
        return (
            *(events.of_pod(one, self._clock.wall_us()) for one in ended),
            *self._books.observed(event, request, after=last),
        )

    async def _record(self, pod_uid: str, new: Sequence[NewEvent], *, actor: str = "") -> None:
        whose = actor or self._binder.actor
        ours = [events.by(whose, one) for one in new]
        error = await self._records.record(_about(new[-1].event), ours)
        if error is not None:
            self._fault(pod_uid, str(error))
            return
        self.faults.pop(pod_uid, None)
        self._missed.pop(pod_uid, None)

    def _fault(self, pod_uid: str, words: str) -> None:
        if self.faults.get(pod_uid) != words:
            self.faults[pod_uid] = words
            _log.error("can't be recorded", extra={"pod_uid": pod_uid, "reason": words})


def _about(event: log.LedgerEvent) -> str:
    """Return the key of what is recorded: of what others gave, without its number."""
    if isinstance(event, log.PodObserved):
        return f"{event.pod_uid}@{event.node_uid}"
    assert isinstance(event, log.PodReleased), event
    return events.of_pod(event, 0).idempotency_key


def _uids_of(pod: Object) -> tuple[str, str]:
    life = ending.life_of(pod)
    return life.uid, life.static_uid
