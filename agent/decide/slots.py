"""
Slots: how a container's devices are known only when it starts, without asking whose it is.

Kubelet gives a container an opaque slot and asks us for CDI devices; the answer is a name that was
never used before, which kubelet keeps for this container of this Pod alone. So its own checkpoint
says for whom a name is, whichever slot it was given for, and a name's meaning is written once.

Rule: docs/adr/0023; design section 8, Ownership of the metal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from agent.checkpoint import DeviceCheckpoint
from ledger.domain.errors import TenureError
from ledger.domain.resources import SLOT

KIND: Final = SLOT
"""The CDI vendor and class of our names."""
_NAME: Final = re.compile(r"slot-[0-9]{4,6}\.[0-9a-f]{16,64}\.[0-9]{1,18}")


class SharedNameError(TenureError):
    """A name is for two containers: kubelet's record or ours is broken. Start neither."""

    def __init__(self, name: str, holders: Iterable[str]) -> None:
        super().__init__(f"a name of two containers: name={name}, holders={','.join(holders)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A CDI device's name without its kind, and the one container that kubelet has it for."""

    name: str
    pod_uid: str
    container: str
    slots: frozenset[str]


def slot_ids(count: int) -> tuple[str, ...]:
    """Return the ids of a node's slots: they say nothing of cards, and none is ever unhealthy."""
    assert count >= 1, count
    return tuple(f"slot-{number:04}" for number in range(count))


def is_name(text: str) -> bool:
    """Tell whether a text is one of our names, so that a file may be called after it."""
    return _NAME.fullmatch(text) is not None


def name_of(slots: Iterable[str], start: str, number: int) -> str:
    """
    Return a name that no other call returned: of the first slot, this start of ours, a count.

    Args:
        start: drawn at random for each start of the agent, so that nothing has to be remembered.
        number: another one for each call since.
    """
    return f"{min(slots)}.{start}.{number}"


def given(
    checkpoint: DeviceCheckpoint, names_in: Callable[[bytes], Iterable[str]]
) -> dict[str, Given]:
    """
    Return every name of ours that kubelet keeps, and for whom.

    Args:
        names_in: reads the CDI devices of a plugin's answer.

    Raises:
        SharedNameError: two containers have the same one.
    """
    result: dict[str, Given] = {}
    for entry in checkpoint.entries:
        if entry.resource != SLOT:
            continue
        for device in names_in(entry.response):
            kind, _, name = device.partition("=")
            if kind != KIND or not is_name(name):
                continue
            whose = Given(
                name=name, pod_uid=entry.pod_uid, container=entry.container, slots=entry.ids()
            )
            other = result.setdefault(name, whose)
            if other != whose:
                holders = (f"{one.pod_uid}/{one.container}" for one in (other, whose))
                raise SharedNameError(name, holders)
    return result


def started(names: Iterable[Given], slots: Iterable[str]) -> tuple[Given, ...]:
    """
    Return the names that a container which is about to start with these slots may have.

    Kubelet lends an init container's slot to the containers after it, so there may be several of
    one Pod. Which of them starts does not matter: each has a name, and a meaning, of its own.
    """
    wanted = frozenset(slots)
    return tuple(sorted((one for one in names if one.slots & wanted), key=lambda one: one.name))
