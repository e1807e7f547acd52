"""
The bind protocol of one Pod as a state machine: one act at a time, and what came of each.

Rule: design section 5.3; GPU-sharing contract C.6. The ledger holds before the API server is asked,
and lets go only of what can't be bound any more:

    Reserve ──▶ PostBinding ──▶ RecordBound ──▶ Answer("")
                    │ 409           ▲
                    ▼               │ bound by this attempt
                 ReadPod ───────────┤
                    ▲               │ not bound, and no Binding of this attempt can succeed
       no answer    │               ▼
    ─────────────▶ PatchFence    RecordVoided ──▶ Reserve again, where only the version had moved

A Binding carries the UID and the resourceVersion that its reservation was made with. A Pod's
version never comes back. So once it has moved, by `PatchFence` or otherwise, no Binding of that
reservation can succeed, however late it arrives. Only then may the reservation of a Pod that was
read without a node be voided.

A process that takes over, or starts again, does not know what was sent: it begins with `settle` for
every reservation that is neither bound nor voided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

TRIES_MAX: Final = 3
"""Reservations for one call, where the Pod's version moved between reserving and binding."""

DEPOSED: Final = "another replica leads"
MOVED: Final = "the Pod keeps changing"
GONE: Final = "the Pod is gone"
GONE_UNSEEN: Final = "the Pod is gone, and nobody knows whether it was bound"
"""Its containers may run still: nothing is voided before its node confirms."""
ELSEWHERE: Final = "the Pod is bound to another node"
CONTRADICTED: Final = "the ledger contradicts"
UNSETTLED: Final = "the binding was not confirmed and is taken back"


# --- what is to be done -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserve:
    """Append `reserved` for this attempt, with UID and version; the constraint decides."""

    attempt: int
    resource_version: str


@dataclass(frozen=True, slots=True)
class PostBinding:
    """POST the Binding once, with annotations and both preconditions; never sent again."""

    attempt: int
    resource_version: str


@dataclass(frozen=True, slots=True)
class PatchFence:
    """Patch the Pod's fence annotation, without a precondition: its version moves."""


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Read the Pod from the API server, consistently: no cache, no resourceVersion."""


@dataclass(frozen=True, slots=True)
class RecordBound:
    """Append `bound`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecordVoided:
    """Append `voided`: nobody can be bound by this attempt any more."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The end: tell kube-scheduler; empty when the Pod is bound to the node it asked for."""

    error: str


Act = Reserve | PostBinding | PatchFence | ReadPod | RecordBound | RecordVoided | Answer


# --- what came of it --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """The act succeeded, durably."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The ledger or the API server said no, and nothing was changed."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Deposed:
    """The ledger has another leader: nothing was recorded, and nothing of ours will be."""


@dataclass(frozen=True, slots=True)
class NotThere:
    """No Pod has this name and UID any more."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nobody knows whether it happened, or will."""


@dataclass(frozen=True, slots=True)
class PodNow:
    """
    The Pod as the API server has it.

    Attributes:
        node: where it is bound; empty while it is not.
        attempt: of the reservation whose Binding did that; 0 where it was none of ours.
        deleting: it has a deletionTimestamp, so that the API server refuses every Binding.
    """

    resource_version: str
    node: str = ""
    attempt: int = 0
    deleting: bool = False


Effect = Done | Rejected | Deposed | NotThere | NoAnswer | PodNow


class Stage(Enum):
    """Which act is under way."""

    RESERVING = "reserving"
    BINDING = "binding"
    FENCING = "fencing"
    READING = "reading"
    CONFIRMING = "confirming"
    VOIDING = "voiding"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """
    One Pod on its way to one node.

    Attributes:
        resource_version: of the reservation, and of the Binding that it may be bound by.
        tries: reservations of this call, counting this one.
        fenced: the version has moved since the reservation: no Binding of it can succeed.
        next_version: where the Pod was read unbound, its version then.
        error: what is answered once the reservation is voided.
    """

    node: str
    attempt: int
    resource_version: str
    stage: Stage
    tries: int = 1
    fenced: bool = False
    next_version: str = ""
    error: str = UNSETTLED


Next = tuple[Bind, Act]


def begin(*, node: str, attempt: int, resource_version: str) -> Next:
    """Return the first act for a Pod that was read unbound at this version."""
    state = Bind(
        node=node, attempt=attempt, resource_version=resource_version, stage=Stage.RESERVING
    )
    return state, Reserve(attempt, resource_version)


def reserved_ahead(*, node: str, attempt: int, resource_version: str) -> Next:
    """Return the first act for a reservation of this process that no Binding was sent for."""
    state = Bind(node=node, attempt=attempt, resource_version=resource_version, stage=Stage.BINDING)
    return state, PostBinding(attempt, resource_version)


