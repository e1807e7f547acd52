from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Json, Object, container, gpu_pod, pod
from tests.support.requests_to_admit import UNMANAGED, creation, judged, rules_of
from webhook.decide.settings import AdmissionSettings, Takeover
from webhook.decide.validating.requests import examine
from webhook.decide.validating.validate import validate

GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
GPU_MEM = "aliyun.com/gpu-mem"
QOS = "koordinator.sh/qosClass"
CLASS = "koordinator.sh/priority-class"
SPEC = "scheduling.koordinator.sh/resource-spec"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
GROUP = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"
GANG = "gang.scheduling.koordinator.sh/name"
LEAST = "gang.scheduling.koordinator.sh/min-available"
REQUESTS = "spec.containers[0].resources.requests"

TAKEN: Final = {
    "nvidia.com/gpu alone": {"nvidia.com/gpu": 2},
    "amd.com/gpu alone": {"amd.com/gpu": 1},
    "dcu.com/gpu alone": {"dcu.com/gpu": 1},
    "gpu alone": {GPU: 50},
    "gpu of a card": {GPU: 100},
    "gpu of several cards": {GPU: 400},
    "memory alone": {MEMORY: "10Gi"},
    "ratio alone": {RATIO: 300},
    "core and memory": {CORE: 60, MEMORY: "4Gi"},
    "core and ratio": {CORE: 50, RATIO: 60},
    "shared and memory": {SHARED: 2, MEMORY: "4Gi"},
    "shared and ratio": {SHARED: 2, RATIO: 200},
    "shared, core and memory": {SHARED: 3, CORE: 90, MEMORY: "9Gi"},
    "shared, core and ratio": {SHARED: 3, CORE: 90, RATIO: 60},
    "core of 100 on each": {SHARED: 2, CORE: 200, RATIO: 200},
    "rdma alone": {"koordinator.sh/rdma": 100},
    "fpga alone": {"koordinator.sh/fpga": 200},
    "a GPU and half a NIC": {"nvidia.com/gpu": 1, "koordinator.sh/rdma": 50},
    "the proposal's half a card": {"kubernetes.io/gpu": "50", "cpu": "4", "memory": "8Gi"},
    "the proposal's core and ratio": {
        "kubernetes.io/gpu-core": "50",
        "kubernetes.io/gpu-memory-ratio": "60",
    },
    "the proposal's core and memory": {
        "kubernetes.io/gpu-core": "60",
        "kubernetes.io/gpu-memory": "4Gi",
    },
    "the proposal's rdma": {"kubernetes.io/rdma": "100"},
    "the proposal's two cards": {"nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"},
    "the GPU-share proposal's half a card": {GPU_MEM: 8138},
    "the GPU-share proposal's whole card": {GPU_MEM: 16276, "aliyun.com/gpu-count": 1},
}


@pytest.mark.parametrize("limits", TAKEN.values(), ids=TAKEN)
def test_every_legal_combination_is_allowed(limits: Object) -> None:
    """Koordinator contract 4.2, the table; the proposals' examples; limits alone or both sides."""
    assert judged(gpu_pod(limits)).allowed
    assert judged(pod(container(limits=limits, requests=limits))).allowed


