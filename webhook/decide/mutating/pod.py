"""A Pod as it enters the cluster: every change of ours, in the order in which they build up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations import tenure
from ledger.domain.annotations.qos import priority_class_of_qos, read_qos_class
from ledger.domain.annotations.wire import a_list, an_object, each
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import annotations_of, labels_of, spec_of, text_at, text_in
from ledger.domain.kube.original import is_original_of, with_containers
from ledger.domain.kube.pod_spec import PodSpec, read_pod
from ledger.domain.quantity import quantity_of
from ledger.domain.request.normalise import BY_PLUGIN, examine_spec, read_asked
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rule_names import Rule
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from webhook.decide.answers import ALLOWED, AdmissionAnswer, Refusal, refuse, unreadable
from webhook.decide.counting import evaded
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating import parts, takeover
from webhook.decide.mutating.claims import claiming
from webhook.decide.mutating.dialects import filled, rewrite
from webhook.decide.patch import diff
from webhook.decide.review import CREATE, UPDATE, AdmissionRequest, expect_few, readable_pod
from webhook.decide.settings import (
    DEFAULT_SCHEDULER,
    AdmissionSettings,
    PodDefaults,
    Profile,
    RuleMode,
)
from webhook.decide.validating.findings import scheduler_of

EPHEMERAL: Final = "ephemeralcontainers"

_TOLERATION: Final = {"key": resources.TAINT_TENURE_OWNED, "operator": "Exists"}
_UNNAMED: Final = frozenset({"", DEFAULT_SCHEDULER})


def mutate_pod(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> AdmissionAnswer:
    """
    Answer a request to create a Pod, or to add ephemeral containers to one, with our changes.

    In a namespace that is not managed nothing is changed. A Pod that breaks rules is not
    rewritten, so that validation refuses it in the words of its user; one that can't be read at
    all is refused here.
    """
    about_pods = (request.group, request.kind) == ("", "Pod") and request.resource in {"", "pods"}
    if request.obj is None or not facts.managed or not about_pods:
        return ALLOWED
    try:
        if request.operation == CREATE and not request.subresource:
            after = mutated(request.obj, settings, facts, namespace=request.namespace)
        elif request.operation == UPDATE and request.subresource == EPHEMERAL:
            after = with_blind_ephemeral(request.obj, request.old or {}, settings)
        else:
            return ALLOWED
    except InputError as error:
        return _unreadable(request, error, settings)
    return AdmissionAnswer(patch=diff(request.obj, after))


def _unreadable(
    request: AdmissionRequest, error: InputError, settings: AdmissionSettings
) -> AdmissionAnswer:
    """Refuse a Pod that nobody could decode, unless the operator only wants to be told."""
    mode = settings.mode_of(Rule.ANNOTATION_SYNTAX)
    if mode is not RuleMode.ENFORCE:
        return ALLOWED
    cause = replace(unreadable(error), rule=str(Rule.ANNOTATION_SYNTAX))
    refusal = Refusal(rule=cause.rule, mode=str(mode), error=cause)
    return refuse(kind="Pod", name=request.shown_name, causes=[cause], refusals=[refusal])


def mutated(
    pod: parts.Pod, settings: AdmissionSettings, facts: NamespaceFacts, *, namespace: str = ""
) -> parts.Pod:
    """
    Return a Pod of a managed namespace as admission leaves it. Doing it twice changes nothing.

    Rule: design section 5, 1; Koordinator contract 5.1; section 8, Guests in the cluster. What
    another scheduler places is only marked as seen: a rewrite without our scheduler would leave
    it without cards.

    Raises:
        InputError: the Pod can't be read.
    """
    spec = _read(pod, namespace, settings)
    if spec.node_name:
        return pod
    profiled = with_profiles(pod, settings.profiles, facts.labels)
    spec = spec if profiled is pod else _read(profiled, namespace, settings)
    if not takeover.asks_for_ours(spec) and not takeover.is_placed_for_pools(
        profiled, settings, facts.labels
    ):
        return profiled
    expect_few(pod)
    pod = with_defaults(profiled, settings.defaults)
    spec = spec if profiled is pod else _read(pod, namespace, settings)
    before = scheduler_of(pod)
    if takeover.is_given_claims(pod, settings, facts.labels):
        pod = claiming(_told_by_namespace(pod, facts), settings, facts, namespace=namespace)
    elif not takeover.is_left_alone(pod, settings):
        if takeover.taken_over(pod, settings, facts.labels) and before != settings.scheduler_name:
            pod = parts.with_spec(pod, {"schedulerName": settings.scheduler_name})
        if scheduler_of(pod) == settings.scheduler_name:
            replaced = "" if before in _UNNAMED or before == settings.scheduler_name else before
            pod = _ours(pod, spec, settings, facts, scheduler_name=replaced)
    return parts.with_annotations(pod, tenure.encode_admitted())


def with_blind_ephemeral(pod: parts.Pod, old: parts.Pod, settings: AdmissionSettings) -> parts.Pod:
    """
    Return a Pod whose new ephemeral containers see no card, if our scheduler has placed it.

    Rule: design section 5, 1. Those that are there already can't be changed any more.

    Raises:
        InputError: the Pod can't be read.
    """
    spec = spec_of(pod)
    if scheduler_of(pod) != settings.scheduler_name or not takeover.asks_for_ours(
        read_pod(pod, settings.vocabulary)
    ):
        return pod
    expect_few(pod, old)
    path = "spec.ephemeralContainers"
    before, there = _ephemeral(pod), {text_at(one, "name", path) for one in _ephemeral(old)}
    after: list[object] = [
        one if text_at(one, "name", path) in there else with_void(one) for one in before
    ]
    if all(new is one for new, one in zip(after, before, strict=True)):
        return pod
    return {**pod, "spec": spec | {"ephemeralContainers": after}}


def _ours(
    pod: parts.Pod,
    spec: PodSpec,
    settings: AdmissionSettings,
    facts: NamespaceFacts,
    *,
    scheduler_name: str,
) -> parts.Pod:
    """Everything that a Pod needs which our scheduler places; `spec` is what it asks for."""
    replaced: dict[str, tenure.OriginalContainer] = {}
    vocabulary = settings.vocabulary
    pod = _told_by_namespace(pod, facts)
    spec = replace(spec, annotations=tenure.as_namespace_says(spec.annotations, facts.labels))
    asked = _legal_request(spec)
    by_plugin = asked is not None and asked.by_plugin
    whole_cards = any(each.units(resources.NVIDIA_GPU) for each in spec.containers) and not (
        by_plugin or any(evaded(spec, settings, facts, ours=True))
    )

    def written(container: parts.Container, _: str) -> parts.Container:
        if asked is None:
            return filled(container, vocabulary)
        result = rewrite(container, vocabulary, domain=settings.domain, whole_cards=whole_cards)
        if result.original is not None:
            replaced[str(container.get("name"))] = result.original
        return result.container

    pod = with_containers(pod, written)

    def equipped(container: parts.Container, place: str) -> parts.Container:
        if by_plugin and holds_gpus(container):
            return container  # a variable of the Pod's would count over what the plugin says
        seen = with_environment(container, place, by_slots=settings.vocabulary.by_slots)
        return with_slot(seen, vocabulary) if settings.vocabulary.by_slots else seen

    pod = with_containers(pod, equipped)
    pod = with_original(pod, vocabulary, replaced=replaced, scheduler_name=scheduler_name)
    if by_plugin:
        pod = parts.with_annotations(pod, {resources.TENURE_WHOLE_CARDS: BY_PLUGIN})
    pod = _tolerating(pod)
    return _gated(pod) if asked is not None and asked.gang is not None else pod


def _legal_request(spec: PodSpec) -> PodRequest | None:
    """
    Return what a Pod asks for that keeps the rules, None of any other.

    One whose user wrote an annotation that does not parse keeps none: validation says so, and
    whatever else is wrong with it.
    """
    try:
        request, errors = examine_spec(spec)
    except InputError:
        return None
    return None if errors else request


def _read(pod: parts.Pod, namespace: str, settings: AdmissionSettings) -> PodSpec:
    return read_asked(readable_pod(pod, namespace), settings.vocabulary)


def _tolerating(pod: parts.Pod) -> parts.Pod:
    """Return the Pod with the toleration that nodes of ours ask for (design section 3)."""
    before = each(spec_of(pod).get("tolerations"), "spec.tolerations", an_object)
    if any(_is_enough(toleration) for toleration in before):
        return pod
    return parts.with_spec(pod, {"tolerations": [*before, dict(_TOLERATION)]})


def _told_by_namespace(pod: parts.Pod, facts: NamespaceFacts) -> parts.Pod:
    for key in (resources.TENURE_ISOLATION, resources.TENURE_WHOLE_CARDS):
        pod = parts.without_annotation(pod, key)
    said = tenure.as_namespace_says({}, facts.labels)
    return parts.with_annotations(pod, said) if said else pod


def _gated(pod: parts.Pod) -> parts.Pod:
    """Return a Pod of a gang with the gate that is lifted once the gang can start (section 5)."""
    before = each(spec_of(pod).get("schedulingGates"), "spec.schedulingGates", an_object)
    if any(gate.get("name") == resources.GATE_TENURE_GANG for gate in before):
        return pod
    return parts.with_spec(
        pod, {"schedulingGates": [*before, {"name": resources.GATE_TENURE_GANG}]}
    )


def _is_enough(toleration: dict[str, object]) -> bool:
    return (
        toleration.get("operator") == "Exists"
        and not toleration.get("effect")
        and (toleration.get("key") or resources.TAINT_TENURE_OWNED) == resources.TAINT_TENURE_OWNED
    )


def _ephemeral(pod: parts.Pod) -> tuple[dict[str, object], ...]:
    return each(spec_of(pod).get("ephemeralContainers"), "spec.ephemeralContainers", an_object)


def recorded(pod: parts.Pod) -> tenure.OriginalRequest:
    """Return what earlier calls of ours have replaced; what can't be read was not ours."""
    try:
        return tenure.read_original(annotations_of(pod))
    except InputError:
        return tenure.OriginalRequest()


