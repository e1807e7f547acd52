"""
The webhook configurations: which requests reach us, and what happens to them when we are away.

| hook | requests | when we are away | why |
|---|---|---|---|
| mutate pods | CREATE of Pods that need us | Fail | an unmarked Pod has no card |
| mutate cpus | CREATE of other Pods where the namespace shares CPUs | Ignore | as ordinary Pods |
| mutate ephemeral | new ephemeral containers of our Pods | Ignore | debugging must go on |
| validate pods | CREATE of Pods that need us | Fail | rules before anything else |
| validate others | CREATE of other Pods: words of ours, cards seen | Ignore | ordinary Pods go on |
| validate updates | UPDATE, resize, ephemeral containers | Ignore | policies hold what must hold |
| validate bindings | Bindings by others | Ignore | failing closed can deadlock a cluster |
| validate inventory, nodes | Devices, topologies, Node labels | Ignore | nodes must report |

Pods and Bindings come from managed namespaces only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.resources import (
    ANNOTATION_TENURE_VOCABULARY,
    DOMAIN_NODE,
    DOMAIN_TENURE,
    LABEL_TENURE_CPUS,
    LABEL_TENURE_MANAGED,
)
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
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

GROUP: Final = "admissionregistration.k8s.io/v1"
SHORT: Final = 1
"""Seconds that ordinary Pods wait for us at most, when we hang."""
FAIL: Final = "Fail"
IGNORE: Final = "Ignore"

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
OWN_NAMESPACE: Final = "tenure-system"
EXCLUDED_NAMESPACES: Final = ("kube-system", "kube-node-lease")
"""Whoever writes there may break the cluster anyway, and it must start without us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOptions:
    """
    Where the API server finds us.

    Attributes:
        url: base of both hooks, for a server outside the cluster; empty calls the Service.
        excluded_namespaces: never sent to us, whatever their labels.
        timeout_seconds: how long the API server waits at most.
    """

    name: str = "tenure"
    url: str = ""
    service: str = "tenure-webhook"
    namespace: str = OWN_NAMESPACE
    port: int = 443
    excluded_namespaces: tuple[str, ...] = EXCLUDED_NAMESPACES
    timeout_seconds: int = 5
    settings: AdmissionSettings = DEFAULT_ADMISSION

    @property
    def never_sent(self) -> list[str]:
        """Namespaces that are never sent to us, our own among them."""
        return sorted({*self.excluded_namespaces, self.namespace})


def metadata(name: str, settings: AdmissionSettings) -> dict[str, Any]:
    """Return the metadata of what is made for these settings: it tells by which words it reads."""
    return {
        "name": name,
        "labels": {"app.kubernetes.io/name": "tenure"},
        "annotations": {ANNOTATION_TENURE_VOCABULARY: settings.vocabulary.digest},
    }


def webhook_configurations(options: HookOptions) -> list[dict[str, Any]]:
    """
    Return the mutating and the validating configuration, without a caBundle: rotation writes it.

    Rule: design section 8, "Fail-closed only on CREATE of matching Pods".
    """
    return [
        _configuration("MutatingWebhookConfiguration", options, _mutating(options)),
        _configuration("ValidatingWebhookConfiguration", options, _validating(options)),
    ]


def _mutating(options: HookOptions) -> list[dict[str, Any]]:
    concerned = [needs_us("object", options.settings)]
    concerned += [has_labels("object", one.pod_labels) for one in options.settings.profiles]
    cpus = _hook(options, "cpus", "mutate", IGNORE, managed_only=True, seconds=SHORT)
    cpus["namespaceSelector"]["matchLabels"] |= {LABEL_TENURE_CPUS: "true"}
    return [
        {
            **_hook(options, "pods", "mutate", FAIL, managed_only=True),
            "reinvocationPolicy": "IfNeeded",
            "rules": [_rule(["CREATE"], "", ["v1"], ["pods"])],
            "matchConditions": [_condition("needs-us", " || ".join(concerned))],
        },
        {
            **cpus,
            "reinvocationPolicy": "IfNeeded",
            "rules": [_rule(["CREATE"], "", ["v1"], ["pods"])],
            "matchConditions": [_condition("asks-nothing", f"!({' || '.join(concerned)})")],
        },
        {
            **_hook(options, "ephemeral", "mutate", IGNORE, managed_only=True),
            "reinvocationPolicy": "IfNeeded",
            "rules": [_rule(["UPDATE"], "", ["v1"], ["pods/ephemeralcontainers"])],
            "matchConditions": [
                _condition(
                    "ours", f"object.spec.schedulerName == {text(options.settings.scheduler_name)}"
                ),
            ],
        },
    ]


