from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.mutation import BLIND, MANAGED, field_ref, mutate, request_for, sees
from tests.support.objects import Object, container, pod, sidecar
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.settings import AdmissionSettings

NVIDIA = {"nvidia.com/gpu": "1"}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
PLUGIN = AdmissionSettings(vocabulary=replace(DEFAULT_VOCABULARY, slot_mode="plugin"))


def env(body: Object, number: int = 0, key: str = "containers") -> object:
    """Return one container's environment."""
    return body["spec"][key][number].get("env")


HOLDERS: dict[str, Object] = {
    "whole cards": NVIDIA,
    "a share": {"koordinator.sh/gpu": "50"},
    "the proposal's share": {"kubernetes.io/gpu": "50"},
    "mgpu": {"vke.volcengine.com/mgpu-core": "100"},
    "gpu share": {"aliyun.com/gpu-mem": "1000"},
}


@pytest.mark.parametrize("limits", HOLDERS.values(), ids=HOLDERS)
def test_a_container_reads_its_cards_from_annotations(limits: Object) -> None:
    """Design section 3: by its place in the spec, in every dialect."""
    after = mutate(pod(container("a"), container("b", limits=limits)))

    assert env(after, 0) == BLIND
    assert env(after, 1) == sees("1")


def test_init_containers_and_sidecars_have_places_of_their_own() -> None:
    """Design section 3: `init-<i>`, whichever kind of init container it is."""
    after = mutate(
        pod(
            container(limits=NVIDIA),
            init=[container("i"), container("j", limits=NVIDIA), sidecar("s", limits=NVIDIA)],
        )
    )

    assert env(after) == sees("0")
    assert env(after, 0, "initContainers") == BLIND
    assert env(after, 1, "initContainers") == sees("init-1")
    assert env(after, 2, "initContainers") == sees("init-2")


def test_a_pod_without_cards_sees_none() -> None:
    """An image that says `all` would show every card of the node otherwise."""
    after = mutate(pod(container(limits={"koordinator.sh/rdma": "1"})))

    assert env(after) == BLIND


def test_cards_that_the_nvidia_runtime_does_not_know_are_not_in_its_words() -> None:
    """Cards of AMD come by another runtime."""
    assert env(mutate(pod(container(limits={"amd.com/gpu": "1"})))) == BLIND