def with_original(
    pod: parts.Pod,
    vocabulary: Vocabulary,
    *,
    replaced: Mapping[str, tenure.OriginalContainer],
    scheduler_name: str,
) -> parts.Pod:
    """
    Return the Pod with its record of what was replaced, now and by earlier calls.

    A part of the old record that does not lead to what its container asks for now is dropped.

    Args:
        replaced: container name -> what this call has replaced.
        scheduler_name: the scheduler this call has replaced, empty when none.
    """
    before = recorded(pod)
    kept = {
        name: before.containers[name]
        for name, container in _containers(pod).items()
        if name in before.containers
        and is_original_of(before.containers[name], container, vocabulary)
    }
    name = scheduler_name or before.scheduler_name
    texts = tenure.encode_original(
        tenure.OriginalRequest(scheduler_name=name, containers={**kept, **replaced})
    )
    return (
        parts.with_annotations(pod, texts)
        if texts
        else parts.without_annotation(pod, resources.ANNOTATION_TENURE_ORIGINAL)
    )


def _containers(pod: parts.Pod) -> dict[str, Mapping[str, object]]:
    spec = spec_of(pod)
    items = (
        an_object(item, key)
        for key in ("initContainers", "containers")
        for item in a_list(spec.get(key), key)
    )
    return {str(item.get("name")): item for item in items}


