"""AdmissionReviews as an API server sends them: Pods out of templates, with all it adds itself."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Final

import jsonpatch

from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.review import decode_review, patch_text
from webhook.decide.settings import DEFAULT_ADMISSION

NAMESPACE: Final = "team-a"
_SYLLABLES: Final = "bcdfghjklmnpqrstvwxz2456789"
_CREDENTIAL: Final = "JTI=0b2f3a54-6f4a-4a0e-9f2b-5d7c1e8a9b60"
_NOT_YET: Final = ("name", "uid", "creationTimestamp")
_SHARES: Final = (
    {"koordinator.sh/gpu": "200"},
    {"koordinator.sh/gpu": "50"},
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"},
    {
        "koordinator.sh/gpu-core": "60",
        "koordinator.sh/gpu-memory-ratio": "60",
        "koordinator.sh/gpu.shared": "1",
    },
)

Json = dict[str, Any]


def same_template(count: int, seed: int = 1) -> list[Json]:
    """Return Pods of one ReplicaSet: names, UIDs, times and the token's volume differ."""
    rng = random.Random(seed)
    template = _template(random.Random(7), 7)
    return [_member(template, "serve-6d4cf56db6", rng) for _ in range(count)]


def all_different(count: int, seed: int = 2) -> list[Json]:
    """Return Pods of which each has a template of its own."""
    rng = random.Random(seed)
    return [_member(_template(rng, number), f"job-{_word(rng, 9)}", rng) for number in range(count)]


def creations(pods: list[Json]) -> list[tuple[str, bytes]]:
    """
    Return (hook, body) of what an API server asks to create the Pods, both hooks in turn.

    While a Pod of a controller is mutated it has a `generateName` only.
    """
    result = []
    rng = random.Random(3)
    for pod in pods:
        metadata = {key: value for key, value in pod["metadata"].items() if key not in _NOT_YET}
        result.append(("mutate", body_of({**pod, "metadata": metadata}, rng)))
        result.append(("validate", body_of(mutated(pod), rng)))
    return result


def mutated(pod: Json) -> Json:
    """Return a Pod as the mutating hook leaves it."""
    request = decode_review(body_of(pod, random.Random(0)))
    patch = mutate_pod(request, DEFAULT_ADMISSION, NamespaceFacts(managed=True)).patch
    after: Json = jsonpatch.apply_patch(pod, patch_text(patch))
    return after


def body_of(pod: Mapping[str, Any], rng: random.Random, **request: object) -> bytes:
    """Return the AdmissionReview of a Pod's creation, as the API server writes it."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    review = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": _uid(rng),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "namespace": NAMESPACE,
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "0b8f6f4e-52a7-4c5e-9d5b-1f4e9d5c7a11",
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:kube-system",
                    "system:authenticated",
                ],
                "extra": {"authentication.kubernetes.io/credential-id": [_CREDENTIAL]},
            },
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **request,
        },
    }
    return json.dumps(review, separators=(",", ":"), ensure_ascii=False).encode()


def _template(rng: random.Random, number: int) -> Json:
    """Return labels, annotations and spec: a container with cards, some sidecars, one init."""
    share = dict(_SHARES[number % len(_SHARES)])
    containers = [_container("main", rng, share)]
    containers += [_container(f"side-{n}", rng, {}) for n in range(1 + rng.randrange(3))]
    return {
        "labels": {
            "app.kubernetes.io/name": _word(rng, 8),
            "app.kubernetes.io/version": f"1.{rng.randrange(40)}.{rng.randrange(9)}",
            "koordinator.sh/qosClass": "LS",
            "team": _word(rng, 6),
            "pod-template-hash": _word(rng, 10),
        },
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(8000 + rng.randrange(1000)),
            "checksum/config": f"{rng.getrandbits(256):064x}",
        },
        "init": [_container("prepare", rng, {})],
        "containers": containers,
    }


def _container(name: str, rng: random.Random, devices: Mapping[str, str]) -> Json:
    usual = {"cpu": f"{1 + rng.randrange(16) * 250}m", "memory": f"{1 + rng.randrange(64)}Gi"}
    env: list[Json] = [
        {"name": f"SETTING_{n}", "value": _word(rng, 12)} for n in range(3 + rng.randrange(6))
    ]
    env.append(
        {
            "name": "POD_IP",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
        }
    )
    return {
        "name": name,
        "image": f"registry.example/{_word(rng, 8)}@sha256:{rng.getrandbits(256):064x}",
        "command": ["/usr/bin/run", f"--model={_word(rng, 10)}", "--port=8080"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": env,
        "resources": {"limits": {**usual, **devices}, "requests": {**usual, **devices}},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _member(template: Json, owner: str, rng: random.Random) -> Json:
    """Return a Pod of a template with what controllers and the API server fill in."""
    token = f"kube-api-access-{_word(rng, 5)}"
    mount = {
        "name": token,
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    init, containers = (
        [{**one, "volumeMounts": [*one["volumeMounts"], mount]} for one in template[key]]
        for key in ("init", "containers")
    )
    owner_uid = "5f2b1a3c-9d5e-4c7f-8a6b-0c1d2e3f4a5b"
    time = f"2026-03-02T10:{rng.randrange(60):02}:{rng.randrange(60):02}Z"
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"{owner}-{_word(rng, 5)}",
            "generateName": f"{owner}-",
            "namespace": NAMESPACE,
            "uid": _uid(rng),
            "creationTimestamp": time,
            "labels": template["labels"],
            "annotations": template["annotations"],
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": owner,
                    "uid": owner_uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_managed_fields(template, owner_uid, time)],
        },
        "spec": {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": token, "projected": {"sources": _TOKEN, "defaultMode": 420}},
            ],
            "initContainers": init,
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{state}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for state in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


_TOKEN: Final = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {
        "configMap": {
            "name": "kube-root-ca.crt",
            "items": [{"key": "ca.crt", "path": "ca.crt"}],
        }
    },
    {
        "downwardAPI": {
            "items": [
                {
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }
            ]
        }
    },
]


def _managed_fields(template: Json, owner_uid: str, time: str) -> Json:
    fields: Json = {
        f"f:{key}": {} for key in ("image", "name", "resources", "command", "env", "ports")
    }
    return {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {
                "f:labels": {".": {}, **{f"f:{key}": {} for key in template["labels"]}},
                "f:annotations": {".": {}, **{f"f:{key}": {} for key in template["annotations"]}},
                "f:ownerReferences": {".": {}, f'k:{{"uid":"{owner_uid}"}}': {}},
            },
            "f:spec": {
                "f:containers": {
                    f'k:{{"name":"{one["name"]}"}}': {".": {}, **fields}
                    for one in template["containers"]
                },
                "f:dnsPolicy": {},
                "f:restartPolicy": {},
                "f:schedulerName": {},
                "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {},
            },
        },
    }


def _word(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(_SYLLABLES, k=length))


def _uid(rng: random.Random) -> str:
    text = f"{rng.getrandbits(128):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
