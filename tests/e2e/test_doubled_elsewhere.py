"""The restarts, lags and second names by which other systems gave one device to two Pods."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from ledger.domain.log.events import PodBound, PodReserved
from scheduler.service.freshness import STALE
from tests.support.forked import Point
from tests.support.kube.at_rest import check_at_rest, events_of, given_twice, listed, live, wait
from tests.support.kube.bursts import DIALECTS, remove_pods
from tests.support.kube.control_plane import SCHEDULER_ACCOUNT, ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.meddler import Meddler, meddling
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    issue,
    remove_node,
)
from tests.support.recount import ALLOCATED, held_by_ledger
from tests.support.relay import Relay, relay_to

NODE: Final = "doubled"
TAKEN: Final = "Insufficient"
"""kube-scheduler's word, and ours: it looks at what Pods ask for in sum, we at cards."""
OURS: Final = "Insufficient gpu devices"
LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/tenure-system/leases/tenure-scheduler"
NODE_STATUS: Final = f"/api/v1/nodes/{NODE}/status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One node of one card, a kube-scheduler that asks, and a namespace."""

    plane: ControlPlane
    meddler: Meddler
    identities: Identities
    asked: Relay
    where: str
    ledger: str

    @contextmanager
    def run(
        self,
        *,
        remembered: bool = True,
        point: Point | None = None,
        ready: bool = True,
        replica: str = "tenure-scheduler-0",
        leading: bool = True,
    ) -> Iterator[Served]:
        """Run the service, with the meddler before its API server; whoever leads is asked."""
        reached = f"http://127.0.0.1:{self.meddler.port}"
        with extender(
            self.plane,
            self.ledger,
            self.identities,
            remembered=remembered,
            ready=ready,
            kubeconfig=self.plane.kubeconfig(SCHEDULER_ACCOUNT, reached),
            replica=replica,
            leading=leading,
            forked=True,
            point=point,
        ) as served:
            if leading:
                self.asked.where = served.port
            yield served

    def ask(self, name: str) -> str:
        """Ask for a whole card; return the Pod's UID."""
        asked = pod(name, schedulerName="tenure", **DIALECTS["nvidia"])
        made = self.plane.api().create(self.where, asked)
        assert made.ok, made.message
        return str(made.body["metadata"]["uid"])

    def bound(self) -> set[str]:
        """Return the UIDs of the Pods that have the node; never do two have its card."""
        pods = listed(self.plane, self.where)
        assert not (twice := given_twice(pods)), twice
        return {one["metadata"]["uid"] for one in live(pods)}

    def recorded(self) -> set[str]:
        """Return the UIDs of the Pods that are known to be bound."""
        return {one.pod_uid for one in events_of(self.ledger) if isinstance(one, PodBound)}

    def holders(self) -> set[str]:
        """Return the UIDs of the Pods that hold the card by the ledger."""
        return {uid for uid, _, _ in held_by_ledger(self.ledger)}

    def waits(self, name: str, why: str = TAKEN) -> bool:
        """Tell whether kube-scheduler was told of a Pod why it waits."""
        status = self.plane.api().get(f"{self.where}/{name}").body["status"]
        said = {one["type"]: one.get("message", "") for one in status.get("conditions") or ()}
        return why in said.get("PodScheduled", "")