REFUSED: Final = {
    "gpu 0": ({GPU: 0}, GPU, "GpuKeys", "greater than zero"),
    "gpu 101": ({GPU: 101}, GPU, "DevicePercent", "100 and 200"),
    "gpu 199": ({GPU: 199}, GPU, "DevicePercent", "100 and 200"),
    "gpu and shared": ({GPU: 100, SHARED: 1}, GPU, "GpuKeys", "GPU and GPU share"),
    "gpu and core": ({GPU: 50, CORE: 50}, GPU, "GpuCombination", "invalid resource device"),
    "core alone": ({CORE: 50}, CORE, "GpuCombination", "invalid resource device requests"),
    "memory and ratio": ({MEMORY: "1Gi", RATIO: 50}, MEMORY, "GpuCombination", "invalid"),
    "shared alone": ({SHARED: 1}, SHARED, "GpuKeys", "all is zero"),
    "shared 0": ({SHARED: 0, RATIO: 50}, SHARED, "GpuKeys", "greater than zero"),
    "shared with both memories": (
        {SHARED: 1, MEMORY: "1Gi", RATIO: 50},
        MEMORY,
        "GpuKeys",
        "at same time",
    ),
    "ratio 250": ({RATIO: 250}, RATIO, "DevicePercent", "200 and 300"),
    "core 150 with ratio": ({CORE: 150, RATIO: 50}, CORE, "DevicePercent", "100 and 200"),
    "core 100 over 3 cards": ({CORE: 100, RATIO: 99, SHARED: 3}, CORE, "ShareDivides", "99 and"),
    "ratio 100 over 3 cards": ({CORE: 99, RATIO: 100, SHARED: 3}, RATIO, "ShareDivides", "99"),
    "110 of each card": ({CORE: 330, MEMORY: "60Gi", SHARED: 3}, CORE, "ShareDivides", "300"),
    "10Gi over 3 cards": (
        {SHARED: 3, CORE: 90, MEMORY: "10Gi"},
        MEMORY,
        "ShareDivides",
        "10737418239 and 10737418242",
    ),
    "two vendors": (
        {"nvidia.com/gpu": 1, "amd.com/gpu": 1},
        "amd.com/gpu",
        "GpuCombination",
        "[amd.com/gpu, nvidia.com/gpu]",
    ),
    "a vendor and Koordinator": ({"nvidia.com/gpu": 1, GPU: 50}, GPU, "OneDialect", "one dialect"),
    "mGPU and Koordinator": (
        {"vke.volcengine.com/mgpu-core": 100, GPU: 50},
        GPU,
        "OneDialect",
        "one dialect",
    ),
    "npu-core with memory": (
        {"huawei.com/npu-core": 4, MEMORY: "1Gi"},
        "huawei.com/npu-core",
        "GpuCombination",
        "invalid resource device requests",
    ),
    "rdma 150": ({"koordinator.sh/rdma": 150}, "koordinator.sh/rdma", "DevicePercent", "100 and"),
    "fpga 250": ({"koordinator.sh/fpga": 250}, "koordinator.sh/fpga", "DevicePercent", "200 and"),
    "a share on two cards": (
        {GPU_MEM: 8138, "aliyun.com/gpu-count": 2},
        "aliyun.com/gpu-count",
        "GpuShareCard",
        "nearest legal value 1",
    ),
    "a number of cards without memory": (
        {"aliyun.com/gpu-count": 1},
        GPU_MEM,
        "GpuShareCard",
        "needs aliyun.com/gpu-mem",
    ),
    "8Gi where MiB count": ({GPU_MEM: "8Gi"}, GPU_MEM, "GpuShareUnit", "a number of MiB"),
    "a percent of compute beside": (
        {GPU_MEM: 8138, "aliyun.com/gpu-core.percentage": 20},
        "aliyun.com/gpu-core.percentage",
        "NotSupported",
        "not supported by this release",
    ),
}


@pytest.mark.parametrize(("limits", "name", "rule", "fact"), REFUSED.values(), ids=REFUSED)
def test_every_other_combination_is_refused(
    limits: Object, name: str, rule: str, fact: str
) -> None:
    """Koordinator contract 4.2, 5.2, 12 Q13; GPU-sharing contract B: the key, the rule, why."""
    answer = judged(gpu_pod(limits))

    assert any(
        (item.rule, item.error.field) == (rule, f"{REQUESTS}[{name}]") and fact in str(item.error)
        for item in answer.refusals
    )


def test_memory_of_a_card_has_the_settings_unit() -> None:
    """GPU-sharing contract B.5: 1024 GiB are one tebibyte, which no card exceeds."""
    settings = AdmissionSettings(vocabulary=Vocabulary(gpushare_unit="GiB"))

    assert judged(gpu_pod({GPU_MEM: 1024}), settings).allowed
    assert rules_of(judged(gpu_pod({GPU_MEM: 1025}), settings)) == {
        f"{REQUESTS}[{GPU_MEM}]": "GpuShareUnit"
    }


