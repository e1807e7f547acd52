"""What admission looks up: asked once for a burst, never for longer than seconds, never a guess."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from certs.ports import Object
from ledger.domain.quantity import parse_quantity
from ledger.domain.resources import NVIDIA_GPU
from tenure.kube.lookups import (
    ATTEMPTS,
    OUTDATED_SECONDS,
    REMEMBERED_SECONDS,
    KubeLookups,
    KubeWatches,
)
from tests.support.certs import MemoryObjects, fail_with
from tests.support.watches import ScriptedWatch
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
        self.failures = 0
        self.slow = asyncio.Event()
        self.slow.set()
        self.watch = ScriptedWatch()
        self.watches = KubeWatches(self.watch, lambda: self.now)
        self.lookups = self.new_lookups()

    def new_lookups(self) -> KubeLookups:
        """Return look-ups that have asked nothing yet."""
        return KubeLookups(self.objects, self.metrics, lambda: self.now, self.watches)

    async def _before(self, _: str, path: str) -> None:
        self.asked[path] += 1
        await self.slow.wait()
        self.failures -= 1
        if self.failing or self.failures >= 0:
            raise fail_with("away")

    def namespace(self, labels: dict[str, str]) -> None:
        """Set the labels of the one namespace."""
        self.objects.objects["/api/v1/namespaces/ml"] = {"metadata": {"labels": labels}}

    def counted(self, outcome: str) -> float:
        """Return how many look-ups of namespaces ended so."""
        labels = {"object": "namespace", "outcome": outcome}
        name = "tenure_admission_lookups_total"
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def managed(name: str) -> Object:
    """Return a managed namespace as a watch tells it."""
    return {"metadata": {"name": name, "resourceVersion": "1", "labels": MANAGED}}


@asynccontextmanager
async def watching(cluster: Cluster, *there: Object) -> AsyncIterator[None]:
    """Watch these objects until the block ends."""
    for one in there:
        kind = "resourcequotas" if "spec" in one else "namespaces"
        cluster.watch.listed.setdefault(f"/api/v1/{kind}", []).append(one)
    following = [
        asyncio.create_task(watched.reflector.follow())
        for watched in (cluster.watches.namespaces, cluster.watches.quotas)
    ]
    await cluster.watch.told()
    try:
        yield
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


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
    """Asked again a few times, together; who asks next may be luckier."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace(MANAGED)
        cluster.failing = True
        asked = (cluster.lookups.namespace_labels("ml") for _ in range(3))
        failures = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, LookupFailedError) for one in failures)
        cluster.failing = False
        assert await cluster.lookups.namespace_labels("ml") == MANAGED
        assert (cluster.counted("failed"), cluster.counted("answered")) == (ATTEMPTS, 1.0)

    asyncio.run(run())


@pytest.mark.parametrize("failures", range(1, ATTEMPTS))
def test_a_look_up_that_fails_fails_nobody_who_shares_it(failures: int) -> None:
    """Of 300 Pods at once in a new namespace, one slow look-up is no reason to refuse 300."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace(MANAGED)
        cluster.failures = failures
        asked = (cluster.lookups.namespace_labels("ml") for _ in range(300))
        assert await asyncio.gather(*asked) == [MANAGED] * 300
        assert cluster.asked == {"/api/v1/namespaces/ml": failures + 1}

    asyncio.run(run())


def test_what_was_known_is_taken_while_the_api_fails_and_not_for_ever() -> None:
    """Labels of a managed namespace, minutes old at most, and counted as such."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace(MANAGED)
        assert await cluster.lookups.namespace_labels("ml") == MANAGED
        cluster.failing = True
        cluster.now += REMEMBERED_SECONDS
        assert await cluster.lookups.namespace_labels("ml") == MANAGED
        assert cluster.counted("outdated") == 1.0
        cluster.now += OUTDATED_SECONDS
        with pytest.raises(LookupFailedError):
            await cluster.lookups.namespace_labels("ml")

    asyncio.run(run())


def test_a_watch_answers_for_managed_namespaces_and_quotas() -> None:
    """Nothing is asked while it is open; one that is not managed is read all the same."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace({})
        quota = {
            "metadata": {"name": "q", "namespace": "ml", "resourceVersion": "2"},
            "spec": {"hard": {"cpu": "1"}},
        }
        async with watching(cluster, managed("ml"), quota):
            assert await cluster.lookups.namespace_labels("ml") == MANAGED
            (found,) = await cluster.lookups.quotas("ml")
            assert found.name == "q"
            assert await cluster.lookups.quotas("other") == ()
            assert not cluster.asked
            assert await cluster.lookups.namespace_labels("new") == {}
            assert cluster.asked == {"/api/v1/namespaces/new": 1}
            quota["spec"] = {"hard": {"cpu": "four"}}
            quota["metadata"] = {"name": "q", "namespace": "ml", "resourceVersion": "3"}
            cluster.watch.tell("/api/v1/resourcequotas", "MODIFIED", quota)
            await cluster.watch.told()
            with pytest.raises(LookupFailedError):
                await cluster.lookups.quotas("ml")

    asyncio.run(run())


def test_a_watch_that_broke_off_is_asked_past_and_believed_at_last() -> None:
    """First the API, then what the watch said; and never that a namespace is not managed."""

    async def run() -> None:
        cluster = Cluster()
        cluster.namespace({**MANAGED, "team": "b"})
        unmanaged = {"metadata": {"name": "other", "resourceVersion": "1"}}
        async with watching(cluster, managed("ml"), unmanaged):
            cluster.watch.fail()
            await cluster.watch.told()
            assert (await cluster.lookups.namespace_labels("ml"))["team"] == "b"
            cluster.now += REMEMBERED_SECONDS
            cluster.failing = True
            cluster.lookups = cluster.new_lookups()
            assert await cluster.lookups.namespace_labels("ml") == MANAGED
            assert await cluster.lookups.quotas("ml") == ()
            with pytest.raises(LookupFailedError):
                await cluster.lookups.namespace_labels("other")
            cluster.now += OUTDATED_SECONDS
            with pytest.raises(LookupFailedError):
                await cluster.lookups.namespace_labels("ml")

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
