"""Whether a Pod fits on a node once others went, and which more would have to go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_at
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import RefusedPod
from scheduler.decide.extender import member
from scheduler.service.kept import PodSeen
from scheduler.service.view import ClusterView

# {"Pod": {...}, "NodeNameToVictims": {"n-1": {"Pods": [{...}], "NumPDBViolations": 0}}}
# {"Pod": {...}, "NodeNameToMetaVictims": {"n-1": {"Pods": [{"UID": "..."}], ...}}}


def preempt(
    view: ClusterView,
    value: Mapping[str, object],
    together: Callable[[str], frozenset[str]] = lambda uid: frozenset((uid,)),
    asked_again: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """
    Return the nodes where a Pod fits with these victims gone, or with a few more of them.

    Rule: GPU-sharing contract C.5, "Ours". An entry is kept as it came where the Pod fits. Further
    victims have a lower priority than the Pod: first those whose end breaks no disruption budget,
    of these the lowest, of equals those that hold least; one without whom it fits too is spared,
    the last chosen first. Budgets that they break beside the victims that came are added to the
    entry's count, by which kube-scheduler picks a node before all else; all of them then come in
    the order that it expects, the highest priority first. Of a gang all go who have begun, or
    nobody: where they are not all on the node and of a lower priority, the node is left out if
    kube-scheduler wants one of them. For a member of a group nobody goes: who would have to for
    all of it is not looked for.

    Args:
        together: the UIDs of all who stand or fall with a Pod, and its own.
        asked_again: takes back what a Pod was expected to get by its filter.

    Raises:
        InputError: the call can't be read.
    """
    pod = member(value, "Pod")
    if not isinstance(pod, dict):
        raise InputError("expected an object", field="Pod")
    request = view.asks(pod)
    if isinstance(request, RefusedPod) or group_name(request):
        return {}
    asked_again(request.uid)
    priority = int(an_object(pod.get("spec"), "Pod.spec").get("priority") or 0)  # type: ignore[call-overload]
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
    for name, entry in entries.items():
        victims = an_object(entry, f"{key}[{name}]")
        pods = a_list(member(victims, "Pods"), f"{key}[{name}].Pods")
        violations = member(victims, "NumPDBViolations")
        found[name] = (
            [_uid(pod, f"{key}[{name}].Pods[{number}]") for number, pod in enumerate(pods)],
            violations if isinstance(violations, int) else 0,
        )
    return found


def _uid(pod: object, path: str) -> str:
    """Return the UID of a victim, that is named by it or given whole."""
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
