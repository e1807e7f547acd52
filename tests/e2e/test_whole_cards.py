"""Whole cards on nodes of NVIDIA's device plugin: what a Pod gets, and why it waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import PodObserved, PodReleased, PodReserved
from ledger.store.open import open_ledger
from tenure.settings import read_admission_file
from tests.support.kube.bursts import eventually, remove_pods, settled
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    add_plugin_node,
    asking,
    extender,
    remove_node,
)
from tests.support.mutation import mutate
from tests.support.process import tenure

GPU = "nvidia.com/gpu"
NO_AGENT = (
    "NodeNotOffered: the node does not advertise koordinator.sh/gpu-core:"
    " run the agent with --node there"
)
SQLITE = pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def nodes_removed(plane: ControlPlane) -> Iterator[None]:
    """No Node or Pod is there before a test, or left of it."""
    remove_all(plane)
    yield
    remove_all(plane)


def remove_all(plane: ControlPlane) -> None:
    """Delete every Node and Pod."""
    for one in plane.api().get("/api/v1/pods").body["items"]:
        remove_pods(plane, pods_in(one["metadata"]["namespace"]), [one["metadata"]["name"]])
    for one in plane.api().get("/api/v1/nodes").body["items"]:
        plane.api().delete(f"/api/v1/nodes/{one['metadata']['name']}")


@pytest.fixture
def plugin_nodes(plane: ControlPlane) -> None:
    """Two nodes with eight cards each, without an agent."""
    for name in ("gpu-1", "gpu-2"):
        add_plugin_node(plane, name, **{GPU: "8"})


def admitted(name: str, amounts: dict[str, str], settings: str = "") -> dict[str, Any]:
    """Return a Pod as admission stores it."""
    text = f"apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\n{settings}"
    read = read_admission_file(Path("settings.yaml"), text.encode())
    made: dict[str, Any] = mutate(pod(name, amounts), read)
    return made


def told(plane: ControlPlane, where: str, name: str, reason: str) -> str:
    """Return what the newest Event of a reason says of a Pod, empty without one."""
    events = plane.api().get(where.replace("/pods", "/events")).body["items"]
    about = [
        one for one in events if one["involvedObject"]["name"] == name and one["reason"] == reason
    ]
    about.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
    return str(about[-1]["message"]) if about else ""


@SQLITE
@pytest.mark.usefixtures("plugin_nodes")
def test_a_node_that_does_not_advertise_what_a_pod_is_stored_with_is_named_so(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """The Event, `why` of the ledger and `why` of the objects say which name, and what to do."""
    where = pods_in(team := namespace(managed=False))
    with (
        extender(plane, ledger, identities) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        assert plane.api().create(where, admitted("first", {GPU: "1"})).ok
        said = eventually(lambda: told(plane, where, "first", "DevicesRefused"))
    assert said == (
        f"0/2 nodes are available: 2 {NO_AGENT}. Nearest on gpu-1: run the agent with --node there."
    )
    of_ledger = tenure("why", f"{team}/first", "--ledger", ledger, "-o", "json", cwd=tmp_path)
    items = [
        *plane.api().get("/api/v1/nodes").body["items"],
        plane.api().get(f"{where}/first").body,
    ]
    kinds = ("Node", "Node", "Pod")
    listed = [{"kind": kind, **one} for kind, one in zip(kinds, items, strict=True)]
    (tmp_path / "dump.json").write_text(json.dumps({"kind": "List", "items": listed}))
    of_files = tenure("why", f"{team}/first", "dump.json", "-o", "json", cwd=tmp_path)
    for answer in (of_ledger, of_files):
        assert answer.returncode == 0, answer.stderr
        document = json.loads(answer.stdout)
        assert [one["reason"] for one in document["reasons"]] == [NO_AGENT], answer.stdout
        assert document["nearest"]["fits"] is None, answer.stdout
        assert {one["reason"] for one in document["nodes"]} == {NO_AGENT}, answer.stdout
    remove_pods(plane, where, ["first"])


NVIDIA = "wholeCards: nvidia\n"


@SQLITE
def test_nodes_with_and_without_cards_have_one_reason_wherever_it_is_said(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """In the ledger, by its nodes of now, and of the objects: a share, and more cards than are."""
    where = pods_in(team := namespace(managed=False))
    for node, cards in (("gpu-1", {GPU: "8"}), ("none", {GPU: "0"}), ("cpu-1", {})):
        add_plugin_node(plane, node, **cards)
    share = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    asked = {"share": share, "nine": {GPU: "9"}}
    with (
        extender(plane, ledger, identities) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name, amounts in asked.items():
            settings = NVIDIA if name == "nine" else ""
            assert plane.api().create(where, admitted(name, amounts, settings)).ok
        said = {
            name: eventually(partial(told, plane, where, name, "DevicesRefused")) for name in asked
        }
    nodes = plane.api().get("/api/v1/nodes").body["items"]
    pods = plane.api().get(where).body["items"]
    listed = [{"kind": "Node", **one} for one in nodes] + [{"kind": "Pod", **one} for one in pods]
    (tmp_path / "dump.json").write_text(json.dumps({"kind": "List", "items": listed}))
    without = "2 Insufficient gpu devices"
    expected = {"share": f"{without}, 1 {NO_AGENT}", "nine": "3 Insufficient gpu devices"}
    for name, reasons in expected.items():
        assert said[name].startswith(f"0/3 nodes are available: {reasons}."), said[name]
        for source in (["--ledger", ledger], ["dump.json"]):
            answer = tenure("why", f"{team}/{name}", *source, "-o", "json", cwd=tmp_path)
            found = json.loads(answer.stdout)["reasons"]
            counted = ", ".join(f"{one['nodes']} {one['reason']}" for one in found)
            assert counted == reasons, answer.stdout
    remove_pods(plane, where, asked)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """The settings file of the service, in which NVIDIA's plugin gives whole cards."""
    path = tmp_path / "settings.yaml"
    path.write_text(f"apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n{NVIDIA}")
    return path


