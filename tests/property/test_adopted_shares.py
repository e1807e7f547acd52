from __future__ import annotations

from typing import Final

from hypothesis import assume, given
from hypothesis import strategies as st

from ledger.domain.adopted.pods import adopt
from ledger.domain.devices import DeviceShare
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.objects import Object, container, device, gpu_device, node, pod

CORE: Final = "vke.volcengine.com/mgpu-core"
MEMORY: Final = "vke.volcengine.com/mgpu-memory"
COUNTS: Final = "vke.volcengine.com/container-multiple-gpu"
POLICY: Final = "vke.volcengine.com/mgpu-compute-policy"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
GPU_MEM: Final = "aliyun.com/gpu-mem"

NODE: Final = decode_node(
    node(labels={POLICY: "native-burst-share"}),
    device(gpu_device(0), gpu_device(1, gib=16), gpu_device(2), gpu_device(3, gib=80)),
)[0]


@st.composite
def mgpu_pods(draw: st.DrawFn) -> Object:
    """An mGPU Pod that the rules allow: parts, whole cards, containers over several, and none."""
    multi = draw(st.booleans())
    counts, containers = [], []
    for number in range(draw(st.integers(1, 4))):
        cards = draw(st.integers(0, 3)) if multi else 1
        kind = draw(st.sampled_from(["part", "part", "whole", "none"])) if cards else "none"
        limits: Object = {}
        if kind == "whole":
            limits = {CORE: 100 * cards}
        elif kind == "part":
            memory = draw(st.integers(256, 6000)) * cards
            limits = {CORE: draw(st.integers(1, 99)) * cards, MEMORY: memory}
        counts.append(cards if limits else 0)
        containers.append(container(f"c{number}", limits=limits))
    annotations = {POLICY: "native-burst-share"}
    if multi:
        annotations[COUNTS] = ",".join(map(str, counts))
    return pod(*containers, annotations=annotations)


@st.composite
def share_pods(draw: st.DrawFn) -> Object:
    """A GPU share Pod of several containers, some with nothing, perhaps with an init container."""
    units = draw(st.lists(st.integers(0, 6000), min_size=1, max_size=4))
    init = draw(st.lists(st.integers(1, 20000), max_size=1))
    return pod(
        *[container(f"c{n}", limits={GPU_MEM: amount}) for n, amount in enumerate(units)],
        init=[container(f"i{n}", limits={GPU_MEM: amount}) for n, amount in enumerate(init)],
    )


def placed_and_adopted(
    body: Object, *, by_id: bool, canonical: bool
) -> tuple[Placement, PodObserved]:
    """Return the placement of a Pod, and what is read back from the Pod as it then runs."""
    mode = "id" if by_id else "index"
    settings = SchedulingSettings(mgpu=MGPUSettings(schedule_mode=mode))
    request = decode_pod(body)
    assume(request.devices)
    answer = Engine([NODE], settings).decide(request)
    assume(isinstance(answer, Placement))
    assert isinstance(answer, Placement)
    annotations = encode(answer, node=NODE, now_ns=1, settings=settings)
    if not canonical:
        del annotations[ALLOCATED]
    body["metadata"].setdefault("annotations", {}).update(annotations)
    body["spec"]["nodeName"] = "n1"
    return answer, adopt(body, NODE, Vocabulary())


def told(shares: tuple[DeviceShare, ...]) -> list[tuple[object, ...]]:
    """Return all of the shares but the ratio, which is for display."""
    return [
        (
            share.key,
            share.device_id,
            share.core_percent,
            share.memory_bytes,
            share.exclusive,
            share.instances,
            share.containers,
        )
        for share in shares
    ]


@given(body=mgpu_pods(), by_id=st.booleans(), canonical=st.booleans())
def test_an_mgpu_pod_is_adopted_with_what_it_was_given(
    body: Object, *, by_id: bool, canonical: bool
) -> None:
    """Written and read back are equal: cards, amounts, instances, containers; and no fault."""
    placement, adopted = placed_and_adopted(body, by_id=by_id, canonical=canonical)

    assert told(adopted.shares) == told(placement.shares)
    assert (adopted.unknown_types, adopted.faults, adopted.dialect) == ((), (), "mgpu")
    assert adopted.source == ("device-allocated" if canonical else "gpu-index-container")


@given(body=share_pods(), canonical=st.booleans())
def test_a_gpu_share_pod_is_adopted_with_what_it_was_given(
    body: Object, *, canonical: bool
) -> None:
    """The same for the one card of a GPU share."""
    placement, adopted = placed_and_adopted(body, by_id=False, canonical=canonical)

    assert told(adopted.shares) == told(placement.shares)
    assert (adopted.unknown_types, adopted.faults, adopted.dialect) == ((), (), "gpushare")
    assert adopted.source == ("device-allocated" if canonical else "gpushare-v1")
