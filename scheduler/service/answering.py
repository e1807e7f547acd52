"""kube-scheduler's calls answered from memory: bytes in, bytes out, nothing waits but a bind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any, Final, Protocol

import numpy as np

from certs.ports import Object
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import found_in, is_label, is_name, text_at
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import RefusedPod
from scheduler.decide.bounded import decode_bounded
from scheduler.decide.extender import (
    ExtenderArguments,
    failed_filter,
    member,
    read_arguments,
    without_names,
)
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import Placement
from scheduler.service.groups import LiveGroups
from scheduler.service.kept import PodSeen
from scheduler.service.ports import BindCall, WhyNot
from scheduler.service.view import ClusterView, Judged

# {"Pod": {...}, "NodeNameToVictims": {"n-1": {"Pods": [{...}], "NumPDBViolations": 0}}}
# {"Pod": {...}, "NodeNameToMetaVictims": {"n-1": {"Pods": [{"UID": "..."}], ...}}}


VICTIMS_NESTED_MAX: Final = 1 << 18
"""Opening brackets where victims come whole: 3,000 Pods have as many."""
VICTIMS_MAX: Final = 1 << 16
"""kube-scheduler looks for them on 500 of 5,000 nodes, of 110 Pods each."""


class NotNowError(Exception):
    """Nothing is answered now; kube-scheduler tries again."""


class Binds(Protocol):
    """Who binds Pods; see `scheduler.service.binding.Binder`."""

    async def bind(self, call: BindCall) -> str:
        """Bind a Pod; return why not, empty when it is bound there."""
        ...


class Holds(Protocol):
    """Who keeps soft holds between the choice of a node and its bind (design section 5.2)."""

    def asked_again(self, pod_uid: str) -> None:
        """Take back what a Pod was expected to get: it is filtered anew."""
        ...

    def expected(self, placement: Placement, pod: Object, decided_at: int = -1) -> None:
        """Keep what a Pod would get on the node that is expected to win."""
        ...


class Refusals(Protocol):
    """Who keeps why Pods wait; see `scheduler.service.refusing.Refusing`."""

    def noted(
        self, asked: PodRequest | RefusedPod, offered: IntArray | None = None, why: str = ""
    ) -> None:
        """Take note that a filter left a Pod no node; nothing waits."""
        ...


@dataclass(frozen=True, slots=True)
class _Answered:
    """A filter that was answered: the end of the answer, and `NodeDirectory.changes` then."""

    judged: Judged
    names: bytes
    changes: int


class Extender:
    """
    Answers filter, prioritize, preempt and bind.

    Rule: GPU-sharing contract C.3 to C.5; design section 5.2. The expected winner gets a soft hold
    once prioritize was answered, or filter with one node: then kube-scheduler asks no further.

    Raises:
        InputError: from each call, if it can't be read.
        NotNowError: from prioritize and preempt, if nothing is answered now.
    """

    def __init__(
        self,
        view: ClusterView,
        binds: Binds,
        *,
        why_not: WhyNot,
        groups: LiveGroups,
        holds: Holds,
        refusals: Refusals,
    ) -> None:
        self._view = view
        self._groups = groups
        self._binds = binds
        self._why_not = why_not
        self._holds = holds
        self._refusals = refusals
        self._answered: _Answered | None = None

    def filter(self, body: bytes, arguments: ExtenderArguments | None = None) -> bytes:
        """Answer which nodes may take a Pod, with a reason for every other."""
        arguments = arguments or read_arguments(body)
        why = self._why_not()
        if why:
            return failed_filter(why)
        view = self._view
        try:
            request = view.requests.read(arguments.pod)
        except InputError as error:
            unread = _unread(arguments.pod, error)
            if unread is not None:
                self._refusals.noted(unread)
            return view.directory.refusal(view.directory.ask(arguments.node_names), str(error))
        if isinstance(request, RefusedPod):
            self._refusals.noted(request, why=request.message)
            asked = view.directory.ask(arguments.node_names)
            return view.directory.refusal(asked, request.message)
        self._holds.asked_again(request.uid)
        why = self._groups.why_not_yet(request)
        if why:
            return failed_filter(why)
        judged = self._judge(request, arguments.node_names)
        best = judged.filtered.best
        if not len(judged.filtered.passing) and not _is_nominated(arguments):
            self._refusals.noted(request, judged.asked.nodes, why=judged.refusal)
        if best is not None and len(judged.filtered.passing) == 1:
            self._holds.expected(best, arguments.pod, judged.decided_at)
        answer = view.directory.filter_result(judged.asked, judged.filtered, arguments.nodes)
        cut = without_names(answer)
        if cut is not None:
            self._answered = _Answered(judged, cut[1], view.directory.changes)
        return answer

    def prioritize(self, body: bytes, arguments: ExtenderArguments | None = None) -> bytes:
        """
        Answer how good the nodes are that are left, by what the filter before found.

        Raises:
            InputError: also of a Pod that no node can take.
        """
        pod = None if arguments else self._pod_of_last(body)
        if pod is not None and self._answered is not None:
            judged = self._answered.judged
        else:
            arguments = arguments or read_arguments(body)
            self._check_now()
            pod, judged = arguments.pod, self._judged(arguments)
        best = judged.filtered.best
        if best is not None:
            self._holds.expected(best, pod, judged.decided_at)
        return self._view.directory.priorities(judged.asked, judged.filtered)

    def _pod_of_last(self, body: bytes) -> Mapping[str, object] | None:
        """
        Return the Pod of a question that ends as the last filter's answer did, which was its.

        Thousands of names are then neither read nor looked up again. None: all has to be read, as
        after a node came, went or closed.
        """
        last, cut = self._answered, without_names(body)
        if last is None or cut is None or cut[1] != last.names:
            return None
        if last.changes != self._view.directory.changes:
            return None
        try:
            pod = found_in(decode_bounded(cut[0], dict[str, object]), "Pod")
        except InputError:
            return None
        if not isinstance(pod, dict):
            return None
        self._check_now()
        request = self._view.requests.read(pod)
        judged = None if isinstance(request, RefusedPod) else self._view.judged(request.uid)
        return pod if judged is last.judged else None

    def _judged(self, arguments: ExtenderArguments) -> Judged:
        view = self._view
        request = view.requests.read(arguments.pod)
        if isinstance(request, RefusedPod):
            raise InputError(request.message, field="Pod")
        judged = view.judged(request.uid)
        if judged is not None:
            asked = view.directory.ask(arguments.node_names)
            passing = judged.asked.nodes.take(judged.filtered.passing)
            if not asked.unknown and np.array_equal(asked.nodes, passing):
                return judged
        self._holds.asked_again(request.uid)
        return self._judge(request, arguments.node_names)

    def _judge(self, request: PodRequest, names: Sequence[str]) -> Judged:
        judge = self._groups.judge if group_name(request) else self._view.judge
        return judge(request, names)

    def preempt(self, body: bytes, value: Mapping[str, object] | None = None) -> bytes:
        """Answer which Pods would have to go, node by node."""
        value = value or read_victims(body)
        self._check_now()
        found = preempt(self._view, value, self._groups.together, self._holds.asked_again)
        return json.dumps({"NodeNameToMetaVictims": found}).encode()

    async def bind(self, body: bytes) -> bytes:
        """Bind a Pod, or say why not."""
        value = decode_bounded(body, dict[str, object])
        words = {
            key: text_at({key: member(value, key)}, key, "")
            for key in ("PodNamespace", "PodName", "PodUID", "Node")
        }
        for key, word in words.items():
            is_one = is_label if key in {"PodNamespace", "PodUID"} else is_name
            if not is_one(word):
                fact = f"no object is called so: value={word[:40]!r}" if word else "missing"
                raise InputError(fact, field=key)
        error = self._why_not()
        if not error:
            call = BindCall(
                namespace=words["PodNamespace"],
                pod_name=words["PodName"],
                pod_uid=words["PodUID"],
                node_name=words["Node"],
            )
            error = await self._binds.bind(call)
        return json.dumps({"Error": error}).encode()

    def _check_now(self) -> None:
        why = self._why_not()
        if why:
            raise NotNowError(why)


def _is_nominated(arguments: ExtenderArguments) -> bool:
    nominated = found_in(arguments.pod, "status", "nominatedNodeName")
    return bool(nominated) and list(arguments.node_names) == [nominated]


def _unread(pod: Mapping[str, object], error: InputError) -> RefusedPod | None:
    """Return a Pod that can't be read as one that is refused; None where it has no name even."""
    uid, namespace, name = (found_in(pod, "metadata", key) for key in ("uid", "namespace", "name"))
    if not (isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str) and uid):
        return None
    why = FieldError(field=error.field, reason="FieldValueInvalid", message=error.message)
    return RefusedPod(uid=uid, namespace=namespace, name=name, errors=(why,))


