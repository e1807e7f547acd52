"""
The cluster as the live scheduler decides on it: the API's nodes, and the ledger's holders.

Nothing in here waits. A node counts once it has been recorded (`inventory`). The events alone say
which Pod holds what, never an annotation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from msgspec import structs

from certs.ports import Object
from ledger.domain.annotations.device_hints import LabelSelector, read_selector
from ledger.domain.dialects.dra.cpus import CPU
from ledger.domain.errors import InputError
from ledger.domain.kube.shared_templates import kind_of_cards
from ledger.domain.log import drift, events
from ledger.domain.log.state import Folding, Holding, LedgerState, NodeState, node_uid_of
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.card_names import followed
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.one_node import read_node
from scheduler.cluster.rebuilt import as_observed, held_by, opening_of
from scheduler.decide.engine import Engine
from scheduler.decide.extender import AskedNodes, NodeDirectory
from scheduler.decide.filter.filtering import Filtered
from scheduler.decide.outcome import NOT_RATED, Placement, Rated
from scheduler.decide.settings import SchedulingSettings
from scheduler.service.budgets import put_newest
from scheduler.service.kept import NodeBook, PackedTexts, PodBook, PodSeen
from scheduler.service.requests import PodRequests
from scheduler.service.slices import NodeModes
from scheduler.service.wakeups import Wakeups

UNREADABLE: Final = drift.NODE_UNREADABLE
UNRECORDED: Final = drift.NODE_UNRECORDED
STRANGERS: Final = drift.UNKNOWN_HOLDERS
"""
A Pod runs there that asks for devices or CPUs of its own, and is not in the ledger; or a claim has
CPUs there, and it is not known which.
"""

BEHIND: Final = "LedgerBehind: what the ledger has recorded is being read, try again"
"""Why a Pod is not bound: see `ClusterView.why_unsure`."""

JUDGED_MAX: Final = 256
"""Filters that are remembered, for prioritize and bind that follow."""

Opened = events.PodReserved | events.PodObserved
_POD_UID: Final = attrgetter("pod_uid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    The nodes that a filter asked about, and what became of them.

    Attributes:
        decided_at: the engine's position then; -1 = not known.
    """

    request: PodRequest
    asked: AskedNodes
    filtered: Filtered
    decided_at: int = -1


