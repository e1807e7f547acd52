"""Volcano mGPU: every container has a demand of its own, on one card or spread over several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.mgpu import rules, words
from ledger.domain.dialects.mgpu.annotations import (
    CONTAINER_NAME_LENGTH_MAX,
    MgpuPolicy,
    decode_card_counts,
    read_compute_policy,
)
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.pod_spec import APP, ContainerSpec, PodSpec
from ledger.domain.request.asked import NOTHING, TypeRequest
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, invalid, of_rule, under
from ledger.domain.resources import TYPE_GPU
from ledger.domain.vocabulary import Vocabulary

MIB: Final = 2**20
_COUNTS_FIELD: Final = annotation_path(words.ANNOTATION_MGPU_CONTAINER_MULTIPLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MgpuAsked:
    """The demands with the Pod's compute policy, and whether it spreads a container over cards."""

    asked: TypeRequest
    policy: MgpuPolicy = MgpuPolicy.FIXED_SHARE
    multi: bool = False


def mgpu_demands(spec: PodSpec) -> MgpuAsked:
    """
    Return the demands of a Pod in mGPU's keys, one per container that asks.

    Rule: GPU-sharing contract A.1, A.3, A.5, A.6. A Pod with the list annotation is a multi Pod,
    even when the list is useless.
    """
    asks = [_ask(container) for container in spec.containers]
    if not any(ask.asks for ask in asks):
        return MgpuAsked(asked=NOTHING)
    apps = [ask for ask, container in zip(asks, spec.containers, strict=True) if _is_app(container)]
    text = spec.annotations.get(words.ANNOTATION_MGPU_CONTAINER_MULTIPLE)
    errors = [*_check_init(spec, asks)]
    policy, policy_errors = _policy(spec)
    errors += policy_errors
    counts: tuple[int, ...] = ()
    limits = spec.vocabulary
    if text is None:
        for ask in apps:
            if ask.asks:
                errors += rules.check_normal(ask, memory_max_mib=limits.mgpu_max_memory_mib)
    else:
        counts, count_errors = _counts(text, apps, limits)
        errors += count_errors
        for ask in apps if count_errors else ():
            errors += rules.check_multi_amounts(ask)
        for ask, count in zip(apps, counts, strict=False) if not count_errors else ():
            errors += rules.check_multi(
                ask,
                count,
                memory_min_mib=limits.mgpu_multi_min_memory_mib,
                memory_max_mib=limits.mgpu_max_memory_mib,
            )
    for ask in apps:
        if ask.asks:
            errors += rules.check_name(ask, CONTAINER_NAME_LENGTH_MAX)
    if errors:
        return MgpuAsked(asked=TypeRequest(errors=tuple(errors)), policy=policy)
    places = [container.index for container in spec.containers if _is_app(container)]
    return MgpuAsked(
        asked=_demands(places, apps, counts), policy=policy, multi=any(count for count in counts)
    )


def _is_app(container: ContainerSpec) -> bool:
    """The list annotation counts the entries of `spec.containers`; a sidecar is no such entry."""
    return container.kind == APP


def _ask(container: ContainerSpec) -> rules.MgpuAsk:
    core, memory = (
        container.requests.get(words.MGPU_CORE),
        container.requests.get(words.MGPU_MEMORY),
    )
    return rules.MgpuAsk(
        container=container.name,
        core=None if core is None else core.ceil(),
        memory_mib=None if memory is None else memory.ceil(),
        core_field=container.field(words.MGPU_CORE),
        memory_field=container.field(words.MGPU_MEMORY),
        name_field=f"{container.path}.name",
        core_text=_written(container, words.MGPU_CORE),
        memory_text=_written(container, words.MGPU_MEMORY),
    )


def _written(container: ContainerSpec, resource: str) -> str:
    return container.original.get(container.written.get(resource, resource), "")


@of_rule(Rule.MGPU_INIT_CONTAINER)
def _check_init(spec: PodSpec, asks: Sequence[rules.MgpuAsk]) -> Iterator[FieldError]:
    for container, ask in zip(spec.containers, asks, strict=True):
        if ask.asks and not _is_app(container):
            yield forbidden(ask.field, "an init container can't hold an mGPU share")


def _policy(spec: PodSpec) -> tuple[MgpuPolicy, list[FieldError]]:
    try:
        return read_compute_policy(spec.annotations), []
    except InputError as error:
        return MgpuPolicy.FIXED_SHARE, [
            FieldError(
                field=error.field,
                reason="FieldValueNotSupported",
                message=error.message,
                rule=str(Rule.MGPU_POLICY),
            )
        ]


def _counts(
    text: str, asks: Sequence[rules.MgpuAsk], limits: Vocabulary
) -> tuple[tuple[int, ...], list[FieldError]]:
    try:
        counts = decode_card_counts(text)
    except InputError:
        fact = "rule M0: must be comma-separated integers without blanks, such as 2,1"
        return (), [*under(Rule.MGPU_MULTIPLE, [invalid(_COUNTS_FIELD, text, fact)])]
    errors = rules.check_counts(
        _COUNTS_FIELD,
        counts,
        asks,
        text,
        memory_min_mib=limits.mgpu_multi_min_memory_mib,
        memory_max_mib=limits.mgpu_max_memory_mib,
    )
    return counts, [*errors]


def _demands(
    places: Sequence[str], asks: Sequence[rules.MgpuAsk], counts: Sequence[int]
) -> TypeRequest:
    demands = []
    cards_by_place = {}
    for number, (place, ask) in enumerate(zip(places, asks, strict=True)):
        core = ask.core or 0
        if not core:
            continue
        normal_cards = max(1, core // WHOLE_PERCENT)
        cards = counts[number] if counts else normal_cards
        whole = core == WHOLE_PERCENT * cards
        demands.append(
            DeviceDemand(
                device_type=TYPE_GPU,
                count=cards,
                core_percent=core // cards,
                memory_bytes=0 if whole else (ask.memory_mib or 0) * MIB // cards,
                memory_ratio_percent=WHOLE_PERCENT if whole else 0,
                exclusive=whole,
                containers=(place,),
            )
        )
        cards_by_place[place] = cards
    return TypeRequest(demands=tuple(demands), counts=cards_by_place)
