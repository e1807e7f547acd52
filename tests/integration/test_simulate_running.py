"""`tenure simulate` over clusters where Pods run already, from manifests to the answer."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.support.claiming import REFUSED
from tests.support.cli import CommandLine
from tests.support.objects import Object, container, device, gpu_device, node, pod
from tests.support.topologies import EIGHT_GPU_NVLINK

pytestmark = pytest.mark.integration

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
CHECKPOINTS = "node.koordinator.sh/devices-checkpoints"
TOPOLOGY = "topology.scheduling.koordinator.sh/gpu"
GROUP = "gputopology.scheduling.koordinator.sh/"
NO_GPU = {"our taint by name, a NIC", "our taint by name, a claim", "a slot"}
BY_PLUGIN = "our taint by name, a name that others share"
STRANGERS = sorted(REFUSED.keys() - NO_GPU - {BY_PLUGIN, "anything in our domain"})
WHOLE = {
    "koordinator.sh/gpu-core": "100",
    "koordinator.sh/gpu-memory": "24Gi",
    "koordinator.sh/gpu-memory-ratio": "100",
}


def a_pod(name: str, gpus: int, held: list[int] | None = None, **more: object) -> Object:
    """Return a Pod that asks for whole GPUs, and runs on n1 where it holds some."""
    fields: Object = dict(more)
    if held is not None:
        entries = [{"minor": minor, "resources": WHOLE} for minor in held]
        fields |= {"nodeName": "n1", "annotations": {ALLOCATED: {"gpu": entries}}}
    return pod(container(limits={"nvidia.com/gpu": gpus}), name=name, uid=name, **fields)


def simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpus: int, *pods: Object, settings: str = ""
) -> dict[str, Any]:
    """Return the answer over one node with so many GPUs."""
    objects = [node(name="n1"), device(*map(gpu_device, range(gpus)), name="n1"), *pods]
    return _told(tmp_path, capsys, objects, settings)


def _told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    objects: list[Object],
    settings: str = "",
) -> dict[str, Any]:
    """Return the answer over these objects."""
    config = tmp_path / "settings.yaml"
    config.write_text(f"apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n{settings}\n")
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    line = CommandLine(tmp_path / "run.db", capsys)
    answer = line.run("simulate", str(path), "-o", "json", "--config", str(config))
    assert answer.code == 0, answer.err
    told: dict[str, Any] = json.loads(answer.out)
    return told


def test_a_member_sees_what_running_members_of_its_group_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPU-topology proposal: `visibleGPUs` are the whole group's on that node."""
    labels = {f"{GROUP}name": "g", f"{GROUP}replica": "3"}
    pods = (
        a_pod("p0", 2, [0, 1], labels=labels),
        a_pod("other", 1, [2]),
        a_pod("p1", 2, labels=labels),
        a_pod("p2", 2, labels=labels),
    )

    told = simulated(tmp_path, capsys, 8, *pods)

    for placement, own in zip(told["placements"], (["3", "4"], ["5", "6"]), strict=True):
        topology = json.loads(placement["annotations"][TOPOLOGY])
        assert topology["allocatedGPUs"] == {"0": own}
        assert topology["visibleGPUs"] == ["0", "1", "3", "4", "5", "6"]


