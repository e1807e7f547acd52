"""
GPU share on a node: which Pod an Allocate is for, and what its container is told.

Kubelet tells an amount and no Pod. It admits one Pod after the other, records what a container was
given before it asks for the next, and knows no Pod before its turn: so whoever of its Pods waits
for that amount and is not in its record is asked for, the earliest assumed where a Pod that was
rejected is still among them.

Rule: GPU share proposal, "Run the deployment on the node"; GPU-sharing contract B.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.checkpoint import DeviceCheckpoint, DeviceEntry
from agent.discover.machine import Card
from ledger.domain.annotations.wire import TRUE, an_object, annotation_path
from ledger.domain.dialects.gpushare import words
from ledger.domain.dialects.gpushare.annotations import decode_pod_units, read_gpushare_allocation
from ledger.domain.dialects.gpushare.demands import UNIT_BYTES
from ledger.domain.errors import InputError, TenureError
from ledger.domain.kube.object_fields import metadata_of, text_at
from ledger.domain.kube.pod_spec import read_pod
from ledger.domain.resources import ENV_NVIDIA_VISIBLE
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

SEPARATOR: Final = "-_-"
_PENDING: Final = "Pending"


class NobodyWaitsError(TenureError):
    """No Pod of this node waits for the amount. The call is refused; nobody is given a guess."""


class TiedError(TenureError):
    """Two Pods wait for the amount alike and hold different cards. The call is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitId:
    """One unit of a card's memory, as kubelet counts it."""

    unit_id: str
    uuid: str
    healthy: bool
    numa_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePod:
    """
    A Pod of this node with a share of one card.

    Attributes:
        containers: name and units of those that ask for memory, in the order that kubelet asks in.
        minor: its card by the annotations of its Binding.
        pod_units, card_units: what is written there of the Pod and of one card.
        assigned: its `ASSIGNED` is true.
        pending: it has not started anything by its status.
        deleting: somebody deleted it.
    """

    uid: str
    namespace: str
    name: str
    containers: tuple[tuple[str, int], ...]
    minor: int
    pod_units: int
    card_units: int
    assume_time_ns: int
    assigned: bool
    pending: bool
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanting:
    """A container that kubelet has to ask for next of its Pod."""

    pod: SharePod
    container: str
    units: int