def held(ledger: str) -> list[tuple[str, str, int]]:
    """Return who holds how many cards by number where, by name; nothing is granted beside that."""
    with open_ledger(ledger, mode="read") as source:
        events = [one.event for one in source.read_events()]
    ended = {one.pod_uid for one in events if isinstance(one, PodReleased)}
    assert not [one for one in events if isinstance(one, PodReserved)], "nothing is reserved"
    return sorted(
        (one.pod_name, one.node_name, one.counted["gpu"])
        for one in events
        if isinstance(one, PodObserved) and one.pod_uid not in ended
    )


@SQLITE
def test_pods_wait_for_a_pool_that_is_scaled_from_zero_and_get_cards_by_number(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    settings: Path,
) -> None:
    """No Node at first, then two; no annotation of devices, as many cards as the plugin has."""
    where = pods_in(team := namespace(managed=False))
    names = [f"p{number}" for number in range(5)]
    with (
        extender(plane, ledger, identities, config=settings) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name in names:
            made = plane.api().create(where, admitted(name, {GPU: "4"}, NVIDIA))
            assert made.ok, made.message
        eventually(lambda: told(plane, where, names[0], "DevicesRefused"))
        for node in ("gpu-1", "gpu-2"):
            add_plugin_node(plane, node, **{GPU: "8"})
        bound = settled(plane, where, 4)
        assert len(bound) == 4, served.words()
        eventually(lambda: len(held(ledger)) == 4)
        last = next(iter({*names} - {one["metadata"]["name"] for one in bound}))
        more = "0/2 nodes are available: 2 Insufficient gpu devices."
        eventually(lambda: told(plane, where, last, "DevicesRefused").startswith(more))
        first = bound[0]["metadata"]["name"]
        remove_pods(plane, where, [first])
        assert len(settled(plane, where, 4)) == 4, served.words()
    for one in bound:
        metadata, [container] = one["metadata"], one["spec"]["containers"]
        assert set(metadata["annotations"]) == {"tenure.sh/admitted", "tenure.sh/whole-cards"}
        assert container["resources"]["requests"] == {GPU: "4"}
        assert "env" not in container
    assert [count for _, _, count in held(ledger)] == [4, 4, 4, 4]
    answer = tenure("why", f"{team}/{last}", "--ledger", ledger, "-o", "json", cwd=settings.parent)
    assert json.loads(answer.stdout)["state"] == "placed", answer.stdout
    verified = tenure("verify", "--ledger", ledger, cwd=settings.parent)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    who = tenure("who", "gpu-1", "--ledger", ledger, cwd=settings.parent)
    assert who.stdout.count("given by others") == 2, who.stdout  # by the plugin; the Pods are ours
    assert "held by others" not in who.stdout
    drifts = tenure("drift", "--ledger", ledger, "-o", "json", cwd=settings.parent)
    assert json.loads(drifts.stdout) == [], drifts.stdout
    remove_pods(plane, where, names)


@SQLITE
@pytest.mark.usefixtures("plugin_nodes")
def test_agent_and_plugin_nodes_each_get_the_pods_that_they_can_start(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    settings: Path,
) -> None:
    """Shares go to the agent's node, whole cards to the plugin's, where others' Pods count."""
    where = pods_in(namespace(managed=False))
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, "owned", gpus=2)
    as_agents = {GPU: None, "koordinator.sh/gpu.shared": "2"}
    told_of = {"status": {"allocatable": as_agents, "capacity": as_agents}}
    assert plane.api().patch("/api/v1/nodes/owned/status", told_of).ok
    share = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    with extender(plane, ledger, identities, config=settings) as served:
        stranger = pod("stranger", {GPU: "6"}, nodeName="gpu-1", schedulerName="nobody")
        assert plane.api().create(where, stranger).ok
        eventually(lambda: ("stranger", "gpu-1", 6) in held(ledger))
        with plane.scheduler(asking(plane, served, identities)):
            for name in ("a", "b"):
                made = plane.api().create(where, admitted(name, {GPU: "4"}, NVIDIA))
                assert made.ok, made.message
            eventually(lambda: len(held(ledger)) == 3)
            made = plane.api().create(where, admitted("share", share, NVIDIA))
            assert made.ok, made.message
            made = plane.api().create(where, admitted("third", {GPU: "3"}, NVIDIA))
            assert made.ok, made.message
            nodes = {
                one["metadata"]["name"]: one["spec"].get("nodeName")
                for one in settled(plane, where, 4)
            }
            said = eventually(lambda: told(plane, where, "third", "DevicesRefused"))
    expected = {"stranger": "gpu-1", "a": "gpu-2", "b": "gpu-2", "share": "owned"}
    assert nodes == expected
    assert said.startswith(
        "0/3 nodes are available: 2 Insufficient gpu devices, 1 NodeNotOffered: the node does not"
        f" advertise {GPU}: run NVIDIA's device plugin there."
    )
    remove_pods(plane, where, nodes)
    remove_node(plane, "owned")


