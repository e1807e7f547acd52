"""What an agent reports, on a real API server: server-side apply and whoever else writes there."""

from __future__ import annotations

import asyncio
import copy
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pynvml
import pytest
import yaml

from agent.decide.node_cpus import KubeletManagers
from agent.decide.node_holdings import HeldByPod
from agent.discover.faults import CardFault, Faults, marked, recovered
from agent.discover.machine import Card, Discovery, Fault
from agent.report.condition import LOOK_SECONDS, Condition, NodeCondition
from agent.report.reporter import DEVICES, Reported, path_of_topology
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.kube.nrt_objects import read_topology
from ledger.domain.quantity import quantity_of
from tenure.kube.objects import connected
from tests.e2e.test_scheduler import is_refused, node_of
from tests.support.found_cpus import found_cpus, holding, pod_here
from tests.support.kube.binaries import programs
from tests.support.kube.bursts import DIALECTS, eventually, remove_pods
from tests.support.kube.control_plane import ADMIN, ControlPlane, control_plane, free_port
from tests.support.kube.inventory import TOPOLOGIES
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.reporting import NOW, Agent, as_kubelet, device, quantities
from tests.support.kube.schedulers import Identities, asking, extender
from tests.support.machines_found import TWO_CARDS, write_machine
from tests.support.nvml.driver import GIB, TABLE, Driver, shim
from tests.support.process import COMMAND, environment, tenure
from tests.support.proofs import held_by_pod
from tests.support.topologies import MACHINE_X

NODES: Final = "/api/v1/nodes"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY: Final = "application/apply-patch+yaml"
CARD: Final = TWO_CARDS.cards[0]
OWNED: Final = {"tenure.sh/owned": "true"}
LATER: Final = "2026-01-02T00:00:00Z"


