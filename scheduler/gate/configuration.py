"""
What the API server is told of the gate: which writes of claims it asks about, and where.

And whom it lets take the finalizer off that keeps an allocated claim from being gone.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.errors import InputError

TIMEOUT_SECONDS: Final = 5
PATH: Final = "/claims"
WEBHOOK: Final = "claims.dra.tenure.sh"
DRIVERS_MAX: Final = 32
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Kubernetes' own: an object with it is not gone before its allocation is."""
RELEASERS: Final = (
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:serviceaccount:kube-system:resource-claim-controller",
)
"""Whom the claim controller, which runs with an account of its own or without, and kube-scheduler
are to an API server."""
_NAME_MAX: Final = 63
"""The API server's own bound on the name of a driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """
    Which drivers' devices are guarded, and where the API server asks.

    Attributes:
        url: of a server outside of the cluster; empty calls the Service.
        authority: whose certificate the server shows, as PEM; empty where somebody else writes it.
        releasers: users who may take the finalizer off an allocated claim, beside Kubernetes' own.
    """

    drivers: Sequence[str]
    name: str = "tenure-dra"
    namespace: str = "tenure-system"
    service: str = "tenure-scheduler"
    port: int = 8445
    url: str = ""
    authority: bytes = b""
    releasers: Sequence[str] = ()


def configuration(options: GateOptions) -> dict[str, Any]:
    """
    Return the MutatingWebhookConfiguration of the gate; it fails closed.

    Called where an allocation with a device of a listed driver appears or goes, and for nothing
    else of a claim's status: neither for who uses it, nor for what drivers say of their devices.

    Raises:
        InputError: a driver's name is none, or there is none.
    """
    names = _drivers(options)
    if options.url:
        client: dict[str, Any] = {"url": f"{options.url}{PATH}"}
    else:
        place = {"namespace": options.namespace, "name": options.service}
        client = {"service": {**place, "path": PATH, "port": options.port}}
    if options.authority:
        client["caBundle"] = base64.b64encode(options.authority).decode()
    return _webhooks(options.name, client, names)


def _drivers(options: GateOptions) -> list[str]:
    names = sorted(set(options.drivers))
    if not names or len(names) > DRIVERS_MAX:
        raise InputError(f"expected 1 to {DRIVERS_MAX} drivers", field="drivers")
    for name in names:
        plain = name.replace("-", "").replace(".", "")
        if not (plain.isascii() and plain.isalnum() and name == name.lower()) or (
            len(name) > _NAME_MAX
        ):
            raise InputError(f"not the name of a driver: value={name!r}", field="drivers")
    return names


def policies(options: GateOptions) -> list[dict[str, Any]]:
    """
    Return the policy that keeps allocated claims of listed drivers in the API, and its binding.

    A claim without the finalizer can be deleted while it is allocated: what it has would be gone
    past the gate. Who lets go of claims for Kubernetes takes the allocation off first.

    Raises:
        InputError: as `configuration`.
    """
    metadata = {"name": options.name, "labels": {"app.kubernetes.io/name": "tenure"}}
    users = ", ".join(f"'{name}'" for name in sorted({*RELEASERS, *options.releasers}))
    taken_off = (
        f"oldObject.metadata.?finalizers.orValue([]).exists(f, f == '{FINALIZER}')"
        f" && !object.metadata.?finalizers.orValue([]).exists(f, f == '{FINALIZER}')"
    )
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["resource.k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["resourceclaims"],
                        "scope": "Namespaced",
                    }
                ]
            },
            "matchConditions": [
                {"name": "takes-the-finalizer-off", "expression": taken_off},
                {
                    "name": "of-listed-drivers",
                    "expression": _of_drivers(_drivers(options), "oldObject"),
                },
            ],
            "validations": [
                {
                    "expression": f"request.userInfo.username in [{users}]",
                    "messageExpression": "'the claim is allocated: ' + request.userInfo.username"
                    f" + ' may not take {FINALIZER} off; delete the Pods that use it'",
                    "message": f"the claim is allocated: {FINALIZER} stays",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": options.name, "validationActions": ["Deny"]},
    }
    return [policy, binding]


def _webhooks(name: str, client: dict[str, Any], drivers: Sequence[str]) -> dict[str, Any]:
    rule = {
        "operations": ["UPDATE"],
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "resources": ["resourceclaims/status"],
        "scope": "Namespaced",
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "tenure"}},
        "webhooks": [
            {
                "name": WEBHOOK,
                "clientConfig": client,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "timeoutSeconds": TIMEOUT_SECONDS,
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "IfNeeded",
                "rules": [rule],
                "matchConditions": [
                    {"name": "allocation-appears-or-goes", "expression": _appears_or_goes()},
                    {
                        "name": "of-listed-drivers",
                        "expression": _of_drivers(drivers, "object", "oldObject"),
                    },
                ],
            }
        ],
    }


def _is_allocated(claim: str) -> str:
    return f"(has({claim}.status) && has({claim}.status.allocation))"


def _appears_or_goes() -> str:
    return f"{_is_allocated('object')} != {_is_allocated('oldObject')}"


def _of_drivers(names: Sequence[str], *objects: str) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    has_one = (
        f"{_is_allocated('c')} && has(c.status.allocation.devices)"
        " && has(c.status.allocation.devices.results)"
        f" && c.status.allocation.devices.results.exists(r, r.driver in [{listed}])"
    )
    return f"[{', '.join(objects)}].exists(c, {has_one})"
