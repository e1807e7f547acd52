"""Volcano mGPU's admission rules, first rule that fires wins, one function per kind of Pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import FieldError
from ledger.domain.resources import MGPU_CORE, MGPU_MEMORY
from ledger.domain.rule_names import Rule
from ledger.domain.rules import invalid, of_rule, too_long

NORMAL_MEMORY_MIN_MIB: Final = 256
"""Rule N2's floor; normal Pods keep it whatever the settings say (GPU-sharing contract A.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MgpuAsk:
    """
    What one container asks for. None is a key that is absent, which differs from 0.

    `core_field`, `memory_field` and `name_field` are the paths that errors name.
    """

    container: str
    core: int | None
    memory_mib: int | None
    core_field: str
    memory_field: str
    name_field: str

    @property
    def asks(self) -> bool:
        """Tell whether the container names either resource."""
        return self.core is not None or self.memory_mib is not None

    @property
    def field(self) -> str:
        """Return the path of the core, or of the memory when only that is set."""
        return (
            self.core_field
            if self.core is not None or self.memory_mib is None
            else (self.memory_field)
        )


@of_rule(Rule.MGPU_NORMAL)
def check_normal(ask: MgpuAsk, *, memory_max_mib: int) -> Iterator[FieldError]:
    """
    Yield the first rule that one container of a normal Pod breaks.

    Rule: GPU-sharing contract A.3, N1 to N4, and A.6 ("6Gi"); Volcano mGPU proposal, "Normal MGPU
    Pod".
    """
    core, memory = ask.core or 0, ask.memory_mib or 0
    whole = core >= WHOLE_PERCENT and core % WHOLE_PERCENT == 0
    if core <= 0:
        yield _deny(
            ask, "N1", ask.field, f"{_numbers(ask)}; {MGPU_CORE} must be above 0, nearest 1"
        )
    elif memory < 0:
        yield _deny(
            ask, "N1", ask.memory_field, f"{_numbers(ask)}; must not be negative, nearest 256"
        )
    elif core < WHOLE_PERCENT and memory < NORMAL_MEMORY_MIN_MIB:
        fact = f"{_numbers(ask)}; below a whole card {MGPU_MEMORY} must be at least 256 (MiB)"
        field = ask.core_field if ask.memory_mib is None else ask.memory_field
        yield _deny(ask, "N2", field, fact)
    elif core > WHOLE_PERCENT and not whole:
        below = core - core % WHOLE_PERCENT
        nearest = f"nearest {below} and {below + WHOLE_PERCENT}"
        fact = f"{_numbers(ask)}; above 100 it must be a multiple of 100, {nearest}"
        yield _deny(ask, "N3", ask.core_field, fact)
    elif whole and ask.memory_mib is not None:
        fact = f"{_numbers(ask)}; whole cards bring their memory: leave {MGPU_MEMORY} out"
        yield _deny(ask, "N4", ask.memory_field, fact)
    else:
        yield from _check_memory_max(ask, memory, memory_max_mib)


@of_rule(Rule.MGPU_MULTIPLE)
def check_counts(
    field: str, counts: Sequence[int], containers: int, text: str
) -> Iterator[FieldError]:
    """
    Yield how the list of card counts itself is wrong.

    Rule: GPU-sharing contract A.3, M1 and M2.
    """
    if len(counts) != containers:
        fitting = ",".join(map(str, [*counts, *[0] * containers][:containers]))
        fact = f"rule M1: lists {len(counts)} counts for {containers} containers"
        yield invalid(field, text, f"{fact}, nearest {_quoted(fitting)}")
    elif any(count < 0 for count in counts):
        yield invalid(field, text, "rule M2: a count must not be negative, nearest 0")


