from __future__ import annotations

from typing import Final

import pytest

from ledger.domain.request.near_names import meant_resource
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from tests.support.objects import Object, container, gpu_pod, pod
from tests.support.requests_to_admit import judged
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings, RuleMode
from webhook.decide.validating.near_misses import meant_key
from webhook.decide.validating.workloads import workload_advice

GPU = "koordinator.sh/gpu"
MEMORY = "koordinator.sh/gpu-memory"
GPU_MEM = "aliyun.com/gpu-mem"
QOS = "koordinator.sh/qosClass"
SPEC = "scheduling.koordinator.sh/resource-spec"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
COUNTS = "vke.volcengine.com/container-multiple-gpu"
PROVIDER = "koordinator.sh/gpu-isolation-provider"
GROUP = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"
LEAST = "gang.scheduling.koordinator.sh/min-available"


def said(body: Object, settings: AdmissionSettings = DEFAULT_ADMISSION) -> tuple[str, ...]:
    """Return the warnings of a Pod that is allowed."""
    answer = judged(body, settings)
    assert answer.allowed, answer.message
    return answer.warnings


RESOURCES: Final = {
    "aliyun.com/gpu-memory": "aliyun.com/gpu-mem",
    "aliyun.com/gpu_mem": "aliyun.com/gpu-mem",
    "aliyun.com/gpumem": "aliyun.com/gpu-mem",
    "koordinator.sh/gpu-mem": "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-cores": "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-shared": "koordinator.sh/gpu.shared",
    "koordinator.sh/gpu-memory-ration": "koordinator.sh/gpu-memory-ratio",
    "vke.volcengine.com/mgpu-mem": "vke.volcengine.com/mgpu-memory",
    "vke.volcengine.com/mgpu-cores": "vke.volcengine.com/mgpu-core",
    "nvidia.com/gpus": "nvidia.com/gpu",
    "gpu-mem": "aliyun.com/gpu-mem",
    "gpu": "nvidia.com/gpu",
    "gpu-core": "koordinator.sh/gpu-core",
    "kubernetes.io/gpu-mems": "kubernetes.io/gpu-memory",
}


@pytest.mark.parametrize(("name", "meant"), RESOURCES.items(), ids=RESOURCES)
def test_a_misspelt_resource_is_said(name: str, meant: str) -> None:
    """Almost a name of ours, in any of the dialects."""
    (text,) = said(gpu_pod({name: 1}))

    assert text == f'spec.containers[0]: "{name}" asks for nothing of ours; meant {meant}?'


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "memory",
        "ephemeral-storage",
        "hugepages-2Mi",
        "nvidia.com/mig-1g.5gb",
        "gpu.intel.com/i915",
        "example.com/dongle",
        "rdma/hca",
        "kubernetes.io/batch-cpu",
        "kubernetes.io/gpu-mem",
        "tenure.sh/slot",
    ],
)
def test_other_resources_are_other_resources(name: str) -> None:
    """A warning about what is meant as it is written would only teach people to ignore warnings."""
    assert meant_resource(name, DEFAULT_VOCABULARY) == ""


KEYS: Final = {
    "koordinator.sh/qos-class": QOS,
    "koordinator.sh/qosclass": QOS,
    "vke.volcengine.com/container-multiple-gpus": COUNTS,
    "scheduling.koordinator.sh/resource-specs": SPEC,
    "gputopology.scheduling.koordinator.sh/replicas": REPLICA,
    "gang.scheduling.koordinator.sh/min-availabel": LEAST,
}


@pytest.mark.parametrize(("key", "meant"), KEYS.items(), ids=KEYS)
def test_a_misspelt_key_is_said(key: str, meant: str) -> None:
    """As a label and as an annotation."""
    assert said(pod(labels={key: "x"})) == (
        f"metadata.labels[{key}]: means nothing; meant {meant}?",
    )
    assert said(pod(annotations={key: "x"})) == (
        f"metadata.annotations[{key}]: means nothing; meant {meant}?",
    )


@pytest.mark.parametrize(
    "key",
    [
        "app.kubernetes.io/name",
        "team",
        "koordinator.sh/qosClass",
        "kubectl.kubernetes.io/last-applied-configuration",
        "tenure.sh/admitted",
        "scheduling.k8s.io/group-name",
    ],
)
def test_other_keys_are_other_keys(key: str) -> None:
    """Neither ours nor almost ours."""
    assert meant_key(key) == ""


