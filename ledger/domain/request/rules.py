"""
The rules a Pod's request must keep, as functions that yield every violation as a field error.

They look at numbers only, so that admission and deciding refuse alike. Sections without another
source are those of the Koordinator contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import Final, ParamSpec

from ledger.domain.annotations.cpu import CpuBindPolicy, CpuExclusivePolicy, ResourceSpec
from ledger.domain.annotations.qos import PriorityClass, QosClass
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import FieldError
from ledger.domain.quantity import Quantity
from ledger.domain.request.rule_names import Rule
from ledger.domain.resources import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    HUAWEI_NPU_CORE,
    HUAWEI_NPU_CPU,
    HUAWEI_NPU_DVPP,
    WHOLE_CARD_NAMES,
)

P = ParamSpec("P")

UNSUPPORTED: Final = "not supported by this release: "
NOT_DECIDED: Final = "not decided: "
WHOLE_CPUS: Final = "the requested CPUs must be integer"

_SHARED_SETS: Final = frozenset(
    {
        frozenset({GPU_SHARED, GPU_MEMORY}),
        frozenset({GPU_SHARED, GPU_MEMORY_RATIO}),
        frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY}),
        frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO}),
    }
)
_PERCENT_SETS: Final = frozenset(
    {
        frozenset({GPU}),
        frozenset({GPU_MEMORY}),
        frozenset({GPU_MEMORY_RATIO}),
        frozenset({GPU_CORE, GPU_MEMORY}),
        frozenset({GPU_CORE, GPU_MEMORY_RATIO}),
        frozenset({HUAWEI_NPU_CORE, GPU_MEMORY_RATIO}),
    }
)
_NPU_SETS: Final = frozenset(
    {
        frozenset({GPU_SHARED, HUAWEI_NPU_CORE, HUAWEI_NPU_CPU, GPU_MEMORY}),
        frozenset({GPU_SHARED, HUAWEI_NPU_CORE, HUAWEI_NPU_CPU, GPU_MEMORY, HUAWEI_NPU_DVPP}),
    }
)
_LEGAL_SETS: Final = tuple(
    sorted(
        {*_SHARED_SETS, *_PERCENT_SETS, *(frozenset({name}) for name in WHOLE_CARD_NAMES)},
        key=lambda names: (len(names), sorted(names)),
    )
)
_ABOVE_ZERO: Final = "the requested GPU must be greater than zero (nearest legal value 1)"
_CLASSES_BY_QOS: Final[Mapping[QosClass, frozenset[PriorityClass]]] = {
    QosClass.LSE: frozenset({PriorityClass.PROD}),
    QosClass.LSR: frozenset({PriorityClass.PROD}),
    QosClass.BE: frozenset({PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE}),
}


def under(rule: Rule, errors: Iterable[FieldError]) -> Iterator[FieldError]:
    """Yield the violations with the rule they break, where nobody nearer has named one."""
    return (error if error.rule else replace(error, rule=str(rule)) for error in errors)


def of_rule(
    rule: Rule,
) -> Callable[[Callable[P, Iterator[FieldError]]], Callable[P, Iterator[FieldError]]]:
    """Name what a check yields after its rule."""

    def name(check: Callable[P, Iterator[FieldError]]) -> Callable[P, Iterator[FieldError]]:
        @wraps(check)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Iterator[FieldError]:
            for error in check(*args, **kwargs):
                yield error if error.rule else replace(error, rule=str(rule))

        return checked

    return name


def invalid(field: str, value: object, message: str) -> FieldError:
    """Return the error for a value that breaks a rule; texts are quoted, as Kubernetes does."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return FieldError(
        field=field, reason="FieldValueInvalid", message=f"Invalid value: {shown}: {message}"
    )


def forbidden(field: str, message: str) -> FieldError:
    """Return the error for something that may not be there at all."""
    return FieldError(field=field, reason="FieldValueForbidden", message=f"Forbidden: {message}")


