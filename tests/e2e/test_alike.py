"""Pods of one template through a real API server: decided once, and each its own."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import HALF, pod, pods_in
from tests.support.kube.webhooks import Webhooks, serving

PODS = 6
ROUNDS = 20
PAUSE_SECONDS = 0.5


@pytest.fixture(scope="module")
def hooks(plane: ControlPlane) -> Iterator[Webhooks]:
    """One replica of the webhook, registered."""
    with serving(plane) as running:
        yield running


def test_the_api_server_writes_alike_what_is_alike(
    hooks: Webhooks, plane: ControlPlane, namespace: Callable[..., str]
) -> None:
    """
    The first Pod is decided, the second shows the template; both hooks remember the others.

    What the hooks know of a namespace may become another while their watches open, so that Pods
    are decided anew: they are made in rounds, of which one must be remembered whole.
    """
    where = pods_in(namespace())
    one = pod("", HALF)
    one["metadata"] = {"generateName": "serve-6d4cf56db6-", "labels": {"app": "serve"}}
    names = set[str]()

    def make() -> None:
        reply = plane.api().create(where, one)
        assert reply.ok, reply.message
        assert reply.body["spec"]["schedulerName"] == "tenure"
        names.add(reply.body["metadata"]["name"])

    for _ in range(ROUNDS):
        before, made = _remembered(hooks), len(names)
        for _ in range(PODS):
            make()
        assert len(names) == made + PODS
        if _remembered(hooks) - before >= 2 * PODS:
            return
        time.sleep(PAUSE_SECONDS)
    pytest.fail(f"Pods alike were decided one by one: rounds={ROUNDS}, pods={PODS} each")


def _remembered(hooks: Webhooks) -> float:
    """Return how many answers of both hooks, reinvocations too, were remembered ones."""
    url = f"http://127.0.0.1:{hooks.replicas[0].backend.probes}/metrics"
    with urllib.request.urlopen(url) as answer:
        shown = answer.read().decode()
    counted = re.search(r"^tenure_admission_remembered_total (\S+)$", shown, re.MULTILINE)
    assert counted is not None, shown
    return float(counted[1])