def define(plane: ControlPlane, folder: Path, *, topologies: bool) -> None:
    """Apply what `tenure manifests crds` prints, or that without what Koordinator's kind lacks."""
    printed = tenure("manifests", "crds", cwd=folder)
    assert printed.returncode == 0, printed.stderr
    for definition in yaml.safe_load_all(printed.stdout):
        if definition["spec"]["names"]["kind"] == "Device" and not topologies:
            (version,) = definition["spec"]["versions"]
            del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
                "topologies"
            ]
        path = f"{DEFINITIONS}/{definition['metadata']['name']}?fieldManager=kubectl&force=true"
        made = plane.api().call("PATCH", path, definition, APPLY)
        assert made.ok, made.message


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server whose kinds are those that we print."""
    with control_plane(tmp_path_factory.mktemp("own"), programs()) as running:
        define(running, running.folder, topologies=True)
        for path in (DEVICES, TOPOLOGIES, TOPOLOGIES.replace("v1alpha1", "v1alpha2")):
            until = time.monotonic() + 60
            while not running.api().get(path).ok:
                assert time.monotonic() < until, f"the kind is not served: path={path}"
                time.sleep(0.1)
        yield running


_names: Final = iter(f"reported-{number}" for number in range(100))


@pytest.fixture
def node(own: ControlPlane) -> Iterator[str]:
    """A Node that is ours, as its kubelet makes it."""
    name = next(_names)
    made = own.api().create("/api/v1/nodes", {"metadata": {"name": name, "labels": OWNED}})
    assert made.ok, made.message
    status = {"capacity": {"cpu": "8", "memory": "64Gi"}, "allocatable": {"cpu": "8"}}
    as_kubelet(own, name, status)
    yield name
    own.api().delete(f"/api/v1/nodes/{name}")
    own.api().delete(f"{DEVICES}/{name}")


def everything(name: str) -> tuple[str, ...]:
    """Return what is written of a node at first."""
    parts = (f"{DEVICES}/{name}", f"{NODES}/{name}")
    return tuple(f"{path}{part}" for path in parts for part in ("", "/status"))


def reasons(report: Reported) -> list[str]:
    """Return what is wrong."""
    return [problem.reason for problem in report.problems]


def test_all_is_written_once_and_reads_back(own: ControlPlane, node: str) -> None:
    """A second round finds nothing to write, and the scheduler reads what was found."""
    agent = Agent(own, node)
    assert agent.report() == Reported(written=everything(node))
    before = device(own, node), own.api().get(f"/api/v1/nodes/{node}").body
    for again in (agent, Agent(own, node)):
        assert again.report() == Reported()
    assert (device(own, node), own.api().get(f"/api/v1/nodes/{node}").body) == before

    facts, warnings = decode_node(before[1], before[0])
    assert not warnings
    assert [(one.device_id, one.memory_bytes) for one in facts.devices if one.memory_bytes] == [
        (card.uuid, card.memory_bytes) for card in TWO_CARDS.cards
    ]
    assert facts.links is not None
    assert before[1]["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == "A100-SXM4-80GB"
    offered = quantities(own, node)
    memory = sum(card.memory_bytes for card in TWO_CARDS.cards)
    whole = dict.fromkeys(("gpu", "gpu-core", "gpu-memory-ratio"), 200)
    amounts = {f"koordinator.sh/{key}": value for key, value in whole.items()}
    amounts["koordinator.sh/gpu-memory"] = memory
    assert {key: quantity_of(offered[key]).ceil() for key in amounts} == amounts
    assert "nvidia.com/gpu" not in offered


def test_as_cards_fill_the_node_offers_less(own: ControlPlane, node: str) -> None:
    """In every dialect but by what its own Pods have; who holds what is told for people."""
    agent = Agent(own, node)
    agent.report()
    empty = quantities(own, node)
    given = ProvenDevice(
        device_type="gpu",
        device_id=CARD.uuid,
        minor=0,
        core_percent=100,
        memory_bytes=CARD.memory_bytes,
    )
    containers = (ProvenContainer(index="0", devices=(given,)),)
    pod = held_by_pod(pod_uid="u", namespace="ml", pod_name="train-0", containers=containers)
    assert agent.report(TWO_CARDS, (pod,)).written == (f"{DEVICES}/{node}/status",)
    assert quantities(own, node) == empty, "in whose words it asks, kubelet has not told yet"
    report = agent.report(TWO_CARDS, (pod,), {"koordinator.sh/gpu-core": 100})

    assert report.written == (f"{NODES}/{node}/status",)
    full = quantities(own, node)
    assert (empty["koordinator.sh/gpu-core"], full["koordinator.sh/gpu-core"]) == ("200", "200")
    assert full["vke.volcengine.com/mgpu-core"] == "100"
    assert int(full["aliyun.com/gpu-mem"]) * 2 == int(empty["aliyun.com/gpu-mem"])
    assert quantities(own, node, "capacity") == full
    assert device(own, node)["status"]["allocations"] == [
        {
            "type": "gpu",
            "entries": [{"namespace": "ml", "name": "train-0", "uuid": "u", "minors": [0]}],
        }
    ]
    assert agent.report(TWO_CARDS, (pod,), {"koordinator.sh/gpu-core": 100}) == Reported()
    agent.report()
    assert quantities(own, node) == empty


def test_what_somebody_edits_is_taken_back_and_who_insists_is_left(
    own: ControlPlane, node: str
) -> None:
    """Three times; then it is said, and tried again ten minutes later."""
    agent = Agent(own, node)
    agent.report()
    whole = device(own, node)["spec"]

    def edited() -> Reported:
        path = f"{DEVICES}/{node}?fieldManager=kubectl-edit"
        assert own.api().patch(path, {"spec": {"devices": whole["devices"][:1]}}).ok
        return agent.report()

    for _ in range(3):
        assert edited().written == (f"{DEVICES}/{node}",)
        assert device(own, node)["spec"] == whole
    insisted = edited()
    assert (insisted.written, reasons(insisted)) == ((), ["ForeignFieldManager"])
    assert "kubectl-edit" in insisted.problems[0].message
    agent.seconds = 601.0
    assert agent.report().written == (f"{DEVICES}/{node}",)


def test_what_somebody_takes_out_or_replaces_comes_back(own: ControlPlane, node: str) -> None:
    """Labels, annotations, the whole object, and after a deletion."""
    agent = Agent(own, node)
    agent.report()
    whole = device(own, node)
    gone = {"metadata": {"labels": None, "annotations": None}}
    assert own.api().patch(f"{DEVICES}/{node}?fieldManager=kubectl-edit", gone).ok
    assert agent.report().written == (f"{DEVICES}/{node}",)
    assert device(own, node)["metadata"]["labels"] == whole["metadata"]["labels"]

    bare = {
        **{key: whole[key] for key in ("apiVersion", "kind")},
        "metadata": {
            "name": node,
            "resourceVersion": device(own, node)["metadata"]["resourceVersion"],
        },
        "spec": {"devices": [{"type": "gpu", "health": True}]},
    }
    assert own.api().replace(f"{DEVICES}/{node}?fieldManager=kubectl-replace", bare).ok
    assert f"{DEVICES}/{node}" in agent.report().written
    assert device(own, node)["spec"] == whole["spec"]

    assert own.api().delete(f"{DEVICES}/{node}").ok
    assert agent.report().written == everything(node)[:2]


def test_who_had_the_object_first_or_applies_it_keeps_it(own: ControlPlane, node: str) -> None:
    """Koordinator's agent updates the whole object; a GitOps tool applies a label."""
    theirs = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node},
        "spec": {"devices": [{"type": "gpu", "minor": 7, "health": True}]},
    }
    assert own.api().create(f"{DEVICES}?fieldManager=koordlet", theirs).ok
    label = {"metadata": {"name": node, "labels": {"node.koordinator.sh/gpu-model": "mine"}}}
    path = f"/api/v1/nodes/{node}?fieldManager=argocd"
    body = {"apiVersion": "v1", "kind": "Node", **label}
    assert own.api().call("PATCH", path, body, APPLY).ok
    report = Agent(own, node).report()

    assert reasons(report) == ["ForeignFieldManager"] * 2
    assert ["koordlet" in report.problems[0].message, "argocd" in report.problems[1].message] == [
        True,
        True,
    ]
    assert device(own, node)["spec"] == theirs["spec"]
    assert report.written == (f"{DEVICES}/{node}/status", f"{NODES}/{node}/status")


