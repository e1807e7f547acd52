"""Requests to admit a change, short to write: only what a test is about is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.quantity import quantity_from_int
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.decide.review import AdmissionRequest, User
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.decide.validating.validate import validate

SCHEDULER: Final = "system:serviceaccount:tenure-system:tenure-scheduler"
AGENT: Final = "system:serviceaccount:tenure-system:tenure-agent"
WEBHOOK: Final = "system:serviceaccount:tenure-system:tenure-webhook"
SOMEONE: Final = "alice"

MANAGED: Final = NamespaceFacts(managed=True)
UNMANAGED: Final = NamespaceFacts()

_RESOURCES: Final = {
    "Pod": ("", "pods"),
    "Binding": ("", "bindings"),
    "Node": ("", "nodes"),
    "Device": ("scheduling.koordinator.sh", "devices"),
    "NodeResourceTopology": ("topology.node.k8s.io", "noderesourcetopologies"),
}


def creation(
    obj: Mapping[str, object],
    *,
    kind: str = "Pod",
    user: str = SOMEONE,
    groups: tuple[str, ...] = (),
    subresource: str = "",
    resource: str = "",
    dry_run: bool = False,
) -> AdmissionRequest:
    """Return a request to create an object."""
    group, known = _RESOURCES[kind]
    return AdmissionRequest(
        uid="request-1",
        operation="CREATE",
        kind=kind,
        group=group,
        resource=resource or known,
        subresource=subresource,
        namespace="ml",
        name="p",
        user=User(name=user, groups=groups),
        obj=obj,
        dry_run=dry_run,
    )


def change(
    old: Mapping[str, object],
    obj: Mapping[str, object],
    *,
    kind: str = "Pod",
    user: str = SOMEONE,
    subresource: str = "",
) -> AdmissionRequest:
    """Return a request to change an object."""
    group, resource = _RESOURCES[kind]
    return AdmissionRequest(
        uid="request-1",
        operation="UPDATE",
        kind=kind,
        group=group,
        resource=resource,
        subresource=subresource,
        namespace="ml",
        name="p",
        user=User(name=user),
        obj=obj,
        old=old,
    )


def binding(
    annotations: Mapping[str, str] | None = None, *, node: str = "n1", name: str = "p"
) -> dict[str, object]:
    """Return a Binding of a Pod to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": "ml", "annotations": dict(annotations or {})},
        "target": {"kind": "Node", "name": node},
    }


def quota_fact(name: str = "gpus", /, **hard: int) -> QuotaFact:
    """Return a quota by resource; `nvidia` and `core` are short for the usual names."""
    names = {
        "nvidia": "requests.nvidia.com/gpu",
        "core": "requests.koordinator.sh/gpu-core",
        "cpu": "cpu",
    }
    return QuotaFact(
        name=name, hard={names[key]: quantity_from_int(value) for key, value in hard.items()}
    )


def rules_of(answer: AdmissionAnswer) -> dict[str, str]:
    """Return field -> rule of every violation, enforced or not."""
    return {item.error.field: item.rule for item in answer.refusals}


def judged(
    pod: Mapping[str, object],
    settings: AdmissionSettings = DEFAULT_ADMISSION,
    facts: NamespaceFacts = MANAGED,
) -> AdmissionAnswer:
    """Return the answer to a new Pod of somebody's in a managed namespace."""
    return validate(creation(pod), settings, facts)
