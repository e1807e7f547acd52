"""Which CPUs a claim may have of a node, as slices, the node's own objects and others tell."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.dialects.dra.cpus import AMOUNT, CPU_DRIVER, MACHINE
from ledger.domain.log.events import ClaimResult, PodReserved
from ledger.domain.log.state import NodeState
from scheduler.decide.outcome import Placement
from scheduler.gate.cpus import CpusBarred
from scheduler.record import events
from scheduler.service.guard import LiveCpus
from scheduler.service.slices import SliceBook
from scheduler.service.view import STRANGERS
from tests.support.cpu_objects import BIND_POLICY, RESERVATION, cpu_node, cpu_pod
from tests.support.dra import resource_slice
from tests.support.live import WORDS, Live
from tests.support.stores import seen_claim

NODE = "x"


def machine(cpus: str = "24", *, name: str = MACHINE, **more: object) -> dict[str, Any]:
    """Return the device that is a machine's CPUs."""
    capacity = {AMOUNT: {"value": cpus}}
    return {"name": name, "allowMultipleAllocations": True, "capacity": capacity, **more}


class Machine:
    """Machine X of the contract, live, and the slice of its CPUs."""

    def __init__(self, device: dict[str, Any], *objects: dict[str, Any]) -> None:
        self.live = Live()
        for kind, item in zip(("nodes", "topologies"), objects, strict=False):
            self.live.tell(kind, item, uid=f"{kind}-x")
        self.live.settle()
        self.slices = SliceBook((CPU_DRIVER,), self.live.wakeups)
        self.slices.put("s", resource_slice([device], node=NODE, driver=CPU_DRIVER))
        self.cpus = LiveCpus(self.slices, self.live.view)

    @property
    def node(self) -> NodeState:
        """Return what the ledger has of it."""
        uid = self.live.view.uid(NODE)
        assert uid is not None
        state = self.live.view.recorded(uid)
        assert state is not None
        return state

    def offered(self, device: str = MACHINE) -> CpuSet | CpusBarred:
        """Return of which CPUs a device is some."""
        result = ClaimResult(
            request="g",
            driver=CPU_DRIVER,
            pool=NODE,
            device=device,
            consumed={AMOUNT: "2"},
        )
        return self.cpus.offered(self.node, result)

    def about_to_get(self, pod: dict[str, Any]) -> Placement:
        """Let what a Pod of the extender's gets be on its way into the ledger; return it."""
        placement = self.live.placement(pod, NODE)
        new = events.reserved(WORDS, placement, {}, 0, digest="", arrival=0, attempt=1)
        assert isinstance(new.event, PodReserved)
        self.live.view.expect(new.event)
        return placement

    def chosen_for(self, pod: dict[str, Any]) -> Placement | str:
        """Return what a Pod of the extender's gets."""
        self.live.view.requests.read(pod)
        return self.live.view.choose(pod["metadata"]["uid"], NODE)


EVERY = parse_cpuset("0-23")


def test_the_machines_device_offers_what_the_node_does_not_keep_back() -> None:
    """As its NodeResourceTopology and its annotations say."""
    kept = {RESERVATION: {"reservedCPUs": "0,12"}}

    assert Machine(machine(), *cpu_node()).offered() == EVERY
    assert Machine(machine("22"), *cpu_node(annotations=kept)).offered() == (
        EVERY - parse_cpuset("0,12")
    )


@pytest.mark.parametrize(
    ("device", "objects", "reason", "words"),
    [
        (machine(), cpu_node()[:1], "CpusUntold", "its NodeResourceTopology tells them"),
        (machine("22"), cpu_node(), "CpusUntold", "gives 22 of CPUs 0-23 and does not tell which"),
        (machine(name="cpudevnuma000"), cpu_node(), "CpusUntold", "unless it groups by machine"),
        (machine(allowMultipleAllocations=False), cpu_node(), "CpusUntold", "groups by machine"),
        (machine(capacity={}), cpu_node(), "CpusUntold", "unless it groups by machine"),
    ],
    ids=["no topology", "some kept back", "by NUMA node", "given once", "of no number"],
)
def test_what_is_not_told_is_not_guessed(
    device: dict[str, Any], objects: list[dict[str, Any]], reason: str, words: str
) -> None:
    """It is refused, with what has to be said to give it."""
    found = Machine(device, *objects).offered(device["name"])

    assert isinstance(found, CpusBarred)
    assert found.reason == reason
    assert words in found.message


def test_a_device_in_no_whole_pool_offers_nothing() -> None:
    """Its slice is gone, or not all of its pool is there."""
    scene = Machine(machine(), *cpu_node())
    scene.slices.drop("s")

    found = scene.offered()

    assert isinstance(found, CpusBarred)
    assert found.reason == "DeviceUnlisted"


def test_a_claim_gets_whole_cores_as_the_node_gives_them() -> None:
    """Of one NUMA node where one has them; by the node's own bind policy."""
    plain = Machine(machine(), *cpu_node())
    spread = Machine(machine(), *cpu_node(labels={BIND_POLICY: "SpreadByPCPUs"}))

    assert str(plain.cpus.choose(plain.node, 4, EMPTY)) == "0-1,12-13"
    assert str(plain.cpus.choose(plain.node, 4, parse_cpuset("0"))) == "6-7,18-19"
    assert str(spread.cpus.choose(spread.node, 4, EMPTY)) == "0-3"
    assert plain.cpus.choose(plain.node, 24, parse_cpuset("0")) == (
        "not enough cpus available to satisfy request: 24 asked, 23 left"
    )


def test_a_claim_and_a_pod_never_get_one_cpu() -> None:
    """Neither one that a Pod is about to get, nor the Pod one that a claim holds or may hold."""
    scene = Machine(machine(), *cpu_node())
    pod = scene.about_to_get(cpu_pod("p", "4"))

    claimed = scene.cpus.choose(scene.node, 4, EMPTY)

    assert isinstance(claimed, CpuSet)
    assert claimed.isdisjoint(pod.cpuset)
    scene.live.record(seen_claim("c", node=NODE, cpus=tuple(claimed), node_uid="nodes-x"))
    other = scene.live.placement(cpu_pod("q", "4"), NODE)
    assert other.cpuset.isdisjoint(claimed | pod.cpuset)

    scene.live.record(seen_claim("d", unknown_types=("cpu",), node=NODE, node_uid="nodes-x"))
    assert scene.chosen_for(cpu_pod("r", "1")) == STRANGERS


def test_cpus_that_somebody_is_about_to_get_are_given_where_no_others_are() -> None:
    """A place that is held softly is nobody's yet: the ledger decides who has it."""
    scene = Machine(machine(), *cpu_node())
    scene.about_to_get(cpu_pod("p", "4"))

    assert scene.cpus.choose(scene.node, 24, EMPTY) == EVERY
