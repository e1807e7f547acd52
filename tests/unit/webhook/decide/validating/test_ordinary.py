"""Ordinary Pods of managed namespaces: what other schedulers place is none of our business."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.objects import Object, container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, change, judged, rules_of
from webhook.decide.settings import DEFAULT_ADMISSION
from webhook.decide.validating.validate import validate

GROUPS: Final = {
    "a coscheduling group": {"pod-group.scheduling.sigs.k8s.io": "crowd"},
    "the same by its other name": {"pod-group.scheduling.sigs.k8s.io/name": "crowd"},
}


@pytest.mark.parametrize("labels", GROUPS.values(), ids=GROUPS)
def test_a_coscheduling_label_alone_is_no_gang_of_ours(labels: Object) -> None:
    """Its minimum is in a PodGroup, which another scheduler reads; nor does an update change it."""
    ordinary = pod(container(limits={"cpu": 1}), labels=labels)
    zero = gpu_pod({"nvidia.com/gpu": 0}, labels=labels)

    assert judged(ordinary).allowed
    assert judged(zero).allowed
    changed = change(pod(container(limits={"cpu": 1})), ordinary)
    assert validate(changed, DEFAULT_ADMISSION, MANAGED).allowed


@pytest.mark.parametrize("labels", GROUPS.values(), ids=GROUPS)
def test_of_a_pod_of_ours_the_minimum_has_to_be_known(labels: Object) -> None:
    """A gang that starts with any number of its Pods is none."""
    named = pod(container(limits={"cpu": 1}), labels=labels, schedulerName="tenure")

    for body in (named, gpu_pod({"nvidia.com/gpu": 1}, labels=labels)):
        assert set(rules_of(judged(body)).values()) == {"Gang"}


def test_a_gang_of_another_scheduler_may_be_what_we_can_not_honour() -> None:
    """The modes of Koordinator's own scheduler are not refused for Pods that it places."""
    annotations = {
        "gang.scheduling.koordinator.sh/name": "crowd",
        "gang.scheduling.koordinator.sh/min-available": "2",
        "gang.scheduling.koordinator.sh/mode": "NonStrict",
    }

    assert judged(pod(container(limits={"cpu": 1}), annotations=annotations)).allowed


@pytest.mark.parametrize("word", ["nvidia.com/priority", "nvidia.com/mig-1g.5gb"])
def test_what_another_scheduler_places_may_use_words_that_we_do_not_read(word: str) -> None:
    """Of a Pod that we would place they are refused, by name."""
    asked = {"nvidia.com/gpu": 1, word: 1}

    assert set(rules_of(judged(gpu_pod(asked))).values()) == {"NotSupported"}
    assert judged(gpu_pod(asked, labels={"tenure.sh/takeover": "false"})).allowed
    assert judged(gpu_pod({word: 1})).allowed
