from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.errors import InputError
from tests.support.admission_fuzz import SETTINGS, judge, seeds
from webhook.decide.review import ReviewLimits, decode_review

texts = st.text(st.characters(codec=None), max_size=8)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=20,
)
SMALL = ReviewLimits(bytes_max=200, depth_max=4, text_length_max=20)


@given(body=st.binary(max_size=400))
def test_any_bytes_are_a_review_or_an_input_error(body: bytes) -> None:
    """Nothing else is raised, whatever comes in."""
    with contextlib.suppress(InputError):
        decode_review(body)


@given(value=values)
def test_any_json_is_a_review_or_an_input_error(value: object) -> None:
    """As text and as a value, with limits that it meets or breaks."""
    text = json.dumps(value)
    for source in (text, text.encode(errors="surrogatepass"), value):
        for limits in (ReviewLimits(), SMALL):
            with contextlib.suppress(InputError):
                decode_review(source, limits)


@given(value=values, number=st.integers(0, len(seeds()) - 1), data=st.data())
def test_a_review_around_any_object_is_decided(
    value: object, number: int, data: st.DataObject
) -> None:
    """Any JSON value as the object, or in any place of it, ends in an answer."""
    review = seeds()[number]
    body = review["request"]["object"]
    key = data.draw(st.sampled_from(["", *body, *body.get("spec", {}), *body["metadata"]]))
    if not key:
        review["request"]["object"] = value
    else:
        parents = (part for part in (body, body.get("spec", {}), body["metadata"]) if key in part)
        next(parents)[key] = value

    assert judge(json.dumps(review).encode(), SETTINGS[0]) in {"allowed", "refused", "unreadable"}
