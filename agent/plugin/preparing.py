"""What the device plugin does when kubelet calls: gives names, and writes what they mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from agent.checkpoint import CheckpointError, DeviceCheckpoint
from agent.decide.isolation import UnknownSizeError
from agent.decide.slots import KIND, Given, given, name_of, slot_ids, started
from agent.decide.slots_cdi import LISTS, CardEdits, Edits, specification_of
from agent.plugin import messages
from agent.plugin.files import SpecFolder
from agent.plugin.messages import MESSAGE_MAX, Allocated, NotYetError, devices_in
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.errors import InputError
from ledger.domain.resources import ENV_CUDA_VISIBLE, SLOT, TYPE_GPU


class Holdings(Protocol):
    """Who holds what on this node."""

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:
        """Return a container's devices, as the ledger says; None where nothing is known of it."""

    def shown_to(self, pod_uid: str) -> Sequence[str]:
        """Return the ids of all cards that a Pod's containers see; none = their own alone."""

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether a Pod holds something by a word of now; it may not name its containers."""


def not_isolated(_devices: Sequence[ProvenDevice]) -> Edits:
    """Keep nobody to their part of a card."""
    return {}


def _nothing(_: Given) -> Edits:
    return {}


class Slots:
    """The slots of one node. Every method is quick, and none is called beside another."""

    def __init__(
        self,
        *,
        count: int,
        start: str,
        specifications: SpecFolder,
        checkpoint: Callable[[], DeviceCheckpoint],
        holdings: Holdings,
        cards: Callable[[], Mapping[str, CardEdits]],
        isolated: Callable[[Sequence[ProvenDevice]], Edits] = not_isolated,
    ) -> None:
        """
        Begin.

        Args:
            start: drawn at random for this start of the agent: no name of an earlier one comes
                again, and none has to be remembered.
            isolated: what keeps a container to its parts of cards, from what it holds. Raises
                UnknownSizeError, or InputError where the node can't keep it.
        """
        self.ids = slot_ids(count)
        self._known = frozenset(self.ids)
        self._start = start
        self._numbers = itertools.count(1)
        self._specifications = specifications
        self._checkpoint = checkpoint
        self._holdings = holdings
        self._cards = cards
        self._isolated = isolated

    def name_for(self, slots: Iterable[str]) -> str:
        """Return a new name for a container with these slots. Raises InputError: not ours."""
        wanted = frozenset(slots)
        if not wanted or not wanted <= self._known:
            raise InputError(f"not a slot of this node: ids={','.join(sorted(wanted))}")
        return name_of(wanted, self._start, next(self._numbers))

    def prepare(
        self, slots: Iterable[str], more: Callable[[Given], Edits] = _nothing
    ) -> tuple[Given, ...]:
        """
        Write the meaning of each name that a container with these slots may start with.

        Args:
            more: what a container is told beside what shows its cards, always the same of one.

        Returns:
            The names that were new. Another container's name is written from that one's holding.

        Raises:
            NotYetError: kubelet's record has no name for the slots, or can't be trusted; or there
                is no holding for one of them, or nobody knows the size of its card yet. The names
                of others are written all the same.
            InputError: a device of a holding is shown by no specification, its container could not
                be kept to its part, or what kubelet keeps for one of our slots is no answer of
                ours.
            OtherContentError, SharedNameError: the record contradicts what was said before.
            OSError: a file can't be read or written.
        """
        try:
            names = started(given(self._checkpoint(), devices_in).values(), slots)
        except CheckpointError as error:
            raise NotYetError(str(error)) from error
        if not names:
            raise NotYetError(f"kubelet keeps no name: slots={','.join(sorted(slots))}")
        new, missing = [], []
        for one in names:
            whose = f"{one.pod_uid}/{one.container}"
            devices = self._holdings.devices_of(one.pod_uid, one.container)
            if devices is None and self._holdings.is_held(one.pod_uid):
                # Kubelet tells no Pods now, but the name was written for this container before.
                if not self._specifications.again(one.name):
                    missing.append(f"kubelet tells no such Pod: container={whose}")
                continue
            if not devices:
                missing.append(f"nothing is known to be held: container={whose}")
                continue
            try:
                meaning = self._meaning(one, devices, more(one))
            except UnknownSizeError as error:
                missing.append(f"{error}, container={whose}")
                continue
            if self._specifications.write(one.name, meaning):
                new.append(one)
        if missing:
            raise NotYetError("; ".join(missing))
        return tuple(new)

    def sweep(self) -> tuple[str, ...]:
        """
        Take the names away that kubelet keeps no more, and return them. Nothing rests on it.

        Raises:
            CheckpointError: kubelet's record can't be trusted, so nothing was taken away.
            InputError, SharedNameError: likewise.
            OSError: a file can't be read or removed.
        """
        old = self._specifications.names() - given(self._checkpoint(), devices_in).keys()
        self._specifications.remove(old)
        return tuple(sorted(old))

    def _meaning(self, one: Given, devices: Sequence[ProvenDevice], more: Edits) -> str:
        cards = self._cards()
        ids = [device.device_id for device in devices]
        unknown = [each for each in ids if each not in cards]
        if unknown:
            whose = f"pod_uid={one.pod_uid}, container={one.container}"
            raise InputError(f"no CDI specification shows it: device={unknown[0]}, {whose}")
        edits = [self._isolated(devices), more]
        shown = self._holdings.shown_to(one.pod_uid)
        others = [each for each in shown if each in cards and each not in ids]
        if others and not edits[0]:  # who is limited to parts of cards sees these alone
            own = (each.device_id for each in devices if each.device_type == TYPE_GPU)
            edits.append({"env": [f"{ENV_CUDA_VISIBLE}={','.join(own)}"]})
            others = [*ids, *others]
        else:
            others = ids
        both = {kind: [each for part in edits for each in part.get(kind, ())] for kind in LISTS}
        return specification_of(one.name, [cards[each] for each in others], both, devices=ids)


class SlotPlugin:
    """The slots as kubelet asks for them: no card is behind one, so that none is ever unhealthy."""

    resource = SLOT
    allocate_seconds = 0.0
    prefers = False

    def __init__(
        self,
        slots: Slots,
        why_not: Callable[[], str] = str,
        came: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Begin.

        Args:
            why_not: why no container could be shown a card now; nothing when it could.
            came: hears that a Pod has come, whichever: kubelet admits it, and can tell of it.

        Raises:
            InputError: kubelet could not take the list of slots.
        """
        self._slots = slots
        self._why_not = why_not
        self._came = came
        devices = [{"ID": each, "health": "Healthy"} for each in slots.ids]
        self._all = messages.ListAndWatchResponse(devices=devices)
        if self._all.ByteSize() > MESSAGE_MAX:
            fact = f"kubelet takes no list of so many slots: count={len(slots.ids)}"
            raise InputError(fact, field="--slots")

    def begin(self) -> None:
        """Remember nothing."""

    def why_not(self) -> str:
        """Return why kubelet must not know the slots now."""
        return self._why_not()

    def listing(self) -> Any:  # noqa: ANN401 - a message
        """Return all slots."""
        return self._all

    async def allocate(self, ids: Sequence[str]) -> Allocated:
        """Answer with a name of its own. Raises InputError: not our slots."""
        name = self._slots.name_for(ids)
        self._came()
        return Allocated(
            answer={"cdi_devices": [{"name": f"{KIND}={name}"}]}, told={"cdi_name": name}
        )

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return any: one slot is like another, and kubelet was not told to ask."""
        return [*must, *(each for each in available if each not in must)][:size]

    async def prepare(self, ids: frozenset[str]) -> Mapping[str, object]:
        """Write what the names mean; as `Slots.prepare`."""
        return await self._prepared(ids, _nothing)

    async def _prepared(
        self, ids: frozenset[str], more: Callable[[Given], Edits]
    ) -> Mapping[str, object]:
        new = self._slots.prepare(ids, more)
        return {"new": [f"{one.pod_uid}/{one.container}={one.name}" for one in new]}

    def sweep(self) -> int:
        """Take names away; as `Slots.sweep`."""
        return len(self._slots.sweep())
