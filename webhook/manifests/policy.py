"""One policy of the API server, before and after it is an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.domain.resources import ANNOTATION_TENURE_VOCABULARY
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.manifests.cel import PATH, texts
from webhook.manifests.hooks import OWN_NAMESPACE, never_sent

GROUP: Final = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """
    How policies are named and how strict they are.

    Attributes:
        actions: what a violation does, `Deny`, `Warn` or `Audit` (`Deny` alone refuses).
        namespace: our own, which hardly any policy is for.
    """

    name: str = "tenure"
    actions: tuple[str, ...] = ("Deny",)
    settings: AdmissionSettings = DEFAULT_ADMISSION
    namespace: str = OWN_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """
    One policy before it is an object.

    Attributes:
        everywhere: it holds in the excluded namespaces and our own too.
        rules: what it looks at, as `resourceRules`.
        conditions: name -> expression; all must hold for it to look.
        gate: what is true of whatever it refuses, and cheap to tell; without variables.
        within: name -> expression; what must hold besides, and may read the Namespace.
        variables: name -> expression, in order.
        validations: message -> expression that must hold.
        messages: message -> `messageExpression`, which is shown in its place.
    """

    name: str
    rules: Sequence[Mapping[str, Any]]
    validations: Mapping[str, str]
    messages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    gate: str = "true"
    within: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    everywhere: bool = False


def combined(name: str, parts: Sequence[Policy], options: PolicyOptions) -> Policy:
    """
    Return one policy that refuses what its parts do, each of one rule, and looks at nothing else.

    Rule: ADR 0036: the API server converts an object anew for each policy that looks at it, and
    three times more for one that has to judge it.
    """
    variables: dict[str, str] = {}
    validations: dict[str, str] = {}
    messages: dict[str, Mapping[str, str]] = {}
    gates: dict[str, None] = {}
    for part in parts:
        [only] = part.rules
        paths = texts(each.partition("/")[2] for each in only["resources"])
        when = [f"request.operation in {texts(only['operations'])} && {PATH} in {paths}"]
        if not part.everywhere:
            when.append(f"!(request.namespace in {texts(never_sent(options.namespace))})")
        looks = [f"({each})" for each in (*part.conditions.values(), part.gate)]
        gates[f"({' && '.join([*when, *looks])})"] = None
        named = {
            key.replace("-", "_"): text for key, text in {**part.conditions, **part.within}.items()
        }
        for key, text in {**named, **part.variables}.items():
            assert variables.setdefault(key, text) == text, key
        asked = " && ".join([*when, *(f"variables.{key}" for key in named)])
        for message, expression in part.validations.items():
            more = f" && {validations[message]}" if message in validations else ""
            validations[message] = f"(!({asked}) || ({expression})){more}"
        for message, shown in part.messages.items():
            messages[message] = {key: f"{asked} ? ({text}) : ''" for key, text in shown.items()}
    return Policy(
        name=name,
        everywhere=True,
        rules=[part.rules[0] for part in parts],
        conditions={"concerns-us": " || ".join(gates)},
        variables=variables,
        validations=validations,
        messages=messages,
    )


def objects(policy: Policy, options: PolicyOptions) -> list[dict[str, Any]]:
    """Return the policy as an object, and the binding that puts it in force."""
    name = f"{options.name}-{policy.name}"
    conditions = {**policy.conditions, "can-refuse": policy.gate}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": list(policy.rules), "matchPolicy": "Equivalent"},
        "matchConditions": [
            {"name": key, "expression": value}
            for key, value in conditions.items()
            if value != "true"
        ],
        "variables": [
            {"name": key, "expression": value} for key, value in policy.variables.items()
        ],
        "validations": [
            {"expression": expression, "message": message, "reason": "Invalid"}
            | dict(policy.messages.get(message, {}))
            for message, expression in policy.validations.items()
        ],
    }
    bound = {
        "policyName": name,
        "validationActions": list(options.actions),
        "matchResources": {"namespaceSelector": _namespaces(policy, options)},
    }
    return [
        _object("ValidatingAdmissionPolicy", name, spec, options),
        _object("ValidatingAdmissionPolicyBinding", name, bound, options),
    ]


def _namespaces(policy: Policy, options: PolicyOptions) -> dict[str, Any]:
    if policy.everywhere:
        return {}
    excluded = never_sent(options.namespace)
    name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded}
    return {"matchExpressions": [name]}


def _object(
    kind: str, name: str, spec: Mapping[str, Any], options: PolicyOptions
) -> dict[str, Any]:
    return {
        "apiVersion": GROUP,
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": "tenure", "app.kubernetes.io/part-of": "tenure"},
            "annotations": {ANNOTATION_TENURE_VOCABULARY: options.settings.vocabulary.digest},
        },
        "spec": {key: value for key, value in spec.items() if value != []},
    }


def rule(
    operations: list[str],
    resources: list[str],
    *,
    group: str = "",
    versions: Sequence[str] = ("v1",),
    scope: str = "Namespaced",
) -> dict[str, Any]:
    """Return which operations on which resources a policy looks at."""
    return {
        "operations": operations,
        "apiGroups": [group],
        "apiVersions": list(versions),
        "resources": resources,
        "scope": scope,
    }