def test_kubelet_copies_and_zeroes_are_taken_back_and_another_plugin_is_left(
    own: ControlPlane, node: str
) -> None:
    """As often as it takes: kubelet does so at every start."""
    agent = Agent(own, node)
    agent.report()
    whole = quantities(own, node)
    for _ in range(4):
        as_kubelet(
            own,
            node,
            {
                "capacity": {"koordinator.sh/gpu-core": "0"},
                "allocatable": {"koordinator.sh/gpu-core": "0", "koordinator.sh/gpu": "0"},
            },
        )
        assert agent.report() == Reported(written=(f"{NODES}/{node}/status",))
        assert quantities(own, node) == quantities(own, node, "capacity") == whole
    as_kubelet(own, node, {"capacity": {"koordinator.sh/gpu-core": "800"}})

    report = agent.report()
    assert (report.written, reasons(report)) == ((), ["ForeignFieldManager"])


def test_cards_that_another_plugin_gives_are_closed(own: ControlPlane, node: str) -> None:
    """Two that hand out the same cards know nothing of each other; once it is gone they open."""
    agent = Agent(own, node)
    agent.report()

    def cards() -> list[tuple[bool, str]]:
        listed = device(own, node)["spec"]["devices"]
        found = [one for one in listed if one["type"] == "gpu"]
        return [(one["health"], one["conditions"][0]["reason"]) for one in found]

    assert cards() == [(True, "DeviceHealthy")] * 2
    as_kubelet(own, node, {"capacity": {"nvidia.com/gpu": "2"}})
    agent.report()
    assert cards() == [(False, "NotOwned")] * 2
    as_kubelet(own, node, {"capacity": {"nvidia.com/gpu": None}})
    agent.report()
    assert cards() == [(True, "DeviceHealthy")] * 2


