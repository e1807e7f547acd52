"""
What ledger and API say of one node and can't both be true, as a function of both.

Rule: design section 6; docs/drift.md. `reconciling` records what of it lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from ledger.domain.annotations.proof import decode_proof
from ledger.domain.annotations.signed import Checker
from ledger.domain.cpuset import EMPTY, CpuSet, union
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.log import drift
from ledger.domain.log.machines import Contradiction
from ledger.domain.log.state import GRANTED, LOST, OBSERVED, Holding, NodeState
from scheduler.cluster.objects import ALONE
from scheduler.service.agents import AS_RESERVED, Otherwise
from scheduler.service.ending import RESERVED
from scheduler.service.kept import PodSeen

_BY_NODE: Final = (drift.NODE_GAVE_OTHER, drift.CPUS_DIFFER, drift.CPUS_NARROWED)
_ALL_AS_RESERVED: Final = dict.fromkeys(_BY_NODE, AS_RESERVED)
_UNSPOKEN: Final = Otherwise(words="its node said so, and has not spoken of it since")
NAMED_MAX: Final = 5
"""Holders that the words of one disagreement name; of the others they say how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """
    One thing that ledger and API say differently.

    Attributes:
        kind: a name of `ledger.domain.log.drift`.
        words: the fact, for people.
        about: what tells it from others of its kind on its node.
        pod: namespace and name of the Pod, where it is about one.
        cpus: what the kernel gives, where it is about that.
    """

    kind: str
    words: str
    about: str
    node_uid: str = ""
    device_type: str = ""
    minor: int = -1
    pod_uid: str = ""
    pod: tuple[str, str] = ("", "")
    claim_uid: str = ""
    cpus: CpuSet = EMPTY

    @property
    def drift_id(self) -> str:
        """Return the name that it is found and resolved by."""
        return "/".join(each for each in (self.kind, self.node_uid, self.about) if each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What a proof says; one that can't be believed has a fault and nothing else."""

    fault: str = ""
    cluster: str = ""
    pod_uid: str = ""
    node_uid: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """
    All that is compared of the Nodes of one name.

    Attributes:
        node_uid: of the Node that the API has; None = it has none.
        fault: why its objects can't be decided on, empty where they can; its kind, then words.
        states: as the ledger has the Nodes of this name.
        pods: by UID, those that run there and those that hold something there.
        given: the digest of the annotations that our Binding came with; None where that is not
            known, or others gave it.
        otherwise: what a node has otherwise than a holding has it, by the node's UID, of the kinds
            that it has spoken of since we began.
        crossing: by UID, Pods that by the node run on CPUs which others have to themselves, and on
            which; None where it has not said.
        proven: by Pod UID; one that is missing was not checked yet.
        cluster: the origin of the ledger; empty where Pods carry no proofs.
        waiting: keys of holdings that have ended and wait for their node.
        unread: by UID, why a Pod can't be recorded, in words.
        is_claim_gone: whether a claim, by its UID, is gone or has what it holds no more.
        open: ids of drift that is open: what a recovery found that does not fit stays so.
        past_gate: by which kind of drift a claim has what no gate let through, by its UID; empty
            where none had to.
        is_silent: the node's agent reports no more.
        is_full: the node's agent named more Pods that the API does not have than it has places.
        is_of_two_modes: it is ours, and a listed driver gives its cards by claims.
    """

    name: str
    node_uid: str | None
    fault: tuple[str, str] = ("", "")
    states: Sequence[NodeState] = ()
    pods: Mapping[str, PodSeen] = field(default_factory=dict)
    holds_elsewhere: Callable[[str], bool] = lambda _: False
    given: Callable[[Holding], bytes | None] = lambda _: None
    otherwise: Callable[[str, Holding], Mapping[str, Otherwise]] = lambda _, __: _ALL_AS_RESERVED
    crossing: Mapping[str, CpuSet] | None = field(default_factory=dict)
    proven: Mapping[str, Proven] = field(default_factory=dict)
    cluster: str = ""
    waiting: Collection[str] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    is_claim_gone: Callable[[str], bool] = lambda _: False
    open: AbstractSet[str] = frozenset()
    is_under_way: Callable[[str], bool] = lambda _: False
    past_gate: Callable[[str], str] = lambda _: drift.UNGATED
    is_of_two_modes: bool = False
    is_full: bool = False
    is_silent: bool = False


def proven(text: str, check: Checker) -> Proven:
    """Look at a proof: whether it can be believed, and what it says."""
    try:
        proof = decode_proof(text, check=check)
    except InputError as error:
        return Proven(fault=str(error))
    return Proven(
        cluster=proof.cluster,
        pod_uid=proof.pod_uid,
        node_uid=proof.node_uid,
        attempt=proof.attempt,
    )


def disagreements(sight: Sight) -> list[Disagreement]:
    """Return what ledger and API say differently of a node, in order of Nodes and holdings."""
    found: list[Disagreement] = []
    known = {**sight.pods, **{pod.static_uid: pod for pod in sight.pods.values() if pod.static_uid}}
    held: set[str] = set()
    for state in sight.states:
        held.update(holding.pod_uid for holding in state.holdings.values())
        found += _on_lost_node(sight, state)
        if state.lost or state.uid != sight.node_uid:
            continue
        there = [each for each in state.holdings.values() if not _is_lost(each)]
        use = _Use(state, there)
        found += _of_alone(sight, use, there)
        for holding in there:
            is_late = sight.is_silent and holding.key in sight.waiting
            if (is_late or holding.namespace != ALONE) and not sight.is_under_way(holding.pod_uid):
                found += _of_holding(sight, use, holding, known.get(holding.pod_uid))
        found += _of_devices(use)
        found += _of_cpus(state, there)
        found += _of_crossing(sight, state, known)
        found += _of_claims(sight, state)
        found += _of_modes(sight, state)
    found += _without_holding(sight, held)
    found += _fault(sight, found)
    return found


def _of_claims(sight: Sight, state: NodeState) -> Iterator[Disagreement]:
    for key, one in sorted(state.claims.items()):
        past = sight.past_gate(one.pod_uid) if one.kind == OBSERVED else ""
        kinds = {
            past: bool(past) and (bool(one.consumers) or past != drift.UNGATED),
            drift.CLAIM_GONE: sight.is_claim_gone(one.pod_uid),
            drift.RELEASE_UNCONFIRMED: key in sight.waiting,
            drift.IDLE_CLAIM: one.phase != RESERVED and not one.consumers,
        }
        for kind in (kind for kind, is_so in kinds.items() if is_so and not _is_lost(one)):
            yield Disagreement(
                kind=kind,
                words=f"{one.namespace}/{one.pod_name} on {state.name}:"
                f" {drift.DRIFT_KINDS[kind].meaning}",
                about=one.pod_uid,
                node_uid=state.uid,
                claim_uid=one.pod_uid,
            )


def _of_alone(sight: Sight, use: _Use, there: Sequence[Holding]) -> Iterator[Disagreement]:
    """Yield that Pods which only the node tells of hold too much; the API can't be asked of any."""
    alone = [each for each in there if each.namespace == ALONE]
    over = sum(map(use.is_over, alone))
    if over or sight.is_full:
        more = ", and its agent names more, or more often, than it may" if sight.is_full else ""
        yield Disagreement(
            kind=drift.OVER_HELD,
            words=f"{use.state.name}: the API does not have {len(alone)} Pods that hold something"
            f" {ALONE}, {over} of them more than there is, or what somebody has alone{more}",
            about="alone",
            node_uid=use.state.uid,
        )


def _of_modes(sight: Sight, state: NodeState) -> Iterator[Disagreement]:
    if sight.is_of_two_modes:
        kind = drift.TWO_MODES
        words = f"{state.name}: {drift.DRIFT_KINDS[kind].meaning}"
        yield Disagreement(kind=kind, words=words, about="modes", node_uid=state.uid)


def contradicted(found: Contradiction) -> Disagreement:
    """Return what two Nodes claim and can't both have, under the name that a simulation gives."""
    device = found.device
    return Disagreement(
        kind=found.kind,
        words=f"{found.node_name}: {found.detail}",
        about=f"{device.device_type}/{device.device_id}" if device else "machine",
        node_uid=found.node_uid,
        device_type=device.device_type if device else "",
        minor=device.minor if device else -1,
    )


def mislabelled(wrong: Mapping[str, str]) -> list[Disagreement]:
    """Return the namespaces whose label is wrong, by why it can't be mended."""
    return [
        Disagreement(kind=drift.NAMESPACE_LABEL_WRONG, words=f"namespace {name}: {why}", about=name)
        for name, why in wrong.items()
    ]


def skewed(seconds: float, seconds_max: float) -> list[Disagreement]:
    """Return that our clock is off the API server's, where it is."""
    if abs(seconds) <= seconds_max:
        return []
    words = f"our clock is off the API server's: seconds={seconds:.1f}, seconds_max={seconds_max:g}"
    return [Disagreement(kind=drift.CLOCK_SKEW, words=words, about="clock")]


def reworded(expected: Mapping[str, str], said: Mapping[str, str]) -> str:
    """Return which annotations of a Pod are not those that it was bound with, in words."""
    parts = [
        (f"absent: {key}" for key in sorted(expected.keys() - said.keys())),
        (f"added: {key}" for key in sorted(said.keys() - expected.keys())),
        (
            f"changed: {key}"
            for key in sorted(expected.keys() & said.keys())
            if expected[key] != said[key]
        ),
    ]
    return ", ".join(each for part in parts for each in part)


# --- holdings ---------------------------------------------------------------------------------


def _is_lost(holding: Holding) -> bool:
    return holding.phase == LOST or bool(holding.machine)


def _about_holding(state: NodeState, holding: Holding, kind: str, words: str) -> Disagreement:
    return Disagreement(
        kind=kind,
        words=f"{_name(holding)} on {state.name}: {words}",
        about=holding.key,
        node_uid=state.uid,
        pod_uid=holding.pod_uid,
        pod=(holding.namespace, holding.pod_name),
    )


def _of_holding(
    sight: Sight, use: _Use, holding: Holding, pod: PodSeen | None
) -> Iterator[Disagreement]:
    state = use.state
    found = partial(_about_holding, state, holding)
    if pod is None or pod.ended:
        why = "gone" if pod is None else f"ended ({pod.ended})"
        if holding.key in sight.waiting:
            yield found(drift.RELEASE_UNCONFIRMED, f"{why}, and the node has not confirmed it")
        else:
            yield found(drift.HOLDER_GONE, f"{why}, and holds something")
    elif _is_elsewhere(state, holding, pod):
        yield found(drift.BOUND_ELSEWHERE, f"bound to {pod.node or 'no node'}")
    elif holding.phase == RESERVED:
        yield found(drift.UNSETTLED, "reserved, and neither bound nor taken back")
    elif holding.kind == GRANTED:
        yield from _of_words(sight, state, holding, pod, found)
    elif (words := sight.given(holding)) is not None:  # by number: which cards nobody of us says
        if words != pod.given:
            yield found(drift.ANNOTATION_DIFFERS, "it says which devices it was given by number")
    elif pod.is_ours and _id_of(drift.OVER_HELD, state, holding) not in sight.open:
        yield found(drift.BOUND_PAST_TENURE, "bound by somebody else")
    elif pod.is_ours or use.is_over(holding):
        yield found(drift.OVER_HELD, "holds more than there is, or what somebody has alone")
    elif holding.unknown_types:
        types = ", ".join(holding.unknown_types)
        yield found(drift.CARD_UNKNOWN, f"on an unknown card: type={types}")


def _is_elsewhere(state: NodeState, holding: Holding, pod: PodSeen) -> bool:
    """Tell whether a Pod that we gave something here is not here; one that waits may come yet."""
    if holding.kind != GRANTED or pod.node == state.name:
        return False
    return bool(pod.node) or holding.phase != RESERVED


def _id_of(kind: str, state: NodeState, holding: Holding) -> str:
    return f"{kind}/{state.uid}/{holding.key}"


def _of_words(
    sight: Sight,
    state: NodeState,
    holding: Holding,
    pod: PodSeen,
    found: Callable[[str, str], Disagreement],
) -> Iterator[Disagreement]:
    otherwise = sight.otherwise(state.uid, holding)
    for kind in _BY_NODE:
        is_open = _id_of(kind, state, holding) in sight.open
        fact = otherwise.get(kind, _UNSPOKEN if is_open else AS_RESERVED)
        if fact.words:
            yield replace(found(kind, fact.words), cpus=fact.cpus)
    expected = sight.given(holding)
    if expected is not None and expected != pod.given:
        if pod.given:
            yield found(drift.ANNOTATION_DIFFERS, "its annotations are not those that we gave it")
        else:
            yield found(drift.ANNOTATION_MISSING, "the annotations that we gave it are gone")
    if not sight.cluster:
        return
    if not pod.proof:
        yield found(drift.PROOF_MISSING, "no proof")
        return
    proof = sight.proven.get(pod.uid)
    if proof is None:
        return
    ours = (sight.cluster, holding.pod_uid, state.uid)
    if proof.fault:
        yield found(drift.PROOF_INVALID, proof.fault)
    elif (proof.cluster, proof.pod_uid, proof.node_uid) != ours:
        said = f"{proof.cluster}, pod_uid={proof.pod_uid}, node_uid={proof.node_uid}"
        yield found(drift.PROOF_FOREIGN, f"its proof is another one's: cluster={said}")
    elif proof.attempt != holding.attempt:
        said = f"attempt={proof.attempt}, reserved by attempt={holding.attempt}"
        yield found(drift.PROOF_OUTDATED, f"its proof is of another reservation: {said}")


def _on_lost_node(sight: Sight, state: NodeState) -> Iterator[Disagreement]:
    gone = not state.lost and state.uid != sight.node_uid
    held = [each for each in state.holdings.values() if gone or _is_lost(each)]
    if held:
        yield Disagreement(
            kind=drift.HOLDER_ON_LOST_NODE,
            words=f"{state.name}: the Node is gone, or is another machine, and through it hold"
            f" {_names(held)}",
            about="machine",
            node_uid=state.uid,
        )


def _without_holding(sight: Sight, held: AbstractSet[str]) -> Iterator[Disagreement]:
    uid = next((state.uid for state in sight.states if state.uid == sight.node_uid), None)
    if uid is None or sight.fault[0]:
        return
    for pod in sight.pods.values():
        kind, words = _stranger(pod, sight.unread.get(pod.uid, ""))
        if (
            not kind
            or pod.node != sight.name
            or pod.ended
            or not held.isdisjoint({pod.uid, pod.static_uid})
            or sight.is_under_way(pod.uid)
            or sight.holds_elsewhere(pod.uid)
        ):
            continue
        yield Disagreement(
            kind=kind,
            words=f"{pod.namespace}/{pod.name} on {sight.name}: {words}",
            about=pod.uid,
            node_uid=uid,
            pod_uid=pod.uid,
            pod=(pod.namespace, pod.name),
        )


def _stranger(pod: PodSeen, why: str) -> tuple[str, str]:
    """Return kind and words of a running Pod that holds nothing by the ledger."""
    if pod.is_ours:
        return drift.BOUND_PAST_TENURE, "bound by somebody else, and holds nothing"
    if pod.holds:
        return drift.UNKNOWN_HOLDERS, why or "asks for devices or CPUs of its own, and holds none"
    if pod.given:
        return drift.ANNOTATION_WITHOUT_HOLDING, "says that it has devices or CPUs, and holds none"
    return "", ""


def _fault(sight: Sight, found: Sequence[Disagreement]) -> Iterator[Disagreement]:
    kind, words = sight.fault
    if kind not in {drift.NODE_UNREADABLE, drift.NODE_UNRECORDED}:
        return
    there = any(pod.holds and not pod.ended for pod in sight.pods.values())
    if there or found or any(state.holdings or state.claims for state in sight.states):
        yield Disagreement(
            kind=kind,
            words=f"{sight.name}: {words}",
            about=sight.name,
            node_uid=sight.node_uid or "",
        )


# --- devices and CPUs -------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Taken:
    """What is held of one device that the node lists."""

    device: DeviceRecord
    granted_core: int = 0
    granted_memory: int = 0
    core: int = 0
    memory: int = 0
    holders: int = 0
    exclusive: bool = False

    def take(self, share: DeviceShare, *, granted: bool) -> None:
        self.core += share.core_percent
        self.memory += share.memory_bytes
        self.granted_core += share.core_percent * granted
        self.granted_memory += share.memory_bytes * granted
        self.holders += 1
        self.exclusive |= share.exclusive

    @property
    def is_shrunk(self) -> bool:
        """More was given than there is."""
        device = self.device
        return self.granted_core > device.core_percent or self.granted_memory > device.memory_bytes

    @property
    def is_over(self) -> bool:
        """More is held than there is, or what somebody has alone."""
        device = self.device
        over = self.core > device.core_percent or self.memory > device.memory_bytes
        return over or (self.exclusive and self.holders > 1)


class _Use:
    """
    Who holds what of a node's devices and CPUs.

    Attributes:
        gone: unit -> the kind of drift and the holders, of what the node does not list.
    """

    def __init__(self, state: NodeState, held: Sequence[Holding]) -> None:
        self.state = state
        taken = [_Taken(device=device) for device in state.devices]
        by_id = {
            (one.device.device_type, one.device.device_id): one
            for one in taken
            if one.device.device_id
        }
        by_minor = {one.device.key: one for one in taken}
        self.taken = taken
        self.gone: dict[tuple[str, int, str], tuple[str, list[Holding]]] = {}
        self._of: dict[str, list[_Taken]] = {}
        self._cpus = Counter(cpu for holding in held for cpu in holding.cpuset)
        for holding in held:
            for share in holding.shares:
                there = by_minor.get(share.key)
                listed = by_id.get((share.device_type, share.device_id))
                listed = listed if share.device_id else there
                if listed is not None:
                    listed.take(share, granted=holding.kind == GRANTED)
                    self._of.setdefault(holding.key, []).append(listed)
                    continue
                other = there is not None and there.device.device_id
                kind = drift.DEVICE_REPLACED if other else drift.DEVICE_GONE
                unit = (share.device_type, share.minor, share.device_id)
                self.gone.setdefault(unit, (kind, []))[1].append(holding)

    def is_over(self, holding: Holding) -> bool:
        """Tell whether a holding is of more than there is, or of what somebody has alone."""
        most = self.state.cpu_ref_count_max
        return any(one.is_over for one in self._of.get(holding.key, ())) or any(
            self._cpus[cpu] > most for cpu in holding.cpuset
        )


def _of_devices(use: _Use) -> Iterator[Disagreement]:
    state = use.state
    for (device_type, minor, device_id), (kind, holders) in use.gone.items():
        yield Disagreement(
            kind=kind,
            words=f"{device_type} {minor} ({device_id or 'no id'}) of {state.name} is not there"
            f" any more; held by {_names(holders)}",
            about=f"{device_type}/{minor}/{device_id}",
            node_uid=state.uid,
            device_type=device_type,
            minor=minor,
        )
    for one in use.taken:
        device = one.device
        if one.is_shrunk:
            yield Disagreement(
                kind=drift.DEVICE_SHRUNK,
                words=f"{device.device_type} {device.minor} of {state.name}: reserved"
                f" core={one.granted_core}, memory={one.granted_memory} of"
                f" core={device.core_percent}, memory={device.memory_bytes}",
                about=f"{device.device_type}/{device.minor}",
                node_uid=state.uid,
                device_type=device.device_type,
                minor=device.minor,
            )


def _of_cpus(state: NodeState, held: Sequence[Holding]) -> Iterator[Disagreement]:
    """Yield who holds CPUs that the node does not list; what others pin may be all it knows."""
    listed = {cpu.id for cpu in state.cpus}
    for holding in held:
        if not holding.cpuset or (holding.kind == OBSERVED and not listed):
            continue
        gone = sorted(set(holding.cpuset) - listed)
        if gone:
            words = f"not listed any more: CPUs {','.join(map(str, gone))}"
            yield _about_holding(state, holding, drift.CPUS_GONE, words)


def _of_crossing(
    sight: Sight, state: NodeState, known: Mapping[str, PodSeen]
) -> Iterator[Disagreement]:
    """Yield the Pods that run on CPUs which, by the ledger, others have to themselves."""
    head = f"{drift.CPUS_NOT_EXCLUSIVE}/{state.uid}/"
    spoken = sight.crossing
    if spoken is None:  # what is open stays, for as long as the API has the Pod
        spoken = {uid: EMPTY for uid in known if f"{head}{uid}" in sight.open}
    for uid, cpus in sorted(spoken.items()):
        others = [one for one in state.everyone() if one.pod_uid != uid]
        owners = [one for one in others if not cpus.isdisjoint(one.cpuset)]
        pod = known.get(uid)
        if (sight.crossing is not None and not owners) or (pod is not None and pod.ended):
            continue
        taken = cpus & union(one.cpuset for one in owners)
        fact = f"runs on CPUs {taken} of {_names(owners)}" if owners else _UNSPOKEN.words
        name = f"{pod.namespace}/{pod.name}" if pod else f"a Pod that the API does not have ({uid})"
        yield Disagreement(
            kind=drift.CPUS_NOT_EXCLUSIVE,
            words=f"{name} on {state.name}: {fact}",
            about=uid,
            node_uid=state.uid,
            pod_uid=pod.uid if pod else "",
            pod=(pod.namespace, pod.name) if pod else ("", ""),
            cpus=taken,
        )


# --- words ------------------------------------------------------------------------------------


def _name(holding: Holding) -> str:
    return f"{holding.namespace}/{holding.pod_name}"


def _names(held: Sequence[Holding]) -> str:
    names = sorted({_name(each) for each in held})
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
