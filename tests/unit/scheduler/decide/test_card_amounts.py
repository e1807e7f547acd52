"""Which Pods say that they have more of a card than core percent and memory."""

from __future__ import annotations

import json

import pytest

from ledger.domain.resources import ANNOTATION_DEVICE_ALLOCATED, CARD_AMOUNT_NAMES
from scheduler.decide.nodes.card_amounts import amounts_text, read_amounts


def _allocated(name: str) -> str:
    return json.dumps({"gpu": [{"minor": 3, "resources": {name: "4"}}]})


@pytest.mark.parametrize("name", CARD_AMOUNT_NAMES)
@pytest.mark.parametrize("slash", ["/", "\\/", "\\u002f"], ids=["plain", "escaped", "as a number"])
def test_what_says_it_is_kept_however_it_is_written(name: str, slash: str) -> None:
    """JSON lets any character be escaped."""
    text = _allocated(name).replace("/", slash)

    kept = amounts_text({ANNOTATION_DEVICE_ALLOCATED: text})

    assert kept is not None
    assert read_amounts(kept) == {3: ((name, 4),)}


def test_what_says_nothing_of_it_is_not_kept() -> None:
    """Core percent and memory are in the shares."""
    text = _allocated("koordinator.sh/gpu-core")

    assert amounts_text({ANNOTATION_DEVICE_ALLOCATED: text}) is None
    assert read_amounts(text) == {3: ()}
    assert amounts_text({}) is None