@pytest.mark.parametrize("name", ["kubernetes.io/gpu", GPU])
def test_requests_equal_limits_in_both_domains(name: str) -> None:
    """Koordinator contract 1.1, ours: the API server does not ask it of `kubernetes.io/`."""
    answer = judged(pod(container(limits={name: 100}, requests={name: 50})))

    assert rules_of(answer) == {f"{REQUESTS}[{name}]": "RequestsEqualLimits"}
    assert f"must be equal to {name} limit of 100" in answer.causes[0].message


CLASSES: Final = {
    "koord-prod": 9500,
    "koord-mid": 7500,
    "koord-batch": 5500,
    "koord-free": 3500,
    "": 100,
}
TOGETHER: Final = {
    "LSE": {"koord-prod"},
    "LSR": {"koord-prod"},
    "LS": set(CLASSES),
    "BE": {"koord-mid", "koord-batch", "koord-free"},
    "SYSTEM": set(CLASSES),
}
MATRIX: Final = [*product(TOGETHER, CLASSES)]


@pytest.mark.parametrize(
    ("qos", "name"), MATRIX, ids=[f"{qos} with {name or 'none'}" for qos, name in MATRIX]
)
def test_qos_and_priority_classes_go_together_as_the_matrix_says(qos: str, name: str) -> None:
    """Koordinator contract 5.3, "Matrix used by us", by number and by label."""
    amounts = {"cpu": "2"}
    expected = {} if name in TOGETHER[qos] else {f"metadata.labels[{QOS}]": "QosPriority"}

    numbered = pod(container(limits=amounts), labels={QOS: qos}, priority=CLASSES[name])
    assert rules_of(judged(numbered)) == expected
    if name:
        labelled = pod(container(limits=amounts), labels={QOS: qos, CLASS: name}, priority=0)
        assert rules_of(judged(labelled)) == expected


@pytest.mark.parametrize(
    ("number", "allowed"),
    [(8999, False), (9000, True), (9999, True), (10000, False), (7000, False)],
)
def test_the_edges_of_the_priority_ranges(number: int, *, allowed: bool) -> None:
    """Koordinator contract 5.3: prod is 9000 to 9999."""
    body = pod(container(limits={"cpu": "2"}), labels={QOS: "LSR"}, priority=number)

    assert judged(body).allowed is allowed


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        pytest.param({"cpu": "4"}, {"cpu": "4"}, {}, id="equal and whole"),
        pytest.param({"cpu": "4000m"}, {"cpu": "4"}, {}, id="equal, written differently"),
        pytest.param({"cpu": "2"}, {"cpu": "4"}, {"cpu": "CpuLimits"}, id="below the limit"),
        pytest.param({"cpu": "4"}, {}, {"cpu": "CpuLimits"}, id="no limit"),
        pytest.param(
            {"cpu": "4", "memory": "1Gi"},
            {"cpu": "4", "memory": "2Gi"},
            {"memory": "CpuLimits"},
            id="memory below its limit",
        ),
        pytest.param(
            {"cpu": "4", "memory": "1Gi"}, {"cpu": "4", "memory": "1Gi"}, {}, id="memory equal"
        ),
        pytest.param({"cpu": "1500m"}, {"cpu": "1500m"}, {"cpu": "WholeCpus"}, id="a part"),
        pytest.param({"cpu": "999m"}, {"cpu": "999m"}, {"cpu": "WholeCpus"}, id="almost one"),
        pytest.param({"cpu": "0"}, {"cpu": "0"}, {"cpu": "WholeCpus"}, id="zero"),
        pytest.param({}, {}, {"cpu": "WholeCpus"}, id="none"),
    ],
)
def test_cpus_of_ones_own_are_whole_and_limited(
    qos: str, requests: Object, limits: Object, expected: Object
) -> None:
    """CPU-orchestration proposal, QoS principle 1; Koordinator contract 5.3."""
    body = pod(container(requests=requests, limits=limits), labels={QOS: qos}, priority=9500)

    assert rules_of(judged(body)) == {
        f"{REQUESTS}[{name}]": rule for name, rule in expected.items()
    }