def with_profiles(
    pod: parts.Pod, profiles: tuple[Profile, ...], namespace_labels: Mapping[str, str]
) -> parts.Pod:
    """
    Return the Pod with what the profiles that match it say and it does not.

    Rule: Koordinator contract 5.1, step 1. Of several, the first in order of names counts; a label
    that one adds may make another match, so they are gone through until nothing changes.
    """
    waiting = sorted(profiles, key=lambda profile: profile.name)
    while True:
        match = next((one for one in waiting if _matches(one, pod, namespace_labels)), None)
        if match is None:
            return pod
        waiting.remove(match)
        pod = _applied(pod, match)


def with_defaults(pod: parts.Pod, defaults: PodDefaults) -> parts.Pod:
    """
    Return the Pod with the QoS class and the priority class that it leaves open.

    Rule: Koordinator contract 5.3, class from QoS where the settings name none. Labels only: the
    number in `spec.priority` is the API server's.
    """
    labels = labels_of(pod)
    added = {}
    qos = labels.get(resources.LABEL_QOS_CLASS, defaults.qos)
    if qos and resources.LABEL_QOS_CLASS not in labels:
        added[resources.LABEL_QOS_CLASS] = qos
    implied = priority_class_of_qos(read_qos_class({resources.LABEL_QOS_CLASS: qos}))
    default = defaults.priority_class or str(implied)
    priority_class = defaults.priority_class_by_qos.get(qos, default)
    if priority_class and resources.LABEL_PRIORITY_CLASS not in labels and _has_no_priority(pod):
        added[resources.LABEL_PRIORITY_CLASS] = priority_class
    return parts.with_labels(pod, added)