def test_a_card_that_closes_and_one_that_goes_are_told(own: ControlPlane, node: str) -> None:
    """By difference: no label changes, so the Node itself is not written."""
    agent = Agent(own, node)
    agent.report()
    first, second = TWO_CARDS.cards
    ill = replace(TWO_CARDS, cards=(replace(first, faults=(Fault(reason="Xid79"),)), second))
    assert agent.report(ill).written == (f"{DEVICES}/{node}", f"{NODES}/{node}/status")
    cards = [one for one in device(own, node)["spec"]["devices"] if one["type"] == "gpu"]
    assert [(one["health"], one["conditions"][0]["reason"]) for one in cards] == [
        (False, "Xid79"),
        (True, "DeviceHealthy"),
    ]
    assert quantities(own, node)["koordinator.sh/gpu-core"] == "100"

    agent.report(replace(TWO_CARDS, cards=(second,), links=()))
    spec = device(own, node)["spec"]
    assert ("topologies" in spec, len(spec["devices"])) == (False, 3)


def test_a_card_opens_by_a_word_on_its_object(own: ControlPlane, node: str) -> None:
    """An annotation of somebody else's, which no report takes away."""
    agent = Agent(own, node)
    faults = Faults(kept=(CardFault(uuid=CARD.uuid, reason="Xid79"),))
    assert agent.report(marked(TWO_CARDS, faults)).recovered == ()
    word = {"metadata": {"annotations": {"tenure.sh/recovered": f"{CARD.uuid}@{NOW}"}}}
    assert own.api().patch(f"{DEVICES}/{node}?fieldManager=kubectl-annotate", word).ok

    agent.now = LATER
    said = agent.report(marked(TWO_CARDS, faults))
    assert said == Reported(written=(f"{DEVICES}/{node}",), recovered=(CARD.uuid,))
    assert agent.report(marked(TWO_CARDS, faults)) == Reported()
    assert agent.report(marked(TWO_CARDS, recovered(faults, CARD.uuid))).written
    cards = [one for one in device(own, node)["spec"]["devices"] if one["type"] == "gpu"]
    assert [one["health"] for one in cards] == [True, True]
    assert "tenure.sh/recovered" in device(own, node)["metadata"]["annotations"]
    assert agent.report() == Reported()


