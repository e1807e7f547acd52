"""Volcano's vGPUs, decided card by card (docs/contracts/volcano-vgpu.md, "In a simulation")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import container, node, pod

REGISTER = "volcano.sh/node-vgpu-register"
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "volcano.sh/vgpu-number": "20"}
TWO = "GPU-a,10,20000,NVIDIA-A10,true,hami-core:GPU-b,10,10000,NVIDIA-A10,true,hami-core:"
HALF = {"number": 1, "memory-percentage": 50}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def asking(name: str, *containers: dict[str, int], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a Pod whose containers ask for these, by the names behind `volcano.sh/vgpu-`."""
    made = [
        container(
            name=f"c{n}", limits={f"volcano.sh/vgpu-{key}": value for key, value in one.items()}
        )
        for n, one in enumerate(containers)
    ]
    body = pod(*made, name=name, uid=f"uid-{name}", namespace="ml", schedulerName="volcano")
    return body | {"metadata": body["metadata"] | more}


def placed(line: CommandLine, pods: Sequence[dict[str, Any]], register: str = TWO) -> list[str]:
    """Return who gets a place on one node, of which `why` says the same."""
    path = line.ledger.parent / "in.json"
    items = [node("v", allocatable=ROOM, annotations={REGISTER: register}), *pods]
    path.write_text(json.dumps({"kind": "List", "items": items}))
    told = json.loads(line.run("simulate", str(path), "-o", "json").out)["placements"]
    for each in told:
        why = json.loads(line.run("why", f"ml/{each['name']}", str(path), "-o", "json").out)
        assert (why["node"], why["state"] == "fits") == (each["node"], bool(each["node"]))
    return [each["name"] for each in told if each["node"]]


@pytest.mark.parametrize(
    ("pods", "some"),
    [
        pytest.param([asking("p", {"number": 2, "memory": 10000})], ["p"], id="two cards"),
        pytest.param([asking("p", {"number": 2, "memory": 10001})], [], id="one is too small"),
        pytest.param([asking("p", {"number": 3, "memory": 1})], [], id="more than there are"),
        pytest.param(
            [asking("p", {"number": 2, "memory": 1}, {"number": 2, "memory": 1})],
            ["p"],
            id="two containers share the cards",
        ),
        pytest.param(
            [asking(name, {"number": 2} | HALF | {"number": 2}) for name in "abc"],
            ["a", "b"],
            id="halves of both, twice",
        ),
        pytest.param([asking(n, {"number": 1}) for n in "abc"], ["a", "b"], id="all of a card"),
        pytest.param(
            [asking("a", {"number": 1, "memory": 1}), asking("b", {"number": 2, "cores": 100})],
            ["a"],
            id="100 cores take a card that nobody has",
        ),
        pytest.param(
            [asking("a", {"number": 2, "cores": 100, "memory": 1}), asking("b", HALF)],
            ["a"],
            id="a card whose cores are given takes nobody",
        ),
        pytest.param(
            [asking(n, {"number": 2, "memory": 1, "cores": 60}) for n in "ab"],
            ["a"],
            id="cores are short",
        ),
    ],
)
def test_cards_are_found_one_by_one(
    line: CommandLine, pods: list[dict[str, Any]], some: list[str]
) -> None:
    """Sums of a node say nothing of its cards; a Pod that comes first holds what it got."""
    assert placed(line, pods) == some


def test_a_card_that_is_ill_or_in_mig_mode_takes_nobody(line: CommandLine) -> None:
    """Nor does a node where a Pod has cards that nobody can name."""
    two = [asking("p", {"number": 2, "memory": 1})]
    assert placed(line, two, TWO.replace("true", "false", 1)) == []
    assert placed(line, two, TWO.replace("hami-core", "mig", 1)) == []
    stranger = asking("s", {"number": 1})
    stranger["spec"]["nodeName"] = "v"
    assert placed(line, [stranger, asking("p", {"number": 1, "memory": 1})]) == []


