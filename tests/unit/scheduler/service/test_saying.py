"""Events about Pods say what the ledger has of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ledger.domain.log.events import PodBound, PodReleased, RefusalReason, RequestRefused
from scheduler.service.telling import Saying, Subject, Telling
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.live import Live
from tests.support.objects import container, pod

CARD = "gpu 0 (GPU-a-0)"


@dataclass(slots=True)
class Heard(Telling):
    """Writes down what it is told."""

    heard: list[tuple[str, str, str]] = field(default_factory=list)

    def tell(
        self, subject: Subject, reason: str, note: str, *, action: str, kind: str = "Warning"
    ) -> None:
        """Note it."""
        assert action
        assert (subject.kind, subject.namespace) == ("Pod", "ml")
        self.heard.append((f"{kind} {reason} {subject.name}", subject.uid, note))


class Scene:
    """A node with a card, and who speaks of what happens there."""

    def __init__(self) -> None:
        self.live = Live()
        self.live.add_node("a", 1)
        self.live.settle()
        self.why = ""
        api = ApiClient(ApiServer(), self.live.clock.sleep)
        self.heard = Heard(api=api, clock=self.live.clock, reporter="test")
        Saying(self.live.view, self.heard, why_not=lambda: self.why)


def _pod(name: str, **limits: int) -> dict[str, object]:
    amounts = {f"koordinator.sh/{key}": value for key, value in limits.items()} or {"cpu": 1}
    return pod(container(limits=amounts), name=name, uid=f"pod-{name}")


def test_a_pod_is_told_what_it_was_bound_with_and_what_it_gave_back() -> None:
    """By node, card and amounts; not before it is bound."""
    scene = Scene()
    event = scene.live.reserve(scene.live.placement(_pod("p", gpu=50), "a"))
    assert not scene.heard.heard
    scene.live.record(PodBound(pod_uid="pod-p", attempt=1, node_uid="uid-a"))
    scene.live.record(PodReleased(pod_uid="pod-p", attempt=1, node_uid="uid-a", reason="completed"))
    held = f"{CARD}: 50 % core, 12 GiB of a"
    assert scene.heard.heard == [
        ("Normal DevicesBound p", "pod-p", held),
        ("Normal DevicesReleased p", "pod-p", f"{held}: completed"),
    ]
    assert event.attempt == 1


@pytest.mark.parametrize("limits", [{}, {"gpu": 100}])
def test_a_pod_without_devices_hears_nothing_of_them(limits: dict[str, int]) -> None:
    """kube-scheduler says of every Pod where it is bound."""
    scene = Scene()
    scene.live.reserve(scene.live.placement(_pod("p", **limits), "a"))
    scene.live.record(PodBound(pod_uid="pod-p", attempt=1, node_uid="uid-a"))
    said = [("Normal DevicesBound p", "pod-p", f"{CARD}: whole of a")] if limits else []
    assert scene.heard.heard == said


def test_a_pod_that_waits_is_told_why_and_what_would_help() -> None:
    """In the recorded words; one that admission refused is not there to be told."""
    scene = Scene()
    reason = RefusalReason(reason="x", nodes=1, nearest_node="a", remedy="release 1 card")
    refused = RequestRefused(
        pod_uid="pod-p",
        namespace="ml",
        pod_name="p",
        stage="scheduling",
        message="0/1 nodes are available: 1 x.",
        reasons=(reason,),
    )
    scene.live.record(refused)
    assert not scene.heard.heard
    scene.live.view.pods.put("pod-p", _pod("p", gpu=100))
    scene.live.record(refused)
    note = (
        "0/1 nodes are available: 1 x. Nearest on a: release 1 card."
        " Release: what is short of that alone; once it is empty the node takes the Pod."
    )
    assert scene.heard.heard == [("Warning DevicesRefused p", "pod-p", note)]


def test_who_only_follows_says_nothing() -> None:
    """The one that decides says it; twice would be once too often."""
    scene = Scene()
    scene.why = "standby"
    scene.live.reserve(scene.live.placement(_pod("p", gpu=50), "a"))
    scene.live.record(PodBound(pod_uid="pod-p", attempt=1, node_uid="uid-a"))
    assert not scene.heard.heard