def test_two_halves_of_containers_make_a_whole() -> None:
    """Koordinator contract 5.3: the Pod's CPU is a whole number, a container's need not be."""
    halves = [container(name, limits={"cpu": "500m"}) for name in "ab"]

    assert judged(pod(*halves, labels={QOS: "LSR"}, priority=9500)).allowed


def test_the_cpu_of_the_pod_as_a_whole_has_an_equal_limit() -> None:
    """What `spec.resources` says for the Pod counts like a container's."""
    level = {"requests": {"cpu": "4"}, "limits": {"cpu": "8"}}
    body = pod(labels={QOS: "LSR"}, priority=9500, resources=level)

    assert rules_of(judged(body)) == {"spec.resources.requests[cpu]": "CpuLimits"}


@pytest.mark.parametrize("qos", ["", "LS", "BE"])
def test_other_pods_need_no_whole_cpus(qos: str) -> None:
    """CPU-orchestration proposal, QoS principle 8: without the label a Pod is LS."""
    body = pod(
        container(requests={"cpu": "100m"}, limits={"cpu": "2"}),
        labels={QOS: qos} if qos else {},
        priority=5500 if qos == "BE" else 9500,
    )

    assert judged(body).allowed


SPECS: Final = {
    "the proposal's example": (
        {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
        {},
    ),
    "the proposal's Default": ({"preferredCPUExclusivePolicy": "Default"}, {}),
    "required": ({"requiredCPUBindPolicy": "FullPCPUs"}, {}),
    "a burst without a limit": (
        {"requiredCPUBindPolicy": "ConstrainedBurst"},
        {".requiredCPUBindPolicy": "CpuBurst"},
    ),
    "a number for a policy": (
        {"preferredCPUBindPolicy": 1},
        {".preferredCPUBindPolicy": "AnnotationSyntax"},
    ),
}


@pytest.mark.parametrize(("wish", "expected"), SPECS.values(), ids=SPECS)
def test_the_cpu_policies_of_a_pod(wish: Object, expected: Object) -> None:
    """Koordinator contract 2.1; CPU-orchestration proposal, Resource spec."""
    body = pod(
        container(limits={"cpu": "4"}),
        labels={QOS: "LSR"},
        annotations={SPEC: wish},
        priority=9500,
    )

    assert rules_of(judged(body)) == {
        f"metadata.annotations[{SPEC}]{rest}": rule for rest, rule in expected.items()
    }


ARM_WAYS: Final = {
    "by selector": {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
    "by the older label": {"nodeSelector": {"beta.kubernetes.io/arch": "arm64"}},
    "by affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}
                            ]
                        }
                    ]
                }
            }
        }
    },
}


@pytest.mark.parametrize("where", ARM_WAYS.values(), ids=ARM_WAYS)
def test_arm_has_two_policies(where: Object) -> None:
    """CPU-orchestration proposal: on ARM only FullPCPUs, and exclusive only NUMANodeLevel."""
    wrong = {"requiredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}
    right = {"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "NUMANodeLevel"}

    def body(wish: Object, **spec: Json) -> Object:
        return pod(
            container(limits={"cpu": "4"}),
            labels={QOS: "LSR"},
            annotations={SPEC: wish},
            priority=9500,
            **spec,
        )

    answer = judged(body(wrong, **where))
    assert rules_of(answer) == {
        f"metadata.annotations[{SPEC}].requiredCPUBindPolicy": "ArmCpuPolicy",
        f"metadata.annotations[{SPEC}].preferredCPUExclusivePolicy": "ArmCpuPolicy",
    }
    assert "nearest legal value FullPCPUs" in answer.causes[0].message
    assert judged(body(right, **where)).allowed
    assert judged(body(wrong)).allowed
    assert judged(body(wrong, nodeSelector={"kubernetes.io/arch": "amd64"})).allowed


def test_a_pod_that_may_run_on_either_machine_keeps_its_policies() -> None:
    """Known is only what every term of the affinity says."""
    where = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/arch",
                                "operator": "In",
                                "values": ["arm64", "amd64"],
                            }
                        ]
                    }
                ]
            }
        }
    }
    body = pod(
        container(limits={"cpu": "4"}),
        labels={QOS: "LSR"},
        annotations={SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}},
        priority=9500,
        affinity=where,
    )

    assert judged(body).allowed


