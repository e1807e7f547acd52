"""What only the workload shows: keys that never reach its Pods, groups of another size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations.wire import annotation_path, label_path
from ledger.domain.kube.object_fields import annotations_of, labels_of, spec_of
from webhook.decide.validating.findings import Advice, Json, Said, say, shown
from webhook.decide.validating.words import PLACED_ANNOTATIONS, PLACED_LABELS

_SHARED_LABELS: Final = frozenset({resources.LABEL_POD_GROUP, resources.LABEL_POD_GROUP_NAME})
"""Labels that other tools put on workloads for themselves."""


def workload_advice(workload: Json, template: Json, template_path: str) -> tuple[Said, ...]:
    """
    Return what a workload says that its Pods will not hear, and a group of another size.

    Rule: Koordinator GPU-topology proposal, "How to identify pods are in the same group": the
    replica is the number of copies of the job.

    Args:
        template: the Pod template, an object with `metadata` and `spec`.
        template_path: where it stands, `spec.template`.

    Raises:
        InputError: a wrong type on the way there.
    """
    return (
        *_missing(workload, template, template_path),
        *_sizes(workload, template, template_path),
    )


def _missing(workload: Json, template: Json, template_path: str) -> Iterator[Said]:
    own, inside = labels_of(workload), labels_of(template)
    for key in (resources.LABEL_QOS_CLASS, resources.LABEL_PRIORITY_CLASS, *PLACED_LABELS):
        if key in own and key not in inside and key not in _SHARED_LABELS:
            yield _never_reaches(label_path(key), f"{template_path}.metadata.labels")
    texts, within = annotations_of(workload), annotations_of(template)
    for key in PLACED_ANNOTATIONS:
        if key in texts and key not in within:
            yield _never_reaches(annotation_path(key), f"{template_path}.metadata.annotations")


def _never_reaches(path: str, where: str) -> Said:
    return say(Advice.WORKLOAD_METADATA, f"{path}: never reaches the pods; put it into {where}")


def _sizes(workload: Json, template: Json, template_path: str) -> Iterator[Said]:
    pods = _pods_of(workload)
    if pods is None:
        return
    replica = labels_of(template).get(resources.LABEL_GPU_GROUP_REPLICA)
    if replica is not None and replica != str(pods):
        field = f"{template_path}.{label_path(resources.LABEL_GPU_GROUP_REPLICA)}"
        text = f"{field}: is {shown(replica)}, but the workload makes {pods} pods"
        yield say(Advice.WORKLOAD_REPLICAS, text)
    least = annotations_of(template).get(resources.ANNOTATION_GANG_MIN_AVAILABLE, "")
    if least.isascii() and least.isdigit() and len(least) < 10 and int(least) > pods:
        field = f"{template_path}.{annotation_path(resources.ANNOTATION_GANG_MIN_AVAILABLE)}"
        text = f"{field}: is {least}, but the workload makes {pods} pods: none would ever start"
        yield say(Advice.WORKLOAD_REPLICAS, text)


def _pods_of(workload: Json) -> int | None:
    """Return how many Pods a workload makes at a time; None where its kind does not say."""
    spec = spec_of(workload)
    keys = {
        "Deployment": "replicas",
        "ReplicaSet": "replicas",
        "StatefulSet": "replicas",
        "ReplicationController": "replicas",
        "Job": "parallelism",
    }
    key = keys.get(str(workload.get("kind")))
    if key is None:
        return None
    value = spec.get(key, 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