def test_what_runs_holds_what_its_annotation_says(line: CommandLine) -> None:
    """Of the first card 15000 MiB: 5000 are left there, and the other one."""
    given = {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,15000,10:", "volcano.sh/vgpu-node": "v"}
    runs = asking("r", {"number": 1, "memory": 15000}, annotations=given)
    runs["spec"]["nodeName"] = "v"
    assert placed(line, [runs, asking("p", {"number": 2, "memory": 5001})]) == []
    assert placed(line, [runs, asking("p", {"number": 2, "memory": 5000})]) == ["p"]


def test_what_is_asked_beside_devices_of_its_own_is_not_decided(line: CommandLine) -> None:
    """It has no place, and the field is named."""
    both = asking("p", HALF)
    both["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 1
    assert placed(line, [both]) == []
    answer = line.run("simulate", str(line.ledger.parent / "in.json"), "-o", "json")
    (told,) = json.loads(answer.out)["placements"]
    said = "spec.containers[volcano.sh/vgpu-number]: not decided: volcano reckons it card by card"
    assert told["unschedulable"]["message"].startswith(said)


@pytest.mark.parametrize(
    ("runs", "asks"),
    [
        ("volcano", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000}),
        ("volcano", {"nvidia.com/gpu": 1}),
        ("hami", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 9000}),
    ],
)
def test_a_card_of_two_registers_takes_nobody(
    line: CommandLine, runs: str, asks: dict[str, int]
) -> None:
    """Each system counts its own Pods alone, so that what both leave may be one card's."""
    one = {"id": "GPU-a", "count": 10, "devmem": 20000, "devcore": 100, "type": "NVIDIA-A10"}
    registers = {
        REGISTER: "GPU-a,10,20000,NVIDIA-A10,true,hami-core:",
        "hami.io/node-nvidia-register": json.dumps([one | {"index": 0, "health": True}]),
    }
    words = {"volcano": "volcano.sh/vgpu-ids-new", "hami": "hami.io/vgpu-devices-allocated"}
    given = {
        words[runs]: "GPU-a,NVIDIA,15000,10:;",
        f"{words[runs].partition('/')[0]}/vgpu-node": "v",
    }
    limits = {"volcano.sh/vgpu-number": 1} if runs == "volcano" else {"nvidia.com/gpu": 1}
    items = [
        node("v", allocatable=ROOM | {"nvidia.com/gpu": "10"}, annotations=registers),
        pod(container(limits=limits), name="r", annotations=given, nodeName="v"),
        pod(container(limits=asks), name="q", namespace="ml"),
    ]
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    told = json.loads(line.run("simulate", str(path), "-o", "json").out)["placements"]
    assert [each["node"] for each in told] == [None]
    (group,) = json.loads(line.run("map", str(path), "-o", "json").out)["nodes"][0]["groups"]
    (card,) = group["devices"]
    assert (card["closed"], card["healthy"], group["gettable"]) == (
        "also listed by volcano",
        True,
        0,
    )
    assert "also listed by volcano" in line.run("why", "ml/q", str(path)).out or runs == "hami"


def test_a_card_takes_no_more_parts_than_it_is_handed_out(line: CommandLine) -> None:
    """The register says how often, card by card; memory and cores are left."""
    few = TWO.replace("GPU-b,10,", "GPU-b,2,").replace("GPU-a,10,", "GPU-a,1,")
    pods = [asking(name, {"number": 1, "memory": 10}) for name in "abcd"]
    assert placed(line, pods, few) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "annotation",
    [
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "volcano.sh/vgpu-mode",
    ],
)
def test_who_chooses_among_cards_is_not_decided(line: CommandLine, annotation: str) -> None:
    """It has no place, and the annotation is named; the last lines say how others are placed."""
    pods = [asking("p", HALF, annotations={annotation: "A100"}), asking("q", HALF)]
    assert placed(line, pods) == ["q"]
    out = line.run("simulate", str(line.ledger.parent / "in.json")).out
    assert f"metadata.annotations[{annotation}]: not decided: volcano reckons it" in out
    assert "2 cards of volcano, on which Pods are placed card by card" in out


@pytest.mark.parametrize(("labelled", "fits"), [(1, False), (0, False), (2, True)])
def test_a_plugins_cards_that_may_be_volcanos_take_nobody(
    line: CommandLine, labelled: int, *, fits: bool
) -> None:
    """A number names no card: it is one of Volcano's unless a label counts more than these."""
    given = {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,15000,10:;", "volcano.sh/vgpu-node": "v"}
    runs = asking("r", {"number": 1, "memory": 15000}, annotations=given)
    runs["spec"]["nodeName"] = "v"
    counted = pod(container(limits={"nvidia.com/gpu": 1}), name="q", namespace="ml")
    body = node(
        "v",
        allocatable=ROOM | {"nvidia.com/gpu": "1"},
        annotations={REGISTER: "GPU-a,10,20000,NVIDIA-A10,true,hami-core:"},
        labels={"nvidia.com/gpu.count": f"{labelled}", "nvidia.com/gpu.replicas": "1"},
    )
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": [body, runs, counted]}))
    assert ("it would get v" in line.run("why", "ml/q", str(path)).out) is fits
    later = asking("vq", {"number": 1, "memory": 100})
    counted["spec"]["nodeName"] = "v"
    path.write_text(json.dumps({"kind": "List", "items": [body, counted, later]}))
    assert "it would get v" not in line.run("why", "ml/vq", str(path)).out
