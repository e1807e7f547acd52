"""Whole cards of NVIDIA's plugin in a simulation: by number, where somebody says so."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.objects import Object, container, device, gpu_device, node, pod
from tests.support.simulating import Simulate

pytestmark = pytest.mark.integration

GPU: Final = "nvidia.com/gpu"
SIZES: Final = {"cpu": 64, "memory": "256Gi"}
SHARE: Final = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
NODES: Final = (
    node("plugin", allocatable={**SIZES, GPU: 4}),
    node("owned", allocatable={**SIZES, "koordinator.sh/gpu-core": 200}),
    device(*(gpu_device(minor) for minor in range(2)), name="owned"),
)
NO_PLUGIN: Final = (
    f"NodeNotOffered: the node does not advertise {GPU}: run NVIDIA's device plugin there"
)


def asking(name: str, limits: dict[str, int], **more: Any) -> Object:  # noqa: ANN401 - of a Pod
    """Return a Pod of one container."""
    return pod(container("main", limits=limits), name=name, namespace="ml", **more)


def told(document: dict[str, Any]) -> dict[str, tuple[str | None, list[int], dict[str, int]]]:
    """Return of each Pod its node, the minors of its GPUs, and what it has by number."""
    return {
        one["name"]: (
            one["node"],
            [each["minor"] for each in one["devices"].get("gpu", ())],
            one["counted"],
        )
        for one in document["placements"]
    }


PODS: Final = (asking("a", {GPU: 3}), asking("b", {GPU: 2}), asking("share", SHARE))


def test_the_plugins_cards_are_given_by_number_and_shares_go_elsewhere(simulate: Simulate) -> None:
    """What is left counts, and no annotation names a card."""
    document = simulate(*NODES, *PODS, asking("c", {GPU: 1}), wholeCards="nvidia")
    assert told(document) == {
        "a": ("plugin", [], {"gpu": 3}),
        "b": (None, [], {}),
        "share": ("owned", [0], {}),
        "c": ("plugin", [], {"gpu": 1}),
    }
    first, second, *_ = document["placements"]
    assert first["annotations"] == {}
    assert second["unschedulable"]["nodes"] == {
        "plugin": ["Insufficient gpu devices"],
        "owned": [NO_PLUGIN],
    }


@pytest.mark.parametrize(
    ("label", "setting", "counted"),
    [("nvidia", "ours", {"gpu": 3}), ("ours", "nvidia", {})],
    ids=["the plugin's", "ours"],
)
def test_a_namespace_says_it_for_its_pods(
    simulate: Simulate, label: str, setting: str, counted: dict[str, int]
) -> None:
    """Its label counts before the setting."""
    labels = {"tenure.sh/whole-cards": label}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    namespace["metadata"] |= {"labels": labels}  # type: ignore[operator]  # as above
    document = simulate(namespace, *NODES, PODS[0], wholeCards=setting)
    assert told(document)["a"][2] == counted


def test_without_the_setting_cards_have_names(simulate: Simulate) -> None:
    """The proposal's form: nodes are owned."""
    assert told(simulate(*NODES, *PODS))["a"] == ("plugin", [0, 1, 2], {})


def test_who_needs_named_cards_is_told_so(simulate: Simulate) -> None:
    """A group is planned on cards; an unknown word of a namespace is refused, never passed over."""
    labels = {
        "gputopology.scheduling.koordinator.sh/name": "g",
        "gputopology.scheduling.koordinator.sh/replica": "1",
    }
    member = asking("a", {GPU: 1}, labels=labels)
    document = simulate(NODES[0], member, wholeCards="nvidia")
    [one] = document["placements"]
    assert one["unschedulable"]["nodes"] == {"plugin": ["node(s) give whole cards by number alone"]}
    strange = asking("b", {GPU: 1}, annotations={"tenure.sh/whole-cards": "amd"})
    [one] = simulate(NODES[0], strange)["placements"]
    assert "metadata.annotations[tenure.sh/whole-cards]" in one["unschedulable"]["message"]
