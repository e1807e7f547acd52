from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.errors import InputError, RefusedError
from ledger.domain.request.normalise import decode_pod, examine_pod
from ledger.domain.request.requests import PodRequest, Toleration
from ledger.domain.vocabulary import Vocabulary
from tests.support.mutation import MANAGED, patched, request_for
from tests.support.objects import Object, container, pod
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod, mutated
from webhook.decide.settings import (
    AdmissionSettings,
    DomainSetting,
    PodDefaults,
    Profile,
    Takeover,
    TakeoverRule,
)
from webhook.decide.validating.validate import validate

NAMES = (
    "koordinator.sh/gpu",
    "koordinator.sh/gpu.shared",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    "kubernetes.io/gpu",
    "kubernetes.io/gpu-core",
    "kubernetes.io/gpu-mem",
    "kubernetes.io/gpu-memory-ratio",
    "koordinator.sh/rdma",
    "kubernetes.io/rdma",
    "nvidia.com/gpu",
    "amd.com/gpu",
    "vke.volcengine.com/mgpu-core",
    "vke.volcengine.com/mgpu-memory",
    "aliyun.com/gpu-mem",
    "cpu",
)
LEGAL: tuple[Object, ...] = (
    {},
    {"nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": 2},
    {"koordinator.sh/gpu": "50"},
    {"koordinator.sh/gpu": "200"},
    {"kubernetes.io/gpu": "50"},
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi"},
    {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "60"},
    {"koordinator.sh/rdma": "5", "nvidia.com/gpu": "1"},
    {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "1k"},
    {"aliyun.com/gpu-mem": "1000"},
    {"cpu": "4"},
)
amounts = st.one_of(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.sampled_from(["0", "1", "2", "50", "100", "150", "200", "1Ki", 1, 100]),
        max_size=3,
    ),
    st.sampled_from(LEGAL),
)
environments = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "A"])},
        optional={"value": st.sampled_from(["void", "none", "all", ""])},
    ),
    max_size=3,
)


@st.composite
def containers(draw: st.DrawFn, name: str) -> Object:
    """Draw a container: usually with a legal request, in limits, requests or both."""
    asked = draw(amounts)
    more: Object = {}
    if draw(st.booleans()):
        more["limits"] = asked
    if draw(st.booleans()) or not more:
        more["requests"] = asked
    if draw(st.booleans()):
        more["env"] = draw(environments)
    return container(name, **more)


def some(prefix: str, least: int) -> st.SearchStrategy[list[Object]]:
    """Draw a few containers with names of their own."""
    return st.integers(least, 3).flatmap(
        lambda count: st.tuples(*(containers(f"{prefix}{n}") for n in range(count))).map(list)
    )


labels = st.dictionaries(
    st.sampled_from(["koordinator.sh/qosClass", "tenure.sh/takeover", "tier"]),
    st.sampled_from(["LSR", "LS", "BE", "true", "false", "batch"]),
    max_size=2,
)
tolerations = st.lists(
    st.sampled_from([{"operator": "Exists"}, {"key": "tenure.sh/owned", "operator": "Exists"}]),
    max_size=1,
)


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """Draw a Pod: any mix of dialects, containers, labels and schedulers."""
    init = draw(some("i", 0))
    for one in init:
        if draw(st.booleans()):
            one["restartPolicy"] = "Always"
    more: Object = {}
    if draw(st.booleans()):
        more["schedulerName"] = draw(
            st.sampled_from(["default-scheduler", "tenure", "volcano", "x"])
        )
    if draw(st.booleans()):
        more["tolerations"] = draw(tolerations)
    return pod(*draw(some("c", 1)), init=init, labels=draw(labels), **more)


def profile(priority_class: tuple[str, int | None], **more: Any) -> Profile:  # noqa: ANN401 - its fields
    """Return a profile with a class and its number, or without both."""
    name, number = priority_class
    return Profile(priority_class_name=name, priority=number, **more)


profiles = st.lists(
    st.builds(
        profile,
        name=st.sampled_from(["a", "b", "c"]),
        pod_labels=st.sampled_from([{}, {"tier": "batch"}, {"x": "1"}]),
        qos=st.sampled_from(["", "LS", "LSR"]),
        scheduler_name=st.sampled_from(["", "y", "volcano"]),
        priority_class=st.sampled_from([("", None), ("koord-batch", 5500)]),
        labels=st.sampled_from([{}, {"x": "1"}, {"tier": "batch"}]),
        annotations=st.sampled_from([{}, {"n": "1"}]),
    ),
    max_size=3,
).map(tuple)
VOCABULARIES = tuple(
    Vocabulary(whole_cards=given, slot_mode=mode)
    for given in ("ours", "nvidia")
    for mode in ("env", "plugin", "gpushare")
)
settings = st.builds(
    AdmissionSettings,
    domain=st.sampled_from(DomainSetting),
    vocabulary=st.sampled_from(VOCABULARIES),
    takeover=st.builds(
        Takeover,
        rule=st.sampled_from(TakeoverRule),
        foreign_schedulers=st.sampled_from([frozenset[str](), frozenset({"volcano"})]),
    ),
    defaults=st.builds(
        PodDefaults,
        qos=st.sampled_from(["", "LS"]),
        priority_class=st.sampled_from(["", "koord-prod"]),
    ),
    profiles=profiles,
)
OWNED = Toleration(key="tenure.sh/owned", operator="Exists", value="", effect="")
PLAIN = st.builds(
    AdmissionSettings,
    domain=st.sampled_from(DomainSetting),
    vocabulary=st.sampled_from(VOCABULARIES),
)


