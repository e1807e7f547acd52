"""
Which Pods kube-scheduler may end for another, and that it ends no further ones meanwhile.

Rule: GPU-sharing contract C.5, "Ours"; docs/adr/0041.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final, Protocol

from certs.ports import Object
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_at, text_in, time_us
from ledger.domain.log.events import LedgerEvent, PodReleased, PreemptionDecided
from ledger.domain.log.state import Holding
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import RefusedPod
from scheduler.decide.bounded import decode_bounded
from scheduler.decide.extender import WHOLE_NESTED_MAX, member
from scheduler.decide.outcome import Placement
from scheduler.service.agents import SILENT_SECONDS
from scheduler.service.budgets import put_newest
from scheduler.service.ending import RESERVED
from scheduler.service.groups import LiveGroups
from scheduler.service.kept import PodSeen, amounts_of
from scheduler.service.ports import Clock
from scheduler.service.telling import NORMAL, Telling, about_pod
from scheduler.service.victims import (
    TRIES_MAX,
    TRIES_WITHOUT_ANSWER_MAX,
    Candidates,
    Tries,
    fits_without,
    holdings_on,
)
from scheduler.service.view import JUDGED_MAX, STRANGERS, ClusterView, Judged
from scheduler.whatif.preemption import Search

BEGUN_SECONDS: Final = 5.0
"""So long after an answer its victims may be about to end, though no watch has told of it."""
GRACE_DUE_SECONDS: Final = 30.0
"""So long no further Pods end after the deletionTimestamp of one with a longer grace period."""
FILTER_SECONDS: Final = 1.0
"""
So old a filter may be that refused a node with room: kube-scheduler asks for victims in the same
attempt. After as long the Pod is woken, as the room is no event of Kubernetes'.
"""
DUE_SECONDS: Final = SILENT_SECONDS + 30.0
"""
So long no further Pods end while some do: by then a silent agent's node has kubelet's word for it,
and a sweep has looked.
"""
STUCK_SECONDS: Final = 2.0  # by then kube-scheduler has asked for victims, if it wants any
OLD_SECONDS: Final = 360.0  # kube-scheduler asks again after 300 s at the latest
VICTIMS_MAX: Final = 1 << 16
"""kube-scheduler looks for them on 500 of 5,000 nodes, of 110 Pods each."""
BEGUN_MAX: Final = 4_096
"""Preemptions that are remembered, of those that were answered last."""
WAITS: Final = "WaitsForEnds"
_COUNTED: Final = frozenset({"cpu", "memory"})
"""What of a Pod's resources its holding counts, beside devices."""

# {"Pod": {...}, "NodeNameToVictims": {"n-1": {"Pods": [{...}], "NumPDBViolations": 0}}}
# {"Pod": {...}, "NodeNameToMetaVictims": {"n-1": {"Pods": [{"UID": "..."}], ...}}}


class Places(Protocol):
    """Soft holds (design section 5.2); see `scheduler.service.holds.Holds`."""

    def asked_again(self, pod_uid: str) -> None:
        """Take back what a Pod was expected to get: it is filtered anew."""

    def expected(self, placement: Placement, pod: Object, decided_at: int = -1) -> None:
        """Keep what a Pod would get on the node that is expected to win."""

    def node_of(self, pod_uid: str) -> str:
        """Return the node that a Pod has a hold on, empty without one."""

    def promise(self, request: PodRequest, node_name: str, seconds: float = 0.0) -> bool:
        """Hold for a Pod what it gets on a node, if it has a place there; tell whether."""


@dataclass(slots=True, kw_only=True)
class _Begun:
    """
    A preemption that may be under way.

    Attributes:
        at: when its victims were named, or its nomination was met first.
        until: so long no further Pods end for it, and what comes free is for it.
        victims: UIDs by the node that they were named of, of those that held something there;
            kube-scheduler takes one of the nodes.
        waits_on: the node whose ends the Pod was told to wait for; empty = none.
        wakes_at: when it is woken, whatever has ended by then.
    """

    at: float
    until: float
    victims: dict[str, frozenset[str]] = field(default_factory=dict)
    waits_on: str = ""
    wakes_at: float = inf


