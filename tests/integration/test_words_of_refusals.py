"""What `tenure why` says of Pods that no node of a dump takes: causes, numbers and names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import CommandLine, dumped
from tests.support.corpus import CORPUS
from tests.support.objects import Object, gpu_pod, node

pytestmark = pytest.mark.integration

ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
GPU = "nvidia.com/gpu"
COUNT = f"{GPU}.count"
GPU_A, GPU_B = "GPU-a", "GPU-b"
PENDING = {"nvidia.com/mig.config.state": "pending"}


def offering(name: str, labels: dict[str, str] | None = None, /, **offers: int) -> Object:
    """Return a node that offers these."""
    return node(name, allocatable={**ROOM, **offers}, labels=labels or {})


def hami(name: str, *ids: str, **annotations: str) -> Object:
    """Return a node of HAMi's with these cards of 24000 MiB."""
    card = {"count": 10, "devmem": 24000, "devcore": 100, "type": "NVIDIA-L4", "health": True}
    register = [{"id": key, "index": place, **card} for place, key in enumerate(ids)]
    words = {"hami.io/node-nvidia-register": register, **annotations}
    return node(name, allocatable={**ROOM, GPU: 10 * len(ids)}, annotations=words)


def why(
    line: CommandLine, limits: dict[str, Any], *objects: Object, **spec: str
) -> tuple[str, dict[str, Any]]:
    """Return what is said of a Pod with these limits: for people, and as JSON."""
    path = dumped(line, *objects, gpu_pod(limits, name="p", namespace="team", uid="p", **spec))
    text, found = line.run("why", "team/p", path), line.run("why", "team/p", path, "-o", "json")
    return text.out, json.loads(found.out)


@pytest.mark.parametrize(
    ("labels", "offers", "asked", "never", "said"),
    [
        pytest.param({COUNT: "8"}, {}, 1, False, "8 of 8 nvidia.com/gpu of n", id="none offered"),
        pytest.param({COUNT: "8"}, {GPU: 0}, 8, False, "8 of 8 nvidia.com/gpu of n", id="gone"),
        pytest.param({COUNT: "8"}, {}, 9, True, "the most is 8", id="more than there are"),
        pytest.param({f"{GPU}.present": "true"}, {}, 1, False, "of n", id="nobody says how many"),
        pytest.param({COUNT: "8", **PENDING}, {GPU: 0}, 1, False, "n is being cut", id="being cut"),
        pytest.param({COUNT: "8"}, {f"{GPU}.shared": 80}, 1, False, "meant", id="replicas"),
        pytest.param({}, {}, 1, True, "there is none", id="a node without cards"),
    ],
)
def test_cards_that_labels_tell_of_are_there(
    line: CommandLine,
    labels: dict[str, str],
    offers: dict[str, int],
    asked: int,
    *,
    never: bool,
    said: str,
) -> None:
    """A plugin that offers nothing may offer them again."""
    text, found = why(line, {GPU: asked}, offering("n", labels, **offers))
    assert bool(found["never"]) == never, text
    assert said in text


@pytest.mark.parametrize(
    ("number", "beside"),
    [
        ("huawei.com/Ascend910B3", "huawei.com/Ascend910B3-memory"),
        ("hygon.com/dcunum", "hygon.com/dcumem"),
        ("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"),
        ("metax-tech.com/sgpu", "metax-tech.com/vcore"),
        ("enflame.com/vgcu", "enflame.com/vgcu-percentage"),
    ],
)
def test_what_hami_reckons_from_its_register_is_never_refused_for_ever(
    line: CommandLine, number: str, beside: str
) -> None:
    """No node offers memory and cores of these cards: the number alone is a plugin's."""
    asked = {number: 1, beside: 10}
    text, found = why(line, asked, offering("n", {}, **{number: 8}), schedulerName="hami-scheduler")
    assert not found["never"], text
    assert f"not decided: spec.containers[{beside}]: hami-scheduler reckons" in text


@pytest.mark.parametrize(
    ("asked", "offers", "meant"),
    [
        pytest.param(
            {"amd.com/gpu": 1},
            {"amd.com/spx_nps1": 6, "amd.com/dpx_nps1": 4},
            "amd.com/gpu: nobody offers it; meant amd.com/spx_nps1? 1 of 2 nodes offer it, 6 free",
            id="AMD's partitions, whole cards first",
        ),
        pytest.param(
            {"amd.com/gpu": 2},
            {"amd.com/cpx_nps1": 64},
            "amd.com/gpu: nobody offers it; meant amd.com/cpx_nps1? 1 of 2 nodes offer it, 64 free",
            id="AMD's partitions",
        ),
    ],
)
def test_a_name_is_said_once_with_what_was_meant(
    line: CommandLine, asked: dict[str, int], offers: dict[str, int], meant: str
) -> None:
    """And what is asked for is printed as it is written."""
    text, found = why(line, asked, offering("n", {}, **offers), offering("cpu"))
    assert not found["never"], text
    assert meant in found["message"]
    assert f"Insufficient {min(asked)}: nobody" not in text
    assert ", ".join(f"{asked[name]} {name}" for name in sorted(asked)) in text


