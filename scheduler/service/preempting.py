"""
Whom kube-scheduler may end for a Pod, and that it ends nobody else while they end.

Rule: GPU-sharing contract C.5, "Ours"; docs/adr/0041.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import inf
from typing import Any, Final, Protocol

from certs.ports import Object
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_at, text_in
from ledger.domain.log.events import LedgerEvent, PodReleased
from ledger.domain.log.state import Holding
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import RefusedPod
from scheduler.decide.bounded import decode_bounded
from scheduler.decide.extender import WHOLE_NESTED_MAX, member
from scheduler.service.agents import SILENT_SECONDS
from scheduler.service.budgets import put_newest
from scheduler.service.ending import RESERVED
from scheduler.service.kept import PodSeen
from scheduler.service.ports import Clock
from scheduler.service.telling import NORMAL, Telling, about_pod
from scheduler.service.view import ClusterView, Judged

BEGUN_SECONDS: Final = 5.0
"""So long after an answer its victims may be about to end, though no watch has told of it."""
DUE_SECONDS: Final = SILENT_SECONDS + 30.0
"""
So long no further Pods end while some do: by then a silent agent's node has kubelet's word for it,
and a sweep has looked.
"""
VICTIMS_MAX: Final = 1 << 16
"""kube-scheduler looks for them on 500 of 5,000 nodes, of 110 Pods each."""
TRIES_MAX: Final = 500
"""Sets of victims that one question looks at for a smaller one: a fifth of a second at most."""
BEGUN_MAX: Final = 4_096
"""Preemptions that are remembered, of those that were answered last."""
WAITS: Final = "WaitsForEnds"
_LOWEST: Final = 1 << 31
"""Makes every priority count, so that a Pod more is never cheaper, as kube-scheduler does."""

# {"Pod": {...}, "NodeNameToVictims": {"n-1": {"Pods": [{...}], "NumPDBViolations": 0}}}
# {"Pod": {...}, "NodeNameToMetaVictims": {"n-1": {"Pods": [{"UID": "..."}], ...}}}


class Places(Protocol):
    """Who keeps soft holds; see `scheduler.service.holds.Holds`."""

    def asked_again(self, pod_uid: str) -> None:
        """Take back what a Pod was expected to get."""
        ...

    def promise(self, request: PodRequest, pod: Object, node_name: str) -> None:
        """Hold for a Pod what it gets on a node, if it has a place there."""
        ...


@dataclass(slots=True, kw_only=True)
class _Begun:
    """
    A preemption that may be under way.

    Attributes:
        at: when its victims were named, or its nomination was met first.
        victims: UIDs by the node that they were named of; kube-scheduler takes one of the nodes.
        waits_on: the node whose ends the Pod was told to wait for; empty = none.
        wakes_at: when it is woken, whatever has ended by then.
    """

    at: float
    victims: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waits_on: str = ""
    wakes_at: float = inf


class Preempting:
    """
    Answers the preempt verb, and a sink of Pods that may end a wait.

    kube-scheduler asks again as soon as the victims' objects are gone, and their cards are given
    back by the ledger later. Until then nobody else ends for the Pod, and what comes free on its
    node is held for it.

    Attributes:
        counts: answers by what they were.
    """

    def __init__(
        self,
        view: ClusterView,
        places: Places,
        telling: Telling,
        clock: Clock,
        *,
        together: Callable[[str], frozenset[str]],
    ) -> None:
        self._view = view
        self._places = places
        self._telling = telling
        self._clock = clock
        self._together = together
        self._begun: dict[str, _Begun] = {}  # by UID of the Pod
        self._judged: dict[str, Judged] = {}  # filters that refused what has a place since
        self.counts: Counter[str] = Counter()
        view.wakeups.event_folded.subscribe(self._take_event)

    def answer(self, value: Mapping[str, object]) -> dict[str, dict[str, Any]]:
        """
        Return the nodes where a Pod fits with these victims gone, or with others in their place.

        An entry stays as it came where the Pod fits. Else its victims are all who hold something
        there and have a lower priority, less those that can stay: first those whose end breaks a
        disruption budget, then the highest, of equals those that hold least. Together they give
        back at least what kube-scheduler's victims would: it counts that and not the cards. Of a
        gang all who have begun go, or none: the node is left out if kube-scheduler wants one of
        them and not all are on it with a lower priority. For a member of a group none goes.

        Raises:
            InputError: the call can't be read.
        """
        pod = member(value, "Pod")
        if not isinstance(pod, dict):
            raise InputError("expected an object", field="Pod")
        request = self._view.requests.read(pod)
        if isinstance(request, RefusedPod) or group_name(request):
            return {}
        self._places.asked_again(request.uid)
        priority = an_object(pod.get("spec"), "Pod.spec").get("priority") or 0
        if not isinstance(priority, int):
            raise InputError("expected a number", field="Pod.spec.priority")
        wanted = _victims(value)
        judged = self._view.judged(request.uid)
        refused = None if judged is None or len(judged.filtered.passing) else judged
        if self._has_room_by_now(request, refused) or self._has_to_wait(request, pod, refused):
            return {}
        answer: dict[str, dict[str, Any]] = {}
        tries = iter(range(TRIES_MAX))
        for name, (pods, violations) in wanted.items():
            crew = _Crew(self._view, name, priority, self._together, tries)
            victims = crew.victims(request, pods)
            if victims:
                broken = violations
                if set(victims) >= set(pods):
                    broken += crew.broken(pods, [uid for uid in victims if uid not in pods])
                else:
                    broken = crew.broken((), victims)
                answer[name] = {
                    "Pods": [{"UID": uid} for uid in victims],
                    "NumPDBViolations": broken,
                }
        if answer:
            victims_of = {
                name: frozenset(each["UID"] for each in entry["Pods"])
                for name, entry in answer.items()
            }
            begun = _Begun(at=self._clock.monotonic(), victims=victims_of)
            put_newest(self._begun, request.uid, begun, BEGUN_MAX)
        self.counts["named" if answer else "nobody"] += 1
        return answer

    def _has_room_by_now(self, request: PodRequest, refused: Judged | None) -> bool:
        """Tell whether room came free since the filter that refused a Pod; once for each filter."""
        uid = request.uid
        if refused is None or refused is self._judged.get(uid):
            return False
        if not len(self._view.engine.filter(request, refused.asked.nodes).passing):
            return False
        put_newest(self._judged, uid, refused, BEGUN_MAX)
        self.counts["has room by now"] += 1
        return True

    def _has_to_wait(
        self, request: PodRequest, pod: Mapping[str, Any], refused: Judged | None
    ) -> bool:
        """Tell whether nobody may end for a Pod now; it is woken once it has room, or in time."""
        nominated = text_in(pod, "status", "nominatedNodeName")
        begun, now = self._begun.get(request.uid), self._clock.monotonic()
        if begun is None or self._is_over(begun):
            begun = _Begun(at=now)
        age = now - begun.at
        if age >= DUE_SECONDS:
            return False
        for name in sorted({*begun.victims, nominated, *self._names(refused)} - {""}):
            named = begun.victims.get(name, frozenset()) if age < BEGUN_SECONDS else frozenset()
            ending = self._ending(name, named)
            if ending and _fits(self._view, name, request, ending):
                begun.waits_on = name
                begun.wakes_at = begun.at + (BEGUN_SECONDS if named else DUE_SECONDS)
                put_newest(self._begun, request.uid, begun, BEGUN_MAX)
                self._tell(request, len(ending), name)
                return True
        return False

    def _names(self, refused: Judged | None) -> list[str]:
        """Return the nodes with holders that a filter asked about: kube-scheduler sees room."""
        if refused is None:
            return []
        asked = frozenset(refused.asked.nodes.tolist())
        uids = (u for u in self._view.holding_nodes() if self._view.numbers.get(u) in asked)
        states = map(self._view.recorded, uids)
        return [state.name for state in states if state is not None]

    def _is_over(self, begun: _Begun) -> bool:
        """Tell whether all that were named of a node hold nothing there any more."""
        return any(
            victims.isdisjoint(held.pod_uid for held in self._held(name))
            for name, victims in begun.victims.items()
        )

    def _held(self, name: str) -> Collection[Holding]:
        uid = self._view.uid(name)
        return () if uid is None else self._view.holdings(uid).values()

    def _ending(self, name: str, named: Collection[str]) -> list[str]:
        """Return who holds something on a node and is about to end there, or has ended."""
        seen, gone, ending = self._view.pods.seen, self._view.pods.gone.get(name, {}), []
        for held in self._held(name):
            pod = seen.get(held.pod_uid)
            if pod is None:
                is_ending = held.phase != RESERVED or held.pod_uid in gone
            else:
                is_ending = bool(pod.ended) or pod.leaving
            if is_ending or held.pod_uid in named:
                ending.append(held.pod_uid)
        return ending

    def _tell(self, request: PodRequest, count: int, name: str) -> None:
        self.counts["waits for ends"] += 1
        subject = about_pod(request.namespace, request.name, request.uid)
        note = f"waits for the end of {count} Pods on node {name}"
        self._telling.tell(subject, WAITS, note, action="Preempting", kind=NORMAL)

    def _take_event(self, _position: int, event: LedgerEvent, _holding: Holding | None) -> None:
        """Hold what comes free for the Pod that it came free for, the highest first."""
        state = self._view.recorded(event.node_uid) if isinstance(event, PodReleased) else None
        if state is None:
            return
        assert isinstance(event, PodReleased)
        for uid, begun in list(self._begun.items()):
            is_theirs = event.pod_uid in begun.victims.get(state.name, ())
            waits = is_theirs or begun.waits_on == state.name
            pod = self._view.pods.pending(uid) if waits else None
            request = None if pod is None else self._view.requests.by_uid(uid)
            if pod is not None and isinstance(request, PodRequest):
                self._places.promise(request, pod, state.name)

    def expire(self) -> None:
        """Wake who has waited long enough for ends."""
        now = self._clock.monotonic()
        for begun in list(self._begun.values()):
            if begun.wakes_at <= now:
                begun.wakes_at = inf
                self._view.wakeups.room_freed.publish(begun.waits_on)

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed; who has a node waits no more."""
        if (item.get("spec") or {}).get("nodeName"):
            self.drop(uid)

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        self._begun.pop(uid, None)
        self._judged.pop(uid, None)


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


