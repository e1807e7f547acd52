"""
What a name that a user typed means in a ledger: the first of its readings that the ledger knows.

A GPU's UUID and a PCI address, as an Xid message gives them, mean the card that has them; a Pod's
name without its namespace means the one Pod that is called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Final, Protocol

from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU
from tenure import names as naming
from tenure.asking import EVERYBODY, Sight
from tenure.exits import with_next
from tenure.picture import devices_told

if TYPE_CHECKING:
    from ledger.domain.systems import SystemCard
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import Device
    from ledger.store.reading.views import When

_NAMED_MAX: Final = 5
"""How many of what a name may mean an error names."""
_LIKE_MAX: Final = 3


class Known(Protocol):
    """What names can mean: the things of a ledger, or of objects in files."""

    @property
    def who(self) -> str:
        """Who knows them, in words: `the ledger`."""

    @property
    def where(self) -> str:
        """Where one sees what there is."""

    def names(self, reading: naming.Reading) -> Iterable[naming.Name]:
        """Return the names that a reading may stand for."""

    def knows(self, name: naming.Name) -> bool:
        """Tell whether there is something of this name."""

    def there(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return nodes, and Pods and owners as `NAMESPACE/POD`, for whoever mistyped one."""


def first_known(
    source: Ledger,
    readings: Sequence[naming.Reading],
    sight: Sight = EVERYBODY,
    position: int | None = None,
) -> naming.Name:
    """
    Return the first reading of a name that the ledger knows.

    A Pod or an owner that is not seen is as unknown as one that is not there.

    Args:
        position: of the moment that is asked about; None = now, or ever.

    Raises:
        InputError: it knows none of them, or more than one thing is called so.
    """
    return first_of(readings, _InLedger(source, sight, position))


def first_of(readings: Sequence[naming.Reading], known: Known) -> naming.Name:
    """Return the first known reading. Raises InputError: none is known, or the name is shared."""
    for reading in readings:
        found = [name for name in known.names(reading) if known.knows(name)]
        if len(found) > 1:
            named = ", ".join(str(name) for name in found[:_NAMED_MAX])
            more = " and more" if len(found) > _NAMED_MAX else ""
            error = InputError(f"{len(found)} are called so: {named}{more}", place=str(reading))
            raise with_next(error, "name one of them")
        if found:
            return found[0]
    text = " or ".join(_in_words(reading) for reading in readings)
    for reading in readings:
        if isinstance(reading, naming.CardName) and known.knows(naming.NodeName(node=reading.node)):
            error = InputError(f"{known.who} knows no {text}")
            raise with_next(error, f"`tenure map --node {quote(reading.node)}` shows its cards")
    try:
        like = " or ".join(_like(str(readings[0]), *known.there()))
    except InputError:  # more rows than a service reads for a question
        like = ""
    error = InputError(f"{known.who} knows no {text}")
    raise with_next(error, f"did you mean {like}?" if like else known.where)


def cards_then(source: Ledger, card: naming.CardName, position: int) -> frozenset[int]:
    """
    Return the numbers of the devices that a Node had at a place after the event at `position`.

    Rule: design section 4, "One account per physical device". A Node that was made anew may list
    the devices of its machine at other places, and a card is replaced by another. One that left and
    was there last counts too, as in what is held now: somebody may hold it still.
    """
    from ledger.store.reading.registered import registered_at

    place = (card.node, card.device_type, card.minor)
    return frozenset(
        each.device_no
        for each in registered_at(source.connection, position).devices
        if (each.node_name, each.device_type, each.minor) == place
    )


def cards_over(
    source: Ledger, card: naming.CardName, when: When, position: int
) -> Iterator[tuple[When, frozenset[int]]]:
    """Yield the parts of an interval, each with `cards_then`; `position` is of its beginning."""
    from ledger.store.reading.registered import inventories_between
    from ledger.store.reading.views import When

    begin_us, end_us = when.since_us or 0, when.at_us or 0
    told = inventories_between(source.connection, card.node, begin_us, end_us)
    for at_us, following in [*told, (end_us + 1, 0)]:
        if begin_us < at_us:
            yield When(since_us=begin_us, at_us=at_us - 1), cards_then(source, card, position)
        begin_us, position = at_us, following


def owner_text(name: naming.OwnerName) -> str:
    """Return an owner as the ledger spells it."""
    return f"{name.kind}/{name.name}"


class _InLedger:
    """What a ledger knows, as far as it is seen."""

    who = "the ledger"
    where = "`tenure map` shows the nodes and cards"

    def __init__(self, source: Ledger, sight: Sight, position: int | None) -> None:
        self._source, self._sight, self._position = source, sight, position

    def names(self, reading: naming.Reading) -> Iterable[naming.Name]:
        match reading:
            case naming.DeviceName():
                return _cards(self._source, reading)
            case naming.AnyPodName(name=name):
                return _pods_called(self._source, name, self._sight)
            case _:
                return (reading,)

    def knows(self, name: naming.Name) -> bool:
        if _is_known(self._source, name, self._sight):
            return True
        then = self._position
        return isinstance(name, naming.CardName) and bool(
            then and cards_then(self._source, name, then)
        )

    def there(self) -> tuple[Sequence[str], Sequence[str]]:
        from ledger.store.reading import pod_queries
        from ledger.store.reading import report_queries as queries

        connection, sight = self._source.connection, self._sight
        nodes = [node.node_name for node in queries.nodes(connection)] if sight.whole else []
        pods = pod_queries.pods(connection, namespace=sight.namespace or None)
        return nodes, list(dict.fromkeys(f"{pod.namespace}/{pod.pod_name}" for pod in pods))


