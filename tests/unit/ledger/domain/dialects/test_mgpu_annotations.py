from __future__ import annotations

import pytest

from ledger.domain.annotations.tenure import encode_search_cut, read_search_cut
from ledger.domain.dialects.mgpu.annotations import (
    CONTAINER_NAME_LENGTH_MAX,
    CardRef,
    MgpuAllocation,
    MgpuNodeKind,
    MgpuPolicy,
    decode_card_counts,
    encode_mgpu_allocation,
    read_compute_policy,
    read_mgpu_allocation,
    read_mgpu_node_kind,
    read_node_compute_policy,
)
from ledger.domain.errors import InputError
from tests.support.wishes import encode_card_counts

INDEX = "vke.volcengine.com/gpu-index-container-"
ASSUMED = {"vke.volcengine.com/assumed": "true"}


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2,1,3", (2, 1, 3)), ("2", (2,)), ("2,0", (2, 0)), ("-1,2", (-1, 2)), ("+1,02", (1, 2))],
    ids=["the proposal's list", "one", "a zero", "negative, for M2 to refuse", "odd but integers"],
)
def test_card_counts_are_read(text: str, counts: tuple[int, ...]) -> None:
    """GPU-sharing contract A.1 and A.3."""
    assert decode_card_counts(text) == counts
    assert decode_card_counts(encode_card_counts(counts)) == counts


@pytest.mark.parametrize(
    "text",
    ["", " ", "2, 1", " 2", "2 ", "2,", ",2", "2,,1", "1.5", "two", "1e1", "0x1", "1_0", "9" * 40],
    ids=[
        "empty",
        "blank",
        "a blank inside",
        "a blank before",
        "a blank after",
        "a trailing comma",
        "a leading comma",
        "an empty part",
        "a decimal",
        "a word",
        "an exponent",
        "hexadecimal",
        "an underscore",
        "absurd",
    ],
)
def test_other_lists_break_rule_m0(text: str) -> None:
    """GPU-sharing contract A.3, M0."""
    with pytest.raises(InputError, match="container-multiple-gpu"):
        decode_card_counts(text)


def test_the_default_compute_policy_is_fixed_share() -> None:
    """GPU-sharing contract A.1, on Pods and on nodes."""
    assert read_compute_policy({}) is MgpuPolicy.FIXED_SHARE
    assert read_node_compute_policy({}) is MgpuPolicy.FIXED_SHARE


@pytest.mark.parametrize("policy", list(MgpuPolicy))
def test_every_compute_policy_is_read(policy: MgpuPolicy) -> None:
    """Pod annotation and node label have the same key and the same values."""
    key = {"vke.volcengine.com/mgpu-compute-policy": str(policy)}

    assert read_compute_policy(key) is policy
    assert read_node_compute_policy(key) is policy


@pytest.mark.parametrize("text", ["", "burst", "Fixed-Share"])
def test_an_unknown_compute_policy_is_an_error_on_a_pod_and_none_on_a_node(text: str) -> None:
    """A Pod is refused; a node merely matches no Pod."""
    key = {"vke.volcengine.com/mgpu-compute-policy": text}

    with pytest.raises(InputError, match="native-burst-share"):
        read_compute_policy(key)
    assert read_node_compute_policy(key) is None


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"vke.node.gpu.schedule": "mgpu"}, MgpuNodeKind.MGPU),
        ({}, MgpuNodeKind.OTHER),
        ({"vke.node.gpu.schedule": "nvidia"}, MgpuNodeKind.OTHER),
        ({"vke.node.gpu.schedule": "MGPU"}, MgpuNodeKind.INVALID),
        ({"vke.node.gpu.schedule": ""}, MgpuNodeKind.INVALID),
    ],
    ids=["mgpu", "absent", "nvidia", "another case", "empty"],
)
def test_the_node_label_decides_what_a_node_is(labels: dict[str, str], kind: MgpuNodeKind) -> None:
    """GPU-sharing contract A.1."""
    assert read_mgpu_node_kind(labels) is kind


def test_the_proposals_result_round_trips() -> None:
    """Volcano mGPU proposal, Schedule Result."""
    annotations = {
        **ASSUMED,
        f"{INDEX}c1": "1",
        f"{INDEX}c2": "2,3",
        f"{INDEX}c3": "1,2,3",
    }
    allocation = read_mgpu_allocation(annotations, ["c1", "c2", "c3"])

    assert allocation == MgpuAllocation(
        assumed=True, cards=(("c1", (1,)), ("c2", (2, 3)), ("c3", (1, 2, 3)))
    )
    assert encode_mgpu_allocation(allocation) == annotations


