from __future__ import annotations

from typing import Final

import pytest

from ledger.domain.request.rule_names import Rule
from tests.support.mutants import MUTANTS, broken
from tests.support.objects import (
    Json,
    Object,
    container,
    device,
    gpu_device,
    gpu_pod,
    node,
    nrt,
    pod,
)
from tests.support.requests_to_admit import MANAGED, binding, change, creation, quota_fact
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings, RuleMode
from webhook.decide.validating.validate import validate

Case = tuple[AdmissionRequest, NamespaceFacts]

CORE = "vke.volcengine.com/mgpu-core"
MEMORY = "vke.volcengine.com/mgpu-memory"
GPU = {"koordinator.sh/gpu": 100}
QOS = "koordinator.sh/qosClass"
PRIORITY = "koordinator.sh/priority"
GROUP = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"
STATUS = "scheduling.koordinator.sh/resource-status"


def new(body: Object) -> Case:
    """Return the creation of a Pod in a managed namespace."""
    return creation(body), MANAGED


def updated(old: Object, body: Object, **more: Json) -> Case:
    """Return a change in a managed namespace."""
    return change(old, body, **more), MANAGED


def from_mutants() -> dict[Rule, Case]:
    """Return a broken Pod for every rule that a mutant breaks."""
    return {
        Rule(rule): new(broken(mutant))
        for mutant in MUTANTS.values()
        for rule in mutant.expected.values()
    }


def holder(cpu: str) -> Object:
    """Return a Pod that holds a CPU set."""
    status = {STATUS: {"cpuset": "0-3"}}
    return pod(container(limits={"cpu": cpu}), annotations=status, nodeName="n1")


BROKEN: Final[dict[Rule, Case]] = {
    **from_mutants(),
    Rule.SAME_SHARES: new(
        pod(
            container("a", limits={"koordinator.sh/gpu": 30}),
            container("b", limits={"koordinator.sh/gpu": 70}),
        )
    ),
    Rule.MGPU_NORMAL: new(gpu_pod({CORE: 101})),
    Rule.MGPU_MULTIPLE: new(
        gpu_pod({CORE: 100}, annotations={"vke.volcengine.com/container-multiple-gpu": "x"})
    ),
    Rule.MGPU_MEMORY_UNIT: new(gpu_pod({CORE: 50, MEMORY: "6Gi"})),
    Rule.MGPU_CONTAINER_NAME: new(pod(container("c" * 44, limits={CORE: 100}))),
    Rule.MGPU_INIT_CONTAINER: new(
        pod(container(limits={CORE: 100}), init=[container("i", limits={CORE: 100})])
    ),
    Rule.MGPU_POLICY: new(
        gpu_pod({CORE: 100}, annotations={"vke.volcengine.com/mgpu-compute-policy": "x"})
    ),
    Rule.GPUSHARE_CARD: new(gpu_pod({"aliyun.com/gpu-mem": 8138, "aliyun.com/gpu-count": 2})),
    Rule.GPUSHARE_UNIT: new(gpu_pod({"aliyun.com/gpu-mem": "8Gi"})),
    Rule.HAMI_SHARE: new(gpu_pod({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 101})),
    Rule.HAMI_WEBHOOK: new(gpu_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000})),
    Rule.WHOLE_CARDS: new(
        gpu_pod({"koordinator.sh/gpu": 100}, annotations={"tenure.sh/whole-cards": "amd"})
    ),
    Rule.OWNED_NODE: new(gpu_pod(GPU, tolerations=[{"operator": "Exists"}])),
    Rule.FORGED_DEVICE: (
        creation(
            device(annotations={"node.koordinator.sh/devices-checkpoints": "[]"}), kind="Device"
        ),
        MANAGED,
    ),
    Rule.FORGED_TOPOLOGY: (creation(nrt(pod_cpu_allocs=[]), kind="NodeResourceTopology"), MANAGED),
    Rule.FORGED_NODE: updated(
        node(), node(annotations={"tenure.sh/released-at": "x"}), kind="Node"
    ),
    Rule.QOS_IMMUTABLE: updated(pod(labels={QOS: "LS"}), pod(labels={QOS: "SYSTEM"})),
    Rule.PRIORITY_IMMUTABLE: updated(pod(labels={PRIORITY: "1"}), pod(labels={PRIORITY: "2"})),
    Rule.REQUEST_IMMUTABLE: updated(
        gpu_pod(GPU, labels={GROUP: "a", REPLICA: "1"}, nodeName="n1"),
        gpu_pod(GPU, labels={GROUP: "b", REPLICA: "1"}, nodeName="n1"),
    ),
    Rule.DEVICES_IMMUTABLE: updated(gpu_pod(GPU), gpu_pod({"koordinator.sh/gpu": 200})),
    Rule.CPUSET_RESIZE: updated(holder("4"), holder("6"), subresource="resize"),
    Rule.BINDING_TAKEOVER: (
        creation(binding(), kind="Binding"),
        NamespaceFacts(pod=pod(schedulerName="tenure")),
    ),
    Rule.QUOTA_EVADED: (
        creation(gpu_pod({"nvidia.com/gpu": 1})),
        NamespaceFacts(managed=True, quotas=(quota_fact(nvidia=4),)),
    ),
    Rule.DEVICE_OBJECT: (creation(device(gpu_device(-1)), kind="Device"), MANAGED),
    Rule.TOPOLOGY_OBJECT: (
        creation(nrt(cpu_topology="{"), kind="NodeResourceTopology"),
        MANAGED,
    ),
    Rule.NODE_LABELS: updated(node(), node(labels={"vke.node.gpu.schedule": "x"}), kind="Node"),
}


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_can_be_enforced_watched_and_switched_off(rule: Rule) -> None:
    """One object breaks it alone: refused, warned about with its name, passed over."""
    request, facts = BROKEN[rule]

    refused = validate(request, AdmissionSettings(), facts)
    assert [item.rule for item in refused.refusals] == [rule]
    assert (refused.allowed, len(refused.causes)) == (False, 1)
    assert refused.causes[0].field
    assert refused.causes[0].reason.startswith("FieldValue")

    watched = validate(request, AdmissionSettings(modes={rule: RuleMode.WARN}), facts)
    assert (watched.allowed, watched.causes) == (True, ())
    assert [(item.rule, item.mode) for item in watched.refusals] == [(rule, "warn")]
    assert any(refused.causes[0].field in text for text in watched.warnings)

    off = validate(request, AdmissionSettings(modes={rule: RuleMode.OFF}), facts)
    assert (off.allowed, off.refusals) == (True, ())
