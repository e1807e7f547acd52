"""Certificates rotate under load, replicas come and go, and no call of the API server fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from certs.record import REQUESTED
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.webhooks import NAMESPACE, serving

PODS = 2_000
ROTATIONS = 5
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/tenure-webhook-certs"


def pod(number: int) -> dict[str, Any]:
    """Return a Pod that every hook looks at."""
    amounts = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts}}
    return {"metadata": {"name": f"pod-{number}"}, "spec": {"containers": [container]}}


def authority(plane: ControlPlane) -> tuple[str, bool]:
    """Return the authority that signs now, and whether a rotation is under way or asked for."""
    secret = plane.api().get(SECRET).body
    annotations = secret["metadata"]["annotations"]
    busy = "other.crt" in secret["data"] or REQUESTED in annotations
    return secret["data"]["authority.crt"], busy


def rotate(plane: ControlPlane) -> None:
    """Ask for a rotation of authority and leaf, and wait until it is over."""
    before, _ = authority(plane)
    asked = plane.api().patch(SECRET, {"metadata": {"annotations": {REQUESTED: "now"}}})
    assert asked.ok, asked.message
    until = time.monotonic() + 120
    while time.monotonic() < until:
        after, busy = authority(plane)
        if after != before and not busy:
            return
        time.sleep(0.2)
    raise AssertionError("the rotation did not end")


def test_no_pod_is_lost_while_everything_rotates(
    plane: ControlPlane, namespace: Callable[..., str]
) -> None:
    """2,000 creations, 5 rotations of authority and leaf, two replicas and one restart."""
    where = f"/api/v1/namespaces/{namespace()}/pods"
    failures: list[str] = []
    finished = threading.Event()
    made = 0

    def create() -> None:
        nonlocal made
        api = plane.api()
        while made < PODS or not finished.is_set():
            made += 1
            reply = api.create(f"{where}?dryRun=All" if made > PODS else where, pod(made))
            if not reply.ok:
                failures.append(reply.message)
            time.sleep(0.005)

    with serving(plane, replicas=2) as hooks:
        creating = threading.Thread(target=create)
        creating.start()
        try:
            authorities = {authority(plane)[0]}
            for number in range(ROTATIONS):
                rotate(plane)
                authorities.add(authority(plane)[0])
                if number == 1:
                    assert hooks.stop(hooks.replicas[0]) == 0
                    hooks.add()
        finally:
            finished.set()
            creating.join(300)
    assert failures == []
    assert made >= PODS
    assert len(authorities) == ROTATIONS + 1
