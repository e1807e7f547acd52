"""`tenure simulate` where Nodes are not machines: registered again, cloned, out of service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import DriftFound, LedgerEvent, NodeInventoried, PodReserved
from ledger.store.open import open_ledger
from tests.support.cli import CommandLine
from tests.support.folding import fold
from tests.support.objects import Json, Object, container, device, gpu_device, node, nrt, pod
from tests.support.violations import machine_violations

pytestmark = pytest.mark.integration

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
WHOLE = {
    "koordinator.sh/gpu-core": "100",
    "koordinator.sh/gpu-memory": "24Gi",
    "koordinator.sh/gpu-memory-ratio": "100",
}
OUT_OF_SERVICE = {
    "key": "node.kubernetes.io/out-of-service",
    "value": "nodeshutdown",
    "effect": "NoExecute",
}
EVERYTHING = [{"operator": "Exists"}]
CLOSED = "Insufficient gpu devices"


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulation over files, and its ledger afterwards."""

    told: Mapping[str, Any]
    events: Sequence[tuple[int, LedgerEvent]]

    def granted(self) -> dict[str, tuple[str, list[str]]]:
        """Return Pod -> node and device ids, of the Pods that got a place."""
        return {
            event.pod_name: (event.node_name, [share.device_id for share in event.shares])
            for _, event in self.events
            if isinstance(event, PodReserved)
        }

    def refused(self, pod_name: str) -> Mapping[str, list[str]]:
        """Return node -> reasons of a Pod without a place."""
        for each in self.told["placements"]:
            if each["name"] == pod_name:
                nodes: Mapping[str, list[str]] = each["unschedulable"]["nodes"]
                return nodes
        raise AssertionError(pod_name)

    def drifts(self) -> Iterator[DriftFound]:
        """Yield what the ledger names."""
        return (event for _, event in self.events if isinstance(event, DriftFound))


class Cluster:
    """Objects, and what simulating them gives."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path, self._line = tmp_path, CommandLine(tmp_path / "run.db", capsys)

    def simulate(self, *objects: Object | list[Object]) -> Simulated:
        """Run over these objects; the ledger proves itself, and no card is promised twice."""
        items = [one for each in objects for one in (each if isinstance(each, list) else [each])]
        path = self._path / "in.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        answer = self._line.ask("simulate", str(path), "-o", "json")
        assert answer.code in {0, 1}, answer.err
        assert self._line.ask("verify").code == 0
        with open_ledger(str(self._line.ledger), mode="read") as ledger:
            events = [(each.envelope.position, each.event) for each in ledger.read_events()]
        assert not list(machine_violations(fold(events).values()))
        return Simulated(json.loads(answer.out), events)

    def maps(self) -> list[dict[str, Any]]:
        """Return the map of the objects and that of the ledger."""
        asked = (["map", str(self._path / "in.json")], ["map", "--ledger", str(self._line.ledger)])
        answers = [self._line.run(*each, "-o", "json") for each in asked]
        return [json.loads(answer.out) for answer in answers]

    def why(self, pod_name: str) -> dict[str, str]:
        """Return node -> the reason that the ledger alone gives now."""
        answer = self._line.ask("why", f"ml/{pod_name}", "-o", "json")
        assert answer.code in {0, 1}, answer.err
        return {each["node"]: each["reason"] for each in json.loads(answer.out)["nodes"]}


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cluster:
    """An empty folder and a ledger that is not there yet."""
    return Cluster(tmp_path, capsys)


def machine(
    name: str,
    *ids: str,
    system: str = "S",
    machine_id: str = "M",
    created: str = "",
    nic: str = "",
    cpus: int = 0,
    **spec: Json,
) -> list[Object]:
    """Return a Node of a machine, its Device with these GPUs, minors in the order given."""
    body = node(name, allocatable={"cpu": 64, "memory": "256Gi", "pods": 110}, **spec)
    body["metadata"]["uid"] = f"uid-{name}"
    if created:
        body["metadata"]["creationTimestamp"] = created
    body["status"]["nodeInfo"] = {
        "systemUUID": system,
        "machineID": machine_id,
        "bootID": f"boot-{name}",
    }
    cards = [gpu_device(minor, id=one) for minor, one in enumerate(ids)]
    if nic:
        rdma = {"koordinator.sh/rdma": "100"}
        cards.append({"type": "rdma", "id": nic, "minor": 0, "health": True, "resources": rdma})
    objects = [body, device(*cards, name=name)]
    if cpus:
        detail = [{"id": cpu, "core": cpu, "socket": 0, "node": 0} for cpu in range(cpus)]
        objects.append(nrt(name, cpu_topology={"detail": detail}))
    return objects


def runs(name: str, on: str, *minors: int) -> Object:
    """Return a Pod that holds whole cards of a Node, by minor."""
    entries = [{"minor": minor, "resources": WHOLE} for minor in minors]
    return pod(
        container(limits={"nvidia.com/gpu": len(minors)}),
        name=name,
        uid=name,
        nodeName=on,
        annotations={ALLOCATED: {"gpu": entries}},
    )


def waits(name: str, gpus: int = 1, **spec: Json) -> Object:
    """Return a Pod that wants whole cards."""
    return pod(container(limits={"nvidia.com/gpu": gpus}), name=name, uid=name, **spec)


def test_the_inventory_says_which_machine_and_which_start_of_it(cluster: Cluster) -> None:
    """With the node's event, so that it can be asked later; cards say whose ids are unique."""
    run = cluster.simulate(machine("n", "GPU-a", nic="0000:3b:00.0", system="4C4C-X"))

    (told,) = (event for _, event in run.events if isinstance(event, NodeInventoried))
    assert (told.system_uuid, told.machine_id, told.boot_id) == ("4c4c-x", "M", "boot-n")
    assert not told.by_agent
    assert [(each.device_type, each.unique_id) for each in told.devices] == [
        ("gpu", True),
        ("rdma", False),
    ]


