"""The part of a request that decides where it fits and how good a node is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Final

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.registry import reader_of
from ledger.domain.kube.shared_templates import Amounts, template_amounts
from ledger.domain.request import requests
from ledger.domain.resources import NVIDIA_GPU
from scheduler.decide.dialects.registry import NOTHING_OWN, OWN_FIELDS, chooser_of, own_of

_KNOWN_MAX: Final = 4096

NOT_READ: Final = {
    "uid": "who asks, not what for",
    "namespace": "who asks, not what for",
    "name": "who asks, not what for",
    "group": "says with whom a Pod is planned; that it has one, the closer look asks (`is_member`)",
    "gang": "says with whom a Pod starts; that it has one, the closer look asks (`is_member`)",
    "snapshot": "what is recorded of the Pod beside the decision; its QoS class is read",
}
"""The fields of a request that no decision about one Pod reads, each with the reason."""

_READ: Final = (
    *(field.name for field in fields(requests.PodRequest) if field.name not in NOT_READ),
    "snapshot.qos",
)
_HELD: Final = (
    "cpu_milli",
    "devices",
    "placement",
    "cpuset",
    "dialect",
    "node_policy",
    "extended",
    "stored",
    "by_plugin",
    *OWN_FIELDS,
)
"""What a shape holds as it is, memory aside."""

asked_by: Final[Callable[[requests.PodRequest], Hashable]] = attrgetter(*_READ)
"""Return all that a decision reads of a request: two of equal keys always get one answer."""

wishes_of: Final[Callable[[requests.PodRequest], Hashable]] = attrgetter(
    *(name for name in _READ if name not in {*_HELD, "memory_bytes"})
)
"""Return all of `asked_by` that a request's shape does not hold, memory aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticNeed:
    """
    What a node must be, whatever it holds: one verdict per node, kept for ever.

    Attributes:
        device_types, model_names: one entry per demand.
        own: what only single dialects read, in the order of `OWN_FIELDS`.
        whole_cards: every GPU demand is for whole cards.
        pinned: the Pod wants CPUs of its own.
        partitioned: the Pod wants whole GPUs by the node's partition table only.
        shared: some GPU demand is for a part of a card.
        resources: the names of those that a claim may give instead of the node.
        stored: the names of devices that the node has to advertise.
        by_plugin: the node has to be one that gives its cards by number.
        template_amounts: per demand for a share, what one template of the cards must be equal to.
    """

    placement: requests.PlacementRules
    dialect: Dialect | None = None
    device_types: tuple[str, ...] = ()
    model_names: tuple[tuple[str, ...], ...] = ()
    own: tuple[Hashable, ...] = NOTHING_OWN
    whole_cards: bool = True
    pinned: bool = False
    partitioned: bool = False
    shared: bool = False
    template_amounts: tuple[Amounts, ...] = ()
    stored: tuple[str, ...] = ()
    by_plugin: bool = False
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """
    What a decision over nodes reads of a request. Requests alike share one object.

    Attributes:
        memory_bytes: 0 where the policy does not look at memory and it is checked apart.
        plain_percent: for a request whose only devices are shares of GPUs with core percent and
            memory ratio alike, that number; 0 without devices; -1 for every other request.
        plain_count: the number of such GPUs.
        node_policy: which rates the nodes; empty = the settings'.
        extended: resource name -> how many; nothing where kube-scheduler counts them itself.
    """

    cpu_milli: int
    memory_bytes: int
    demands: tuple[requests.DeviceDemand, ...]
    cpuset: requests.CpuSetDemand | None
    dialect: Dialect | None
    static: StaticNeed
    plain_percent: int
    plain_count: int
    node_policy: str = ""
    extended: tuple[tuple[str, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Tell whether one array of card shares says all about the devices."""
        return self.plain_percent >= 0

    @property
    def is_counted(self) -> bool:
        """
        Tell whether it is enough to know how many cards of a node are free, not which.

        Rule: docs/DIVERGENCES.md, Placing by count: whole cards that a device plugin chooses.
        """
        return self.plain_percent == WHOLE_PERCENT and _is_by_plugin(self.dialect)


_value_of: Final[Callable[[Shape], Hashable]] = attrgetter(*(field.name for field in fields(Shape)))


class ShapeIndex:
    """Gives requests alike one shape, in the time of a dictionary look-up."""

    def __init__(self, *, with_memory: bool, mixed_models: bool, extended: bool = True) -> None:
        self._with_memory = with_memory
        self._extended = extended
        self._mixed_models = mixed_models
        # Keyed by identity, because hashing the values costs more than a decision may. The
        # request kept beside the shape keeps its parts alive, so that no id is used again.
        self._by_identity: dict[tuple[object, ...], tuple[Shape, requests.PodRequest]] = {}
        self._by_value: dict[Hashable, Shape] = {}

    def with_mixed_models(self, mixed_models: bool) -> ShapeIndex:  # noqa: FBT001 - says it all
        """Return an index that knows no request yet, for nodes of one model each or of several."""
        return ShapeIndex(
            with_memory=self._with_memory, mixed_models=mixed_models, extended=self._extended
        )

    def shape_of(self, request: requests.PodRequest) -> Shape:
        """Return the shape of a request."""
        memory_bytes = request.memory_bytes if self._with_memory or request.node_policy else 0
        key = (
            request.cpu_milli,
            memory_bytes,
            id(request.devices),
            id(request.placement),
            id(request.cpuset),
            id(request.dialect),
            id(request.joint),
            id(request.partition),
            request.node_policy,
            request.extended,
            request.stored,
            request.by_plugin,
            own_of(request),
        )
        known = self._by_identity.get(key)
        if known is not None:
            return known[0]
        if len(self._by_identity) >= _KNOWN_MAX:
            self._by_identity.clear()
        read = replace(request, memory_bytes=memory_bytes)
        if not self._extended:
            read = replace(read, extended=())
        if len(self._by_value) >= _KNOWN_MAX:
            self._by_value.clear()
        shape = shape_of(read, mixed_models=self._mixed_models)
        shape = self._by_value.setdefault(_value_of(shape), shape)
        self._by_identity[key] = (shape, request)
        return shape


def shape_of(request: requests.PodRequest, *, mixed_models: bool = False) -> Shape:
    """
    Return the shape of one request.

    With `mixed_models` on a node, which models a Pod allows is a question about single cards.
    """
    percent, count = _plain(request)
    gpus = [demand for demand in request.devices if demand.device_type == GPU]
    if mixed_models and any(demand.model_names for demand in request.devices):
        percent, count = -1, 0
    return Shape(
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        demands=request.devices,
        cpuset=request.cpuset,
        dialect=request.dialect,
        static=StaticNeed(
            placement=request.placement,
            dialect=request.dialect,
            device_types=tuple(demand.device_type for demand in request.devices),
            model_names=tuple(demand.model_names for demand in request.devices),
            own=own_of(request),
            whole_cards=all(demand.exclusive for demand in gpus),
            pinned=request.cpuset is not None,
            partitioned=request.partition is not None and all(map(requests.is_whole, gpus)),
            shared=not all(map(requests.is_whole, gpus)),
            template_amounts=tuple(filter(None, map(template_amounts, gpus))),
            stored=request.stored,
            by_plugin=request.by_plugin,
            resources=(
                *(name for name, _ in request.extended),
                *([NVIDIA_GPU] if gpus and _is_by_plugin(request.dialect) else []),
            ),
        ),
        plain_percent=percent,
        plain_count=count,
        node_policy=request.node_policy,
        extended=request.extended,
    )


def _is_by_plugin(dialect: Dialect | None) -> bool:
    """Tell whether a device plugin chooses the cards of whoever asks so."""
    return dialect is not None and reader_of(dialect).by_plugin


def _plain(request: requests.PodRequest) -> tuple[int, int]:
    """
    Return (percent, count) of a plain request, (0, 0) without devices, (-1, 0) for others.

    Plain: one demand for GPUs, by ratio alone, core and ratio alike, and nothing that only a
    closer look at the node can tell (instance caps, memory by bytes, CPU sets, hints).
    """
    if request.cpuset is not None or len(request.devices) > 1 or request.partition is not None:
        return (-1, 0)
    if not request.devices:
        return (0, 0)
    demand = request.devices[0]
    plain = (
        demand.device_type == GPU
        and chooser_of(request.dialect).by_share
        and 0 < demand.core_percent == demand.memory_ratio_percent <= WHOLE_PERCENT
        and demand.memory_bytes == 0
        and demand.hint is None
        and demand.exclusive == (demand.core_percent == WHOLE_PERCENT)
    )
    return (demand.core_percent, demand.count) if plain else (-1, 0)
