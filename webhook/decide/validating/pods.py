"""A new Pod: what it asks for, claims to hold, where it wants to be; and who debugs it later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ledger.domain import resources as res
from ledger.domain.annotations.qos import QosClass, read_qos_class
from ledger.domain.annotations.tenure import is_admitted
from ledger.domain.annotations.wire import annotation_path, label_path
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import annotations_of, labels_of, spec_of
from ledger.domain.kube.pod_spec import why_in_part
from ledger.domain.request.claimed import as_asked, is_claimed
from ledger.domain.request.isolation import provider_of
from ledger.domain.request.requests import PodRequest, is_whole
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, under
from webhook.decide.dialects.registry import ADMISSIONS, admission_of
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating import takeover
from webhook.decide.mutating.claims import is_as_claimed, unclaimed
from webhook.decide.review import CREATE, AdmissionRequest, expect_few
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery, near_misses, owned, quota, visible
from webhook.decide.validating.findings import (
    Advice,
    FoundViolations,
    Json,
    Said,
    say,
    scheduler_of,
    shown,
)
from webhook.decide.validating.requests import Examined, examine

EVERYWHERE: Final = frozenset(
    {
        Rule.FORGED_ALLOCATION,
        Rule.SLOT_BY_HAND,
        Rule.PINNED_NODE,
        Rule.OWNED_NODE,
        *(rule for each in ADMISSIONS for rule in each.everywhere),
    }
)
"""Every Pod there is, by policy, whether its namespace has opted in or not."""
_OF_PLACING: Final = frozenset(
    {
        Rule.GANG,
        Rule.TOPOLOGY_GROUP,
        Rule.GROUP_IS_GANG,
        Rule.NOT_SUPPORTED,
        *(rule for each in ADMISSIONS for rule in each.placing_rules),
    }
)


def is_managed(pod: Json, settings: AdmissionSettings, facts: NamespaceFacts) -> bool:
    """
    Tell whether our rules about requests are a Pod's.

    Rule: design section 8, Guests in the cluster: opt-in by namespace. A Pod that carries our mark
    or names our scheduler has been ours since it was created, whatever became of its namespace;
    one that a foreign scheduler places is none of ours.
    """
    scheduler = scheduler_of(pod)
    if scheduler in settings.takeover.foreign_schedulers:
        return False
    return facts.managed or scheduler == settings.scheduler_name or is_admitted(annotations_of(pod))


def check_create(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> FoundViolations:
    """
    Return everything that speaks against a new Pod.

    Who may write what, cards and slots that a Pod takes by itself, and some rules hold in every
    namespace (GPU-sharing contract A.3, ours); the rest is for managed Pods.
    """
    pod = request.obj or {}
    managed = is_managed(pod, settings, facts)
    examined = examine(_asked(pod), settings.vocabulary, request.namespace)
    return FoundViolations(
        errors=(
            *forgery.check_allocations(request, settings),
            *_by_itself(request, settings, facts, examined, managed=managed),
            *(visible.check_slots(examined.spec) if examined.spec is not None else ()),
            *applicable(errors_of(pod, settings, facts, examined), managed=managed),
            *(_managed_errors(request, settings, facts, examined) if managed else ()),
        ),
        said=tuple(_said(request, settings, facts, examined, managed=managed)),
    )


def errors_of(
    pod: Json, settings: AdmissionSettings, facts: NamespaceFacts, examined: Examined
) -> tuple[FieldError, ...]:
    """
    Return the violations of a Pod, less those about placing one that we do not place.

    Rule: design section 8, Guests in the cluster: groups and what this release can't honour are
    another scheduler's business where it places the Pod, or the Pod asks for nothing of ours.
    """
    spec = examined.spec
    asks = spec is None or takeover.asks_for_ours(spec)
    if scheduler_of(pod) == settings.scheduler_name:
        return examined.errors
    if asks and takeover.is_placed_by_us(pod, settings, facts.labels):
        return examined.errors
    return tuple(error for error in examined.errors if error.rule not in _OF_PLACING)


def applicable(errors: Iterable[FieldError], *, managed: bool) -> list[FieldError]:
    """Return the violations that count for a Pod: all of them, or those that bind everywhere."""
    return [error for error in errors if managed or error.rule in EVERYWHERE]


def _managed_errors(
    request: AdmissionRequest,
    settings: AdmissionSettings,
    facts: NamespaceFacts,
    examined: Examined,
) -> Iterator[FieldError]:
    pod = request.obj or {}
    yield from forgery.check_reserve_pod(request, settings)
    if examined.spec is None:
        return
    if takeover.asks_for_ours(examined.spec):
        expect_few(pod)
    if examined.asks_devices:
        yield from visible.check_visible(pod)
    if is_claimed(pod) or takeover.is_given_claims(pod, settings, facts.labels):
        yield from _claimed_errors(request, settings, facts, examined)
        return
    ours = takeover.is_placed_by_us(pod, settings, facts.labels)
    asked = examined.request
    if ours and asked is not None and asked.dialect is not None:
        check = admission_of(asked.dialect).violations
        yield from check(asked, labels_of(pod), facts)
    yield from quota.check_counted(examined.spec, settings, facts, ours=ours)


def _asked(pod: Json) -> Json:
    try:
        return as_asked(pod)
    except InputError:  # said below
        return pod


def _claimed_errors(
    request: AdmissionRequest,
    settings: AdmissionSettings,
    facts: NamespaceFacts,
    examined: Examined,
) -> Iterator[FieldError]:
    """Yield what speaks against a Pod whose request is a claim, or can't be made one."""
    pod = request.obj or {}
    if examined.spec is None or not takeover.asks_for_ours(examined.spec):
        if not is_claimed(pod):
            return
    elif not examined.errors:
        yield from unclaimed(pod, examined.request)
        yield from quota.check_claims_counted(examined.spec, facts)
    if is_claimed(pod) and not is_as_claimed(pod, settings, namespace=request.namespace):
        path = annotation_path(res.ANNOTATION_TENURE_CLAIMED)
        fact = "the claim of the pod is not what this request gives; take it out, and the claim"
        yield from under(Rule.FORGED_ALLOCATION, [forbidden(path, fact)])