def test_a_card_held_through_the_older_node_is_not_given_through_the_newer(
    cluster: Cluster,
) -> None:
    """Its id decides: on the newer Node the same card has another minor."""
    run = cluster.simulate(
        machine("old", "GPU-a", "GPU-b"),
        machine("new", "GPU-b", "GPU-a"),
        runs("holder", "old", 0),
        waits("first"),
        waits("second"),
    )

    assert run.granted() == {"first": ("new", ["GPU-b"])}
    assert run.refused("second") == {"old": ["MachineRegisteredAgain"], "new": [CLOSED]}
    (drift,) = run.drifts()
    assert (drift.kind, drift.node_uid) == ("MachineRegisteredTwice", "uid-new")
    assert run.told["summary"]["conflicts"] == [f"new: MachineRegisteredTwice: {drift.detail}"]
    assert "old" in drift.detail


def test_the_node_that_was_created_last_gives_what_the_machine_has(cluster: Cluster) -> None:
    """Whatever the order in the files; the time counts before it."""
    run = cluster.simulate(
        machine("new", "GPU-b", "GPU-a", created="2026-03-02T09:00:00Z"),
        machine("old", "GPU-a", created="2026-03-01T09:00:00Z"),
        runs("holder", "old", 0),
        waits("first"),
        waits("second"),
    )

    assert run.granted() == {"first": ("new", ["GPU-b"])}
    assert run.refused("second")["old"] == ["MachineRegisteredAgain"]
    assert [drift.node_uid for drift in run.drifts()] == ["uid-new"]


def test_nodes_that_do_not_tell_both_ids_are_machines_of_their_own(cluster: Cluster) -> None:
    """An empty id equals nothing; the machine id alone is a clone with a name."""
    run = cluster.simulate(
        machine("a", "GPU-a", system=""), machine("b", "GPU-b", system=""), waits("p"), waits("q")
    )

    assert run.granted() == {"p": ("a", ["GPU-a"]), "q": ("b", ["GPU-b"])}
    assert [(drift.kind, drift.node_uid) for drift in run.drifts()] == [
        ("MachineIdCloned", "uid-b")
    ]


