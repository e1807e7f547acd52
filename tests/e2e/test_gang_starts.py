"""A gang starts whole or gives back, whatever kube-scheduler's own plugins say of its members."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from ledger.domain.log.events import LedgerEvent, PodBound, PodReserved, PodVoided
from ledger.store.open import open_ledger
from scheduler.service.api.words import RESOURCE, ROOT
from scheduler.service.leading import NOT_LEADER
from scheduler.service.permits import DRAINING, WAITS
from scheduler.service.starts import ELSEWHERE
from tests.support.forked import Point
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ADMIN, ControlPlane, Program, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.parties import GANG, HOST, apart, spread
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.preempting import HIGH, LOW, make_classes
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.service_api import Service
from tests.support.process import tenure

_E = TypeVar("_E", bound=LedgerEvent)
CARDS: Final = 4
SOON_SECONDS: Final = 12.0
"""Less than a gang's first call waits."""


def beside(anchor: str) -> dict[str, Any]:
    """Return what keeps a Pod waiting until there is one with this label on its node."""
    term = {"labelSelector": {"matchLabels": {"anchor": anchor}}, "topologyKey": HOST}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAffinity": required}}


@dataclass(slots=True, kw_only=True)
class Scene:
    """A service, a kube-scheduler that asks it, and nodes of four cards."""

    plane: ControlPlane
    where: str
    served: Served
    scheduler: Program
    identities: Identities
    url: str
    service: Service | None = None
    nodes: list[str] = field(default_factory=list)

    def add_nodes(self, *names: str) -> None:
        """Let nodes come."""
        for name in names:
            add_gpu_node(self.plane, name, gpus=CARDS)
            self.nodes.append(name)

    def create(self, name: str, cards: int, **more: Any) -> None:  # noqa: ANN401 - a Pod's fields
        """Let a Pod come."""
        one = pod(name, {"nvidia.com/gpu": str(cards)}, schedulerName="tenure", **more)
        made = self.plane.api().create(self.where, one)
        assert made.ok, made.message

    def gang(
        self,
        name: str,
        count: int,
        cards: int = 1,
        *,
        wait: str = "600s",
        **spec: Any,  # noqa: ANN401 - a Pod's fields
    ) -> None:
        """Let a gang come of which all start together."""
        self.members(name, cards, [spec] * count, wait=wait)

    def members(
        self,
        name: str,
        cards: int,
        specs: Sequence[dict[str, Any]],
        *,
        wait: str = "600s",
        first: int = 0,
        least: int = 0,
    ) -> None:
        """Let members of a gang come, each with these fields."""
        about = {"name": name, "min-available": str(least or len(specs)), "waiting-time": wait}
        for number, spec in enumerate(specs, start=first):
            self.create(
                f"{name}-{number}",
                cards,
                labels={"job": name},
                annotations={f"{GANG}/{key}": value for key, value in about.items()},
                schedulingGates=[{"name": "tenure.sh/gang"}],
                **spec,
            )

    def anchor(self, name: str, node: str) -> None:
        """Let a Pod run on a node that others want to be beside."""
        one = pod(f"anchor-{name}", {"cpu": "10m"}, labels={"anchor": name}, nodeName=node)
        made = self.plane.api().create(self.where, one)
        assert made.ok, made.message

    def pods(self, prefix: str) -> list[dict[str, Any]]:
        """Return the Pods whose names begin so."""
        found = self.plane.api().get(self.where).body["items"]
        return [one for one in found if one["metadata"]["name"].startswith(prefix)]

    def hosts(self, prefix: str) -> list[str]:
        """Return the nodes of those that are bound."""
        nodes = (one["spec"].get("nodeName") for one in self.pods(prefix))
        return sorted(node for node in nodes if node)

    def all_bound(self, prefix: str, seconds: float = 60.0) -> list[str]:
        """Return the nodes of Pods once all of them are bound; never only some for long."""
        until = time.monotonic() + seconds
        while len(found := self.hosts(prefix)) < len(self.pods(prefix)):
            assert time.monotonic() < until, (found, self.served.words())
            time.sleep(0.05)
        return found

    def refused(self, prefix: str, words: str) -> bool:
        """Tell whether kube-scheduler was told these words about one of the Pods."""
        conditions = [
            each.get("message") or ""
            for one in self.pods(prefix)
            for each in (one.get("status") or {}).get("conditions") or ()
        ]
        return any(words in each for each in conditions)

    def waits(self) -> int:
        """Return how many bind calls wait."""
        return self.metric('tenure_scheduler_view{what="gang_binds"}')

    def metric(self, key: str) -> int:
        """Return what a metric says, 0 of one that is not there."""
        lines = self.served.probe("metrics").splitlines()
        return sum(int(float(one.split()[-1])) for one in lines if one.startswith(key))

    def why(self, name: str) -> dict[str, Any]:
        """Ask the service why a Pod waits."""
        assert self.service is not None
        namespace = self.where.split("/")[4]
        path = f"{ROOT}/{RESOURCE}/why?name={namespace}/{name}&output=json"
        status, said = self.service.call(path, self.plane.tokens[ADMIN])
        assert status in {200, 400}, said
        return said

    def events(self, reason: str) -> set[str]:
        """Return what Events with a reason say."""
        found = self.plane.api().get(self.where.replace("/pods", "/events")).body["items"]
        return {str(one["message"]) for one in found if one["reason"] == reason}

    def recorded(self) -> list[LedgerEvent]:
        """Return all events."""
        with open_ledger(self.url, mode="read") as ledger:
            return [one.event for one in ledger.read_events()]