def as_asked(request: PodRequest) -> PodRequest:
    """Return a request without the one thing that admission adds: where it may also go."""
    rules = request.placement
    left = tuple(one for one in rules.tolerations if one != OWNED)
    return replace(request, placement=replace(rules, tolerations=left))


@given(body=pods(), rules=settings)
def test_doing_it_twice_changes_nothing(body: Object, rules: AdmissionSettings) -> None:
    """Reinvocation: mutate(mutate(x)) == mutate(x), and the second patch is empty."""
    once = mutated(body, rules, MANAGED)
    request = request_for(dict(once))

    assert mutated(once, rules, MANAGED) == once
    assert mutate_pod(request, rules, MANAGED).patch == ()


@given(body=pods(), rules=settings)
def test_the_patch_makes_the_object_that_was_decided(
    body: Object, rules: AdmissionSettings
) -> None:
    """Applied by another's code it gives just that object, and the input stays as it was."""
    before = copy.deepcopy(body)

    answer = mutate_pod(request_for(body), rules, MANAGED)

    assert body == before
    assert patched(body, answer) == mutated(body, rules, MANAGED)


@given(body=pods(), rules=PLAIN)
def test_a_pod_asks_for_the_same_before_and_after(body: Object, rules: AdmissionSettings) -> None:
    """Design section 3: decode(mutate(p)) == decode(p), violations too."""
    was, before = examine_pod(body, rules.vocabulary)
    now, after = examine_pod(mutated(body, rules, MANAGED), rules.vocabulary)

    assert after == before
    assert as_asked(now) == as_asked(was)


@given(body=pods(), rules=PLAIN)
def test_what_is_rewritten_can_be_decoded_without_the_record(
    body: Object, rules: AdmissionSettings
) -> None:
    """The allocator needs no annotation of ours to understand what a Pod now asks for."""
    after: Object = copy.deepcopy(dict(mutated(body, rules, MANAGED)))
    after["metadata"].get("annotations", {}).pop("tenure.sh/original-request", None)
    try:
        expected = decode_pod(body)
    except RefusedError:
        return

    request = decode_pod(after)

    assert (request.devices, request.containers) == (expected.devices, expected.containers)


@given(body=pods(), rules=PLAIN)
def test_validation_takes_what_mutation_made(body: Object, rules: AdmissionSettings) -> None:
    """Nothing that we write ourselves is refused: only what the user wrote can be."""
    for one in (*body["spec"]["containers"], *body["spec"].get("initContainers", ())):
        one.pop("env", None)
    if examine_pod(body)[1]:
        return

    answer = validate(request_for(dict(mutated(body, rules, MANAGED))), rules, MANAGED)

    assert answer.allowed, answer.message


@given(body=pods(), rules=settings)
def test_an_unmanaged_namespace_is_left_alone(body: Object, rules: AdmissionSettings) -> None:
    """Whatever the settings say."""
    answer = mutate_pod(request_for(body), rules, NamespaceFacts(labels={"tier": "batch"}))

    assert answer.allowed
    assert answer.patch == ()


@given(body=pods(), rules=settings)
def test_no_container_without_cards_can_see_one(body: Object, rules: AdmissionSettings) -> None:
    """In a Pod that our scheduler places, every container reads its own cards or none."""
    after = mutated(body, rules, MANAGED)
    if after == body or after["spec"].get("schedulerName") != rules.scheduler_name:  # type: ignore[attr-defined]  # it is an object
        return
    spec: Object = after["spec"]  # type: ignore[assignment]  # it is an object

    for one in (*spec["containers"], *spec.get("initContainers", ())):
        entries = [e for e in one["env"] if e["name"] == "NVIDIA_VISIBLE_DEVICES"]
        assert entries
        resources = one["resources"]
        asked = {**resources.get("limits", {}), **resources.get("requests", {})}
        if not any(
            "gpu" in name and "amd" not in name and asked[name] not in {"0", 0} for name in asked
        ):
            assert all(e.get("value") in {"void", "none"} for e in entries)


@given(body=pods())
def test_a_broken_pod_is_named_with_its_field(body: Object) -> None:
    """What can't be read is said with its field."""
    del body["spec"]["containers"][0]["name"]

    with pytest.raises(InputError) as caught:
        mutated(body, AdmissionSettings(), MANAGED)

    assert caught.value.field == "spec.containers[0].name"