def test_what_the_newer_node_does_not_list_closes_its_type(cluster: Cluster) -> None:
    """The card is somewhere in the machine; nobody can say which of those listed it is."""
    run = cluster.simulate(
        machine("old", "GPU-a"), machine("new", "GPU-b"), runs("holder", "old", 0), waits("p")
    )

    assert run.granted() == {}
    assert run.refused("p")["new"] == ["node(s) have a Pod on an unknown card"]


def test_cards_without_ids_are_told_apart_by_minor_within_one_machine(cluster: Cluster) -> None:
    """Nobody can say that they are others."""
    run = cluster.simulate(
        machine("old", "", ""), machine("new", "", ""), runs("h", "old", 1), waits("p"), waits("q")
    )

    held = [share.minor for _, e in run.events if isinstance(e, PodReserved) for share in e.shares]
    assert (list(run.granted()), held) == (["p"], [0])


def test_a_bus_address_is_one_device_within_a_machine_only(cluster: Cluster) -> None:
    """The same NIC address on another machine closes nothing."""
    nic = "0000:3b:00.0"
    asks = {"koordinator.sh/rdma": 100}
    entry = {"minor": 0, "id": nic, "resources": asks}
    holder = pod(
        container(limits=asks),
        name="h",
        uid="h",
        nodeName="old",
        annotations={ALLOCATED: {"rdma": [entry]}},
    )
    wants = [pod(container(limits=asks), name=name, uid=name) for name in ("p", "q")]

    run = cluster.simulate(
        machine("old", nic=nic),
        machine("new", nic=nic),
        machine("other", nic=nic, system="T", machine_id="N"),
        holder,
        *wants,
    )

    assert run.granted() == {"p": ("other", [nic])}
    assert [drift.kind for drift in run.drifts()] == ["MachineRegisteredTwice"]


def test_cpus_held_through_the_older_node_are_not_given_through_the_newer(
    cluster: Cluster,
) -> None:
    """The machine has each CPU once."""
    status = "scheduling.koordinator.sh/resource-status"
    asks = {"cpu": 2, "memory": "1Gi"}
    own = {"koordinator.sh/qosClass": "LSR"}
    holder = pod(
        container(limits=asks),
        name="h",
        uid="h",
        nodeName="old",
        labels=own,
        annotations={status: {"cpuset": "0-1"}},
    )
    wants = [pod(container(limits=asks), name=name, uid=name, labels=own) for name in ("p", "q")]

    run = cluster.simulate(machine("old", cpus=4), machine("new", cpus=4), holder, *wants)

    held = {
        event.pod_name: str(event.cpuset)
        for _, event in run.events
        if isinstance(event, PodReserved)
    }
    assert held == {"p": "2-3"}
    assert run.refused("q")["new"] == ["not enough cpus available to satisfy request"]


def test_the_same_card_on_two_machines_is_given_by_neither(cluster: Cluster) -> None:
    """Its holder stays; what else the two have is free. The later claimant is named."""
    run = cluster.simulate(
        machine("a", "GPU-a", "GPU-x"),
        machine("b", "GPU-b", "GPU-x", system="T", machine_id="N"),
        runs("holder", "a", 1),
        *map(waits, ("p", "q", "r")),
    )

    assert run.granted() == {"p": ("a", ["GPU-a"]), "q": ("b", ["GPU-b"])}
    assert run.refused("r") == {"a": [CLOSED], "b": [CLOSED]}
    (drift,) = run.drifts()
    assert (drift.kind, drift.node_uid, drift.device_type, drift.minor) == (
        "DeviceIdCloned",
        "uid-b",
        "gpu",
        1,
    )
    assert run.told["summary"]["conflicts"] == [f"b: DeviceIdCloned: {drift.detail}"]


def test_a_map_says_that_a_card_on_two_machines_is_given_by_neither(cluster: Cluster) -> None:
    """It is closed, nobody can get it, and both maps say with what Node it disagrees."""
    cluster.simulate(
        machine("a", "GPU-a", "GPU-x"),
        machine("b", "GPU-b", "GPU-x", system="T", machine_id="N"),
    )
    of_objects, of_ledger = cluster.maps()

    assert of_objects == of_ledger
    assert of_ledger["summary"]["gettable"] == 2
    assert of_ledger["summary"]["percent"] == {
        "allocated": 0,
        "stranded": 0,
        "idle": 400,
        "closed": 0,
    }
    closed = [
        [device["closed"] for group in node["groups"] for device in group["devices"]]
        for node in of_ledger["nodes"]
    ]
    assert closed == [[None, "claimed twice"]] * 2
    (said,) = of_ledger["contradictions"]
    assert said["object"] == "Node b"
    assert said["text"].startswith("DeviceIdCloned: gpu 1 has the id of a device of a")