class ClusterView:
    """
    Nodes, holders and requests, kept current change by change.

    Attributes:
        settings: their templates of shares may change.
        engine: decides; `Holds` takes soft holds in it.
        directory: the names of the nodes that may be asked about.
        device_names: every resource name that asks for a device.
        nodes, pods, disruptions: what the API tells; their sinks are handed to reflectors.
        position: every event up to it is folded.
        numbers: UID of a node -> its number in the engine.
    """

    def __init__(self, settings: SchedulingSettings, wakeups: Wakeups, modes: NodeModes) -> None:
        self.settings = settings
        self.wakeups = wakeups
        self.modes = modes
        self.device_names = settings.vocabulary.device_names
        self.engine = Engine((), settings)
        self.directory = NodeDirectory()
        self.nodes = NodeBook(wakeups)
        self.pods = PodBook(self.device_names, wakeups)
        self.disruptions = Disruptions()
        self.requests = PodRequests(self.pods, settings.vocabulary)
        self.position = 0
        self._ahead: set[int] = set()
        self._unlaid: set[str] = set()  # UIDs of nodes that are other ones by the newest events
        self._fold = Folding()
        self._opened: dict[int, Opened] = {}  # position -> what opened a holding, `_packed`
        self._facts: dict[str, NodeFacts] = {}  # UID -> as recorded last, of Nodes in the engine
        self._laid: dict[str, NodeFacts] = {}  # UID -> as the engine has it
        self.numbers: dict[str, int] = {}  # UID -> number in the engine
        self._faults: dict[str, str] = {}  # name -> why the Node can't be decided on
        self._named: dict[str, str] = {}  # name -> UID of the Node that has it
        self._held: dict[str, dict[str, Holding]] = {}  # UID -> holdings in the engine, by key
        self._expected: dict[tuple[str, str], Opened] = {}  # by UID of the node and key
        self._judged: dict[str, Judged] = {}  # by Pod UID
        wakeups.pod_holders_changed.subscribe(self._open_or_close)
        wakeups.pools_changed.subscribe(self.modes_changed)

    def decide_by(self, settings: SchedulingSettings) -> list[str]:
        """Decide by other templates of shares; return the names of the nodes they are about."""
        before, now = (set(each.devices.shared_templates) for each in (self.settings, settings))
        kinds = {template.cards for template in before ^ now}
        self.settings = settings
        self.engine.decide_by(settings)
        about = [facts for facts in self._laid.values() if kind_of_cards(facts.labels) in kinds]
        for facts in about:
            self.engine.put_node(facts)
        return [facts.name for facts in about]

    # --- the ledger -----------------------------------------------------------------------------

    def begin(self, position: int, state: LedgerState, opened: Mapping[int, Opened]) -> None:
        """
        Begin with what a ledger tells; nodes take nothing before the API was listed.

        Args:
            opened: `opening_of` what opened what is held, as far as it is at hand.
        """
        assert not self._facts, "a view begins once"
        self.position = position
        self._fold = Folding(state)
        self._opened = dict(opened)

    def has(self, position: int) -> bool:
        """Tell whether the event at a position is folded in."""
        return position <= self.position or position in self._ahead

    def take(self, position: int, event: events.LedgerEvent) -> None:
        """Fold an event in, each once, whoever tells of it first."""
        if self.has(position):
            return
        self._ahead.add(position)
        while self.position + 1 in self._ahead:
            self.position += 1
            self._ahead.discard(self.position)
        if isinstance(event, events.PodReserved | events.PodObserved):
            self._opened[position] = _packed(opening_of(event))
        holding = self._fold.holding_of(event)
        self._fold.add(position, event)
        uid = node_uid_of(event)
        if (
            isinstance(event, events.NodeInventoried | events.NodeDescribed)
            and event.node_uid in self._facts
        ):
            self._unlaid.add(event.node_uid)
        if uid is not None and uid in self._facts:
            self._lay(self._facts[uid])
        self.wakeups.event_folded.publish(position, event, holding)

    def why_unsure(self, node_name: str) -> str:
        """
        Return why no position of the ledger has what is decided on for a node, empty where one has.

        An answer was lost, and the feed has not told of all events yet; or it told of a node before
        the node is decided on as these events say.
        """
        return BEHIND if self._ahead or self._named.get(node_name) in self._unlaid else ""

    def on_their_way(
        self, uid: str, groups: Collection[str], but: Collection[str]
    ) -> tuple[str, ...]:
        """Return the keys of reservations that count on a node, or in groups, ahead of events."""
        return tuple(
            key
            for (node, key), event in self._expected.items()
            if isinstance(event, events.PodReserved)
            and key not in but
            and (event.group in groups or self._is_one_machine(node, uid))
        )

    def _is_one_machine(self, uid: str, other: str) -> bool:
        first, second = (
            (self._laid[each].system_uuid, self._laid[each].machine_id) for each in (uid, other)
        )
        return uid == other or (all(first) and first == second)

    def recorded(self, uid: str) -> NodeState | None:
        """Return what the ledger says of a node."""
        return self._fold.node(uid)

    def opening(self, position: int) -> Opened | None:
        """Return `opening_of` the event that opened a holding, None where it is not at hand."""
        event = self._opened.get(position)
        if event is None:
            return None
        return structs.replace(event, annotations=_unpacked(event.annotations))

    def holding_nodes(self) -> list[str]:
        """Return the UIDs of the nodes through which somebody holds something."""
        return list(self._fold.held())

    def expect(self, event: Opened) -> None:
        """Count as held what is on its way into the ledger."""
        uid, key = event.node_uid, f"{event.pod_uid}/{event.attempt}"
        self._expected[uid, key] = event
        held = as_observed(event) if isinstance(event, events.PodReserved) else event
        held = structs.replace(held, pod_uid=_name_of(key, uid))
        self.engine.take(self.numbers[uid], held)

    def forget_expected(self, event: Opened) -> None:
        """Give back what was expected: it is not recorded, and will not be."""
        uid, key = event.node_uid, f"{event.pod_uid}/{event.attempt}"
        if self._expected.pop((uid, key), None) is not None and uid in self.numbers:
            self.engine.release(_name_of(key, uid))
            self._lay(self._facts[uid])

    def holdings(self, uid: str) -> Mapping[str, Holding]:
        """Return what Pods hold on a node, by Pod UID and attempt."""
        held = self._held.get(uid, {})
        return {key: holding for key, holding in held.items() if holding.holder == events.POD}

    def holders(self) -> frozenset[str]:
        """Return the UIDs of all Pods that hold something somewhere."""
        held = (each for held in self._held.values() for each in held.values())
        return frozenset(each.pod_uid for each in held if each.holder == events.POD)

    def namespaces(self) -> frozenset[str]:
        """Return the namespaces of all Pods and claims that hold something."""
        return frozenset(each.namespace for held in self._held.values() for each in held.values())

    # --- nodes ----------------------------------------------------------------------------------

    def read(self, name: str) -> NodeFacts | None:
        """Return a node as the API has it, None without it. Raises InputError: it can't be read."""
        documents = self.nodes.documents(name)
        if documents is None:
            return None
        state = self._fold.node(documents.node.uid)
        facts, _ = read_node(documents, self.settings, self._with_cpus(name, state))
        recorded = () if state is None else state.devices
        devices = self.modes.slices.records(name, facts.devices, recorded)
        shared = recorded if devices == recorded else devices  # in memory once
        return replace(facts, devices=shared, systems=followed(facts.systems, self.device_names))

    def _with_cpus(self, name: str, state: NodeState | None) -> frozenset[str]:
        """Return the Pods there whose CPUs the ledger has or will have; others' are kept back."""
        recorded = {} if state is None else {e.pod_uid: e.cpuset for e in state.holdings.values()}
        running = self.pods.running_on(name)
        return frozenset(pod for pod in running if recorded.get(pod, self.pods.seen[pod].holds))

    def uid(self, name: str) -> str | None:
        """Return the UID of the Node of this name that is decided on, open or closed."""
        return self._named.get(name)

    def number(self, name: str) -> int | None:
        """Return the engine's number of the Node of this name, open or closed."""
        uid = self._named.get(name)
        return None if uid is None else self.numbers[uid]

    def facts(self, name: str) -> NodeFacts | None:
        """Return the node of this name as it is decided on, None where there is none."""
        uid = self._named.get(name)
        return None if uid is None else self._laid[uid]

    def put_node(self, facts: NodeFacts) -> None:
        """Decide by these facts, which were recorded."""
        before = self._named.get(facts.name)
        if before is not None and before != facts.uid:
            self.drop_node(before)
        self._named[facts.name] = facts.uid
        self._faults.pop(facts.name, None)
        self._unlaid.discard(facts.uid)
        self._lay(facts)

    def put_nodes(self, nodes: Sequence[NodeFacts]) -> None:
        """Decide by the facts of several nodes, as `put_node` does, in order."""
        if not self._facts:
            laid = {facts.uid: self._as_laid(facts) for facts in nodes}
            numbers = self.engine.put_nodes(list(laid.values()))
            self.numbers.update(zip(laid, numbers, strict=True))
            self._laid.update(laid)
        for facts in nodes:
            self.put_node(facts)

    def unlaid(self) -> list[str]:
        """Return the UIDs of the nodes with holders that were not put."""
        return [uid for uid in self._fold.held() if uid not in self._facts]

    def put_gone(self, facts: NodeFacts) -> None:
        """Count the holders of a node that the API has not told of; until then it takes nothing."""
        if facts.uid not in self._facts:
            self._lay(replace(facts, lost=True))

    def drop_node(self, uid: str) -> None:
        """Let a Node go, whose loss was recorded; while it has holders its account stays."""
        facts = self._facts.get(uid)
        if facts is None:
            return
        if self._named.get(facts.name) == uid:
            del self._named[facts.name]
        self._lay(replace(facts, lost=True))

    def close_node(self, name: str, reason: str) -> None:
        """Let a node take nothing while its objects can't be read or recorded."""
        self._faults[name] = reason
        self._open_or_close(name)

    def fault(self, name: str) -> str:
        """Return why a node can't be decided on, empty where it can."""
        return self._faults.get(name, "")

    def forget_fault(self, name: str) -> None:
        """Forget why a Node could not be decided on that is gone."""
        self._faults.pop(name, None)
        self._open_or_close(name)

    def _open_or_close(self, name: str) -> None:
        uid = self._named.get(name)
        was_closed = name in self.directory.all_closed()
        if name in self._faults:
            self.directory.close(name, self._faults[name])
        elif uid is None:
            self.directory.drop(name)
        elif mode := self.modes.why_closed(self._facts[uid]):
            self.directory.close(name, mode)
        elif self._has_strangers(name, uid):
            self.directory.close(name, STRANGERS)
        else:
            self.directory.put(self.numbers[uid], name)
            if was_closed:  # kube-scheduler may have asked since what closed it was gone
                self.wakeups.room_freed.publish(name)

    def modes_changed(self, names: Iterable[str]) -> None:
        """Open or close nodes whose cards others give now, or no more."""
        for name in names:
            if name in self._named:
                self._open_or_close(name)

    def strangers(self, name: str) -> frozenset[str]:
        """Return the Pods that run on a node and hold something there by the API alone."""
        held = self._held.get(self._named.get(name, ""), {}).values()
        return frozenset(self.pods.holding_on(name)).difference(map(_POD_UID, held))

    def _has_strangers(self, name: str, uid: str, but: Collection[str] = ()) -> bool:
        if any(CPU in each.unknown_types for each in self._held.get(uid, {}).values()):
            return True  # any CPU may be theirs
        return not self.strangers(name).issubset(but)

    def _lay(self, facts: NodeFacts) -> None:
        """Bring the engine's node and its holders in line with facts and ledger."""
        uid = facts.uid
        self._facts[uid] = facts
        state = self._fold.node(uid)
        laid = self._as_laid(facts)
        before = self._laid.get(uid)
        if before is not laid and before != laid:
            self.numbers[uid] = self.engine.put_node(laid)
            self._laid[uid] = laid
        self._hold(uid, {} if state is None else {**state.holdings, **state.claims})
        self._open_or_close(facts.name)
        is_there = self._held.get(uid) or self._named.get(facts.name) == uid
        if not is_there and all(node != uid for node, _ in self._expected):
            self._forget(uid)

    def _as_laid(self, facts: NodeFacts) -> NodeFacts:
        state = self._fold.node(facts.uid)
        placed = [each for each in facts.devices if not each.by_claims]
        if len(placed) < len(facts.devices):
            facts = replace(facts, devices=tuple(placed))
        return facts if state is None else _with_ledger(facts, state)

    def _hold(self, uid: str, wanted: Mapping[str, Holding]) -> None:
        held = self._held.setdefault(uid, {})
        for key, holding in list(held.items()):
            now = wanted.get(key)
            if now is None or now.opened_position != holding.opened_position:
                self._opened.pop(held.pop(key).opened_position, None)
                self.engine.release(_name_of(key, uid))
        for key, holding in wanted.items():
            if key not in held and self._expected.pop((uid, key), None) is None:
                self.engine.take(self.numbers[uid], self._observed(uid, key, holding))
            held[key] = holding

    def _forget(self, uid: str) -> None:
        given_back = self.engine.drop_node(uid)
        del self._facts[uid], self._laid[uid], self.numbers[uid], self._held[uid]
        self._unlaid.discard(uid)
        if given_back:
            self.wakeups.node_dropped.publish(given_back)

    def _observed(self, uid: str, key: str, holding: Holding) -> events.PodObserved:
        event = self._opened.get(holding.opened_position)
        if event is None:
            observed = held_by(holding, uid, self._facts[uid].name)
        else:
            observed = as_observed(event) if isinstance(event, events.PodReserved) else event
        if holding.holder != events.POD:  # what claims alone give no Pod is placed on
            there = {(each.device_type, each.device_id) for each in self._laid[uid].devices}
            shares = (
                each for each in observed.shares if (each.device_type, each.device_id) in there
            )
            observed = structs.replace(observed, shares=tuple(shares))
        said = _unpacked(observed.annotations)
        return structs.replace(observed, pod_uid=_name_of(key, uid), annotations=said)

    # --- decisions ------------------------------------------------------------------------------

    def judge(self, request: PodRequest, names: Sequence[str]) -> Judged:
        """Judge these nodes for a Pod; change nothing. Raises InputError: a name is no text."""
        asked = self.directory.ask(names)
        filtered = self.engine.filter(request, asked.nodes)
        at = self.engine.position
        return self.remember(Judged(request=request, asked=asked, filtered=filtered, decided_at=at))

    def remember(self, judged: Judged) -> Judged:
        """Keep a filter for the calls that follow it, and return it."""
        put_newest(self._judged, judged.request.uid, judged, JUDGED_MAX)
        return judged

    def judged(self, pod_uid: str) -> Judged | None:
        """Return the last filter of a Pod, if it was not long ago."""
        return self._judged.get(pod_uid)

    def rated(self, pod_uid: str, node_name: str) -> Rated:
        """Return what a node was rated by the Pod's last filter, where it was the best."""
        judged = self._judged.get(pod_uid)
        best = None if judged is None else judged.filtered.best
        return NOT_RATED if best is None or best.node_name != node_name else best.rated

    def choose(
        self, pod_uid: str, node_name: str, held: Placement | None = None
    ) -> Placement | str:
        """
        Return what a Pod gets on the node that was named, or why it gets nothing there.

        Rule: design section 5.3. Callers lift soft holds around the call, so that it is decided
        from the ledger's state alone.

        Args:
            held: chosen as it is for the same request, as nothing has changed since.
        """
        request = self.requests.by_uid(pod_uid)
        if isinstance(request, str):
            return request
        number = self.directory.number(node_name)
        if number is None:
            return self.directory.closed(node_name)
        if held is not None and held.request is request and held.node == number:
            return held
        placement = self.engine.try_place(request, number)
        if placement is not None:
            self.engine.undo(placement)
            return placement
        filtered = self.engine.filter(request, [number])
        assert len(filtered.codes), "what is placed nowhere has a reason"
        return filtered.reasons[filtered.codes.item(0)]

    def fits(self, request: PodRequest, node_name: str, gone: Collection[str] = ()) -> bool:
        """Tell whether a node that is open takes a Pod now, or once strangers have gone."""
        number = self.directory.number(node_name)
        if number is None and self.directory.closed(node_name) == STRANGERS:
            is_open = not self._has_strangers(node_name, self._named[node_name], gone)
            number = self.number(node_name) if is_open else None
        placement = None if number is None else self.engine.try_place(request, number)
        if placement is not None:
            self.engine.undo(placement)
        return placement is not None

    @contextmanager
    def without(self, node_name: str, pod_uids: Collection[str]) -> Iterator[Lifted]:
        """Decide as if these Pods held nothing on a node, until the block ends."""
        lifted = Lifted(self, self._named[node_name])
        lifted.lift(pod_uids)
        try:
            yield lifted
        finally:
            lifted.put_back(pod_uids)

    def lift(self, uid: str, key: str) -> None:
        """Take what is held out of the engine; `put_back` puts it in again."""
        self.engine.release(_name_of(key, uid))

    def put_back(self, uid: str, key: str, holding: Holding) -> None:
        """Put what was lifted back into the engine."""
        self.engine.take(self.numbers[uid], self._observed(uid, key, holding))


