from __future__ import annotations

import pytest

from ledger.domain.annotations.pods import (
    SchedulingHint,
    decode_replace_resources,
    decode_scheduling_hint,
    read_scheduling_hint,
)
from ledger.domain.errors import InputError
from tests.support.wishes import encode_replace_resources, encode_scheduling_hint

CURRENT = "internal.scheduling.koordinator.sh/scheduling-hint"
DEPRECATED = "scheduling.koordinator.sh/scheduling-hint"


def test_the_contracts_scheduling_hint_round_trips() -> None:
    """Koordinator contract 2.1."""
    text = (
        '{"extensions":{"DeviceShare":{},"NodeNUMAResource":{}},"nodeNames":["n-17"],'
        '"preferredNodeNames":["n-17","n-18"]}'
    )
    hint = SchedulingHint(
        node_names=("n-17",),
        preferred_node_names=("n-17", "n-18"),
        extensions=("DeviceShare", "NodeNUMAResource"),
    )

    assert decode_scheduling_hint(text) == hint
    assert encode_scheduling_hint(hint) == text


def test_the_deprecated_hint_counts_only_alone() -> None:
    """Koordinator contract 2.1."""
    old, new = '{"nodeNames":["old"]}', '{"nodeNames":["new"]}'

    assert read_scheduling_hint({}) is None
    assert read_scheduling_hint({DEPRECATED: old}) == SchedulingHint(node_names=("old",))
    assert read_scheduling_hint({DEPRECATED: old, CURRENT: new}) == SchedulingHint(
        node_names=("new",)
    )
    with pytest.raises(InputError) as caught:
        read_scheduling_hint({DEPRECATED: "x"})
    assert caught.value.field == f"metadata.annotations[{DEPRECATED}]"


def test_replacements_round_trip() -> None:
    """Koordinator contract 2.1: an empty right side erases."""
    assert decode_replace_resources("from:to,erase:") == (("from", "to"), ("erase", ""))
    assert encode_replace_resources((("from", "to"), ("erase", ""))) == "from:to,erase:"
    assert decode_replace_resources("") == ()


@pytest.mark.parametrize("text", ["from", ":to", "a:b,", "a:b:c"])
def test_broken_replacements_are_errors(text: str) -> None:
    """Every pair has one colon and something to replace."""
    with pytest.raises(InputError, match="replace-resources"):
        decode_replace_resources(text)
