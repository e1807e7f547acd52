from __future__ import annotations

import json

import pytest

from ledger.domain.annotations.tenure import (
    OriginalContainer,
    OriginalRequest,
    encode_original,
    read_original,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import InputError
from ledger.domain.kube.original import as_written, device_units, is_original_of
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.objects import Object, container, pod

KEY = "tenure.sh/original-request"
CARDS = {
    "koordinator.sh/gpu-core": "200",
    "koordinator.sh/gpu-memory-ratio": "200",
    "koordinator.sh/gpu.shared": "2",
}
NVIDIA = {"nvidia.com/gpu": "2"}
RECORD = {"containers": {"main": {"limits": NVIDIA}}}


def rewritten(record: object = RECORD, cards: Object = CARDS) -> Object:
    """Return a Pod as admission leaves it, with a record of what it was."""
    resources = {"cpu": "4", **cards}
    return pod(container(limits=resources, requests=cards), annotations={KEY: record})


def test_a_record_is_written_and_read_back() -> None:
    """Only what was replaced; nothing replaced is no annotation at all."""
    original = OriginalRequest(
        scheduler_name="volcano",
        containers={"main": OriginalContainer(limits=NVIDIA, requests=NVIDIA)},
    )
    text = (
        '{"containers":{"main":{"limits":{"nvidia.com/gpu":"2"},'
        '"requests":{"nvidia.com/gpu":"2"}}},"schedulerName":"volcano"}'
    )

    assert encode_original(original) == {KEY: text}
    assert read_original({KEY: text}) == original
    assert encode_original(OriginalRequest()) == {}
    assert read_original({}) == OriginalRequest()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"containers":[]}',
        '{"containers":{"a":1}}',
        '{"schedulerName":1}',
        '{"containers":{"a":{"limits":{"x":1}}}}',
        '{"containers":{"a":{"requests":[]}}}',
    ],
)
def test_a_record_of_another_shape_is_an_error(text: str) -> None:
    """With the annotation in its path."""
    with pytest.raises(InputError) as caught:
        read_original({KEY: text})

    assert caught.value.field.startswith(f"metadata.annotations[{KEY}]")


def test_a_rewritten_pod_decodes_to_what_its_user_wrote() -> None:
    """The ledger records the user's own words, and answers in the user's dialect."""
    request, plain = decode_pod(rewritten()), decode_pod(rewritten({}))

    assert (request.dialect, plain.dialect) == (Dialect.NVIDIA, Dialect.KOORDINATOR)
    assert request.devices == plain.devices
    assert request.snapshot.original == {"main.cpu": "4", "main.nvidia.com/gpu": "2"}


FORGED: dict[str, Object] = {
    "more cards": {"containers": {"main": {"limits": {"nvidia.com/gpu": "8"}}}},
    "another container": {"containers": {"other": {"limits": NVIDIA}}},
    "no quantity": {"containers": {"main": {"limits": {"nvidia.com/gpu": "two"}}}},
    "nothing": {"containers": {"main": {}}},
}


@pytest.mark.parametrize("record", FORGED.values(), ids=FORGED)
def test_a_record_that_does_not_lead_here_is_not_believed(record: Object) -> None:
    """It grants nothing: the Pod is what it asks for now."""
    assert decode_pod(rewritten(record)) == decode_pod(rewritten({}))


def test_other_resources_stay_as_they_are() -> None:
    """Only devices are restored, where they stood; the object given is not changed."""
    body = rewritten()
    before = json.dumps(body)

    spec: Object = as_written(body, DEFAULT_VOCABULARY)["spec"]  # type: ignore[assignment]  # it is an object

    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "4", "nvidia.com/gpu": "2"},
        "requests": {},
    }
    assert json.dumps(body) == before
    assert as_written(pod(), DEFAULT_VOCABULARY) == pod()


def test_a_slot_is_nobodys_request() -> None:
    """The plugin's slot is ours; the record of what was asked has none."""
    asked = {**CARDS, "tenure.sh/slot": "1"}

    assert decode_pod(pod(container(limits=asked))) == decode_pod(pod(container(limits=CARDS)))


def test_a_new_name_for_the_same_amount_is_an_original_too() -> None:
    """A record is kept where only the domain of a name changed."""
    original = OriginalContainer(limits={"kubernetes.io/rdma": "5"})

    def is_now(now: Object) -> bool:
        return is_original_of(original, now, DEFAULT_VOCABULARY)

    assert is_now(container(limits={"koordinator.sh/rdma": "5"}))
    assert not is_now(container(limits={"koordinator.sh/rdma": "6"}))
    assert not is_now({"name": "main"})
    assert not is_now(container(limits={"koordinator.sh/rdma": "x"}))


def test_device_units_are_whole_and_under_released_names() -> None:
    """Limits stand in for requests, zeros and other resources are left out."""
    resources: Object = {
        "requests": {"kubernetes.io/gpu-core": "1k", "cpu": "1"},
        "limits": {"kubernetes.io/gpu-core": "5", "koordinator.sh/rdma": "0", "nvidia.com/gpu": 1},
    }

    assert device_units(resources, DEFAULT_VOCABULARY) == {
        "koordinator.sh/gpu-core": 1000,
        "nvidia.com/gpu": 1,
    }
