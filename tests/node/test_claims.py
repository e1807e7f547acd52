"""Claims on a real node: a driver of others', kubelet, and the gate with its ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pytest

from agent.discover.machine import Card, Discovery
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ADMIN, ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    WHOLE,
    add_class,
    add_templates,
    asked,
    claims_in,
    held,
)
from tests.support.kube.schedulers import Served
from tests.support.machines_found import write_machine
from tests.support.node.agents import agent
from tests.support.node.clusters import Cluster
from tests.support.node.node import NODE_NAME, Inside, Node
from tests.support.node.pods import Pods, container
from tests.support.node.programs import example_driver
from tests.support.process import tenure

DEVICES: Final = 3
BYTES: Final = 80 << 30
"""Of each of them, as the driver says."""
UNCONFIRMED: Final = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
SLICES: Final = f"{GROUP}/resourceslices"


def driver_of(machine: Node) -> Inside:
    """Return the driver, which tells of devices that are there in name alone."""
    kubelet = machine.room.folder / "kubelet"
    return Inside(
        room=machine.room,
        command=[
            *(str(example_driver()), "--node-name", NODE_NAME),
            *("--num-devices", str(DEVICES), "--cdi-root", str(machine.cdi)),
            *("--kubelet-registrar-directory-path", str(kubelet / "plugins_registry")),
            *("--kubelet-plugins-directory-path", str(kubelet / "plugins")),
            *("--kubeconfig", str(machine.plane.kubeconfig(ADMIN))),
        ],
        log=machine.room.folder / "driver.log",
        path=str(machine.programs),
    )


def devices_of(plane: ControlPlane) -> dict[str, str]:
    """Return the devices that the driver tells of: their UUIDs by name."""
    return {
        device["name"]: device["attributes"]["uuid"]["string"]
        for one in plane.api().get(SLICES).body["items"]
        if one["spec"]["driver"] == DRIVER
        for device in one["spec"].get("devices", ())
    }


@dataclass(slots=True, kw_only=True)
class Guarded:
    """The node, whose devices a driver gives and the gate guards."""

    cluster: Cluster
    served: Served
    driver: Inside

    @property
    def machine(self) -> Node:
        """Return the node."""
        return self.cluster.machine

    def make(self, pods: Pods, name: str) -> None:
        """Create a Pod that claims a device."""
        one = {**container(), "resources": {"claims": [{"name": "gpu"}]}}
        pods.make(name, [one], claims=[{"name": "gpu", "resourceClaimTemplateName": WHOLE}])

    def shown(self, pods: Pods, name: str) -> str:
        """Return the UUID of the one device that a Pod's only run sees, for its own claim."""
        pod = pods.get(name)
        [seen] = self.machine.seen(pod)
        [said] = pod["status"]["resourceClaimStatuses"]
        path = f"{claims_in(pods.namespace)}/{said['resourceClaimName']}"
        uid = self.machine.plane.api().get(path).body["metadata"]["uid"]
        given = [key for key, value in seen["environment"].items() if value == uid]
        assert len(given) == 1, seen["environment"]
        return next(
            uuid
            for device, uuid in devices_of(self.machine.plane).items()
            if given == [f"GPU_DEVICE_{device.upper().replace('-', '_')}_RESOURCE_CLAIM"]
        )

    def who(self, uuid: str) -> list[str]:
        """Return whose claims hold a device by the ledger."""
        words = ("who", uuid, "--ledger", self.cluster.url, "-o", "json")
        done = tenure(*words, cwd=self.cluster.folder)
        assert done.returncode == 0, done.stderr
        return [one["owner"] for one in json.loads(done.stdout)["holders"]]

    def held(self) -> set[str]:
        """Return the UUIDs of the devices that claims hold by the ledger."""
        return {uuid for _, uuid in held(self.cluster.url)}