def _by_itself(
    request: AdmissionRequest,
    settings: AdmissionSettings,
    facts: NamespaceFacts,
    examined: Examined,
    *,
    managed: bool,
) -> Iterator[FieldError]:
    """Yield how a Pod gets to a card of ours without our scheduler; a static one runs already."""
    if examined.spec is not None and not forgery.is_mirror(request):
        yield from forgery.check_pinned(
            examined.spec, managed=managed, cpuset=examined.asks_own_cpus
        )
        pod = request.obj or {}
        yield from owned.check_owned(pod, examined.spec, settings)
        asked = forgery.asked_of_us(examined.spec, managed=True, cpuset=examined.asks_own_cpus)
        yield from owned.check_opted_in(pod, asked, settings, opted_in=facts.managed)


def _said(
    request: AdmissionRequest,
    settings: AdmissionSettings,
    facts: NamespaceFacts,
    examined: Examined,
    *,
    managed: bool,
) -> Iterator[Said]:
    pod = request.obj or {}
    spec = examined.spec
    if spec is None:
        return
    asked = forgery.asked_of_us(spec, managed=managed, cpuset=examined.asks_own_cpus)
    if asked and forgery.is_mirror(request):
        text = f"a static pod asks for {asked}: nobody gave it any; it is reported as drift"
        yield say(Advice.MIRROR_POD, text)
    if not managed:
        return
    yield from unenforced(examined.request, settings)
    if examined.asks_own_cpus and not settings.koordlet_binds_cpus:
        what = (
            f"an agent binds them ({res.LABEL_TENURE_CPU_MANAGED}=true), or koordlet (cpu.boundBy)"
        )
        yield say(Advice.CPUS_NOT_BOUND, f"CPUsNotBound: a node gives CPUs of its own where {what}")
    shares = not asked and read_qos_class(labels_of(pod)) is QosClass.LS
    elsewhere = scheduler_of(pod) != settings.scheduler_name
    if shares and elsewhere and takeover.is_placed_by_us(pod, settings, facts.labels):
        text = f"QoS LS alone gets no pools: label the namespace {res.LABEL_TENURE_CPUS}=true"
        yield say(Advice.NO_SHARED_POOLS, text)
    if not examined.asks_devices:
        yield from visible.unasked(pod)
    if request.operation == CREATE:
        yield from _left_over(pod, asked, settings)
    yield from _without_effect(examined.request)
    if examined.request is not None and examined.request.gang is not None:
        yield from (say(Advice.GANG_IN_PART, why) for why in why_in_part(spec_of(pod)))
    yield from near_misses.near_misses(pod, spec, settings)


