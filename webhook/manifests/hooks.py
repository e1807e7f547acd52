"""Which requests the webhooks of `deploy/webhook.yaml` are called for, in CEL from our names."""

from __future__ import annotations

from typing import Final

from ledger.domain.resources import DOMAIN_NODE, DOMAIN_TENURE
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.settings import AdmissionSettings
from webhook.manifests.cel import (
    any_container,
    concerns_us,
    has_labels,
    key_matches,
    needs_us,
    text,
    texts,
)
from webhook.manifests.sight import chooses_devices, names_cdi

OWN_NAMESPACE: Final = "tenure-system"
EXCLUDED_NAMESPACES: Final = ("kube-system", "kube-node-lease")
"""Whoever writes there may break the cluster anyway, and it must start without us."""


def never_sent(namespace: str) -> list[str]:
    """Return the namespaces that are never sent to us, our own among them."""
    return sorted({*EXCLUDED_NAMESPACES, namespace})


def expressions(settings: AdmissionSettings) -> dict[str, str]:
    """
    Return the expressions of the webhooks by the names that the file has for them.

    Rule: design section 8, "Fail-closed only on CREATE of matching Pods".
    """
    profiles = [has_labels("object", one.pod_labels) for one in settings.profiles]
    needs, concerns = needs_us("object", settings), concerns_us("object", settings)
    sees = f"{any_container('object', chooses_devices())} || {names_cdi()}"
    return {
        "needs_us": needs,
        "is_changed": " || ".join([needs, *profiles]),
        "is_ours": f"object.spec.schedulerName == {text(settings.scheduler_name)}",
        "concerns_us": f"{concerns} || {sees}",
        "concerned_us": f"{concerns} || {concerns_us('oldObject', settings)}",
        "by_others": f"!(request.userInfo.username in {texts(settings.service_accounts)})",
        "labels_change": _node_labels_change(),
    }


def _node_labels_change() -> str:
    names = [label for each in ADMISSIONS for label in each.node_labels]
    prefixes = (DOMAIN_NODE, DOMAIN_TENURE)
    ours = key_matches(names, prefixes)
    differs = (
        "oldObject == null || !has(oldObject.metadata.{field})"
        " || !(k in oldObject.metadata.{field})"
        " || oldObject.metadata.{field}[k] != object.metadata.{field}[k]"
    )
    parts = [
        f"(has(object.metadata.{field}) && object.metadata.{field}.exists(k, {ours}"
        f" && ({differs.format(field=field)})))"
        for field in ("labels", "annotations")
    ]
    gone = (
        f"(oldObject != null && has(oldObject.metadata.annotations)"
        f" && oldObject.metadata.annotations.exists(k, {ours}"
        " && !(has(object.metadata.annotations) && k in object.metadata.annotations)))"
    )
    return " || ".join([*parts, gone])
