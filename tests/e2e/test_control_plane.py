"""The harness itself: a real kube-scheduler places a Pod of our profile on a made-up node."""

from __future__ import annotations

import time
from collections.abc import Callable

import yaml

from tests.support.kube.control_plane import ADMIN, ControlPlane
from tests.support.kube.pods import pod, pods_in


def test_a_second_stock_scheduler_serves_only_our_profile(
    plane: ControlPlane, namespace: Callable[..., str]
) -> None:
    """It binds a Pod that names it and leaves the default scheduler's alone."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig(ADMIN))},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "tenure"}],
    }
    path = plane.folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config))
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {"capacity": amounts, "allocatable": amounts}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    api = plane.api()
    assert api.create("/api/v1/nodes", {"metadata": {"name": "made-up"}}).ok
    patch = {"status": {**status, "conditions": [ready]}}
    assert api.patch("/api/v1/nodes/made-up/status", patch).ok
    where = pods_in(namespace(managed=False))
    try:
        assert api.create(where, pod("ours", {"cpu": "1"}, schedulerName="tenure")).ok
        assert api.create(where, pod("theirs", {"cpu": "1"})).ok
        with plane.scheduler(path):
            until = time.monotonic() + 60
            node = None
            while node is None and time.monotonic() < until:
                node = api.get(f"{where}/ours").body["spec"].get("nodeName")
                time.sleep(0.2)
        assert node == "made-up", (plane.folder / "scheduler.log").read_text()[-2_000:]
        assert "nodeName" not in api.get(f"{where}/theirs").body["spec"]
    finally:
        api.delete("/api/v1/nodes/made-up")