def required(field: str, message: str) -> FieldError:
    """Return the error for something that must be there."""
    return FieldError(
        field=field, reason="FieldValueRequired", message=f"Required value: {message}"
    )


def unsupported(field: str, what: str) -> FieldError:
    """Return the error for a wish that is understood but can't be honoured yet."""
    return FieldError(
        field=field,
        reason="FieldValueNotSupported",
        message=f"{UNSUPPORTED}{what}",
        rule=str(Rule.NOT_SUPPORTED),
    )


def undecided(field: str, why: str) -> FieldError:
    """Return the error for what nothing here judges."""
    return FieldError(field=field, reason="FieldValueNotSupported", message=f"{NOT_DECIDED}{why}")


def unknown_value(field: str, value: str, values: Iterable[str]) -> FieldError:
    """Return the error for a text that is none of those that mean something."""
    known = ", ".join(f'"{item}"' for item in values)
    return FieldError(
        field=field,
        reason="FieldValueNotSupported",
        message=f'Unsupported value: "{value}": supported values: {known}',
    )


def too_long(field: str, length: int, length_max: int, why: str) -> FieldError:
    """Return the error for a text that is too long."""
    return FieldError(
        field=field,
        reason="FieldValueTooLong",
        message=f"Too long: may not be more than {length_max} bytes, is {length}: {why}",
    )


def check_equal_limits(
    field: str, resource: str, request: Quantity | None, limit: Quantity | None
) -> Iterator[FieldError]:
    """
    Yield the violation when a resource's request and limit differ.

    Rule: Koordinator contract 1.1, ours: devices of both domains; 5.3, ours: cpu of LSE and LSR.
    """
    if request != limit:
        shown = "0" if request is None else str(request)
        against = "none" if limit is None else str(limit)
        yield invalid(field, shown, f"must be equal to {resource} limit of {against}")


@of_rule(Rule.DEVICE_PERCENT)
def check_percent(field: str, name: str, percent: int) -> Iterator[FieldError]:
    """
    Yield the violation when a percentage means no number of devices.

    Rule: Koordinator contract 4.2, percent rule: up to 100, above it a multiple of 100; the words
    of 5.2 and 13.
    """
    if percent > WHOLE_PERCENT and percent % WHOLE_PERCENT:
        fact = f"invalid resource unit {name}: {percent}"
        if name == GPU:
            fact = "the requested GPU must be percentage of 100"
        yield invalid(field, percent, f"{fact} ({_nearest(percent, WHOLE_PERCENT)})")


@of_rule(Rule.SHARE_DIVIDES)
def check_share(field: str, amount: int, cards: int, name: str) -> Iterator[FieldError]:
    """
    Yield the violations of a percentage that is spread over `cards` cards.

    Rule: Koordinator contract 4.2, share rule, and 5.2: divisible, at most 100 on each card.
    """
    if amount % cards:
        nearest = _nearest(amount, cards)
        fact = f"the requested {name} must multiple of shared ({cards} cards; {nearest})"
        yield invalid(field, amount, fact)
    if amount // cards > WHOLE_PERCENT:
        most = WHOLE_PERCENT * cards
        yield invalid(field, amount, f"more than {most}, which {cards} cards have in all")


@of_rule(Rule.SHARE_DIVIDES)
def check_memory_split(field: str, memory_bytes: int, cards: int) -> Iterator[FieldError]:
    """Yield the violation when bytes don't divide: the remainder would be lost (12, Q13, ours)."""
    if memory_bytes % cards:
        rule = f"must be a multiple of shared ({cards} cards; {_nearest(memory_bytes, cards)})"
        yield invalid(field, memory_bytes, rule)