@dataclass(slots=True, kw_only=True)
class Process:
    """The agent as a process, of a machine that a file describes, or its driver's table."""

    plane: ControlPlane
    name: str
    folder: Path
    seconds: float
    driver: Driver | None = None
    running: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        """Make the node's folders, with nobody on it."""
        for folder in ("plugins", "cdi", "state"):
            (self.folder / folder).mkdir()
        cards = {"cdiVersion": "0.6.0", "kind": "vendor.test/card", "devices": []}
        (self.folder / "cards.json").write_text(json.dumps(cards))
        self.hold()
        self.find(TWO_CARDS)

    def start(self) -> None:
        """Start it."""
        options = {
            "holdings": "holdings.json",
            "cards": "cards.json",
            "mode": "plugin",
            "plugins": "plugins",
            "cdi": "cdi",
            "state": "state",
            "node": self.name,
            "machine": "machine.json",
            "kubeconfig": self.plane.kubeconfig(ADMIN),
            "report-seconds": self.seconds,
            "probes": f"127.0.0.1:{free_port()}",
        }
        driven = {}
        if self.driver is not None:
            del options["machine"]
            driven = {TABLE: str(self.driver.path), "LD_LIBRARY_PATH": str(shim().parent)}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (self.folder / "agent.log").open("ab") as log:
            self.running = subprocess.Popen(
                [*COMMAND, "serve", "agent", *words],
                cwd=self.folder,
                env=environment(**driven),
                stderr=log,
            )

    def end(self, number: int = signal.SIGKILL) -> int:
        """End it, and return how it went."""
        assert self.running is not None
        self.running.send_signal(number)
        return self.running.wait(60)

    def find(self, found: Discovery) -> None:
        """Let the machine be this one."""
        write_machine(self.folder / "machine.json", found)

    def hold(self, *cards: Card) -> None:
        """Let a Pod hold these cards; without any there is none."""
        devices = [
            {
                "device_id": one.uuid,
                "minor": one.minor,
                "core_percent": 100,
                "memory_bytes": one.memory_bytes,
            }
            for one in cards
        ]
        pod = {"pod_uid": "u", "namespace": "ml", "pod_name": "train-0"}
        holding = {**pod, "containers": [{"name": "main", "devices": devices}]}
        fresh = self.folder / "fresh.json"
        fresh.write_text(json.dumps({"format": 1, "holdings": [holding] if devices else []}))
        fresh.replace(self.folder / "holdings.json")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, (what, (self.folder / "agent.log").read_text())
            time.sleep(0.1)

    def health(self) -> list[bool]:
        """Return whether each card is open, as the Device object has it."""
        got = self.plane.api().get(f"{DEVICES}/{self.name}")
        listed = got.body.get("spec", {}).get("devices", []) if got.ok else []
        return [one["health"] for one in listed if one["type"] == "gpu"]

    def told(self) -> list[list[int]] | None:
        """Return which minors are held, as its status has it."""
        entries = device(self.plane, self.name).get("status", {}).get("allocations")
        return (
            None if entries is None else [one["minors"] for of in entries for one in of["entries"]]
        )


@pytest.fixture
def process(own: ControlPlane, node: str, tmp_path: Path) -> Iterator[Process]:
    """An agent that looks often."""
    yield from _running(Process(plane=own, name=node, folder=tmp_path, seconds=0.2))


@pytest.fixture
def lazy(own: ControlPlane, node: str, tmp_path: Path) -> Iterator[Process]:
    """One that looks once in a test, unless it hears of something."""
    yield from _running(Process(plane=own, name=node, folder=tmp_path, seconds=600.0))


@pytest.fixture
def driven(own: ControlPlane, node: str, tmp_path: Path) -> Iterator[Process]:
    """One that asks a driver of two cards."""
    driver = Driver(path=tmp_path / "table")
    for index in (0, 1):
        driver.add_card(index)
    yield from _running(Process(plane=own, name=node, folder=tmp_path, seconds=0.2, driver=driver))


def _running(made: Process) -> Iterator[Process]:
    made.start()
    try:
        yield made
    finally:
        made.end()


def test_the_agent_reports_its_machine_as_it_changes(process: Process) -> None:
    """The process, on a machine that a file describes, over its own end and start."""
    process.until(lambda: process.health() == [True, True], "it does not report")
    first, second = TWO_CARDS.cards
    ill = replace(first, faults=(Fault(reason="UncorrectedECC"),))
    process.find(replace(TWO_CARDS, cards=(ill, second)))
    process.until(lambda: process.health() == [False, True], "it closes no card")
    process.find(TWO_CARDS)
    broken = process.folder / "broken"
    broken.write_text("cards: [")
    broken.replace(process.folder / "machine.json")
    process.until(
        lambda: process.health() == [False, False], "it takes what can't be read for healthy"
    )
    process.end()
    faults = process.folder / "state" / "faults.json"
    faults.unlink()
    process.start()
    process.until(faults.exists, "an agent that lost its file does not ask the object")
    process.find(TWO_CARDS)
    process.until(
        lambda: process.health() == [False, True], "an agent that lost its file opens a card"
    )
    listed = device(process.plane, process.name)["spec"]["devices"]
    since = listed[1]["conditions"][0]["lastTransitionTime"]
    word = {"metadata": {"annotations": {"tenure.sh/recovered": f"{CARD.uuid}@{since}"}}}
    path = f"{DEVICES}/{process.name}?fieldManager=kubectl-annotate"
    assert process.plane.api().patch(path, word).ok
    process.until(lambda: process.health() == [True, True], "a word opens no card")
    assert process.end(signal.SIGTERM) == 0