GROUPS: Final[dict[str, tuple[Object, Object, Object]]] = {
    "a group": ({GROUP: "job", REPLICA: "2"}, {}, {}),
    "a group that is its gang": ({GROUP: "job", REPLICA: "2"}, {GANG: "job", LEAST: "2"}, {}),
    "a name alone": ({GROUP: "job"}, {}, {f"metadata.labels[{REPLICA}]": "TopologyGroup"}),
    "a replica alone": ({REPLICA: "2"}, {}, {f"metadata.labels[{GROUP}]": "TopologyGroup"}),
    "a replica of 0": (
        {GROUP: "job", REPLICA: "0"},
        {},
        {f"metadata.labels[{REPLICA}]": "TopologyGroup"},
    ),
    "another name": (
        {GROUP: "job", REPLICA: "2"},
        {GANG: "gang", LEAST: "2"},
        {f"metadata.labels[{GROUP}]": "GroupIsGang"},
    ),
    "another number": (
        {GROUP: "job", REPLICA: "3"},
        {GANG: "job", LEAST: "2"},
        {f"metadata.labels[{REPLICA}]": "GroupIsGang"},
    ),
    "both": (
        {GROUP: "job", REPLICA: "3"},
        {GANG: "gang", LEAST: "2"},
        {
            f"metadata.labels[{GROUP}]": "GroupIsGang",
            f"metadata.labels[{REPLICA}]": "GroupIsGang",
        },
    ),
    "a gang without its minimum": ({}, {GANG: "gang"}, {f"metadata.annotations[{LEAST}]": "Gang"}),
    "a waiting time without a unit": (
        {},
        {GANG: "gang", LEAST: "2", "gang.scheduling.koordinator.sh/waiting-time": "600"},
        {"metadata.annotations[gang.scheduling.koordinator.sh/waiting-time]": "Gang"},
    ),
    "an unknown mode": (
        {},
        {GANG: "gang", LEAST: "2", "gang.scheduling.koordinator.sh/mode": "Loose"},
        {"metadata.annotations[gang.scheduling.koordinator.sh/mode]": "Gang"},
    ),
    "groups that are no JSON": (
        {},
        {GANG: "gang", LEAST: "2", "gang.scheduling.koordinator.sh/groups": "a,b"},
        {"metadata.annotations[gang.scheduling.koordinator.sh/groups]": "AnnotationSyntax"},
    ),
}


@pytest.mark.parametrize(("labels", "annotations", "expected"), GROUPS.values(), ids=GROUPS)
def test_groups_and_gangs_are_consistent(
    labels: Object, annotations: Object, expected: Object
) -> None:
    """GPU-topology proposal, "Works with the Gang plugin"; Koordinator contract 10."""
    body = gpu_pod({GPU: 200}, labels=labels, annotations=annotations)

    assert rules_of(judged(body)) == expected


HINTS: Final = {
    "the contract's own selector": ({"rdma": {"selector": {"matchLabels": {"f": "r"}}}}, {}),
    "no JSON": ("{", {"": "AnnotationSyntax"}),
    "a list": ([], {"": "AnnotationSyntax"}),
    "an unknown scope": (
        {"gpu": {"requiredTopologyScope": "Rack"}},
        {".gpu.requiredTopologyScope": "AnnotationSyntax"},
    ),
    "an unknown strategy": (
        {"gpu": {"allocateStrategy": "All"}},
        {".gpu.allocateStrategy": "AnnotationSyntax"},
    ),
    "an unknown operator": (
        {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}},
        {".gpu.selector.matchExpressions[0].operator": "AnnotationSyntax"},
    ),
    "a wish that is not honoured": (
        {"gpu": {"requiredTopologyScope": "Device"}},
        {".gpu.requiredTopologyScope": "NotSupported"},
    ),
}


