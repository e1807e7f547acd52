import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.errors import InputError
from scheduler.cluster.model import RefusedPod
from scheduler.decide.settings import SchedulingSettings
from tenure.simulate.inputs import read_manifest_run
from tenure.simulate.model import Run
from tests.support.objects import Json, container, device, gpu_device, node, nrt, pod
from tests.support.runs import START_US

GPU = {"koordinator.sh/gpu": "50"}
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def run_on(folder: Path, objects: Sequence[dict[str, Any]]) -> Run:
    """Write the objects as one List, indented, and read them as a run."""
    text = json.dumps({"kind": "List", "items": list(objects)}, indent=1)
    (folder / "in.json").write_text(text, encoding="utf-8")
    return read_manifest_run(
        [str(folder / "in.json")], settings=SchedulingSettings(), start_us=START_US
    )


def named(name: str, **more: Json) -> dict[str, Any]:
    """Return a Pod with half a card."""
    return pod(container(limits=GPU), name=name, **more)


def config_map(node_name: str, text: object, namespace: str = "kube-system") -> dict[str, Any]:
    """Return the ConfigMap that lists a node's unhealthy cards."""
    metadata = {"name": f"unhealthy-gpu-{node_name}", "namespace": namespace}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"gpus": text}}


def test_nodes_come_with_all_that_describes_them(tmp_path: Path) -> None:
    """Device, topology and the ConfigMap of unhealthy cards belong to a Node by name."""
    run = run_on(
        tmp_path,
        [
            config_map("n1", "1"),
            device(gpu_device(0), gpu_device(1)),
            node("n2", allocatable={"cpu": "4", "memory": "8Gi"}),
            node("n1", allocatable={"cpu": "8", "memory": "16Gi"}),
        ],
    )

    assert [facts.name for facts in run.nodes] == ["n2", "n1"]
    assert [record.healthy for record in run.nodes[1].devices] == [True, False]
    assert (run.warnings, run.timed, run.source) == ((), False, "manifests")


def test_pods_are_pending_running_or_over(tmp_path: Path) -> None:
    """Bound and not ended: adopted, also while it is being deleted. Ended ones hold nothing."""
    ended = named("done", nodeName="n1", phase="Succeeded")
    failed = named("failed", nodeName="n1", phase="Failed")
    leaving = named("leaving", nodeName="n1", phase="Running")
    leaving["metadata"]["deletionTimestamp"] = "2026-03-02T09:00:00Z"
    objects = [node("n1"), ended, leaving, named("waiting"), failed, named("next", phase="Pending")]
    run = run_on(tmp_path, objects)

    assert [seen.pod_name for seen in run.adopted] == ["leaving"]
    assert [arrival.pod.name for arrival in run.arrivals] == ["waiting", "next"]
    assert {arrival.at_us for arrival in run.arrivals} == {START_US}


def test_a_running_pod_is_adopted_with_what_it_holds(tmp_path: Path) -> None:
    """Its cards, the source they were read from, and the models of the cards."""
    entry = {"minor": 1, "resources": {"koordinator.sh/gpu-core": "50"}}
    held = named("p", nodeName="n1", annotations={ALLOCATED: {"gpu": [entry]}})
    objects = [node("n1"), device(gpu_device(0), gpu_device(1)), held]
    (adopted,) = run_on(tmp_path, objects).adopted

    assert (adopted.node_name, adopted.source) == ("n1", "device-allocated")
    assert [(share.minor, share.core_percent) for share in adopted.shares] == [(1, 50)]
    assert len(adopted.device_models) == 1


def test_a_pod_that_breaks_a_rule_is_refused_not_unreadable(tmp_path: Path) -> None:
    """It is unschedulable with its field errors; the others go on."""
    mixed = pod(container(limits={**GPU, "nvidia.com/gpu": "1"}), name="mixed")
    run = run_on(tmp_path, [node("n1"), mixed, named("fine")])

    refused, fine = (arrival.pod for arrival in run.arrivals)
    assert isinstance(refused, RefusedPod)
    assert "one dialect only" in refused.message
    assert fine.name == "fine"


def test_unhealthy_cards_are_listed_in_kube_system_only(tmp_path: Path) -> None:
    """GPU-sharing contract B.1: whoever may write any other namespace closes no cards."""
    objects = [node("n1"), device(gpu_device(0), gpu_device(1)), config_map("n1", "1", "ml")]
    run = run_on(tmp_path, objects)

    assert [card.healthy for card in run.nodes[0].devices] == [True, True]
    assert [warning.split(": ", 1)[1] for warning in run.warnings] == [
        "ConfigMap ml/unhealthy-gpu-n1: only those of namespace kube-system count, ignored"
    ]


