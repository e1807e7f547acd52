"""Policies in a real API server: in force for a block, and gone after it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from tests.support.kube.control_plane import MALLORY, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.webhooks import apply, remove
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions

_WAIT_SECONDS: Final = 300.0
_LAST: Final = "made-last"
_PROBES: Final = (
    (pods_in("default"), pod("probe", {"tenure.sh/other": "1"})),
    ("/api/v1/namespaces", {"metadata": {"name": "probe", "labels": {"tenure.sh/holding": "1"}}}),
)
"""What the first policy refuses, and the last one: they go in the order in which they were made."""


@contextlib.contextmanager
def in_force(
    plane: ControlPlane, options: PolicyOptions | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Put every policy in force until the block ends."""
    made = policies(options or PolicyOptions())
    apply(plane, made)
    try:
        wait_in_force(plane)
        yield made
    finally:
        remove(plane, made)
        wait_for_the_end(plane)


def wait_in_force(plane: ControlPlane) -> None:
    """
    Wait until every policy made so far is in force.

    The API server learns of policies and of bindings each in the order in which they were made, so
    one of each that was made after them, and refuses a Pod of its own, tells of all of them.
    """
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": _LAST}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    policy = {
        **kind,
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["pods"]}]},
            "validations": [{"expression": f"object.metadata.name != '{_LAST}'"}],
        },
    }
    bound = {
        **kind,
        "kind": "ValidatingAdmissionPolicyBinding",
        "spec": {"policyName": _LAST, "validationActions": ["Deny"]},
    }
    last, until = pod(_LAST, {"cpu": "1"}), time.monotonic() + _WAIT_SECONDS
    apply(plane, [policy, bound])
    try:
        while plane.api(MALLORY).create(pods_in("default"), last, dry_run=True).ok:
            assert time.monotonic() < until, "the policies are not in force"
            time.sleep(0.1)
    finally:
        remove(plane, [policy, bound])


def let_schedule(plane: ControlPlane) -> None:
    """Give our scheduler's account the rights over Pods and namespaces that its role will have."""
    group, name = "/apis/rbac.authorization.k8s.io/v1", "tenure-policy-test"
    resources = ["pods", "pods/status", "pods/binding", "namespaces"]
    rule = {"apiGroups": [""], "resources": resources, "verbs": ["*"]}
    named = {"metadata": {"name": name}}
    plane.api().create(f"{group}/clusterroles", {**named, "rules": [rule]})
    _, _, where, account = SCHEDULER_ACCOUNT.split(":")
    subject = {"kind": "ServiceAccount", "namespace": where, "name": account}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    bound = {**named, "roleRef": role, "subjects": [subject]}
    plane.api().create(f"{group}/clusterrolebindings", bound)


def wait_for_the_end(plane: ControlPlane) -> None:
    """Wait until none of the policies is in force."""
    mallory, until = plane.api(MALLORY), time.monotonic() + _WAIT_SECONDS
    while not all(mallory.create(where, one, dry_run=True).ok for where, one in _PROBES):
        assert time.monotonic() < until, "the policies are still in force"
        time.sleep(0.1)