@of_rule(Rule.GPU_KEYS)
def check_gpu_keys(fields: Mapping[str, str], amounts: Mapping[str, int]) -> Iterator[FieldError]:
    """
    Yield every way one container's Koordinator GPU keys break the admission rules.

    Rule: Koordinator contract 5.2, in its order and words.

    Args:
        fields: released name -> field path.
        amounts: released name -> whole units, explicit zeros included.
    """
    if GPU in amounts and GPU_SHARED in amounts:
        yield forbidden(fields[GPU], "Forbidden declare GPU and GPU share at same time")
        return
    gpu = amounts.get(GPU)
    if gpu is not None and gpu <= 0:
        yield invalid(fields[GPU], gpu, _ABOVE_ZERO)
    shared = amounts.get(GPU_SHARED)
    if shared is None:
        return
    if shared <= 0:
        yield invalid(fields[GPU_SHARED], shared, _ABOVE_ZERO)
    if amounts.get(HUAWEI_NPU_CORE):
        return
    memory, ratio = amounts.get(GPU_MEMORY, 0), amounts.get(GPU_MEMORY_RATIO, 0)
    if not memory and not ratio:
        yield forbidden(fields[GPU_SHARED], "GPU memory and GPU memory ratio all is zero")
    elif memory and ratio:
        yield forbidden(fields[GPU_MEMORY], "declare GPU memory and GPU memory ratio at same time")


@of_rule(Rule.GPU_COMBINATION)
def check_gpu_combination(
    fields: Mapping[str, str], amounts: Mapping[str, int], fallback: str
) -> Iterator[FieldError]:
    """
    Yield every way a set of GPU keys, or the amounts under them, is no request.

    Rule: Koordinator contract 4.2, the table with its percent and share rules.

    Args:
        fields: released name -> field path; `fallback` for a name without one.
        amounts: released name -> whole units above 0, for one container or for the whole Pod.
    """
    keys = frozenset(amounts)
    if len(keys) == 1 and keys <= WHOLE_CARD_NAMES:
        return
    if keys in _PERCENT_SETS:
        for name in sorted(keys - {GPU_MEMORY, HUAWEI_NPU_CORE}):
            yield from check_percent(fields.get(name, fallback), name, amounts[name])
    elif keys in _SHARED_SETS:
        cards = amounts[GPU_SHARED]
        for name, word in ((GPU_CORE, "gpuCore"), (GPU_MEMORY_RATIO, "gpuMemoryRatio")):
            if name in keys:
                yield from check_share(fields.get(name, fallback), amounts[name], cards, word)
    elif keys in _NPU_SETS:
        if amounts[GPU_SHARED] > 1:
            yield invalid(
                fields.get(GPU_SHARED, fallback), amounts[GPU_SHARED], "must be at most 1"
            )
        if amounts.get(HUAWEI_NPU_DVPP, 0) > WHOLE_PERCENT:
            field = fields.get(HUAWEI_NPU_DVPP, fallback)
            yield invalid(field, amounts[HUAWEI_NPU_DVPP], "must be at most 100")
    else:
        names = ", ".join(sorted(keys))
        fact = f"invalid resource device requests: [{names}] ({_nearest_keys(keys)})"
        yield forbidden(fields.get(min(keys), fallback), fact)


@of_rule(Rule.QOS_PRIORITY)
def check_qos(field: str, qos: QosClass, priority_class: PriorityClass) -> Iterator[FieldError]:
    """Yield the violation when a QoS class may not have a priority class (5.3, our matrix)."""
    allowed = _CLASSES_BY_QOS.get(qos)
    if allowed is not None and priority_class not in allowed:
        named = ", ".join(sorted(allowed))
        yield forbidden(
            field,
            f"QoS {qos} and priority class {priority_class or 'none'} do not go together; "
            f"allowed with {qos}: {named}",
        )


@of_rule(Rule.WHOLE_CPUS)
def check_whole_cpus(field: str, cpu_milli: int) -> Iterator[FieldError]:
    """Yield the violation when the Pod's CPU request is no number of CPUs (5.3 and 13)."""
    if cpu_milli <= 0:
        yield invalid(field, "0", f"{WHOLE_CPUS} and more than 0")
    elif cpu_milli % 1000:
        below = cpu_milli // 1000
        nearest = f"values {below} and {below + 1}" if below else "value 1"
        yield invalid(field, f"{cpu_milli}m", f"{WHOLE_CPUS} (nearest legal {nearest})")