def _cards(source: Ledger, name: naming.DeviceName) -> Iterator[naming.Name]:
    here = _devices_called(source, name)
    machines: dict[int, naming.Name] = {}
    for device in here:
        card = naming.CardName(
            node=device.node_name, device_type=device.device_type, minor=device.minor
        )
        machines.setdefault(device.device_no, card)
    yield from machines.values()
    if not here:
        yield from (
            naming.CardName(node=node, device_type=TYPE_GPU, minor=card.minor)
            for node, card in _of_others(source)
            if card.id == name.device_id and name.node in {"", node} and card.minor >= 0
        )


def _devices_called(source: Ledger, name: naming.DeviceName) -> list[Device]:
    from ledger.store.reading import report_queries as queries
    from scheduler.usage.machines import GONE

    at = queries.devices_at(source.connection, name.device_id, node=name.node or None)
    return [device for device in at if device.closed_reason != GONE] or at


def numbers_called(source: Ledger, readings: Sequence[naming.Reading]) -> frozenset[int]:
    """
    Return the numbers of the devices that a name means by their id, empty for another name.

    Where they are now another device may have been, or be since they left.
    """
    names = [reading for reading in readings if isinstance(reading, naming.DeviceName)]
    return frozenset(each.device_no for name in names for each in _devices_called(source, name))


def _of_others(source: Ledger) -> Iterator[tuple[str, SystemCard]]:
    """Yield the cards that others hand out by claims or annotations, with their nodes' names."""
    from ledger.domain.log.events import NodeDescribed
    from ledger.store.reading.kept import each_of

    described = {each.node_uid: each for each in each_of(source.connection, NodeDescribed)}
    for each in described.values():
        yield from ((each.node_name, card) for card in each.facts.systems.cards)


def _pods_called(source: Ledger, name: str, sight: Sight) -> Iterator[naming.Name]:
    from ledger.store.reading import pod_queries

    found = pod_queries.pods(source.connection, name=name, namespace=sight.namespace or None)
    for namespace in dict.fromkeys(pod.namespace for pod in found):
        yield naming.PodName(namespace=namespace, name=name)


def _is_known(source: Ledger, name: naming.Name, sight: Sight) -> bool:
    from ledger.store.reading import pod_queries
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.views import When

    match name:
        case naming.NodeName(node=node):
            return bool(queries.nodes(source.connection, name=node))
        case naming.CardName(node=node, device_type=device_type, minor=minor):
            connection, ever = source.connection, When(ever=True)
            return bool(
                (device_type, minor)
                in ((each.device_type, each.minor) for each in devices_told(source, node))
                or queries.device_holders(
                    connection, ever, node=node, device_type=device_type, minor=minor
                )
                or any(
                    (there, card.minor) == (node, minor)
                    for there, card in _of_others(source)
                    if device_type == TYPE_GPU
                )
            )
        case naming.CpuName(node=node, cpus=cpus):
            return queries.has_cpus(source.connection, node=node, cpus=cpus)
        case naming.PodName(namespace=namespace, name=pod):
            return sight.sees(namespace) and (
                f"{namespace}/{pod}" in sight.binding
                or bool(pod_queries.pods(source.connection, pod=(namespace, pod)))
            )
        case naming.OwnerName(namespace=namespace):
            within = namespace or sight.namespace
            return sight.sees(within) and bool(
                pod_queries.pods(
                    source.connection, owner=owner_text(name), namespace=within or None
                )
            )


def _like(text: str, nodes: Sequence[str], paths: Sequence[str]) -> list[str]:
    import difflib

    _, slash, name = text.rpartition("/")
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(path.partition("/")[2], []).append(path)
    if name in by_name:
        return by_name[name][:_LIKE_MAX]  # of another namespace, or of an owner
    near = difflib.get_close_matches(text, [*nodes, *paths], n=_LIKE_MAX)
    if near:
        return near
    longer = [
        path
        for path in paths
        if path.startswith(f"{text}-")
        or (not slash and path.partition("/")[2].startswith(f"{text}-"))
    ]
    if longer or slash:
        return longer[:_LIKE_MAX]
    found = difflib.get_close_matches(text, by_name, n=_LIKE_MAX)
    return [by_name[each][0] for each in found]


def _in_words(reading: naming.Reading) -> str:
    match reading:
        case naming.NodeName():
            return f"node {reading}"
        case naming.CardName():
            return f"card {reading}"
        case naming.CpuName():
            return f"CPU {reading}"
        case naming.DeviceName():
            return f"device {reading}"
        case naming.PodName() | naming.AnyPodName():
            return f"Pod {reading}"
        case naming.OwnerName():
            return f"Pod of {reading}"
