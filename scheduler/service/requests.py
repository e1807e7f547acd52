"""What Pods ask for, read once for each version of a Pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ledger.domain.annotations.tenure import is_admitted
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import found_in, text_in
from ledger.domain.kube.original import stored_names
from ledger.domain.request.alike import PodReader
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rules import forbidden
from ledger.domain.resources import SLOT, TENURE_WHOLE_CARDS
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.model import RefusedPod, asking
from scheduler.service.budgets import put_newest
from scheduler.service.kept import PodBook

UNKNOWN_POD: Final = "the Pod is not known here: it was not filtered, and no watch told of it"
ASKED_MAX: Final = 10_000
"""Requests that are remembered, of the Pods that were asked about last."""


class PodRequests:
    """What Pods ask for that kube-scheduler has asked about, or that wait."""

    def __init__(self, pods: PodBook, vocabulary: Vocabulary) -> None:
        self._pods = pods
        self._vocabulary = vocabulary
        self._reader = PodReader(vocabulary)
        self._asked: dict[str, tuple[str, PodRequest | RefusedPod]] = {}  # Pod UID -> version, it

    def read(self, pod: Mapping[str, Any]) -> PodRequest | RefusedPod:
        """Return what a Pod asks for, or the rules it breaks. Raises InputError: unreadable."""
        version = found_in(pod, "metadata", "resourceVersion")
        known = self._asked.get(text_in(pod, "metadata", "uid")) if version else None
        if known is not None and known[0] == version:
            return known[1]
        asked = asking(*self._compared(pod, *self._reader.examine(pod)))
        put_newest(self._asked, asked.uid, (str(version), asked), ASKED_MAX)
        return asked

    def _compared(
        self, pod: Mapping[str, Any], request: PodRequest, errors: tuple[FieldError, ...]
    ) -> tuple[PodRequest, tuple[FieldError, ...]]:
        """Refuse a Pod that admission stored by other settings than ours."""
        words, annotations = self._vocabulary, pod["metadata"].get("annotations") or {}
        if errors or not is_admitted(annotations) or request.dialect is None:
            return request, errors
        if request.by_plugin:
            if TENURE_WHOLE_CARDS in annotations:
                return request, errors
            fact = "wholeCards of admission is ours, that of the scheduler nvidia"
            return request, (forbidden("spec.containers", f"{fact}: give both one value"),)
        has_slot = SLOT in stored_names(pod, words)
        if has_slot == words.by_slots:
            return request, errors
        told = "a slot, as in plugin" if has_slot else "no slot, as in env"
        fact = f"slotMode of admission is another: the Pod has {told}; ours is {words.slot_mode}"
        return request, (forbidden("spec.containers", f"{fact}: give both one value"),)

    def by_uid(self, pod_uid: str) -> PodRequest | str:
        """Return what a Pod that was asked about asks for, or why it is not known."""
        known = self._asked.get(pod_uid)
        if known is None:
            pod = self._pods.pending(pod_uid)
            if pod is None:
                return UNKNOWN_POD
            try:
                asked = self.read(pod)
            except InputError as error:
                return str(error)
        else:
            asked = known[1]
        if isinstance(asked, RefusedPod):
            return asked.message
        return asked

    def stored(self, pod_uid: str) -> tuple[str, ...]:
        """Return the names of devices that a Pod that waits is stored with; none of another."""
        return stored_names(self._pods.pending(pod_uid) or {}, self._vocabulary)