@pytest.mark.parametrize(("hint", "expected"), HINTS.values(), ids=HINTS)
def test_hints_say_something_known(hint: object, expected: Object) -> None:
    """Koordinator contract 2.1: what does not parse is an error, not absent."""
    body = gpu_pod({GPU: 200}, annotations={HINT: hint})

    assert rules_of(judged(body)) == {
        f"metadata.annotations[{HINT}]{rest}": rule for rest, rule in expected.items()
    }


def test_every_annotation_that_does_not_parse_is_said() -> None:
    """One that is broken does not hide the next, nor the amounts."""
    broken = [
        HINT,
        SPEC,
        "scheduling.koordinator.sh/numa-topology-spec",
        "scheduling.koordinator.sh/device-joint-allocate",
        "scheduling.koordinator.sh/gpu-partition-spec",
        "internal.scheduling.koordinator.sh/scheduling-hint",
        "gang.scheduling.koordinator.sh/groups",
    ]
    annotations = {**dict.fromkeys(broken, "{"), GANG: "gang", LEAST: "2"}
    body = gpu_pod({GPU: 150}, annotations=annotations, labels={QOS: "LSR"})

    examined = examine(body, Vocabulary())

    assert {error.field for error in examined.errors} == {
        *(f"metadata.annotations[{key}]" for key in broken),
        f"{REQUESTS}[{GPU}]",
        f"{REQUESTS}[cpu]",
    }


def test_a_pod_that_cannot_be_read_is_refused() -> None:
    """The API server lets no such object through; if one comes, it is not allowed."""
    unreadable: list[Object] = [
        gpu_pod({GPU: "many"}),
        pod(container(), labels={QOS: 1}),
        {"metadata": [], "spec": {}},
        {"metadata": {"name": "p"}, "spec": {"containers": [1]}},
    ]
    for body in unreadable:
        assert not judged(body).allowed


def test_a_generated_name_and_no_namespace_are_enough() -> None:
    """On CREATE neither is there yet; a gang's own group is told by the request's namespace."""
    body = gpu_pod(
        {GPU: 100},
        annotations={
            GANG: "gang",
            LEAST: "1",
            "gang.scheduling.koordinator.sh/groups": ["ml/gang"],
        },
    )
    body["metadata"]["generateName"] = f"{body['metadata'].pop('name')}-"
    del body["metadata"]["namespace"]

    assert judged(body).allowed


def test_rules_about_requests_are_for_managed_pods() -> None:
    """Design section 8: opt-in by namespace, by our scheduler, or by the mark of our webhook."""
    wrong = {GPU: 150}

    assert validate(creation(gpu_pod(wrong)), facts=UNMANAGED).allowed
    assert not judged(gpu_pod(wrong)).allowed
    ours = gpu_pod(wrong, schedulerName="tenure")
    assert not validate(creation(ours), facts=UNMANAGED).allowed
    marked = gpu_pod(wrong, annotations={"tenure.sh/admitted": "true"})
    assert not validate(creation(marked), facts=UNMANAGED).allowed


def test_mgpu_keeps_its_rules_in_every_namespace() -> None:
    """GPU-sharing contract A.3, ours: every Pod that names either resource, whoever owns it."""
    core = "vke.volcengine.com/mgpu-core"
    body = gpu_pod({core: 101}, labels={QOS: "LSR"}, schedulerName="volcano")

    for settings in (
        AdmissionSettings(),
        AdmissionSettings(takeover=Takeover(foreign_schedulers=frozenset({"volcano"}))),
    ):
        answer = validate(creation(body), settings, UNMANAGED)
        assert rules_of(answer) == {f"{REQUESTS}[{core}]": "MgpuNormal"}


def test_a_pod_of_a_foreign_scheduler_is_none_of_ours() -> None:
    """Design section 8: another scheduler may honour what this release does not."""
    settings = AdmissionSettings(takeover=Takeover(foreign_schedulers=frozenset({"volcano"})))
    body = gpu_pod({GPU: 150}, schedulerName="volcano")

    assert judged(body, settings).allowed
    assert not judged(gpu_pod({GPU: 150}), settings).allowed
