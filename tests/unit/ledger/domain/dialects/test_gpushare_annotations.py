from __future__ import annotations

import pytest

from ledger.domain.dialects.gpushare.annotations import (
    CardUnits,
    GpuShareAllocation,
    GpuShareAnswer,
    decode_card_units,
    decode_core_percentages,
    decode_pod_units,
    encode_gpushare_answer,
    read_gpushare_allocation,
)
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import decode_unhealthy_cards
from tests.support.wishes import encode_card_units, encode_unhealthy_cards

NOW_NS = 1767225600000000000

V1 = {
    "ALIYUN_COM_GPU_MEM_IDX": "1",
    "ALIYUN_GPU_ID": "1",
    "ALIYUN_COM_GPU_MEM_POD": "8138",
    "ALIYUN_COM_GPU_MEM_DEV": "16276",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1767225600000000000",
}
V2_KEY = "scheduler.framework.gpushare.allocation"
V2 = {
    V2_KEY: '{"0":{"1":1},"1":{"1":7}}',
    "scheduler.framework.gpushare.assigned": "true",
    "scheduler.framework.gpushare.assume-time": "1767225600000000001",
}


def test_the_answer_is_written_under_all_names() -> None:
    """GPU-sharing contract B.1: the proposal's `ALIYUN_GPU_ID` equals the index."""
    answer = GpuShareAnswer(card=1, pod_units=8138, card_units=16276, assume_time_ns=NOW_NS)

    assert encode_gpushare_answer(answer) == V1


def test_the_answer_is_read_under_the_proposals_name_alone() -> None:
    """The alias stands in for the index where that is missing."""
    alone = {key: text for key, text in V1.items() if key != "ALIYUN_COM_GPU_MEM_IDX"}

    allocation = read_gpushare_allocation(alone)
    assert allocation is not None
    assert allocation.card == 1


def test_version_1_is_read() -> None:
    """One card for the whole Pod; the units are the sum of its limits, not the annotation."""
    assert read_gpushare_allocation(V1) == GpuShareAllocation(
        version=1, card=1, assigned=False, assume_time_ns=NOW_NS
    )


def test_version_2_is_read_first() -> None:
    """GPU-sharing contract B.1, read order."""
    assert read_gpushare_allocation({**V1, **V2}) == GpuShareAllocation(
        version=2,
        shares=(
            CardUnits(container=0, card=1, units=1),
            CardUnits(container=1, card=1, units=7),
        ),
        assigned=True,
        assume_time_ns=NOW_NS + 1,
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"a":{"1":1}}', '{"0":{"x":1}}', '{"0":{"1":"1"}}', '{"0":{"1":-1}}', "{}"],
    ids=[
        "empty",
        "broken JSON",
        "a list",
        "a container that is no index",
        "a card that is no index",
        "units as text",
        "negative units",
        "no share at all",
    ],
)
def test_an_unreadable_version_2_falls_back_to_version_1(text: str) -> None:
    """The contract says so for this key alone; without v1 the Pod is pending, never on card 0."""
    allocation = read_gpushare_allocation({**V1, V2_KEY: text})

    assert allocation is not None
    assert allocation.version == 1
    assert read_gpushare_allocation({V2_KEY: text}) is None


def test_the_index_beats_its_alias() -> None:
    """Where the two disagree the released name counts."""
    allocation = read_gpushare_allocation({**V1, "ALIYUN_GPU_ID": "3"})

    assert allocation is not None
    assert allocation.card == 1
    alone = read_gpushare_allocation({"ALIYUN_GPU_ID": "3"})
    assert alone is not None
    assert alone.card == 3


@pytest.mark.parametrize(
    "annotations",
    [{}, {"ALIYUN_COM_GPU_MEM_IDX": "-1"}, {"ALIYUN_COM_GPU_MEM_POD": "8138"}],
    ids=["no annotation", "index -1", "units without a card"],
)
def test_an_unknown_card_is_pending(annotations: dict[str, str]) -> None:
    """GPU-sharing contract B.1: never guess card 0."""
    assert read_gpushare_allocation(annotations) is None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ALIYUN_COM_GPU_MEM_IDX", ""),
        ("ALIYUN_COM_GPU_MEM_IDX", "one"),
        ("ALIYUN_COM_GPU_MEM_IDX", "-2"),
        ("ALIYUN_COM_GPU_MEM_ASSIGNED", "yes"),
        ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "today"),
        ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "-5"),
    ],
    ids=["no index", "a word", "below -1", "no boolean", "no time", "a negative time"],
)
def test_a_broken_version_1_is_an_error(key: str, text: str) -> None:
    """There is nothing left to fall back to."""
    with pytest.raises(InputError) as caught:
        read_gpushare_allocation({**V1, key: text})

    assert caught.value.field == f"metadata.annotations[{key}]"


def test_units_and_percentages_share_one_shape() -> None:
    """GPU-sharing contract B.1; ascending by container, then card, as numbers."""
    text = '{"0":{"1":1},"1":{"1":7}}'
    shares = decode_card_units(text)

    assert encode_card_units(shares) == text
    assert decode_core_percentages(text) == shares
    assert [share.card for share in decode_card_units('{"0":{"10":1,"9":1}}')] == [9, 10]
    with pytest.raises(InputError, match="core-percentage"):
        decode_core_percentages("x")


def test_unhealthy_cards_are_read_token_by_token() -> None:
    """GPU-sharing contract B.3: a token that is no index is reported and condemns nothing."""
    assert decode_unhealthy_cards("0,3") == (frozenset({0, 3}), ())
    assert decode_unhealthy_cards(" 1 , x,-2,") == (frozenset({1}), ("x", "-2"))
    assert decode_unhealthy_cards("") == (frozenset(), ())
    assert decode_unhealthy_cards("9" * 5000) == (frozenset(), ("9" * 5000,))
    assert encode_unhealthy_cards(frozenset({10, 2})) == "2,10"


@pytest.mark.parametrize("text", ["8000001", "9" * 18, "9" * 5000, "-1", "1.5", ""])
def test_units_that_no_card_has_are_an_error(text: str) -> None:
    """Bytes made of them would not stay exact."""
    assert decode_pod_units("8000000") == 8_000_000
    with pytest.raises(InputError, match="ALIYUN_COM_GPU_MEM_POD"):
        decode_pod_units(text)
    with pytest.raises(InputError):
        decode_card_units(f'{{"0":{{"1":{text}}}}}')