class Lifted:
    """What some Pods hold on a node and is not counted now."""

    def __init__(self, view: ClusterView, node_uid: str) -> None:
        self._view = view
        self._uid = node_uid
        self._lifted: dict[str, Holding] = {}

    def lift(self, pod_uids: Collection[str]) -> None:
        """Count what these hold no more."""
        for key, holding in self._view.holdings(self._uid).items():
            if holding.pod_uid in pod_uids and key not in self._lifted:
                self._lifted[key] = holding
                self._view.lift(self._uid, key)

    def put_back(self, pod_uids: Collection[str]) -> None:
        """Count what these hold again."""
        for key, holding in list(self._lifted.items()):
            if holding.pod_uid in pod_uids:
                del self._lifted[key]
                self._view.put_back(self._uid, key, holding)


def _packed(event: Opened) -> Opened:
    """Return an event with its annotations, which are read seldom, packed."""
    return structs.replace(event, annotations=PackedTexts(event.annotations))


def _unpacked(texts: Mapping[str, str]) -> Mapping[str, str]:
    return texts.unpacked() if isinstance(texts, PackedTexts) else texts


def _with_ledger(facts: NodeFacts, state: NodeState) -> NodeFacts:
    """Return a node with what the ledger alone knows: cards that were closed, and its loss."""
    closed = {device.key for device in state.devices if not device.healthy}
    # What is held on a machine that the node has left closes it as a loss does.
    lost = facts.lost or state.lost or any(held.machine for held in state.everyone())
    if closed:
        devices = (
            replace(each, healthy=False) if each.key in closed else each for each in facts.devices
        )
        facts = replace(facts, devices=tuple(devices))
    return facts if lost == facts.lost else replace(facts, lost=lost)