def test_the_drivers_cards_are_reported_and_closed_by_its_events(driven: Process) -> None:
    """An Xid of an application closes no card, one of the hardware does."""
    driven.until(lambda: driven.health() == [True, True], "it asks no driver")
    listed = device(driven.plane, driven.name)["spec"]["devices"]
    assert [(one["minor"], one["id"]) for one in listed if one["type"] == "gpu"] == [
        (index, f"GPU-0000000{index}-1111-2222-3333-444444444444") for index in (0, 1)
    ]
    offered = quantities(driven.plane, driven.name)
    assert offered["koordinator.sh/gpu-core"] == "200"
    memory = 2 * (80 * GIB - (600 << 20))
    assert quantity_of(offered["koordinator.sh/gpu-memory"]).ceil() == memory
    assert driven.driver is not None
    driven.driver.event(0, 1, pynvml.nvmlEventTypeXidCriticalError, 31)
    driven.driver.event(1, 0, pynvml.nvmlEventTypeXidCriticalError, 79)
    driven.until(lambda: driven.health() == [False, True], "an event closes no card")


def test_who_holds_what_is_told_when_it_changes(lazy: Process) -> None:
    """Long before the next look; a card that nobody holds any more is back."""
    lazy.until(lambda: lazy.health() == [True, True], "it does not report")
    lazy.until(lambda: lazy.told() == [], "it does not tell that nobody holds anything")
    first, second = TWO_CARDS.cards
    lazy.hold(first)
    lazy.until(lambda: lazy.told() == [[0]], "it does not tell who holds what")

    def cores() -> str:
        return quantities(lazy.plane, lazy.name)["koordinator.sh/gpu-core"]

    ill = replace(first, faults=(Fault(reason="UncorrectedECC"),))
    lazy.find(replace(TWO_CARDS, cards=(ill, second)))
    lazy.hold(first, second)
    lazy.until(lambda: lazy.told() == [[0, 1]], "it tells of no second card")
    assert (lazy.health(), cores()) == ([False, True], "200"), "what its holder asks for is gone"
    lazy.hold()
    lazy.until(lambda: lazy.told() == [], "it tells of who is gone")
    lazy.until(lambda: cores() == "100", "a closed card that nobody holds is offered")


def test_a_machine_that_has_nothing_left_offers_nothing(own: ControlPlane, node: str) -> None:
    """What we wrote goes; what is kubelet's stays."""
    agent = Agent(own, node)
    agent.report()
    assert agent.report(Discovery()).problems == ()

    assert not quantities(own, node)
    assert device(own, node)["spec"] == {"devices": []}
    found = own.api().get(f"/api/v1/nodes/{node}").body
    assert found["status"]["capacity"] == {"cpu": "8", "memory": "64Gi"}
    assert found["metadata"]["labels"] == OWNED


def test_koordinators_kind_gets_all_but_the_links(
    own: ControlPlane, node: str, tmp_path: Path
) -> None:
    """Its Device has no topologies; with ours applied over it they come."""
    define(own, tmp_path, topologies=False)
    try:
        first = _until_known(own, node, known=False)
        assert first.written == everything(node)
        assert "topologies" not in device(own, node)["spec"]
    finally:
        define(own, tmp_path, topologies=True)
    assert _until_known(own, node, known=True).written == (f"{DEVICES}/{node}",)
    assert "topologies" in device(own, node)["spec"]


