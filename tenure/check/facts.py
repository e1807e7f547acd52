"""What the input says besides its objects: users, namespaces, their quotas, priority classes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ledger.domain.annotations.qos import PriorityClass
from ledger.domain.annotations.tenure import is_managed_namespace
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_map
from ledger.domain.kube.pod_spec import PriorityClassObject, decode_quota
from tenure.check.api_rules import Priorities
from tenure.manifests import Document, Manifests
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.decide.review import User

UNNAMED: Final = NamespaceFacts(managed=True)
"""A namespace that the input does not name counts as managed (cli.md, tenure check)."""

_BUILT_IN: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_GROUPS: Final = (
    ("system:node:", "system:nodes"),
    ("system:serviceaccount:", "system:serviceaccounts"),
)


def written(document: Document) -> dict[str, Any]:
    """Return the object as it was written, without the metadata that reading fills in."""
    body = dict(document.body)
    if document.metadata:
        return {**body, "metadata": document.metadata}
    del body["metadata"]
    return body


def user_of(name: str) -> User:
    """Return a user with the groups that Kubernetes gives to names of its own."""
    groups = tuple(group for prefix, group in _GROUPS if name.startswith(prefix))
    return User(name=name, groups=groups)


def facts_of(manifests: Manifests) -> dict[str, NamespaceFacts]:
    """
    Return what the input says of namespaces; one it does not name counts as managed.

    Rule: cli.md, tenure check: a Namespace in the input decides by its own label.

    Raises:
        InputError: a Namespace or a ResourceQuota that can't be read, with file and line.
    """
    labels = {
        document.name: text_map(document.body["metadata"].get("labels"), "metadata.labels")
        for document in manifests.of_kind("Namespace")
    }
    quotas: dict[str, list[QuotaFact]] = {}
    for document in manifests.of_kind("ResourceQuota"):
        quotas.setdefault(document.namespace, []).append(_quota(document))
    return {
        name: NamespaceFacts(
            labels=labels.get(name, {}),
            managed=is_managed_namespace(labels[name]) if name in labels else UNNAMED.managed,
            quotas=tuple(quotas.get(name, ())),
        )
        for name in {**labels, **quotas}
    }


def priorities_of(manifests: Manifests) -> Priorities:
    """
    Return what PriorityClasses give; of several defaults the least counts.

    Raises InputError: one can't be read, with file and line.
    """
    values: dict[str, int | None] = {**dict.fromkeys(filter(None, PriorityClass)), **_BUILT_IN}
    policies = dict.fromkeys(_BUILT_IN, PriorityClassObject.PREEMPTS)
    defaults = []
    for document in manifests.documents:
        if document.kind == "PriorityClass":
            try:
                found = msgspec.convert(document.body, PriorityClassObject)
            except msgspec.ValidationError as error:
                raise document.blame(InputError(str(error))) from None
            values[document.name] = found.value
            policies[document.name] = found.preemption_policy
            defaults += [(found.value, document.name)] if found.global_default else []
    default = min(defaults, default=(0, ""))[1]
    return Priorities(values=values, policies=policies, default=default)


def _quota(document: Document) -> QuotaFact:
    try:
        return QuotaFact(name=document.name, hard=decode_quota(document.body))
    except InputError as error:
        raise document.blame(error) from None
