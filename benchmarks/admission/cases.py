"""What both webhooks have to answer alike before either is measured."""

from __future__ import annotations

import base64
import json
import random
import ssl
from copy import deepcopy
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, Final

import jsonpatch

from benchmarks.admission.bodies import Json, all_different, body_of, mutated, same_template
from benchmarks.admission.servers import Server

_AMOUNTS: Final = (
    {"gpu": "1"}, {"gpu": "50"}, {"gpu": "100"}, {"gpu": "101"}, {"gpu": "150"}, {"gpu": "800"},
    {"gpu-core": "50"}, {"gpu-memory-ratio": "30"}, {"gpu-memory": "16Gi"},
    {"gpu-core": "50", "gpu-memory-ratio": "50"}, {"gpu-core": "150", "gpu-memory-ratio": "50"},
    {"gpu-core": "200", "gpu-memory-ratio": "200"}, {"gpu-core": "10", "gpu-memory": "8Gi"},
    {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu.shared": "2"},
    {"gpu-core": "101", "gpu-memory-ratio": "100", "gpu.shared": "2"},
    {"gpu-core": "300", "gpu-memory-ratio": "100", "gpu.shared": "2"},
    {"gpu-memory": "9Gi", "gpu.shared": "3"}, {"gpu-memory": "8Gi", "gpu.shared": "3"},
    {"gpu-memory": "8Gi", "gpu-memory-ratio": "10"}, {"gpu.shared": "2"}, {"gpu.shared": "0"},
    {"gpu": "100", "gpu.shared": "1"}, {"gpu": "0"},
)  # fmt: skip
_FORGED: Final = (
    "scheduling.koordinator.sh/device-allocated",
    "scheduling.koordinator.sh/resource-status",
    "tenure.sh/visible.0",
)


def cases() -> list[tuple[str, Json]]:
    """Return (what it is, Pod): legal and illegal amounts, forgeries, visible devices by hand."""
    base = same_template(1)[0]
    found = [(f"{amounts}", _asking(base, amounts)) for amounts in _AMOUNTS]
    unequal = _asking(base, {"gpu-core": "50", "gpu-memory-ratio": "50"})
    unequal["spec"]["containers"][0]["resources"]["requests"]["koordinator.sh/gpu-core"] = "40"
    found.append(("requests below limits", unequal))
    limits_only = _asking(base, {"gpu": "200"})
    del limits_only["spec"]["containers"][0]["resources"]["requests"]["koordinator.sh/gpu"]
    found.append(("limits alone", limits_only))
    for key in _FORGED:
        forged = deepcopy(base)
        forged["metadata"]["annotations"][key] = "{}"
        found.append((f"forged {key}", forged))
    for value in ("void", "none", "all"):
        by_hand = deepcopy(base)
        entry = {"name": "NVIDIA_VISIBLE_DEVICES", "value": value}
        by_hand["spec"]["containers"][0]["env"].append(entry)
        found.append((f"sees {value}", by_hand))
    placed = deepcopy(base)
    placed["spec"]["nodeName"] = "node-1"
    found.append(("brings its node", placed))
    found.append(("asks for no card", _asking(base, {})))
    found.append(("was here before", mutated(base)))
    return found + [(f"template {n}", pod) for n, pod in enumerate(all_different(20))]


def check_alike(servers: list[Server], authority: Path) -> int:
    """Return how many answers were compared; two that differ end the run with both of them."""
    context = ssl.create_default_context(cafile=str(authority))
    connections = [HTTPSConnection("localhost", one.port, context=context) for one in servers]
    count = 0
    for name, pod in cases():
        for hook in ("mutate", "validate"):
            body = body_of(pod, random.Random(0))
            ours, peers = (_verdict(_asked(one, hook, body), pod) for one in connections)
            assert ours[0] == peers[0], f"{name}, {hook}: ours={ours[0]}, peer={peers[0]}"
            apart = jsonpatch.make_patch(ours[1], peers[1]).patch
            assert not apart, f"{name}, {hook}: the peer's pod differs: {apart}"
            count += 1
    return count


def _asked(connection: HTTPSConnection, hook: str, body: bytes) -> Json:
    connection.request("POST", f"/{hook}?timeout=5s", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, (answer.status, text)
    response: Json = json.loads(text)["response"]
    return response


def _verdict(response: Json, pod: Json) -> tuple[bool, Any]:
    """Return whether it is allowed, and what the Pod becomes."""
    patch = response.get("patch")
    after = pod if patch is None else jsonpatch.apply_patch(pod, base64.b64decode(patch).decode())
    return response["allowed"], after


def _asking(base: Json, amounts: dict[str, str]) -> Json:
    pod = deepcopy(base)
    resources = pod["spec"]["containers"][0]["resources"]
    for section in ("limits", "requests"):
        usual = {key: text for key, text in resources[section].items() if "/" not in key}
        wanted = {f"koordinator.sh/{key}": text for key, text in amounts.items()}
        resources[section] = usual | wanted
    return pod
