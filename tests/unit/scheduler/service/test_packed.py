"""What is kept of Pods, packed."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from scheduler.service.kept import PackedTexts, PodBook
from scheduler.service.wakeups import Wakeups


def _pod(number: int, proof: str) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": f"uid-{number}",
            "namespace": "ml",
            "name": f"pod-{number}",
            "annotations": {ANNOTATION_TENURE_PROOF: proof},
        },
        "spec": {"nodeName": "node-0", "containers": []},
    }


def test_a_proof_is_read_once_as_it_was_told() -> None:
    """Whatever it says, as long as its Pod is there."""
    book = PodBook(frozenset(), Wakeups())
    proofs = [f'{{"proof":{{"pod_uid":"uid-{number}","text":"é"}}}}' * 50 for number in range(3)]
    for number, proof in enumerate(proofs):
        book.put(f"uid-{number}", _pod(number, proof))
    book.put("uid-1", _pod(1, "another one"))
    book.drop("uid-2")

    assert sorted(book.proofs) == ["uid-0", "uid-1"]
    assert [book.take_proof("uid-1"), book.take_proof("uid-0")] == ["another one", proofs[0]]
    assert not book.proofs


@pytest.mark.parametrize(
    "texts", [{}, {"a": "1"}, {"b": "ä\n", "a": ""}], ids=["none", "one", "two"]
)
def test_texts_that_are_packed_are_what_they_were(texts: dict[str, str]) -> None:
    """Name by name, in their order, and as a whole."""
    packed = PackedTexts(texts)

    assert packed == texts
    assert list(packed.items()) == list(packed.unpacked().items()) == list(texts.items())
    assert packed.get("c") is None