def test_a_card_that_a_running_container_sees_is_for_its_group_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was shown card 2 with its own two; who comes to its group gets that, and is shown all."""
    labels = {f"{GROUP}name": "g", f"{GROUP}replica": "2"}
    ids = [gpu_device(minor)["id"] for minor in range(3)]
    runs = a_pod("p0", 2, [0, 1], labels=labels)
    runs["metadata"]["annotations"]["tenure.sh/shown"] = ",".join(ids)
    stranger, member = a_pod("other", 1), a_pod("p1", 1, labels=labels)

    told = simulated(
        tmp_path, capsys, 3, runs, stranger, member, settings="groups: {shareVisible: true}"
    )

    [refused, placed] = told["placements"]
    assert (refused["name"], refused["node"]) == ("other", None)
    assert (placed["name"], placed["node"]) == ("p1", "n1")
    assert placed["annotations"]["tenure.sh/shown"] == ",".join(ids)


FAST = [[0 if a == b else 300 for b in range(8)] for a in range(8)]
SUITABLE: Object = {
    "it is as it was": {},
    "it is cordoned": {"node": {"unschedulable": True}},
    "it is full": {"held": [6]},
    "one of its GPUs is dead": {"dead": [7]},
}


@pytest.mark.parametrize("how", SUITABLE)
def test_a_worker_made_anew_comes_to_the_node_of_its_peers_while_that_is_suitable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """
    GPU-topology proposal, Goal 4 and Story 2: three of four run on n1, GPUs 6 and 7 are free.

    n2 is empty and its links are faster; it is the next best.
    """
    now = SUITABLE[how]
    labels = {f"{GROUP}name": "g", f"{GROUP}replica": "4"}
    matrices = {"n1": [list(row) for row in EIGHT_GPU_NVLINK.rows], "n2": FAST}
    objects = [node("n1", **now.get("node", {})), node("n2")]
    for name, matrix in matrices.items():
        dead = now.get("dead", []) if name == "n1" else []
        cards = [gpu_device(i, id=f"{name}-{i}", health=i not in dead) for i in range(8)]
        links = {"gpu": [{"name": "bandwidth", "topology": json.dumps(matrix)}]}
        objects.append(device(*cards, name=name, topologies=links))
    objects += [a_pod(f"w{i}", 2, [2 * i, 2 * i + 1], labels=labels) for i in range(3)]
    objects += [a_pod(f"other{i}", 1, [i]) for i in now.get("held", [])]
    objects.append(a_pod("w3", 2, labels=labels))

    (placement,) = _told(tmp_path, capsys, objects)["placements"]

    given = (placement["node"], [entry["minor"] for entry in placement["devices"]["gpu"]])
    assert given == (("n2", [0, 1]) if now else ("n1", [6, 7]))


def test_workers_made_anew_fill_the_nodes_of_their_peers_before_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Peers run on two nodes: one more goes to each of them, and the last one elsewhere."""
    labels = {f"{GROUP}name": "g", f"{GROUP}replica": "5"}
    objects = [node("n0"), node("n1"), node("n2")]
    for name, size in {"n0": 8, "n1": 3, "n2": 2}.items():
        cards = [gpu_device(i, id=f"{name}-{i}") for i in range(size)]
        objects.append(device(*cards, name=name))
    objects += [a_pod("w0", 1, [0], labels=labels), a_pod("w1", 1, [0], labels=labels)]
    objects[-1]["spec"]["nodeName"] = "n2"
    objects += [a_pod(f"w{i}", 1, labels=labels) for i in (2, 3, 4, 5)]

    told = _told(tmp_path, capsys, objects)

    assert [placement["node"] for placement in told["placements"]] == ["n1", "n1", "n2", "n0"]


def test_no_card_is_guessed_when_a_running_pod_is_not_on_all_that_it_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """cli.md, Running Pods: its second card is counted, so one of three is free, whichever."""
    half = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    part = pod(container(limits=half), name="part")
    told = simulated(
        tmp_path, capsys, 3, a_pod("runs", 2, [0]), a_pod("two", 2), part, a_pod("one", 1)
    )

    whole, unnamed, placed = told["placements"]
    assert whole["unschedulable"]["nodes"] == {"n1": ["Insufficient gpu devices"]}
    assert unnamed["unschedulable"]["nodes"] == {"n1": ["node(s) have a Pod on an unknown card"]}
    assert (placed["node"], placed["devices"], placed["counted"]) == ("n1", {}, {"gpu": 1})
    assert told["summary"]["conflicts"] == [
        (
            "n1: held by ml/runs: device-allocated names fewer GPUs than the pod asks for: "
            "asked=2, named=1"
        )
    ]


def test_an_entry_that_names_no_memory_closes_its_card_and_is_a_conflict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """cli.md, Running Pods: nobody knows what the Pod has of the memory, so nobody gets any."""
    held = {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "10"}}]}
    runs = pod(container(), name="runs", nodeName="n1", annotations={ALLOCATED: held})
    waits = pod(container(limits={"koordinator.sh/gpu-memory-ratio": 25}), name="waits")

    told = simulated(tmp_path, capsys, 1, runs, waits)

    assert told["placements"][0]["unschedulable"]["nodes"] == {"n1": ["Insufficient gpu devices"]}
    assert told["summary"]["conflicts"] == [
        "n1: held by ml/runs: device-allocated names no memory of gpu 0"
    ]


