"""Node labels and annotations of ours: a value that means nothing is caught when it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.node_cpu import (
    NodeCpuBindPolicy,
    NumaAllocateStrategy,
    numa_policy_of,
)
from ledger.domain.annotations.wire import FALSE, TRUE, label_path
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import annotations_of, labels_of
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import of_rule, unknown_value
from ledger.domain.resources import (
    LABEL_CPU_BIND_POLICY,
    LABEL_ENABLE_NUMA_RESERVATION,
    LABEL_NUMA_ALLOCATE_STRATEGY,
    LABEL_NUMA_TOPOLOGY_POLICY,
    LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL,
    LABEL_SECONDARY_DEVICE_WELL_PLANNED,
    LABEL_TENURE_OWNED,
)
from webhook.decide.answers import unreadable
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.review import CREATE, AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery
from webhook.decide.validating.findings import Advice, FoundViolations, Json, say
from webhook.decide.validating.topology import NODE_READERS

_NONE: Final = "None"
_BIND_ALIAS: Final = "PCPUOnly"
_NUMA: Final = (_NONE, *(str(policy) for policy in NumaPolicy if policy))
_LEVELS: Final = ("PodLevel", "ContainerLevel")
_FLAGS: Final = (TRUE, FALSE)

NODE_LABEL_VALUES: Final[dict[str, tuple[str, ...]]] = {
    LABEL_CPU_BIND_POLICY: (*map(str, NodeCpuBindPolicy), _BIND_ALIAS),
    LABEL_NUMA_ALLOCATE_STRATEGY: tuple(str(item) for item in NumaAllocateStrategy if item),
    LABEL_NUMA_TOPOLOGY_POLICY: _NUMA,
    LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL: _NUMA,
    LABEL_ENABLE_NUMA_RESERVATION: _FLAGS,
    LABEL_SECONDARY_DEVICE_WELL_PLANNED: _FLAGS,
    LABEL_TENURE_OWNED: _FLAGS,
    **{label: values for each in ADMISSIONS for label, values in each.node_labels.items()},
}
"""Label -> the values that mean something. The empty text is as good as no label."""


def check_node(request: AdmissionRequest, settings: AdmissionSettings) -> FoundViolations:
    """
    Return everything that speaks against a change of a Node.

    Only what changes is looked at: kubelet must be able to report a node whatever its labels say.
    For the same reason a new Node is never refused over a label; it is said instead.
    """
    forged = tuple(forgery.check_node_marks(request, settings))
    meaningless = tuple(check_changes(request.obj or {}, request.old or {}))
    if request.operation != CREATE:
        return FoundViolations(errors=(*forged, *meaningless))
    said = tuple(say(Advice.UNKNOWN_VALUE, str(error)) for error in meaningless)
    return FoundViolations(errors=forged, said=said)


@of_rule(Rule.NODE_LABELS)
def check_changes(node: Json, old: Json) -> Iterator[FieldError]:
    """
    Yield every changed label and annotation of ours that means nothing.

    Rule: Koordinator contract 2.3 and 3.2; GPU-sharing contract A.1.
    """
    labels, before = labels_of(node), labels_of(old)
    for key, values in NODE_LABEL_VALUES.items():
        text = labels.get(key, "")
        if text and text != before.get(key) and text not in values and not _is_level(key, text):
            yield unknown_value(label_path(key), text, values)
    annotations, were = annotations_of(node), annotations_of(old)
    for key, read in NODE_READERS.items():
        if key in annotations and annotations[key] != were.get(key):
            try:
                read(annotations[key])
            except InputError as error:
                yield unreadable(error)


def _is_level(key: str, text: str) -> bool:
    """Take `RestrictedPodLevel` and the like too (Koordinator contract 3.2, ours)."""
    numa = key in {LABEL_NUMA_TOPOLOGY_POLICY, LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL}
    return numa and text.endswith(_LEVELS) and numa_policy_of(text) is not NumaPolicy.NONE