def _until_known(plane: ControlPlane, node: str, *, known: bool) -> Reported:
    """Report once the API server goes by the kind as it was last defined."""
    probe = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "probe"},
        "spec": {"topologies": {"gpu": []}},
    }
    path = f"{DEVICES}/probe?fieldManager=probe&dryRun=All"
    for _ in range(300):
        if plane.api().call("PATCH", path, copy.deepcopy(probe), APPLY).ok is known:
            break
    else:
        pytest.fail("the kind has not changed")
    report = Agent(plane, node).report()
    assert reasons(report) == ([] if known else ["FieldNotKnown"])
    return report


def test_a_condition_of_ours_is_repaired_and_taken_away_whole(own: ControlPlane, node: str) -> None:
    """Also where somebody edited it, who then owns a part of it; the others' stay."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    as_kubelet(own, node, {"conditions": [ready]})
    path = f"{NODES}/{node}"
    want = Condition(status="True", reason="ByCopy", message="holdings: by copy")

    def conditions() -> dict[str, str]:
        found = own.api().get(path).body["status"].get("conditions", [])
        return {one["type"]: one.get("message", "") for one in found}

    def edit() -> None:
        edited = {"type": "TenureServiceAway", "status": "False", "message": "all is well"}
        body = {"status": {"conditions": [edited]}}
        kind = "application/strategic-merge-patch+json"
        assert own.api().patch(f"{path}/status?fieldManager=kubectl-edit", body, kind).ok

    async def run() -> None:
        seconds = 0.0
        async with connected(str(own.kubeconfig(ADMIN))) as objects:
            kept = NodeCondition(
                objects=objects,
                node=node,
                kind="TenureServiceAway",
                manager="tenure-agent-words",
                clock=lambda: seconds,
                now=lambda: NOW,
            )
            await kept.tell(want)
            assert conditions() == {"Ready": "", "TenureServiceAway": want.message}
            await asyncio.to_thread(edit)
            seconds += LOOK_SECONDS
            await kept.tell(want)
            assert conditions()["TenureServiceAway"] == want.message
            await asyncio.to_thread(edit)
            await kept.tell(None)
            assert conditions() == {"Ready": ""}

    asyncio.run(run())


STATUS: Final = "scheduling.koordinator.sh/resource-status"
ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
ALIGNED: Final = KubeletManagers(
    cpu=KubeletCpuPolicy(
        policy="static",
        options=(("full-pcpus-only", "true"),),
        reserved_cpus=parse_cpuset("0,12"),
    ),
    topology_policy="restricted",
    topology_scope="pod",
)
PINNED: Final = found_cpus(
    MACHINE_X,
    managers=ALIGNED,
    pinned={"g": "1,13"},
    pods=[pod_here("g")],
)
"""Machine X with a Pod that kubelet's static policy pinned."""


def test_cpus_are_written_on_difference_and_read_back_by_the_scheduler(
    own: ControlPlane, node: str
) -> None:
    """In both versions of the kind; what was not known of CPUs before changes nothing else."""
    agent = Agent(own, node)
    agent.report()
    path = path_of_topology(node)
    assert agent.report(cpus=PINNED) == Reported(written=(path,))
    before = own.api().get(path).body
    for again in (agent, Agent(own, node)):
        assert again.report(cpus=PINNED) == Reported()
    assert own.api().get(path).body == before
    assert [one["name"] for one in before["attributes"]] == [
        "topologyManagerPolicy",
        "topologyManagerScope",
    ]
    for version in (before, own.api().get(f"{TOPOLOGIES}/{node}").body):
        read = read_topology(version)
        assert read.cpus == MACHINE_X
        assert (read.pinned, read.reserved) == (parse_cpuset("1,13"), parse_cpuset("0-1,12-13"))
        assert (str(read.numa_policy), read.pod_scope) == ("Restricted", True)
        assert [zone.cpu_milli for zone in read.zones] == [12_000, 12_000]
    assert agent.report(cpus=PINNED, pods=(holding("r", "2-3"),)).written[-1] == path
    allocs = json.loads(own.api().get(path).body["metadata"]["annotations"][ALLOCS])
    assert [(one["uid"], one["cpuset"], one.get("managedByKubelet")) for one in allocs] == [
        ("g", "1,13", True),
        ("r", "2-3", None),
    ]


