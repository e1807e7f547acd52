from __future__ import annotations

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.errors import FieldError, InputError
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.service.requests import KNOWN_MAX, PodReader
from tests.property.test_normalise_robust import POD, damaged, values
from tests.support.objects import Object, container, pod

Read = tuple[PodRequest, tuple[FieldError, ...]]

LEGAL = pod(
    container("a", limits={"cpu": "2", "memory": "1Gi", "koordinator.sh/gpu": "50"}),
    uid="u1",
    labels={"team": "a", "koordinator.sh/qosClass": "LS"},
    annotations={"scheduling.koordinator.sh/device-allocate-hint": {}},
    priority=9500,
    nodeSelector={"zone": "a"},
    tolerations=[{"key": "a", "operator": "Exists"}],
)
LEGAL["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
LEGAL["status"] = {"phase": "Pending", "qosClass": "Burstable", "conditions": []}
who = st.fixed_dictionaries(
    {},
    optional={
        "uid": st.one_of(st.sampled_from(["u1", "u2", ""]), values),
        "name": st.one_of(st.sampled_from(["p", "q", "a/b", ""]), values),
        "creationTimestamp": st.one_of(st.sampled_from(["2026-02-03T04:05:06Z"]), values),
    },
)


def anew(body: Object) -> Read | str:
    """Return what a Pod is read as by itself, or why it can't be read."""
    try:
        return examine_pod(body, DEFAULT_VOCABULARY)
    except InputError as error:
        return str(error)


def remembering(reader: PodReader, body: Object) -> Read | str:
    """Return what a reader that has read others makes of a Pod."""
    try:
        return reader.examine(body)
    except InputError as error:
        return str(error)


def as_another(body: Object, identity: Object) -> Object:
    """Return the Pod as one of that identity, with another random volume, image and condition."""
    other = copy.deepcopy(body)
    metadata, spec = other.get("metadata"), other.get("spec")
    if isinstance(metadata, dict):
        for key in ("uid", "name", "creationTimestamp"):
            metadata.pop(key, None)
        metadata |= {**identity, "resourceVersion": "7", "generateName": "p-"}
    if isinstance(spec, dict):
        spec["volumes"] = [{"name": "kube-api-access-x7k2p"}]
        containers = spec.get("containers")
        for each in containers if isinstance(containers, list) else ():
            if isinstance(each, dict):
                each["image"] = "registry.example/other:2"
    return other


@settings(max_examples=40)
@given(
    first=st.sampled_from([POD, LEGAL]).flatmap(damaged),
    second=st.sampled_from([POD, LEGAL]).flatmap(damaged),
    identities=st.lists(who, min_size=1, max_size=2),
)
def test_whoever_was_read_before_a_pod_is_read_as_if_nobody_was(
    first: Object, second: Object, identities: list[Object]
) -> None:
    """The same request, violations and errors, for legal Pods, broken ones and unreadable ones."""
    reader = PodReader(DEFAULT_VOCABULARY)
    for body in (LEGAL, first, second):
        assert remembering(reader, body) == anew(body)
        for identity in identities:
            other = as_another(body, identity)
            assert remembering(reader, other) == anew(other)


@settings(max_examples=60)
@given(body=damaged(LEGAL))
def test_a_pod_that_differs_anywhere_is_not_taken_for_another(body: Object) -> None:
    """Whatever of a legal Pod is other, as JSON from kube-scheduler may say it."""
    try:
        body = json.loads(json.dumps(body))
    except (TypeError, ValueError):
        return
    reader = PodReader(DEFAULT_VOCABULARY)
    assert remembering(reader, LEGAL) == anew(LEGAL)
    assert remembering(reader, body) == anew(body)


def test_pods_alike_share_what_they_ask_for() -> None:
    """Deciding knows requests by the identity of their parts; the Pods stay apart."""
    reader = PodReader(DEFAULT_VOCABULARY)
    first, _ = reader.examine(LEGAL)
    other = as_another(LEGAL, {"uid": "u2", "name": "q"})
    second, _ = reader.examine(other)

    assert (second.uid, second.name, second.snapshot.created_at_us) == ("u2", "q", 0)
    assert second.devices is first.devices
    assert second.placement is first.placement


def test_what_is_remembered_is_bounded() -> None:
    """The Pods that were not asked about for longest make room."""
    reader = PodReader(DEFAULT_VOCABULARY)
    first, _ = reader.examine(LEGAL)
    for number in range(KNOWN_MAX):
        reader.examine(pod(container(limits={"cpu": 1}), name=f"p{number}", priority=number))
    again, _ = reader.examine(LEGAL)

    assert again == first
    assert again.devices is not first.devices