def test_what_is_not_used_is_a_warning(tmp_path: Path) -> None:
    """Nothing is dropped silently: other kinds, objects without their Node, Pods elsewhere."""
    deployment = {"kind": "Deployment", "metadata": {"name": "d"}}
    run = run_on(
        tmp_path,
        [
            deployment,
            {"kind": "Namespace", "metadata": {"name": "ml"}},
            device(gpu_device(0), name="gone"),
            nrt("gone"),
            config_map("gone", "0"),
            named("away", nodeName="elsewhere"),
        ],
    )

    where = f"{tmp_path}/in.json"
    texts = [warning.replace(where, "in.json") for warning in run.warnings]
    assert texts[0] == "not used by a simulation, ignored: kind=Deployment, objects=1"
    assert [text.split(": ", 2)[1] for text in texts[1:4]] == [
        "Device gone",
        "NodeResourceTopology gone",
        "ConfigMap kube-system/unhealthy-gpu-gone",
    ]
    assert texts[4].startswith("the input has no Node, so nothing can be placed")
    assert texts[5] == (
        "running Pods on a Node that is not in the input: what they hold is not known: "
        "node=elsewhere, pods=1"
    )
    (away,) = run.adopted
    assert (away.node_uid, away.node_name) == ("", "elsewhere")


def test_an_odd_annotation_of_one_running_pod_does_not_stop_the_run(tmp_path: Path) -> None:
    """It holds a card that nobody can name; the others are read as ever."""
    odd = named("odd", nodeName="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "abc"})
    run = run_on(tmp_path, [node("n1"), device(gpu_device(0)), odd, named("next")])

    assert [(held.pod_name, held.unknown_types) for held in run.adopted] == [("odd", ("gpu",))]
    assert [arrival.pod.name for arrival in run.arrivals] == ["next"]


def test_another_groups_device_describes_no_node(tmp_path: Path) -> None:
    """It is a foreign kind: a warning with its group, and the Device of ours counts."""
    foreign = {"apiVersion": "acme.io/v1", "kind": "Device", "metadata": {"name": "n1"}}
    ours = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", **device(gpu_device(0))}
    run = run_on(tmp_path, [node("n1"), foreign, ours])

    assert run.warnings == ("not used by a simulation, ignored: kind=Device.acme.io, objects=1",)
    assert len(run.nodes[0].devices) == 1


def bad_device() -> dict[str, Any]:
    """Return a Device with an impossible amount."""
    return device({**gpu_device(0), "resources": {"koordinator.sh/gpu-core": "lots"}})


@pytest.mark.parametrize(
    ("objects", "title", "field", "line"),
    [
        pytest.param(
            [node("n1", allocatable={"cpu": "1.5Gi2"})],
            "Node n1",
            "status.allocatable[cpu]",
            '"cpu": "1.5Gi2"',
            id="a Node's quantity",
        ),
        pytest.param(
            [node("n1"), bad_device()],
            "Device n1",
            "spec.devices[0].resources[koordinator.sh/gpu-core]",
            '"koordinator.sh/gpu-core": "lots"',
            id="a Device's quantity",
        ),
        pytest.param(
            [node("n1"), nrt("n1", cpu_topology="{")],
            "NodeResourceTopology n1",
            "metadata.annotations[node.koordinator.sh/cpu-topology]",
            '"node.koordinator.sh/cpu-topology": "{"',
            id="a topology that is not JSON",
        ),
        pytest.param(
            [node("n1"), config_map("n1", 3)],
            "ConfigMap kube-system/unhealthy-gpu-n1",
            "data[gpus]",
            '"gpus": 3',
            id="a ConfigMap's number",
        ),
        pytest.param(
            [node("n1"), pod(container(limits={"koordinator.sh/gpu": "-1"}), name="p")],
            "Pod ml/p",
            "spec.containers[0].resources.limits[koordinator.sh/gpu]",
            '"koordinator.sh/gpu": "-1"',
            id="a negative GPU",
        ),
        pytest.param(
            [
                {
                    "kind": "ResourceQuota",
                    "metadata": {"name": "q"},
                    "spec": {"hard": {"cpu": "abc"}},
                }
            ],
            "ResourceQuota default/q",
            "spec.hard[cpu]",
            '"cpu": "abc"',
            id="a quota's quantity",
        ),
        pytest.param(
            [node("n1"), pod(container(limits={"cpu": "two"}), name="p", phase="Failed")],
            "Pod ml/p",
            "spec.containers[0].resources.limits[cpu]",
            '"cpu": "two"',
            id="the quantity of a Pod that is over",
        ),
        pytest.param(
            [node("n1"), named("p", nodeName="n1", annotations={ALLOCATED: "{"})],
            "Pod ml/p",
            f"metadata.annotations[{ALLOCATED}]",
            f'"{ALLOCATED}": "{{"',
            id="a running Pod's annotation that is not JSON",
        ),
    ],
)
def test_an_unreadable_object_is_named_with_file_line_and_field(
    tmp_path: Path, objects: list[dict[str, Any]], title: str, field: str, line: str
) -> None:
    """Of the several objects that describe a node, the one with the error is blamed."""
    with pytest.raises(InputError) as caught:
        run_on(tmp_path, objects)

    place, found, path = str(caught.value).split(": ")[:3]
    assert (found, path) == (title, field)
    assert place.startswith(f"{tmp_path}/in.json:")
    lines = (tmp_path / "in.json").read_text(encoding="utf-8").splitlines()
    assert line in lines[int(place.rsplit(":", 1)[1]) - 1]


def test_the_hash_is_over_the_input(tmp_path: Path) -> None:
    """The same objects are the same run; one more object is another."""
    first = run_on(tmp_path, [node("n1")]).inputs_hash

    assert run_on(tmp_path, [node("n1")]).inputs_hash == first
    assert run_on(tmp_path, [node("n1"), node("n2")]).inputs_hash != first
    assert len(first) == 64
