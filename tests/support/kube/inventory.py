"""The kinds of inventory objects, made known to a real API server without their schemas."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.support.kube.control_plane import ControlPlane

DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
TOPOLOGIES: Final = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
_GROUP: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WAIT_SECONDS: Final = 300.0


def know(plane: ControlPlane, path: str, kind: str) -> None:
    """Define a cluster-wide kind at this path, with a status of its own, and wait for it."""
    _, _, group, version, plural = path.split("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served: dict[str, Any] = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        "subresources": {"status": {}},
    }
    approved = {"api-approved.kubernetes.io": "unapproved, for a test"}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": approved},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [served],
        },
    }
    made = plane.api().create(_GROUP, body)
    assert made.status in (201, 409), made.message
    until = time.monotonic() + _WAIT_SECONDS
    while not plane.api().get(path).ok:
        assert time.monotonic() < until, f"the kind is not served: path={path}"
        time.sleep(0.1)
