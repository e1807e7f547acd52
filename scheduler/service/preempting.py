"""Whether a Pod fits on a node once others went, and which more would have to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def preempt(view: ClusterView, value: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """
    Return the nodes where a Pod fits with these victims gone, or with a few more of them.

    Rule: GPU-sharing contract C.5, "Ours". An entry is kept as it came where the Pod fits. Further
    victims have a lower priority than the Pod: the lowest first, of equals those that hold least;
    one without whom it fits too is spared. What they do to disruption budgets is not counted. For a
    member of a group nobody goes: who would have to for all of it is not looked for.

    Raises:
        InputError: the call can't be read.
    """
    pod = member(value, "Pod")
    if not isinstance(pod, dict):
        raise InputError("expected an object", field="Pod")
    request = view.asks(pod)
    if isinstance(request, RefusedPod) or group_name(request):
        return {}
    priority = int(an_object(pod.get("spec"), "Pod.spec").get("priority") or 0)  # type: ignore[call-overload]
    answer: dict[str, dict[str, Any]] = {}
    for name, given in _victims(value).items():
        pods, violations = given
        more = _further(view, request, priority, name, pods)
        if more is not None and (pods or more):
            answer[name] = {
                "Pods": [{"UID": uid} for uid in (*pods, *more)],
                "NumPDBViolations": violations,
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


def _further(
    view: ClusterView, request: PodRequest, priority: int, name: str, gone: Sequence[str]
) -> list[str] | None:
    """Return who else has to go for the Pod to fit on a node, None where nobody can help."""
    if view.directory.number(name) is None:
        return None
    if _fits(view, request, name, gone):
        return []
    more: list[str] = []
    for seen in _cheapest_first(view, name, priority, gone):
        more.append(seen.uid)
        if _fits(view, request, name, (*gone, *more)):
            break
    else:
        return None
    for uid in list(more[:-1]):
        fewer = [other for other in more if other != uid]
        if _fits(view, request, name, (*gone, *fewer)):
            more = fewer
    return more


def _cheapest_first(
    view: ClusterView, name: str, priority: int, gone: Sequence[str]
) -> list[PodSeen]:
    uid = view.uid(name)
    held = {} if uid is None else view.holdings(uid)
    sizes = {
        holding.pod_uid: sum(share.core_percent for share in holding.shares) + len(holding.cpuset)
        for holding in held.values()
    }
    there = [view.pods.seen[each] for each in sizes if each in view.pods.seen]
    able = [
        pod
        for pod in there
        if pod.node == name and not pod.ended and pod.priority < priority and pod.uid not in gone
    ]
    return sorted(able, key=lambda pod: (pod.priority, sizes[pod.uid], pod.uid))


def _fits(view: ClusterView, request: PodRequest, name: str, gone: Sequence[str]) -> bool:
    with view.without(name, gone):
        return view.fits(request, name)
