"""
GPU share as kubelet asks for it: an id for each GiB of a card, a card for each Allocate.

Which Pod an Allocate is for is told by kubelet's Pods and its record (`agent.decide.gpushare`), the
card by the ledger. Should kubelet have asked for another Pod than was found, the container's start
is refused: it waits, and never runs with the card of another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.checkpoint import CheckpointError, DeviceCheckpoint
from agent.decide import gpushare
from agent.decide.slots import Given
from agent.decide.slots_cdi import Edits
from agent.discover.machine import Card, Discovery, Kind
from agent.https import NoAnswerError
from agent.plugin import messages
from agent.plugin.messages import Allocated, NotYetError
from agent.plugin.preparing import Holdings, SlotPlugin, Slots
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from ledger.domain.errors import InputError, TenureError
from ledger.domain.kube.object_fields import found_in
from ledger.domain.resources import ENV_NVIDIA_VISIBLE, SLOT

ALLOCATE_SECONDS: Final = 10.0
"""A Pod whose Allocate fails is lost, and kubelet admits no other one meanwhile."""
NODE_UNREAD: Final = "the Node was not read yet"

PodsOfKubelet = Callable[[], Awaitable[Sequence[Mapping[str, object]]]]
"""The Pod objects of this node as kubelet has them. Raises NoAnswerError, InputError."""

_log: Final = logging.getLogger("tenure.agent.plugin")


class OtherCardError(TenureError):
    """A container was told another Pod's card. It must not start; its Pod has to be made anew."""


@dataclass(slots=True, kw_only=True, eq=False)
class GpuShare:
    """The GiB of a node's cards; `started` is set when a Pod may have to be marked."""

    resource = GPUSHARE_MEMORY
    allocate_seconds = ALLOCATE_SECONDS
    prefers = True

    pods: PodsOfKubelet
    checkpoint: Callable[[], DeviceCheckpoint]
    holdings: Holdings
    _cards: tuple[Card, ...] | None = None
    _labels: Mapping[str, str] | None = None
    _all: Any = field(default_factory=messages.ListAndWatchResponse)
    _ids: frozenset[str] = field(default_factory=frozenset)
    _asked: set[tuple[str, str]] = field(default_factory=set)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def saw(self, found: Discovery) -> None:
        """Go by the cards that were found from now on; by those of before where none could be."""
        if Kind.GPU in found.unknown:
            return
        self._cards = found.cards
        units = gpushare.unit_ids(found.cards)
        devices = [
            {
                "ID": one.unit_id,
                "health": "Healthy" if one.healthy else "Unhealthy",
                **({"topology": {"nodes": [{"ID": one.numa_node}]}} if one.numa_node >= 0 else {}),
            }
            for one in units
        ]
        now = messages.ListAndWatchResponse(devices=devices)
        if now != self._all:
            self._all, self._ids = now, frozenset(one.unit_id for one in units)

    def labelled(self, labels: Mapping[str, str]) -> None:
        """Go by these labels of the Node from now on."""
        self._labels = labels

    def begin(self) -> None:
        """Forget what was asked: a kubelet that started may ask again for whom it did not keep."""
        self._asked.clear()

    def why_not(self) -> str:
        """Return why nobody could be given a share now."""
        if self._cards is None:
            return "the cards of this machine are not known yet"
        if not self._ids:
            return "this machine has no card of a whole GiB"
        return "" if self._labels is not None else NODE_UNREAD

    def listing(self) -> Any:  # noqa: ANN401 - a message
        """Return every GiB; those of a closed card as unhealthy."""
        return self._all

    async def allocate(self, ids: Sequence[str]) -> Allocated:
        """
        Answer the container that waits for so many GiB.

        Raises:
            NotYetError: kubelet, its record or the ledger can't say yet.
            NobodyWaitsError, TiedError: no Pod can be meant, or any of two.
            InputError: the ids are not ours, or the Pod's annotations contradict the ledger.
        """
        if not ids or not self._ids.issuperset(ids):
            raise InputError(f"not ids of this node: ids={','.join(sorted(ids)[:4])}")
        async with self._one:
            one, uuid = await self._whose(len(ids))
            answer = {"envs": gpushare.environment(one, uuid, self._labels or {})}
            self._asked.add((one.pod.uid, one.container))
        same = {gpushare.card_of_id(each) for each in ids} == {uuid}
        told = {"pod_uid": one.pod.uid, "container": one.container, "card": uuid, "as_ids": same}
        return Allocated(answer=answer, told=told)

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return the reserved card's ids first; any where nobody can say whose: Allocate will."""
        try:
            async with self._one:
                _, uuid = await self._whose(size)
        except (NotYetError, gpushare.NobodyWaitsError, gpushare.TiedError, InputError):
            uuid = ""
        return gpushare.preferred(uuid, available, must, size)

    async def prepare(self, ids: frozenset[str]) -> Mapping[str, object]:
        """
        Let a container start that was told its own card.

        Raises:
            NotYetError: kubelet's record, or what the Pod holds, is not known yet.
            OtherCardError: it was told another one's.
        """
        entries = [one for one in gpushare.shares_in(self._record()) if one.ids() == ids]
        minors = {card.uuid: card.minor for card in self._cards or ()}
        known = []
        for entry in entries:
            uuid = _card_of(self.holdings, entry.pod_uid, entry.container)
            if uuid is None:
                continue  # of a Pod that is gone, or is not told of yet
            told = messages.envs_in(entry.response).get(ENV_NVIDIA_VISIBLE, "")
            if told not in (uuid, str(minors.get(uuid, -1))):  # who answered before us said indexes
                fact = f"pod_uid={entry.pod_uid}, container={entry.container}"
                raise OtherCardError(
                    f"kubelet keeps another card for it, delete the pod: {fact},"
                    f" card={uuid}, told={told or 'none'}"
                )
            known.append(f"{entry.pod_uid}/{entry.container}={uuid}")
        if not known:
            raise NotYetError(f"nobody is known to have these ids: ids={len(ids)}")
        self.started.set()
        return {"of": known}

    async def to_mark(self) -> tuple[gpushare.SharePod, ...]:
        """Return recorded Pods without a mark. Raises NotYetError: kubelet can't tell now."""
        return gpushare.to_mark(await self._share_pods(), self._record(), GPUSHARE_MEMORY)

    def sweep(self) -> int:
        """Nothing is kept of anybody."""
        return 0

    async def _whose(self, units: int) -> tuple[gpushare.Wanting, str]:
        """Return whose container is meant, and its card."""
        waiting = gpushare.wanting(await self._share_pods(), self._record())
        fresh = [one for one in waiting if (one.pod.uid, one.container) not in self._asked]
        one = gpushare.chosen(units, fresh)
        uuid = _card_of(self.holdings, one.pod.uid, one.container)
        if uuid is None:
            raise NotYetError(f"nothing is known to be held: pod_uid={one.pod.uid}")
        gpushare.check_card(one.pod, uuid, self._cards or ())
        return one, uuid

    async def _share_pods(self) -> tuple[gpushare.SharePod, ...]:
        return tuple(pod for pod in (await _read(self.pods)).values() if pod is not None)

    def _record(self) -> DeviceCheckpoint:
        return _recorded(self.checkpoint)