@pytest.fixture(scope="module")
def guarded(
    plane: ControlPlane, machine: Node, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """The example driver on the node, our agent that reads claims, and the gate."""
    folder = tmp_path_factory.mktemp("claims")
    cluster, port = Cluster(plane, machine, folder), free_port()
    driver = driver_of(machine)
    add_class(plane)
    with ExitStack() as stack:
        stack.callback(cluster.end)
        stack.enter_context(plane.claim_controller())
        served = stack.enter_context(cluster.served(gate=port, drivers=[DRIVER]))
        stack.enter_context(asked(plane, cluster.identities, port))
        driver.start()
        stack.callback(driver.end)
        machine.until(lambda: len(devices_of(plane)) == DEVICES, driver.words())
        reads = ("--kubelet-root", str(machine.room.folder / "kubelet"))
        told = (*cluster.told(), *reads)
        cards = (
            Card(uuid=uuid, minor=int(name.rpartition("-")[2]), memory_bytes=BYTES, processes=())
            for name, uuid in devices_of(plane).items()
        )
        write_machine(folder / "machine.json", Discovery(cards=tuple(cards)))
        stack.enter_context(agent(machine, folder, told=told))
        yield Guarded(cluster=cluster, served=served, driver=driver)
    for each in plane.api().get(SLICES).body["items"]:
        plane.api().delete(f"{SLICES}/{each['metadata']['name']}")
    plane.api().delete(f"{GROUP}/deviceclasses/{DRIVER}")


@pytest.fixture
def claims(guarded: Guarded, pods: Pods) -> Iterator[Pods]:
    """A namespace with a template of claims; whatever its Pods held is free at its end."""
    add_templates(guarded.machine.plane, pods.namespace)
    yield pods
    pods.remove_all()
    eventually(lambda: not guarded.held())


def test_each_pod_has_the_device_that_the_ledger_says_whoever_starts_again(
    guarded: Guarded, claims: Pods
) -> None:
    """Two at once; kubelet and the driver are killed, the containers run on; a third one comes."""
    machine, names = guarded.machine, ("first", "second")
    for name in names:
        guarded.make(claims, name)
    before = {name: claims.running(name) for name in names}
    devices = {name: guarded.shown(claims, name) for name in names}
    assert len(set(devices.values())) == len(names)
    for name, uuid in devices.items():
        assert guarded.who(uuid) == [f"pod/{name}"]

    machine.restart_kubelet(*before.values())
    guarded.driver.end()
    guarded.driver.start()
    guarded.make(claims, "third")
    claims.running("third")

    for name, pod in before.items():
        after = claims.get(name)["status"]["containerStatuses"]
        assert [(one["containerID"], one["restartCount"]) for one in after] == [
            (one["containerID"], 0) for one in pod["status"]["containerStatuses"]
        ]
        assert guarded.shown(claims, name) == devices[name]
    third = guarded.shown(claims, "third")
    assert {third, *devices.values()} == set(devices_of(machine.plane).values()) == guarded.held()


def test_a_device_is_held_while_the_container_of_a_pod_runs_that_is_gone(
    guarded: Guarded, claims: Pods
) -> None:
    """Deleted by force while kubelet stands still; the next Pod has it once the node confirms."""
    machine, plane = guarded.machine, guarded.machine.plane
    names = [f"p-{number}" for number in range(DEVICES)]
    for name in names:
        guarded.make(claims, name)
    pods = {name: claims.running(name) for name in names}
    devices = {name: guarded.shown(claims, name) for name in names}
    guarded.make(claims, "next")
    with machine.kubelet.frozen():
        plane.api().delete(f"/api/v1/namespaces/{claims.namespace}/pods/{names[0]}")
        eventually(lambda: UNCONFIRMED in guarded.served.probe("metrics"))
        assert not claims.get(names[0])
        assert machine.processes(pods[names[0]])
        assert guarded.held() == set(devices.values())
        assert not claims.get("next")["spec"].get("nodeName")

    claims.running("next")
    assert not machine.processes(pods[names[0]])
    assert guarded.shown(claims, "next") == devices[names[0]]


def test_a_pod_waits_for_its_driver_and_has_the_device_of_the_ledger_then(
    guarded: Guarded, claims: Pods
) -> None:
    """The claim is given, and nobody prepares it: no container is made meanwhile."""
    guarded.driver.end()
    guarded.make(claims, "early")
    events = f"/api/v1/namespaces/{claims.namespace}/events"

    def is_refused() -> bool:
        found = guarded.machine.plane.api().get(events).body["items"]
        return any(one["reason"] == "FailedPrepareDynamicResources" for one in found)

    eventually(is_refused)
    [given] = guarded.held()
    assert not guarded.machine.processes(claims.get("early"))
    assert "running" not in str(claims.statuses("early"))

    guarded.driver.start()
    claims.running("early")
    assert guarded.shown(claims, "early") == given
    assert guarded.held() == {given}