def test_a_node_out_of_service_gives_nothing_and_its_pods_hold(cluster: Cluster) -> None:
    """Even to a Pod that tolerates everything; its machine's newer Node does not give it either."""
    away = machine("away", "GPU-a", "GPU-b", taints=[OUT_OF_SERVICE])
    holder = runs("holder", "away", 0)
    run = cluster.simulate(away, holder, waits("p", tolerations=EVERYTHING))
    assert run.granted() == {}
    assert run.refused("p") == {"away": ["NodeLost"]}
    (state,) = fold(run.events).values()
    assert (state.lost, [held.phase for held in state.holdings.values()]) == (True, ["lost"])


def test_what_a_lost_node_holds_is_held_when_its_machine_registers_again(cluster: Cluster) -> None:
    """The lost one claims nothing, so that no drift is named."""
    run = cluster.simulate(
        machine("away", "GPU-a", "GPU-b", created="2026-03-02T09:00:00Z", taints=[OUT_OF_SERVICE]),
        machine("back", "GPU-a", "GPU-b", created="2026-03-01T09:00:00Z"),
        runs("holder", "away", 0),
        waits("p"),
        waits("q", tolerations=EVERYTHING),
    )

    assert run.granted() == {"p": ("back", ["GPU-b"])}
    assert run.refused("q") == {"away": ["NodeLost"], "back": [CLOSED]}
    assert list(run.drifts()) == []


def test_a_card_that_moved_from_a_lost_machine_is_free_unless_it_is_held_there(
    cluster: Cluster,
) -> None:
    """A lost machine claims nothing; its holders do."""
    run = cluster.simulate(
        machine("away", "GPU-a", "GPU-b", taints=[OUT_OF_SERVICE]),
        machine("here", "GPU-a", "GPU-b", system="T", machine_id="N"),
        runs("holder", "away", 0),
        waits("p"),
        waits("q"),
    )

    assert run.granted() == {"p": ("here", ["GPU-b"])}
    assert run.refused("q")["here"] == [CLOSED]


def test_maps_draw_no_card_of_a_node_out_of_service_as_there(cluster: Cluster) -> None:
    """That of the objects said that it was, and that the other machine's card could be got."""
    cluster.simulate(
        machine("away", "GPU-a", "GPU-b", taints=[OUT_OF_SERVICE]),
        machine("here", "GPU-a", "GPU-b", system="T", machine_id="N"),
        runs("holder", "away", 0),
    )
    of_objects, of_ledger = cluster.maps()

    assert of_objects == of_ledger
    away, here = of_objects["nodes"]
    assert away["closed_because"] == ["lost", "out of service"]
    closed = [
        [device["closed"] for group in node["groups"] for device in group["devices"]]
        for node in (away, here)
    ]
    assert closed == [["lost", "lost"], ["claimed twice", None]]
    assert of_objects["summary"]["gettable"] == 1


def test_why_decides_by_the_same_accounts_from_the_ledger_alone(cluster: Cluster) -> None:
    """Lost holders hold on the Node that came after, and a lost Node gives nothing."""
    cluster.simulate(
        machine("away", "GPU-a", "GPU-b", taints=[OUT_OF_SERVICE]),
        machine("old", "GPU-c", system="T", machine_id="N"),
        machine("new", "GPU-c", system="T", machine_id="N"),
        machine("back", "GPU-a", "GPU-b"),
        runs("lost", "away", 0, 1),
        runs("held", "old", 0),
        waits("p"),
    )

    why = cluster.why("p")

    assert (why["away"], why["old"]) == ("NodeLost", "MachineRegisteredAgain")
    assert why["back"].startswith("Insufficient gpu")
    assert why["new"].startswith("Insufficient gpu")