class ShareSlots(SlotPlugin):
    """Slots where memory is counted in MiB, too many for ids: a slot tells the container."""

    def __init__(
        self,
        slots: Slots,
        why_not: Callable[[], str] = str,
        came: Callable[[], None] = lambda: None,
        *,
        pods: PodsOfKubelet,
        checkpoint: Callable[[], DeviceCheckpoint],
        holdings: Holdings,
    ) -> None:
        """Begin. Raises InputError: kubelet could not take the list of slots."""
        super().__init__(slots, why_not, came)
        self._pods = pods
        self._checkpoint = checkpoint
        self._holdings = holdings
        self.started = asyncio.Event()
        self._cards: tuple[Card, ...] = ()
        self._labels: Mapping[str, str] | None = None

    def saw(self, found: Discovery) -> None:
        """Go by the cards that were found from now on."""
        if Kind.GPU not in found.unknown:
            self._cards = found.cards

    def labelled(self, labels: Mapping[str, str]) -> None:
        """Go by these labels of the Node from now on."""
        self._labels = labels

    def why_not(self) -> str:
        """Return why nobody could be given a share now."""
        return super().why_not() or ("" if self._labels is not None else NODE_UNREAD)

    async def prepare(self, ids: frozenset[str]) -> Mapping[str, object]:
        """
        Write what the names mean, and of a share its variables.

        Raises:
            NotYetError: kubelet does not know the Pod yet; else as `Slots.prepare`.
        """
        pods = await _read(self._pods)

        def variables(one: Given) -> Edits:
            if one.pod_uid not in pods:
                raise NotYetError(f"kubelet does not tell of the pod: pod_uid={one.pod_uid}")
            pod = pods[one.pod_uid]
            units = None if pod is None else dict(pod.containers).get(one.container)
            if pod is None or units is None:
                return {}
            share = gpushare.Wanting(pod=pod, container=one.container, units=units)
            uuid = _card_of(self._holdings, one.pod_uid, one.container) or ""
            gpushare.check_card(share.pod, uuid, self._cards)
            told = gpushare.environment(share, uuid, self._labels or {})
            del told[ENV_NVIDIA_VISIBLE]  # the specification shows the card
            return {"env": [f"{key}={text}" for key, text in told.items()]}

        told = await self._prepared(ids, variables)
        self.started.set()
        return told

    async def to_mark(self) -> tuple[gpushare.SharePod, ...]:
        """As `GpuShare.to_mark`."""
        pods = (await _read(self._pods)).values()
        return gpushare.to_mark((one for one in pods if one), _recorded(self._checkpoint), SLOT)


async def _read(pods: PodsOfKubelet) -> dict[str, gpushare.SharePod | None]:
    try:
        found = await pods()
    except (NoAnswerError, InputError) as error:
        raise NotYetError(str(error)) from error
    result: dict[str, gpushare.SharePod | None] = {}
    for pod in found:
        uid = str(found_in(pod, "metadata", "uid") or "")
        try:
            result[uid] = gpushare.read_share_pod(pod)
        except InputError as error:
            _log.warning("a pod can't be read", extra={"pod_uid": uid, "reason": str(error)})
    return result


def _recorded(checkpoint: Callable[[], DeviceCheckpoint]) -> DeviceCheckpoint:
    try:
        return checkpoint()
    except FileNotFoundError:
        return DeviceCheckpoint(entries=())  # of a kubelet that gave nothing yet
    except (CheckpointError, OSError) as error:
        raise NotYetError(str(error)) from error


def _card_of(holdings: Holdings, pod_uid: str, container: str) -> str | None:
    """Return the one card of a container; None where nothing is known of it."""
    devices = holdings.devices_of(pod_uid, container)
    if devices and len(devices) > 1:
        fact = f"pod_uid={pod_uid}, container={container}, cards={len(devices)}"
        raise InputError(f"a share is on one card: {fact}")
    return devices[0].device_id if devices else None
