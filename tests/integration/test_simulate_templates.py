from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import Json, Object, container, device, gpu_device, node, pod
from tests.support.simulating import Simulate

pytestmark = pytest.mark.integration

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
ISOLATION: Final = "koordinator.sh/gpu-isolation-provider"
CORE: Final = "huawei.com/npu-core"
CPU: Final = "huawei.com/npu-cpu"
DVPP: Final = "huawei.com/npu-dvpp"
SHARED: Final = "koordinator.sh/gpu.shared"
MEMORY: Final = "koordinator.sh/gpu-memory"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
VENDOR: Final = "node.koordinator.sh/gpu-vendor"
MODEL: Final = "node.koordinator.sh/gpu-model"
ASCEND: Final = {VENDOR: "huawei", MODEL: "Ascend-310P3"}
TEMPLATES: Final = """
huawei-Ascend-310P3:
  vir01: {huawei.com/npu-core: 1, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 3Gi}
  vir02: {huawei.com/npu-core: 2, huawei.com/npu-cpu: 2, koordinator.sh/gpu-memory: 6Gi}
  vir02_1c: {huawei.com/npu-core: 2, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 6Gi}
  vir04_dvpp:
    huawei.com/npu-core: 4
    huawei.com/npu-cpu: 4
    huawei.com/npu-dvpp: 100
    koordinator.sh/gpu-memory: 12Gi
  vir04_none:
    huawei.com/npu-core: 4
    huawei.com/npu-cpu: 4
    huawei.com/npu-dvpp: 0
    koordinator.sh/gpu-memory: 12Gi
  half: {huawei.com/npu-core: 4, koordinator.sh/gpu-memory-ratio: 50}
  twin-a: {huawei.com/npu-core: 3, huawei.com/npu-cpu: 3, koordinator.sh/gpu-memory: 9Gi}
  twin-b: {huawei.com/npu-core: "3", huawei.com/npu-cpu: "3", koordinator.sh/gpu-memory: 9216Mi}
huawei-Ascend-910B:
  vir05: {huawei.com/npu-core: 5, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 16Gi}
"""
UNMATCHED: Final = "0/1 nodes are available: 1 no matched GPU shared resource template."


def config_map(text: str = TEMPLATES, namespace: str = "koordinator-system") -> Object:
    """Return the ConfigMap of contract 8.7."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpu-shared-resource-templates", "namespace": namespace},
        "data": {"data.yaml": text},
    }


def ascend(cards: int = 1, *, labels: Mapping[str, str] = ASCEND, cpus: int = 7) -> list[Object]:
    """Return a node of 24 GiB cards with 8 AI cores, 7 AI CPUs and a media engine each."""
    resources = {CORE: 8, CPU: cpus, DVPP: 100, MEMORY: "24Gi", RATIO: 100}
    described = [gpu_device(minor, resources=resources) for minor in range(cards)]
    return [node("n1"), device(*described, labels=labels)]


def part(core: int, cpu: int, gib: int, **more: int) -> dict[str, object]:
    """Return the words of a share by AI cores, AI CPUs and memory."""
    dvpp = {DVPP: more["dvpp"]} if more else {}
    return {SHARED: 1, CORE: core, CPU: cpu, MEMORY: f"{gib}Gi", **dvpp}


def asking(name: str, limits: Mapping[str, object], **more: Json) -> Object:
    """Return a pending Pod of one container."""
    return pod(container(limits=limits), name=name, **more)


def answer(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what became of one Pod."""
    return next(item for item in document["placements"] if item["name"] == name)