def test_of_what_no_node_counts_nobody_says_how_many_are_free(line: CommandLine) -> None:
    """Volcano reckons cores card by card."""
    register = {"volcano.sh/node-vgpu-register": "GPU-a,10,24000,NVIDIA-L4,true,hami-core:"}
    offers = {**ROOM, "volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 24000}
    asked = {"volcano.sh/vgpu-core": 10, "volcano.sh/vgpu-number": 1}
    _, found = why(line, asked, node("v", allocatable=offers, annotations=register))
    assert "meant volcano.sh/vgpu-cores? 1 of 1 nodes offer it." in found["message"]


def test_more_cards_than_are_counted_are_printed_as_they_are_written(line: CommandLine) -> None:
    """Amounts are bounded where they are decided."""
    text, found = why(line, {GPU: 10_000_000}, offering("n", {}, **{GPU: 4}))
    assert "asks for 10000000 nvidia.com/gpu" in text
    assert found["never"].endswith("the most is 4")


def test_nobody_is_told_to_label_a_node_that_offers_cards_of_another_vendor(
    line: CommandLine,
) -> None:
    """What its plugin offers says whose they are."""
    text, _ = why(line, {"amd.com/gpu": 1}, offering("n", {}, **{GPU: 4}))
    assert "asks for 1 amd.com/gpu" in text
    assert "gpu-vendor with the vendor" not in text


def test_a_name_is_offered_by_the_nodes_that_have_such_cards_alone(line: CommandLine) -> None:
    """HAMi's node takes NVIDIA's cards, and no AMD's."""
    amd = offering("a", {}, **{"amd.com/gpu": 8})
    _, found = why(line, {"amd.com/gpus": 1}, hami("h", GPU_A, GPU_B), amd)
    assert "meant amd.com/gpu? 1 of 2 nodes offer it, 8 free" in found["message"]


def test_a_card_that_is_closed_is_said_to_be_for_its_own_cause(line: CommandLine) -> None:
    """HAMi's handshake says that its plugin is gone: no card is ill."""
    gone = {"hami.io/node-handshake": "Deleted_2026.11.20 10:00:00"}
    text, _ = why(line, {GPU: 1}, hami("h", GPU_A, GPU_B, **gone))
    assert "GPU 0, 1 closed: plugin gone" in text


@pytest.mark.parametrize("register", ['[{"id":"GPU-1","count":10,"dev', "[]"])
def test_shares_are_no_closed_cards(line: CommandLine, register: str) -> None:
    """Of a register that can't be read, nobody knows how many cards there are."""
    words = {"hami.io/node-nvidia-register": register}
    h = node("h", allocatable={**ROOM, GPU: 40}, labels={COUNT: "4"}, annotations=words)
    text, _ = why(line, {GPU: 1, "nvidia.com/gpumem": 1000}, h)
    assert "40 GPU" not in text
    assert "what cards h has can't be read" in text


def test_units_of_a_card_that_nobody_counts_are_never_refused_for_ever(line: CommandLine) -> None:
    """The plugin offers memory of cards, and says not of how many."""
    text, found = why(
        line, {"aliyun.com/gpu-mem": 12}, offering("g", {}, **{"aliyun.com/gpu-mem": 15})
    )
    assert not found["never"], text
    assert "what cards g has can't be read" in text


def test_memory_of_several_cards_is_asked_for_in_mib(line: CommandLine) -> None:
    """No percentage was asked for."""
    runs = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,20000,0:;", "hami.io/vgpu-node": "h"}
    asked = {GPU: 1, "nvidia.com/gpumem": 20000}
    r = gpu_pod(asked, name="r", namespace="team", uid="r", nodeName="h", annotations=runs)
    text, _ = why(line, {**asked, GPU: 2}, hami("h", GPU_A, GPU_B), r)
    assert "asks 20000Mi of 2 GPU, 1 have that left" in text


def test_the_pod_of_a_claim_is_to_end_and_not_the_claim(line: CommandLine) -> None:
    """A claim is no Pod, whatever it is called."""
    dump = json.loads((CORPUS / "hami-and-dra-one-card" / "dump.json").read_text("utf-8"))
    text, _ = why(line, {GPU: 2}, *dump["items"])
    assert "end 2 Pods (perhaps fewer do): team/by-hami, that of claim team/c1: both" in text
