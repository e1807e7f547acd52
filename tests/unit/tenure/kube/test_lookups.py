"""What admission looks up: asked once for a burst, never for longer than seconds, never a guess."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ledger.domain.quantity import parse_quantity
from ledger.domain.resources import NVIDIA_GPU
from tenure.kube.lookups import REMEMBERED_SECONDS, KubeLookups
from tests.support.certs import MemoryObjects, fail_with
from webhook.decide.facts import QuotaFact
from webhook.server.metrics import Metrics
from webhook.server.ports import LookupFailedError

MANAGED = {"tenure.sh/managed": "true"}


class Cluster:
    """One API in memory, with a clock and a count of what was asked."""

    def __init__(self) -> None:
        self.objects = MemoryObjects(before=self._before)
        self.metrics = Metrics()
        self.now = 0.0
        self.asked: Counter[str] = Counter()
        self.failing = False
        self.slow = asyncio.Event()
        self.slow.set()
        self.lookups = KubeLookups(self.objects, self.metrics, lambda: self.now)

    async def _before(self, _: str, path: str) -> None:
        self.asked[path] += 1
        await self.slow.wait()
        if self.failing:
            raise fail_with("away")

    def namespace(self, labels: dict[str, str]) -> None:
        """Set the labels of the one namespace."""
        self.objects.objects["/api/v1/namespaces/ml"] = {"metadata": {"labels": labels}}

    def counted(self, outcome: str) -> float:
        """Return how many look-ups of namespaces ended so."""
        labels = {"object": "namespace", "outcome": outcome}
        name = "tenure_admission_lookups_total"
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def test_a_managed_namespace_is_remembered_for_seconds() -> None:
    """Within them its labels are as old as that, after them they are read anew."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace(MANAGED)
        assert await cluster.lookups.namespace_labels("ml") == MANAGED
        cluster.namespace({**MANAGED, "team": "a"})
        cluster.now += REMEMBERED_SECONDS - 0.1
        assert await cluster.lookups.namespace_labels("ml") == MANAGED
        cluster.now += 0.2
        assert (await cluster.lookups.namespace_labels("ml"))["team"] == "a"
        assert cluster.counted("answered") == 2.0

    asyncio.run(run())


def test_a_namespace_that_is_labelled_now_is_managed_now() -> None:
    """Else a Pod that comes a second later would go in unmarked."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace({})
        assert await cluster.lookups.namespace_labels("ml") == {}
        cluster.namespace(MANAGED)
        assert await cluster.lookups.namespace_labels("ml") == MANAGED

    asyncio.run(run())


def test_a_burst_asks_once_and_nobody_takes_the_answer_away() -> None:
    """Of many that wait, one that gives up leaves the others their answer."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace(MANAGED)
        cluster.slow.clear()
        waiting = [asyncio.create_task(cluster.lookups.namespace_labels("ml")) for _ in range(50)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        cluster.slow.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert answers[1:] == [MANAGED] * 49
        assert cluster.asked == {"/api/v1/namespaces/ml": 1}

    asyncio.run(run())


def test_a_failure_is_told_to_all_and_not_remembered() -> None:
    """Who asks next may be luckier."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace(MANAGED)
        cluster.failing = True
        asked = (cluster.lookups.namespace_labels("ml") for _ in range(3))
        failures = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, LookupFailedError) for one in failures)
        cluster.failing = False
        assert await cluster.lookups.namespace_labels("ml") == MANAGED
        assert (cluster.counted("failed"), cluster.counted("answered")) == (1.0, 1.0)

    asyncio.run(run())


def test_quotas_are_read_as_amounts() -> None:
    """One that can't be read is a failed look-up, never a quota that counts nothing."""

    async def run() -> None:
        cluster = Cluster()
        path = "/api/v1/namespaces/ml/resourcequotas"
        item = {"metadata": {"name": "q"}, "spec": {"hard": {f"requests.{NVIDIA_GPU}": "4"}}}
        cluster.objects.objects[path] = {"items": [item]}
        hard = {f"requests.{NVIDIA_GPU}": parse_quantity("4")}
        assert await cluster.lookups.quotas("ml") == (QuotaFact(name="q", hard=hard),)
        cluster.now += REMEMBERED_SECONDS
        item["spec"] = {"hard": {NVIDIA_GPU: "four"}}
        with pytest.raises(LookupFailedError):
            await cluster.lookups.quotas("ml")

    asyncio.run(run())


def test_a_pod_is_read_anew_each_time() -> None:
    """What it says decides whether a Binding is foreign."""

    async def run() -> None:
        cluster = Cluster()
        path = "/api/v1/namespaces/ml/pods/train"
        assert await cluster.lookups.pod("ml", "train") is None
        cluster.objects.objects[path] = {"metadata": {"name": "train"}}
        assert await cluster.lookups.pod("ml", "train") == {"metadata": {"name": "train"}}
        assert cluster.asked[path] == 2

    asyncio.run(run())


@pytest.mark.parametrize("name", ["..", "a/b", "a%2Fb", "A", "", "a?x=1", "a\n", "x" * 300])
def test_a_name_that_is_none_is_never_asked_for(name: str) -> None:
    """Whoever calls the webhook does not choose the paths that we read."""

    async def run() -> None:
        cluster = Cluster()
        assert await cluster.lookups.namespace_labels(name) == {}
        assert await cluster.lookups.quotas(name) == ()
        assert await cluster.lookups.pod("ml", name) is None
        assert await cluster.lookups.pod(name, "train") is None
        assert not cluster.asked

    asyncio.run(run())
