"""What `/metrics` says of cards is what the arrays that decide have."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from scheduler.decide.nodes import card_counts
from scheduler.service.metrics import Metrics
from tests.support.live import Live
from tests.support.objects import container, device, gpu_device, node, pod

GIB12 = 12_884_901_888


class Scene:
    """Two nodes with two cards each, and their metrics."""

    def __init__(self, *, each: bool = False) -> None:
        self.live = Live()
        for name in ("a", "b"):
            self.live.add_node(name, 2)
        self.live.settle()
        self.metrics = Metrics()
        self.metrics.count_cards(lambda: self.live.view.engine.card_counts, each=each)

    def hold(self, name: str, percent: int) -> None:
        """Let a Pod hold a part of a card of node `a`."""
        asked = pod(container(limits={"koordinator.sh/gpu": percent}), name=name, uid=f"pod-{name}")
        self.live.reserve(self.live.placement(asked, "a"))

    def value(self, name: str, **labels: str) -> float | None:
        """Return one number of the metrics."""
        return self.metrics.registry.get_sample_value(f"tenure_{name}", labels)


def test_capacity_and_allocation_are_summed_by_type_and_model() -> None:
    """In percent of a card and bytes; as soon as something is reserved."""
    scene = Scene()
    [of_model] = {sums.model for sums in scene.live.view.engine.card_counts.sums()}
    labels = {"type": "gpu", "model": of_model}
    assert scene.value("cards", **labels) == 4
    assert scene.value("card_core_percent_capacity", **labels) == 400
    assert scene.value("card_core_percent_allocated", **labels) == 0
    scene.hold("p", 50)
    scene.hold("q", 100)
    assert scene.value("card_core_percent_allocated", **labels) == 150
    assert scene.value("card_memory_bytes_allocated", **labels) == 3 * GIB12
    assert scene.value("cards_held", **labels) == 2


def test_a_node_that_comes_or_changes_is_counted_as_it_is() -> None:
    """Also where it has more cards than any node before, or closed ones."""
    scene = Scene()
    [before] = scene.live.view.engine.card_counts.sums()
    assert (before.cards, before.closed) == (4, 0)
    scene.live.add_node("c", 8)
    scene.live.settle()
    [more] = scene.live.view.engine.card_counts.sums()
    assert (more.cards, more.core_capacity) == (12, 1200)
    cards = [gpu_device(n, id=f"GPU-c-{n}", health=n > 0) for n in range(8)]
    scene.live.tell("devices", device(*cards, name="c"), uid="device-c")
    scene.live.settle()
    [closed] = scene.live.view.engine.card_counts.sums()
    assert closed.closed == 1


def test_models_are_told_apart_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What anybody may write into a Device is no endless number of series."""
    monkeypatch.setattr(card_counts, "MODELS_MAX", 2)
    scene = Scene()
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    for number in range(4):
        name = f"m{number}"
        told = device(gpu_device(0, id=f"GPU-{name}"), name=name)
        told["metadata"]["labels"] = {"node.koordinator.sh/gpu-model": f"model-{number}"}
        scene.live.tell("nodes", node(name, allocatable=amounts), uid=f"uid-{name}")
        scene.live.tell("devices", told, uid=f"device-{name}")
    scene.live.settle()
    sums = {one.model: one.cards for one in scene.live.view.engine.card_counts.sums()}
    assert len(sums) == 3
    assert sums["other"] == 3


def test_every_card_is_shown_by_a_flag_alone() -> None:
    """With its node, minor, id and model."""
    scene = Scene(each=True)
    scene.hold("p", 50)
    words = generate_latest(scene.metrics.registry).decode()
    [line] = [
        one
        for one in words.splitlines()
        if one.startswith("tenure_each_card_core_percent_allocated{") and 'id="GPU-a-0"' in one
    ]
    assert line.endswith(" 50.0")
    assert 'node="a"' in line
    assert "tenure_each_card" not in generate_latest(Scene().metrics.registry).decode()
