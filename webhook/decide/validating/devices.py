"""Device objects: an inventory that can be read whole, and written by who may."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.domain.annotations.checkpoints import read_devices_checkpoints
from ledger.domain.annotations.partitions import decode_gpu_partitions
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.device_objects import device_faults
from ledger.domain.kube.object_fields import annotations_of
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import of_rule
from ledger.domain.resources import ANNOTATION_GPU_PARTITIONS
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.answers import unreadable
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery
from webhook.decide.validating.findings import FoundViolations, Json


def check_device(request: AdmissionRequest, settings: AdmissionSettings) -> FoundViolations:
    """
    Return everything that speaks against a Device object, and against who wrote it.

    Rule: Koordinator contract 2.5, 2.7, 3.1. What was so before the change does not count.
    """
    known = {*check_inventory(request.old, settings.vocabulary)} if request.old else set()
    return FoundViolations(
        errors=(
            *forgery.check_checkpoints(request, settings),
            *(
                error
                for error in check_inventory(request.obj or {}, settings.vocabulary)
                if error not in known
            ),
        )
    )


@of_rule(Rule.DEVICE_OBJECT)
def check_inventory(device: Json, vocabulary: Vocabulary) -> Iterator[FieldError]:
    """Yield everything in a Device that can't be read, or can't be true."""
    for fault in device_faults(device, vocabulary):
        yield unreadable(fault)
    annotations = annotations_of(device)
    table = annotations.get(ANNOTATION_GPU_PARTITIONS)
    for read in (
        lambda: None if table is None else decode_gpu_partitions(table),
        lambda: read_devices_checkpoints(annotations),
    ):
        try:
            read()
        except InputError as error:
            yield unreadable(error)
