from __future__ import annotations

import pytest

from ledger.domain.annotations.checkpoints import (
    DeviceCheckpoint,
    decode_devices_checkpoints,
    encode_devices_checkpoints,
    read_devices_checkpoints,
)
from ledger.domain.errors import InputError

KEY = "node.koordinator.sh/devices-checkpoints"
PROPOSAL_KEY = "node.koordinator.sh/gpu-checkpoints"

PROPOSAL = """[
  {
    "podUID": "fa8983dc-bb76-4eeb-8dcc-556fbd44d7ce",
    "containerName": "cuda-container",
    "resourceName": "nvidia.com/gpu",
    "deviceIDs": ["GPU-36b27e44-b086-46f7-f2dc-73c36dc65991"]
  }
]"""


def test_the_proposals_example_is_read_under_both_keys() -> None:
    """Koordinator contract 2.7; the proposal's text and example spell the key differently."""
    entries = (
        DeviceCheckpoint(
            pod_uid="fa8983dc-bb76-4eeb-8dcc-556fbd44d7ce",
            container_name="cuda-container",
            resource_name="nvidia.com/gpu",
            device_ids=("GPU-36b27e44-b086-46f7-f2dc-73c36dc65991",),
        ),
    )

    assert read_devices_checkpoints({KEY: PROPOSAL}) == entries
    assert read_devices_checkpoints({PROPOSAL_KEY: PROPOSAL}) == entries
    assert decode_devices_checkpoints(encode_devices_checkpoints(entries)) == entries


def test_the_first_key_wins() -> None:
    """We write only `devices-checkpoints`, so that is the one we believe."""
    assert read_devices_checkpoints({KEY: "[]", PROPOSAL_KEY: PROPOSAL}) == ()
    assert read_devices_checkpoints({}) == ()


def test_the_contracts_example_round_trips() -> None:
    """`allocResp` is kept as written, base64 or, as in the contract's own text, not."""
    text = (
        '[{"allocResp":"base64…","containerName":"trainer",'
        '"deviceIDs":["GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44"],'
        '"podUID":"fa8ef004-52b1-4c54-9a0e-1b7f1f0c9a77","resourceName":"nvidia.com/gpu"}]'
    )
    entries = decode_devices_checkpoints(text)

    assert entries[0].alloc_resp == "base64…"
    assert encode_devices_checkpoints(entries) == text


@pytest.mark.parametrize("text", ["null", "[]"])
def test_no_entries_are_no_error(text: str) -> None:
    """A node where kubelet gave nothing away."""
    assert decode_devices_checkpoints(text) == ()
    assert encode_devices_checkpoints(()) == "[]"


def test_missing_parts_are_empty() -> None:
    """Only the Pod's UID is needed to tell whose it is."""
    assert decode_devices_checkpoints('[{"podUID":"u","deviceIDs":null}]') == (
        DeviceCheckpoint(pod_uid="u"),
    )


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""),
        ("{}", ""),
        ("[{}]", "[0].podUID"),
        ('[{"podUID":""}]', "[0].podUID"),
        ('[{"podUID":"u","deviceIDs":{"0":["a"]}}]', "[0].deviceIDs"),
        ('[{"podUID":"u","deviceIDs":[1]}]', "[0].deviceIDs[0]"),
        ('[{"podUID":"u","allocResp":1}]', "[0].allocResp"),
    ],
    ids=[
        "no text",
        "an object",
        "no UID",
        "an empty UID",
        "kubelet's own NUMA shape",
        "an id that is no text",
        "an answer that is no text",
    ],
)
def test_broken_checkpoints_are_errors(text: str, field: str) -> None:
    """A holder we can't read must not look like a free card."""
    with pytest.raises(InputError) as caught:
        decode_devices_checkpoints(text)

    assert caught.value.field == f"metadata.annotations[{KEY}]{field}"


def test_errors_name_the_key_that_was_read() -> None:
    """The proposal's key is named when it is the broken one."""
    with pytest.raises(InputError, match="gpu-checkpoints"):
        read_devices_checkpoints({PROPOSAL_KEY: "x"})
