"""
What has ended and what is not recorded: the API's Pods beside the ledger's holdings.

Rule: design section 5.5 and 8, "When parts are down": hold early, release late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

from certs.ports import Object
from ledger.domain.log.events import PodReleased
from ledger.domain.log.state import LOST, OBSERVED, NodeState
from scheduler.cluster.documents import node_of

SUCCEEDED, FAILED = "Succeeded", "Failed"
DELETED: Final = "deleted"
MOVED: Final = "moved"
"""Another system's scheduler chose a card for it, and took another node before it was bound."""
COMPLETED: Final = "completed"
WAKE_SECONDS: Final = 1.0
MIRROR_SECONDS: Final = 120.0
"""Kubelet makes a static Pod's mirror anew that somebody deleted, within about a minute."""
_MIRROR: Final = "kubernetes.io/config.mirror"
RESERVED: Final = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLife:
    """
    As much of a Pod as says whether it has ended.

    Attributes:
        node: where it is bound, or where another system's scheduler has given it cards; else empty.
        ended: why it has ended, in one word; empty while it has not.
        terminated: kubelet says of every container that it is not running.
        static_uid: of a mirror, the UID of the Pod that kubelet runs from a file: 32 hex digits,
            which its checkpoints say.
    """

    uid: str
    namespace: str
    name: str
    node: str
    ended: str = ""
    terminated: bool = False
    static_uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWord:
    """
    What a node says of what runs there.

    Attributes:
        has_agent: an agent has reported for it, ever.
        agent_ready: its agent reports now.
        gone: UIDs of Pods of which the agent says that nothing is left.
        cpus: what its CPU process says, which counts beside the agent's word of Pods with CPUs of
            their own; None = the node has none.
    """

    has_agent: bool = False
    agent_ready: bool = False
    kubelet_ready: bool = False
    gone: frozenset[str] = frozenset()
    cpus: NodeWord | None = None


SILENT: Final = NodeWord()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """
    What is to be done about holdings.

    Attributes:
        waiting: keys of holdings whose Pod has ended, and whose node has not confirmed it.
        settles: UIDs of Pods with a reservation that is not known as bound.
        adopts: UIDs of Pods that run on a node of ours and hold nothing by the ledger.
    """

    releases: tuple[PodReleased, ...] = ()
    waiting: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()
    adopts: tuple[str, ...] = ()


def life_of(pod: Object) -> PodLife:
    """Return what a Pod object says of its life."""
    return PodLife(**life_words(pod))


def life_words(pod: Object) -> dict[str, Any]:
    """Return the same, by the names of the fields."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    phase, reason = status.get("phase") or "", status.get("reason") or ""
    ended = ""
    if phase in {SUCCEEDED, FAILED}:
        ended = reason or (COMPLETED if phase == SUCCEEDED else FAILED)
    return {
        "uid": intern(metadata["uid"]),
        "namespace": intern(metadata.get("namespace") or ""),
        "name": intern(metadata["name"]),
        "node": intern(node_of(pod)),
        "ended": ended,
        "terminated": _terminated(status, is_over=bool(ended)),
        "static_uid": (metadata.get("annotations") or {}).get(_MIRROR) or "",
    }


def _terminated(status: Mapping[str, Any], *, is_over: bool) -> bool:
    """Tell whether kubelet says so; who has not ended and has no status is not kubelet's yet."""
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    statuses = [each for kind in kinds for each in status.get(kind) or ()]
    runs = any("running" in (each.get("state") or {}) for each in statuses)
    return bool(is_over or statuses) and not runs