@pytest.fixture
def scene(
    plane: ControlPlane, namespace: Callable[..., str], identities: Identities, tmp_path: Path
) -> Iterator[Scene]:
    """A live service and a stock kube-scheduler; the ledger is proved, and decided again."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    url = f"sqlite:///{tmp_path / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    where, port = pods_in(namespace(managed=False)), free_port()
    service = Service(port=port, authority=identities.server / "ca.crt")
    with (
        extender(plane, url, identities, api=port, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)) as program,
    ):
        one = Scene(
            plane=plane,
            where=where,
            served=served,
            scheduler=program,
            identities=identities,
            url=url,
            service=service,
        )
        yield one
        end(one)
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", url, cwd=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def of_kind(one: Scene, kind: type[_E]) -> list[_E]:
    """Return the recorded events of a type."""
    return [each for each in one.recorded() if isinstance(each, kind)]


def end(one: Scene) -> None:
    """Remove Pods and nodes."""
    remove_pods(one.plane, one.where, [each["metadata"]["name"] for each in one.pods("")])
    for name in one.nodes:
        remove_node(one.plane, name)


def test_a_pair_that_must_be_apart_leaves_a_single_host_and_starts_on_two(scene: Scene) -> None:
    """None of it is bound, its cards go to others, and it is woken once it has a plan again."""
    scene.add_nodes("starts-1")
    scene.gang("pair", 2, 2, wait="4s", **apart("pair"))
    eventually(lambda: scene.refused("pair", "the gang is not begun: 1 of 2 members came in time"))
    assert not scene.hosts("pair")
    scene.create("other", CARDS)
    scene.all_bound("other")
    scene.add_nodes("starts-2", "starts-3")
    assert scene.all_bound("pair") == ["starts-2", "starts-3"]


def test_workers_that_are_spread_start_on_as_many_hosts_as_they_need(scene: Scene) -> None:
    """On two hosts at once; with one of two cordoned nobody is bound before it takes Pods again."""
    scene.add_nodes("spread-1", "spread-2")
    scene.gang("first", 4, **spread("first"))
    assert Counter(scene.all_bound("first", SOON_SECONDS)) == {"spread-1": 2, "spread-2": 2}
    remove_pods(scene.plane, scene.where, [f"first-{number}" for number in range(4)])
    cordon = {"spec": {"unschedulable": True}}
    assert scene.plane.api().patch("/api/v1/nodes/spread-2", cordon).ok
    scene.gang("second", 4, wait="4s", **spread("second"))
    eventually(lambda: scene.refused("second", "the gang is not begun"))
    assert not scene.hosts("second")
    cordon["spec"]["unschedulable"] = False
    assert scene.plane.api().patch("/api/v1/nodes/spread-2", cordon).ok
    assert Counter(scene.all_bound("second")) == {"spread-1": 2, "spread-2": 2}


def test_a_member_that_is_deleted_while_it_waits_gives_its_room_back_at_once(scene: Scene) -> None:
    """Long before the deadline; nobody is bound in its place."""
    scene.add_nodes("deleted-1")
    scene.gang("pair", 2, 2, **apart("pair"))
    eventually(scene.waits)
    begun = time.monotonic()
    for one in scene.pods("pair"):
        remove_pods(scene.plane, scene.where, [one["metadata"]["name"]])
        assert not scene.hosts("pair")
    scene.create("other", CARDS)
    scene.all_bound("other", SOON_SECONDS)
    assert time.monotonic() - begun < SOON_SECONDS


def test_of_two_gangs_with_room_for_one_the_other_starts_after_it(scene: Scene) -> None:
    """Neither waits with a part of the room."""
    scene.add_nodes("room-1")
    for name in ("one", "two"):
        scene.gang(name, 2, 2)
    eventually(lambda: len(scene.hosts("")) == 2)
    first, second = sorted(("one", "two"), key=lambda name: -len(scene.hosts(name)))
    assert [len(scene.hosts(name)) for name in (first, second)] == [2, 0]
    remove_pods(scene.plane, scene.where, [f"{first}-0", f"{first}-1"])
    scene.all_bound(second)


def test_a_kube_scheduler_that_is_killed_binds_nobody(scene: Scene) -> None:
    """Its calls are void at once. The next one begins the gang, once there is room."""
    scene.add_nodes("killed-1")
    scene.gang("pair", 2, 2, **apart("pair"))
    eventually(scene.waits)
    scene.scheduler.kill()
    eventually(lambda: not scene.waits())
    scene.add_nodes("killed-2")
    scene.scheduler.start()
    assert scene.all_bound("pair") == ["killed-1", "killed-2"]


def test_a_second_kube_scheduler_takes_the_calls_of_one_that_stands_still(scene: Scene) -> None:
    """The newer call for a Pod counts; the old one's caller finds its Pod bound when it wakes."""
    scene.add_nodes("callers-1")
    scene.members("pair", 1, [{}, beside("callers")])
    eventually(scene.waits)
    with scene.scheduler.frozen():
        config = asking(scene.plane, scene.served, scene.identities)
        with scene.plane.scheduler(config, name="second"):
            eventually(lambda: scene.metric('tenure_gang_binds_total{what="rejected"}'))
            assert not scene.hosts("pair")
            assert not scene.refused("pair", "the gang is not begun")
            scene.anchor("callers", "callers-1")
            assert scene.all_bound("pair") == ["callers-1"] * 2
    reserved = of_kind(scene, PodReserved)
    scene.create("other", 1)  # the first one schedules again
    scene.all_bound("other")
    assert scene.hosts("pair") == ["callers-1"] * 2
    assert [each.attempt for each in reserved] == [1, 1]
    assert len(of_kind(scene, PodReserved)) == len(reserved) + 1