def _matches(profile: Profile, pod: parts.Pod, namespace_labels: Mapping[str, str]) -> bool:
    labels = labels_of(pod)
    return all(labels.get(key) == text for key, text in profile.pod_labels.items()) and all(
        namespace_labels.get(key) == text for key, text in profile.namespace_labels.items()
    )


def _applied(pod: parts.Pod, profile: Profile) -> parts.Pod:
    wanted = dict(profile.labels)
    if profile.qos:
        wanted[resources.LABEL_QOS_CLASS] = profile.qos
    if profile.koordinator_priority:
        wanted[resources.LABEL_PRIORITY] = profile.koordinator_priority
    labels, annotations = labels_of(pod), annotations_of(pod)
    pod = parts.with_labels(pod, {key: text for key, text in wanted.items() if key not in labels})
    pod = parts.with_annotations(
        pod,
        {key: text for key, text in profile.annotations.items() if key not in annotations},
    )
    return parts.with_spec(pod, _spec_fields(pod, profile))


def _spec_fields(pod: parts.Pod, profile: Profile) -> dict[str, object]:
    fields: dict[str, object] = {}
    if profile.priority_class_name and _has_no_priority(pod):
        fields["priorityClassName"] = profile.priority_class_name
        if profile.priority is not None:
            fields["priority"] = profile.priority
    if profile.scheduler_name and scheduler_of(pod) in _UNNAMED:
        fields["schedulerName"] = profile.scheduler_name
    return fields


def _has_no_priority(pod: parts.Pod) -> bool:
    """Tell whether nobody chose a priority; the API server has filled in 0 where nobody did."""
    spec = spec_of(pod)
    return not spec.get("priorityClassName") and not spec.get("priority")


VOID: Final = "void"
"""What the NVIDIA runtime takes for "not mine": no card, no driver libraries."""
NONE: Final = "none"
"""Driver libraries, no card."""

_GPUS: Final = DEFAULT_VOCABULARY  # what names GPUs is the same in every vocabulary
_FOREIGN: Final = frozenset({resources.AMD_GPU, resources.DCU_GPU})
_OURS: Final = f"metadata.annotations['{resources.DOMAIN_TENURE}"


def field_ref(key: str) -> dict[str, object]:
    """Return the `valueFrom` that reads an annotation, with the API server's default filled in."""
    path = f"metadata.annotations['{key}']"
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def holds_devices(container: parts.Container, vocabulary: Vocabulary) -> bool:
    """Tell whether a container asks for a device of any type."""
    return any(True for _ in _asked(container, vocabulary))


def holds_gpus(container: parts.Container) -> bool:
    """Tell whether a container asks for GPUs that the NVIDIA runtime could show it."""
    return any(
        _GPUS.device_type_of(name) == resources.TYPE_GPU and name not in _FOREIGN
        for name in _asked(container, _GPUS)
    )