@of_rule(Rule.MGPU_MULTIPLE)
def check_multi(
    ask: MgpuAsk, count: int, *, memory_min_mib: int, memory_max_mib: int
) -> Iterator[FieldError]:
    """
    Yield the first rule that one container of a multi-card Pod breaks.

    Rule: GPU-sharing contract A.3, M3 to M9; Volcano mGPU proposal, "Multiple MGPU Pod".

    Args:
        count: the container's entry of the list, at least 0.
        memory_min_mib: the least memory on each card (setting `mgpu.multiMinMemoryMiB`).
    """
    assert count >= 0, count
    core, memory = ask.core or 0, ask.memory_mib or 0
    negative = [*check_multi_amounts(ask)]
    if negative:
        yield from negative
    elif count == 0:
        if core or memory:
            yield _deny(ask, "M4", ask.field, f"{_numbers(ask)} on 0 cards; ask nothing or count 1")
    elif core <= 0:
        fact = f"{_numbers(ask)} on {count} cards; {MGPU_CORE} must be above 0, nearest {count}"
        yield _deny(ask, "M5", ask.field, fact)
    elif core == WHOLE_PERCENT * count:
        if ask.memory_mib is not None:
            fact = f"{_numbers(ask)} on {count} whole cards; leave {MGPU_MEMORY} out"
            yield _deny(ask, "M6", ask.memory_field, fact)
    else:
        yield from _check_parts(ask, count, memory_min_mib)
        yield from _check_memory_max(ask, memory // count, memory_max_mib)


@of_rule(Rule.MGPU_MULTIPLE)
def check_multi_amounts(ask: MgpuAsk) -> Iterator[FieldError]:
    """
    Yield what is wrong with a container of a multi-card Pod on however many cards.

    Rule: GPU-sharing contract A.3, M3.
    """
    if ask.core is not None and ask.core <= 0:
        yield _deny(ask, "M3", ask.core_field, f"{_numbers(ask)}; must be above 0, nearest 1")
    elif ask.memory_mib is not None and ask.memory_mib < 0:
        fact = f"{_numbers(ask)}; must not be negative, nearest 0"
        yield _deny(ask, "M3", ask.memory_field, fact)


@of_rule(Rule.MGPU_CONTAINER_NAME)
def check_name(ask: MgpuAsk, length_max: int) -> Iterator[FieldError]:
    """
    Yield the violation when the answer's annotation could not carry the container's name.

    Rule: GPU-sharing contract A.6, key length.
    """
    if len(ask.container) > length_max:
        yield too_long(
            ask.name_field,
            len(ask.container),
            length_max,
            "the annotation that names the cards of a container holds no more",
        )


def _check_parts(ask: MgpuAsk, count: int, memory_min_mib: int) -> Iterator[FieldError]:
    """Rules M7 to M9, in the contract's order."""
    core, memory = ask.core or 0, ask.memory_mib or 0
    if memory // count < memory_min_mib:
        least = memory_min_mib * count
        fact = f"{_numbers(ask)} on {count} cards; each needs {memory_min_mib} MiB, nearest {least}"
        field = ask.core_field if ask.memory_mib is None else ask.memory_field
        yield _deny(ask, "M7", field, fact)
    elif core % count:
        fact = f"{_numbers(ask)} on {count} cards; {_nearest(core, count)}"
        yield _deny(ask, "M8", ask.core_field, fact)
    elif memory % count:
        fact = f"{_numbers(ask)} on {count} cards; {_nearest(memory, count)}"
        yield _deny(ask, "M8", ask.memory_field, fact)
    elif core // count > WHOLE_PERCENT:
        most = WHOLE_PERCENT * count
        fact = f"{_numbers(ask)} on {count} cards; at most 100 on each, nearest {most}"
        yield _deny(ask, "M9", ask.core_field, fact)


@of_rule(Rule.MGPU_MEMORY_UNIT)
def _check_memory_max(ask: MgpuAsk, memory_mib: int, memory_max_mib: int) -> Iterator[FieldError]:
    if memory_mib > memory_max_mib:
        fact = (
            f"{memory_mib} MiB on one card is more than {memory_max_mib}; the value counts MiB: "
            "write 6144 for 6 GiB, not 6Gi"
        )
        yield _deny(ask, "A.6", ask.memory_field, fact)


def _deny(ask: MgpuAsk, rule: str, field: str, fact: str) -> FieldError:
    value = ask.memory_mib if field == ask.memory_field else ask.core
    shown = "absent" if value is None else value
    return invalid(field, shown, f"container {ask.container}, rule {rule}: {fact}")


def _numbers(ask: MgpuAsk) -> str:
    core = "absent" if ask.core is None else str(ask.core)
    memory = "absent" if ask.memory_mib is None else str(ask.memory_mib)
    return f"core {core}, memory {memory} MiB" if memory != "absent" else f"core {core}, no memory"


def _quoted(text: str) -> str:
    return f'"{text}"' if len(text) <= 40 else f'"{text[:37]}..."'


def _nearest(amount: int, count: int) -> str:
    below = amount - amount % count
    nearest = f"{below} and {below + count}" if below else str(count)
    return f"must be a multiple of {count}, nearest {nearest}"