@dataclass(frozen=True, slots=True)
class _Crew:
    """Who holds something on a node, as far as they may go for a Pod of a priority."""

    view: ClusterView
    name: str
    priority: int
    together: Callable[[str], frozenset[str]]
    tries: Iterator[int]

    def victims(self, request: PodRequest, wanted: Sequence[str]) -> list[str]:
        """Return who has to go for the Pod to fit, the highest first; nobody: that is no help."""
        if self.view.directory.number(self.name) is None:
            return []
        gone = self._with_gangs(wanted)
        if gone is None:
            return []
        if not self._fits(request, gone):
            gone = self._least(request, gone)
        return list(gone) if gone == list(wanted) else self._highest_first(gone)

    def _fits(self, request: PodRequest, gone: Collection[str]) -> bool:
        return _fits(self.view, self.name, request, gone)

    def broken(self, gone: Sequence[str], more: Sequence[str]) -> int:
        """Return how many of further victims break a disruption budget beside the others."""
        return self.view.disruptions.broken(self._seen(gone), self._seen(more))

    def _with_gangs(self, pods: Sequence[str]) -> list[str] | None:
        """Return these victims and the rest of their gangs, None where not all of one may go."""
        gone = list(pods)
        for uid in pods:
            others = self.together(uid) - frozenset(gone)
            if not all(map(self._may_go, others)):
                return None
            gone += sorted(others)
        return gone

    def _may_go(self, uid: str) -> bool:
        pod = self.view.pods.seen.get(uid)
        is_here = pod is not None and pod.node == self.name and not (pod.ended or pod.leaving)
        return pod is not None and is_here and pod.priority < self.priority

    def _least(self, request: PodRequest, wanted: Sequence[str]) -> list[str]:
        """Return who of all who may go can't stay for the Pod to fit; nobody: that is no help."""
        held = self._held()
        able = self._able(held)
        may_go = frozenset(chain(*able))
        anyway = [uid for uid in wanted if uid not in may_go]
        least = _sum(held, wanted)
        ordered = self._dearest_first(able, held)
        going = set(may_go)
        with self.view.without(self.name, {*anyway, *may_go}) as lifted:
            if not self.view.fits(request, self.name):
                return []
            for crew in ordered:
                if least - _sum(held, (*anyway, *going.difference(crew))):
                    continue  # kube-scheduler wants more back
                lifted.put_back(crew)
                if self.view.fits(request, self.name):
                    going.difference_update(crew)
                else:
                    lifted.lift(crew)
        found = [*anyway, *sorted(going)]
        cost = self._cost(found)
        ordered.reverse()
        for size in range(1, min(len(ordered) + 1, len(going))):
            if size + len(anyway) < len(wanted):
                continue  # kube-scheduler spared whom it could
            for crews in combinations(ordered, size):
                if next(self.tries, None) is None:
                    return found
                gone = [*anyway, *chain(*crews)]
                is_enough = not least - _sum(held, gone)
                if is_enough and self._cost(gone) < cost and self._fits(request, gone):
                    return gone
        return found

    def _cost(self, gone: Sequence[str]) -> tuple[int, int, int, int]:
        """Return what kube-scheduler compares nodes by: the least is the best."""
        priorities = [pod.priority for pod in self._seen(gone)]
        total = sum(each + _LOWEST for each in priorities)
        return self.broken((), gone), max(priorities, default=0), total, len(gone)

    def _able(self, held: Mapping[str, Holding]) -> set[tuple[str, ...]]:
        """Return who may go: each alone, or with all of its gang."""
        crews = {tuple(sorted(self.together(each))) for each in held}
        return {crew for crew in crews if all(map(self._may_go, crew))}

    def _dearest_first(
        self, crews: Collection[tuple[str, ...]], held: Mapping[str, Holding]
    ) -> list[tuple[str, ...]]:
        """Return whose end costs most in front: they break budgets that others have spent."""
        pods = self.view.pods.seen

        def worth(crew: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
            sizes = (_size(held[each]) for each in crew if each in held)
            return max(pods[each].priority for each in crew), -sum(sizes), crew

        cheapest_first = sorted(crews, key=worth)
        before: list[str] = []
        breaks: dict[tuple[str, ...], int] = {}
        for crew in cheapest_first:
            breaks[crew] = self.broken(before, crew)
            before += crew
        cheapest_first.reverse()
        return sorted(cheapest_first, key=lambda crew: -breaks[crew])

    def _highest_first(self, uids: Sequence[str]) -> list[str]:
        """Return victims by falling priority; one of whom nothing is known stays in front."""
        seen = self.view.pods.seen
        return sorted(uids, key=lambda uid: -seen[uid].priority if uid in seen else -inf)

    def _seen(self, uids: Sequence[str]) -> list[PodSeen]:
        seen = self.view.pods.seen
        return [seen[uid] for uid in uids if uid in seen]

    def _held(self) -> dict[str, Holding]:
        uid = self.view.uid(self.name)
        held = {} if uid is None else self.view.holdings(uid)
        return {holding.pod_uid: holding for holding in held.values()}


def _fits(view: ClusterView, name: str, request: PodRequest, gone: Collection[str]) -> bool:
    """Tell whether a Pod fits on a node with these gone."""
    if view.uid(name) is None:
        return False
    with view.without(name, gone):
        return view.fits(request, name)


def _size(holding: Holding) -> int:
    return sum(share.core_percent for share in holding.shares) + len(holding.cpuset)


def _sum(held: Mapping[str, Holding], uids: Collection[str]) -> Counter[str]:
    """Count what these give back of all that kube-scheduler may count."""
    total: Counter[str] = Counter()
    for holding in (held[uid] for uid in uids if uid in held):
        total["cpu"] += holding.cpu_milli
        total["memory"] += holding.memory_bytes
        for share in holding.shares:
            total[f"{share.device_type} number"] += 1
            total[f"{share.device_type} core"] += share.core_percent
            total[f"{share.device_type} memory"] += share.memory_bytes
    return total
