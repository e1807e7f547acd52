"""Which cards a container was shown, in every word that there is for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.discover.machine import NOWHERE
from agent.witness.said import Inside
from agent.witness.visible import MOUNTS, Shown, card_of, shown
from tests.support.witnessing import card

CARDS = (
    card(2),
    card(0, instances=("MIG-aaaa",)),
    card(1),
)


@pytest.mark.parametrize(
    ("value", "cards", "unknown"),
    [
        (None, "", ()),
        ("", "", ()),
        ("void", "", ()),
        ("none", "", ()),
        ("all", "all", ()),
        ("GPU-1", "GPU-1", ()),
        ("GPU-1,GPU-0", "GPU-0 GPU-1", ()),
        ("0", "GPU-0", ()),
        ("2, 1", "GPU-1 GPU-2", ()),
        ("0:1", "GPU-0", ()),
        ("MIG-aaaa", "GPU-0", ()),
        ("MIG-GPU-1/5/0", "GPU-1", ()),
        ("GPU-2::3", "GPU-2", ()),
        ("GPU-2-_-11", "GPU-2", ()),
        ("nvidia.com/gpu=1", "GPU-1", ()),
        ("nvidia.com/gpu=all", "all", ()),
        ("vendor.test/card=a", "", ()),
        ("3", "", ("3",)),
        ("01", "", ("01",)),
        ("GPU-", "", ("GPU-",)),
        ("GPU-9,0", "GPU-0", ("GPU-9",)),
        ("no-gpu-has-10MiB-to-run", "", ("no-gpu-has-10MiB-to-run",)),
    ],
)
def test_the_environment_names_cards(
    value: str | None, cards: str, unknown: tuple[str, ...]
) -> None:
    """By UUID, by the driver's order (not by minor), as MIG, as all, as none."""
    everything, named = cards == "all", frozenset(cards.removeprefix("all").split())
    wanted = Shown(cards=named, everything=everything, unknown=unknown)
    assert shown(Inside(visible=value), CARDS) == wanted


def test_the_beginning_of_one_uuid_alone_means_it() -> None:
    """As the toolkit takes it."""
    cards = (card(1), card(12))
    assert [card_of(word, cards) for word in ("GPU-1", "GPU-12", "GPU")] == [
        "GPU-1",
        "GPU-12",
        None,
    ]
    assert card_of("GPU-", (card(1),)) is None


def test_an_index_means_nothing_where_no_pci_address_is_known() -> None:
    """The order of minors may be another one."""
    bare = tuple(replace(one, place=NOWHERE) for one in CARDS)
    assert card_of("0", bare) is None
    assert card_of("0", bare[:1]) == "GPU-2"


def test_mounts_cdi_names_and_device_nodes_name_cards_too() -> None:
    """A privileged container has the nodes of all of them, and that says nothing."""
    by_mounts = Inside(
        visible="/var/run/nvidia-container-devices",
        mounts=("/data", f"{MOUNTS}GPU-0", f"{MOUNTS}cdi/nvidia.com/gpu/2"),
    )
    assert shown(by_mounts, CARDS) == Shown(cards=frozenset({"GPU-0", "GPU-2"}))
    by_cdi = Inside(cdi=("tenure.sh/slot=x", "nvidia.com/gpu=GPU-1"))
    assert shown(by_cdi, CARDS) == Shown(cards=frozenset({"GPU-1"}))
    nodes = ("/dev/nvidiactl", "/dev/nvidia6", "/dev/nvidia0")
    assert shown(Inside(nodes=nodes), CARDS) == Shown(
        cards=frozenset({"GPU-1"}), unknown=("/dev/nvidia0",)
    )
    assert shown(Inside(nodes=nodes, privileged=True), CARDS) == Shown(everything=True)