def test_who_loses_the_lead_answers_all_who_wait_and_begins_the_gang_later(scene: Scene) -> None:
    """Until then an Event, `why` and a metric say for whom the Pod waits, and until when."""
    scene.add_nodes("lead-1")
    scene.members("pair", 1, [{}, beside("lead")])
    eventually(scene.waits)
    words = "held: 1 of 2 members have come, until "
    eventually(lambda: any(each.startswith(words) for each in scene.events(WAITS)))
    record = scene.why("pair-0")
    assert record["message"].startswith(words), record
    assert (record["state"], scene.waits()) == ("waiting", 1)
    lease = "/apis/coordination.k8s.io/v1/namespaces/tenure-system/leases/tenure-scheduler"
    assert scene.plane.api().patch(lease, {"spec": {"holderIdentity": "somebody"}}).ok
    eventually(lambda: scene.refused("pair-0", NOT_LEADER))
    assert not scene.waits()
    assert not scene.hosts("pair")
    scene.anchor("lead", "lead-1")
    scene.all_bound("pair")
    assert [each.attempt for each in of_kind(scene, PodReserved)] == [1, 1]


def test_who_is_stopped_answers_all_who_wait_and_the_next_one_begins_the_gang(
    scene: Scene,
) -> None:
    """kube-scheduler is told why, and its Pods come again."""
    scene.add_nodes("drained-1")
    scene.members("pair", 1, [{}, beside("drained")])
    eventually(scene.waits)
    scene.served.process.terminate()
    eventually(lambda: scene.refused("pair-0", DRAINING))
    scene.served.process.wait(30)
    assert not scene.hosts("pair")
    scene.anchor("drained", "drained-1")
    with extender(
        scene.plane,
        scene.url,
        scene.identities,
        port=scene.served.port,
        remembered=True,
        forked=True,
    ) as again:
        scene.served = again
        scene.all_bound("pair")
        end(scene)


def test_a_member_that_waits_is_no_victim_of_a_preemption(scene: Scene) -> None:
    """The higher Pod waits until the attempt is over; nobody is deleted for a room not held."""
    make_classes(scene.plane)
    scene.add_nodes("victim-1")
    low, high = ({"priorityClassName": each} for each in (LOW, HIGH))
    scene.members("pair", 2, [low, {**low, **beside("victim")}], wait="12s")
    eventually(scene.waits)
    there = {each["metadata"]["uid"] for each in scene.pods("pair")}
    spared = 'tenure_preempt_answers_total{what="no victims"}'
    before = scene.metric(spared)
    scene.create("high", CARDS, **high)
    eventually(lambda: scene.metric(spared) > before)
    assert scene.waits()
    scene.all_bound("high")
    left = [each["metadata"] for each in scene.pods("pair")]
    assert {each["uid"] for each in left} == there
    assert not any("deletionTimestamp" in each for each in left)
    assert not scene.hosts("pair")


