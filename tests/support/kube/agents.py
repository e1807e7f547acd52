"""Tokens of the agents' account, as kubelet mounts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.kube.control_plane import ControlPlane
from tests.support.manifests import AGENT_ACCOUNT


def agent_token(
    plane: ControlPlane,
    namespace: str,
    bound: Mapping[str, Any] | None,
    *,
    account: str = AGENT_ACCOUNT,
) -> str:
    """Return a token of the agents' account, bound to a Pod if one is given."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if bound is not None:
        named = {"name": bound["metadata"]["name"], "uid": bound["metadata"]["uid"]}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **named}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    made = plane.api().create(path, body)
    assert made.ok, made.message
    return str(made.body["status"]["token"])
