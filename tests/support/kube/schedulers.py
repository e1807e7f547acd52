"""`tenure serve scheduler` before a real API server, asked by a stock kube-scheduler."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.material import KeyPair, issue_authority, issue_leaf
from ledger.signing import PrivateKey
from scheduler.service.witnesses import config_map_path
from tests.support.forked import Forked, Point
from tests.support.kube.control_plane import SCHEDULER_ACCOUNT, ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.webhooks import apply, remove
from tests.support.manifests import kube_scheduler, printed_scheduler

READY_SECONDS: Final = 300.0
KUBE_SCHEDULER: Final = "system:kube-scheduler"
API_NAME: Final = "tenure-api.tenure-system.svc"
GIB: Final = 2**30
CARD_GIB: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Files of both ends: the server's folder, the client's, and our signer keys."""

    server: Path
    client: Path
    keys: Path


def issue(folder: Path) -> Identities:
    """Write an authority's leaves for the extender and for kube-scheduler, and two signer keys."""
    now, day = datetime.now(UTC), timedelta(days=1)
    authority = issue_authority("extender-test", now=now, lifetime=day)
    leaf = issue_leaf(authority, ["127.0.0.1", API_NAME], now=now, lifetime=day)
    server, client, keys = (folder / name for name in ("server", "client", "keys"))
    for where, pair in ((server, leaf), (client, client_leaf(authority))):
        where.mkdir(parents=True)
        (where / "tls.crt").write_bytes(pair.certificate)
        (where / "tls.key").write_bytes(pair.key)
        (where / "ca.crt").write_bytes(authority.certificate)
    keys.mkdir()
    for name in ("proof", "ledger"):
        (keys / f"{name}.key").write_text(PrivateKey.new(name).text())
    return Identities(server=server, client=client, keys=keys)


def client_leaf(authority: KeyPair, name: str = KUBE_SCHEDULER) -> KeyPair:
    """Return a leaf that a caller of this name shows."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    return KeyPair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


class HasPort(Protocol):
    """Where an extender is asked."""

    @property
    def port(self) -> int:
        """Return the port, on the loopback."""
        ...


@dataclass(slots=True, kw_only=True)
class Served:
    """A running extender."""

    process: subprocess.Popen[bytes] | Forked
    port: int
    probes: int
    log: Path

    def probe(self, what: str) -> str:
        """Return what a probe says; nothing while nobody listens."""
        try:
            url = f"http://127.0.0.1:{self.probes}/{what}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return str(refusal.read().decode())
        except OSError:
            return ""

    def leads(self) -> bool:
        """Tell whether it answers."""
        return 'tenure_scheduler_view{what="answering"} 1.0' in self.probe("metrics")

    def wait_ready(self, *, leading: bool = True) -> None:
        """Wait until it could answer, and does."""
        until = time.monotonic() + READY_SECONDS
        while self.probe("readyz") != "ok\n" or (leading and not self.leads()):
            assert self.process.poll() is None, self.words()
            assert time.monotonic() < until, self.words()
            time.sleep(0.1)

    def words(self) -> str:
        """Return the end of what it logged."""
        return self.log.read_text(errors="replace")[-4_000:]

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait(20)


def ask(served: HasPort, identities: Identities, verb: str, body: object) -> Any:  # noqa: ANN401
    """Ask an extender as kube-scheduler does, and return the JSON of its answer."""
    context = ssl.create_default_context(cafile=str(identities.client / "ca.crt"))
    context.load_cert_chain(identities.client / "tls.crt", identities.client / "tls.key")
    url = f"https://127.0.0.1:{served.port}/{verb}"
    request = urllib.request.Request(url, data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def extender(
    plane: ControlPlane,
    ledger: str,
    identities: Identities,
    *,
    port: int = 0,
    remembered: bool = False,
    ready: bool = True,
    api: int = 0,
    replica: str = "tenure-scheduler-0",
    leading: bool = True,
    pod: str = "",
    kubeconfig: Path | None = None,
    config: Path | None = None,
    forked: bool = False,
    point: Point | None = None,
    gate: int = 0,
    drivers: Sequence[str] = (),
    preemption: str = "off",
) -> Iterator[Served]:
    """
    Run `tenure serve scheduler` until the block ends; it waits until that is ready.

    Args:
        remembered: the cluster keeps what it has seen of its ledger; else this is its first one.
        ready: wait for it.
        api: port where people are answered; 0 = nowhere.
        replica: one that is started again under its name has its Lease at once.
        leading: it is waited until this one answers; else it stands by.
        pod: the Pod object that it labels as the leader's.
        kubeconfig: how it reaches the API server, where that is another way than others have.
        config: its settings file.
        forked: it is a fork of a process that has imported it already, and starts sooner.
        point: where it kills itself; it is forked then.
        gate: port where the API server asks about claims of these drivers; 0 = nowhere.
        preemption: who ends for a Pod that waits for fragmentation alone, as the option says.
    """
    if not remembered:
        plane.api().delete(config_map_path("tenure-system"))
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    rights = [
        thing
        for thing in printed_scheduler(
            *("--api", f"--preemption={preemption}"), *(f"--driver={one}" for one in drivers)
        )
        if thing["kind"] not in ("Deployment", "Service", "ConfigMap")
    ]
    if drivers or preemption == "on":  # what a test before made lacks them
        remove(plane, [thing for thing in rights if thing["kind"] == "ClusterRole"])
    apply(plane, rights)
    log = plane.folder / f"extender-{free_port()}.log"
    served_at, probes = port or free_port(), free_port()
    command = [
        *("serve", "scheduler", "--ledger", ledger),
        *("--extender", f"127.0.0.1:{served_at}", "--probes", f"127.0.0.1:{probes}"),
        *("--kubeconfig", str(kubeconfig or plane.kubeconfig(SCHEDULER_ACCOUNT))),
        *("--certificates", str(identities.server), "--name", "127.0.0.1"),
        *("--proof-key", str(identities.keys / "proof.key")),
        *("--ledger-key", str(identities.keys / "ledger.key"), "--drain-seconds", "0"),
        *("--replica", replica, "--pod", pod, "--preemption", preemption),
    ]
    if config:
        command += ["--config", str(config)]
    if gate:
        command += ["--gate", f"127.0.0.1:{gate}", "--gate-name", "127.0.0.1"]
        command += ["--gate-client-ca", str(plane.folder / "client-ca-file")]
        command += [part for driver in drivers for part in ("--driver", driver)]
    if api:
        command += ["--api", f"127.0.0.1:{api}", "--api-name", API_NAME]
    process = (
        Forked(command, log, point, execs=False)  # where points are watched, and it starts at once
        if forked or point
        else _started(command, log)
    )
    served = Served(process=process, port=served_at, probes=probes, log=log)
    try:
        if ready:
            served.wait_ready(leading=leading)
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def _started(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as words:
        return subprocess.Popen([sys.executable, "-m", "tenure", *command], stderr=words)


def asking(
    plane: ControlPlane,
    served: HasPort,
    identities: Identities,
    *,
    kubeconfig: Path | None = None,
    impatient: bool = False,
) -> Path:
    """
    Write and return the configuration of a kube-scheduler that asks this extender.

    Args:
        kubeconfig: how it reaches the API server, where that is another way than others have.
        impatient: it tries again after a second, however often it was refused or not answered.
    """
    config = kube_scheduler(
        f"https://127.0.0.1:{served.port}",
        str(identities.client),
        str(kubeconfig or plane.kubeconfig(KUBE_SCHEDULER)),
    )
    if impatient:
        config["podMaxBackoffSeconds"] = 1
    path = plane.folder / f"asking-{served.port}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def add_plugin_node(plane: ControlPlane, name: str, **cards: str) -> None:
    """Make a Node whose cards NVIDIA's device plugin advertises, and nobody else."""
    api = plane.api()
    labels = {"kubernetes.io/hostname": name}
    made = api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    assert made.ok, made.message
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **cards}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    assert api.patch(f"/api/v1/nodes/{name}/status", {"status": status}).ok


