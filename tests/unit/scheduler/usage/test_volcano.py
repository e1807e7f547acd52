"""Cards out of Volcano's annotations (docs/contracts/volcano-vgpu.md)."""

from __future__ import annotations

import io
import json

import pytest

from ledger.domain.log.events import PodObserved
from ledger.domain.request.requests import PodSnapshot
from scheduler.cluster.volcano import vgpus_of
from scheduler.usage.claims import Vgpus
from scheduler.usage.picture import CardGroup, Many, exactly
from scheduler.usage.volcano import NUMBER, volcano_groups
from tenure.manifests import read_manifests
from tests.support.objects import Object, node, pod

REGISTER = "volcano.sh/node-vgpu-register"
GIVEN = "volcano.sh/vgpu-ids-new"
TWO = "GPU-a,10,20000,NVIDIA-NVIDIA A10,true,hami-core:GPU-b,10,20000,NVIDIA-NVIDIA A10,true,mig:"


def told(*objects: Object) -> Vgpus:
    """Return what objects tell."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return vgpus_of(read_manifests(["-"], stdin=io.BytesIO(text.encode())))


def given(name: str, text: str, phase: str = "Running") -> Object:
    """Return a Pod with what the scheduler gave it."""
    annotations = {GIVEN: text}
    return pod(name=name, uid=name, nodeName="n", annotations=annotations, phase=phase)


def observed(name: str) -> PodObserved:
    """Return a Pod that asks for one vGPU."""
    return PodObserved(
        pod_uid=name,
        attempt=1,
        namespace="ml",
        pod_name=name,
        node_uid="n",
        node_name="n",
        source="",
        snapshot=PodSnapshot(original={f"main.{NUMBER}": "1"}),
    )


def group(vgpus: Vgpus, *pods: PodObserved) -> CardGroup:
    """Return the one group of node `n`, which is open."""
    (found,) = volcano_groups("n", vgpus, is_open=True, offers={NUMBER: 20}, pods=pods)
    return found


def test_containers_of_one_pod_hold_together() -> None:
    """Two containers on one card are one holder with both amounts."""
    text = "GPU-a,NVIDIA,1000,10:;GPU-a,NVIDIA,2000,20:"
    found = group(told(node("n", annotations={REGISTER: TWO}), given("p", text)), observed("p"))

    (holder,) = found.devices[0].holders
    assert (holder.path, holder.memory_mib, holder.core_percent) == ("ml/p", 3000, 30)
    assert (found.model, found.memory_mib, found.mode) == ("NVIDIA A10", 20000, "slices")
    assert (found.cards, found.free, found.gettable) == (exactly(2), exactly(1), exactly(1))
    assert found.units[NUMBER].held == 1
    assert found.unplaced == ()


def test_a_slice_of_a_card_is_on_it() -> None:
    """Of MIG the id goes on with a place."""
    vgpus = told(node("n", annotations={REGISTER: TWO}), given("p", "GPU-b[1-0],NVIDIA,5000,0:"))

    assert [holder.level_percent for holder in group(vgpus).devices[1].holders] == [25]


def test_who_has_no_annotation_is_on_a_card_that_nobody_knows() -> None:
    """He may share one, so that one or two are free."""
    vgpus = told(node("n", annotations={REGISTER: TWO}), given("p", "GPU-a,NVIDIA,1000,10:"))
    found = group(vgpus, observed("p"), observed("q"))

    assert [each.path for each in found.unplaced] == ["ml/q"]
    assert found.free == Many(least=0, most=1)


def test_a_card_that_is_not_registered_is_one_that_nobody_knows() -> None:
    """What was given is held, wherever it is."""
    vgpus = told(node("n", annotations={REGISTER: TWO}), given("p", "GPU-z,NVIDIA,1000,10:"))

    assert [each.path for each in group(vgpus, observed("p")).unplaced] == ["ml/p"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_who_has_ended_holds_nothing(phase: str) -> None:
    """The annotation stays on the Pod."""
    vgpus = told(
        node("n", annotations={REGISTER: TWO}),
        given("p", "GPU-a,NVIDIA,1000,10:", phase=phase),
    )

    assert group(vgpus).free == exactly(2)


@pytest.mark.parametrize(
    "text", ["x", "GPU-a,10:", "GPU-a,10,many,A10,true:", "GPU-a,10,-1,A10,true:", "{}"]
)
def test_a_register_of_another_form_lists_no_cards(text: str) -> None:
    """And is named."""
    vgpus = told(node("n", annotations={REGISTER: text}))

    assert vgpus.cards == {"n": ()}
    assert list(vgpus.unread) == ["Node n"]


@pytest.mark.parametrize("text", ["x,", "GPU-a,NVIDIA,much,1:", "{"])
def test_what_was_given_in_another_form_is_named(text: str) -> None:
    """What that Pod holds is not known."""
    vgpus = told(node("n", annotations={REGISTER: TWO}), given("p", text))

    assert vgpus.parts == {}
    assert list(vgpus.unread) == ["Pod ml/p"]


def test_an_ill_card_is_neither_free_nor_to_be_had() -> None:
    """v1.9 writes no mode."""
    vgpus = told(node("n", annotations={REGISTER: "GPU-a,10,11264,GTX,false:"}))
    found = group(vgpus)

    assert (found.cards, found.free, found.gettable) == (exactly(1), exactly(0), exactly(0))
    assert (found.devices[0].healthy, found.mode) == (False, "shares")
