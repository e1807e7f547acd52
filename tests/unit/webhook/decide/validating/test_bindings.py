from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.objects import gpu_pod, pod
from tests.support.requests_to_admit import AGENT, SCHEDULER, binding, creation, rules_of
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings, RuleMode
from webhook.decide.validating.validate import validate

OURS = NamespaceFacts(managed=True, pod=gpu_pod({"koordinator.sh/gpu": 50}, schedulerName="tenure"))
THEIRS = NamespaceFacts(managed=True, pod=pod(schedulerName="default-scheduler"))
UNKNOWN = NamespaceFacts(managed=True)
PATHS = {"pods/binding": ("pods", "binding"), "bindings": ("bindings", "")}


def bound(path: str, user: str = "system:kube-scheduler") -> AdmissionRequest:
    """Return a Binding of Pod p to node n1."""
    resource, subresource = PATHS[path]
    return creation(
        binding(), kind="Binding", user=user, resource=resource, subresource=subresource
    )


@pytest.mark.parametrize("path", PATHS)
def test_nobody_else_binds_our_schedulers_pods(path: str) -> None:
    """Design section 5.1: refused with an explanation, by either path, as forbidden to the user."""
    answer = validate(bound(path), facts=OURS)

    assert rules_of(answer) == {"target": "BindingTakeover"}
    assert answer.reason == "Forbidden"
    assert answer.message == (
        'pods "p" is forbidden: target: Forbidden: pod ml/p is placed by the scheduler tenure, '
        'which records what it holds; "system:kube-scheduler" must not bind it to node "n1": '
        "leave it to that scheduler, or create the pod with another spec.schedulerName"
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("user", [SCHEDULER, AGENT])
def test_we_bind_them(path: str, user: str) -> None:
    """Our own service accounts are the ones that may."""
    assert validate(bound(path, user), facts=OURS).allowed


@pytest.mark.parametrize("path", PATHS)
def test_other_schedulers_bind_their_own_pods(path: str) -> None:
    """A Pod in a managed namespace that we did not take over is left to its scheduler."""
    answer = validate(bound(path), facts=THEIRS)

    assert (answer.allowed, answer.warnings) == (True, ())


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_pod_is_let_through_with_a_warning(path: str) -> None:
    """Failing closed here could stop a whole cluster; what slips through is reconciled."""
    answer = validate(bound(path), facts=UNKNOWN)

    assert answer.allowed
    assert answer.warnings == (
        "pod ml/p could not be looked up, so nobody checked who may bind it",
    )
    assert validate(bound(path, SCHEDULER), facts=UNKNOWN).warnings == ()


def test_the_pods_own_labels_open_nothing() -> None:
    """Koordinator's bypass label is a user's to write, so it is not read."""
    facts = NamespaceFacts(
        pod=pod(schedulerName="tenure", labels={"koordinator.sh/binding-admission-bypass": "true"})
    )

    assert not validate(bound("bindings"), facts=facts).allowed


def test_a_dry_run_is_answered_alike() -> None:
    """Nothing is remembered, so there is nothing to leave out."""
    request = bound("pods/binding")

    assert validate(replace(request, dry_run=True), facts=OURS) == validate(request, facts=OURS)


def test_takeover_can_be_watched_before_it_is_enforced() -> None:
    """Design section 8: first shadow, then warn, then enforce."""
    for mode, allowed, warnings in (
        (RuleMode.OFF, True, 0),
        (RuleMode.WARN, True, 1),
        (RuleMode.ENFORCE, False, 0),
    ):
        settings = AdmissionSettings(modes={"BindingTakeover": mode})
        answer = validate(bound("bindings"), settings, OURS)

        assert (answer.allowed, len(answer.warnings)) == (allowed, warnings)


def test_a_forged_binding_of_our_pod_is_wrong_twice() -> None:
    """Who binds it and what it claims are two violations."""
    request = creation(binding({"ALIYUN_COM_GPU_MEM_IDX": "0"}), kind="Binding")

    assert set(rules_of(validate(request, facts=OURS)).values()) == {
        "ForgedAllocation",
        "BindingTakeover",
    }


def test_another_scheduler_name_of_ours_counts() -> None:
    """The name is a setting."""
    settings = AdmissionSettings(scheduler_name="gpu-scheduler")
    facts = NamespaceFacts(pod=pod(schedulerName="gpu-scheduler"))

    assert not validate(bound("bindings"), settings, facts).allowed
    assert validate(bound("bindings"), settings, OURS).allowed
