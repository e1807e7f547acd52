"""What admission has replaced, kept in an annotation so that nothing of it is lost."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.domain.annotations.tenure import (
    OriginalContainer,
    OriginalRequest,
    encode_original,
    read_original,
)
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.original import is_original_of
from ledger.domain.resources import ANNOTATION_TENURE_ORIGINAL
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.mutating.parts import Pod, with_annotations, without_annotation
from webhook.decide.validating.findings import annotations_of, spec_of


def recorded(pod: Pod) -> OriginalRequest:
    """Return what earlier calls of ours have replaced; what can't be read was not ours."""
    try:
        return read_original(annotations_of(pod))
    except InputError:
        return OriginalRequest()


def with_original(
    pod: Pod,
    vocabulary: Vocabulary,
    *,
    replaced: Mapping[str, OriginalContainer],
    scheduler_name: str,
) -> Pod:
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
    texts = encode_original(OriginalRequest(scheduler_name=name, containers={**kept, **replaced}))
    return (
        with_annotations(pod, texts)
        if texts
        else without_annotation(pod, ANNOTATION_TENURE_ORIGINAL)
    )


def _containers(pod: Pod) -> dict[str, Mapping[str, object]]:
    spec = spec_of(pod)
    items = (
        an_object(item, key)
        for key in ("initContainers", "containers")
        for item in a_list(spec.get(key), key)
    )
    return {str(item.get("name")): item for item in items}
