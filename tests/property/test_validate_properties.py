from __future__ import annotations

import json
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.annotations.guarded import ALLOCATION_ANNOTATIONS, is_allocation
from ledger.domain.annotations.tenure import is_admitted
from ledger.domain.kube.pod_spec import read_pod
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from tests.support.mutants import MUTANTS, broken
from tests.support.objects import Object, container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, UNMANAGED, change, creation, judged, rules_of
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.mutating.pod import mutated
from webhook.decide.mutating.takeover import asks_for_ours, is_placed_by_us
from webhook.decide.review import AdmissionRequest, readable_pod
from webhook.decide.settings import AdmissionSettings, DomainSetting, RuleMode
from webhook.decide.validating.findings import scheduler_of
from webhook.decide.validating.validate import validate

TOPICS = sorted({mutant.topic for mutant in MUTANTS.values()})
NAMES = [
    "koordinator.sh/gpu",
    "koordinator.sh/gpu.shared",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    "kubernetes.io/gpu",
    "koordinator.sh/rdma",
    "nvidia.com/gpu",
    "vke.volcengine.com/mgpu-core",
    "vke.volcengine.com/mgpu-memory",
    "aliyun.com/gpu-mem",
    "cpu",
    "memory",
]
LABELS = {
    "koordinator.sh/qosClass": ["LSE", "LSR", "LS", "BE", "other"],
    "koordinator.sh/priority-class": ["koord-prod", "koord-batch", "x"],
    "koordinator.sh/priority": ["7", "seven"],
    "gputopology.scheduling.koordinator.sh/name": ["job", "gang"],
    "gputopology.scheduling.koordinator.sh/replica": ["1", "2", "0", "x"],
}
ANNOTATIONS = {
    "vke.volcengine.com/container-multiple-gpu": ["1", "2", "0,1", "-1", "x"],
    "vke.volcengine.com/mgpu-compute-policy": ["native-burst-share", "x"],
    "scheduling.koordinator.sh/resource-spec": ['{"requiredCPUBindPolicy":"FullPCPUs"}', "{", "[]"],
    "scheduling.koordinator.sh/device-allocate-hint": ['{"gpu":{}}', '{"gpu":1}', "{"],
    "gang.scheduling.koordinator.sh/name": ["gang", "job"],
    "gang.scheduling.koordinator.sh/min-available": ["1", "2", "0"],
    "tenure.sh/visible.0": ["GPU-1"],
}

amounts = st.sampled_from([0, 1, 2, 30, 50, 100, 128, 150, 200, 256, 300, 8138, "1Gi", "500m"])


def some_of(choices: Mapping[str, list[str]]) -> st.SearchStrategy[dict[str, str]]:
    """Draw texts for some of the keys."""
    return st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in choices.items()}
    )


@st.composite
def containers(draw: st.DrawFn, name: str) -> Object:
    """Draw a container with amounts that are often legal together, and often not."""
    whole = st.integers(0, 4).map(lambda cards: {"nvidia.com/gpu": cards})
    limits = draw(
        st.one_of(
            st.dictionaries(st.sampled_from(NAMES), amounts, max_size=3),
            st.dictionaries(st.sampled_from(["koordinator.sh/gpu", "cpu"]), amounts, max_size=2),
            whole,
        )
    )
    limits = {key: 1 if value == "500m" and "/" in key else value for key, value in limits.items()}
    return container(name, limits=limits)


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """Draw a Pod out of our words."""
    names = ["a", "b"][: draw(st.integers(1, 2))]
    return pod(
        *(draw(containers(name)) for name in names),
        init=[draw(containers("i"))] if draw(st.booleans()) else [],
        labels=draw(some_of(LABELS)),
        annotations=draw(some_of(ANNOTATIONS)),
        priority=draw(st.sampled_from([0, 3500, 5500, 7500, 9500])),
    )


VOCABULARIES = tuple(
    Vocabulary(whole_cards=given, slot_mode=mode)
    for given in ("ours", "nvidia")
    for mode in ("env", "plugin", "gpushare")
)
settings_ = st.builds(
    AdmissionSettings,
    domain=st.sampled_from(DomainSetting),
    vocabulary=st.sampled_from(VOCABULARIES),
)


@given(body=pods())
def test_what_is_allowed_can_be_allocated(body: Object) -> None:
    """A Pod of ours that admission lets through is one that the allocator understands."""
    placed = is_placed_by_us(body, AdmissionSettings(), MANAGED.labels)
    if placed and asks_for_ours(read_pod(body)) and judged(body).allowed:
        decode_pod(body)


@given(body=pods(), settings=settings_)
def test_what_our_webhook_makes_of_a_pod_can_be_allocated_too(
    body: Object, settings: AdmissionSettings
) -> None:
    """Allowed after the rewrite means understood after the rewrite, as the same request."""
    after = mutated(body, settings, MANAGED, namespace="ml")
    answer = judged(after, settings)

    if answer.allowed and scheduler_of(after) == settings.scheduler_name:
        request = decode_pod(readable_pod(after, "ml"))
        assert request.devices == decode_pod(body).devices


