from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from ledger.domain.annotations.proof import (
    EVERY,
    ProvenContainer,
    SignedHolding,
    attempt_in,
    decode_proof,
    encode_proof,
    proof_of,
    verified_proof,
)
from ledger.domain.cpuset import cpuset_of
from ledger.domain.devices import ContainerShare
from ledger.domain.errors import InputError
from ledger.domain.log.events import PodReserved
from ledger.signing import PrivateKey, published, trusting
from tests.support.stores import reserved, share

OLD, NEW, STRANGER = (PrivateKey.new(name) for name in ("old", "new", "stranger"))
NAME = "tenure.sh/proof"
PATH = f"metadata.annotations[{NAME}]"
MACHINE = ("system", "machine")
check = trusting(published((OLD.public, NEW.public)))
"""As in the middle of a rotation."""


def parts() -> PodReserved:
    """Return a reservation of two cards, one of them of one container, and four CPUs."""
    main = ContainerShare(container="main", index="0", core_percent=40, memory_bytes=7)
    return reserved(
        "a",
        structs.replace(share(0), containers=(main,)),
        share(1),
        attempt=2,
        cpus=(0, 1, 2, 3),
    )


def proof(event: PodReserved | None = None) -> SignedHolding:
    """Return the proof of a reservation at position 17."""
    return proof_of(
        event or parts(),
        cluster="ledger/c",
        incarnation="first",
        epoch=3,
        position=17,
        machine=MACHINE,
    )


def signed(key: PrivateKey = NEW) -> dict[str, str]:
    """Return the annotation."""
    return encode_proof(proof(), key=key.public.key_id, sign=key.sign)


def verify(annotations: dict[str, str], **changes: Any) -> SignedHolding:  # noqa: ANN401 - any argument
    """Check as the agent of the node would."""
    words: dict[str, Any] = {
        "cluster": "ledger/c",
        "pod_uid": "uid-a",
        "node_uid": "uid-n-1",
        "machine": MACHINE,
        "released_position": 0,
    }
    return verified_proof(annotations, check=check, **words | changes)


def test_it_says_what_each_container_may_have() -> None:
    """CPUs and unnamed shares are every container's; a part of a card is its container's."""
    every, main = proof().containers

    assert (every.index, every.cpus, main.index, main.cpus) == (
        EVERY,
        cpuset_of((0, 1, 2, 3)),
        "0",
        cpuset_of(()),
    )
    assert [(each.device_id, each.core_percent) for each in every.devices] == [("GPU-n-1-1", 50)]
    assert [(each.device_id, each.core_percent) for each in main.devices] == [("GPU-n-1-0", 40)]


def test_cpus_alone_are_proven() -> None:
    """A Pod without devices has a proof of its CPUs."""
    only = proof(reserved("a", cpus=(5,))).containers

    assert only == (ProvenContainer(index=EVERY, cpus=cpuset_of((5,))),)


def test_what_is_signed_is_read_back() -> None:
    """One pair of functions, inverse to each other."""
    assert decode_proof(signed()[NAME], check=check) == proof()


@pytest.mark.parametrize("key", [OLD, NEW], ids=["the old key", "the new key"])
def test_both_keys_hold_while_one_follows_the_other(key: PrivateKey) -> None:
    """Rotation with overlap: Pods bound before keep their proof."""
    assert verify(signed(key)) == proof()


def test_a_key_that_nobody_published_is_not_trusted() -> None:
    """Whatever it signs."""
    with pytest.raises(InputError, match="the signature does not hold"):
        verify(signed(STRANGER))


def test_a_key_that_was_taken_back_is_not_trusted() -> None:
    """The end of a rotation: what only the old key signed is believed no more."""
    after = trusting(published((NEW.public,)))

    assert decode_proof(signed(NEW)[NAME], check=after) == proof()
    with pytest.raises(InputError, match="the signature does not hold"):
        decode_proof(signed(OLD)[NAME], check=after)


def test_a_published_text_that_is_no_key_is_named() -> None:
    """A ConfigMap that somebody edited."""
    with pytest.raises(InputError) as caught:
        trusting({"ab.vkey": "none"})
    assert caught.value.field == "data[ab.vkey]"


def test_a_changed_word_breaks_the_signature() -> None:
    """Such as the card."""
    words = json.loads(signed()[NAME])
    words["proof"]["containers"][0]["devices"][0]["device_id"] = "GPU-other"

    with pytest.raises(InputError, match="the signature does not hold"):
        verify({NAME: json.dumps(words)})


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "another cluster": ({"cluster": "ledger/d"}, "cluster"),
    "a Pod of the same name that came later": ({"pod_uid": "uid-b"}, "pod_uid"),
    "a Node of the same name that came later": ({"node_uid": "uid-n-2"}, "node_uid"),
    "a disk that moved to another machine": ({"machine": ("other", "machine")}, "machine[0]"),
    "a machine that was installed anew": ({"machine": ("system", "other")}, "machine[1]"),
    "a reservation that this node released": ({"released_position": 17}, "position"),
    "one before the last release": ({"released_position": 20}, "position"),
}


@pytest.mark.parametrize(("changes", "field"), OTHERS.values(), ids=OTHERS)
def test_a_proof_is_for_one_pod_on_one_node(changes: dict[str, Any], field: str) -> None:
    """The message names what does not agree."""
    with pytest.raises(InputError) as caught:
        verify(signed(), **changes)
    assert caught.value.field == f"{PATH}.proof.{field}"


def test_what_a_machine_does_not_say_is_not_compared() -> None:
    """A virtual machine without a system UUID is known by its machine id."""
    assert verify(signed(), machine=("", "machine")) == proof()


def test_a_later_reservation_than_the_last_release_holds() -> None:
    """The Pod got its devices again."""
    assert verify(signed(), released_position=16) == proof()


def test_a_pod_without_a_proof_gets_nothing() -> None:
    """An annotation that is missing is no permission."""
    with pytest.raises(InputError, match="missing"):
        verify({})


def test_a_signed_allocation_is_no_proof() -> None:
    """The annotation's own name is under the signature."""
    words = json.loads(signed()[NAME])
    stolen = {"allocation": words["proof"], "key": words["key"], "signature": words["signature"]}

    with pytest.raises(InputError, match="must be an object of proof"):
        verify({NAME: json.dumps(stolen)})


SAID = {
    "ours": (signed()[NAME], 2),
    "another Pod's": (signed()[NAME].replace("uid-a", "uid-b"), 0),
    "no JSON": ("{", 0),
    "no object": ("[]", 0),
    "no number": ('{"proof":{"attempt":"2","pod_uid":"uid-a"}}', 0),
    "a truth value": ('{"proof":{"attempt":true,"pod_uid":"uid-a"}}', 0),
    "below one": ('{"proof":{"attempt":-1,"pod_uid":"uid-a"}}', 0),
    "too deep": ("[" * 100_000, 0),
}


@pytest.mark.parametrize(("text", "attempt"), SAID.values(), ids=SAID)
def test_a_bound_pod_tells_by_which_attempt(text: str, attempt: int) -> None:
    """Whoever signed it; 0 for what is none of ours."""
    assert attempt_in({NAME: text}, "uid-a") == attempt


def test_a_pod_without_a_proof_tells_no_attempt() -> None:
    """Somebody else bound it."""
    assert attempt_in({}, "uid-a") == 0
