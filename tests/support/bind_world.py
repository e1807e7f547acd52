"""
A world in which Pods are bound: two schedulers, two Pods that want the one card, all that can fail.

The schedulers run `scheduler.bind.protocol` itself. A world is a value; `moves` yields every world
that the next moment can bring: an act and what comes of it, a Binding that is delivered late or
never, an answer that is lost, a leader that is deposed and does not know it, a process that ends
anywhere, a Pod that somebody patches or deletes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler.bind import protocol
from scheduler.bind.protocol import (
    Act,
    Answer,
    Bind,
    Deposed,
    Done,
    Effect,
    Next,
    NoAnswer,
    NotThere,
    PatchFence,
    PodNow,
    PostBinding,
    ReadPod,
    RecordBound,
    RecordVoided,
    Rejected,
    Reserve,
)

_T = TypeVar("_T")
RESERVED, BOUND, ENDED = "reserved", "bound", "ended"
_OPEN = (RESERVED, BOUND)


@dataclass(frozen=True, slots=True)
class Held:
    """The newest reservation of a Pod in the ledger; attempt 0 = there was none."""

    attempt: int = 0
    version: int = 0
    phase: str = ENDED


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod as the API server has it; `attempt` = of the Binding that it took, 0 = unbound."""

    version: int = 1
    attempt: int = 0
    there: bool = True


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One process: the epoch that it believes to lead in, 0 = none, and its Pod's protocol."""

    epoch: int = 0
    pod: int = -1
    state: Bind | None = None
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class World:
    """
    All there is.

    Attributes:
        flying: Bindings that were sent and are not delivered, as (pod, attempt, version).
        takeovers, losses, patches, deletions: how often each can still happen.
    """

    epoch: int = 1
    held: tuple[Held, ...] = (Held(), Held())
    pods: tuple[Pod, ...] = (Pod(), Pod())
    schedulers: tuple[Scheduler, ...] = (Scheduler(epoch=1), Scheduler())
    flying: frozenset[tuple[int, int, int]] = frozenset()
    takeovers: int = 1
    losses: int = 1
    patches: int = 1
    deletions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """
    What the world goes by; anything but the defaults is a weaker protocol.

    Attributes:
        step, settle: the protocol's.
        holds: the ledger refuses a second holder of the card.
        fences: the ledger refuses who is deposed.
        version_when_sent: the Binding carries the version that the Pod has when it is sent.
    """

    step: Callable[[Bind, Effect], Next] = protocol.step
    settle: Callable[..., Next] = protocol.settle
    holds: bool = True
    fences: bool = True
    version_when_sent: bool = False


@dataclass(slots=True)
class Searched:
    """What a search came to; `fault` = what is wrong in the first world that can't be."""

    worlds: int = 0
    moves: int = 0
    fault: str = ""
    bound: set[tuple[bool, ...]] = field(default_factory=set)


def search(start: World, rules: Rules, worlds_max: int, *, only_doubles: bool = False) -> Searched:
    """
    Visit every world that can come of this one; stop at the first fault.

    Args:
        only_doubles: nothing but a double allocation is a fault.
    """
    found, seen, calm = Searched(), {start}, dict[object, str]()
    queue = deque([start])
    while queue and not found.fault:
        world = queue.popleft()
        found.worlds += 1
        found.bound.add(tuple(pod.attempt > 0 for pod in world.pods))
        assert found.worlds <= worlds_max, "the world is larger than was meant"
        found.fault = doubles(world)
        if not (found.fault or only_doubles):
            found.fault = mistaken(world) or _left_behind(world, rules, calm)
        for after in moves(world, rules):
            found.moves += 1
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return found


def doubles(world: World) -> str:
    """Return that two Pods run on the one card, empty where they do not."""
    running = sum(pod.there and pod.attempt > 0 for pod in world.pods)
    return "double allocation" if running > 1 else ""


def mistaken(world: World) -> str:
    """Return whom the ledger calls no holder and who runs, empty when there is nobody."""
    for number, (pod, held) in enumerate(zip(world.pods, world.held, strict=True)):
        if pod.there and pod.attempt and (held.attempt, held.phase in _OPEN) != (pod.attempt, True):
            return f"pod {number} runs on a card that the ledger calls free: {held}"
    return ""


def _left_behind(world: World, rules: Rules, known: dict[object, str]) -> str:
    """
    Return what stays held for nobody, when all goes well from here on.

    A new leader takes over; what flies is never delivered.
    """
    key = (world.held, world.pods)
    if key not in known:
        known[key] = _settled(world, rules)
    return known[key]


def _settled(world: World, rules: Rules) -> str:
    world = replace(world, schedulers=(Scheduler(),), flying=frozenset())
    world = replace(world, takeovers=1, losses=0, patches=0, deletions=0)
    for _ in range(100):
        if all(held.phase != RESERVED for held in world.held) and world.takeovers == 0:
            break
        after = next(_progress(world, 0, rules), None) or next(_take_over(world, 0, rules), None)
        if after is None:
            break
        world = after
    for number, (held, pod) in enumerate(zip(world.held, world.pods, strict=True)):
        if held.phase == RESERVED:
            return f"nobody settles pod {number}"
        if held.phase == BOUND and pod.attempt != held.attempt:
            return f"pod {number} is recorded as bound and is not"
    return ""


