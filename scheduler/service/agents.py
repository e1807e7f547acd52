"""
What the nodes' agents say; what they are told of their nodes is in `node_log`.

Rule: design sections 5.4, 5.5 and 8, "When parts are down". An agent speaks for its own node alone,
which the caller has verified. What it confirms counts only beside what the ledger has: a wrong word
releases nothing that runs by the API. Of CPUs the node's CPU process speaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from certs.ports import Object
from ledger.domain.adopted.checkpoints import real_id
from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.annotations.proof import BoundContainer, ProvenContainer, containers_of
from ledger.domain.bounds import Number
from ledger.domain.cpuset import EMPTY, CpuSet, union
from ledger.domain.kube.object_fields import is_name
from ledger.domain.log import events as log
from ledger.domain.log.drift import CPUS_DIFFER, CPUS_NARROWED, NODE_GAVE_OTHER
from ledger.domain.log.machines import is_witness
from ledger.domain.log.state import GRANTED, LOST, OBSERVED, Holding, NodeState, node_uid_of
from ledger.domain.resources import CONDITION_TENURE_CPUS
from scheduler.cluster.objects import ALONE
from scheduler.record import events
from scheduler.service.books import LiveBooks
from scheduler.service.budgets import Budgets
from scheduler.service.claim_ends import ClaimEnds
from scheduler.service.ending import NodeWord
from scheduler.service.node_log import NodeLog
from scheduler.service.ports import Clock, Recorder, WhyNot
from scheduler.service.recording import record
from scheduler.service.view import ClusterView
from scheduler.service.wakeups import Wakeups

SILENT_SECONDS: Final = 120.0
"""An agent asks for changes all the time; who was not heard of for so long is away."""
PAUSED_SECONDS: Final = 60.0
"""Every node is looked at twice as often: who did not look for so long was not there to hear."""
CONFIRMED_MAX: Final = 512
"""Pods of one message."""
PLACES_MAX: Final = 512
"""Pods of one node by its word alone, where kubelet says that it has more places: 110 as a rule."""
RECORD_SECONDS: Final = 60.0
"""A node that named so many and ended them again names one more so often: each is two events."""
_OF_EPOCH: Final = 1 << 32
"""Numbers of messages and of questions of one epoch: those of another one are others."""

ASSIGNED, DIFFERENT, UNKNOWN, LATER, AMISS = "assigned", "different", "unknown", "later", "refused"
NOTED, NOTHING = "noted", "nothing"
HELD, OWN = "observed", "granted"
NAMED: Final = "named by its node"
"""Why what a Pod holds on cards that nobody could name ends: it holds them by their names."""


class Role(StrEnum):
    """Of what a process of a node speaks."""

    DEVICES = "devices"
    CPUS = "cpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a node says that it gave the containers of a Pod."""

    pod_uid: str
    attempt: Number
    containers: tuple[BoundContainer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """What a node has otherwise than it is reserved; without words it has it as reserved."""

    words: str = ""
    cpus: CpuSet = EMPTY


AS_RESERVED: Final = Otherwise()


@dataclass(slots=True, kw_only=True)
class _Voice:
    """
    What processes of one role have said, by the UID of their node.

    Attributes:
        taken: the number of the last message that was taken.
        matched: keys of holdings whose part is as reserved.
    """

    heard: dict[str, float] = field(default_factory=dict)
    gone: dict[str, dict[str, None]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    matched: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """What a node's agent sees a Pod have that others gave it, as in kubelet's checkpoint."""

    pod_uid: str
    namespace: str
    pod_name: str
    entries: tuple[DeviceCheckpoint, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Return the devices, those of replicas too."""
        return frozenset(real_id(each) for entry in self.entries for each in entry.device_ids)


class Ready:
    """A sink of Nodes: which of them kubelet keeps Ready; `with_cpus` have a CPU process."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._names: dict[str, str] = {}
        self.names: dict[str, bool] = {}
        self.with_cpus: set[str] = set()

    def put(self, uid: str, item: Object) -> None:
        """Take a Node that came or changed."""
        name = self._names[uid] = str(item["metadata"]["name"])
        conditions = (item.get("status") or {}).get("conditions") or ()
        is_ready = any(
            one.get("type") == "Ready" and one.get("status") == "True" for one in conditions
        )
        # over a restart of ours, too, it says that there is a CPU process
        has_cpus = any(one.get("type") == CONDITION_TENURE_CPUS for one in conditions)
        (self.with_cpus.add if has_cpus else self.with_cpus.discard)(name)
        if self.names.get(name) is not is_ready:
            self.names[name] = is_ready
            self._wakeups.kubelet_ready_changed.publish(name)

    def drop(self, uid: str) -> None:
        """Forget a Node that is gone."""
        name = self._names.pop(uid, None)
        if name is not None and name not in self._names.values():
            self.names.pop(name, None)
            self.with_cpus.discard(name)


class Agents:
    """The agents of all nodes; while `why_not` is not empty, none could be heard."""

    def __init__(
        self,
        view: ClusterView,
        books: LiveBooks,
        recorder: Recorder,
        clock: Clock,
        *,
        actor: str,
        why_not: WhyNot = str,
    ) -> None:
        self._view = view
        self._books = books
        self._recorder = recorder
        self._clock = clock
        self._actor = actor
        self._why_not = why_not
        self._began = self._looked = clock.monotonic()
        self._voices = {role: _Voice() for role in Role}
        self._others: dict[str, dict[str, SeenPod]] = {}  # UID of the node -> by UID of the Pod
        # UID of the node -> by key of the holding -> by kind of drift
        self._otherwise: dict[str, dict[str, dict[str, Otherwise]]] = {}
        self._crossing: dict[str, Mapping[str, CpuSet]] = {}  # UID of the node -> by UID of the Pod
        self._full: dict[str, float] = {}  # UID of the node -> when it named too many Pods
        self._records = Budgets(clock.monotonic, burst=PLACES_MAX, seconds=RECORD_SECONDS)
        states = ((uid, view.recorded(uid)) for uid in view.holding_nodes())
        self._lost = {uid for uid, state in states if state and state.lost_holdings()}
        self._wakeups = wakeups = view.wakeups
        self.ready = Ready(wakeups)
        self.counts: Counter[str] = Counter()
        self.claims = ClaimEnds(clock.monotonic, lambda: recorder.epoch * _OF_EPOCH, wakeups)
        self.log = NodeLog(view)
        self.ending: list[Callable[[str], bool]] = []  # tell of Pods whose end is being recorded
        wakeups.event_folded.subscribe(self._take_event)

    @property
    def reported(self) -> AbstractSet[str]:
        """Return the UIDs of the nodes whose agent was heard of since this process began."""
        return self._voices[Role.DEVICES].heard.keys()

    # --- what was heard -------------------------------------------------------------------------

    def heard(self, name: str, node_uid: str, role: Role = Role.DEVICES) -> None:
        """Take note that a node's agent, or its CPU process, is there."""
        heard = self._voices[role].heard
        is_first = node_uid not in heard
        heard[node_uid] = self._clock.monotonic()
        if is_first and role is Role.DEVICES:
            self._wakeups.agent_appeared.publish(name)

    def word(self, state: NodeState) -> NodeWord:
        """
        Return what a node says of what runs there.

        An agent that could not be heard has some time to report again: as this process begins,
        after it answered no agent, and after it was paused.
        """
        word = self._word(state, Role.DEVICES, has_agent=state.by_agent)
        if not self._has_cpu_process(state):
            return word
        return replace(word, cpus=self._word(state, Role.CPUS, has_agent=True))

    def _word(self, state: NodeState, role: Role, *, has_agent: bool) -> NodeWord:
        voice = self._voices[role]
        heard = voice.heard.get(state.uid)
        has_agent = has_agent or heard is not None
        return NodeWord(
            has_agent=has_agent,
            agent_ready=has_agent and self._silence(heard) < SILENT_SECONDS,
            kubelet_ready=self.ready.names.get(state.name, False),
            gone=frozenset(voice.gone.get(state.uid, ())),
        )

    def _has_cpu_process(self, state: NodeState) -> bool:
        """Tell whether a node has a CPU process: its condition is there, or it is heard of."""
        heard = self._voices[Role.CPUS].heard.get(state.uid)
        speaks = heard is not None and self._silence(heard) < SILENT_SECONDS
        return speaks or state.name in self.ready.with_cpus

    def seconds(self) -> list[float]:
        """Return for how long each agent could have been heard and was not."""
        return [self._silence(at) for at in self._voices[Role.DEVICES].heard.values()]

    def _silence(self, heard: float | None) -> float:
        now = self._clock.monotonic()
        if self._why_not() or now - self._looked > PAUSED_SECONDS:
            self._began = now
        self._looked = now
        return now - (self._began if heard is None else max(self._began, heard))

    def _take_event(self, _position: int, event: log.LedgerEvent, _holding: Holding | None) -> None:
        self.claims.take(event)
        if isinstance(event, log.EpochStarted):  # agents have spoken to another replica so far
            self._began = self._clock.monotonic()
            self._crossing.clear()
            for voice in self._voices.values():
                voice.gone.clear()  # and may have told that one who is here again
                voice.matched.clear()
        uid = node_uid_of(event)
        if uid is None:
            return
        if isinstance(event, log.NodeLost | log.NodeCleared):
            (self._lost.add if isinstance(event, log.NodeLost) else self._lost.discard)(uid)
            for known in (self._others, self._otherwise, self._full, self._crossing):
                known.pop(uid, None)
            for voice in self._voices.values():
                for said in (voice.heard, voice.gone, voice.matched):
                    said.pop(uid, None)
        elif isinstance(event, log.PodReleased | log.PodVoided):
            key = f"{event.pod_uid}/{event.attempt}"
            self._otherwise.get(uid, {}).pop(key, None)
            if event.reason != NAMED:
                self._others.get(uid, {}).pop(event.pod_uid, None)
            for voice in self._voices.values():
                voice.matched.get(uid, set()).discard(key)
                gone = voice.gone.get(uid, {})
                gone.pop(event.pod_uid, None)
                if not gone:
                    voice.gone.pop(uid, None)

    # --- what is confirmed ----------------------------------------------------------------------

    def taken(self, node_uid: str, role: Role = Role.DEVICES) -> int:
        """Return the number of the last message of a node's agents that was taken."""
        return max(self._voices[role].taken.get(node_uid, 0), self._recorder.epoch * _OF_EPOCH)

    def take(self, node_uid: str, number: int | None, role: Role = Role.DEVICES) -> int | None:
        """
        Take a message, and return its number; None = it is late, and nothing of it counts.

        An agent that looks at its node knows the last number that was taken. So each message says
        what was observed after all that counts of earlier messages, whichever agent sent them.

        Args:
            number: None = of an agent that does not number its messages: it is never late.
        """
        following = self.taken(node_uid, role) + 1
        if number is not None and number != following:
            self.counts["late"] += 1
            return None
        self._voices[role].taken[node_uid] = following
        return following

    def gone(
        self, node_uid: str, pod_uids: Sequence[str], role: Role = Role.DEVICES
    ) -> dict[str, str]:
        """Take note of Pods of which nothing is left on a node, as far as they hold something."""
        state, answers = self._view.recorded(node_uid), self._holding(node_uid, pod_uids, role)
        for uid, answer in answers.items():
            if role is Role.DEVICES:
                self._others.get(node_uid, {}).pop(uid, None)
            if answer == NOTED:
                self._voices[role].gone.setdefault(node_uid, {})[uid] = None
        if state is not None and NOTED in answers.values():
            self._wakeups.agent_reported.publish(state.name)
        self.counts.update(f"gone {each}" for each in answers.values())
        return answers

    def _holding(self, node_uid: str, pod_uids: Sequence[str], role: Role) -> dict[str, str]:
        """Answer of which Pods it is noted what is said of them: they hold a part of the role."""
        state = self._view.recorded(node_uid)
        there = () if state is None else state.holdings.values()
        held = {each.pod_uid for each in there if role is Role.DEVICES or each.cpuset}
        return {uid: NOTED if uid in held else NOTHING for uid in pod_uids}

    async def assigned(
        self, node_uid: str, given: Given, role: Role = Role.DEVICES
    ) -> tuple[str, str]:
        """
        Record that a node gave a Pod exactly what was reserved; return what came of it, and why.

        Raises:
            FencedError: another writer took over.
            LedgerError: the ledger is away; the agent says it again.
        """
        answer, why = await self._assigned(node_uid, given, role)
        self.counts[f"{'cpus ' * (role is Role.CPUS)}assigned {answer}"] += 1
        return answer, why

    async def _assigned(self, node_uid: str, given: Given, role: Role) -> tuple[str, str]:
        state, voice = self._view.recorded(node_uid), self._voices[role]
        voice.gone.get(node_uid, {}).pop(given.pod_uid, None)  # it runs, whatever it was given
        key = f"{given.pod_uid}/{given.attempt}"
        holding = None if state is None else state.holdings.get(key)
        if holding is None or holding.kind != GRANTED or holding.phase == LOST or holding.machine:
            return UNKNOWN, "nothing is reserved for it on this node"
        assert state is not None, "it has the holding"
        if role is Role.CPUS:
            if not holding.cpuset or not any(one.cpus for one in given.containers):
                return UNKNOWN, "it has no CPUs of its own, or none of its containers was looked at"
            said = _cpus_otherwise(given.containers, holding.cpuset)
        else:
            other = _differ(given.containers, containers_of(holding))
            fact = f"reserved is something else: event {holding.opened_position}" if other else ""
            said = {NODE_GAVE_OTHER: Otherwise(words=fact)}
        self._gave(state, holding, said)
        matched = voice.matched.setdefault(node_uid, set())
        why = next((one.words for one in said.values() if one.words), "")
        if why:
            matched.discard(key)
            return DIFFERENT, why
        matched.add(key)
        if holding.phase == "assigned":
            return ASSIGNED, ""
        if holding.phase != "bound":
            return LATER, "whether the Pod is bound is not recorded yet"
        for other_role in self._witnesses(state, holding):
            if key not in self._voices[other_role].matched.get(node_uid, ()):
                return LATER, f"the node has not confirmed its {other_role} yet"
        event = log.PodAssigned(pod_uid=given.pod_uid, attempt=given.attempt, node_uid=node_uid)
        new = events.by(self._actor, events.of_pod(event, self._clock.wall_us()))
        error = await record(self._recorder, (new,), self._books.recorded)
        return (ASSIGNED, "") if error is None else (AMISS, str(error))

    def _witnesses(self, state: NodeState, holding: Holding) -> list[Role]:
        """Return who has to confirm that a Pod has what was reserved for it."""
        needs = {
            Role.DEVICES: bool(holding.shares),
            Role.CPUS: bool(holding.cpuset) and self._has_cpu_process(state),
        }
        return [role for role, is_needed in needs.items() if is_needed]

    def _gave(self, state: NodeState, holding: Holding, said: Mapping[str, Otherwise]) -> None:
        """Remember what a node has otherwise than it is reserved, by kind of drift."""
        known = self._otherwise.setdefault(state.uid, {}).setdefault(holding.key, {})
        if any(known.get(kind) != one for kind, one in said.items()):
            known.update(said)
            self._wakeups.agent_reported.publish(state.name)

    def otherwise(self, node_uid: str, holding: Holding) -> Mapping[str, Otherwise]:
        """Return what a node has otherwise, by the kinds of drift that it has spoken of."""
        return self._otherwise.get(node_uid, {}).get(holding.key, {})

    def crosses(self, node_uid: str, pods: Mapping[str, CpuSet]) -> None:
        """Take note by UID of all Pods that run on CPUs which others have to themselves."""
        state = self._view.recorded(node_uid)
        if state is not None and self._crossing.get(node_uid) != pods:
            self._crossing[node_uid] = pods
            self._wakeups.agent_reported.publish(state.name)

    def crossing(self, node_uid: str) -> Mapping[str, CpuSet] | None:
        """Return them by UID, None where the node has not said who they are."""
        return self._crossing.get(node_uid)

    # --- what is observed -----------------------------------------------------------------------

    def observed(self, node_uid: str, pod: SeenPod) -> tuple[str, str]:
        """
        Take note of what a node's agent sees a Pod have; return what comes of it, and why.

        `Releasing` records it. It counts until an agent of the node says that the Pod is gone.
        """
        answer, why = self._observed(node_uid, pod)
        self.counts[f"observed {answer}"] += 1
        return answer, why

    def _observed(self, node_uid: str, pod: SeenPod) -> tuple[str, str]:
        state = self._view.recorded(node_uid)
        if state is None:
            return LATER, "the node is not recorded yet"
        strange = pod.ids - {each.device_id for each in state.devices}
        if strange:
            return LATER, f"the node lists no such device: {min(strange)}"
        self.here(node_uid, (pod.pod_uid,))
        held = [one for one in state.holdings.values() if one.pod_uid == pod.pod_uid]
        there = [one for one in held if one.phase != LOST and not one.machine]
        if len(there) < len(held):
            return LATER, "what it held through a Node that is gone is not cleared yet"
        granted = next((one for one in there if one.kind == GRANTED), None)
        if granted is not None:
            more = pod.ids - {each.device_id for each in granted.shares}
            if not more:
                return OWN, ""
            fact = f"it has a device that is not reserved for it: {min(more)}"
            self._gave(state, granted, {NODE_GAVE_OTHER: Otherwise(words=fact)})
            return DIFFERENT, fact
        if pod.pod_name and not is_name(pod.pod_name):
            return LATER, f"not a Pod's name: {pod.pod_name!r}"
        has_all = any(is_covered(one, pod) for one in there)
        if self._is_too_much(state, pod, there, has_all=has_all):
            self._full[node_uid] = self._clock.monotonic()
            return LATER, "more Pods that the API does not have: none of them is recorded now"
        self._others.setdefault(node_uid, {})[pod.pod_uid] = pod
        if has_all:
            return HELD, ""
        self._wakeups.agent_reported.publish(state.name)
        return NOTED, ""

    def _is_too_much(
        self, state: NodeState, pod: SeenPod, there: Sequence[Holding], *, has_all: bool
    ) -> bool:
        """
        Tell whether a Pod is more by the node's word alone than the node may have recorded.

        That is one more than it has places, or, once it named and ended many, too soon after them.
        What holds cards by their names already is counted, too, where it has others now.
        """
        pods, seen = self._view.pods, self._others.get(state.uid, {})
        running = pods.running_on(state.name)
        known = running | {pods.seen[uid].static_uid for uid in running}
        if not there and self._has_no_place(state, pod.pod_uid, known):
            return True
        is_named = any(each.device_id for one in there for each in one.shares)
        is_new = seen.get(pod.pod_uid) != pod and (is_named or pod.pod_uid not in known)
        return is_new and not has_all and not self._records.take(state.uid)

    def _has_no_place(self, state: NodeState, pod_uid: str, known: AbstractSet[str]) -> bool:
        """Tell whether a Pod that is not known otherwise is one more than the node has places."""
        facts = self._view.facts(state.name)
        alone = {one.pod_uid for one in state.holdings.values() if one.namespace == ALONE}
        alone = (alone | self._others.get(state.uid, {}).keys()) - known
        places = None if facts is None else facts.pods_max
        most = PLACES_MAX if places is None else min(places, PLACES_MAX)
        return pod_uid not in known | alone and len(alone) >= most

    def is_full(self, node_uid: str) -> bool:
        """Tell whether a node's agent named more Pods lately than it has places for."""
        at = self._full.get(node_uid)
        return at is not None and self._clock.monotonic() - at < SILENT_SECONDS

    # --- what runs ------------------------------------------------------------------------------

    def here(
        self, node_uid: str, pod_uids: Sequence[str], role: Role = Role.DEVICES
    ) -> dict[str, str]:
        """Take back that Pods are gone: of those that hold something, containers may start now."""
        for uid in pod_uids:
            self._voices[role].gone.get(node_uid, {}).pop(uid, None)
        answers = self._holding(node_uid, pod_uids, role)
        ending = {uid for uid in pod_uids if any(is_ending(uid) for is_ending in self.ending)}
        return answers | dict.fromkeys(ending, NOTHING)

    def lost(self) -> list[NodeState]:
        """Return the Nodes through which Pods or claims hold what they lost with it, by UID."""
        states = map(self._view.recorded, sorted(self._lost))
        return [one for one in states if one and one.lost_holdings()]

    async def runs(self, node_uid: str, pod_uids: AbstractSet[str]) -> list[str]:
        """
        Clear lost Nodes of a machine, once its agent says which Pods run and none of theirs does.

        The agent is that of a Node with the UID or name of the lost one (`is_witness`).

        Returns:
            UIDs of the Nodes that were cleared.

        Raises:
            FencedError: another writer took over.
            LedgerError: the ledger is away; the agent says it again.
        """
        state = self._view.recorded(node_uid)
        if state is None or state.lost:
            return []
        cleared = []
        for other in filter(None, map(self._view.recorded, sorted(self._lost))):
            if not is_witness(state, other):
                continue
            lost = other.lost_holdings()
            if not lost or any(_is_there(one, pod_uids) for one in lost):
                continue
            position = max(one.opened_position for one in lost)
            new = events.cleared_by_agent(other, node_uid, position, self._clock.wall_us())
            new = events.by(self._actor, new)
            if await record(self._recorder, (new,), self._books.recorded) is None:
                self.counts["cleared"] += 1
                cleared.append(other.uid)
            else:
                self.counts["not cleared"] += 1
        return cleared

    async def clear(
        self, node: str, *, reason: str, actor: str, dry_run: bool = False
    ) -> list[NodeState]:
        """
        End by somebody's act what Pods and claims hold through lost Nodes of a name or UID.

        Args:
            dry_run: only say what would end.

        Returns:
            The Nodes as they are before; none where nothing is held through a lost one.

        Raises:
            FencedError: another writer took over.
            LedgerError: it is not recorded, or that is not known.
        """
        found = [one for one in self.lost() if node in {one.name, one.uid}]
        if dry_run or not found:
            return found
        at_us, new = self._clock.wall_us(), []
        for state in found:
            newest = max(one.opened_position for one in state.lost_holdings())
            new.append(events.by(actor, events.node_cleared(state, reason, at_us, newest)))
        error = await record(self._recorder, new, self._books.recorded)
        if error is not None:
            raise error
        return found

    def seen(self, node_uid: str) -> Mapping[str, SeenPod]:
        """Return what a node's agent sees Pods have that others gave them, by UID of the Pod."""
        return self._others.get(node_uid, {})


def _is_there(holding: Holding, pod_uids: AbstractSet[str]) -> bool:
    return holding.pod_uid in pod_uids or any(one.uid in pod_uids for one in holding.consumers)


def is_covered(holding: Holding, pod: SeenPod) -> bool:
    """Tell whether a holding has all that the node's agent sees."""
    return holding.kind == OBSERVED and pod.ids <= {each.device_id for each in holding.shares}


def _differ(said: Sequence[ProvenContainer], wanted: Sequence[ProvenContainer]) -> bool:
    cpus = {one.index: one.cpus for one in wanted}
    are_others = any(one.cpus and one.cpus != cpus.get(one.index) for one in said)
    return are_others or _devices(said) != _devices(wanted)


def _cpus_otherwise(said: Sequence[BoundContainer], own: CpuSet) -> dict[str, Otherwise]:
    """Return how the CPUs of containers are not their Pod's own, by kind of drift."""
    found = [one for one in said if one.cpus and one.cpus != own]
    narrowed = [one for one in found if one.written == own and one.cpus <= own]
    others = [one for one in found if one not in narrowed]
    return {CPUS_DIFFER: _in_words(others, own), CPUS_NARROWED: _in_words(narrowed, own)}


def _in_words(containers: Sequence[BoundContainer], own: CpuSet) -> Otherwise:
    if not containers:
        return AS_RESERVED
    new = "a container that its spec does not list"
    each = (f"{one.cpus} in {f'container {one.index}' if one.index else new}" for one in containers)
    words = f"its own CPUs are {own}, by the kernel it has {', '.join(each)}"
    return Otherwise(words=words, cpus=union(one.cpus for one in containers))


def _devices(containers: Sequence[ProvenContainer]) -> object:
    return sorted(
        (one.index, sorted((each.device_type, each.device_id, each.minor) for each in one.devices))
        for one in containers
        if one.devices
    )
