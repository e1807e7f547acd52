"""Machine Z of the Koordinator contract, 8.6: five GPUs and three NICs under three PCIe roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import DeviceSettings, SchedulingSettings
from tests.support.objects import Object, device, gpu_device, gpu_pod, node

HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION: Final = "scheduling.koordinator.sh/gpu-partition-spec"
TABLE: Final = "scheduling.koordinator.sh/gpu-partitions"
POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
MODEL: Final = "node.koordinator.sh/gpu-model"
VENDOR: Final = "node.koordinator.sh/gpu-vendor"
RDMA: Final = "koordinator.sh/rdma"
WHOLE: Final = "nvidia.com/gpu"
GPU: Final = "koordinator.sh/gpu"

BESIDE: Final = {"deviceTypes": ["gpu", "rdma"]}
SAME_PCIE: Final = {**BESIDE, "requiredScope": "SamePCIe"}
ANY_VF: Final[Object] = {"rdma": {"vfSelector": {}}}

_GPU_PLACES: Final = ((0, "a0"), (0, "a0"), (0, "a1"), (1, "b0"), (1, "b0"))
_NIC_PLACES: Final = {10: (0, "a0"), 11: (0, "a1"), 12: (1, "b0")}


def place(numa_node: int, root: str) -> Object:
    """Return a device's topology."""
    return {"socketID": -1, "nodeID": numa_node, "pcieID": root}


def nic_device(minor: int, numa_node: int, root: str, /, **more: object) -> Object:
    """Return a NIC with the VFs 0 and 1 for training."""
    functions = [{"minor": n, "busID": bus_id(minor, n)} for n in range(2)]
    return {
        "type": "rdma",
        "id": f"0000:{minor:02x}:00.0",
        "minor": minor,
        "health": True,
        "labels": {"fabric": "roce"},
        "resources": {RDMA: "100"},
        "topology": place(numa_node, root),
        "vfGroups": [{"labels": {"use": "train"}, "vfs": functions}],
        **more,
    }


def bus_id(nic: int, function: int) -> str:
    """Return the bus id of a VF."""
    return f"0000:{nic:02x}:01.{function}"


def machine_z_devices() -> list[Object]:
    """Return the devices of the machine's Device object."""
    gpus = [gpu_device(minor, topology=place(*where)) for minor, where in enumerate(_GPU_PLACES)]
    nics = [nic_device(minor, *where) for minor, where in _NIC_PLACES.items()]
    return [*gpus, *nics]


def machine_z() -> NodeFacts:
    """Return the machine as its Node and Device objects tell it."""
    return facts_of(*machine_z_devices())


def facts_of(
    *devices: Object,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, object] | None = None,
) -> NodeFacts:
    """Return a node with these devices; labels and annotations are the Device object's."""
    body = device(*devices, labels=dict(labels or {}), annotations=dict(annotations or {}))
    facts, warnings = decode_node(node(), body)
    assert not warnings, warnings
    return facts


def view_of(
    facts: NodeFacts,
    *,
    used: Sequence[int] = (),
    percent: int = 100,
    functions: Sequence[str] = (),
) -> NodeView:
    """Return the node with `percent` of these devices (by minor) held, and VFs in use."""
    cards = []
    for record in facts.devices:
        held = percent if record.minor in used else 0
        cards.append(
            CardView(
                record=record,
                core_free=record.core_percent - held,
                memory_free=record.memory_bytes - held * record.memory_bytes // 100,
                tenants=int(held > 0),
                exclusive=held == 100,
                instances=int(held > 0),
                closed=not record.healthy,
                vfs_in_use=frozenset(functions) & {vf.bus_id for vf in record.vfs},
            )
        )
    return NodeView(facts=facts, cards=tuple(cards))


def ask(
    view: NodeView,
    limits: Mapping[str, object],
    annotations: Mapping[str, object] | None = None,
    *,
    devices: DeviceSettings | None = None,
) -> Choice | Unfit:
    """Return what the node would give a Pod with these limits and annotations."""
    request = decode_pod(gpu_pod(limits, annotations=annotations or {}))
    settings = SchedulingSettings(devices=devices or DeviceSettings(scoring="LeastAllocated"))
    return choose(replace(request, uid="uid-p"), view, settings)


def minors(answer: Choice | Unfit, device_type: str = "gpu") -> list[int]:
    """Return which devices of a type were chosen; a refusal fails the test with its reason."""
    assert isinstance(answer, Choice), answer
    return [share.minor for share in answer.shares if share.device_type == device_type]


def reason(answer: Choice | Unfit) -> str:
    """Return why the node refuses."""
    assert isinstance(answer, Unfit), answer
    return answer.reason