@of_rule(Rule.ARM_CPU_POLICY)
def check_arm_policies(path: str, wish: ResourceSpec) -> Iterator[FieldError]:
    """
    Yield every CPU policy that ARM machines don't have, for a Pod that runs on no other.

    Rule: Koordinator CPU-orchestration proposal, "Resource spec": on ARM only FullPCPUs, and of
    the exclusive policies only NUMANodeLevel.
    """
    for name, policy in (
        ("requiredCPUBindPolicy", wish.required_bind_policy),
        ("preferredCPUBindPolicy", wish.preferred_bind_policy),
    ):
        if policy is CpuBindPolicy.SPREAD_BY_PCPUS:
            fact = "ARM machines have no such bind policy; nearest legal value FullPCPUs"
            yield invalid(f"{path}.{name}", str(policy), fact)
    if wish.preferred_exclusive_policy is CpuExclusivePolicy.PCPU_LEVEL:
        fact = "ARM machines have no such exclusive policy; nearest legal value NUMANodeLevel"
        field = f"{path}.preferredCPUExclusivePolicy"
        yield invalid(field, str(wish.preferred_exclusive_policy), fact)


@of_rule(Rule.CPU_BURST)
def check_burst(
    path: str, policy: CpuBindPolicy, qos: QosClass, limit_milli: int
) -> Iterator[FieldError]:
    """
    Yield what keeps a Pod from bursting inside the shared pools of some NUMA nodes.

    Rule: Koordinator CPU-orchestration proposal, "Resource spec": for Burstable and LS Pods, which
    are placed by their limit; `limit_milli` is 0 when one of its containers has none.
    """
    if qos not in {QosClass.LS, QosClass.NONE}:
        yield invalid(path, str(policy), f"is for LS Pods and those without QoS, not for {qos}")
    elif not limit_milli:
        yield invalid(path, str(policy), "needs a cpu limit for every container of the Pod")


@of_rule(Rule.BATCH_QOS)
def check_batch_qos(field: str, qos: QosClass) -> Iterator[FieldError]:
    """Yield the violation when batch resources are asked for outside QoS BE (5.3)."""
    if qos is not QosClass.BE:
        yield forbidden(field, "batch resources need QoS BE")


@of_rule(Rule.GROUP_IS_GANG)
def check_same_group(
    name_field: str,
    replica_field: str,
    *,
    group: tuple[str, int],
    gang: tuple[str, int],
) -> Iterator[FieldError]:
    """
    Yield every difference between a Pod's GPU topology group and its gang.

    Rule: Koordinator GPU-topology proposal, "Works with the Gang plugin". A group is name and
    replica of the labels, a gang name and min-available of the annotations.
    """
    if group[0] != gang[0]:
        yield invalid(name_field, group[0], f'must be equal to the gang name "{gang[0]}"')
    if group[1] != gang[1]:
        yield invalid(
            replica_field, group[1], f"must be equal to the gang's min-available {gang[1]}"
        )


def one_of_each(errors: Iterable[FieldError]) -> tuple[FieldError, ...]:
    """Return the violations without repetition, in the order found."""
    return tuple(dict.fromkeys(errors))


def _nearest_keys(keys: frozenset[str]) -> str:
    """Return the legal set of keys that differs least; of equals the smallest, then by name."""
    nearest = min(_LEGAL_SETS, key=lambda names: len(names ^ keys))
    return f"nearest legal [{', '.join(sorted(nearest))}]"


def _nearest(amount: int, step: int) -> str:
    below = amount - amount % step
    if not below:
        return f"nearest legal value {step}"
    return f"nearest legal values {below} and {below + step}"
