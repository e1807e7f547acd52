"""
Which cards a container was shown, by its environment, mounts, CDI devices and device nodes.

Rule: NVIDIA container toolkit, "GPU Enumeration": UUIDs, indexes in the order of PCI addresses, MIG
devices, `all`, and `void` or `none` for nothing; CDI 1.0, qualified names. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.discover.machine import Card
from agent.witness.said import Inside

MOUNTS: Final = "/var/run/nvidia-container-devices/"
"""Where devices are named by mounts, for containers that may not say it by their environment."""
_CDI_KINDS: Final = frozenset({"nvidia.com/gpu", "nvidia.com/mig", "management.nvidia.com/gpu"})
_NODE: Final = re.compile(r"/dev/nvidia([0-9]{1,4})")
_ALL: Final = "all"
_NOTHING: Final = frozenset({"", "void", "none"})
_REPLICA: Final = re.compile(r"(.+?)(?:::|-_-)[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """
    The cards that a container was shown.

    Attributes:
        cards: UUIDs of those that it names.
        everything: it was shown all cards that there are, as monitoring is: that says nothing of
            which it uses.
        unknown: names that are no card of this machine, as they were written.
    """

    cards: frozenset[str] = frozenset()
    everything: bool = False
    unknown: tuple[str, ...] = ()


def shown(inside: Inside, cards: Sequence[Card], *, all_known: bool = True) -> Shown:
    """Return what a container was shown of these cards; the rest is as for `card_of`."""
    words = list(_words(inside))
    everything = inside.privileged or _ALL in words
    found: set[str] = set()
    unknown: list[str] = []
    for word in dict.fromkeys(words):
        if word == _ALL:
            continue
        uuid = card_of(word, cards, all_known=all_known)
        if uuid is None:
            unknown.append(word)
        else:
            found.add(uuid)
    if not inside.privileged:  # else it has every node of the host
        minors = {f"/dev/nvidia{card.minor}": card.uuid for card in cards}
        for node in inside.nodes:
            if node in minors:
                found.add(minors[node])
            elif _NODE.fullmatch(node):
                unknown.append(node)
    return Shown(cards=frozenset(found), everything=everything, unknown=tuple(unknown))


def card_of(word: str, cards: Sequence[Card], *, all_known: bool = True) -> str | None:
    """
    Return the UUID of the card that a word means, a MIG device's the card that it is part of.

    None: it is no card of this machine, or nobody can tell which, as of an index without PCI
    addresses or a beginning that two UUIDs have.

    Args:
        all_known: the machine has no card beside these, of which an index or a beginning could be.
    """
    replica = _REPLICA.fullmatch(word)
    word = replica[1] if replica else word
    if word.isascii() and word.isdigit():
        return _by_index(word, cards) if all_known else None
    head, colon, tail = word.partition(":")
    if colon and head.isdigit() and tail.isdigit() and word.isascii():
        return _by_index(head, cards) if all_known else None
    if word.startswith("MIG-GPU-"):  # drivers before R470: MIG-GPU-<uuid>/<instance>/<compute>
        return card_of(word.removeprefix("MIG-").partition("/")[0], cards, all_known=all_known)
    for card in cards:
        if word == card.uuid or any(word == one.uuid for one in card.instances):
            return card.uuid
    if not all_known or not word.startswith("GPU-") or len(word) <= len("GPU-"):
        return None
    begun = [card.uuid for card in cards if card.uuid.startswith(word)]
    return begun[0] if len(begun) == 1 else None


def _by_index(text: str, cards: Sequence[Card]) -> str | None:
    """Return the card at a place in the driver's order, which is that of PCI addresses."""
    if len(cards) > 1 and not all(card.place.bus_id for card in cards):
        return None
    ordered = sorted(cards, key=lambda card: card.place.bus_id)
    number = int(text[:9])
    return ordered[number].uuid if str(number) == text and number < len(ordered) else None


def _words(inside: Inside) -> Iterable[str]:
    values = [] if inside.visible is None else inside.visible.split(",")
    by_mounts = inside.visible is not None and inside.visible.startswith("/var/run/")
    if not by_mounts:
        words = (value.strip() for value in values)
        yield from (word for word in words if word not in _NOTHING and "=" not in word)
    for path in inside.mounts:
        if path.startswith(MOUNTS):
            name = path.removeprefix(MOUNTS)
            if not name.startswith("cdi/"):
                yield name
                continue
            kind, _, device = name.removeprefix("cdi/").rpartition("/")
            if kind in _CDI_KINDS:
                yield device
    for name in (*inside.cdi, *(value.strip() for value in values)):
        kind, equals, device = name.partition("=")
        if equals and kind in _CDI_KINDS:
            yield device