def _asked(container: parts.Container, vocabulary: Vocabulary) -> Iterator[str]:
    amounts = an_object(container.get("resources"), "resources")
    for section in ("requests", "limits"):
        for name, value in an_object(amounts.get(section), f"resources.{section}").items():
            if name in vocabulary.device_names and quantity_of(value):
                yield name


def with_environment(container: parts.Container, place: str, *, by_slots: bool) -> parts.Container:
    """
    Return a container of our Pod that sees its own cards and no others.

    Rule: design section 5, 1 and section 8, Ownership of the metal.

    A holder's NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES read annotations that exist once the
    Pod is bound, and count over what a device plugin answers; with slots the device plugin shows it
    its cards, and the runtime none. Whatever
    holds no card gets `void`. What a user wrote into a holder's environment stays: validation
    refuses it where it could show a card.
    """
    if not holds_gpus(container):
        return with_void(container)
    cuda: dict[str, object] = {
        "name": resources.ENV_CUDA_VISIBLE,
        "valueFrom": field_ref(tenure.allocated_key(place)),
    }
    nvidia: dict[str, object] = {"name": resources.ENV_NVIDIA_VISIBLE, "value": VOID}
    if not by_slots:
        nvidia = {
            "name": resources.ENV_NVIDIA_VISIBLE,
            "valueFrom": field_ref(tenure.visible_key(place)),
        }
    return _with_own(_with_own(container, nvidia), cuda)


def with_void(container: parts.Container) -> parts.Container:
    """Return a container that sees no card, whatever its image or its author says."""
    before = _entries(container)
    if any(entry.get("name") == resources.ENV_NVIDIA_VISIBLE for entry in before):
        after = [_voided(entry) for entry in before]
    else:
        after = [*before, {"name": resources.ENV_NVIDIA_VISIBLE, "value": VOID}]
    return _with_entries(container, before, after)


def with_slot(container: parts.Container, vocabulary: Vocabulary) -> parts.Container:
    """
    Return a container with the slot by which the device plugin knows it, if it holds devices.

    Rule: design section 8: one opaque slot for each container with devices.
    """
    if not holds_devices(container, vocabulary):
        return container
    before = an_object(container.get("resources"), "resources")
    after = {
        section: {**an_object(before.get(section), section), resources.SLOT: "1"}
        for section in ("requests", "limits")
    }
    if all(before.get(section) == amounts for section, amounts in after.items()):
        return container
    return {**container, "resources": before | after}


def is_ours(entry: Mapping[str, object]) -> bool:
    """Tell whether an entry of an environment reads an annotation of ours."""
    return text_in(entry, "valueFrom", "fieldRef", "fieldPath").startswith(_OURS)


def _with_own(container: parts.Container, wanted: dict[str, object]) -> parts.Container:
    """Add an entry, or correct ours where the container has moved; a user's own entry stays."""
    before = _entries(container)
    same = [entry for entry in before if entry.get("name") == wanted["name"]]
    if not same:
        return _with_entries(container, before, [*before, wanted])
    after = [
        wanted if entry.get("name") == wanted["name"] and is_ours(entry) else entry
        for entry in before
    ]
    return _with_entries(container, before, after)


def _voided(entry: dict[str, object]) -> dict[str, object]:
    blind = entry.get("value") in (VOID, NONE) and not entry.get("valueFrom")
    if entry.get("name") != resources.ENV_NVIDIA_VISIBLE or blind:
        return entry
    return {"name": resources.ENV_NVIDIA_VISIBLE, "value": VOID}


def _entries(container: parts.Container) -> list[dict[str, object]]:
    items = a_list(container.get("env"), "env")
    return [an_object(entry, f"env[{number}]") for number, entry in enumerate(items)]


def _with_entries(
    container: parts.Container, before: list[dict[str, object]], after: list[dict[str, object]]
) -> parts.Container:
    return container if before == after else {**container, "env": after}