def read_victims(body: bytes) -> dict[str, object]:
    """Return a question for victims. Raises InputError."""
    return decode_bounded(body, dict[str, object], nested_max=VICTIMS_NESTED_MAX)


def preempt(
    view: ClusterView,
    value: Mapping[str, object],
    together: Callable[[str], frozenset[str]] = lambda uid: frozenset((uid,)),
    asked_again: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """
    Return the nodes where a Pod fits with these victims gone, or with a few more of them.

    Rule: GPU-sharing contract C.5, "Ours". An entry stays as it came where the Pod fits. Further
    victims have a lower priority than the Pod: first those whose end breaks no disruption budget,
    of these the lowest, of equals those that hold least. One that the Pod fits beside is spared,
    the last chosen first. Budgets that they break besides are added to the entry's count, by which
    kube-scheduler picks a node before all else. All then come as it expects, the highest priority
    first. Of a gang all who have begun go, or none: the node is left out if kube-scheduler wants
    one of them and not all are on it with a lower priority. For a member of a group none goes.

    Args:
        together: the UIDs of all Pods that go with a Pod, and its own.
        asked_again: takes back what a Pod was expected to get by its filter.

    Raises:
        InputError: the call can't be read.
    """
    pod = member(value, "Pod")
    if not isinstance(pod, dict):
        raise InputError("expected an object", field="Pod")
    request = view.requests.read(pod)
    if isinstance(request, RefusedPod) or group_name(request):
        return {}
    asked_again(request.uid)
    priority = an_object(pod.get("spec"), "Pod.spec").get("priority") or 0
    if not isinstance(priority, int):
        raise InputError("expected a number", field="Pod.spec.priority")
    answer: dict[str, dict[str, Any]] = {}
    for name, (pods, violations) in _victims(value).items():
        crew = _Crew(view, name, priority, together)
        gone = crew.with_gangs(pods)
        if gone is None:
            continue
        more = _further(crew, request, gone)
        if more is not None and (gone or more):
            further = (*gone[len(pods) :], *more)
            victims = crew.highest_first((*pods, *further)) if further else pods
            answer[name] = {
                "Pods": [{"UID": uid} for uid in victims],
                "NumPDBViolations": violations + crew.broken(pods, further),
            }
    return answer


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

    def with_gangs(self, pods: Sequence[str]) -> list[str] | None:
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
        is_here = pod is not None and pod.node == self.name and not pod.ended
        return pod is not None and is_here and pod.priority < self.priority

    def able(self, gone: Sequence[str]) -> list[tuple[str, ...]]:
        """Return who else may go: each alone, or with all of its gang."""
        crews = {tuple(sorted(self.together(each))) for each in self._sizes() if each not in gone}
        return [crew for crew in crews if all(map(self._may_go, crew))]

    def cheapest(self, able: Sequence[tuple[str, ...]], gone: Sequence[str]) -> tuple[str, ...]:
        """Return whose end costs least once others have gone."""
        sizes, pods = self._sizes(), self.view.pods.seen

        def cost(crew: tuple[str, ...]) -> tuple[int, int, int, tuple[str, ...]]:
            highest = max(pods[each].priority for each in crew)
            held = sum(sizes.get(each, 0) for each in crew)
            return self.broken(gone, crew), highest, held, crew

        return min(able, key=cost)

    def broken(self, gone: Sequence[str], more: Sequence[str]) -> int:
        """Return how many of further victims break a disruption budget beside the others."""
        return self.view.disruptions.broken(self._seen(gone), self._seen(more))

    def highest_first(self, uids: Sequence[str]) -> list[str]:
        """Return victims by falling priority; one of whom nothing is known stays in front."""
        seen = self.view.pods.seen
        return sorted(uids, key=lambda uid: -seen[uid].priority if uid in seen else -inf)

    def _seen(self, uids: Sequence[str]) -> list[PodSeen]:
        seen = self.view.pods.seen
        return [seen[uid] for uid in uids if uid in seen]

    def _sizes(self) -> dict[str, int]:
        uid = self.view.uid(self.name)
        held = {} if uid is None else self.view.holdings(uid)
        return {
            holding.pod_uid: sum(share.core_percent for share in holding.shares)
            + len(holding.cpuset)
            for holding in held.values()
        }

    def fits(self, request: PodRequest, gone: Sequence[str]) -> bool:
        """Tell whether the Pod fits with these gone."""
        with self.view.without(self.name, gone):
            return self.view.fits(request, self.name)


def _further(crew: _Crew, request: PodRequest, gone: Sequence[str]) -> list[str] | None:
    """Return who else has to go for the Pod to fit on a node, None where nobody can help."""
    if crew.view.directory.number(crew.name) is None:
        return None
    if crew.fits(request, gone):
        return []
    more: list[tuple[str, ...]] = []
    able = crew.able(gone)
    while able:
        cheapest = crew.cheapest(able, (*gone, *chain(*more)))
        able.remove(cheapest)
        more.append(cheapest)
        if crew.fits(request, (*gone, *chain(*more))):
            break
    else:
        return None
    for each in reversed(more[:-1]):
        fewer = [other for other in more if other != each]
        if crew.fits(request, (*gone, *chain(*fewer))):
            more = fewer
    return list(chain(*more))