def add_gpu_node(
    plane: ControlPlane, name: str, *, gpus: int = 8, cpus: int = 64, binds_cpus: bool = True
) -> None:
    """Make a Node with a Device and CPUs, as if its kubelet and agent had."""
    api = plane.api()
    labels = {
        "vke.node.gpu.schedule": "mgpu",
        "kubernetes.io/hostname": name,
        "koordinator.sh/gpu-isolation-provider": "HAMi-core",
        **({"tenure.sh/cpu-managed": "true"} if binds_cpus else {}),
    }
    policy = {"vke.volcengine.com/mgpu-compute-policy": "native-burst-share"}
    made = api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {**labels, **policy}}})
    assert made.ok, made.message
    mib = gpus * CARD_GIB * 1024
    amounts = {
        "cpu": str(cpus),
        "memory": "512Gi",
        "pods": "110",
        "nvidia.com/gpu": str(gpus),
        "koordinator.sh/gpu-core": str(100 * gpus),
        "koordinator.sh/gpu": str(100 * gpus),
        "koordinator.sh/gpu-memory-ratio": str(100 * gpus),
        "aliyun.com/gpu-mem": str(mib),
        "koordinator.sh/gpu-memory": str(mib << 20),
        "vke.volcengine.com/mgpu-core": str(100 * gpus),
        "vke.volcengine.com/mgpu-memory": str(mib),
        "nvidia.com/gpumem": str(mib),
        "nvidia.com/gpucores": str(100 * gpus),
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    patch = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    assert api.patch(f"/api/v1/nodes/{name}/status", patch).ok
    cards = [
        {
            "type": "gpu",
            "id": f"GPU-{name}-{minor}",
            "minor": minor,
            "health": True,
            "resources": {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory": f"{CARD_GIB}Gi",
                "koordinator.sh/gpu-memory-ratio": "100",
            },
        }
        for minor in range(gpus)
    ]
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, "labels": {"node.koordinator.sh/gpu-model": "T4"}},
        "spec": {"devices": cards},
    }
    made = api.create(DEVICES, device)
    assert made.ok, made.message
    detail = ",".join(
        f'{{"id":{cpu},"core":{cpu // 2},"socket":0,"node":{cpu * 2 // cpus}}}'
        for cpu in range(cpus)
    )
    topology: dict[str, Any] = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": name,
            "annotations": {"node.koordinator.sh/cpu-topology": f'{{"detail":[{detail}]}}'},
        },
        "topologyPolicies": [],
        "zones": [],
    }
    made = api.create(TOPOLOGIES, topology)
    assert made.ok, made.message


def remove_node(plane: ControlPlane, name: str) -> None:
    """Delete a Node with all that describes it."""
    for path in ("/api/v1/nodes", DEVICES, TOPOLOGIES):
        plane.api().delete(f"{path}/{name}")