def _name_of(key: str, node_uid: str) -> str:
    """Return what the engine calls a holding; a soft hold is called by its Pod's UID alone."""
    return f"{key}@{node_uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruptable:
    """As much of a PodDisruptionBudget as says which Pods it lets go, and which it counted."""

    namespace: str
    selector: LabelSelector
    allowed: int
    disrupted: frozenset[str]


class Disruptions:
    """A sink of PodDisruptionBudgets."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, Disruptable]] = {}
        self._known: dict[str, str] = {}  # UID -> namespace

    def put(self, uid: str, item: Object) -> None:
        """Take a budget that came or changed; one that matches nobody is none."""
        self.drop(uid)
        budget = _budget(item)
        if budget is not None:
            self._namespaces.setdefault(budget.namespace, {})[uid] = budget
            self._known[uid] = budget.namespace

    def drop(self, uid: str) -> None:
        """Forget a budget that is gone."""
        namespace = self._known.pop(uid, None)
        if namespace is None:
            return
        there = self._namespaces[namespace]
        del there[uid]
        if not there:
            del self._namespaces[namespace]

    def broken(self, before: Sequence[PodSeen], more: Sequence[PodSeen]) -> int:
        """Return how many of further Pods go beyond a budget, once those before them have gone."""
        return self.broken_in_turn((before, more))[1]

    def broken_in_turn(self, crews: Iterable[Sequence[PodSeen]]) -> list[int]:
        """
        Return of Pods that go one crew after the other how many of each crew go beyond a budget.

        Rule: kube-scheduler 1.36, `filterPodsWithPDBViolation`: a budget lets `disruptionsAllowed`
        of its Pods go, in order; those in `disruptedPods` are counted already.
        """
        spent: Counter[tuple[str, str]] = Counter()
        return [sum(self._goes(pod, spent) for pod in crew) for crew in crews]

    def _goes(self, pod: PodSeen, spent: Counter[tuple[str, str]]) -> bool:
        """Take a Pod's going from the budgets that select it; tell whether one is broken."""
        budgets = self._namespaces.get(pod.namespace)
        if not budgets or not pod.labels:
            return False
        labels = json.loads(pod.labels)
        breaks = False
        for uid, budget in budgets.items():
            if pod.name not in budget.disrupted and budget.selector.matches(labels):
                spent[pod.namespace, uid] += 1
                breaks |= spent[pod.namespace, uid] > budget.allowed
        return breaks


def _budget(item: Object) -> Disruptable | None:
    """
    Return what is kept of a budget, None of one that selects nobody.

    Rule: as above: neither a selector that is empty nor one that can't be read selects anybody.
    """
    status = item.get("status") or {}
    try:
        selector = read_selector((item.get("spec") or {}).get("selector"), "spec.selector")
    except InputError:
        return None
    if selector is None or selector == LabelSelector():
        return None
    return Disruptable(
        namespace=str(item["metadata"].get("namespace") or ""),
        selector=selector,
        allowed=int(status.get("disruptionsAllowed") or 0),
        disrupted=frozenset(status.get("disruptedPods") or ()),
    )
