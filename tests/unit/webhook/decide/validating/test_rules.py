from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from ledger.domain.request.rule_names import Rule
from tests.support.objects import container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, creation, judged
from webhook.decide.answers import ALLOWED
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings, RuleMode
from webhook.decide.validating.findings import Advice
from webhook.decide.validating.pods import EVERYWHERE
from webhook.decide.validating.validate import VIOLATIONS_MAX, validate

DOCUMENT: Final = Path(__file__).parents[5] / "docs" / "rules.md"
BAD: Final = {"koordinator.sh/gpu": 150}


def _listed() -> list[list[str]]:
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    return [line.strip("| ").replace("`", "").split(" | ") for line in lines]


def test_every_rule_and_every_advice_is_documented_once() -> None:
    """What can be switched is listed in docs/rules.md, in order, and nothing else is."""
    assert [row[0] for row in _listed()] == [*map(str, Rule), *map(str, Advice)]


def test_the_document_says_which_rules_hold_everywhere_and_what_each_does_at_first() -> None:
    """Safe to start with, and nothing refused that is only odd."""
    rules, advice = _listed()[: len(Rule)], _listed()[len(Rule) :]

    assert {row[0] for row in rules if row[2] == "every namespace"} == EVERYWHERE
    assert {row[-1] for row in rules} == {str(AdmissionSettings().mode)} == {RuleMode.ENFORCE}
    assert {row[-1] for row in advice} == {RuleMode.WARN}


@pytest.mark.parametrize("name", [*map(str, Rule), *map(str, Advice)])
def test_names_are_camel_case_and_stay(name: str) -> None:
    """They are keys of settings and values of metrics."""
    assert re.fullmatch(r"(?:[A-Z][a-z]+)+", name)


def test_a_rule_is_enforced_warned_about_or_off() -> None:
    """Each rule by itself; the violation is the same, and is counted unless it is off."""
    off = judged(gpu_pod(BAD), AdmissionSettings(modes={"DevicePercent": RuleMode.OFF}))
    warned = judged(gpu_pod(BAD), AdmissionSettings(modes={"DevicePercent": RuleMode.WARN}))
    refused = judged(gpu_pod(BAD))

    assert off == ALLOWED
    assert (warned.allowed, warned.causes) == (True, ())
    (text,) = warned.warnings
    assert text == (
        "spec.containers[0].resources.requests[koordinator.sh/gpu]: Invalid value: 150: the "
        "requested GPU must be percentage of 100 (nearest legal values 100 and 200) "
        "(rule DevicePercent, not enforced yet)"
    )
    assert [(item.rule, item.mode) for item in warned.refusals] == [("DevicePercent", "warn")]
    assert [(item.rule, item.mode) for item in refused.refusals] == [("DevicePercent", "enforce")]
    assert not refused.allowed


def test_one_rule_switched_leaves_the_others() -> None:
    """A warning does not take a refusal along, nor the other way round."""
    body = gpu_pod(BAD, annotations={"ALIYUN_GPU_ID": "0"})
    answer = judged(body, AdmissionSettings(modes={"DevicePercent": RuleMode.WARN}))

    assert [cause.field for cause in answer.causes] == ["metadata.annotations[ALIYUN_GPU_ID]"]
    assert len(answer.warnings) == 1
    assert answer.audit == {"violated-rules": "ForgedAllocation=enforce,DevicePercent=warn"}


def test_all_rules_can_be_watched_first() -> None:
    """Design section 8: first shadow, then warn, then enforce, one value each."""
    body = gpu_pod(BAD, annotations={"ALIYUN_GPU_ID": "0"})
    watched = judged(body, AdmissionSettings(mode=RuleMode.WARN))

    assert (watched.allowed, len(watched.warnings)) == (True, 2)
    assert judged(body, AdmissionSettings(mode=RuleMode.OFF)) == ALLOWED


def test_a_long_violation_is_cut_to_a_warning_the_api_server_passes_on() -> None:
    """Below 256 characters each."""
    body = pod(annotations={f"tenure.sh/{'x' * 200}": "y" * 500})
    answer = judged(body, AdmissionSettings(mode=RuleMode.WARN))

    assert [len(text) < 256 for text in answer.warnings] == [True]


def test_an_answer_is_bounded_however_much_is_wrong() -> None:
    """All containers that may be and annotations of 200 KiB make no status of megabytes."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    body = pod(
        *(container(f"c{number}", limits=BAD, env=env) for number in range(250)),
        annotations={"vke.volcengine.com/mgpu-compute-policy": "x" * 200_000},
    )
    body["spec"]["containers"][0]["resources"]["limits"] = {"vke.volcengine.com/mgpu-core": 100}
    answer = judged(body)

    assert len(answer.causes) == VIOLATIONS_MAX
    assert len(answer.message) < 2**20
    assert any("more violations are not shown" in text for text in answer.warnings)
    alone = judged(
        gpu_pod(
            {"vke.volcengine.com/mgpu-core": 100},
            annotations={"vke.volcengine.com/container-multiple-gpu": "x" * 200_000},
        )
    )
    assert len(alone.message) < 5000


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_are_allowed(operation: str) -> None:
    """Nothing of ours is decided there."""
    request = AdmissionRequest(
        uid="u", operation=operation, kind="Pod", resource="pods", obj=gpu_pod(BAD)
    )

    assert validate(request, facts=MANAGED) == ALLOWED


@pytest.mark.parametrize(
    ("kind", "resource", "subresource"),
    [
        ("Eviction", "pods", "eviction"),
        ("ConfigMap", "configmaps", ""),
        ("Pod", "podtemplates", ""),
        ("Pod", "pods", "proxy"),
        ("Deployment", "deployments", ""),
    ],
)
def test_other_kinds_are_allowed(kind: str, resource: str, subresource: str) -> None:
    """What is not in the table is not ours."""
    request = AdmissionRequest(
        uid="u",
        operation="CREATE",
        kind=kind,
        resource=resource,
        subresource=subresource,
        obj=gpu_pod(BAD),
    )

    assert validate(request, facts=MANAGED) == ALLOWED


def test_a_kind_alone_tells_the_resource() -> None:
    """Files have no resource beside their kind."""
    request = AdmissionRequest(uid="u", operation="CREATE", kind="Pod", obj=gpu_pod(BAD))

    assert not validate(request, facts=MANAGED).allowed


def test_a_request_and_its_object_are_not_changed() -> None:
    """The same request asked twice is answered alike."""
    request = creation(gpu_pod(BAD, annotations={"ALIYUN_GPU_ID": "0", "x": "{"}))

    assert validate(request, facts=MANAGED) == validate(request, facts=MANAGED)
