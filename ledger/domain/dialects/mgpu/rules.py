"""
Volcano mGPU's admission rules: the first that fires wins, one function per kind of Pod.

Rule: GPU-sharing contract A.3, and A.6 ("6Gi"). Every hint was run through the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.mgpu.words import MGPU_CORE, MGPU_MEMORY
from ledger.domain.errors import FieldError
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import invalid, of_rule, too_long

NORMAL_MEMORY_MIN_MIB: Final = 256
"""Rule N2's floor; normal Pods keep it whatever the settings say (GPU-sharing contract A.3)."""

_COUNT_MAX: Final = 64
"""Up to so many cards a count is looked for when a hint is made."""

Amounts = tuple[int | None, int | None]
"""Core and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MgpuAsk:
    """
    What one container asks for. None is a key that is absent, which differs from 0.

    `core_field`, `memory_field` and `name_field` are the paths that errors name; `core_text` and
    `memory_text` are the amounts as they were written.
    """

    container: str
    core: int | None
    memory_mib: int | None
    core_field: str
    memory_field: str
    name_field: str
    core_text: str = ""
    memory_text: str = ""

    @property
    def asks(self) -> bool:
        """Tell whether the container names either resource."""
        return self.core is not None or self.memory_mib is not None

    @property
    def field(self) -> str:
        """Return the path of the core, or of the memory when only that is set."""
        only_memory = self.core is None and self.memory_mib is not None
        return self.memory_field if only_memory else self.core_field


def normal_rule(core: int | None, memory: int | None, *, memory_max_mib: int) -> str | None:
    """Return the first rule, of N1 to N4 and A.6, that these amounts break in a normal Pod."""
    asked, mib = core or 0, memory or 0
    whole = asked >= WHOLE_PERCENT and asked % WHOLE_PERCENT == 0
    if asked <= 0 or mib < 0:
        return "N1"
    if asked < WHOLE_PERCENT and mib < NORMAL_MEMORY_MIN_MIB:
        return "N2"
    if asked > WHOLE_PERCENT and not whole:
        return "N3"
    if whole and memory is not None:
        return "N4"
    return "A.6" if mib > memory_max_mib else None


def multi_rule(
    core: int | None, memory: int | None, count: int, *, memory_min_mib: int, memory_max_mib: int
) -> str | None:
    """Return the first rule, of M3 to M9 and A.6, that these amounts break on so many cards."""
    mib = memory or 0
    if (core is not None and core <= 0) or mib < 0:
        return "M3"
    if count == 0:
        return "M4" if core or mib else None
    if core is None:
        return "M5"
    if core == WHOLE_PERCENT * count:
        return None if memory is None else "M6"
    if mib // count < memory_min_mib:
        return "M7"
    if core % count or mib % count:
        return "M8"
    if core // count > WHOLE_PERCENT:
        return "M9"
    return "A.6" if mib // count > memory_max_mib else None


@of_rule(Rule.MGPU_NORMAL)
def check_normal(ask: MgpuAsk, *, memory_max_mib: int) -> Iterator[FieldError]:
    """
    Yield the first rule that one container of a normal Pod breaks.

    Rule: N1 to N4 and A.6; Volcano mGPU proposal, "Normal MGPU Pod".
    """
    breaks = partial(normal_rule, memory_max_mib=memory_max_mib)
    rule = breaks(ask.core, ask.memory_mib)
    memory_field = ask.core_field if ask.memory_mib is None else ask.memory_field
    match rule:
        case "N1" if (ask.core or 0) > 0:
            hint = _hint(ask, *_normal_amounts(ask, memory_max_mib), breaks, memory_first=True)
            yield _deny(ask, rule, ask.memory_field, f"must not be negative{hint}")
        case "N1":
            hint = _hint(ask, *_normal_amounts(ask, memory_max_mib), breaks)
            yield _deny(ask, rule, ask.field, f"{MGPU_CORE} must be above 0{hint}")
        case "N2":
            fact = f"below a whole card {MGPU_MEMORY} must be at least {NORMAL_MEMORY_MIN_MIB}"
            yield _deny(ask, rule, memory_field, f"{fact} (MiB)")
        case "N3":
            hint = _hint(ask, *_normal_amounts(ask, memory_max_mib), breaks)
            yield _deny(ask, rule, ask.core_field, f"above 100 it must be a multiple of 100{hint}")
        case "N4":
            fact = f"whole cards bring their memory: leave {MGPU_MEMORY} out"
            yield _deny(ask, rule, ask.memory_field, fact)
        case "A.6":
            yield from _too_much_memory(ask, memory_max_mib)
        case _:
            assert rule is None, rule


@of_rule(Rule.MGPU_MULTIPLE)
def check_counts(
    field: str,
    counts: Sequence[int],
    asks: Sequence[MgpuAsk],
    text: str,
    *,
    memory_min_mib: int,
    memory_max_mib: int,
) -> Iterator[FieldError]:
    """
    Yield how the list of card counts itself is wrong.

    Rule: M1 and M2. The hint is the nearest list with which no container breaks a rule; there is
    none where what a container asks for is wrong on any number of cards.
    """
    if len(counts) == len(asks) and all(count >= 0 for count in counts):
        return
    legal = partial(multi_rule, memory_min_mib=memory_min_mib, memory_max_mib=memory_max_mib)
    wanted = [*counts, *[0] * len(asks)][: len(asks)]
    fitting = [_nearest_count(ask, count, legal) for ask, count in zip(asks, wanted, strict=True)]
    known = ",".join(str(count) for count in fitting if count is not None)
    hint = f", nearest {_quoted(known)}" if None not in fitting else ""
    if len(counts) != len(asks):
        fact = f"rule M1: lists {len(counts)} counts for {len(asks)} containers"
        yield invalid(field, text, f"{fact}{hint}")
    else:
        yield invalid(field, text, f"rule M2: a count must not be negative{hint}")


@of_rule(Rule.MGPU_MULTIPLE)
def check_multi(
    ask: MgpuAsk, count: int, *, memory_min_mib: int, memory_max_mib: int
) -> Iterator[FieldError]:
    """
    Yield the first rule that one container of a multi-card Pod breaks.

    Rule: M3 to M9; Volcano mGPU proposal, "Multiple MGPU Pod". `count` is its entry of the list,
    `memory_min_mib` the setting `mgpu.multiMinMemoryMiB`.
    """
    assert count >= 0, count
    legal = partial(multi_rule, memory_min_mib=memory_min_mib, memory_max_mib=memory_max_mib)

    def breaks(core: int | None, memory: int | None) -> str | None:
        return legal(core, memory, count)

    def hint(*, memory_first: bool = False) -> str:
        near = _multi_amounts(ask, count, memory_min_mib, memory_max_mib)
        return _hint(ask, *near, breaks, memory_first=memory_first)

    on = f"on {count} cards"
    match rule := breaks(ask.core, ask.memory_mib):
        case "M3":
            by_memory = ask.core is None or ask.core > 0
            yield from check_multi_amounts(ask, hint(memory_first=by_memory))
        case "M4":
            fitting = _nearest_count(ask, 0, legal)
            other = "" if fitting is None else f" or count {fitting}"
            yield _deny(ask, rule, ask.field, f"ask nothing{other}", on="on 0 cards")
        case "M5":
            yield _deny(ask, rule, ask.field, f"{MGPU_CORE} must be above 0{hint()}", on=on)
        case "M6":
            fact = f"leave {MGPU_MEMORY} out"
            yield _deny(ask, rule, ask.memory_field, fact, on=f"on {count} whole cards")
        case "M7":
            field = ask.core_field if ask.memory_mib is None else ask.memory_field
            fact = f"each needs {memory_min_mib} MiB{hint(memory_first=True)}"
            yield _deny(ask, rule, field, fact, on=on)
        case "M8":
            by_core = (ask.core or 0) % count != 0
            field = ask.core_field if by_core else ask.memory_field
            fact = f"must be a multiple of {count}{hint(memory_first=not by_core)}"
            yield _deny(ask, rule, field, fact, on=on)
        case "M9":
            yield _deny(ask, rule, ask.core_field, f"at most 100 on each{hint()}", on=on)
        case "A.6":
            yield from _too_much_memory(ask, memory_max_mib)
        case _:
            assert rule is None, rule


@of_rule(Rule.MGPU_MULTIPLE)
def check_multi_amounts(ask: MgpuAsk, hint: str = "") -> Iterator[FieldError]:
    """Yield what is wrong with a container on however many cards (M3); no number, no `hint`."""
    if ask.core is not None and ask.core <= 0:
        yield _deny(ask, "M3", ask.core_field, f"must be above 0{hint}")
    elif ask.memory_mib is not None and ask.memory_mib < 0:
        yield _deny(ask, "M3", ask.memory_field, f"must not be negative{hint}")


@of_rule(Rule.MGPU_CONTAINER_NAME)
def check_name(ask: MgpuAsk, length_max: int) -> Iterator[FieldError]:
    """Yield the violation when no annotation could carry the name (GPU-sharing contract A.6)."""
    if len(ask.container) > length_max:
        yield too_long(
            ask.name_field,
            len(ask.container),
            length_max,
            "the annotation that names the cards of a container holds no more",
        )


@of_rule(Rule.MGPU_MEMORY_UNIT)
def _too_much_memory(ask: MgpuAsk, memory_max_mib: int) -> Iterator[FieldError]:
    fact = (
        f"more than {memory_max_mib} MiB on one card; the value counts MiB: "
        "write 6144 for 6 GiB, not 6Gi"
    )
    yield _deny(ask, "A.6", ask.memory_field, fact)


def _deny(ask: MgpuAsk, rule: str, field: str, fact: str, *, on: str = "") -> FieldError:
    amount, text = (
        (ask.memory_mib, ask.memory_text)
        if field == ask.memory_field
        else (ask.core, ask.core_text)
    )
    shown = "absent" if amount is None else _as_written(amount, text)
    numbers = f"{_numbers(ask)} {on}" if on else _numbers(ask)
    return invalid(field, shown, f"container {ask.container}, rule {rule}: {numbers}; {fact}")


def _as_written(amount: int, text: str) -> int | str:
    """Return the text where it is no plain number: it is capped when it is read."""
    return text if text and not text.removeprefix("-").isdecimal() else amount


def _numbers(ask: MgpuAsk) -> str:
    core = "absent" if ask.core is None else _as_written(ask.core, ask.core_text)
    if ask.memory_mib is None:
        return f"core {core}, no memory"
    memory = _as_written(ask.memory_mib, ask.memory_text)
    return f"core {core}, memory {memory}" + (" MiB" if memory == ask.memory_mib else "")


def _quoted(text: str) -> str:
    return f'"{text}"' if len(text) <= 40 else f'"{text[:37]}..."'


def _normal_amounts(ask: MgpuAsk, memory_max_mib: int) -> tuple[list[int], list[int]]:
    """Return cores and memories of normal Pods near those asked for."""
    core, memory = ask.core or 0, ask.memory_mib or 0
    below = max(core - core % WHOLE_PERCENT, WHOLE_PERCENT)
    cores = {min(max(core, 1), WHOLE_PERCENT - 1), below}
    if core > WHOLE_PERCENT:
        cores.add(below + WHOLE_PERCENT)
    return sorted(cores), [min(max(memory, NORMAL_MEMORY_MIN_MIB), memory_max_mib)]


def _multi_amounts(
    ask: MgpuAsk, count: int, memory_min_mib: int, memory_max_mib: int
) -> tuple[list[int], list[int]]:
    """Return cores and memories on so many cards near those asked for."""
    if count == 0:
        return [], []
    most = WHOLE_PERCENT - 1  # of a part of each card
    cores = _multiples(ask.core or 0, count, 1, most) | {WHOLE_PERCENT * count}
    memories = _multiples(ask.memory_mib or 0, count, memory_min_mib, memory_max_mib)
    return sorted(cores), sorted(memories)


def _multiples(amount: int, count: int, least: int, most: int) -> set[int]:
    return {min(max(part, least), most) * count for part in (amount // count, -(-amount // count))}


def _hint(
    ask: MgpuAsk,
    cores: Sequence[int],
    memories: Sequence[int],
    breaks: Callable[[int | None, int | None], str | None],
    *,
    memory_first: bool = False,
) -> str:
    """Return the legal amounts that change one of the two, else those that change both."""
    by_core: list[Amounts] = [(core, ask.memory_mib) for core in cores]
    by_memory: list[Amounts] = [(ask.core, memory) for memory in (*memories, None)]
    both: list[Amounts] = [(core, memory) for core in cores for memory in (*memories, None)]
    single = (by_memory, by_core) if memory_first else (by_core, by_memory)
    for tried in (*single, both, [(None, None)]):
        legal = [_said(ask, *amounts) for amounts in tried if breaks(*amounts) is None]
        if legal:
            return f", nearest {' or '.join(legal)}"
    return ""


def _said(ask: MgpuAsk, core: int | None, memory: int | None) -> str:
    with_memory = "no memory" if memory is None else f"memory {memory}"
    if core is None and memory is None:
        return "nothing"
    if core == ask.core:
        return with_memory
    return f"core {core}" if memory == ask.memory_mib else f"core {core} and {with_memory}"


def _nearest_count(ask: MgpuAsk, wanted: int, breaks: Callable[..., str | None]) -> int | None:
    tried = {*range(_COUNT_MAX + 1), (ask.core or 0) // WHOLE_PERCENT}
    legal = [
        count for count in tried if count >= 0 and breaks(ask.core, ask.memory_mib, count) is None
    ]
    return min(legal, key=lambda count: (abs(count - wanted), count), default=None)
