"""The DaemonSet that `tenure manifests agent` prints, as a Pod of the real node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from agent.discover.machine import Card, Discovery
from ledger.domain.resources import SLOT
from ledger.signing import PrivateKey
from tests.node.test_upgrade import of_pod
from tests.support.forked import forked
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import free_port
from tests.support.kube.pods import pods_in
from tests.support.kube.webhooks import apply, remove
from tests.support.machines_found import write_machine
from tests.support.node.agent_image import AGENT, agent_image
from tests.support.node.agents import CARDS, shows, vendors
from tests.support.node.clusters import CARD_BYTES, OURS, Cluster
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import Pods, container

WHOLE: Final = {"koordinator.sh/gpu": 100, SLOT: 1}
SLOTS: Final = 3
PRINTED_PORT: Final = 8080
ROOT_CA: Final = "kube-root-ca.crt"
API_ACCESS: Final = {
    "name": "kube-api-access",
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
}
NAMESPACE: Final = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
NODE: Final = f"/api/v1/nodes/{NODE_NAME}"


def printed(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what the command prints for this cluster."""
    keys = []
    for name in ("proof", "ledger"):
        key = PrivateKey.parse((cluster.identities.keys / f"{name}.key").read_text())
        keys += [f"--{name}-key", str(key.public)]
    words = ["--image", AGENT, "--api-ca", str(cluster.identities.server / "ca.crt"), *keys]
    words += ["--service", f"https://127.0.0.1:{cluster.port}", "--runtime-class", ""]
    done = forked("manifests", "agent", *words, cwd=cluster.folder)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def made_of(template: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """
    Return the Pod that a DaemonSet's controller makes on the node, as far as this node can run it.

    It has no network of Pods and no Service of the API, whose admission mounts no token here; its
    kubelet and probes listen at other ports, its runc knows no seccomp, and its cards are of a
    file. All else is as printed.
    """
    probes, port = free_port(), cluster.plane.url.rpartition(":")[2]
    spec = {**template["spec"], "nodeName": NODE_NAME, "hostNetwork": True}
    (agent,) = spec["containers"]
    security = {**agent["securityContext"]}
    assert security.pop("seccompProfile") == {"type": "RuntimeDefault"}
    other = {
        "https://$(NODE_IP):10250": f"https://127.0.0.1:{cluster.machine.port}",
        f"0.0.0.0:{PRINTED_PORT}": f"127.0.0.1:{probes}",
    }
    assert other.keys() <= set(agent["args"])
    args = [other.get(word, word) for word in agent["args"]]
    args += ["--machine", "/var/lib/tenure/machine.json", "--report-seconds", "1"]
    where = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", port)]
    asked = {
        probe: {**agent[probe], "httpGet": {**agent[probe]["httpGet"], **_at(probes)}}
        for probe in ("livenessProbe", "readinessProbe")
    }
    one = {
        **agent,
        **asked,
        "args": [*args, "--slots", str(SLOTS)],
        "env": [*agent["env"], *({"name": name, "value": value} for name, value in where)],
        "imagePullPolicy": "Never",
        "ports": [{"name": "probes", "containerPort": probes}],
        "securityContext": security,
    }
    one["volumeMounts"] = [*agent["volumeMounts"], {**API_ACCESS, "readOnly": True}]
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [NAMESPACE]}},
    ]
    access = {"name": API_ACCESS["name"], "projected": {"sources": sources}}
    volumes = [*spec["volumes"], access]
    metadata = {**template["metadata"], "name": "installed"}
    return {"metadata": metadata, "spec": {**spec, "containers": [one], "volumes": volumes}}


def _at(port: int) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port}