@given(body=pods(), settings=settings_)
def test_the_rewrite_makes_no_violation_and_hides_none(
    body: Object, settings: AdmissionSettings
) -> None:
    """The user hears of the same rules whether our mutating webhook came before or not."""
    after = mutated(body, settings, MANAGED, namespace="ml")

    def broken_rules(answer: AdmissionAnswer) -> set[str]:
        return {item.rule for item in answer.refusals}

    assert broken_rules(judged(after, settings)) == broken_rules(judged(body, settings))
    assert is_admitted(after["metadata"].get("annotations", {})) or after == body  # type: ignore[attr-defined]


@given(topics=st.sets(st.sampled_from(TOPICS)), data=st.data())
def test_every_independent_violation_is_said(topics: set[str], data: st.DataObject) -> None:
    """Whatever goes wrong together, each violation is there once, and nothing else."""
    chosen = [
        data.draw(st.sampled_from([mutant for mutant in MUTANTS.values() if mutant.topic == topic]))
        for topic in sorted(topics)
    ]
    expected = {field: rule for mutant in chosen for field, rule in mutant.expected.items()}

    answer = judged(broken(*chosen))

    assert rules_of(answer) == expected
    assert len(answer.causes) == len(expected)
    assert answer.allowed is not bool(expected)


keys = st.sampled_from(
    [*sorted(ALLOCATION_ANNOTATIONS)[:6], "tenure.sh/visible.0", "tenure.sh/admitted", "team", "x"]
)
texts = st.dictionaries(keys, st.sampled_from(["a", "b"]))


@given(
    before=texts,
    after=texts,
    subresource=st.sampled_from(["", "status", "resize", "ephemeralcontainers"]),
)
def test_exactly_the_guarded_changes_are_forged(
    before: Mapping[str, str], after: Mapping[str, str], subresource: str
) -> None:
    """Set, changed or removed, on every path of an update, and nothing besides."""
    request = change(pod(annotations=before), pod(annotations=after), subresource=subresource)
    answer = validate(request, facts=UNMANAGED)

    changed = {
        key for key in {*before, *after} if before.get(key) != after.get(key) and is_allocation(key)
    }
    forged = {item.error.field for item in answer.refusals if item.rule == "ForgedAllocation"}
    assert forged == {f"metadata.annotations[{key}]" for key in changed}


@given(body=pods(), mode=st.sampled_from(RuleMode))
def test_every_mode_sees_the_same_violations(body: Object, mode: RuleMode) -> None:
    """`warn` says what `enforce` refuses; `off` says nothing of it."""
    enforced = judged(body)
    answer = judged(body, AdmissionSettings(mode=mode))

    assert answer.allowed or mode is RuleMode.ENFORCE
    expected = () if mode is RuleMode.OFF else enforced.refusals
    assert [item.error for item in answer.refusals] == [item.error for item in expected]
    assert all(len(text) < 256 for text in answer.warnings)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "status",
                    "annotations",
                    "labels",
                    "name",
                    "containers",
                    "ephemeralContainers",
                    "resources",
                    "limits",
                    "env",
                    "nodeName",
                    "devices",
                    "topologies",
                    "allocations",
                    "target",
                    "koordinator.sh/gpu",
                    "node.koordinator.sh/cpu-topology",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)
objects = st.dictionaries(
    st.sampled_from(["metadata", "spec", "status", "target"]), json_values, max_size=3
)
KINDS = {
    "Pod": ("", "pods"),
    "Binding": ("", "bindings"),
    "Node": ("", "nodes"),
    "Device": ("scheduling.koordinator.sh", "devices"),
    "NodeResourceTopology": ("topology.node.k8s.io", "noderesourcetopologies"),
}


@given(
    kind=st.sampled_from(sorted(KINDS)),
    operation=st.sampled_from(["CREATE", "UPDATE"]),
    subresource=st.sampled_from(["", "status", "resize", "ephemeralcontainers"]),
    obj=objects,
    old=objects,
)
def test_any_object_has_an_answer(
    kind: str, operation: str, subresource: str, obj: Object, old: Object
) -> None:
    """Whatever JSON comes, the answer is a decision, never an exception."""
    group, resource = KINDS[kind]
    request = AdmissionRequest(
        uid="u",
        operation=operation,
        kind=kind,
        group=group,
        resource=resource,
        subresource=subresource,
        obj=obj,
        old=old if operation == "UPDATE" else None,
    )

    answer = validate(request, facts=MANAGED)

    assert answer.allowed is not bool(answer.causes)
    json.dumps([(cause.field, cause.reason, cause.message) for cause in answer.causes])


@given(text=st.text(max_size=30), key=st.sampled_from(sorted(ANNOTATIONS)))
def test_any_text_in_an_annotation_has_an_answer(text: str, key: str) -> None:
    """What a user writes is refused at worst, with its field."""
    body = gpu_pod({"koordinator.sh/gpu": 100}, annotations={key: text})

    answer = validate(creation(body), facts=MANAGED)

    assert all(cause.field for cause in answer.causes)
