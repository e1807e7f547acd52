"""Answers of kubelet and of container runtimes, captured ones among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.json_format import ParseDict

from agent.checkpoint import read_device_checkpoint
from agent.manager_state import read_cpu_state
from agent.witness.said import (
    EXITED,
    Inside,
    ListContainersResponse,
    Listed,
    ListPodResourcesResponse,
    inside,
    listed,
    said_by_kubelet,
)
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tests.support.witnessing import LABELS, status

KUBELET: Final = Path(__file__).parents[3] / "samples" / "kubelet"
SAMPLES: Final = sorted((KUBELET / "podresources").glob("*.json"))


def answer_in(path: Path) -> Any:  # noqa: ANN401 - a message
    """Return List of a sample, as it comes over the wire."""
    said = json.loads(path.read_text())["List"]
    made = ParseDict(said, ListPodResourcesResponse(), ignore_unknown_fields=True)
    return ListPodResourcesResponse.FromString(made.SerializeToString())


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_what_kubelet_answered_is_read_whole(path: Path) -> None:
    """Captured of kubelet 1.36: every device id of its JSON is there, by Pod and container."""
    said = json.loads(path.read_text())
    wanted = {
        (pod["namespace"], pod["name"], container["name"], device)
        for pod in said["List"]["pod_resources"]
        for container in pod["containers"]
        for devices in container.get("devices", ())
        for device in devices["device_ids"]
    }
    found = said_by_kubelet(answer_in(path)).given
    assert {(*one.pod, one.container, each) for one in found for each in one.ids} == wanted


@pytest.mark.parametrize("name", ["one-pod", "one-pod-two-numa", "two-pods-8cpu-2numa"])
def test_file_and_answer_of_one_kubelet_say_the_same(name: str) -> None:
    """Two samples of one moment."""
    record = KUBELET / f"kubelet_internal_checkpoint.{name}.json"
    answer = answer_in(KUBELET / "podresources" / f"podresources.{name}.json")
    kept = read_device_checkpoint(record.read_bytes())
    assert sorted(sorted(one.ids) for one in said_by_kubelet(answer).given) == sorted(
        sorted(one.ids()) for one in kept.entries
    )


def test_the_cpus_that_kubelet_gave_are_those_of_its_record() -> None:
    """By container; a Pod without CPUs of its own is not there."""
    name = "two-pods-8cpu"
    record = KUBELET / "managers" / f"cpu_manager_state.static.{name}-ht.json"
    answer = answer_in(KUBELET / "podresources" / f"podresources.{name}-2numa.json")
    found = said_by_kubelet(answer).cpus
    assert found == {
        ("default", "vm1"): {"main": parse_cpuset("2-3")},
        ("default", "vm2"): {"main": parse_cpuset("6-7")},
    }
    _, kept = read_cpu_state(record.read_bytes())
    assert sorted(map(str, kept.values())) == sorted(map(str, found.values()))


def test_containers_of_pods_are_told_by_their_labels() -> None:
    """A container of somebody else's has none of kubelet's, and is of no Pod."""
    labels = {
        f"{LABELS}.pod.uid": "u",
        f"{LABELS}.pod.name": "train",
        f"{LABELS}.pod.namespace": "ml",
        f"{LABELS}.container.name": "main",
    }
    answer = ListContainersResponse(
        containers=[
            {"id": "a", "state": EXITED, "labels": labels},
            {"id": "b", "labels": {"com.docker.compose": "x"}},
        ]
    )
    [found] = listed(ListContainersResponse.FromString(answer.SerializeToString()))
    assert found == Listed(
        container_id="a",
        state=EXITED,
        pod_uid="u",
        namespace="ml",
        pod_name="train",
        name="main",
    )


CONTAINERD: Final = {
    "sandboxID": "s",
    "pid": 4711,
    "runtimeType": "io.containerd.runc.v2",
    "config": {
        "metadata": {"name": "main"},
        "envs": [{"key": "A", "value": "b"}],
        "CDI_devices": [{"name": "nvidia.com/gpu=0"}],
        "annotations": {"cdi.k8s.io/tenure": "tenure.sh/slot=x,nvidia.com/gpu=0"},
        "linux": {"security_context": {"privileged": False}},
    },
    "runtimeSpec": {
        "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"]},
        "mounts": [{"destination": "/proc", "type": "proc"}],
        "linux": {"devices": [{"path": "/dev/nvidia3", "type": "c"}]},
    },
}
CRIO: Final = {
    "sandboxID": "s",
    "pid": 4711,
    "privileged": True,
    "runtimeSpec": {
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES="]},
        "annotations": {"cdi.k8s.io/x": "vendor.test/card=a"},
        "linux": {},
    },
}


def test_what_a_container_was_made_with_is_read_of_containerd_and_crio() -> None:
    """Environment (the last of a name counts), mounts, CDI devices, device nodes, privilege."""
    found = inside(status(CONTAINERD, mounts=[{"container_path": "/data", "host_path": "/x"}]))
    assert found == Inside(
        visible="0",
        mounts=("/data", "/proc"),
        cdi=("nvidia.com/gpu=0", "tenure.sh/slot=x"),
        nodes=("/dev/nvidia3",),
    )
    assert inside(status(CRIO)) == Inside(visible="", cdi=("vendor.test/card=a",), privileged=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runtimeSpec": 5}', '{"pid":' + "[" * 99_999])
def test_words_that_nobody_knows_are_refused_by_name(text: str) -> None:
    """Not read as a container that has nothing."""
    with pytest.raises(InputError, match="tells"):
        inside(status(text))