def test_an_ordinal_suffix_is_read_when_no_container_has_that_name() -> None:
    """The proposal's first example counts containers (GPU-sharing contract A.6)."""
    annotations = {f"{INDEX}0": "1,0", f"{INDEX}1": "2", f"{INDEX}2": "1,0,3"}

    allocation = read_mgpu_allocation(annotations, ["a", "b", "c"])
    assert allocation is not None
    assert allocation.cards == (("a", (1, 0)), ("b", (2,)), ("c", (1, 0, 3)))
    assert not allocation.assumed


def test_a_name_that_looks_like_an_ordinal_is_a_name() -> None:
    """Container `1` is the first here, so suffix 1 means it, not the second."""
    allocation = read_mgpu_allocation({f"{INDEX}1": "7"}, ["1", "0"])

    assert allocation is not None
    assert allocation.cards == (("1", (7,)),)


def test_a_name_beats_an_ordinal_for_the_same_container() -> None:
    """Both spellings at once: the name is the writer's."""
    for names in (["main"], ["0-main"], ["container-0"]):
        both = {f"{INDEX}0": "5", f"{INDEX}{names[0]}": "6"}
        allocation = read_mgpu_allocation(both, names)

        assert allocation is not None
        assert allocation.cards == ((names[0], (6,)),)


@pytest.mark.parametrize(
    ("text", "cards"),
    [("GPU-a", ("GPU-a",)), ("GPU-a,GPU-b", ("GPU-a", "GPU-b")), ("10,2", (10, 2))],
    ids=["one UUID", "two UUIDs", "indexes in the order chosen"],
)
def test_digits_are_an_index_and_the_rest_a_uuid(text: str, cards: tuple[CardRef, ...]) -> None:
    """GPU-sharing contract A.6, `id` mode."""
    allocation = read_mgpu_allocation({f"{INDEX}c": text}, ["c"])

    assert allocation is not None
    assert allocation.cards == (("c", cards),)
    assert encode_mgpu_allocation(allocation)[f"{INDEX}c"] == text


def test_containers_without_cards_get_no_annotation() -> None:
    """GPU-sharing contract A.5."""
    allocation = MgpuAllocation(assumed=True, cards=(("a", (0,)), ("b", ())))

    assert encode_mgpu_allocation(allocation) == {**ASSUMED, f"{INDEX}a": "0"}


def test_no_cards_are_no_allocation() -> None:
    """`assumed` alone allocates nothing."""
    assert read_mgpu_allocation({}, ["c"]) is None
    assert read_mgpu_allocation(ASSUMED, ["c"]) is None


@pytest.mark.parametrize(
    ("annotations", "place"),
    [
        ({f"{INDEX}c": ""}, f"{INDEX}c"),
        ({f"{INDEX}c": "1,"}, f"{INDEX}c"),
        ({f"{INDEX}c": "1, 2"}, f"{INDEX}c"),
        ({f"{INDEX}c": "1,1"}, f"{INDEX}c"),
        ({f"{INDEX}other": "1"}, f"{INDEX}other"),
        ({f"{INDEX}1": "1"}, f"{INDEX}1"),
        ({f"{INDEX}": "1"}, f"{INDEX}"),
        ({f"{INDEX}c": "1", "vke.volcengine.com/assumed": "yes"}, "vke.volcengine.com/assumed"),
    ],
    ids=[
        "no card",
        "a trailing comma",
        "a blank",
        "a repeated card",
        "a container the Pod lacks",
        "an ordinal past the end",
        "no suffix",
        "a mark that is no boolean",
    ],
)
def test_broken_results_are_errors(annotations: dict[str, str], place: str) -> None:
    """No card is guessed; the message names the annotation."""
    with pytest.raises(InputError) as caught:
        read_mgpu_allocation(annotations, ["c"])

    assert caught.value.field == f"metadata.annotations[{place}]"


def test_container_names_are_limited_by_the_key() -> None:
    """GPU-sharing contract A.6: names over 43 characters cannot be annotated."""
    assert CONTAINER_NAME_LENGTH_MAX == 43


@pytest.mark.parametrize(
    ("containers", "text"),
    [(6, "first found: containers=6, searched=5"), (5, "best so far: steps=10000")],
)
def test_a_search_that_was_cut_is_written_down(containers: int, text: str) -> None:
    """GPU-sharing contract A.5: which of the two bounds ended it."""
    written = encode_search_cut(containers=containers, levels=5, steps=10000)

    assert written == {"tenure.sh/search-cut": text}
    assert read_search_cut(written) == text
    assert read_search_cut({}) == ""
