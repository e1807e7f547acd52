from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.dialects.hami.annotations import decode_allocated, decode_register
from ledger.domain.errors import InputError
from tests.support.hami import allocated as written
from tests.support.hami import card, registered, registered_v2_7
from tests.support.objects import Object

NUMBERS = st.integers(0, 2**31 - 1)
UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
CARD = st.tuples(UUIDS, NUMBERS, NUMBERS)
CARDS = st.lists(CARD, max_size=3)
TEXTS = st.text(st.sampled_from("GPU-0a,:;[]{}\"' 1id"), max_size=40) | st.text(max_size=20)
FIELD = "metadata.annotations[hami.io/"


@st.composite
def registers(draw: st.DrawFn) -> list[Object]:
    """Cards with ids of their own."""
    return [
        card(
            uuid,
            index=draw(st.integers(0, 15)),
            mib=draw(NUMBERS),
            type=draw(st.sampled_from(["NVIDIA A100-SXM4-80GB", "NVIDIA-Tesla P4", ""])),
            mode=draw(st.sampled_from(["hami-core", "mig", "mps"])),
            health=draw(st.booleans()),
        )
        for uuid in draw(st.lists(UUIDS, max_size=4, unique=True))
    ]


@given(st.lists(CARDS, max_size=4))
def test_what_hami_wrote_of_a_pod_is_read(containers: list[list[tuple[str, int, int]]]) -> None:
    """For any cards in any containers, containers without cards among them."""
    assert [
        [(one.device_id, one.memory_mib, one.core_percent) for one in cards]
        for cards in decode_allocated(written(*containers))
    ] == containers


@given(registers())
def test_what_hami_wrote_of_a_node_is_read(cards: list[Object]) -> None:
    """For any cards, in the form of every release."""
    expected = [
        (one["id"], one["index"], one["type"], one["devmem"], one["mode"], one["health"])
        for one in cards
    ]
    for text in (registered(*cards), registered_v2_7(*cards)):
        found = decode_register(text)
        assert [
            (one.device_id, one.index, one.model, one.memory_mib, one.mode, one.healthy)
            for one in found
        ] == expected


def refusal(decode: Callable[[str], object], text: str) -> InputError | None:
    """Return why a text is not read, None if it is."""
    try:
        decode(text)
    except InputError as error:
        return error
    return None


@given(TEXTS)
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    """Whatever somebody wrote there: cards, or an error that names the annotation."""
    for decode in (decode_allocated, decode_register):
        error = refusal(decode, text)
        assert error is None or error.field.startswith(FIELD)


@given(st.lists(st.lists(CARD, min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_a_broken_card_is_named(
    containers: list[list[tuple[str, int, int]]], data: st.DataObject
) -> None:
    """Container and card of what was broken, wherever it is."""
    number = data.draw(st.integers(0, len(containers) - 1))
    place = data.draw(st.integers(0, len(containers[number]) - 1))
    broken = [list(cards) for cards in containers]
    uuid, mib, _ = broken[number][place]
    broken[number][place] = (uuid, mib, -1)

    error = refusal(decode_allocated, written(*broken))

    assert error is not None
    path = "metadata.annotations[hami.io/vgpu-devices-allocated]"
    assert error.field == f"{path}[{number}][{place}].cores"
