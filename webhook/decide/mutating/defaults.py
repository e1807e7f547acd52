"""QoS and priority that a Pod leaves open, from profiles and from defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.annotations.qos import priority_class_of_qos, read_qos_class
from ledger.domain.resources import LABEL_PRIORITY, LABEL_PRIORITY_CLASS, LABEL_QOS_CLASS
from webhook.decide.mutating.parts import Pod, with_annotations, with_labels, with_spec
from webhook.decide.settings import DEFAULT_SCHEDULER, PodDefaults, Profile
from webhook.decide.validating.findings import annotations_of, labels_of, scheduler_of, spec_of

_NO_SCHEDULER: Final = frozenset({"", DEFAULT_SCHEDULER})


def with_profiles(
    pod: Pod, profiles: tuple[Profile, ...], namespace_labels: Mapping[str, str]
) -> Pod:
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


def with_defaults(pod: Pod, defaults: PodDefaults) -> Pod:
    """
    Return the Pod with the QoS class and the priority class that it leaves open.

    Rule: Koordinator contract 5.3, class from QoS where the settings name none. Labels only: the
    number in `spec.priority` is the API server's.
    """
    labels = labels_of(pod)
    added = {}
    qos = labels.get(LABEL_QOS_CLASS, defaults.qos)
    if qos and LABEL_QOS_CLASS not in labels:
        added[LABEL_QOS_CLASS] = qos
    implied = priority_class_of_qos(read_qos_class({LABEL_QOS_CLASS: qos}))
    default = defaults.priority_class or str(implied)
    priority_class = defaults.priority_class_by_qos.get(qos, default)
    if priority_class and LABEL_PRIORITY_CLASS not in labels and _has_no_priority(pod):
        added[LABEL_PRIORITY_CLASS] = priority_class
    return with_labels(pod, added)


def _matches(profile: Profile, pod: Pod, namespace_labels: Mapping[str, str]) -> bool:
    labels = labels_of(pod)
    return all(labels.get(key) == text for key, text in profile.pod_labels.items()) and all(
        namespace_labels.get(key) == text for key, text in profile.namespace_labels.items()
    )


def _applied(pod: Pod, profile: Profile) -> Pod:
    wanted = dict(profile.labels)
    if profile.qos:
        wanted[LABEL_QOS_CLASS] = profile.qos
    if profile.koordinator_priority:
        wanted[LABEL_PRIORITY] = profile.koordinator_priority
    labels, annotations = labels_of(pod), annotations_of(pod)
    pod = with_labels(pod, {key: text for key, text in wanted.items() if key not in labels})
    pod = with_annotations(
        pod,
        {key: text for key, text in profile.annotations.items() if key not in annotations},
    )
    return with_spec(pod, _spec_fields(pod, profile))


def _spec_fields(pod: Pod, profile: Profile) -> dict[str, object]:
    fields: dict[str, object] = {}
    if profile.priority_class_name and _has_no_priority(pod):
        fields["priorityClassName"] = profile.priority_class_name
        if profile.priority is not None:
            fields["priority"] = profile.priority
    if profile.scheduler_name and scheduler_of(pod) in _NO_SCHEDULER:
        fields["schedulerName"] = profile.scheduler_name
    return fields


def _has_no_priority(pod: Pod) -> bool:
    """Tell whether nobody chose a priority; the API server has filled in 0 where nobody did."""
    spec = spec_of(pod)
    return not spec.get("priorityClassName") and not spec.get("priority")