@pytest.mark.parametrize("how", STRANGERS)
def test_who_got_onto_a_node_of_ours_by_himself_closes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Nobody gave it a card, so it may use any: no card of the node is given to anybody else."""
    runs = deepcopy(REFUSED[how])
    runs["metadata"]["uid"] = "uid-runs"
    runs["spec"]["nodeName"] = "n1"

    told = simulated(tmp_path, capsys, 3, runs, a_pod("waits", 1))

    (held,) = told["adopted"]
    assert (held["source"], held["devices"]) == ("", {})
    (refused,) = told["placements"]
    assert refused["unschedulable"]["nodes"] == {"n1": ["node(s) have a Pod on an unknown card"]}


def test_who_got_his_card_of_a_device_plugin_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nvidia.com/gpu: 2` is two cards, whichever; one of three is left."""
    runs = deepcopy(REFUSED[BY_PLUGIN])
    runs["metadata"]["uid"] = "uid-runs"
    runs["spec"]["nodeName"] = "n1"

    told = simulated(tmp_path, capsys, 3, runs, a_pod("waits", 1), a_pod("late", 1))

    assert told["adopted"][0]["counted"] == {"gpu": 2}
    assert [each["node"] for each in told["placements"]] == ["n1", None]


def test_a_node_that_others_get_to_gives_nothing_where_that_is_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files say nothing of owners, so it is set for a live cluster."""
    for settings, placed in (("", True), ("node: {ownedOnly: true}", False)):
        folder = tmp_path / str(placed)
        folder.mkdir()
        told = simulated(folder, capsys, 1, a_pod("waits", 1), settings=settings)
        (waits,) = told["placements"]
        assert (waits["node"] == "n1") == placed
        assert placed or waits["unschedulable"]["nodes"] == {"n1": ["NodeNotOwned"]}


@pytest.mark.parametrize(("scoring", "card"), [("MostAllocated", 0), ("LeastAllocated", 1)])
def test_device_scoring_picks_the_card_under_the_default_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scoring: str, card: int
) -> None:
    """Koordinator contract 8.2, the example: card 0 is used in part, cards 1 and 2 are idle."""
    ratio = "koordinator.sh/gpu-memory-ratio"
    held = {"gpu": [{"minor": 0, "resources": {ratio: "40"}}]}
    runs = pod(
        container(limits={ratio: 40}), name="runs", nodeName="n1", annotations={ALLOCATED: held}
    )
    waits = pod(container(limits={ratio: 25}), name="waits", uid="waits")

    told = simulated(tmp_path, capsys, 3, runs, waits, settings=f"devices: {{scoring: {scoring}}}")

    assert [device["minor"] for device in told["placements"][0]["devices"]["gpu"]] == [card]


def test_kubelets_entry_of_a_pod_that_is_not_in_the_input_holds_its_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Koordinator contract 2.7: nobody says that the Pod is gone, so its card stays held."""
    entries = [
        {"podUID": uid, "resourceName": "nvidia.com/gpu", "deviceIDs": [card]}
        for uid, card in (("ghost", "GPU-0"), ("done", "GPU-1"))
    ]
    elsewhere = [{"podUID": "ghost", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-b1"]}]
    others = [gpu_device(minor, id=f"GPU-b{minor}") for minor in range(2)]
    ended = a_pod("done", 1, nodeName="n1", phase="Succeeded")
    objects = [
        node("n1"),
        device(*map(gpu_device, range(3)), name="n1", annotations={CHECKPOINTS: entries}),
        node("n2"),
        device(*others, name="n2", annotations={CHECKPOINTS: elsewhere}),
        ended,
        *(a_pod(f"p{number}", 1) for number in range(4)),
    ]

    told = _told(tmp_path, capsys, objects)

    cards = sorted(
        (placed["node"], gpu["minor"])
        for placed in told["placements"]
        for gpu in placed["devices"].get("gpu", ())
    )
    assert cards == [("n1", 1), ("n1", 2), ("n2", 0)]
    assert [(pod["uid"], pod["node"], pod["source"]) for pod in told["adopted"]] == [
        ("ghost", "n1", "devices-checkpoints"),
        ("ghost@n2", "n2", "devices-checkpoints"),
    ]
    assert told["summary"]["warnings"] == [
        f"node {name}: devices-checkpoints names a Pod that is not in the input, it holds as an "
        "unknown one: pod_uid=ghost"
        for name in ("n1", "n2")
    ]
