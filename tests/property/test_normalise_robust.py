from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.adopted.pods import adopt
from ledger.domain.errors import InputError, RefusedError
from ledger.domain.kube.node_objects import decode_node, decode_witnesses
from ledger.domain.log.events import (
    NodeDescribed,
    PodReserved,
    RequestDescribed,
    decode_event,
    encode_event,
)
from ledger.domain.log.recorded_node import recorded_node
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.request.normalise import decode_pod
from tests.support.objects import Object, container, device, gpu_device, node, nrt, pod, sidecar

T = TypeVar("T")
Step = str | int

POD = pod(
    container(
        "a",
        requests={"cpu": "2", "memory": "4Gi", "koordinator.sh/gpu": "50"},
        limits={"cpu": "2", "koordinator.sh/gpu": 50},
    ),
    container("b", limits={"koordinator.sh/rdma": 5, "cpu": 1}),
    init=[container("i", limits={"cpu": 1}), sidecar("s", limits={"cpu": 1})],
    uid="u1",
    labels={
        "team": "a",
        "koordinator.sh/qosClass": "LSR",
        "gputopology.scheduling.koordinator.sh/name": "g",
        "gputopology.scheduling.koordinator.sh/replica": "2",
    },
    annotations={
        "scheduling.koordinator.sh/device-allocate-hint": {"rdma": {"selector": {}}},
        "scheduling.koordinator.sh/resource-spec": {"preferredCPUBindPolicy": "FullPCPUs"},
        "scheduling.koordinator.sh/device-allocated": {
            "gpu": [{"minor": 0, "id": "GPU-0", "resources": {"koordinator.sh/gpu-core": 50}}]
        },
        "scheduling.koordinator.sh/resource-status": {"cpuset": "0-1"},
        "gang.scheduling.koordinator.sh/name": "g",
        "gang.scheduling.koordinator.sh/min-available": "2",
        "vke.volcengine.com/container-multiple-gpu": "2,1",
        "vke.volcengine.com/gpu-index-container-a": "0",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
    },
    nodeName="n1",
    nodeSelector={"zone": "a"},
    tolerations=[{"key": "a", "operator": "Exists"}],
    overhead={"cpu": "250m"},
    priority=9500,
)
POD["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
POD["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "controller": True}]
NODE = node(
    allocatable={"cpu": "24", "memory": "64Gi", "pods": 110, "nvidia.com/gpu": 2},
    labels={"vke.node.gpu.schedule": "mgpu"},
    annotations={"node.koordinator.sh/reservation": {"reservedCPUs": "0"}},
    taints=[{"key": "a", "effect": "NoSchedule"}],
)
DEVICE = device(
    gpu_device(0, topology={"nodeID": 0}),
    gpu_device(1),
    annotations={
        "node.koordinator.sh/devices-checkpoints": [
            {"podUID": "u1", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-0"]}
        ]
    },
    topologies={"gpu": [{"name": "bandwidth", "topology": "[[0,1],[1,0]]"}]},
)
NRT = nrt(
    cpu_topology={"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}]},
    pod_cpu_allocs=[{"uid": "u1", "cpuset": "0", "managedByKubelet": True}],
    cpu_manager_policy={"policy": "static", "reservedCPUs": "0"},
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(codec=None), max_size=8),
    st.sampled_from(
        ["", "-1", "1.5", "1e400", "9" * 40, "{", "[]", "{}", "null", "0-5,3", "1E", "Ki"]
    ),
)
keys = st.one_of(
    st.text(st.characters(codec=None), max_size=6),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["cpu", "nvidia.com/gpu", "koordinator.sh/gpu-core", "name", "resources"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["gpu", "minor", "id", "resources", "0", "cpuset", "allocatedGPUs"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


def places(value: object, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """Yield the path of every value inside an object."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


@st.composite
def damaged(draw: st.DrawFn, original: Object) -> Object:
    """Draw the object with up to three of its values replaced by anything at all."""
    body = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(body))))
        parent: object = body
        for step in path[:-1]:
            parent = parent[step]  # type: ignore[index]  # the path was just walked
        value = draw(values)
        if "annotations" in path[:-1] and draw(st.booleans()):
            value = json.dumps(draw(json_values))
        parent[path[-1]] = value  # type: ignore[index]  # likewise
    return body


def outcome(read: Callable[[], T]) -> T | None:
    """Return what `read` returns, None for an input that is named unreadable or refused."""
    try:
        return read()
    except InputError as error:
        fields = [error.field]
    except RefusedError as error:
        fields = [one.field for one in error.errors if one.message]
    assert all(fields)
    return None


@given(body=damaged(POD))
def test_a_damaged_pod_is_read_refused_or_unreadable(body: Object) -> None:
    """cli.md: exit code 2 or a refusal with field errors; never a traceback."""
    request = outcome(lambda: decode_pod(body))
    if request is not None:
        hash(request.placement)
        assert 0 <= request.cpu_milli <= INTEGER_MAX
        assert 0 <= request.memory_bytes <= INTEGER_MAX
        event = PodReserved(
            pod_uid=request.uid,
            attempt=1,
            namespace=request.namespace,
            pod_name=request.name,
            node_uid="n",
            node_name="n",
            cpu_milli=request.cpu_milli,
            memory_bytes=request.memory_bytes,
            snapshot=request.snapshot,
            request=request_digest(recorded_request(request)),
        )
        told = RequestDescribed(request=recorded_request(request))
        assert decode_event(told.event_type, encode_event(told)) == told
        body_text = encode_event(event)
        assert decode_event(PodReserved.event_type, body_text) == event
        assert body_text.encode()


FACTS = decode_node(NODE, DEVICE, NRT)[0]
WITNESSES = decode_witnesses(DEVICE, NRT)


@given(body=damaged(POD))
def test_a_damaged_running_pod_is_adopted_or_unreadable(body: Object) -> None:
    """Whatever a running Pod carries, what it holds is named or the input is refused."""
    held = outcome(lambda: adopt(body, FACTS, witnesses=WITNESSES))
    if held is not None:
        assert len({share.key for share in held.shares}) == len(held.shares)
        assert {share.key for share in held.shares} <= {card.key for card in FACTS.devices}


@given(which=st.sampled_from(["node", "device", "nrt"]), data=st.data())
def test_a_damaged_node_is_read_or_unreadable(which: str, data: st.DataObject) -> None:
    """The same for Nodes, Device objects and NodeResourceTopologies."""
    originals = {"node": NODE, "device": DEVICE, "nrt": NRT}
    objects = {**originals, which: data.draw(damaged(originals[which]))}
    found = outcome(lambda: decode_node(objects["node"], objects["device"], objects["nrt"]))
    if found is not None:
        node = found[0]
        told = NodeDescribed(node_uid=node.uid, node_name=node.name, facts=recorded_node(node))
        assert decode_event(told.event_type, encode_event(told)) == told
    outcome(lambda: decode_witnesses(objects["device"], objects["nrt"]))
    if found is not None:
        facts, _ = found
        assert list(facts.devices) == sorted(facts.devices, key=lambda card: card.key)
        assert len({card.key for card in facts.devices}) == len(facts.devices)