def _left_over(pod: Json, asked: str, settings: AdmissionSettings) -> Iterator[Said]:
    """Say that a new Pod is nobody's: what another system wrote came along, its name did not."""
    given = takeover.given_by(pod, settings)
    if asked and given:
        fact = "another system's scheduler writes it, so the pod is left to that one, which"
        way = f"take it out, or name that scheduler or {settings.scheduler_name}"
        text = f"{annotation_path(given)}: {fact} spec.schedulerName does not name; {way}"
        yield say(Advice.NEVER_PLACED, text)


def _without_effect(request: PodRequest | None) -> Iterator[Said]:
    """Say what is legal and can't come to anything."""
    if request is None:
        return
    if request.dialect is not None:
        yield from admission_of(request.dialect).hopeless(request)
    gpus = [item for item in request.devices if item.device_type == res.TYPE_GPU]
    if request.group is not None and not gpus:
        text = "a group keeps GPUs together, and this pod asks for none"
        yield say(Advice.UNKNOWN_VALUE, f"{label_path(res.LABEL_GPU_GROUP_NAME)}: {text}")
    parts = [item for item in gpus if not is_whole(item)]  # Koordinator contract 4.4, shared
    if parts and request.partition is not None:
        text = "partitions are of whole GPUs, so it changes nothing for a share of one"
        yield say(
            Advice.UNKNOWN_VALUE, f"{annotation_path(res.ANNOTATION_GPU_PARTITION_SPEC)}: {text}"
        )
    if any(item.count > 1 and item.hint and item.hint.required_topology_scope for item in parts):
        field = f"{annotation_path(res.ANNOTATION_DEVICE_ALLOCATE_HINT)}.gpu.requiredTopologyScope"
        text = "shares of several GPUs are never under one scope, so the pod waits for ever"
        yield say(Advice.NEVER_PLACED, f"{field}: {text}")


def unenforced(request: PodRequest | None, settings: AdmissionSettings) -> Iterator[Said]:
    """
    Say what is only booked for a share of a card.

    Rule: design section 8: fractions are accounting unless an isolation provider is set. What
    HAMi's words promise goes to nodes with HAMi-core alone, unless the namespace does without.
    """
    demands = () if request is None else request.devices
    parts = [item for item in demands if item.device_type == res.TYPE_GPU and not item.exclusive]
    provider = "" if request is None else provider_of(request.placement)
    if not parts or provider in settings.isolation_providers:
        return
    amounts = "its GPU memory and compute"
    if not any(item.core_percent for item in parts):
        amounts = "its GPU memory (it asks for no compute)"
    known = ", ".join(sorted(settings.isolation_providers)) or "none is set up"
    said = f"; {shown(provider)} is no known provider" if provider else ""
    yield say(
        Advice.ISOLATION_MISSING,
        f"nothing enforces this share of a card: {amounts} are booked, not limited{said}; "
        f"label {res.LABEL_GPU_ISOLATION_PROVIDER} (known: {known}) lets a provider limit them",
    )


def check_ephemeral(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> FoundViolations:
    """
    Return everything that speaks against new ephemeral containers.

    Rule: design section 5.1.
    """
    pod = request.obj or {}
    errors = [*forgery.check_allocations(request, settings)]
    if is_managed(pod, settings, facts):
        if scheduler_of(pod) == settings.scheduler_name:
            expect_few(pod, request.old or {})
        errors += visible.check_ephemeral(pod, request.old)
    return FoundViolations(errors=tuple(errors))
