"""
What a name that a user typed means in a ledger: the first of its readings that the ledger knows.

A GPU's UUID and a PCI address, as an Xid message gives them, mean the card that has them; a Pod's
name without its namespace means the one Pod that is called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ledger.domain.errors import InputError
from tenure.asking import EVERYBODY, Sight
from tenure.exits import with_next
from tenure.names import (
    AnyPodName,
    CardName,
    CpuName,
    DeviceName,
    Name,
    NodeName,
    OwnerName,
    PodName,
    Reading,
)

if TYPE_CHECKING:
    from ledger.store.open import Ledger

_NAMED_MAX: Final = 5
"""How many of what a name may mean an error names."""
_LIKE_MAX: Final = 3


def first_known(source: Ledger, readings: Sequence[Reading], sight: Sight = EVERYBODY) -> Name:
    """
    Return the first reading of a name that the ledger knows.

    A Pod or an owner that is not seen is as unknown as one that is not there.

    Raises:
        InputError: it knows none of them, or more than one thing is called so.
    """
    for reading in readings:
        known = [name for name in _names(source, reading, sight) if _is_known(source, name, sight)]
        if len(known) > 1:
            named = ", ".join(str(name) for name in known[:_NAMED_MAX])
            more = " and more" if len(known) > _NAMED_MAX else ""
            error = InputError(f"{len(known)} are called so: {named}{more}", place=str(reading))
            raise with_next(error, "name one of them")
        if known:
            return known[0]
    text = " or ".join(_in_words(reading) for reading in readings)
    try:
        like = " or ".join(_like(source, readings[0], sight))
    except InputError:  # more rows than a service reads for a question
        like = ""
    error = InputError(f"the ledger knows no {text}")
    step = f"did you mean {like}?" if like else "`tenure map` shows the nodes and cards"
    raise with_next(error, step)


def owner_text(name: OwnerName) -> str:
    """Return an owner as the ledger spells it."""
    return f"{name.kind}/{name.name}"


def _names(source: Ledger, reading: Reading, sight: Sight) -> Iterable[Name]:
    match reading:
        case DeviceName():
            return _cards(source, reading)
        case AnyPodName(name=name):
            return _pods_called(source, name, sight)
        case _:
            return (reading,)


def _cards(source: Ledger, name: DeviceName) -> Iterator[Name]:
    """Yield the cards of an id; one that went to another machine is meant where it is now."""
    from ledger.store.reading import report_queries as queries
    from scheduler.usage.machines import GONE

    at = queries.devices_at(source.connection, name.device_id, node=name.node or None)
    here = [device for device in at if device.closed_reason != GONE] or at
    machines: dict[int, Name] = {}
    for device in here:
        card = CardName(node=device.node_name, device_type=device.device_type, minor=device.minor)
        machines.setdefault(device.device_no, card)
    yield from machines.values()


def _pods_called(source: Ledger, name: str, sight: Sight) -> Iterator[Name]:
    from ledger.store.reading import report_queries as queries

    found = queries.pods(source.connection, name=name, namespace=sight.namespace or None)
    for namespace in dict.fromkeys(pod.namespace for pod in found):
        yield PodName(namespace=namespace, name=name)


def _is_known(source: Ledger, name: Name, sight: Sight) -> bool:
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.report_queries import When

    match name:
        case NodeName(node=node):
            return bool(queries.nodes(source.connection, name=node))
        case CardName(node=node, device_type=device_type, minor=minor):
            connection, ever = source.connection, When(ever=True)
            return bool(
                queries.devices(connection, node=node, device_type=device_type, minor=minor)
                or queries.device_holders(
                    connection, ever, node=node, device_type=device_type, minor=minor
                )
            )
        case CpuName(node=node, cpus=cpus):
            return queries.has_cpus(source.connection, node=node, cpus=cpus)
        case PodName(namespace=namespace, name=pod):
            return sight.sees(namespace) and bool(
                queries.pods(source.connection, pod=(namespace, pod))
            )
        case OwnerName(namespace=namespace):
            within = namespace or sight.namespace
            return sight.sees(within) and bool(
                queries.pods(source.connection, owner=owner_text(name), namespace=within or None)
            )


def _like(source: Ledger, reading: Reading, sight: Sight) -> list[str]:
    """Return names that look like what was typed, of nodes and Pods that are seen."""
    import difflib

    from ledger.store.reading import report_queries as queries

    text = str(reading)
    nodes = [node.node_name for node in queries.nodes(source.connection)] if sight.whole else []
    pods = queries.pods(source.connection, namespace=sight.namespace or None)
    paths = dict.fromkeys(f"{pod.namespace}/{pod.pod_name}" for pod in pods)
    near = difflib.get_close_matches(text, [*nodes, *paths], n=_LIKE_MAX)
    if near or "/" in text:
        return near
    by_name = {path.partition("/")[2]: path for path in paths}
    return [by_name[name] for name in difflib.get_close_matches(text, by_name, n=_LIKE_MAX)]


def _in_words(reading: Reading) -> str:
    match reading:
        case NodeName():
            return f"node {reading}"
        case CardName():
            return f"card {reading}"
        case CpuName():
            return f"CPU {reading}"
        case DeviceName():
            return f"device {reading}"
        case PodName() | AnyPodName():
            return f"Pod {reading}"
        case OwnerName():
            return f"Pod of {reading}"