OWN: dict[str, list[Object]] = {
    "a user's CUDA list": [{"name": CUDA, "value": "0"}],
    "void on a holder": [{"name": VISIBLE, "value": "void"}],
    "none on a holder": [{"name": VISIBLE, "value": "none"}],
    "all, which validation refuses": [{"name": VISIBLE, "value": "all"}],
    "another variable": [{"name": "A", "value": "1"}],
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_what_a_user_wrote_into_a_holder_stays(own: list[Object]) -> None:
    """What is missing is added behind it."""
    names = {entry["name"] for entry in own}

    after = mutate(pod(container(limits=NVIDIA, env=own)))

    assert env(after) == [*own, *(entry for entry in sees("0") if entry["name"] not in names)]


BLIND_CASES: dict[str, tuple[list[Object], list[Object]]] = {
    "nothing": ([], BLIND),
    "all": ([{"name": VISIBLE, "value": "all"}], BLIND),
    "from somewhere": (
        [{"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
        BLIND,
    ),
    "an annotation of ours": ([field_ref(VISIBLE, "visible.0")], BLIND),
    "twice, the last counts": (
        [{"name": VISIBLE, "value": "void"}, {"name": VISIBLE, "value": "all"}],
        [*BLIND, *BLIND],
    ),
    "a value that is no text": ([{"name": VISIBLE, "value": {}}], BLIND),
    "void": ([{"name": VISIBLE, "value": "void"}], BLIND),
    "none": ([{"name": VISIBLE, "value": "none"}], [{"name": VISIBLE, "value": "none"}]),
    "empty, as the runtime reads it none": ([{"name": VISIBLE}], BLIND),
    "others": ([{"name": "A", "value": "1"}], [{"name": "A", "value": "1"}, *BLIND]),
}


@pytest.mark.parametrize("case", BLIND_CASES.values(), ids=BLIND_CASES)
@pytest.mark.parametrize("settings", [AdmissionSettings(), PLUGIN], ids=["env", "plugin"])
def test_a_container_without_cards_sees_none_whatever_it_says(
    case: tuple[list[Object], list[Object]], settings: AdmissionSettings
) -> None:
    """Only `none` stays: driver libraries without a card are harmless."""
    before, after = case

    changed = mutate(pod(container("a", env=before), container("b", limits=NVIDIA)), settings)

    assert env(changed) == after


def test_a_container_that_moved_gets_its_new_place() -> None:
    """Another webhook may put a container in front between two calls of ours."""
    once = mutate(pod(container("a", limits=NVIDIA)))
    once["spec"]["containers"].insert(0, container("injected"))

    again = mutate(once)

    assert env(again, 0) == BLIND
    assert env(again, 1) == sees("1")


@pytest.mark.parametrize(
    ("unit", "as_mode"), [("GiB", "env"), ("MiB", "plugin")], ids=["GiB", "MiB"]
)
def test_gpu_share_mode_shows_cards_as_its_unit_lets_it(unit: str, as_mode: str) -> None:
    """
    In GiB a container's card is what its Binding says, whomever `Allocate` was taken to be for.

    Kubelet lets the container's own environment count over a device plugin's. In MiB it is known by
    its slot.
    """
    words = replace(DEFAULT_VOCABULARY, gpushare_unit=unit)
    made = pod(container("a", limits={"aliyun.com/gpu-mem": "4"}), container("b"))

    shared, alone = (
        AdmissionSettings(vocabulary=replace(words, slot_mode=mode))
        for mode in ("gpushare", as_mode)
    )
    after = mutate(made, shared)

    assert after == mutate(made, alone)
    assert env(after, 1) == BLIND


def test_plugin_mode_gives_each_device_container_a_slot() -> None:
    """Design section 8: the device plugin shows the cards, the NVIDIA runtime none."""
    after = mutate(
        pod(
            container("a", limits=NVIDIA),
            container("b", limits={"koordinator.sh/rdma": "1"}),
            container("c"),
            init=[container("i", limits=NVIDIA)],
        ),
        PLUGIN,
    )

    first, second, third = after["spec"]["containers"]
    initial = after["spec"]["initContainers"][0]
    for one in (first, second, initial):
        assert one["resources"]["limits"]["tenure.sh/slot"] == "1"
        assert one["resources"]["requests"]["tenure.sh/slot"] == "1"
    assert third == {**container("c"), "env": BLIND}
    assert env(after) == [*BLIND, field_ref(CUDA, "allocated.0")]


def test_env_mode_knows_no_slot() -> None:
    """A node without our device plugin has none to give."""
    after = mutate(pod(container(limits=NVIDIA)))

    assert "tenure.sh/slot" not in after["spec"]["containers"][0]["resources"]["limits"]


def ephemeral(body: Object, *containers: Object) -> Object:
    """Return the Pod with these ephemeral containers."""
    return {**body, "spec": {**body["spec"], "ephemeralContainers": list(containers)}}


def test_new_ephemeral_containers_see_no_card() -> None:
    """`kubectl debug` with a CUDA image would see all of them otherwise."""
    running = mutate(pod(container(limits=NVIDIA)))
    old = ephemeral(running, {"name": "there"})
    before = ephemeral(running, {"name": "there"}, {"name": "new"})

    after = mutate(before, operation="UPDATE", subresource="ephemeralcontainers", old=old)

    assert after == ephemeral(running, {"name": "there"}, {"name": "new", "env": BLIND})
    assert mutate(after, operation="UPDATE", subresource="ephemeralcontainers", old=old) == after


def test_ephemeral_containers_of_other_pods_are_their_own() -> None:
    """A Pod that our scheduler did not place keeps its debug container as it is."""
    for body in (pod(), pod(container(limits=NVIDIA), schedulerName="volcano")):
        before = ephemeral(body, {"name": "new"})

        after = mutate(before, operation="UPDATE", subresource="ephemeralcontainers", old=body)

        assert after == before


def test_an_ephemeral_container_without_a_proper_name_is_refused() -> None:
    """The API server would not let it through; a list as a name must not bring us down."""
    body = ephemeral(mutate(pod(container(limits=NVIDIA))), {"name": ["d"]})
    request = request_for(body, operation="UPDATE", subresource="ephemeralcontainers", old=body)

    (cause,) = mutate_pod(request, AdmissionSettings(), MANAGED).causes

    assert cause.field == "spec.ephemeralContainers.name"
