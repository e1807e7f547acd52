"""Which Pods get our scheduler, and which are left alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.annotations.tenure import gives_claims
from ledger.domain.annotations.wire import FALSE, TRUE, a_list, an_object
from ledger.domain.dialects.names import FOREIGN_WORDS
from ledger.domain.kube.object_fields import annotations_of, labels_of, metadata_of, spec_of
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.cpus import OWN_CPUS
from ledger.domain.resources import LABEL_TENURE_CPUS, LABEL_TENURE_TAKEOVER
from webhook.decide.mutating.parts import Pod
from webhook.decide.settings import AdmissionSettings, TakeoverRule
from webhook.decide.validating.findings import scheduler_of

_GIVEN: Final = frozenset(key for words in FOREIGN_WORDS for key in words.given_annotations)
_AFFINITY: Final = "spec.affinity.nodeAffinity"
_TERMS: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def asks_for_ours(spec: PodSpec) -> bool:
    """Tell whether a Pod asks for devices, or for CPUs of its own; zero asks for nothing."""
    devices = spec.vocabulary.device_names
    return read_qos_class(spec.labels) in OWN_CPUS or any(
        quantity and name in devices
        for container in spec.containers
        for name, quantity in container.requests.items()
    )


def is_pinned(pod: Pod) -> bool:
    """
    Tell whether a Pod is bound to one node the way a DaemonSet's Pods are.

    That is: a DaemonSet owns it, or its required node affinity names a node by `metadata.name`.

    Raises:
        InputError: a wrong type on the way there.
    """
    path = "metadata.ownerReferences"
    owners = a_list(metadata_of(pod).get("ownerReferences"), path)
    if any(an_object(owner, path).get("kind") == "DaemonSet" for owner in owners):
        return True
    return any(
        an_object(field, _AFFINITY).get("key") == "metadata.name"
        for term in _node_terms(pod)
        for field in a_list(term.get("matchFields"), f"{_AFFINITY}.matchFields")
    )


def is_left_alone(pod: Pod, settings: AdmissionSettings) -> bool:
    """
    Tell whether a Pod is never ours to place: a foreign scheduler does, or others without our name.

    Such are those that are pinned, and that carry what another system's scheduler gave them.

    Rule: design section 8, Guests in the cluster. A Pod that has a node is not even looked at.
    """
    scheduler = scheduler_of(pod)
    if scheduler in settings.takeover.foreign_schedulers:
        return True
    given = not _GIVEN.isdisjoint(annotations_of(pod))
    return scheduler != settings.scheduler_name and (given or is_pinned(pod))


def given_by(pod: Pod, settings: AdmissionSettings) -> str:
    """Return the annotation for which alone a Pod is left to another system, empty without one."""
    scheduler = scheduler_of(pod)
    if scheduler in settings.takeover.foreign_schedulers | {settings.scheduler_name}:
        return ""
    return min(_GIVEN & annotations_of(pod).keys(), default="")


def taken_over(pod: Pod, settings: AdmissionSettings, namespace_labels: Mapping[str, str]) -> bool:
    """Tell whether a Pod that asks for something of ours gets our scheduler by the rule."""
    if gives_claims(namespace_labels):
        return False
    wish = _wish(pod, namespace_labels)
    match settings.takeover.rule:
        case TakeoverRule.DEVICES:
            return wish != FALSE
        case TakeoverRule.LABELLED:
            return wish == TRUE
        case TakeoverRule.NONE:
            return False


def is_given_claims(
    pod: Pod, settings: AdmissionSettings, namespace_labels: Mapping[str, str]
) -> bool:
    """
    Tell whether what a Pod asks for is written as a claim; whoever it names schedules it.

    Rule: docs/adr/0031. Who names our scheduler, or is out of takeover, is as everywhere.
    """
    return (
        gives_claims(namespace_labels)
        and scheduler_of(pod) != settings.scheduler_name
        and not is_left_alone(pod, settings)
        and _wish(pod, namespace_labels) != FALSE
    )


def _wish(pod: Pod, namespace_labels: Mapping[str, str]) -> str | None:
    return labels_of(pod).get(LABEL_TENURE_TAKEOVER, namespace_labels.get(LABEL_TENURE_TAKEOVER))


def is_placed_by_us(
    pod: Pod, settings: AdmissionSettings, namespace_labels: Mapping[str, str]
) -> bool:
    """Tell whether our scheduler places a Pod of a managed namespace, named already or not."""
    if is_left_alone(pod, settings):
        return False
    ours = scheduler_of(pod) == settings.scheduler_name
    return ours or taken_over(pod, settings, namespace_labels)


def is_placed_for_pools(pod: Pod, settings: AdmissionSettings, labels: Mapping[str, str]) -> bool:
    """Tell whether a namespace of these labels gives us any Pod to place, and so this one."""
    return labels.get(LABEL_TENURE_CPUS) == TRUE and is_placed_by_us(pod, settings, labels)


def _node_terms(pod: Pod) -> Iterator[dict[str, object]]:
    affinity = an_object(spec_of(pod).get("affinity"), "spec.affinity")
    node = an_object(affinity.get("nodeAffinity"), _AFFINITY)
    required = an_object(node.get(_TERMS), f"{_AFFINITY}.{_TERMS}")
    for term in a_list(required.get("nodeSelectorTerms"), f"{_AFFINITY}.{_TERMS}"):
        yield an_object(term, f"{_AFFINITY}.{_TERMS}")
