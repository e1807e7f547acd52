"""A ledger's rows as the history that the report draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, TypeVar

from ledger.domain.resources import TYPE_GPU
from ledger.store.reading.report_rows import Device, HealthRow, HoldingRow, Node, Span, UnplacedRow
from scheduler.usage import model
from scheduler.usage.machines import GONE, DeviceKey, once_per_machine
from scheduler.usage.unplaced import Unlisted

SECOND_US: Final = 1_000_000
OBSERVED: Final = "observed"
UNNAMED: Final = "held by others, which card is not known"
"""The policy of a hold on a card that stands for one which nobody can name."""
_WHOLE_UNNAMED: Final = model.Share(
    core_percent=0, memory_bytes=0, memory_ratio_percent=model.WHOLE, observed=True
)
T = TypeVar("T")


class _Table(dict[T, int]):
    """Gives each distinct value its place, in the order in which they come."""

    def place(self, value: T) -> int:
        """Return the place of a value, a new one for a new value."""
        return self.setdefault(value, len(self))


def axis_of(span: Span) -> model.Axis:
    """
    Return what the history runs along.

    The ledger keeps moments apart by a microsecond, so a run that was decided at one moment spans
    as many microseconds as it has events: it has an order, but no time.
    """
    lasted = span.last_at_us - span.first_at_us
    return "time" if lasted >= max(SECOND_US, 2 * span.last_position) else "position"


def history_of(
    *,
    span: Span,
    nodes: Sequence[Node],
    devices: Sequence[Device],
    health: Iterable[HealthRow],
    holdings: Sequence[HoldingRow],
    unplaced: Sequence[Unlisted] = (),
    apart: AbstractSet[DeviceKey] = frozenset(),
    first_reserved: int = 1,
    created: Mapping[str, str] | None = None,
) -> model.History:
    """
    Return everything that was ever held, on every device that was ever known.

    Cards that nobody can name are drawn on others of their node that stand for them (`UNNAMED`).

    Args:
        apart: cards of which others hold parts alone; they stand for none of the inventory.
        created: as of `once_per_machine`.
    """
    axis = axis_of(span)
    devices, present = once_per_machine(nodes, devices, created or {})
    keys = [
        present.get(row.device_no, (row.node_uid, row.device_type, row.minor)) for row in holdings
    ]
    infos, cards, places = _inventory(nodes, devices, keys)
    drawn = _Drawn(axis)
    holds = [drawn.named(places[key], row) for row, key in zip(holdings, keys, strict=True)]
    rooms = _Rooms(nodes, cards, infos, frozenset(places[key] for key in apart))
    stand_ins = _stand_ins(axis, rooms, places, holds, unplaced)
    holds += [drawn.unnamed(card, row, percent) for row, card, percent in stand_ins]
    by_time = axis == "time"
    return model.History(
        axis=axis,
        start=span.first_at_us if by_time else first_reserved - 1,
        end=span.last_at_us if by_time else span.last_position,
        nodes=infos,
        cards=cards,
        pods=tuple((namespace, name) for namespace, name, _ in drawn.pods),
        shares=tuple(drawn.shares),
        endings=tuple(drawn.endings),
        holds=tuple(sorted(holds, key=lambda hold: (hold.opened, hold.position, hold.card))),
        outages=_outages(axis, health, places, _followed(devices)),
    )


def _moments(axis: model.Axis, row: HoldingRow | UnplacedRow) -> tuple[int, int | None]:
    if axis == "time":
        return row.opened_at_us, row.closed_at_us
    return row.position, row.closed_position


class _Drawn:
    """Holds along an axis, with each Pod, share and ending of them once."""

    def __init__(self, axis: model.Axis) -> None:
        self._axis: model.Axis = axis
        self.pods: _Table[tuple[str, str, str]] = _Table()
        self.shares: _Table[model.Share] = _Table()
        self.endings: _Table[model.HoldEnd] = _Table()

    def named(self, card: int, row: HoldingRow) -> model.Hold:
        """Return the hold of a card that the ledger names."""
        share = model.Share(
            core_percent=row.core_percent,
            memory_bytes=row.memory_bytes,
            memory_ratio_percent=row.memory_ratio_percent,
            exclusive=bool(row.exclusive),
            observed=row.kind == OBSERVED,
        )
        return self._hold(card, row, share, row.policy)

    def unnamed(self, card: int, row: UnplacedRow, percent: int) -> model.Hold:
        """Return the hold of a card that stands for one which nobody can name."""
        return self._hold(card, row, replace(_WHOLE_UNNAMED, memory_ratio_percent=percent), UNNAMED)

    def _hold(
        self, card: int, row: HoldingRow | UnplacedRow, share: model.Share, policy: str
    ) -> model.Hold:
        return model.Hold(
            card,
            self.pods.place((row.namespace, row.pod_name, row.pod_uid)),
            *_moments(self._axis, row),
            row.position,
            self.shares.place(share),
            self.endings.place(model.HoldEnd(policy=policy, end_reason=row.end_reason or "")),
        )


class _Rooms:
    """The cards among which those are that Pods hold and nobody can name."""

    def __init__(
        self,
        nodes: Sequence[Node],
        cards: Sequence[model.CardInfo],
        infos: Sequence[model.NodeInfo],
        apart: AbstractSet[int],
    ) -> None:
        self._machines: dict[int | str, list[int]] = {}
        self._machine_of: dict[str, int | str] = {}
        for node, info in zip(nodes, infos, strict=True):
            self._machine_of[node.node_uid] = node.machine_no or node.node_uid
            gpus = [
                card
                for card in info.cards
                if cards[card].device_type == TYPE_GPU and card not in apart
            ]
            self._machines.setdefault(self._machine_of[node.node_uid], []).extend(gpus)

    def of(self, node_uid: str) -> Sequence[int]:
        """Return the GPUs of a node's machine that its inventory has."""
        return self._machines.get(self._machine_of.get(node_uid, ""), [])