def unit_ids(cards: Iterable[Card]) -> tuple[UnitId, ...]:
    """
    Return the ids of a node's cards, as many for each as it has whole GiB.

    Rule: contract B.5: `<GPU UUID>-_-<n>`, n from 0; 16276 MiB are 15.
    """
    return tuple(
        UnitId(
            unit_id=f"{card.uuid}{SEPARATOR}{number}",
            uuid=card.uuid,
            healthy=not card.faults,
            numa_node=card.place.numa_node,
        )
        for card in cards
        for number in range(card.memory_bytes // UNIT_BYTES["GiB"])
    )


def card_of_id(unit_id: str) -> str:
    """Return the UUID of the card that an id is of."""
    return unit_id.rpartition(SEPARATOR)[0]


def read_share_pod(pod: Mapping[str, object]) -> SharePod | None:
    """
    Return a Pod of kubelet's that was given a card of this node; None for any other.

    Raises:
        InputError: it can't be read, or what its Binding wrote contradicts itself.
    """
    metadata = metadata_of(pod)
    spec = read_pod(pod, DEFAULT_VOCABULARY)
    containers = tuple(
        (one.name, one.units(words.GPUSHARE_MEMORY))
        for one in spec.containers
        if one.units(words.GPUSHARE_MEMORY)
    )
    if not containers:
        return None
    allocation = read_gpushare_allocation(spec.annotations)
    if allocation is None or allocation.card is None or allocation.assume_time_ns is None:
        return None
    written = {
        key: decode_pod_units(spec.annotations.get(key, ""))
        for key in (words.ANNOTATION_GPUSHARE_POD, words.ANNOTATION_GPUSHARE_DEV)
    }
    phase = text_at(an_object(pod.get("status"), "status"), "phase", "status")
    return SharePod(
        uid=spec.uid,
        namespace=spec.namespace,
        name=spec.name,
        containers=containers,
        minor=allocation.card,
        pod_units=written[words.ANNOTATION_GPUSHARE_POD],
        card_units=written[words.ANNOTATION_GPUSHARE_DEV],
        assume_time_ns=allocation.assume_time_ns,
        assigned=allocation.assigned,
        pending=phase in ("", _PENDING),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def wanting(pods: Iterable[SharePod], checkpoint: DeviceCheckpoint) -> tuple[Wanting, ...]:
    """
    Return the containers that kubelet may be asking for: the next one of each Pod that waits.

    Rule: contract B.5, step 2: Pending, an assume time, `ASSIGNED` false, ascending. Those that
    somebody deleted come last: kubelet admits one only where it learns of both at once.
    """
    given = {(one.pod_uid, one.container) for one in shares_in(checkpoint)}
    result = []
    for pod in sorted(pods, key=lambda pod: (pod.deleting, pod.assume_time_ns, pod.uid)):
        left = [one for one in pod.containers if (pod.uid, one[0]) not in given]
        if pod.pending and not pod.assigned and left:
            result.append(Wanting(pod=pod, container=left[0][0], units=left[0][1]))
    return tuple(result)


def chosen(units: int, waiting: Sequence[Wanting]) -> Wanting:
    """
    Return whose container an Allocate of so many units is for.

    Raises:
        NobodyWaitsError: none waits for that amount.
        TiedError: two of the earliest assume time, with answers that differ.
    """
    fitting = [one for one in waiting if one.units == units]
    if not fitting:
        waits = ",".join(f"{_named(one)}:{one.units}" for one in waiting[:4]) or "none"
        raise NobodyWaitsError(f"no pod waits for the amount: units={units}, waiting={waits}")
    first = fitting[0]
    for other in fitting[1:]:
        same_time = (other.pod.deleting, other.pod.assume_time_ns) == (
            first.pod.deleting,
            first.pod.assume_time_ns,
        )
        if same_time and _answer(other) != _answer(first):
            fact = f"pods={_named(first)},{_named(other)}, units={units}"
            raise TiedError(f"two pods wait alike and hold different cards: {fact}")
    return first


def environment(one: Wanting, uuid: str, node_labels: Mapping[str, str]) -> dict[str, str]:
    """
    Return what a container is told of its share.

    Rule: contract B.5, the table of variables; a card is named by its UUID, never by an index.
    """
    made = {
        ENV_NVIDIA_VISIBLE: uuid,
        words.ANNOTATION_GPUSHARE_IDX: str(one.pod.minor),
        words.ANNOTATION_GPUSHARE_POD: str(one.pod.pod_units),
        words.ENV_GPUSHARE_CONTAINER: str(one.units),
        words.ANNOTATION_GPUSHARE_DEV: str(one.pod.card_units),
    }
    if node_labels.get(words.LABEL_GPUSHARE_NO_ISOLATION) == TRUE:
        made[words.ENV_GPUSHARE_NO_ISOLATION] = TRUE
    return made


def preferred(uuid: str, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Return ids, those of the reserved card first (contract D.2); `must` is always included."""
    others = sorted(set(available) - set(must), key=_by_number)
    of_card = [one for one in others if card_of_id(one) == uuid]
    rest = [one for one in others if card_of_id(one) != uuid]
    return [*must, *of_card, *rest][:size]


def shares_in(checkpoint: DeviceCheckpoint) -> tuple[DeviceEntry, ...]:
    """Return what kubelet recorded of shares."""
    return tuple(one for one in checkpoint.entries if one.resource == words.GPUSHARE_MEMORY)


def to_mark(
    pods: Iterable[SharePod], checkpoint: DeviceCheckpoint, resource: str
) -> tuple[SharePod, ...]:
    """
    Return the Pods whose `ASSIGNED` has to become true: kubelet recorded all of their containers.

    Not before: an answer that was lost on its way is asked for again, and has to find its Pod.

    Args:
        resource: by which kubelet records them, the memory itself or slots.
    """
    given = {(one.pod_uid, one.container) for one in checkpoint.entries if one.resource == resource}
    return tuple(
        pod
        for pod in pods
        if not pod.assigned
        and not pod.deleting
        and all((pod.uid, name) in given for name, _ in pod.containers)
    )


def marking(pod: SharePod) -> list[dict[str, str]]:
    """Return the JSON patch by which this Pod, and no other of its name, is marked once."""
    key = words.ANNOTATION_GPUSHARE_ASSIGNED
    path = f"/metadata/annotations/{key}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": path, "value": "false"},
        {"op": "replace", "path": path, "value": TRUE},
    ]


def check_card(pod: SharePod, uuid: str, cards: Iterable[Card]) -> None:
    """Raise InputError for a Pod whose Binding names another card than the ledger."""
    minor = {card.uuid: card.minor for card in cards}.get(uuid)
    if minor != pod.minor:
        fact = f"pod_uid={pod.uid}, card={uuid}, minor={minor}, annotation={pod.minor}"
        field = annotation_path(words.ANNOTATION_GPUSHARE_IDX)
        raise InputError(f"the ledger says another card: {fact}", field=field)


def _answer(one: Wanting) -> tuple[int, int, int]:
    return one.pod.minor, one.pod.pod_units, one.pod.card_units


def _named(one: Wanting) -> str:
    return f"{one.pod.namespace}/{one.pod.name}/{one.container}"


def _by_number(unit_id: str) -> tuple[str, int]:
    uuid, _, number = unit_id.rpartition(SEPARATOR)
    return uuid, int(number) if number.isascii() and number.isdigit() else 0