class Preempting:
    """
    Answers the preempt verb, and a sink of Pods that may end a wait.

    kube-scheduler asks again as soon as the victims' objects are gone, and their cards are given
    back by the ledger later. Until then no further Pods end for the Pod, and what comes free on its
    node is for it.

    Attributes:
        counts: answers by what they were.
        own: by UID of the Pod, our own preemptions that the ledger has, or is about to have; also
            those that are over, until the Pod waits no more.
        asks_for_sums: kube-scheduler asks for Pods that it sees room for, too, as from 1.38 on.
    """

    def __init__(
        self,
        view: ClusterView,
        places: Places,
        telling: Telling,
        clock: Clock,
        *,
        groups: LiveGroups,
        begun: Iterable[LedgerEvent] = (),
    ) -> None:
        self._view = view
        self._places = places
        self._telling = telling
        self._clock = clock
        self._groups = groups
        self._begun: dict[str, _Begun] = {}  # by UID of the Pod
        self._freed: dict[str, str] = {}  # UID of the Pod -> the node where something came free
        self._filtered_at: dict[str, float] = {}  # by UID of the Pod; last ones
        self._ends: dict[str, tuple[float, int]] = {}  # by UID of the Pod: when, how many others
        self.counts: Counter[str] = Counter()
        self.own: dict[str, PreemptionDecided] = {}
        self.asks_for_sums = False
        for event in begun:
            self._take_event(0, event, None)
        lasts = {uid for uid, each in self._begun.items() if each.until > clock.monotonic()}
        lasts |= {uid for uid, act in self.own.items() if not act.over}
        self._begun = {uid: self._begun[uid] for uid in lasts}
        self._ends = {uid: each for uid, each in self._ends.items() if uid in lasts}
        view.wakeups.event_folded.subscribe(self._take_event)

    def take_filter(self, uid: str) -> None:
        """Take note that a Pod is filtered now, if the watch has shown it: its end is news then."""
        if self._view.pods.pending(uid) is not None:
            put_newest(self._filtered_at, uid, self._clock.monotonic(), JUDGED_MAX)

    def answer(self, value: Mapping[str, object]) -> dict[str, dict[str, Any]]:
        """
        Return the nodes where a Pod fits with these victims gone, or with others in their place.

        An entry stays as it came where the Pod fits. Else its victims are all Pods that hold
        something there and have a lower priority, less those that can stay: first those whose end
        breaks a disruption budget, then the highest, of equals those that hold least. Together they
        give back at least what kube-scheduler's victims would: it counts that and not the cards. Of
        a gang all that have begun go, or none: the node is left out if kube-scheduler wants one of
        them and not all are on it with a lower priority, or one that is about to begin there. For a
        member of a group none goes.

        Once `TRIES_MAX` sets were tried the other nodes are left out, those with most victims.

        Raises:
            InputError: the call can't be read.
        """
        pod = member(value, "Pod")
        if not isinstance(pod, dict):
            raise InputError("expected an object", field="Pod")
        request = self._view.requests.read(pod)
        if isinstance(request, RefusedPod) or group_name(request):
            return {}
        if self._is_due(request.uid):
            return {}
        self._places.asked_again(request.uid)
        priority = an_object(pod.get("spec"), "Pod.spec").get("priority") or 0
        if not isinstance(priority, int):
            raise InputError("expected a number", field="Pod.spec.priority")
        wanted = _victims(value)
        self.asks_for_sums |= not all(pods for pods, _ in wanted.values())
        judged = self._view.judged(request.uid)
        refused = None if judged is None or len(judged.filtered.passing) else judged
        if self._has_room_by_now(request, refused) or self._has_to_wait(request, pod, refused):
            return {}
        answer = self._answer(request, pod, priority, wanted)
        if answer:
            begun = self._begin(request.uid)
            for name, entry in answer.items():
                holders = {holding.pod_uid for holding in holdings_on(self._view, name)}
                if victims := holders.intersection(each["UID"] for each in entry["Pods"]):
                    begun.victims[name] = frozenset(victims)
        self.counts["named" if answer else "no victims"] += 1
        return answer

    def _answer(
        self,
        request: PodRequest,
        pod: Object,
        priority: int,
        wanted: Mapping[str, tuple[list[str], int]],
    ) -> dict[str, dict[str, Any]]:
        """Return the entries of the answer, of the nodes with the likeliest ones first."""
        asked = chain.from_iterable(amounts_of(pod))  # no holding counts huge pages, for one
        keeps = not _COUNTED.union(self._view.device_names).issuperset(asked)
        tries = Tries()
        found: dict[str, tuple[Candidates, list[str]]] = {}
        starting: dict[str, float] = {}  # by when a gang begins there, or gives up
        for name in self._likeliest_first(wanted):
            if tries.spent >= (TRIES_MAX if found else TRIES_WITHOUT_ANSWER_MAX):
                break
            until = max(map(self._groups.starts.comes_until, wanted[name][0]), default=0.0)
            if self._clock.monotonic() < until:
                starting[name] = until
                continue
            together, ending = self._groups.together, self._due(request.uid, name)
            candidates = Candidates(self._view, name, priority, together, tries, keeps, ending)
            victims = candidates.victims(request, wanted[name][0])
            if victims:
                found[name] = candidates, victims
        answer: dict[str, dict[str, Any]] = {}
        for name, (candidates, least) in found.items():
            pods, broken = wanted[name]
            victims = candidates.smaller(request, pods, least)
            if set(victims) >= set(pods):
                broken += candidates.broken(pods, [uid for uid in victims if uid not in pods])
            else:
                broken = candidates.broken((), victims)
            answer[name] = {"Pods": [{"UID": uid} for uid in victims], "NumPDBViolations": broken}
        if starting and not answer:
            self._wake_at(request.uid, *min(starting.items(), key=lambda each: each[1]))
        return answer

    def _likeliest_first(self, wanted: Mapping[str, tuple[list[str], int]]) -> list[str]:
        """Return the nodes in about the order in which kube-scheduler prefers them."""
        known = self._view.pods.seen

        def worth(name: str) -> tuple[int, int, int]:
            pods, violations = wanted[name]
            highest = max((known[uid].priority for uid in pods if uid in known), default=0)
            return violations, highest, len(pods)

        return sorted(wanted, key=worth)

    def _begin(self, uid: str) -> _Begun:
        """Remember that a Pod's preemption may begin now."""
        now = self._clock.monotonic()
        begun = _Begun(at=now, until=now + DUE_SECONDS)
        put_newest(self._begun, uid, begun, BEGUN_MAX)
        return begun

    def _wake_at(self, uid: str, name: str, at: float) -> None:
        """Let a Pod be woken then, which waits on a node."""
        begun = self._begun.get(uid) or self._begin(uid)
        begun.waits_on, begun.wakes_at = name, at

    def _has_room_by_now(self, request: PodRequest, refused: Judged | None) -> bool:
        """Tell whether room came free since the filter that refused a Pod; once for each filter."""
        uid, now = request.uid, self._clock.monotonic()
        if refused is None or now - self._filtered_at.get(uid, -inf) >= FILTER_SECONDS:
            return False
        best = self._view.engine.filter(request, refused.asked.nodes).best
        if best is None:
            return False
        del self._filtered_at[uid]
        self._wake_at(uid, best.node_name, now + FILTER_SECONDS)
        self.counts["has room by now"] += 1
        return True

    def _has_to_wait(
        self, request: PodRequest, pod: Mapping[str, Any], refused: Judged | None
    ) -> bool:
        """Tell whether no Pod may end for one now; it is woken once it has room, or in time."""
        nominated = text_in(pod, "status", "nominatedNodeName")
        begun, now = self._begun.get(request.uid), self._clock.monotonic()
        if begun is None or self._is_over(begun, nominated):
            begun = _Begun(at=now, until=now + DUE_SECONDS)
        is_new = now - begun.at < BEGUN_SECONDS
        for name in sorted({*begun.victims, nominated, *self._names(refused)} - {""}):
            named = begun.victims.get(name, frozenset()) if is_new else frozenset()
            ending = self._ending(name, named)
            ends_at = self._ends_at(map(self._view.pods.seen.get, ending))
            until = max(begun.until, ends_at + GRACE_DUE_SECONDS)
            if ending and now < until and fits_without(self._view, name, request, ending):
                begun.waits_on, begun.until = name, until
                begun.wakes_at = begun.at + BEGUN_SECONDS if named else until
                put_newest(self._begun, request.uid, begun, BEGUN_MAX)
                self._tell(request, len(ending), name)
                return True
        return False

    def ends_since(self, seconds: float) -> int:
        """Return how many Pods our own preemptions asked to end so lately, or are about to."""
        now = self._clock.monotonic()
        return sum(number for at, number in self._ends.values() if now - at < seconds)

    def waits(self, uid: str) -> bool:
        """Tell whether a Pod is there and waits for a node."""
        pod = self._view.pods.seen.get(uid)
        return pod is not None and not (pod.ended or pod.leaving or pod.node)

    def renew(self, asks: PodRequest | None = None) -> None:
        """Hold for all others whom room is made for what they get once their victims are gone."""
        but, now = "" if asks is None else asks.uid, self._clock.monotonic()
        for uid, act in list(self.own.items()):
            if act.over and not self.waits(uid):
                del self.own[uid]
            elif uid != but and not act.over and not self._places.node_of(uid):
                self._place(act, act.victims)
        least = -inf if asks is None else asks.snapshot.priority
        for uid, name in list(self._freed.items()):
            begun = self._begun.get(uid)
            if begun is None or now >= begun.until or not self.waits(uid):
                del self._freed[uid]
            elif uid != but and uid not in self.own and not self._places.node_of(uid):
                self._hold(uid, name, least)

    def _hold(self, uid: str, name: str, least: float = -inf) -> None:
        """Hold for a Pod what it gets on a node once all have ended there that are to."""
        request, begun = self._view.requests.by_uid(uid), self._begun[uid]
        if isinstance(request, PodRequest) and request.snapshot.priority >= least:
            with self._view.without(name, self._ending(name, begun.victims.get(name, ()))):
                self._places.promise(request, name)

    def needs(self, act: PreemptionDecided, left: Collection[str]) -> bool:
        """Tell whether a Pod gets room by the end of these, and without has none nor is to."""
        judged = self._view.judged(act.pod_uid)
        if judged and self._view.engine.filter(judged.request, judged.asked.nodes).best:
            return False
        gone = self._due(act.pod_uid, act.node_name).union(act.victims)
        return not self._place(act, gone.difference(left)) and self._place(act, gone)

    def _place(self, act: PreemptionDecided, gone: Collection[str]) -> bool:
        """Hold for a Pod what it gets with these gone, till its time is over; tell whether."""
        request = self._view.requests.by_uid(act.pod_uid)
        is_there = self._view.uid(act.node_name) == act.node_uid and self.waits(act.pod_uid)
        if not isinstance(request, PodRequest) or not is_there:
            return False
        with self._view.without(act.node_name, gone):
            seconds = (act.until_us - self._clock.wall_us()) / 1e6
            return self._places.promise(request, act.node_name, seconds)

    def _is_due(self, uid: str) -> bool:
        """Tell whether a preemption of our own lets nobody else end for a Pod."""
        act = self.own.get(uid)
        return act is not None and (not act.over or self._clock.wall_us() < act.until_us)

    def _gone(self, name: str) -> set[str]:
        """Return who holds something on a node and has ended or is about to, also before us."""
        held, known = (one.pod_uid for one in holdings_on(self._view, name)), self._view.pods.seen
        return {*self._ending(name, ()), *(uid for uid in held if uid not in known)}

    def begin_own(self, event: PreemptionDecided) -> None:
        """Let what comes free be for a Pod, and nobody else end for it; some end from now on."""
        begun = self._begin(event.pod_uid)
        begun.until = begun.at + (event.until_us - self._clock.wall_us()) / 1e6
        begun.waits_on, begun.wakes_at = event.node_name, begun.until
        begun.victims[event.node_name] = frozenset(event.victims)
        self.own[event.pod_uid] = event
        put_newest(self._ends, event.pod_uid, (begun.at, len(event.victims)), BEGUN_MAX)

    def forget_own(self, uid: str) -> None:
        """Forget what the ledger does not have."""
        self._begun.pop(uid, None)
        self.own.pop(uid, None)
        self._places.asked_again(uid)

    def stuck(self) -> list[PodRequest]:
        """Return the Pods that a filter left no node and nobody ends for, the highest first."""
        now, found = self._clock.monotonic(), list[PodRequest]()
        for uid, at in self._filtered_at.items():
            pod, judged = self._view.pods.pending(uid), self._view.judged(uid)
            begun = self._begun.get(uid)
            act = self.own.get(uid)
            is_late = act is not None and not self._gone(act.node_name).isdisjoint(act.victims)
            is_begun = is_late or self._is_due(uid) or (begun is not None and now < begun.until)
            if is_begun or pod is None or judged is None or len(judged.filtered.passing):
                continue
            is_leaving = pod["metadata"].get("deletionTimestamp")
            is_theirs = text_in(pod, "status", "nominatedNodeName") or group_name(judged.request)
            is_never = text_in(pod, "spec", "preemptionPolicy") == "Never"
            is_settled = STUCK_SECONDS <= now - at < OLD_SECONDS
            if is_settled and not (is_leaving or is_theirs or is_never):
                found.append(judged.request)
        return sorted(found, key=lambda each: -each.snapshot.priority)

    def room_for(
        self, request: PodRequest, able: Callable[[str], bool]
    ) -> PreemptionDecided | None:
        """Return whose end makes room in fragments and costs least, of those able to go."""
        view, uid = self._view, request.uid
        judged, pod = view.judged(uid), view.pods.pending(uid)
        if judged is None or pod is None or request not in self.stuck():
            return None
        if self._places.node_of(uid) or self._has_to_wait(request, pod, judged):
            return None
        self.renew()
        search, best = Search[str](TRIES_MAX), ""
        names = {view.directory.number(name): name for name in view.directory.names()}
        priority, together = request.snapshot.priority, self._groups.together
        for number in view.engine.in_pieces(request, judged.asked.nodes):
            name, due = names[number], self._due(uid, names[number])
            if not due.issuperset(self._gone(name)):
                continue  # an end is overdue: what it gives back may do
            here = Candidates(view, name, priority, together, Tries(), keeps=False, ending=due)
            best = name if here.look(request, search, able) else best
        if not search.ends:
            return None
        return PreemptionDecided(
            pod_uid=uid,
            namespace=request.namespace,
            pod_name=request.name,
            node_uid=view.uid(best) or "",
            node_name=best,
            victims=tuple(search.ends),
            until_us=self._clock.wall_us() + int(DUE_SECONDS * 1e6),
        )

    def _names(self, refused: Judged | None) -> list[str]:
        """Return the nodes with Pods that a filter asked about: kube-scheduler sees room."""
        if refused is None:
            return []
        asked, closed = frozenset(refused.asked.nodes.tolist()), self._view.directory.all_closed()
        uids = (u for u in self._view.holding_nodes() if self._view.numbers.get(u) in asked)
        states = map(self._view.recorded, uids)
        names = [state.name for state in states if state is not None]
        return names + [name for name in refused.asked.unknown if closed.get(name) == STRANGERS]

    def _is_over(self, begun: _Begun, nominated: str) -> bool:
        """Tell whether the victims that were named hold nothing any more, where they may end."""
        names = (nominated,) if nominated in begun.victims else tuple(begun.victims)
        return bool(names) and all(
            begun.victims[name].isdisjoint(one.pod_uid for one in holdings_on(self._view, name))
            for name in names
        )

    def _ends_at(self, pods: Iterable[PodSeen | None]) -> float:
        """Return by when these are to have ended, as the API says."""
        ends = -inf
        ahead = self._clock.monotonic() - self._clock.wall_us() / 1e6
        for text in (pod.leaving for pod in pods if pod is not None):
            if text:
                ends = max(ends, time_us(text, "metadata.deletionTimestamp") / 1e6 + ahead)
        return ends

    def _due(self, uid: str, name: str) -> frozenset[str]:
        """
        Return the Pods on a node whose end a Pod may count on yet.

        The end of one that has no `deletionTimestamp` is due for a preemption that has begun alone.
        """
        begun, now = self._begun.get(uid), self._clock.monotonic()
        known, gone = self._view.pods.seen, self._view.pods.gone.get(name, {})

        def due_until(uid: str) -> float:
            pod = known.get(uid)
            ends_at = self._ends_at([pod or gone.get(uid)])
            if pod is not None and not pod.ended:
                return ends_at + GRACE_DUE_SECONDS
            return max(ends_at + DUE_SECONDS, -inf if begun is None else begun.until)

        return frozenset(each for each in self._ending(name, ()) if now < due_until(each))

    def _ending(self, name: str, named: Collection[str]) -> list[str]:
        """Return the Pods that hold something on a node and are about to end, or have ended."""
        known, gone = self._view.pods.seen, self._view.pods.gone.get(name, {})
        is_closed = self._view.directory.closed(name) == STRANGERS
        strangers = sorted(self._view.strangers(name)) if is_closed else []
        ending = [uid for uid in strangers if known[uid].leaving]
        for holding in holdings_on(self._view, name):
            pod = known.get(holding.pod_uid)
            if pod is None:
                is_ending = holding.phase != RESERVED or holding.pod_uid in gone
            else:
                is_ending = bool(pod.ended or pod.leaving)
            if is_ending or holding.pod_uid in named:
                ending.append(holding.pod_uid)
        return ending

    def _tell(self, request: PodRequest, count: int, name: str) -> None:
        self.counts["waits for ends"] += 1
        subject = about_pod(request.namespace, request.name, request.uid)
        note = f"waits for the end of {count} Pods on node {name}"
        self._telling.tell(subject, WAITS, note, action="Preempting", kind=NORMAL)

    def _take_event(self, _position: int, event: LedgerEvent, _holding: Holding | None) -> None:
        """Hold what comes free for the Pod that it came free for, the highest first."""
        if isinstance(event, PreemptionDecided) and event.over:
            self.own[event.pod_uid] = event
            self._places.asked_again(event.pod_uid)
        elif isinstance(event, PreemptionDecided):
            self.begin_own(event)
        state = self._view.recorded(event.node_uid) if isinstance(event, PodReleased) else None
        if state is None:
            return
        assert isinstance(event, PodReleased)
        now, waiting = self._clock.monotonic(), []
        for uid, begun in self._begun.items():
            is_theirs = event.pod_uid in begun.victims.get(state.name, ())
            waits = now < begun.until and (is_theirs or begun.waits_on == state.name)
            pod = self._view.pods.pending(uid) if waits else None
            if pod is None or pod["metadata"].get("deletionTimestamp"):
                continue
            if text_in(pod, "status", "nominatedNodeName") not in {"", state.name}:
                continue  # kube-scheduler has taken another of the nodes
            request = self._view.requests.by_uid(uid)
            if isinstance(request, PodRequest):
                self._freed[uid] = state.name
                waiting.append((-request.snapshot.priority, not is_theirs, uid))
        for *_, uid in sorted(waiting, key=lambda each: each[:2]):
            self._hold(uid, state.name)

    def expire(self) -> None:
        """
        Wake the Pods that have waited long enough for ends, and forget what was long ago.

        The Pod that is woken at the end of its wait is asked about meanwhile.
        """
        now = self._clock.monotonic()
        for uid, begun in list(self._begun.items()):
            if begun.wakes_at <= now:
                name, begun.waits_on, begun.wakes_at = begun.waits_on, "", inf
                self._view.wakeups.room_freed.publish(name)
            elif begun.wakes_at == inf and begun.until + DUE_SECONDS <= now:
                self._begun.pop(uid, None)

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed; one that has a node waits no more."""
        if (item.get("spec") or {}).get("nodeName"):
            self.drop(uid)

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        self._begun.pop(uid, None)
        self._filtered_at.pop(uid, None)


def read_victims(body: bytes) -> dict[str, object]:
    """Return a question for victims. Raises InputError."""
    return decode_bounded(body, dict[str, object], nested_max=WHOLE_NESTED_MAX)


def _victims(value: Mapping[str, object]) -> dict[str, tuple[list[str], int]]:
    """Return node name -> UIDs of its victims, and how many budgets they break."""
    found: dict[str, tuple[list[str], int]] = {}
    by_uid = member(value, "NodeNameToMetaVictims")
    key = "NodeNameToVictims" if by_uid is None else "NodeNameToMetaVictims"
    entries = an_object(member(value, "NodeNameToVictims") if by_uid is None else by_uid, key)
    count = 0
    for name, entry in entries.items():
        victims = an_object(entry, f"{key}[{name}]")
        pods = a_list(member(victims, "Pods"), f"{key}[{name}].Pods")
        count += 1 + len(pods)
        if count > VICTIMS_MAX:
            raise InputError(f"too many: count={count}, most={VICTIMS_MAX}", field=key)
        violations = member(victims, "NumPDBViolations")
        found[name] = (
            [_uid(pod, f"{key}[{name}].Pods[{number}]") for number, pod in enumerate(pods)],
            violations if isinstance(violations, int) else 0,
        )
    return found


def _uid(pod: object, path: str) -> str:
    victim = an_object(pod, path)
    if "metadata" in victim:
        return text_at(an_object(victim["metadata"], f"{path}.metadata"), "uid", path)
    uid = member(victim, "UID")
    if not isinstance(uid, str):
        raise InputError("missing", field=f"{path}.UID")
    return uid
