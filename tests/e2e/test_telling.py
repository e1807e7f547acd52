"""A real API server takes what Tenure tells people, with the rights of the scheduler's account."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scheduler.service.telling import AGAIN_SECONDS, Telling, about_node, about_pod
from tenure.kube.objects import connected
from tests.support.kube.control_plane import SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.webhooks import apply
from tests.support.live import StillClock
from tests.support.manifests import printed_scheduler

NODE = "told-of"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def events_about(plane: ControlPlane, namespace: str, uid: str) -> list[dict[str, Any]]:
    """Return what `kubectl describe` shows."""
    found = plane.api().get(f"/api/v1/namespaces/{namespace}/events").body["items"]
    return [one for one in found if one["involvedObject"].get("uid") == uid]


def test_events_about_pods_and_nodes_are_taken_and_counted_on(
    plane: ControlPlane, namespace: Callable[..., str]
) -> None:
    """One each, and what is said again is a series."""
    team, api = namespace(managed=False), plane.api()
    rights = [one for one in printed_scheduler() if one["kind"] in RIGHTS]
    apply(plane, rights)
    made = api.create(pods_in(team), pod("waits", amounts={}, schedulerName="nobody"))
    assert made.ok, made.message
    node = api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    assert node.ok, node.message
    subjects = (
        about_pod(team, "waits", made.body["metadata"]["uid"]),
        about_node(NODE, node.body["metadata"]["uid"]),
    )

    async def run() -> None:
        clock = StillClock()
        async with connected(str(plane.kubeconfig(SCHEDULER_ACCOUNT))) as objects:
            telling = Telling(api=objects, clock=clock, reporter="scheduler/test")
            for _ in range(3):
                for subject in subjects:
                    telling.tell(subject, "Waits", "ü" * 2_000, action="Scheduling")
                await telling.send()
                clock.now += AGAIN_SECONDS
            assert telling.counts == {"written": 2, "repeated": 4}

    asyncio.run(run())
    for subject, where in zip(subjects, (team, "default"), strict=True):
        [event] = events_about(plane, where, subject.uid)
        assert event["series"]["count"] == 3
        assert (event["type"], event["reason"]) == ("Warning", "Waits")
    api.delete(f"{pods_in(team)}/waits")
    api.delete(f"/api/v1/nodes/{NODE}")
