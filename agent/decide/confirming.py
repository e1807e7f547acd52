"""
What an agent confirms: what containers were given, what is left, and what others gave.

Rule: docs/contracts/agents.md; docs/agent.md, "What it sees and confirms". All of it is said again
and again, so nothing has to be remembered but which Pods were called gone: they don't start before
that is taken back. Pure: looks in, messages out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from agent.decide.claim_ends import ClaimsHere, EndingClaim, ended
from agent.decide.node_holdings import GRANTED, LOST, HeldByPod, NodeHoldings
from ledger.domain.annotations.proof import EVERY, ProvenContainer, ProvenDevice
from ledger.domain.cpuset import CpuSet
from ledger.domain.resources import TYPE_GPU

AGAIN_SECONDS: Final = 60.0
"""What the service knows already is said so often: it may have forgotten, or be another one."""
PODS_MAX: Final = 500
"""Of one message; the service takes 512."""
ASSIGNED, OBSERVED = "assigned", "observed"
_INIT: Final = "init-"

ContainerKey = tuple[str, str]
"""UID of the Pod and name of the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What others gave a Pod: ids of cards by container."""

    pod_uid: str
    namespace: str
    pod_name: str
    cards: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """
    What is on the node now.

    Attributes:
        places: UID of each Pod that kubelet runs or will -> names of its containers by place; None
            = kubelet did not say.
        live: UIDs of the Pods of which a container or a process is there.
        complete: kubelet and the runtime told all: of who is not live at most a process is left,
            on a card that hides it.
        hidden: ids of held cards of which it is not known who is on them.
        blind: there is such a card, whether or not it is held, or may be.
        started: containers that the runtime made -> ids of the devices that they were given by us.
        observed: what others gave.
        claims: what kubelet has of claims; None = nobody could look.
    """

    places: Mapping[str, Mapping[str, str]] | None
    live: frozenset[str]
    complete: bool
    hidden: frozenset[str] = frozenset()
    blind: bool = False
    started: Mapping[ContainerKey, frozenset[str]] = field(default_factory=dict)
    observed: tuple[Observed, ...] = ()
    claims: ClaimsHere | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """
    What is to be said, and what of it changes our own mind.

    Attributes:
        assigned: UID, attempt and what the containers were given.
        runs: all Pods that run here; None = not known.
        claims: those of which the service asked, and of which nothing is left.
        crossing: by UID, all Pods on CPUs that others have to themselves; None = not said now.
    """

    assigned: tuple[tuple[str, int, tuple[ProvenContainer, ...]], ...] = ()
    gone: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    observed: tuple[Observed, ...] = ()
    runs: tuple[str, ...] | None = None
    claims: tuple[EndingClaim, ...] = ()
    crossing: Mapping[str, CpuSet] | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to say."""
        lists = (self.assigned, self.gone, self.here, self.observed, self.claims)
        return not any(lists) and self.runs is None and self.crossing is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirming:
    """
    What was said.

    Attributes:
        gone: Pods that were called gone, or may have been: no answer came. They may not start, and
            outlive us: they are kept on disk before the message is sent.
        told: key of a holding -> when it was said last that it was assigned.
        runs_at: when it was said last what runs, or crosses; `ran`: and what that was.
        since: key of a holding -> since when kubelet does not have its Pod; before all = it had.
    """

    gone: frozenset[str] = frozenset()
    told: Mapping[tuple[str, int], float] = field(default_factory=dict)
    ran: frozenset[object] | None = None
    runs_at: float = float("-inf")
    since: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def may_start(self, pod_uid: str) -> bool:
        """Tell whether a container of a Pod may start: the service does not think it gone."""
        return pod_uid not in self.gone


GivenNow = tuple[tuple[ProvenContainer, ...], bool]
"""What containers were given, and whether that is something else than is held."""