@SQLITE
@pytest.mark.usefixtures("plugin_nodes")
def test_a_job_that_a_queue_admits_by_a_quota_on_cards_is_counted_by_their_name(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    settings: Path,
) -> None:
    """
    Kueue is played: it gates Pods, counts the name that they are stored with, and lifts gates.

    Its quota is 8 of `nvidia.com/gpu`; its flavor sends them to one node.
    """
    where, gate, quota = pods_in(namespace(managed=False)), "kueue.x-k8s.io/admission", 8
    names = ("job-0", "job-1", "job-2")
    with (
        extender(plane, ledger, identities, config=settings) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name in names:
            body = admitted(name, {GPU: "4"}, NVIDIA)
            body["spec"]["schedulingGates"] = [{"name": gate}]
            made = plane.api().create(where, body)
            assert made.ok, made.message
        for name in names:
            stored = plane.api().get(f"{where}/{name}").body["spec"]
            quota -= sum(int(one["resources"]["requests"][GPU]) for one in stored["containers"])
            if quota >= 0:
                flavor = {"nodeSelector": {"kubernetes.io/hostname": "gpu-2"}}
                lifted = {"spec": {**flavor, "schedulingGates": []}}
                assert plane.api().patch(f"{where}/{name}", lifted).ok
        settled(plane, where, 2)
        eventually(lambda: len(held(ledger)) == 2)
    assert held(ledger) == [("job-0", "gpu-2", 4), ("job-1", "gpu-2", 4)]
    assert not plane.api().get(f"{where}/job-2").body["spec"].get("nodeName")
    remove_pods(plane, where, names)


@SQLITE
def test_a_pod_that_admission_stored_for_another_mode_is_refused_with_both_values(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """The service shows cards by slots, and the Pod has none: nobody would show it its card."""
    where = pods_in(namespace(managed=False))
    path = tmp_path / "slots.yaml"
    path.write_text(
        "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\nslotMode: plugin\n"
    )
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, "owned", gpus=2)
    slots = {"koordinator.sh/gpu.shared": "2", "tenure.sh/slot": "8"}
    told_of = {"status": {"allocatable": slots, "capacity": slots}}
    assert plane.api().patch("/api/v1/nodes/owned/status", told_of).ok
    with (
        extender(plane, ledger, identities, config=path) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        assert plane.api().create(where, admitted("other", {GPU: "1"})).ok
        said = eventually(lambda: told(plane, where, "other", "DevicesRefused"))
        assert plane.api().create(where, admitted("alike", {GPU: "1"}, "slotMode: plugin")).ok
        [bound] = settled(plane, where, 1)
    fact = "slotMode of admission is another: the Pod has no slot, as in env; ours is plugin"
    assert fact in said
    assert bound["metadata"]["name"] == "alike"
    remove_node(plane, "owned")


def refused_or_bound(plane: ControlPlane, where: str, name: str) -> str:
    """Return why a Pod waits, or the name of its node."""
    node = plane.api().get(f"{where}/{name}").body["spec"].get("nodeName")
    return node or told(plane, where, name, "DevicesRefused")


@SQLITE
@pytest.mark.usefixtures("plugin_nodes")
def test_nobody_is_shown_a_card_of_ours_where_the_plugin_picks_another(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    settings: Path,
) -> None:
    """A Pod that keeps `nvidia.com/gpu` though admission, or all, mean `ours` gets no such node."""
    where = pods_in(namespace(managed=False))
    kept = admitted("kept", {GPU: "1"})  # as a quota on cards leaves it that only warns
    kept["metadata"]["annotations"] = {"tenure.sh/admitted": "true"}
    kept["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    said = {}
    for name, chosen in (("kept", None), ("other", settings)):
        kept["metadata"]["name"] = name
        again = chosen is not None
        with (
            extender(plane, ledger, identities, config=chosen, remembered=again) as served,
            plane.scheduler(asking(plane, served, identities)),
        ):
            assert plane.api().create(where, kept).ok
            said[name] = eventually(partial(refused_or_bound, plane, where, name))
    assert held(ledger) == []
    assert said["kept"].startswith(
        "0/2 nodes are available: 2 node(s) give whole cards by number alone."
    )
    assert "wholeCards of admission is ours, that of the scheduler nvidia" in said["other"]
