"""
What the webhook's service account may do: read Pods, namespaces and quotas; keep its certificates.

No wildcard, no list of Secrets, nothing that changes a Pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from webhook.manifests.hooks import HookOptions

GROUP: Final = "rbac.authorization.k8s.io/v1"
SECRET: Final = "tenure-webhook-certs"  # noqa: S105 - the name of a Secret is none


def rights(options: HookOptions, *, secret: str = SECRET) -> list[dict[str, Any]]:
    """Return service account, roles and their bindings (design section 2)."""
    name = f"{options.name}-webhook"
    account = {"kind": "ServiceAccount", "name": name, "namespace": options.namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": options.namespace},
        },
        _role(
            "ClusterRole",
            name,
            "",
            [
                _may(["get"], [""], ["pods"]),
                _may(["get", "list", "watch"], [""], ["namespaces"]),
                _may(["list", "watch"], [""], ["resourcequotas"]),
                _may(
                    ["get", "patch"],
                    ["admissionregistration.k8s.io"],
                    ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
                    names=[options.name],
                ),
            ],
        ),
        _bound("ClusterRole", name, "", account),
        _role(
            "Role",
            name,
            options.namespace,
            [
                _may(["get", "update"], [""], ["secrets"], names=[secret]),
                _may(["create"], [""], ["secrets"]),  # a name can't be given for a creation
                _may(
                    ["get", "list", "create", "update", "delete"],
                    ["coordination.k8s.io"],
                    ["leases"],
                ),
            ],
        ),
        _bound("Role", name, options.namespace, account),
    ]


def _may(
    verbs: list[str], groups: list[str], resources: list[str], names: Sequence[str] = ()
) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    return {**rule, "resourceNames": list(names)} if names else rule


def _role(kind: str, name: str, namespace: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    metadata = _named(name, namespace)
    return {"apiVersion": GROUP, "kind": kind, "metadata": metadata, "rules": rules}


def _bound(kind: str, name: str, namespace: str, account: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": GROUP,
        "kind": f"{kind}Binding",
        "metadata": _named(name, namespace),
        "roleRef": {"apiGroup": GROUP.partition("/")[0], "kind": kind, "name": name},
        "subjects": [account],
    }


def _named(name: str, namespace: str) -> dict[str, str]:
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
