"""Pods of one template through a real API server: decided once, and each its own."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import HALF, pod, pods_in
from tests.support.kube.webhooks import Webhooks, serving

PODS = 8


@pytest.fixture(scope="module")
def hooks(plane: ControlPlane) -> Iterator[Webhooks]:
    """One replica of the webhook, registered."""
    with serving(plane) as running:
        yield running


def test_the_api_server_writes_alike_what_is_alike(
    hooks: Webhooks, plane: ControlPlane, namespace: Callable[..., str]
) -> None:
    """The first Pod is decided, the second shows the template; both hooks remember the others."""
    where = pods_in(namespace())
    one = pod("", HALF)
    one["metadata"] = {"generateName": "serve-6d4cf56db6-", "labels": {"app": "serve"}}
    made = [plane.api().create(where, one) for _ in range(PODS)]
    assert all(reply.ok for reply in made), [reply.message for reply in made]
    assert len({reply.body["metadata"]["name"] for reply in made}) == PODS
    assert {reply.body["spec"]["schedulerName"] for reply in made} == {"tenure"}
    url = f"http://127.0.0.1:{hooks.replicas[0].backend.probes}/metrics"
    with urllib.request.urlopen(url) as answer:
        shown = answer.read().decode()
    counted = re.search(r"^tenure_admission_remembered_total (\S+)$", shown, re.MULTILINE)
    assert counted is not None
    hooks_and_reinvocations = float(counted[1]) / (PODS - 2)
    assert hooks_and_reinvocations >= 2, shown
