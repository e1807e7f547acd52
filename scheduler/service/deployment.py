"""
The Deployment of `tenure serve scheduler`, as API objects.

Rule: design section 2: several replicas on Postgres; on SQLite one, on a disk of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Thing = dict[str, Any]

_FILES: Final = "/etc/tenure"
_DISK: Final = "/var/lib/tenure"
_USER: Final = 65532
LOCKED: Final[Thing] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """
    How replicas are run.

    Attributes:
        image: with the command `tenure` and its service extra.
        replicas: more than one need Postgres.
        ledger: Secret whose `url` is that of a ledger on Postgres; empty = SQLite on a claim.
        certificates: Secret with `tls.crt`, `tls.key` and `ca.crt` of the extender.
        keys: Secret with the signer keys `proof.key` and `ledger.key`.
        storage: of the claim.
        config: ConfigMap whose `config.yaml` is the settings file; empty = the defaults.
        gate_clients: Secret whose `ca.crt` is the authority of who may ask the gate; empty =
            anybody asks.
        host_network: they listen on their nodes' addresses, which a control plane outside of the
            cluster's network reaches.
    """

    image: str
    replicas: int = 1
    ledger: str = ""
    certificates: str = "tenure-scheduler-certs"
    keys: str = "tenure-scheduler-keys"
    storage: str = "10Gi"
    config: str = ""
    gate_clients: str = ""
    host_network: bool = False

    def __post_init__(self) -> None:
        assert self.replicas == 1 or self.ledger, "one file, one writer"


def deployment(deployed: Deployed, *, name: str, namespace: str, args: list[str]) -> list[Thing]:
    """
    Return the Deployment, and on SQLite the claim of its disk.

    Args:
        name: of the Deployment, and of the account that its Pods run as.
        args: of the command, beside what is mounted here.
    """
    labels = {"app.kubernetes.io/name": name}
    metadata = {"name": name, "namespace": namespace}
    spec: Thing = {
        "replicas": deployed.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(deployed, name, labels, args)},
    }
    if not deployed.ledger:
        spec["strategy"] = {"type": "Recreate"}
    made: Thing = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata, "labels": labels},
        "spec": spec,
    }
    return [made] if deployed.ledger else [_claim(deployed, metadata), made]


def _claim(deployed: Deployed, metadata: Thing) -> Thing:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**metadata, "name": f"{metadata['name']}-ledger"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": deployed.storage}},
        },
    }


def _pod(deployed: Deployed, name: str, labels: Thing, args: list[str]) -> Thing:
    mounts = [
        {"name": "certs", "mountPath": f"{_FILES}/certs", "readOnly": True},
        {"name": "keys", "mountPath": f"{_FILES}/keys", "readOnly": True},
    ]
    volumes: list[Thing] = [
        {"name": "certs", "secret": {"secretName": deployed.certificates}},
        {"name": "keys", "secret": {"secretName": deployed.keys}},
    ]
    if deployed.ledger:
        at: Thing = {"secretKeyRef": {"name": deployed.ledger, "key": "url"}}
        ledger: Thing = {"name": "TENURE_LEDGER", "valueFrom": at}
    else:
        mounts.append({"name": "ledger", "mountPath": _DISK, "readOnly": False})
        volumes.append({"name": "ledger", "persistentVolumeClaim": {"claimName": f"{name}-ledger"}})
        ledger = {"name": "TENURE_LEDGER", "value": f"sqlite:///{_DISK}/tenure.db"}
    if deployed.config:
        mounts.append({"name": "config", "mountPath": f"{_FILES}/config", "readOnly": True})
        volumes.append({"name": "config", "configMap": {"name": deployed.config}})
        args = [*args, "--config", f"{_FILES}/config/config.yaml"]
    if deployed.gate_clients:
        at_path = f"{_FILES}/gate-clients"
        only = [{"key": "ca.crt", "path": "ca.crt"}]  # a Secret of an authority may have its key
        secret = {"secretName": deployed.gate_clients, "items": only}
        mounts.append({"name": "gate-clients", "mountPath": at_path, "readOnly": True})
        volumes.append({"name": "gate-clients", "secret": secret})
        args = [*args, "--gate-client-ca", f"{at_path}/ca.crt"]
    me = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "scheduler",
        "image": deployed.image,
        "command": ["tenure", "serve", "scheduler"],
        "args": [
            *("--certificates", f"{_FILES}/certs"),
            *("--proof-key", f"{_FILES}/keys/proof.key"),
            *("--ledger-key", f"{_FILES}/keys/ledger.key"),
            *args,
        ],
        "env": [ledger, {"name": "POD_NAME", **me}],
        "ports": [{"name": "extender", "containerPort": 8443}],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": 8080}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}},
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        "volumeMounts": mounts,
        "securityContext": LOCKED,
    }
    apart = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {
        **(network if deployed.host_network else {}),
        "serviceAccountName": name,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {"fsGroup": _USER},
        "topologySpreadConstraints": [apart],
        "containers": [container],
        "volumes": volumes,
    }
