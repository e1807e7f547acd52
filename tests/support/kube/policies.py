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

_WAIT_SECONDS: Final = 30.0
_PROBES: Final = (
    pod("probe", {"cpu": "1"}, annotations={"vke.volcengine.com/assumed": "1"}),
    pod("probe", {"tenure.sh/other": "1"}),
)


@contextlib.contextmanager
def in_force(
    plane: ControlPlane, options: PolicyOptions | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Put every policy in force until the block ends."""
    made = policies(options or PolicyOptions())
    apply(plane, made)
    try:
        _wait(plane, passing=False)
        time.sleep(1)  # the others come within the same moment
        yield made
    finally:
        remove(plane, made)
        _wait(plane, passing=True)


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


def _wait(plane: ControlPlane, *, passing: bool) -> None:
    where, until = pods_in("default"), time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        tried = [plane.api(MALLORY).create(where, probe, dry_run=True).ok for probe in _PROBES]
        if tried == [passing] * len(_PROBES):
            return
        time.sleep(0.1)
    raise AssertionError(f"the policies did not get there: wanted={passing}")
