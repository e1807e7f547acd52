"""The live service's own listener, called as agents and people call it."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod, pods_in

OURS: Final = "tenure-system"
AGENT: Final = "tenure-agent"
ACCOUNTS: Final = f"/api/v1/namespaces/{OURS}/serviceaccounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where the live service listens, and whose certificate that is."""

    port: int
    authority: Path

    def call(
        self, path: str, token: str, body: object = None, *, seconds: float = 30
    ) -> tuple[int, dict[str, Any]]:
        """Call it with a bearer token, and wait so long for an answer."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = False
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        url = f"https://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds, context=context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read())


def token_of(plane: ControlPlane, account: str, bound: dict[str, Any] | None = None) -> str:
    """Return a token of a ServiceAccount, bound to a Pod if one is given."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if bound is not None:
        metadata = bound["metadata"]
        named = {"name": metadata["name"], "uid": metadata["uid"]}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **named}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made = plane.api().create(f"{ACCOUNTS}/{account}/token", body)
    assert made.ok, made.message
    return str(made.body["status"]["token"])


def agents_token(plane: ControlPlane, node: str, account: str = AGENT, name: str = "agent") -> str:
    """Let the Pod of an agent, or of a CPU process, run on a node; return its token."""
    agent = pod(name, {"cpu": "10m"}, nodeName=node, serviceAccountName=account)
    reply = plane.api().create(pods_in(OURS), agent)
    assert reply.ok, reply.message
    return token_of(plane, account, reply.body)
