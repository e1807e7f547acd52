"""What mutation tests share: a request around a Pod, and patches applied by another's code."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

import jsonpatch

from tests.support.objects import Json, Object
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.review import AdmissionRequest, User
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings

MANAGED: Final = NamespaceFacts(labels={"tenure.sh/managed": "true"}, managed=True)
UNMANAGED: Final = NamespaceFacts()

ENV_OF: Final = "metadata.annotations['tenure.sh/{}']"


def request_for(pod: Object, *, operation: str = "CREATE", **more: Json) -> AdmissionRequest:
    """Return the request to create a Pod, or another one about it."""
    fields: Object = {
        "uid": "review-1",
        "operation": operation,
        "kind": "Pod",
        "resource": "pods",
        "namespace": "ml",
        "user": User(name="alice"),
        "obj": pod,
        **more,
    }
    return AdmissionRequest(**fields)


def patched(before: Mapping[str, object], answer: AdmissionAnswer) -> Object:
    """Return the object with an answer's patch applied by jsonpatch."""
    operations = [operation.as_json() for operation in answer.patch]
    result: Object = jsonpatch.apply_patch(copy.deepcopy(before), copy.deepcopy(operations))
    return result


def mutate(
    pod: Object,
    settings: AdmissionSettings = DEFAULT_ADMISSION,
    facts: NamespaceFacts = MANAGED,
    **more: Json,
) -> Object:
    """Return a Pod after our patch; the Pod itself stays as it was."""
    before = copy.deepcopy(pod)
    answer = mutate_pod(request_for(pod, **more), settings, facts)
    assert pod == before
    assert answer.allowed, answer.message
    return patched(pod, answer)


def field_ref(name: str, key: str) -> Object:
    """Return the entry of an environment that reads one of our annotations."""
    path = ENV_OF.format(key)
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def sees(place: str) -> list[Object]:
    """Return the environment of a container that holds cards."""
    return [
        field_ref("NVIDIA_VISIBLE_DEVICES", f"visible.{place}"),
        field_ref("CUDA_VISIBLE_DEVICES", f"allocated.{place}"),
    ]


BLIND: Final[list[Object]] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