@pytest.fixture(scope="module")
def around(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Meddler, Identities, Relay]]:
    """What stays over all tests: a meddler, and a kube-scheduler that asks whoever it is led to."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    identities = issue(tmp_path_factory.mktemp("identities"))
    with (
        meddling(plane) as meddler,
        relay_to(free_port()) as asked,
        plane.scheduler(asking(plane, asked, identities, impatient=True)),
    ):
        yield meddler, identities, asked


@pytest.fixture
def scene(
    plane: ControlPlane,
    around: tuple[Meddler, Identities, Relay],
    namespace: Callable[..., str],
    ledger: str,
) -> Iterator[Scene]:
    """A node of one card."""
    meddler, identities, asked = around
    add_gpu_node(plane, NODE, gpus=1)
    where = pods_in(namespace(managed=False))
    yield Scene(
        plane=plane,
        meddler=meddler,
        identities=identities,
        asked=asked,
        where=where,
        ledger=ledger,
    )
    meddler.held = frozenset()
    remove_pods(plane, where, [one["metadata"]["name"] for one in listed(plane, where)])
    remove_node(plane, NODE)


def test_kubelet_restarts_and_its_devices_are_gone_for_a_while(scene: Scene) -> None:
    """
    Kubelet's own device manager gave a running Pod's device again after its restart.

    Kubernetes 102880 (its checkpoint was not read) and 118559 (no device is there until plugins
    have registered again). Nothing is there for a while, and then all of it, with its holder.
    """
    api = scene.plane.api()
    with scene.run(remembered=False) as served:
        first = scene.ask("first")
        wait(lambda: scene.bound() == {first}, served.words)
        there = api.get(f"/api/v1/nodes/{NODE}").body["status"]
        device = api.get(f"{DEVICES}/{NODE}").body
        none = {name: "0" for name in there["capacity"] if "/" in name}
        down = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        gone = {"status": {"capacity": none, "allocatable": none, "conditions": [down]}}
        assert api.patch(NODE_STATUS, gone).ok
        assert api.delete(f"{DEVICES}/{NODE}").ok
        scene.ask("second")
        wait(lambda: scene.waits("second"), served.words)
        assert scene.holders() == {first}
        device["metadata"] = {key: device["metadata"][key] for key in ("name", "labels")}
        assert api.create(DEVICES, device).ok
        assert api.patch(NODE_STATUS, {"status": there}).ok
        scene.ask("third")
        wait(lambda: scene.waits("third"), served.words)
        assert scene.bound() == {first}
        remove_pods(scene.plane, scene.where, ["first"])
        wait(lambda: len(scene.bound()) == 1, served.words)
        check_at_rest(scene.plane, scene.where, scene.ledger, served.words)


@pytest.mark.parametrize("side", ["before", "after"])
def test_the_scheduler_restarts_between_annotating_and_binding(scene: Scene, side: str) -> None:
    """
    A Pod was annotated with its card, and the process ended before it was bound.

    Volcano 5335 and HAMi 987: what stays on the Pod is believed later, or counted for nobody. Here
    the words come with the Binding or not at all, and the ledger knew of both before.
    """
    with scene.run(remembered=False, point=(f"{side}:create pods/binding", 1)) as served:
        first, second = scene.ask("first"), scene.ask("second")
        wait(lambda: served.process.poll() == -signal.SIGKILL, served.words)
    [reserved] = [one for one in events_of(scene.ledger) if isinstance(one, PodReserved)]
    for one in listed(scene.plane, scene.where):
        is_bound = side == "after" and one["metadata"]["uid"] == reserved.pod_uid
        assert bool(one["spec"].get("nodeName")) is is_bound
        assert (ALLOCATED in (one["metadata"].get("annotations") or {})) is is_bound
    with scene.run() as served:
        wait(lambda: len(scene.bound()) == 1, served.words)
        check_at_rest(scene.plane, scene.where, scene.ledger, served.words)
        assert scene.bound() < {first, second}


def test_the_cluster_is_told_late_after_a_restart(scene: Scene) -> None:
    """
    The next leader decided before it had heard what the last one had bound.

    Koordinator 1289, Volcano 5174, Kubernetes 137308. Nothing is granted before all was listed; and
    a Pod that no watch has told of yet holds its card by the ledger.
    """
    with scene.run(remembered=False) as served:
        first = scene.ask("first")
        wait(lambda: scene.recorded() == {first}, served.words)
        served.kill()
    scene.meddler.held = frozenset({"pods"})
    second = scene.ask("second")
    with scene.run(ready=False) as served:
        wait(lambda: f"{STALE}: pods" in served.probe("readyz"), served.words)
        assert not served.leads()
        scene.meddler.held = frozenset()
        served.wait_ready()
        scene.meddler.held = frozenset({"pods"})  # of neither its end nor a third is it told now
        wait(lambda: scene.waits("second"), served.words)
        remove_pods(scene.plane, scene.where, ["first"])
        scene.ask("third")
        wait(lambda: scene.waits("third", OURS) and scene.waits("second", OURS), served.words)
        assert scene.holders() == {first}
        scene.meddler.held = frozenset()
        wait(lambda: len(scene.bound()) == 1, served.words)
        assert first not in scene.bound()
        assert second
        check_at_rest(scene.plane, scene.where, scene.ledger, served.words)


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_the_cluster_is_told_late_after_a_change_of_leader(scene: Scene) -> None:
    """
    Who stood by had not heard of the last Pods that the leader had bound.

    Koordinator 1289, Kubernetes 137308. The ledger's feed tells of them, and no watch has to.
    """
    with (
        scene.run(remembered=False, replica="one") as one,
        scene.run(replica="two", leading=False) as two,
    ):
        scene.meddler.held = frozenset({"pods watch"})
        first = scene.ask("first")
        wait(lambda: scene.recorded() == {first}, one.words)
        one.kill()
        assert scene.plane.api().delete(LEASE).ok  # it would lapse
        scene.asked.where = two.port
        wait(two.leads, two.words)
        second = scene.ask("second")
        wait(lambda: scene.waits("second"), two.words)
        assert scene.holders() == scene.bound() == {first}
        scene.meddler.held = frozenset()
        check_at_rest(scene.plane, scene.where, scene.ledger, two.words)
        remove_pods(scene.plane, scene.where, ["first"])
        wait(lambda: scene.bound() == {second}, two.words)


def test_a_pod_is_deleted_and_made_again_under_its_name(scene: Scene) -> None:
    """
    What was kept by name was the next Pod's, or nobody's any more.

    HAMi 2923: a card stayed with a Pod that was gone. The new one has nothing of the first, whose
    card is given once its end is known; a worker of a StatefulSet comes so.
    """
    with scene.run(remembered=False) as served:
        first = scene.ask("worker-0")
        wait(lambda: scene.bound() == {first}, served.words)
        scene.meddler.held = frozenset({"pods"})
        remove_pods(scene.plane, scene.where, ["worker-0"])
        second = scene.ask("worker-0")
        wait(lambda: scene.waits("worker-0", OURS), served.words)
        assert scene.holders() == {first}
        scene.meddler.held = frozenset()
        wait(lambda: scene.bound() == {second}, served.words)
        served.kill()
    remove_pods(scene.plane, scene.where, ["worker-0"])
    third = scene.ask("worker-0")
    with scene.run() as served:
        wait(lambda: scene.bound() == {third}, served.words)
        check_at_rest(scene.plane, scene.where, scene.ledger, served.words)
        assert scene.holders() == {third}


@pytest.mark.parametrize("is_up", [True, False], ids=["seen", "while the service is down"])
def test_a_node_is_made_again_under_its_name(scene: Scene, *, is_up: bool) -> None:
    """
    Whoever forgot a node forgot who runs there, and gave its cards again when it came back.

    Volcano 4888. The card is the same one by its id, and is held until the machine is cleared.
    """

    def again() -> None:
        remove_node(scene.plane, NODE)
        add_gpu_node(scene.plane, NODE, gpus=1)

    with scene.run(remembered=False) as served:
        first = scene.ask("first")
        wait(lambda: scene.recorded() == {first}, served.words)
        if is_up:
            again()
        else:
            served.kill()
    if not is_up:
        again()
    with scene.run() as served:
        scene.ask("second")
        wait(lambda: scene.waits("second"), served.words)
        assert scene.bound() == {first}
        assert scene.holders() == {first}
