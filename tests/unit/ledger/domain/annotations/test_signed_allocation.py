from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.domain.annotations.signed import BYTES_MAX
from ledger.domain.annotations.signed_allocation import (
    FORMAT,
    Allocation,
    decode_signed_allocation,
    encode_signed_allocation,
)
from ledger.domain.cpuset import cpuset_of
from ledger.domain.devices import ContainerShare, DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.request.requests import PodSnapshot

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME = "tenure.sh/allocation"
PATH = f"metadata.annotations[{NAME}]"


def check(key: str, message: bytes, signature: bytes) -> bool:
    """Trust one key."""
    try:
        KEY.public_key().verify(signature, message)
    except InvalidSignature:
        return False
    return key == "k+1"


def share(minor: int) -> DeviceShare:
    """Return a card of which eight containers get a part each."""
    containers = tuple(
        ContainerShare(container=f"worker-{i}", index=str(i), core_percent=12, memory_bytes=1 << 33)
        for i in range(8)
    )
    return DeviceShare(
        device_type="gpu",
        minor=minor,
        device_id=f"GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a{minor:02}",
        core_percent=100,
        memory_bytes=80 << 30,
        memory_ratio_percent=100,
        exclusive=True,
        instances=8,
        vf_bus_ids=("0000:5e:01.4",),
        containers=containers,
    )


WORDS = Allocation(
    origin="ledger/0a4c3c52",
    incarnation="first",
    epoch=3,
    position=1017,
    at_us=1_772_409_601_000_000,
    pod_uid="fa8ef004",
    attempt=2,
    namespace="ml",
    pod_name="train-0",
    node_uid="7f6410b9",
    node_name="gpu-a",
    cpu_milli=4000,
    memory_bytes=16 << 30,
    shares=(share(0),),
    device_models=("A100",),
    cpuset=cpuset_of((0, 1, 5)),
    dialect="koordinator",
    snapshot=PodSnapshot(owner="job/train", labels={"team": "vision"}),
)


def text_of(allocation: Allocation = WORDS) -> str:
    """Return the annotation's value."""
    return encode_signed_allocation(allocation, key="k+1", sign=KEY.sign)[NAME]


def test_what_is_signed_is_read_back() -> None:
    """One pair of functions, inverse to each other."""
    assert decode_signed_allocation(text_of(), check=check) == WORDS
    assert text_of() == canonical_json(json.loads(text_of()))


def test_spaces_and_order_are_not_signed() -> None:
    """An annotation that was written again by another tool still holds."""
    loaded = json.loads(text_of())
    shuffled = json.dumps(dict(reversed(loaded.items())), indent=1)

    assert decode_signed_allocation(shuffled, check=check) == WORDS


def test_the_largest_allocation_fits_into_an_annotation() -> None:
    """16 cards with 8 containers each and every second one of 512 CPUs, far below the limit."""
    largest = replace(
        WORDS,
        shares=tuple(share(minor) for minor in range(16)),
        device_models=("NVIDIA-A100-SXM4-80GB",) * 16,
        cpuset=cpuset_of(range(0, 512, 2)),
    )

    assert len(largest.cpuset) == 256
    assert len(text_of(largest)) < BYTES_MAX // 8
    assert decode_signed_allocation(text_of(largest), check=check) == largest


CHANGES: dict[str, tuple[str, Any]] = {
    "another Pod": ("pod_uid", "other"),
    "another node": ("node_uid", "other"),
    "another position": ("position", 1018),
    "a number for a truth value": ("attempt", True),
    "a field of nobody": ("extra", 1),
    "a float": ("epoch", 3.5),
}


@pytest.mark.parametrize(("name", "value"), CHANGES.values(), ids=CHANGES)
def test_a_changed_word_breaks_the_signature(name: str, value: object) -> None:
    """Nothing is believed that was not signed."""
    loaded = json.loads(text_of())
    loaded["allocation"][name] = value

    with pytest.raises(InputError, match="the signature does not hold: key=k") as caught:
        decode_signed_allocation(json.dumps(loaded), check=check)
    assert caught.value.field == PATH


BROKEN = {
    "no JSON": ("{", "not valid JSON"),
    "no object": ("[]", "must be an object of allocation"),
    "a field too many": ('{"allocation":{},"key":"","signature":"","x":1}', "must be an object of"),
    "no allocation": ('{"allocation":1,"key":"","signature":""}', "must be an object, a key id"),
    "no base64": ('{"allocation":{},"key":"","signature":"%"}', "not base64"),
    "not ASCII": ('{"allocation":{},"key":"","signature":"\u00e9"}', "not base64"),
    "no signature": ('{"allocation":{},"key":"k+1","signature":""}', "does not hold"),
    "a number too long": ('{"allocation":{"a":1e999},"key":"","signature":""}', "not"),
    "too long": (" " * (BYTES_MAX + 1), "longer than an annotation can be"),
}


@pytest.mark.parametrize(("text", "fact"), BROKEN.values(), ids=BROKEN)
def test_a_broken_annotation_is_refused_with_its_name(text: str, fact: str) -> None:
    """One message, whatever is wrong with it."""
    with pytest.raises(InputError, match=fact) as caught:
        decode_signed_allocation(text, check=check)

    assert caught.value.field.startswith(PATH)


def test_another_key_is_not_trusted() -> None:
    """The key id counts with the signature."""
    text = encode_signed_allocation(WORDS, key="k+2", sign=KEY.sign)[NAME]

    with pytest.raises(InputError, match=r"key=k\+2"):
        decode_signed_allocation(text, check=check)


def test_a_signature_over_another_kind_of_text_does_not_hold() -> None:
    """The context line keeps other signed texts of ours out."""
    loaded = json.loads(text_of())
    text = json.dumps(loaded["allocation"], sort_keys=True, separators=(",", ":"))
    signature = base64.b64decode(loaded["signature"])
    with pytest.raises(InvalidSignature):
        KEY.public_key().verify(signature, text.encode())


def test_a_format_of_a_newer_release_is_not_guessed() -> None:
    """It is signed, and still not understood."""
    newer = replace(WORDS, format=FORMAT + 1)

    with pytest.raises(InputError, match="does not know: format=2"):
        decode_signed_allocation(text_of(newer), check=check)
