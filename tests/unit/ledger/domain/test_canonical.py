from __future__ import annotations

import math

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.annotations.wire import dump
from ledger.domain.proofs.canonical import INTEGER_MAX, canonical_json, labels_json

WORDS = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=9)
SAMPLES = {
    "empty": {},
    "keys are sorted": {"b": 1, "a": {"d": [], "c": {}}},
    "integers to the limit": {"most": INTEGER_MAX, "least": -INTEGER_MAX, "zero": 0},
    "constants": {"yes": True, "no": False, "none": None},
    "text that is escaped": {"text": 'a"b\\c/\n\r\t\b\f\x00\x1f\x7f'},
    "text that is not escaped": {"text": "\u00e9\u2028\u4e2d\U0001f600"},
    "deep": {"a": [[[{"b": [{"c": "d"}]}]]]},
}


@pytest.mark.parametrize("value", SAMPLES.values(), ids=SAMPLES)
def test_the_text_is_that_of_rfc_8785(value: dict[str, object]) -> None:
    """The fast path equals an independent implementation on the subset we write."""
    assert canonical_json(value).encode() == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(labels=st.dictionaries(WORDS, WORDS, max_size=5))
def test_labels_have_the_same_text(labels: dict[str, str]) -> None:
    """Whichever of both writes them, and any words are in them."""
    assert labels_json(labels) == canonical_json(labels)
    assert labels_json(labels).encode() == rfc8785.dumps(labels)


def test_not_a_number_is_no_json() -> None:
    """NaN has no JSON text."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": math.nan})


def test_annotations_are_written_without_spaces_in_key_order() -> None:
    """cli.md, Output."""
    assert dump({"b": [1, 2], "a": None}) == '{"a":null,"b":[1,2]}'
    assert dump([]) == "[]"