def _stand_ins(
    axis: model.Axis,
    rooms: _Rooms,
    places: Mapping[DeviceKey, int],
    holds: Sequence[model.Hold],
    unplaced: Sequence[Unlisted],
) -> list[tuple[UnplacedRow, int, int]]:
    """
    Return the cards that stand for those which Pods hold and nobody can name, each with its part.

    They are cards that are held least meanwhile, the last of those first; as many as the Pod
    holds, or as there are.
    """
    if not unplaced:
        return []
    meanwhile: dict[int, list[tuple[int, int | None]]] = {}
    for hold in holds:
        meanwhile.setdefault(hold.card, []).append((hold.opened, hold.closed))
    found = []
    for each in unplaced:
        opened, closed = _moments(axis, each.row)
        among = [places[key] for key in each.among]
        gpus = among if each.among else rooms.of(each.row.node_uid)

        def crowd(card: int, opened: int = opened, closed: int | None = closed) -> tuple[int, int]:
            others = meanwhile.get(card, ())
            return sum(
                1
                for since, until in others
                if (closed is None or since < closed) and (until is None or until > opened)
            ), -card

        chosen = sorted(gpus, key=crowd)[: each.cards]
        for card in chosen:
            meanwhile.setdefault(card, []).append((opened, closed))
            found.append((each.row, card, min(model.WHOLE, each.percent // len(chosen))))
    return found


def _inventory(
    nodes: Sequence[Node], devices: Sequence[Device], held: Sequence[DeviceKey]
) -> tuple[tuple[model.NodeInfo, ...], tuple[model.CardInfo, ...], dict[DeviceKey, int]]:
    """Return nodes, cards and the place of each card; a device that left keeps its history."""
    present_last = sorted(devices, key=lambda device: device.closed_reason != GONE)
    known = {(d.node_uid, d.device_type, d.minor): d for d in present_last}
    keys: dict[str, set[tuple[str, int]]] = {node.node_uid: set() for node in nodes}
    for uid, device_type, minor in (*known, *dict.fromkeys(held)):
        keys[uid].add((device_type, minor))
    infos: list[model.NodeInfo] = []
    cards: list[model.CardInfo] = []
    places: dict[DeviceKey, int] = {}
    for node in nodes:
        first = len(cards)
        for device_type, minor in sorted(keys[node.node_uid], key=lambda k: (k[0] != TYPE_GPU, k)):
            device = known.get((node.node_uid, device_type, minor))
            places[node.node_uid, device_type, minor] = len(cards)
            cards.append(
                model.CardInfo(
                    node=len(infos),
                    device_type=device_type,
                    minor=minor,
                    model=device.model if device else "",
                    core_capacity_percent=device.core_capacity_percent if device else 0,
                    memory_capacity_bytes=device.memory_capacity_bytes if device else 0,
                )
            )
        infos.append(model.NodeInfo(name=node.node_name, cards=range(first, len(cards))))
    return tuple(infos), tuple(cards), places


def _followed(devices: Iterable[Device]) -> frozenset[int]:
    """Return the numbers of the devices that left and whose place another one has."""
    rows = [((each.node_uid, each.device_type, each.minor), each) for each in devices]
    there = {place for place, each in rows if each.closed_reason != GONE}
    return frozenset(
        each.device_no for place, each in rows if each.closed_reason == GONE and place in there
    )


def _outages(
    axis: model.Axis,
    health: Iterable[HealthRow],
    places: dict[DeviceKey, int],
    followed: frozenset[int],
) -> tuple[model.Outage, ...]:
    """Return when cards were closed; where one took another's place, that is one card's time."""
    found: list[model.Outage] = []
    since: dict[int, tuple[int, str]] = {}
    for change in health:
        card = places.get((change.node_uid, change.device_type, change.minor))
        if card is None:
            continue
        at = change.at_us if axis == "time" else change.position
        ends = change.healthy or (change.reason == GONE and change.device_no in followed)
        if not ends:
            since.setdefault(card, (at, change.reason))
        elif card in since:
            opened, reason = since.pop(card)
            found.append(model.Outage(card=card, opened=opened, closed=at, reason=reason))
    found += [
        model.Outage(card=card, opened=opened, closed=None, reason=reason)
        for card, (opened, reason) in since.items()
    ]
    return tuple(sorted(found, key=lambda outage: (outage.opened, outage.card)))