@contextmanager
def places(machine: Node) -> Iterator[None]:
    """Let the node's folders be where they are on every machine, and the Node be ours."""
    folder, lib = machine.room.folder, machine.room.lib
    for name in ("kubelet/pod-resources", "kubelet/pki", "tenure"):
        (lib / name).mkdir(parents=True, exist_ok=True)
    crt = (folder / "kubelet-certs" / "kubelet.crt").read_bytes()
    (lib / "kubelet" / "pki" / "kubelet.crt").write_bytes(crt)
    cards = tuple(
        Card(uuid=one, minor=minor, memory_bytes=CARD_BYTES, processes=())
        for minor, one in enumerate(CARDS)
    )
    write_machine(lib / "tenure" / "machine.json", Discovery(cards=cards))
    (machine.cdi / "nvidia.yaml").write_text(vendors())
    socket = "/run/containerd/containerd.sock"
    lines = [
        "mkdir -p /run/cdi /run/containerd",
        f"touch {socket}",
        f"mount --bind '{machine.cdi}' /run/cdi",
        f"mount --bind '{folder}/containerd.sock' {socket}",
        f"mount --bind '{folder}/kubelet/pod-resources' /var/lib/kubelet/pod-resources",
    ]
    machine.run("sh", "-ec", "\n".join(lines))
    label(machine, "true")
    try:
        yield
    finally:
        label(machine, None)
        machine.run("umount", "/run/cdi", socket, "/var/lib/kubelet/pod-resources")
        (machine.cdi / "nvidia.yaml").unlink()


def label(machine: Node, text: str | None) -> None:
    """Say whether the Node is ours."""
    body = {"metadata": {"labels": {"tenure.sh/owned": text}}}
    assert machine.plane.api().patch(NODE, body).ok


@pytest.fixture
def installed(cluster: Cluster, tmp_path: Path) -> Iterator[Pods]:
    """Run the printed Pod, with all that is printed beside it."""
    machine, plane = cluster.machine, cluster.plane
    machine.load(agent_image(tmp_path))
    things = printed(cluster)
    (daemon_set,) = (one for one in things if one["kind"] == "DaemonSet")
    root = {"metadata": {"name": ROOT_CA, "namespace": OURS}}
    authority = {"kind": "ConfigMap", "apiVersion": "v1", **root}
    authority["data"] = {"ca.crt": plane.ca_file.read_text()}
    remove(plane, [one for one in things if one["kind"] == "ConfigMap"])  # of a test before
    apply(plane, [authority, *(one for one in things if one is not daemon_set)])
    with places(machine), cluster.served() as served, cluster.scheduling(served):
        made = plane.api().create(pods_in(OURS), made_of(daemon_set["spec"]["template"], cluster))
        assert made.ok, made.message
        own = Pods(machine, OURS)
        yield own
        own.remove_all()


def mounts_of(pid: int) -> dict[str, set[str]]:
    """Return where something is mounted for a process, and with which options."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return {line.split()[4]: set(line.split()[5].split(",")) for line in lines}


def test_the_printed_agent_runs_as_it_is_printed_and_serves(
    installed: Pods, pods: Pods, cluster: Cluster
) -> None:
    """Its root is read-only, its folders are those of the docs; a Pod starts, and is gone."""
    machine = cluster.machine
    agent = installed.running("installed")
    try:
        machine.until(lambda: machine.allocatable(SLOT) == SLOTS, "it does not register")
        eventually(lambda: is_ready(installed))
    except AssertionError as error:
        raise AssertionError("\n".join(machine.logs(agent, "agent"))) from error

    (pid,) = machine.processes(agent, identity(installed))
    mounts = mounts_of(pid)
    assert "ro" in mounts["/"]
    (spec,) = agent["spec"]["containers"]
    for mount in spec["volumeMounts"]:
        is_read_only = mount.get("readOnly", False)
        assert ("ro" in mounts[mount["mountPath"]]) is is_read_only, mount
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    assert (int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, "1")

    made = pods.make("first", [container(resources=WHOLE)], scheduler="tenure")
    pods.running("first")
    ((kind, card),) = of_pod(cluster, made)
    (seen,) = machine.seen(pods.get("first"))
    assert (kind, seen["cards"]) == ("granted", [shows(card)])
    pods.remove("first")
    eventually(lambda: of_pod(cluster, made) == [])


def identity(installed: Pods) -> str:
    """Return the id of the agent's container."""
    return str(installed.statuses("installed")["agent"]["containerID"].rpartition("/")[2])


def is_ready(installed: Pods) -> bool:
    """Tell whether kubelet, which asks its probe, calls it ready."""
    return bool(installed.statuses("installed")["agent"]["ready"])