def test_a_key_in_the_wrong_place_is_said() -> None:
    """Labels are not read as annotations, nor the other way round."""
    (text,) = said(pod(annotations={QOS: "LSR"}))
    assert text == f"metadata.annotations[{QOS}]: is not read here; make it a label"
    (text,) = said(pod(labels={LEAST: "2"}))
    assert text == f"metadata.labels[{LEAST}]: is not read here; make it an annotation"


def test_a_key_that_is_read_in_both_places_is_never_in_the_wrong_one() -> None:
    """HAMi's scheduler writes where a Pod is as an annotation, and others as a label."""
    assert said(pod(annotations={"hami.io/vgpu-node": "n1"})) == ()
    assert said(pod(labels={"hami.io/vgpu-node": "n1"})) == ()


UNITS: Final = {
    "8 bytes": ({MEMORY: 8}, "MiB", "8 is 8 bytes; write 8Gi for GiB"),
    "8192 bytes": ({MEMORY: 8192}, "MiB", "8192 is 8192 bytes; write 8192Mi for MiB"),
    "8 MiB": ({GPU_MEM: 8}, "MiB", "counts MiB here, so 8 is 8 MiB; for 8 GiB write 8192"),
    "96 MiB": ({GPU_MEM: 96}, "MiB", "for 96 GiB write 98304"),
    "600 GiB": ({GPU_MEM: 600}, "GiB", "counts GiB here, so 600 is 600 GiB; for 600 MiB write 1"),
}


@pytest.mark.parametrize(("limits", "unit", "expected"), UNITS.values(), ids=UNITS)
def test_a_unit_that_was_hardly_meant_is_said(limits: Object, unit: str, expected: str) -> None:
    """A unit that looks like GiB."""
    settings = AdmissionSettings(vocabulary=Vocabulary(gpushare_unit=unit))

    assert any(expected in text for text in said(gpu_pod(limits), settings))


@pytest.mark.parametrize(
    ("limits", "unit"),
    [
        ({MEMORY: "1Mi"}, "MiB"),
        ({MEMORY: "8Gi"}, "MiB"),
        ({GPU_MEM: 97}, "MiB"),
        ({GPU_MEM: 8138}, "MiB"),
        ({GPU_MEM: 8}, "GiB"),
        ({GPU_MEM: 511}, "GiB"),
    ],
)
def test_plausible_units_are_taken_without_a_word(limits: Object, unit: str) -> None:
    """The edges of what is suspicious."""
    settings = AdmissionSettings(vocabulary=Vocabulary(gpushare_unit=unit))

    assert not any("write" in text for text in said(gpu_pod(limits), settings))


VALUES: Final = {
    "a QoS in lower case": (
        pod(labels={QOS: "lsr"}),
        f'metadata.labels[{QOS}]: "lsr" counts as none; known: LSE, LSR, LS, BE, SYSTEM',
    ),
    "a priority class of Kubernetes": (
        pod(labels={"koordinator.sh/priority-class": "high"}),
        '"high" counts as none; known: koord-prod, koord-mid, koord-batch, koord-free',
    ),
    "a bind policy of the node": (
        pod(annotations={SPEC: {"preferredCPUBindPolicy": "FullPCPUsOnly"}}),
        '"FullPCPUsOnly" counts as none; known: ConstrainedBurst, Default, FullPCPUs, Spread',
    ),
    "an exclusive policy that is none": (
        pod(annotations={SPEC: {"preferredCPUExclusivePolicy": "Socket"}}),
        '"Socket" counts as none',
    ),
    "a field in another case": (
        pod(annotations={SPEC: {"preferredCpuBindPolicy": "FullPCPUs"}}),
        'field "preferredCpuBindPolicy" is not read; meant preferredCPUBindPolicy?',
    ),
    "a field of a hint": (
        pod(annotations={HINT: {"gpu": {"allocateStrategie": "ApplyForAll"}}}),
        'device-allocate-hint].gpu: field "allocateStrategie" is not read; meant allocateStrategy?',
    ),
    "a hint for a type that is none": (
        pod(annotations={HINT: {"tpu": {"selector": {}}}}),
        'device-allocate-hint]: "tpu" is no device type; known: fpga, gpu, rdma',
    ),
    "a joint type that is none": (
        pod(annotations={JOINT: {"deviceTypes": ["gpu", "rmda"]}}),
        'device-joint-allocate].deviceTypes: "rmda" is no device type; known: fpga, gpu, rdma',
    ),
    "a scope of RDMA devices": (
        pod(annotations={HINT: {"rdma": {"requiredTopologyScope": "PCIe"}}}),
        "device-allocate-hint].rdma.requiredTopologyScope: is read for GPUs only",
    ),
    "a partition for half a GPU": (
        gpu_pod({GPU: 50}, annotations={PARTITION: {}}),
        "gpu-partition-spec]: partitions are of whole GPUs, so it changes nothing for a share",
    ),
    "one scope for shares of two GPUs": (
        gpu_pod(
            {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory-ratio": 100},
            annotations={HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}},
        ),
        "gpu.requiredTopologyScope: shares of several GPUs are never under one scope",
    ),
    "a group without GPUs": (
        pod(labels={GROUP: "job", REPLICA: "2"}),
        "a group keeps GPUs together, and this pod asks for none",
    ),
}