def _validating(options: HookOptions) -> list[dict[str, Any]]:
    settings = options.settings
    either = f"{concerns_us('object', settings)} || {concerns_us('oldObject', settings)}"
    accounts = texts(options.settings.service_accounts)
    by_others = _condition("by-others", f"!(request.userInfo.username in {accounts})")
    sees = f"{any_container('object', chooses_devices())} || {names_cdi()}"
    return [
        {
            **_hook(options, "pods", "validate", FAIL, managed_only=True),
            "rules": [_rule(["CREATE"], "", ["v1"], ["pods"])],
            "matchConditions": [_condition("needs-us", needs_us("object", settings))],
        },
        {
            **_hook(options, "others", "validate", IGNORE, managed_only=True, seconds=SHORT),
            "rules": [_rule(["CREATE"], "", ["v1"], ["pods"])],
            "matchConditions": [
                _condition("concerns-us", f"{concerns_us('object', settings)} || {sees}"),
                _condition("goes-on-without-us", f"!({needs_us('object', settings)})"),
            ],
        },
        {
            **_hook(options, "updates", "validate", IGNORE, managed_only=True),
            "rules": [
                _rule(["UPDATE"], "", ["v1"], ["pods", "pods/resize", "pods/ephemeralcontainers"]),
            ],
            "matchConditions": [_condition("concerns-us", either)],
        },
        {
            **_hook(options, "bindings", "validate", IGNORE, managed_only=True, seconds=SHORT),
            "rules": [_rule(["CREATE"], "", ["v1"], ["pods/binding", "bindings"])],
            "matchConditions": [by_others],
        },
        {
            **_hook(options, "inventory", "validate", IGNORE),
            "rules": [
                _rule(
                    ["CREATE", "UPDATE"],
                    "scheduling.koordinator.sh",
                    ["v1alpha1"],
                    ["devices", "devices/status"],
                    scope="Cluster",
                ),
                _rule(
                    ["CREATE", "UPDATE"],
                    "topology.node.k8s.io",
                    ["v1alpha1", "v1alpha2"],
                    ["noderesourcetopologies"],
                    scope="Cluster",
                ),
            ],
        },
        {
            **_hook(options, "nodes", "validate", IGNORE),
            "rules": [
                _rule(["CREATE", "UPDATE"], "", ["v1"], ["nodes", "nodes/status"], scope="Cluster"),
            ],
            "matchConditions": [
                by_others,
                _condition("labels-of-ours-change", _node_labels_change()),
            ],
        },
    ]


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


def _configuration(
    kind: str, options: HookOptions, hooks: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": GROUP,
        "kind": kind,
        "metadata": metadata(options.name, options.settings),
        "webhooks": list(hooks),
    }


def _hook(
    options: HookOptions,
    name: str,
    path: str,
    policy: str,
    *,
    managed_only: bool = False,
    seconds: int = 30,
) -> dict[str, Any]:
    if options.url:
        client: dict[str, Any] = {"url": f"{options.url}/{path}"}
    else:
        place = {"namespace": options.namespace, "name": options.service}
        client = {"service": {**place, "path": f"/{path}", "port": options.port}}
    expressions = [
        {
            "key": _NAMESPACE_NAME,
            "operator": "NotIn",
            "values": options.never_sent,
        }
    ]
    selector: dict[str, Any] = {"matchExpressions": expressions}
    if managed_only:
        selector["matchLabels"] = {LABEL_TENURE_MANAGED: "true"}
    return {
        "name": f"{name}.{path}.tenure.sh",
        "clientConfig": client,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": min(options.timeout_seconds, seconds),
        "failurePolicy": policy,
        "matchPolicy": "Equivalent",
        "namespaceSelector": selector,
    }


def _rule(
    operations: list[str],
    group: str,
    versions: list[str],
    resources: list[str],
    scope: str = "Namespaced",
) -> dict[str, Any]:
    return {
        "operations": operations,
        "apiGroups": [group],
        "apiVersions": versions,
        "resources": resources,
        "scope": scope,
    }


def _condition(name: str, expression: str) -> dict[str, str]:
    return {"name": name, "expression": expression}