def said(
    state: Confirming,
    known: NodeHoldings,
    look: Look,
    *,
    now: float,
    wants: AbstractSet[str] = frozenset(),
    gated: bool = True,
    asked: Collection[EndingClaim] = (),
    given: Callable[[HeldByPod, Look], GivenNow | None] | None = None,
    most: int = PODS_MAX,
) -> tuple[Confirming, Said]:
    """
    Return what is to be said now, and what we know once it was sent, whatever comes of it.

    Args:
        known: the service's own word; an older one of a copy says nothing of what to confirm.
        wants: Pods of which a container waits to start.
        gated: none starts without us; else one that is not known to have run may come yet.
        asked: claims of which the service asked before the look.
        given: what of a holding is confirmed, None = nothing yet; by default its devices.
    """
    held = known.pods()
    runs_here = _there(look)
    back = tuple(sorted(state.gone & (runs_here | wants)))[:most]
    room = most - len(back)
    sure = look.complete and look.places is not None
    of_claims = None if look.blind or not sure else look.claims  # what a claim holds we don't know
    claims = ended(asked, of_claims, runs_here | wants)[:room]
    room -= len(claims)
    ran_once = [one for one in held if gated or one.phase in {ASSIGNED, OBSERVED}]
    unsure = frozenset(one.pod_uid for one in held if _is_hidden(one, look))
    gone = _gone(ran_once, look, wants | unsure)[:room]
    room -= len(gone)
    assigned: list[tuple[str, int, tuple[ProvenContainer, ...]]] = []
    told = {key: at for key, at in state.told.items() if key in known.held}
    for one in held:
        if len(assigned) >= room:
            break
        found = (given or _given)(one, look)
        if found is None:
            continue
        containers, differs = found
        due = now - told.get(one.key, float("-inf")) >= AGAIN_SECONDS
        if due or one.phase != ASSIGNED or differs:
            assigned.append((one.pod_uid, one.attempt, containers))
            told[one.key] = now
    room -= len(assigned)
    runs, ran, at = None, state.ran, state.runs_at
    is_whole = look.complete and look.places is not None and not look.blind
    live = runs_here if is_whole else None
    if live is not None and len(live) <= room and (live != ran or now - at >= AGAIN_SECONDS):
        runs, ran, at = tuple(sorted(live)), live, now
        room -= len(live)
    after = replace(
        state,
        gone=state.gone | set(gone),
        told=told,
        ran=ran,
        runs_at=at,
    )
    message = Said(
        assigned=tuple(assigned),
        gone=gone,
        here=back,
        observed=look.observed[: max(0, room)],
        runs=runs,
        claims=claims,
    )
    return after, message


def answered(
    state: Confirming, message: Said, held: AbstractSet[str], ended: AbstractSet[str] = frozenset()
) -> Confirming:
    """
    Take note that a message was answered: what was taken back may start, if it holds something yet.

    Args:
        held: UIDs of the Pods that hold something as we know it; of others nothing has to be
            remembered, for a Pod that is gone by the API never starts.
        ended: of those taken back, who holds nothing by the answer: what we know is older.
    """
    return replace(state, gone=(state.gone - (set(message.here) - ended)) & held)


def unanswered(state: Confirming, message: Said) -> Confirming:
    """Take note that no answer came: all of it is said again, and may have been heard."""
    keys = {(uid, attempt) for uid, attempt, _ in message.assigned}
    told = {key: at for key, at in state.told.items() if key not in keys}
    is_told = message.is_empty or message.runs is not None or message.crossing is not None
    runs_at = float("-inf") if is_told else state.runs_at
    return replace(state, told=told, runs_at=runs_at)


def _there(look: Look) -> frozenset[str]:
    return look.live | frozenset(look.places or ())


def _is_hidden(one: HeldByPod, look: Look) -> bool:
    """Tell whether an unseen process could be there; what others gave may be unknown cards."""
    if one.kind != GRANTED:
        return look.blind
    return not look.hidden.isdisjoint(one.in_sight)


def _gone(held: Iterable[HeldByPod], look: Look, others: AbstractSet[str]) -> tuple[str, ...]:
    if look.places is None or not look.complete:
        return ()
    there = _there(look) | others
    return tuple(dict.fromkeys(one.pod_uid for one in held if one.pod_uid not in there))


def _given(one: HeldByPod, look: Look) -> GivenNow | None:
    """
    Return what the containers of a Pod were given; None while one of them has not started.

    An init container that is not listed any more had its turn where an app container started. What
    differs is told at once.
    """
    places = (look.places or {}).get(one.pod_uid)
    if one.kind != GRANTED or one.phase == LOST or places is None:
        return None
    wanted: dict[str, frozenset[str]] = {
        container.index: frozenset(device.device_id for device in container.devices)
        for container in one.containers
    }
    of_all = wanted.get(EVERY, frozenset())
    started: dict[str, frozenset[str]] = {
        place: look.started[one.pod_uid, name]
        for name, place in places.items()
        if (one.pod_uid, name) in look.started
    }
    for place, ids in sorted(started.items()):
        if ids != wanted.get(place, frozenset()) | of_all:
            others = tuple(each for each in one.containers if each.index != place)
            return (*others, _having(one, place, ids)), True
    apps = any(not place.startswith(_INIT) for place in started)
    for place, ids in wanted.items():
        is_past = place.startswith(_INIT) and apps
        if ids and not (place in started or is_past or (place == EVERY and started)):
            return None
    return (one.containers, False) if started else None


def _having(one: HeldByPod, place: str, ids: frozenset[str]) -> ProvenContainer:
    known = {device.device_id: device for device in one.devices}
    nobody = ProvenDevice(device_type=TYPE_GPU, device_id="", minor=-1)
    devices = (known.get(each) or replace(nobody, device_id=each) for each in sorted(ids))
    return ProvenContainer(index=place, devices=tuple(devices))