@pytest.mark.parametrize(("body", "expected"), VALUES.values(), ids=VALUES)
def test_a_value_that_means_nothing_is_said(body: Object, expected: str) -> None:
    """Koordinator contract 2.1: any other text counts as none, which is seldom what is meant."""
    assert any(expected in text for text in said(body))


WISHES: Final = {
    "partitions of whole GPUs": {PARTITION: {}},
    "a scope of whole GPUs": {HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}},
    "types that are not asked for": {JOINT: {"deviceTypes": ["gpu", "rdma", "fpga"]}},
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_wish_that_can_be_honoured_is_not_spoken_of(wish: Object) -> None:
    """Koordinator contract 2.1, 8.4, 8.5."""
    assert said(gpu_pod({GPU: 200}, annotations=wish)) == ()


def test_types_that_are_no_text_are_only_refused() -> None:
    """Advice beside a refusal never fails on what was refused."""
    answer = judged(pod(annotations={JOINT: {"deviceTypes": [3]}}))

    assert [cause.rule for cause in answer.causes] == ["AnnotationSyntax"]


# --- What is not enforced ------------------------------------------------------------------


FRACTIONS: Final = {
    "half a card": ({GPU: 50}, "its GPU memory and compute are booked"),
    "memory alone": ({MEMORY: "8Gi"}, "its GPU memory (it asks for no compute) are booked"),
    "mGPU": ({"vke.volcengine.com/mgpu-core": 50, "vke.volcengine.com/mgpu-memory": 512}, "booked"),
    "a GPU share": ({GPU_MEM: 8138}, "its GPU memory (it asks for no compute) are booked"),
    "parts of several cards": (
        {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory-ratio": 100},
        "booked",
    ),
}


@pytest.mark.parametrize(("limits", "expected"), FRACTIONS.values(), ids=FRACTIONS)
def test_a_share_without_a_provider_says_what_nothing_enforces(
    limits: Object, expected: str
) -> None:
    """Design section 8: fractions are accounting unless an isolation provider is set."""
    (text,) = said(gpu_pod(limits))

    assert expected in text
    assert PROVIDER in text
    assert said(gpu_pod(limits, labels={PROVIDER: "HAMi-core"})) == ()


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": 1}, {GPU: 200}, {"cpu": "1"}])
def test_whole_cards_need_no_provider(limits: Object) -> None:
    """Nobody else is on them."""
    assert said(gpu_pod(limits)) == ()


def test_an_unknown_provider_enforces_nothing() -> None:
    """Which ones do is a setting."""
    (text,) = said(gpu_pod({GPU: 50}, labels={PROVIDER: "MPS"}))
    assert '"MPS" is no known provider' in text

    settings = AdmissionSettings(isolation_providers=frozenset({"MPS"}))
    assert said(gpu_pod({GPU: 50}, labels={PROVIDER: "MPS"}), settings) == ()


# --- What only the workload shows ------------------------------------------------------------


def deployment(
    template: Object, *, kind: str = "Deployment", metadata: Object | None = None, **spec: object
) -> tuple[Object, Object]:
    """Return a workload and its template."""
    inner = {"metadata": template, "spec": {}}
    body = {"kind": kind, "metadata": metadata or {}, "spec": {"template": inner, **spec}}
    return body, inner


def test_a_key_of_the_workload_never_reaches_its_pods() -> None:
    """An annotation on the workload, and not on its template."""
    workload, template = deployment(
        {}, metadata={"annotations": {COUNTS: "2"}, "labels": {QOS: "LSR"}}
    )

    never = "never reaches the pods; put it into spec.template.metadata"
    assert [item.text for item in workload_advice(workload, template, "spec.template")] == [
        f"metadata.labels[{QOS}]: {never}.labels",
        f"metadata.annotations[{COUNTS}]: {never}.annotations",
    ]


def test_a_key_on_both_is_fine() -> None:
    """Many tools copy labels to both."""
    keys = {"annotations": {COUNTS: "2"}, "labels": {QOS: "LSR"}}
    workload, template = deployment(keys, metadata=keys)

    assert workload_advice(workload, template, "spec.template") == ()


SIZES: Final = {
    "as many": ("Deployment", {"replicas": 3}, {"labels": {REPLICA: "3"}}, 0),
    "one by default": ("StatefulSet", {}, {"labels": {REPLICA: "1"}}, 0),
    "another number": ("Deployment", {"replicas": 4}, {"labels": {REPLICA: "3"}}, 1),
    "a job's parallelism": ("Job", {"parallelism": 4}, {"labels": {REPLICA: "3"}}, 1),
    "a gang larger than the job": ("Job", {"parallelism": 2}, {"annotations": {LEAST: "3"}}, 1),
    "a gang smaller than the job": ("Job", {"parallelism": 4}, {"annotations": {LEAST: "3"}}, 0),
    "a kind of no size": ("DaemonSet", {}, {"labels": {REPLICA: "3"}}, 0),
}


@pytest.mark.parametrize(("kind", "spec", "template", "count"), SIZES.values(), ids=SIZES)
def test_a_group_has_the_size_of_its_workload(
    kind: str, spec: Object, template: Object, count: int
) -> None:
    """GPU-topology proposal: the replica is consistent with the number of copies of the job."""
    workload, inner = deployment(template, kind=kind, **spec)

    assert len(workload_advice(workload, inner, "spec.template")) == count


# --- The form of what is said ----------------------------------------------------------------


def test_every_warning_is_one_line_below_256_characters() -> None:
    """The API server cuts longer ones; nothing a user writes makes one longer."""
    long = "x" * 300
    body = pod(
        container(limits={f"koordinator.sh/gpu-mem{'o' * 40}": 1, "koordinator.sh/gpu-mem": 1}),
        labels={QOS: f"\x1b[2J\n{long}", f"koordinator.sh/{long}": "y", PROVIDER: long},
        annotations={SPEC: {long: "z", "preferredCPUBindPolicy": long}},
    )
    body["spec"]["containers"][0]["resources"]["limits"][GPU] = 50

    warnings = said(body)

    assert len(warnings) >= 4
    assert all(len(text) < 256 and text.isprintable() for text in warnings)


def test_advice_can_be_silenced_and_never_refuses() -> None:
    """`off` silences it; `enforce` leaves it advice."""
    body = gpu_pod({"koordinator.sh/gpu-mem": 1})

    assert said(body, AdmissionSettings(modes={"MisspeltName": RuleMode.OFF})) == ()
    assert len(said(body, AdmissionSettings(modes={"MisspeltName": RuleMode.ENFORCE}))) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("resourceClaims", [{"name": "c", "resourceClaimName": "c"}]),
        ("volumes", [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]),
        ("volumes", [{"name": "v", "ephemeral": {}}]),
        ("volumes", [{"name": "v", "emptyDir": {}}]),
    ],
)
def test_a_gang_that_may_start_in_part_is_said(field: str, value: list[Object]) -> None:
    """What is given before a bind stays given where the gang does not begin; docs/adr/0043."""
    gang = {f"gang.scheduling.koordinator.sh/{key}": "2" for key in ("name", "min-available")}
    asks = container(limits={"nvidia.com/gpu": "1"})
    expected = (
        f"spec.{field}: kube-scheduler gives them before it binds the pod, so its gang may start"
        " in part"
    )
    one, other = pod(asks, annotations=gang), pod(asks)
    one["spec"][field] = other["spec"][field] = value
    assert (expected in said(one)) is ("emptyDir" not in value[0])
    assert expected not in said(other)
