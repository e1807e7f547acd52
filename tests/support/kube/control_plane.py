"""
A real etcd and kube-apiserver for tests: started in seconds on free ports of the loopback.

No controller runs but those that a test starts, so a Deployment makes no Pods and no namespace gets
a default service account; the ServiceAccount admission plugin is off for that.
"""

from __future__ import annotations

import contextlib
import csv
import json
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.material import KeyPair, issue_authority
from tenure.serving.options import KUBE_API_SERVER
from tests.support.kube.api import Api
from tests.support.kube.binaries import API_SERVER, CONTROLLERS, ETCD, SCHEDULER

READY_SECONDS: Final = 300.0
STOP_SECONDS: Final = 20.0
PORTS: Final = (12_000, 32_000)
_given: Final[list[socket.socket]] = []

ADMIN: Final = "admin"
MALLORY: Final = "mallory"
SCHEDULER_ACCOUNT: Final = "system:serviceaccount:tenure-system:tenure-scheduler"
WEBHOOK_ACCOUNT: Final = "system:serviceaccount:tenure-system:tenure-webhook"
AGENT_ACCOUNT: Final = "system:serviceaccount:tenure-system:tenure-agent"
KUBELET: Final = "system:node:kubelet-1"
CONTROLLER_MANAGER: Final = "system:kube-controller-manager"
CALLING: Final = "calling.pem"
"""The file with the certificate and key that the API server shows to the gate."""
DAEMON_SETS: Final = "system:serviceaccount:kube-system:daemon-set-controller"
_GROUPS: Final[Mapping[str, str]] = {
    ADMIN: "system:masters",
    MALLORY: "system:masters",  # who may do everything that admission lets through
    "system:kube-scheduler": "system:authenticated",
    KUBELET: "system:nodes",
    CONTROLLER_MANAGER: "system:authenticated",
    DAEMON_SETS: "system:serviceaccounts,system:serviceaccounts:kube-system",
    SCHEDULER_ACCOUNT: "system:serviceaccounts,system:serviceaccounts:tenure-system",
    WEBHOOK_ACCOUNT: "system:serviceaccounts,system:serviceaccounts:tenure-system",
    AGENT_ACCOUNT: "system:serviceaccounts,system:serviceaccounts:tenure-system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """
    A running API server: where it is, who may call it, and where its files are.

    Attributes:
        users: the authority of people's certificates.
        etcd, server: the processes, which a test may kill and start again.
    """

    url: str
    ca_file: Path
    tokens: Mapping[str, str]
    folder: Path
    programs: Path
    users: KeyPair
    etcd: Program
    server: Program

    def api(self, user: str = ADMIN) -> Api:
        """Return a client that speaks as this user."""
        return Api(self.url, ca_file=self.ca_file, token=self.tokens[user])

    def kubeconfig(self, user: str, url: str = "") -> Path:
        """Write and return a kubeconfig for this user, who reaches the server by this URL."""
        url = url or self.url
        path = self.folder / f"{user.replace(':', '-')}-{url.rpartition(':')[2]}.kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{url}',"
            f" certificate-authority: '{self.ca_file}'}}}}]\n"
            f"users: [{{name: test, user: {{token: '{self.tokens[user]}'}}}}]\n"
            "contexts: [{name: test, context: {cluster: test, user: test}}]\n"
        )
        return path

    def wait_ready(self) -> None:
        """
        Wait until the API server answers.

        Raises:
            AssertionError: it ended or did not get ready; with the end of its log.
        """
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            assert self.server.runs(), f"kube-apiserver ended:\n{self.server.words()}"
            with contextlib.suppress(OSError):
                if self.ca_file.exists() and self.api().is_ready():
                    return
            time.sleep(0.1)
        raise AssertionError(f"kube-apiserver did not get ready:\n{self.server.words()}")

    @contextlib.contextmanager
    def scheduler(
        self, config: Path, *arguments: str, name: str = "scheduler"
    ) -> Iterator[Program]:
        """Run kube-scheduler with this configuration file until the block ends; it logs by name."""
        command = [
            *(str(self.programs / SCHEDULER), "--config", str(config)),
            *("--authentication-skip-lookup", "--bind-address", "127.0.0.1"),
            *("--secure-port", str(free_port()), "--cert-dir", str(self.folder / "scheduler")),
            *arguments,
        ]
        with _running(command, self.folder / f"{name}.log") as program:
            yield program

    @contextlib.contextmanager
    def claim_controller(self, *others: str) -> Iterator[Program]:
        """
        Run kube-controller-manager's controller of resource claims until the block ends.

        Args:
            others: controllers that run beside it.
        """
        command = [
            *(str(self.programs / CONTROLLERS), "--controllers"),
            ",".join(("resourceclaim-controller", *others)),
            *("--kubeconfig", str(self.kubeconfig(CONTROLLER_MANAGER)), "--leader-elect=false"),
            *("--use-service-account-credentials", "--kube-api-qps=500", "--kube-api-burst=1000"),
            *("--authentication-skip-lookup", "--bind-address", "127.0.0.1"),
            *("--secure-port", str(free_port()), "--cert-dir", str(self.folder / "controllers")),
        ]
        with _running(command, self.folder / "controllers.log") as program:
            yield program


@dataclass(slots=True, kw_only=True)
class Program:
    """A process with its words in a file, which can be started again as it was."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as words:
            self.process = subprocess.Popen(self.command, stdout=words, stderr=subprocess.STDOUT)

    def runs(self) -> bool:
        """Tell whether it runs."""
        return self.process is not None and self.process.poll() is None

    def words(self) -> str:
        """Return the end of what it logged."""
        return self.log.read_text(errors="replace")[-3_000:]

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it stand still until the block ends."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """Let it end, and see to it that it does."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def control_plane(folder: Path, programs: Path, *arguments: str) -> Iterator[ControlPlane]:
    """
    Run etcd and kube-apiserver with their files in `folder` until the block ends.

    Args:
        arguments: of kube-apiserver, besides those that every test needs.

    Raises:
        AssertionError: one of them ended or did not get ready; with the end of its log.
    """
    client, peer = free_port(), free_port()
    etcd = [
        *(str(programs / ETCD), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
        *("--listen-client-urls", f"http://127.0.0.1:{client}"),
        *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
        *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
    ]
    with _running(etcd, folder / "etcd.log") as store:
        tokens = _write_tokens(folder / "tokens.csv")
        port = free_port()
        users, proxies = _authority("users"), _authority("proxies")
        server = _api_server(programs, folder, etcd_port=client, port=port)
        server += [*_certificates(folder, users, proxies), *arguments]
        with _running(server, folder / "apiserver.log") as running:
            plane = ControlPlane(
                url=f"https://127.0.0.1:{port}",
                ca_file=folder / "certs" / "apiserver.crt",
                tokens=tokens,
                folder=folder,
                programs=programs,
                users=users,
                etcd=store,
                server=running,
            )
            plane.wait_ready()
            yield plane


def free_port() -> int:
    """
    Return a port of the loopback that nobody listens on now, and that no other test is given.

    Below those that a system gives to callers (32,768 and more), so that neither a connection nor
    `bind` of port 0 elsewhere takes it before the server that it is meant for. Other processes of
    tests see that it is given by a name which ends with this one.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(*PORTS)
        given = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            given.bind(f"\0tenure-test-port-{port}")
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _given.append(given)
            return port
        given.close()
    raise AssertionError("no free port on the loopback")


def _api_server(programs: Path, folder: Path, *, etcd_port: int, port: int) -> list[str]:
    key = folder / "service-account.key"
    key.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return [
        str(programs / API_SERVER),
        *("--etcd-servers", f"http://127.0.0.1:{etcd_port}"),
        *("--bind-address", "127.0.0.1", "--secure-port", str(port)),
        *("--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none"),
        *("--cert-dir", str(folder / "certs")),
        *("--token-auth-file", str(folder / "tokens.csv")),
        *("--authorization-mode", "Node,RBAC"),
        *("--service-account-issuer", "https://kubernetes.default.svc"),
        *("--service-account-key-file", str(key), "--service-account-signing-key-file", str(key)),
        *("--service-cluster-ip-range", "10.96.0.0/24"),
        *("--enable-admission-plugins", "NodeRestriction"),
        *("--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition"),
        *("--watch-cache=true", "--profiling=false"),
    ]


def _authority(name: str) -> KeyPair:
    return issue_authority(name, now=datetime.now(UTC), lifetime=timedelta(days=1))


def _certificates(folder: Path, users: KeyPair, proxies: KeyPair) -> list[str]:
    """Return whose certificates count as people's, and what the API server shows as a proxy."""
    from tests.support.kube.schedulers import client_leaf

    own = client_leaf(proxies, "front-proxy")
    files = {
        "client-ca-file": users.certificate,
        "requestheader-client-ca-file": proxies.certificate,
        "proxy-client-cert-file": own.certificate,
        "proxy-client-key-file": own.key,
    }
    options = []
    for option, content in files.items():
        (folder / option).write_bytes(content)
        options += [f"--{option}", str(folder / option)]
    options += ["--admission-control-config-file", str(_shown_to_webhooks(folder, users))]
    return [
        *options,
        *("--requestheader-allowed-names", "front-proxy"),
        *("--requestheader-username-headers", "X-Remote-User"),
        *("--requestheader-group-headers", "X-Remote-Group"),
        *("--requestheader-extra-headers-prefix", "X-Remote-Extra-"),
    ]


def _shown_to_webhooks(folder: Path, users: KeyPair) -> Path:
    """Write what the API server shows to webhooks that ask who calls, and return the file."""
    from tests.support.kube.schedulers import client_leaf

    own = client_leaf(users, KUBE_API_SERVER)
    (folder / CALLING).write_bytes(own.certificate + own.key)
    user = {"client-certificate": str(folder / CALLING), "client-key": str(folder / CALLING)}
    config = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}
    (folder / "calling.kubeconfig").write_text(json.dumps(config))
    group = "apiserver.config.k8s.io/v1"
    webhooks = {
        "apiVersion": group,
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(folder / "calling.kubeconfig"),
    }
    plugin = {"name": "MutatingAdmissionWebhook", "configuration": webhooks}
    path = folder / "admission.yaml"
    path.write_text(
        json.dumps({"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": [plugin]})
    )
    return path


def _write_tokens(path: Path) -> dict[str, str]:
    tokens = {user: secrets.token_hex(16) for user in _GROUPS}
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        for number, (user, token) in enumerate(tokens.items()):
            rows.writerow((token, user, f"uid-{number}", _GROUPS[user]))
    path.chmod(0o600)
    return tokens


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator[Program]:
    """Run a program with its words in a file; at the end stop exactly this process."""
    log.unlink(missing_ok=True)
    program = Program(command=command, log=log)
    program.start()
    try:
        yield program
    finally:
        program.stop()