def given(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the GPU entries of a Pod's `device-allocated`."""
    entries: list[dict[str, Any]] = json.loads(answer(document, name)["annotations"][ALLOCATED])[
        "gpu"
    ]
    return entries


def test_a_share_has_the_name_and_the_amounts_of_its_template(simulate: Simulate) -> None:
    """Koordinator contract 8.7 and 2.2: the name goes to the entry's extension."""
    document = simulate(config_map(), *ascend(), asking("a", part(2, 2, 6)))

    assert given(document, "a") == [
        {
            "minor": 0,
            "id": "GPU-0",
            "resources": {CORE: "2", CPU: "2", MEMORY: str(6 << 30), RATIO: "25"},
            "extension": {"gpuSharedResourceTemplate": "vir02"},
        }
    ]


MATCHES = {
    "the same cores with fewer AI CPUs": (part(2, 1, 6), "vir02_1c"),
    "with the media engine": (part(4, 4, 12, dvpp=100), "vir04_dvpp"),
    "a zero of the template is nothing": (part(4, 4, 12), "vir04_none"),
    "a zero of the Pod is nothing": (part(4, 4, 12, dvpp=0), "vir04_none"),
    "by ratio": ({CORE: 4, RATIO: 50}, "half"),
}


@pytest.mark.parametrize(("limits", "template"), MATCHES.values(), ids=MATCHES)
def test_equal_amounts_find_their_template(
    simulate: Simulate, limits: Mapping[str, object], template: str
) -> None:
    """Koordinator contract 8.7: equal to exactly one template."""
    document = simulate(config_map(), *ascend(), asking("a", limits))

    assert given(document, "a")[0]["extension"] == {"gpuSharedResourceTemplate": template}


MISSES = {
    "one core more": part(3, 2, 6),
    "less memory": part(2, 2, 5),
    "the media engine beside": part(2, 2, 6, dvpp=50),
    "two templates alike": part(3, 3, 9),
    "a template of other cards": part(5, 1, 16),
    "another ratio": {CORE: 4, RATIO: 40},
}


@pytest.mark.parametrize("limits", MISSES.values(), ids=MISSES)
def test_what_is_equal_to_no_one_template_is_refused(
    simulate: Simulate, limits: Mapping[str, object]
) -> None:
    """Koordinator contract 8.7 and 13: by the contract's words."""
    document = simulate(config_map(), *ascend(), asking("a", limits))

    assert answer(document, "a")["unschedulable"]["message"] == UNMATCHED


CARDS = {
    "no labels": {},
    "another vendor": {VENDOR: "metax", MODEL: "Ascend-310P3"},
    "another model": {VENDOR: "huawei", MODEL: "Ascend-910B"},
}


@pytest.mark.parametrize("labels", CARDS.values(), ids=CARDS)
def test_a_template_counts_for_cards_of_its_vendor_and_model_only(
    simulate: Simulate, labels: Mapping[str, str]
) -> None:
    """Koordinator contract 8.7: templates are listed by vendor and model."""
    document = simulate(config_map(), *ascend(labels=labels), asking("a", part(2, 2, 6)))

    assert answer(document, "a")["unschedulable"]["message"] == UNMATCHED


def test_a_config_map_of_another_namespace_is_not_the_clusters(simulate: Simulate) -> None:
    """Koordinator contract 8.7: the place is `koordinator-system`."""
    document = simulate(config_map(namespace="default"), *ascend(), asking("a", part(2, 2, 6)))

    assert answer(document, "a")["unschedulable"]["message"] == UNMATCHED


def test_settings_say_templates_where_no_config_map_does(simulate: Simulate) -> None:
    """The same shape, for services that read no ConfigMap; the cluster's own words win."""
    mine = {"huawei-Ascend-310P3": {"mine": {CORE: 2, CPU: 2, MEMORY: "6Gi"}}}
    settings = {"gpuSharedResourceTemplates": mine}
    objects = [*ascend(), asking("a", part(2, 2, 6))]

    told = given(simulate(*objects, devices=settings), "a")[0]["extension"]
    assert told == {"gpuSharedResourceTemplate": "mine"}
    told = given(simulate(config_map(), *objects, devices=settings), "a")[0]["extension"]
    assert told == {"gpuSharedResourceTemplate": "vir02"}


def test_ai_cpus_run_out_before_memory_does(simulate: Simulate) -> None:
    """Four shares of 6 GiB fill 24 GiB and 8 cores, but 7 AI CPUs hold three of 2 each."""
    pods = [asking(f"a{number}", part(2, 2, 6)) for number in range(4)]
    document = simulate(config_map(), *ascend(), *pods, asking("small", part(2, 1, 6)))

    assert [bool(answer(document, f"a{number}")["node"]) for number in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert given(document, "small")[0]["extension"] == {"gpuSharedResourceTemplate": "vir02_1c"}


def test_whole_cards_by_ai_cores_need_no_template(simulate: Simulate) -> None:
    """Koordinator contract 4.2 to 4.4: cores and a ratio of 200 are two cards, each alone."""
    whole = {CORE: 16, RATIO: 200}
    document = simulate(
        config_map(), *ascend(3), asking("a", part(1, 1, 3)), asking("b", whole), asking("c", whole)
    )

    entry = {CORE: "8", MEMORY: str(24 << 30), RATIO: "100"}
    assert [item["resources"] for item in given(document, "b")] == [entry, entry]
    assert not any("extension" in item for item in given(document, "b"))
    assert given(document, "a")[0]["minor"] not in {item["minor"] for item in given(document, "b")}
    assert answer(document, "c")["unschedulable"]["message"].endswith("1 Insufficient gpu devices.")


def test_more_cores_than_a_card_has_fit_nowhere(simulate: Simulate) -> None:
    """Koordinator contract 8.2, quirk Q3 as "ours": what a card lacks counts 0."""
    document = simulate(config_map(), *ascend(), asking("a", {CORE: 9, RATIO: 100}))

    assert answer(document, "a")["unschedulable"]["message"].endswith("1 Insufficient gpu devices.")


def test_cards_counted_in_ai_cores_give_no_percent_of_compute(simulate: Simulate) -> None:
    """Koordinator contract 12, Q3, as "ours": `gpu-core` is absent there, so it counts 0."""
    asked: dict[str, dict[str, object]] = {
        "percent": {"koordinator.sh/gpu": 50},
        "whole": {"nvidia.com/gpu": 1},
        "core": {"koordinator.sh/gpu-core": 10, MEMORY: "1Gi"},
    }
    pods = [asking(name, limits) for name, limits in asked.items()]
    document = simulate(config_map(), *ascend(), *pods, asking("memory", {MEMORY: "1Gi"}))

    for name in asked:
        refusal = answer(document, name)["unschedulable"]["message"]
        assert refusal.startswith("0/1 nodes are available: 1 "), refusal
    assert given(document, "memory")[0]["resources"] == {MEMORY: str(1 << 30), RATIO: "4"}


def test_what_is_shown_is_what_the_annotation_says(simulate: Simulate) -> None:
    """cli.md, Output: resources as in the allocation annotation."""
    document = simulate(config_map(), *ascend(), asking("a", part(2, 2, 6)))

    (shown,) = answer(document, "a")["devices"]["gpu"]
    assert shown["resources"] == given(document, "a")[0]["resources"]


def test_cores_that_do_not_divide_over_the_cards_are_refused(simulate: Simulate) -> None:
    """Koordinator contract 12, Q13, as "ours": nothing is lost in a division."""
    document = simulate(config_map(), *ascend(2), asking("a", {CORE: 17, RATIO: 200}))

    assert "must be a multiple of the 2 cards" in answer(document, "a")["unschedulable"]["message"]


def test_a_running_share_is_counted_by_what_it_was_given(simulate: Simulate) -> None:
    """Koordinator contract 2.2: `device-allocated` tells the AI CPUs that a running Pod has."""
    held = {
        "gpu": [
            {
                "minor": 0,
                "id": "GPU-0",
                "resources": {CORE: "2", CPU: "6", MEMORY: "6Gi", RATIO: "25"},
                "extension": {"gpuSharedResourceTemplate": "vir02"},
            }
        ]
    }
    running = asking("old", part(2, 2, 6), nodeName="n1", annotations={ALLOCATED: json.dumps(held)})
    document = simulate(
        config_map(), *ascend(), running, asking("a", part(2, 2, 6)), asking("b", part(2, 1, 6))
    )

    assert answer(document, "a")["node"] is None
    assert given(document, "b")[0]["extension"] == {"gpuSharedResourceTemplate": "vir02_1c"}


def test_models_that_are_not_shared_take_whole_cards_only(simulate: Simulate) -> None:
    """Koordinator contract 8.8: `gpuShareUnsupportedModels` refuse Pods that share."""
    labels = {VENDOR: "nvidia", MODEL: "L40S"}
    objects = [node("n1"), device(gpu_device(0), gpu_device(1), labels=labels)]
    pods = [
        asking("part", {"koordinator.sh/gpu": 50}),
        asking("bytes", {MEMORY: "24Gi"}),
        asking("whole", {"nvidia.com/gpu": 1}),
    ]
    refused = "0/1 nodes are available: 1 node(s) GPU model is not shared."

    document = simulate(
        *objects, *pods, devices={"gpuShareUnsupportedModels": {"nvidia": ["L40S"]}}
    )
    assert [answer(document, name)["unschedulable"]["message"] for name in ("part", "bytes")] == [
        refused
    ] * 2
    assert answer(document, "whole")["node"] == "n1"
    others = simulate(*objects, *pods, devices={"gpuShareUnsupportedModels": {"nvidia": ["H20"]}})
    assert answer(others, "part")["node"] == "n1"


def test_an_isolation_provider_is_that_of_the_node(simulate: Simulate) -> None:
    """Koordinator contract 8.8 and 2.1: a mismatch refuses Pods that share, and no others."""
    objects = [
        node("n1", labels={ISOLATION: "other"}),
        device(gpu_device(0), gpu_device(1)),
    ]
    label = {ISOLATION: "HAMi-core"}
    document = simulate(
        *objects,
        asking("part", {"koordinator.sh/gpu": 50}, labels=label),
        asking("whole", {"koordinator.sh/gpu": 100}, labels=label),
    )

    assert answer(document, "part")["node"] is None
    assert answer(document, "whole")["node"] == "n1"


BROKEN = {
    "no text": ({"data": {"data.yaml": {}}}, "must be text"),
    "broken YAML": ({"data": {"data.yaml": "a: {"}}, "broken YAML"),
    "no mapping": ({"data": {"data.yaml": "[1]"}}, "data[data.yaml]"),
    "a bad quantity": (
        {"data": {"data.yaml": "huawei-x: {v: {huawei.com/npu-core: 1X}}"}},
        "huawei-x.v[huawei.com/npu-core]",
    ),
    "two documents": ({"data": {"data.yaml": "a: {}\n---\nb: {}"}}, "one document is needed"),
}


@pytest.mark.parametrize(("changed", "fact"), BROKEN.values(), ids=BROKEN)
def test_templates_that_cannot_be_read_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Object, fact: str
) -> None:
    """A table read by halves would refuse Pods for no reason: the place is named instead."""
    file = tmp_path / "in.json"
    file.write_text(json.dumps(config_map() | changed), "utf-8")
    done = CommandLine(tmp_path / "run.db", capsys).run("simulate", str(file))

    assert done.code == 2
    assert fact in done.err
    assert "ConfigMap koordinator-system/gpu-shared-resource-templates" in done.err