def test_cpus_that_somebody_edits_are_taken_back_and_who_reports_them_already_is_left(
    own: ControlPlane, node: str
) -> None:
    """Koordinator's agent updates the whole object; nothing of ours is put beside its fields."""
    agent, path = Agent(own, node), path_of_topology(node)
    agent.report(cpus=PINNED)
    whole = own.api().get(path).body
    edit = {"metadata": {"annotations": {ALLOCS: "null"}}, "zones": []}
    assert own.api().patch(f"{path}?fieldManager=kubectl-edit", edit).ok
    assert agent.report(cpus=PINNED).written == (path,)
    mended = own.api().get(path).body
    assert (mended["zones"], mended["metadata"]["annotations"]) == (
        whole["zones"],
        whole["metadata"]["annotations"],
    )

    assert own.api().delete(path).ok
    theirs = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node, "labels": {"app.kubernetes.io/managed-by": "Koordinator"}},
        "topologyPolicies": ["None"],
        "zones": [],
    }
    made = own.api().create(f"{TOPOLOGIES}?fieldManager=koordlet", theirs)
    assert made.ok, made.message
    report = agent.report(cpus=PINNED)
    assert (report.written, reasons(report)) == ((), ["ForeignFieldManager"])
    assert "koordlet" in report.problems[0].message
    left = own.api().get(path).body
    assert (left["zones"], "annotations" in left["metadata"]) == ([], False)
    assert own.api().delete(path).ok
    assert agent.report(cpus=PINNED).written == (path,)


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_an_lsr_pod_is_placed_by_what_the_agent_reports(
    own: ControlPlane, node: str, ledger: str, identities: Identities
) -> None:
    """Without koordlet: on none of the CPUs that kubelet keeps or gave; then all hear of it."""
    api = own.api()
    for name in ("tenure-system", "team"):
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    labels = {"kubernetes.io/hostname": node, "tenure.sh/cpu-managed": "true"}
    assert api.patch(f"{NODES}/{node}", {"metadata": {"labels": labels}}).ok
    amounts = {"cpu": "24", "memory": "128Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    as_kubelet(own, node, {"capacity": amounts, "allocatable": amounts, "conditions": [ready]})
    agent, where = Agent(own, node), pods_in("team")
    agent.report(Discovery())
    one = f"{where}/lsr"

    def bound() -> dict[str, object] | None:
        found = api.get(one).body
        return dict(found) if found["spec"].get("nodeName") else None

    with (
        extender(own, ledger, identities, forked=True) as served,
        own.scheduler(asking(own, served, identities)),
    ):
        assert api.create(where, pod("lsr", schedulerName="tenure", **DIALECTS["cpuset"])).ok
        eventually(lambda: is_refused(own, one) or node_of(own, one))
        assert not node_of(own, one), "nobody reports a CPU"
        assert agent.report(Discovery(), cpus=PINNED).problems == ()
        placed = eventually(bound)
    remove_pods(own, where, ["lsr"])
    cpus = parse_cpuset(json.loads(placed["metadata"]["annotations"][STATUS])["cpuset"])
    assert len(cpus) == 4
    assert cpus.isdisjoint(parse_cpuset("0-1,12-13"))
    uid = placed["metadata"]["uid"]
    granted: HeldByPod = replace(holding(uid, str(cpus)), namespace="team", pod_name="lsr")
    agent.report(Discovery(), (granted,), cpus=PINNED)
    written = api.get(path_of_topology(node)).body["metadata"]["annotations"]
    assert json.loads(written[ALLOCS])[0] == {
        "namespace": "team",
        "name": "lsr",
        "uid": uid,
        "cpuset": str(cpus),
    }
    pools = json.loads(written["node.koordinator.sh/cpu-shared-pools"])
    shared = parse_cpuset(",".join(pool["cpuset"] for pool in pools))
    assert shared == MACHINE_X.cpuset - cpus - parse_cpuset("1,13")