def moves(world: World, rules: Rules) -> Iterator[World]:
    """Yield every world that can come next."""
    for number in range(len(world.schedulers)):
        yield from _progress(world, number, rules)
        yield from _begin(world, number)
        yield from _take_over(world, number, rules)
        if world.schedulers[number].state is not None:
            yield _with(world, number, Scheduler())  # it ends, wherever it is
    for binding in world.flying:
        late = replace(world, flying=world.flying - {binding})
        yield _delivered(late, binding)[0]
    for number, pod in enumerate(world.pods):
        if pod.there and world.patches:
            patched = _with_pod(world, number, replace(pod, version=pod.version + 1))
            yield replace(patched, patches=world.patches - 1)
        if pod.there and world.deletions:
            gone = _with_pod(world, number, replace(pod, there=False))
            yield replace(gone, deletions=world.deletions - 1)
        held = world.held[number]
        if not pod.there and held.phase == BOUND:
            yield _with_held(world, number, replace(held, phase=ENDED))  # released: it is gone


def _begin(world: World, number: int) -> Iterator[World]:
    """A leader, or who takes itself for one, is asked to bind a Pod that nothing is held for."""
    one = world.schedulers[number]
    if not one.epoch or one.state is not None:
        return
    for at, (pod, held) in enumerate(zip(world.pods, world.held, strict=True)):
        if pod.there and not pod.attempt and held.phase == ENDED:
            state, act = protocol.begin(
                node="n", attempt=held.attempt + 1, resource_version=str(pod.version)
            )
            yield _with(world, number, Scheduler(one.epoch, at, state, act))


def _take_over(world: World, number: int, rules: Rules) -> Iterator[World]:
    """Another leader begins with what is neither bound nor voided; the old one is not told."""
    if not world.takeovers or world.schedulers[number].state is not None:
        return
    taken = replace(world, epoch=world.epoch + 1, takeovers=world.takeovers - 1)
    for at, held in enumerate(world.held):
        if held.phase == RESERVED:
            state, act = rules.settle(
                node="n", attempt=held.attempt, resource_version=str(held.version)
            )
            yield _with(taken, number, Scheduler(taken.epoch, at, state, act))
            return
    yield _with(taken, number, Scheduler(taken.epoch))


def _progress(world: World, number: int, rules: Rules) -> Iterator[World]:
    """The act that is due, and each thing that can come of it."""
    one = world.schedulers[number]
    if one.state is None or one.act is None:
        return
    if isinstance(one.act, Answer):
        yield _with(world, number, Scheduler(one.epoch))
        return
    for after, told in _outcomes(world, one, rules):
        state, act = rules.step(one.state, told)
        yield _with(after, number, Scheduler(one.epoch, one.pod, state, act))


def _outcomes(world: World, one: Scheduler, rules: Rules) -> Iterator[tuple[World, Effect]]:
    at, pod, held = one.pod, world.pods[one.pod], world.held[one.pod]
    lost = replace(world, losses=world.losses - 1)
    match one.act:
        case Reserve() | RecordBound() | RecordVoided() if rules.fences and one.epoch < world.epoch:
            yield world, Deposed()
        case Reserve(attempt, version):
            others = [each.phase for other, each in enumerate(world.held) if other != at]
            if rules.holds and (held.phase in _OPEN or any(phase in _OPEN for phase in others)):
                yield world, Rejected("the card is held")
            else:
                yield _with_held(world, at, Held(attempt, int(version), RESERVED)), Done()
        case RecordBound():
            yield _with_held(world, at, replace(held, phase=BOUND)), Done()
        case RecordVoided():
            yield _with_held(world, at, replace(held, phase=ENDED)), Done()
        case PostBinding(attempt, version):
            sent = pod.version if rules.version_when_sent else int(version)
            binding = (at, attempt, sent)
            yield _delivered(world, binding)
            if world.losses:
                yield _delivered(lost, binding)[0], NoAnswer()
                yield replace(lost, flying=lost.flying | {binding}), NoAnswer()
        case PatchFence() if not pod.there:
            yield world, NotThere()
        case PatchFence():
            patched = replace(pod, version=pod.version + 1)
            yield _with_pod(world, at, patched), Done()
            if world.losses:
                yield _with_pod(lost, at, patched), NoAnswer()
                yield lost, NoAnswer()
        case ReadPod():
            told = PodNow(str(pod.version), "n" if pod.attempt else "", pod.attempt)
            yield world, (told if pod.there else NotThere())
            if world.losses:
                yield lost, NoAnswer()
        case _:
            raise AssertionError(one.act)


def _delivered(world: World, binding: tuple[int, int, int]) -> tuple[World, Effect]:
    at, attempt, version = binding
    pod = world.pods[at]
    if not pod.there:
        return world, NotThere()
    if pod.attempt or pod.version != version:
        return world, Rejected("conflict")
    bound = replace(pod, version=pod.version + 1, attempt=attempt)
    return _with_pod(world, at, bound), Done()


def _with(world: World, number: int, one: Scheduler) -> World:
    return replace(world, schedulers=_replaced(world.schedulers, number, one))


def _with_pod(world: World, number: int, pod: Pod) -> World:
    return replace(world, pods=_replaced(world.pods, number, pod))


def _with_held(world: World, number: int, held: Held) -> World:
    return replace(world, held=_replaced(world.held, number, held))


def _replaced(values: tuple[_T, ...], number: int, value: _T) -> tuple[_T, ...]:
    return (*values[:number], value, *values[number + 1 :])
