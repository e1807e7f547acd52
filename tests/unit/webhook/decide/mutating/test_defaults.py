from __future__ import annotations

import pytest

from tests.support.mutation import MANAGED, mutate
from tests.support.objects import Object, gpu_pod, pod
from webhook.decide.facts import NamespaceFacts
from webhook.decide.settings import AdmissionSettings, PodDefaults, Profile

QOS = "koordinator.sh/qosClass"
CLASS = "koordinator.sh/priority-class"
NVIDIA = {"nvidia.com/gpu": "1"}

DEFAULTS = AdmissionSettings(
    defaults=PodDefaults(
        qos="LS",
        priority_class="koord-mid",
        priority_class_by_qos={"LSR": "koord-prod", "BE": "koord-batch"},
    )
)
CASES: dict[str, tuple[Object, Object, Object]] = {
    "nothing said": ({}, {}, {QOS: "LS", CLASS: "koord-mid"}),
    "a QoS class": ({QOS: "LSR"}, {}, {QOS: "LSR", CLASS: "koord-prod"}),
    "a priority class": ({CLASS: "koord-free"}, {}, {QOS: "LS", CLASS: "koord-free"}),
    "a class of Kubernetes": ({}, {"priorityClassName": "high"}, {QOS: "LS"}),
    "a number": ({}, {"priority": 9500}, {QOS: "LS"}),
    "the API server's 0": ({}, {"priority": 0}, {QOS: "LS", CLASS: "koord-mid"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_pod_leaves_open_is_filled_in(case: tuple[Object, Object, Object]) -> None:
    """Koordinator contract 5.3; what is said stays, and the number is the API server's."""
    labels, spec, expected = case

    after = mutate(gpu_pod(NVIDIA, labels=labels, **spec), DEFAULTS)

    assert after["metadata"]["labels"] == expected
    assert after["spec"].get("priority") == spec.get("priority")


def test_without_settings_qos_and_priority_are_left_open() -> None:
    """The safe default: nobody's quality of service changes by installing us."""
    assert "labels" not in mutate(gpu_pod(NVIDIA))["metadata"]


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        ("LSE", "koord-prod"),
        ("LSR", "koord-prod"),
        ("LS", "koord-prod"),
        ("SYSTEM", "koord-prod"),
        ("BE", "koord-batch"),
        ("nonsense", None),
    ],
)
def test_a_qos_class_brings_the_priority_class_that_goes_with_it(
    qos: str, expected: str | None
) -> None:
    """Koordinator contract 5.3, class from QoS; of a Pod whose user gave no priority."""
    labels = {QOS: qos}
    nothing: tuple[Object, ...] = ({}, {"priority": 0})
    given: tuple[Object, ...] = ({"priority": 9500}, {"priority": 0, "priorityClassName": "none"})
    for spec in nothing:
        after = mutate(gpu_pod(NVIDIA, labels=labels, **spec))
        assert after["metadata"]["labels"].get(CLASS) == expected
    for spec in given:
        after = mutate(gpu_pod(NVIDIA, labels=labels, **spec))
        assert CLASS not in after["metadata"]["labels"]


def test_pods_that_ask_for_nothing_of_ours_get_no_defaults() -> None:
    """Defaults belong to device Pods; profiles may mean others too."""
    assert mutate(pod(), DEFAULTS) == pod()


BATCH = Profile(
    name="batch",
    pod_labels={"tier": "batch"},
    namespace_labels={"team": "a"},
    qos="BE",
    priority_class_name="koord-batch",
    priority=5500,
    koordinator_priority="7",
    labels={"added": "by-profile"},
    annotations={"note": "x"},
)
TEAM_A = NamespaceFacts(labels={"team": "a"}, managed=True)


def test_a_profile_gives_what_the_pod_does_not_say() -> None:
    """Koordinator contract 5.1, step 1, for Pods without devices too."""
    after = mutate(pod(labels={"tier": "batch"}), AdmissionSettings(profiles=(BATCH,)), TEAM_A)

    assert after["metadata"]["labels"] == {
        "tier": "batch",
        "added": "by-profile",
        QOS: "BE",
        "koordinator.sh/priority": "7",
    }
    assert after["metadata"]["annotations"] == {"note": "x"}
    assert (after["spec"]["priorityClassName"], after["spec"]["priority"]) == ("koord-batch", 5500)


def test_a_profile_takes_nothing_back() -> None:
    """What the Pod says itself stays."""
    labels = {"tier": "batch", QOS: "LS", "added": "by-hand", "koordinator.sh/priority": "1"}
    body = pod(labels=labels, annotations={"note": "mine"}, priorityClassName="high", priority=9999)

    assert mutate(body, AdmissionSettings(profiles=(BATCH,)), TEAM_A) == body


@pytest.mark.parametrize(
    ("labels", "facts"),
    [({"tier": "web"}, TEAM_A), ({"tier": "batch"}, MANAGED), ({}, TEAM_A)],
    ids=["another label", "another namespace", "no label"],
)
def test_a_profile_that_does_not_match_changes_nothing(
    labels: Object, facts: NamespaceFacts
) -> None:
    """Every label of the profile has to be there, on the Pod and on its namespace."""
    body = pod(labels=labels)

    assert mutate(body, AdmissionSettings(profiles=(BATCH,)), facts) == body


def test_of_several_profiles_the_first_name_counts() -> None:
    """The order in the file does not matter."""
    profiles = (Profile(name="b", qos="BE"), Profile(name="a", qos="LS", labels={"x": "1"}))
    after = mutate(pod(), AdmissionSettings(profiles=profiles))

    assert after["metadata"]["labels"] == {"x": "1", QOS: "LS"}


def test_a_profile_may_make_another_one_match() -> None:
    """So the second call of ours finds nothing left to do."""
    profiles = (
        Profile(name="a", pod_labels={"x": "1"}, qos="LS"),
        Profile(name="b", labels={"x": "1"}),
    )
    settings = AdmissionSettings(profiles=profiles)

    after = mutate(pod(), settings)

    assert after["metadata"]["labels"] == {"x": "1", QOS: "LS"}
    assert mutate(after, settings) == after


def test_a_profile_can_make_a_pod_ours() -> None:
    """One that gives CPUs of their own brings the scheduler along."""
    settings = AdmissionSettings(profiles=(Profile(name="a", qos="LSR", scheduler_name="other"),))

    assert mutate(pod(), settings)["spec"]["schedulerName"] == "tenure"


def test_a_profile_names_a_scheduler_where_the_pod_does_not() -> None:
    """Kubernetes' default, which the API server fills in, is nobody's choice."""
    settings = AdmissionSettings(profiles=(Profile(name="a", scheduler_name="other"),))

    assert mutate(pod(schedulerName="default-scheduler"), settings)["spec"] == {
        **pod()["spec"],
        "schedulerName": "other",
    }
    assert mutate(pod(schedulerName="mine"), settings) == pod(schedulerName="mine")