def ends(
    pods: Mapping[str, PodLife],
    nodes: Iterable[NodeState],
    words: Mapping[str, NodeWord],
    *,
    is_under_way: Callable[[str], bool],
    last_seen: Mapping[str, PodLife],
    holds_devices: Callable[[PodLife], bool],
    gone_seconds: Callable[[str], float],
) -> Ends:
    """
    Compare the API's Pods with the ledger's holdings.

    Rule: design section 5.5: a release needs that the Pod is terminal or gone and, where an agent
    has reported for its node, that the node has confirmed it. What was held through a lost node
    opens with its machine alone, and is none of this.

    Args:
        pods: by UID, all that run on these nodes or hold something there; the API's list of them
            must be complete.
        words: by UID of the node; one without a word never had an agent.
        is_under_way: the Pod is being bound or settled.
        last_seen: Pods that are gone, as the watch showed them last.
        holds_devices: whether a running Pod has what the ledger must know of.
        gone_seconds: for how long a Pod has been gone.
    """
    known = {**pods, **{pod.static_uid: pod for pod in pods.values() if pod.static_uid}}
    releases: list[PodReleased] = []
    waiting: list[str] = []
    settles: list[str] = []
    names: set[str] = set()
    held: set[str] = set()
    for node in nodes:
        if not node.lost:
            names.add(node.name)
        for key, holding in node.holdings.items():
            uid = holding.pod_uid
            held.add(uid)
            if holding.phase == LOST or holding.machine or is_under_way(uid):
                continue
            pod = known.get(uid)
            if holding.phase == RESERVED:
                seen, word = last_seen.get(uid), words.get(node.uid, SILENT)
                has_cpus = bool(holding.cpuset)
                if pod is None and not is_confirmed(uid, seen, word, has_cpus=has_cpus):
                    waiting.append(key)  # it may have been bound, and run
                else:
                    settles.append(uid)
                continue
            why = DELETED if pod is None else pod.ended
            if not why and holding.kind == OBSERVED and pod is not None and pod.node != node.name:
                why = MOVED
            if not why:
                continue
            seen = pod or last_seen.get(uid)
            mirror = pod is None and seen is not None and bool(seen.static_uid)
            runs_on = mirror and gone_seconds(uid) < MIRROR_SECONDS
            word, has_cpus = words.get(node.uid, SILENT), bool(holding.cpuset)
            if not runs_on and is_confirmed(uid, seen, word, has_cpus=has_cpus):
                releases.append(
                    PodReleased(pod_uid=uid, attempt=holding.attempt, node_uid=node.uid, reason=why)
                )
            else:
                waiting.append(key)
    adopts = [
        pod.uid
        for pod in pods.values()
        if pod.node in names
        and held.isdisjoint({pod.uid, pod.static_uid})
        and not pod.ended
        and not is_under_way(pod.uid)
        and holds_devices(pod)
    ]
    return Ends(
        releases=tuple(releases),
        waiting=tuple(waiting),
        settles=tuple(settles),
        adopts=tuple(adopts),
    )


def is_confirmed(uid: str, seen: PodLife | None, word: NodeWord, *, has_cpus: bool = False) -> bool:
    """
    Tell whether nothing of an ended Pod is left on its node.

    Rule: design section 8: a silent agent is replaced by kubelet's own word, if kubelet is ready;
    without that the release waits, visible with its age, for the node or for an act. The same
    holds of the CPU process where the Pod has CPUs of its own: both have to say so.
    """
    if has_cpus and word.cpus is not None and not is_confirmed(uid, seen, word.cpus):
        return False
    if not word.has_agent or uid in word.gone:
        return True
    if word.agent_ready or not word.kubelet_ready:
        return False
    return seen is not None and seen.terminated


class Wakes:
    """
    When to tell waiting Pods that room came free, by an annotation of the Node.

    Rule: design section 5: at most once a second for each node. A release meanwhile counts for the
    next annotation, so that none is lost.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due: dict[str, float] = {}  # name of a node -> when something was released there
        self._told: dict[str, float] = {}

    def released(self, node_name: str) -> None:
        """Take note that something was released on a node, or that it could not be annotated."""
        self._due[node_name] = self._now()

    def forget(self, seconds: float) -> None:
        """Forget what was released longer ago: another replica has told of it."""
        now = self._now()
        self._due = {name: at for name, at in self._due.items() if now - at < seconds}

    def take(self) -> list[str]:
        """Return the nodes that are to be annotated now."""
        now = self._now()
        self._told = {name: at for name, at in self._told.items() if now - at < WAKE_SECONDS}
        ready = [name for name in self._due if name not in self._told]
        for name in ready:
            del self._due[name]
            self._told[name] = now
        return ready


def namespace_labels(labelled: Mapping[str, bool], holding: AbstractSet[str]) -> dict[str, bool]:
    """
    Return the namespaces whose label `tenure.sh/holding` must change, and whether to set it.

    Rule: design section 5.1: a namespace can't leave Tenure while some Pod there holds something.

    Args:
        labelled: every namespace, and whether it has the label.
    """
    return {
        name: name in holding for name, has in sorted(labelled.items()) if has != (name in holding)
    }
