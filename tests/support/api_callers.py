"""Who calls the listener for people: certificates of a front proxy, and a cluster that names it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from certs.material import KeyPair, issue_authority, issue_leaf
from certs.ports import ApiError, Object
from tenure.serving.options import Address
from tenure.serving.scheduling.options import SchedulerOptions
from tests.support.kube.schedulers import KUBE_SCHEDULER, client_leaf

NAME: Final = "127.0.0.1"
PROXY: Final = KUBE_SCHEDULER
"""The common name of the leaves that `client_leaf` makes."""


def authority(name: str) -> KeyPair:
    """Return an authority of a day."""
    return issue_authority(name, now=datetime.now(UTC), lifetime=timedelta(days=1))


def server_folder(folder: Path, signer: KeyPair) -> Path:
    """Write a server's leaf, and return where it is."""
    day = timedelta(days=1)
    leaf = issue_leaf(signer, [NAME], now=datetime.now(UTC), lifetime=day)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)
    (folder / "ca.crt").write_bytes(signer.certificate)
    return folder


def api_options(port: int, certificates: Path) -> SchedulerOptions:
    """Return the options of a scheduler that listens for people; it has no keys."""
    return SchedulerOptions(
        ledger="none.db",
        api=Address(NAME, port),
        api_name=(NAME,),
        certificates=certificates,
        proof_key=Path("none.key"),
        ledger_key=Path("none.key"),
    )


def caller(server: KeyPair, folder: Path, own: KeyPair | None = None) -> ssl.SSLContext:
    """Return how somebody connects, with a leaf of their own or without."""
    context = ssl.create_default_context(cadata=server.certificate.decode())
    if own is not None:
        (folder / "own.pem").write_bytes(own.certificate + own.key)
        context.load_cert_chain(folder / "own.pem")
    return context


def proxy_leaf(signer: KeyPair) -> KeyPair:
    """Return a leaf of the front proxy."""
    return client_leaf(signer)


@dataclass(slots=True)
class Cluster:
    """
    An API server that names a front proxy, reviews tokens and says who may what.

    Attributes:
        proxies: whose headers are believed; None = nobody's.
        names: common names that are allowed.
        tokens: token -> user.
        may: user -> namespaces whose answers they may get; "" = all.
        away: nothing is answered.
    """

    proxies: KeyPair | None = None
    names: tuple[str, ...] = (PROXY,)
    tokens: dict[str, str] = field(default_factory=dict)
    may: dict[str, set[str]] = field(default_factory=dict)
    away: bool = False
    reviewed: list[Object] = field(default_factory=list)

    async def read(self, path: str) -> Object | None:
        """Return the ConfigMap that names the proxy."""
        self._answers()
        assert path.endswith("/kube-system/configmaps/extension-apiserver-authentication"), path
        if self.proxies is None:
            return None
        data = {
            "requestheader-client-ca-file": self.proxies.certificate.decode(),
            "requestheader-allowed-names": json.dumps(self.names),
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        return {"data": data}

    async def create(self, path: str, body: Object) -> Object:
        """Review a token, or a right."""
        self._answers()
        self.reviewed.append(body)
        spec: dict[str, Any] = body["spec"]
        if path.endswith("/tokenreviews"):
            user = self.tokens.get(spec["token"])
            return {"status": {"authenticated": user is not None, "user": {"username": user}}}
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews", path
        spaces = self.may.get(spec["user"], set())
        asked = spec["resourceAttributes"].get("namespace", "")
        return {"status": {"allowed": "" in spaces or asked in spaces}}

    async def replace(self, path: str, body: Object) -> Object:
        """Nobody writes."""
        raise AssertionError(path, body)

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Nobody writes."""
        raise AssertionError(path, operations)

    async def remove(self, path: str) -> None:
        """Nobody deletes."""
        raise AssertionError(path)

    def _answers(self) -> None:
        if self.away:
            raise ApiError("the API did not answer")