def settle(*, node: str, attempt: int, resource_version: str, why: str = UNSETTLED) -> Next:
    """
    Return the first act for a reservation of which nobody knows whether it was bound.

    Args:
        why: what it is voided for, where the Pod turns out not to be bound; after `MOVED` it is
            reserved for again.
    """
    state = Bind(
        node=node,
        attempt=attempt,
        resource_version=resource_version,
        stage=Stage.FENCING,
        error=why,
    )
    return state, PatchFence()


def step(state: Bind, told: Effect) -> Next:
    """
    Return what comes next.

    After `NoAnswer` an act is repeated, as often as it takes, but for a Binding. The reservation
    holds meanwhile.
    """
    if isinstance(told, Deposed):
        return _answer(state, DEPOSED)
    match state.stage:
        case Stage.RESERVING:
            return _reserved(state, told)
        case Stage.BINDING:
            return _posted(state, told)
        case Stage.FENCING:
            return _fenced(state, told)
        case Stage.READING:
            return _read(state, told)
        case Stage.CONFIRMING:
            return _confirmed(state, told)
        case Stage.VOIDING:
            return _voided(state, told)
        case Stage.ANSWERED:
            raise AssertionError(f"nothing comes after an answer: {told}")


def _reserved(state: Bind, told: Effect) -> Next:
    match told:
        case Done():
            act = PostBinding(state.attempt, state.resource_version)
            return replace(state, stage=Stage.BINDING), act
        case NoAnswer():
            return state, Reserve(state.attempt, state.resource_version)
        case Rejected():
            return _answer(state, told.message or CONTRADICTED)
        case _:
            raise AssertionError(told)


def _posted(state: Bind, told: Effect) -> Next:
    match told:
        case Done():
            return _confirm(state)
        case Rejected(message):
            why = f"{state.error}: {message}" if message else state.error
            return _look(replace(state, error=why))
        case NotThere():
            return _void(state, GONE)
        case NoAnswer():
            return replace(state, stage=Stage.FENCING), PatchFence()
        case _:
            raise AssertionError(told)


def _fenced(state: Bind, told: Effect) -> Next:
    match told:
        case Done():
            return _look(replace(state, fenced=True))
        case NoAnswer():
            return state, PatchFence()
        case NotThere():
            return _void(state, GONE_UNSEEN)
        case _:
            raise AssertionError(told)


def _read(state: Bind, told: Effect) -> Next:
    match told:
        case NoAnswer():
            return state, ReadPod()
        case NotThere():
            return _void(state, GONE_UNSEEN if state.fenced else GONE)
        case PodNow(node="", deleting=True):
            return _void(state, GONE)
        case PodNow(node=""):
            moved = told.resource_version != state.resource_version
            if not (state.fenced or moved):
                return replace(state, stage=Stage.FENCING), PatchFence()
            again = replace(state, next_version=told.resource_version)
            return _void(again, state.error if state.fenced else MOVED)
        case PodNow(attempt=state.attempt):
            return _confirm(state)
        case PodNow():
            return _void(state, ELSEWHERE)
        case _:
            raise AssertionError(told)


def _confirmed(state: Bind, told: Effect) -> Next:
    match told:
        case Done():
            return _answer(state, "")
        case NoAnswer():
            return state, RecordBound(state.attempt)
        case Rejected():  # somebody ended the reservation by an act: the ledger is right
            return _answer(state, told.message or CONTRADICTED)
        case _:
            raise AssertionError(told)


def _voided(state: Bind, told: Effect) -> Next:
    if isinstance(told, NoAnswer):
        return state, RecordVoided(state.attempt, state.error)
    if isinstance(told, Rejected):  # as in `_confirmed`
        return _answer(state, told.message or CONTRADICTED)
    assert isinstance(told, Done), told
    if state.error != MOVED or state.tries >= TRIES_MAX:
        return _answer(state, state.error)
    again = Bind(
        node=state.node,
        attempt=state.attempt + 1,
        resource_version=state.next_version,
        stage=Stage.RESERVING,
        tries=state.tries + 1,
    )
    return again, Reserve(again.attempt, again.resource_version)


def _look(state: Bind) -> Next:
    return replace(state, stage=Stage.READING), ReadPod()


def _confirm(state: Bind) -> Next:
    return replace(state, stage=Stage.CONFIRMING), RecordBound(state.attempt)


def _void(state: Bind, error: str) -> Next:
    return replace(state, stage=Stage.VOIDING, error=error), RecordVoided(state.attempt, error)


def _answer(state: Bind, error: str) -> Next:
    return replace(state, stage=Stage.ANSWERED), Answer(error)