def test_a_node_that_is_cordoned_while_a_member_waits_ends_the_attempt(scene: Scene) -> None:
    """Long before the deadline; the gang begins once the node takes Pods."""
    scene.add_nodes("again-1", "again-2")
    here, there = ({"nodeSelector": {HOST: each}} for each in scene.nodes)
    scene.members("pair", CARDS, [here, {**there, **beside("again")}])
    eventually(scene.waits)
    node = "/api/v1/nodes/again-1"
    assert scene.plane.api().patch(node, {"spec": {"unschedulable": True}}).ok
    eventually(lambda: scene.refused("pair-0", f"the gang is not begun: {ELSEWHERE}"))
    scene.anchor("again", "again-2")
    assert not scene.hosts("pair")
    assert scene.plane.api().patch(node, {"spec": {"unschedulable": False}}).ok
    assert scene.all_bound("pair") == scene.nodes


def test_members_with_volumes_and_those_beyond_the_least_wait_for_nobody(scene: Scene) -> None:
    """kube-scheduler may give a volume before it asks for the bind: such a gang starts in part."""
    scene.add_nodes("parts-1", "parts-2")
    api, claims = scene.plane.api(), scene.where.replace("/pods", "/persistentvolumeclaims")
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    namespace = scene.where.split("/")[4]
    volume = {
        "metadata": {"name": f"of-{namespace}"},
        "spec": {
            "capacity": size,
            "accessModes": modes,
            "hostPath": {"path": "/data"},
            "claimRef": {"namespace": namespace, "name": "data"},
        },
    }
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    claim = {
        "metadata": {"name": "data", "annotations": bound},
        "spec": {
            "accessModes": modes,
            "resources": {"requests": size},
            "storageClassName": "",
            "volumeName": f"of-{namespace}",
        },
    }
    for path, body in (("/api/v1/persistentvolumes", volume), (claims, claim)):
        made = api.create(path, body)
        assert made.ok, made.message
    for path, name in (("/api/v1/persistentvolumes", f"of-{namespace}"), (claims, "data")):
        assert api.patch(f"{path}/{name}/status", {"status": {"phase": "Bound"}}).ok
    mounts = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    scene.members("data", 1, [mounts, {**mounts, **beside("parts")}])
    eventually(lambda: len(scene.hosts("data")) == 1)
    assert not scene.waits()
    scene.gang("plain", 2)
    scene.all_bound("plain", SOON_SECONDS)
    scene.members("plain", 1, [{}], first=2, least=2)
    eventually(lambda: len(scene.pods("plain")) == 3)
    scene.all_bound("plain", SOON_SECONDS)


@pytest.mark.parametrize("bindings", [2])
def test_a_service_that_is_killed_between_bindings_goes_on_with_the_others(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
    bindings: int,
) -> None:
    """The ledger knows that the gang was begun: whoever comes late is bound at once."""
    url, port = f"sqlite:///{tmp_path / 'live.db'}", free_port()
    assert tenure("ledger", "init", "--ledger", url, cwd=tmp_path).returncode == 0
    where = pods_in(namespace(managed=False))
    point: Point = ("before:create pods/binding", bindings)
    with (
        extender(
            plane, url, identities, port=port, ready=False, forked=True, point=point
        ) as served,
        plane.scheduler(asking(plane, served, identities)) as program,
    ):
        one = Scene(
            plane=plane,
            where=where,
            served=served,
            scheduler=program,
            identities=identities,
            url=url,
        )
        one.add_nodes("between-1")
        one.gang("four", 4)
        eventually(lambda: served.process.poll() is not None)
        assert served.process.returncode == -signal.SIGKILL, served.words()
        early = {each["metadata"]["uid"] for each in one.pods("four") if "nodeName" in each["spec"]}
        assert len(early) < CARDS
        with extender(plane, url, identities, port=port, remembered=True, forked=True) as again:
            one.served = again
            one.all_bound("four")
            eventually(lambda: len(of_kind(one, PodBound)) == CARDS)
            reserved, voided = of_kind(one, PodReserved), of_kind(one, PodVoided)
            attempts = Counter(each.pod_uid for each in reserved)
            late = {each.pod_uid for each in voided}
            assert len(late) == len(voided) == len(reserved) - CARDS
            assert not late & early, "who was bound by the API keeps its first reservation"
            assert late == {uid for uid, count in attempts.items() if count == 2}
            assert {each.node_name for each in reserved} == {"between-1"}
            end(one)
