"""What may not change any more: classes, requests of a placed Pod, devices, the CPUs of a set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ledger.domain.annotations.cpu import decode_resource_status
from ledger.domain.annotations.qos import PriorityClass, read_priority_class
from ledger.domain.annotations.wire import annotation_path, label_path
from ledger.domain.cpuset import format_cpuset
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import annotations_of, found_in, labels_of
from ledger.domain.kube.pod_spec import ContainerSpec, PodSpec
from ledger.domain.quantity import Quantity
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, invalid, of_rule
from ledger.domain.resources import ANNOTATION_RESOURCE_STATUS, CPU, LABEL_PRIORITY, LABEL_QOS_CLASS
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery, owned, visible
from webhook.decide.validating.findings import FoundViolations, Json, node_of, shown
from webhook.decide.validating.pods import applicable, errors_of, is_managed
from webhook.decide.validating.requests import Examined, examine
from webhook.decide.validating.words import PLACED_ANNOTATIONS, PLACED_LABELS


def check_update(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> FoundViolations:
    """
    Return everything that speaks against a change of a Pod, in place or otherwise.

    A violation that the Pod had before the change does not count: else it could never lose a
    finalizer or a label again.
    """
    pod, old = request.obj or {}, request.old or {}
    errors = [*forgery.check_allocations(request, settings)]
    after = examine(pod, settings.vocabulary, request.namespace)
    before = examine(old, settings.vocabulary, request.namespace)
    known = {(error.field, error.message) for error in before.errors}
    if after.spec is not None and before.spec is not None:
        known |= {(e.field, e.message) for e in owned.check_owned(old, before.spec, settings)}
        errors += [
            error
            for error in owned.check_owned(pod, after.spec, settings)
            if (error.field, error.message) not in known
        ]
    managed = is_managed(old, settings, facts) or is_managed(pod, settings, facts)
    found = errors_of(pod, settings, facts, after)
    fresh = [error for error in found if (error.field, error.message) not in known]
    errors += applicable(fresh, managed=managed)
    if managed:
        errors += forgery.check_reserve_pod(request, settings)
        errors += check_classes(pod, old)
        if not forgery.is_ours(request.user, settings):
            errors += check_request_words(pod, old)
        errors += check_amounts(after, before, old)
        if not forgery.is_ours(request.user, settings):
            errors += visible.check_cdi(pod, old)
    return FoundViolations(errors=tuple(errors))


def check_status(request: AdmissionRequest, settings: AdmissionSettings) -> FoundViolations:
    """
    Return everything that speaks against a change of a Pod's status.

    Rule: design section 5.1: a status patch can change annotations (checked on 1.36).
    """
    return FoundViolations(errors=tuple(forgery.check_allocations(request, settings)))


def check_classes(pod: Json, old: Json) -> Iterator[FieldError]:
    """
    Yield every change of QoS, priority class and sub-priority.

    Rule: Koordinator contract 5.3, UPDATE.
    """
    labels, before = labels_of(pod), labels_of(old)
    yield from _check_qos(labels, before)
    yield from _check_priority(labels, before, pod, old)


@of_rule(Rule.QOS_IMMUTABLE)
def _check_qos(labels: Mapping[str, str], before: Mapping[str, str]) -> Iterator[FieldError]:
    if labels.get(LABEL_QOS_CLASS) != before.get(LABEL_QOS_CLASS):
        yield _immutable_label(LABEL_QOS_CLASS, labels, before)


@of_rule(Rule.PRIORITY_IMMUTABLE)
def _check_priority(
    labels: Mapping[str, str], before: Mapping[str, str], pod: Json, old: Json
) -> Iterator[FieldError]:
    new_class, old_class = _class_of(labels, pod), _class_of(before, old)
    if new_class is not old_class:
        fact = f"field is immutable: the priority class was {old_class or 'none'}"
        yield invalid("spec.priority", f"{new_class or 'none'}", fact)
    if labels.get(LABEL_PRIORITY) != before.get(LABEL_PRIORITY):
        yield _immutable_label(LABEL_PRIORITY, labels, before)


def _class_of(labels: Mapping[str, str], pod: Json) -> PriorityClass:
    priority = found_in(pod, "spec", "priority")
    return read_priority_class(labels, priority if isinstance(priority, int) else None)


@of_rule(Rule.REQUEST_IMMUTABLE)
def check_request_words(pod: Json, old: Json) -> Iterator[FieldError]:
    """
    Yield every request label and annotation that changes once the Pod has a node.

    Rule: design section 8, "Restore": the request must stay what the allocation was made for.
    """
    if not node_of(old):
        return
    labels, before = labels_of(pod), labels_of(old)
    for key in PLACED_LABELS:
        if labels.get(key) != before.get(key):
            yield _immutable_label(key, labels, before)
    texts, were = annotations_of(pod), annotations_of(old)
    for key in PLACED_ANNOTATIONS:
        if texts.get(key) != were.get(key):
            was = shown(were[key]) if key in were else "absent"
            fact = f"field is immutable once the pod has a node, was {was}"
            yield invalid(annotation_path(key), texts.get(key, ""), fact)


def check_amounts(after: Examined, before: Examined, old: Json) -> Iterator[FieldError]:
    """
    Yield every change of a device amount, and of CPU where the Pod holds a CPU set.

    Rule: design section 8, Guests in the cluster (resize); Koordinator contract 6.1.
    """
    if after.spec is None or before.spec is None:
        return
    yield from _check_devices(after.spec, before.spec)
    held = held_cpus(before, old)
    if held:
        yield from _check_cpus(after.spec, before.spec, held)


def held_cpus(before: Examined, old: Json) -> str:
    """Return the CPUs that a Pod holds or waits for, as people read them; nothing without any."""
    text = annotations_of(old).get(ANNOTATION_RESOURCE_STATUS)
    try:
        cpus = "" if text is None else format_cpuset(decode_resource_status(text).cpuset)
    except InputError:
        cpus = "that can't be read"
    if cpus:
        return f"CPUs {cpus}"
    return "CPUs of its own" if before.asks_own_cpus else ""


@of_rule(Rule.DEVICES_IMMUTABLE)
def _check_devices(spec: PodSpec, old: PodSpec) -> Iterator[FieldError]:
    for container, before in _pairs(spec, old):
        for section, now, was in _sides(container, before):
            for name in sorted({*now, *was}):
                if name in spec.vocabulary.device_names and now.get(name) != was.get(name):
                    fact = f"devices are immutable, was {_amount(was.get(name))}"
                    field = (container if name in now else before).field(name, section)
                    yield forbidden(field, f"{fact}, not to become {_amount(now.get(name))}")


@of_rule(Rule.CPUSET_RESIZE)
def _check_cpus(spec: PodSpec, old: PodSpec, held: str) -> Iterator[FieldError]:
    changes = [
        (container.field(CPU, section), now, was)
        for container, before in _pairs(spec, old)
        for section, now, was in _sides(container, before)
        if now.get(CPU) != was.get(CPU)
    ] or [
        (f"spec.resources.{section}[{CPU}]", now, was)
        for section, now, was in (
            ("requests", spec.pod_requests, old.pod_requests),
            ("limits", spec.pod_limits, old.pod_limits),
        )
        if now.get(CPU) != was.get(CPU)
    ][:1]
    for field, now, was in changes:
        change = f"from {_amount(was.get(CPU))} to {_amount(now.get(CPU))}"
        yield forbidden(field, f"a pod that holds {held} can't change its cpu {change}")


def _pairs(spec: PodSpec, old: PodSpec) -> Iterator[tuple[ContainerSpec, ContainerSpec]]:
    """Yield every container with what it was; the API server lets none come or go."""
    before = {container.name: container for container in old.containers}
    for container in spec.containers:
        if container.name in before:
            yield container, before[container.name]


def _sides(
    container: ContainerSpec, before: ContainerSpec
) -> Iterator[tuple[str, Mapping[str, Quantity], Mapping[str, Quantity]]]:
    """Yield requests, then limits only where the requests are alike: one change is said once."""
    yield "requests", container.requests, before.requests
    names = {
        name
        for name in {*container.limits, *before.limits}
        if container.requests.get(name) == before.requests.get(name)
    }
    yield (
        "limits",
        {name: q for name, q in container.limits.items() if name in names},
        {name: q for name, q in before.limits.items() if name in names},
    )


def _immutable_label(key: str, labels: Mapping[str, str], before: Mapping[str, str]) -> FieldError:
    was = shown(before[key]) if key in before else "absent"
    return invalid(label_path(key), labels.get(key, ""), f"field is immutable, was {was}")


def _amount(quantity: Quantity | None) -> str:
    return "absent" if quantity is None else str(quantity)
