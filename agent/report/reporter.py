"""Writes what the cluster should read of this node, where it says something else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from agent.decide.isolation import Provider
from agent.decide.node_cpus import FoundCpus
from agent.decide.node_holdings import HeldByPod
from agent.discover.faults import CardFault
from agent.discover.machine import Discovery, Fault
from agent.report import device
from agent.report.held import Asked
from agent.report.offers import node_offers
from agent.report.settle import MANAGER, Path, Settled, Step, settle
from agent.report.topology import build_topology
from certs.ports import ApiError, ConflictError, api_path
from ledger.domain.dialects.names import OUR_DIALECT, Dialect
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in, items_in
from ledger.domain.resources import LABEL_GPU_ISOLATION_PROVIDER
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
STATUS: Final = "status"
REPAIR_SECONDS: Final = 600.0
"""Repairs of this age are forgotten: a field that is edited twice a day is no fight."""

NODE_ABSENT: Final = "NodeAbsent"
OTHER_MACHINE: Final = "OtherMachine"
NO_DEVICE_KIND: Final = "NoDeviceKind"
NO_TOPOLOGY_KIND: Final = "NoTopologyKind"
CPUS_UNKNOWN: Final = "CPUsUnknown"
NOT_KNOWN: Final = "FieldNotKnown"
FOREIGN: Final = "ForeignFieldManager"
UNREPORTED: Final = "Unreported"
_NOT_FOUND: Final = 404
_NOT_IN_SCHEMA: Final = "field not declared in schema"
_TOPOLOGIES: Final = ("spec", "topologies")
_NO_TOPOLOGIES: Final = Fault(
    reason=NOT_KNOWN,
    message="the cluster's kind has no spec.topologies: see `tenure manifests crds`",
)
_PROBLEMS_MAX: Final = 64


def path_of_node(name: str, *part: str) -> str:
    """Return the path of a Node, or of a part of one."""
    return api_path("v1", "nodes", name, *part)


def path_of_device(name: str) -> str:
    """Return the path of a Node's Device."""
    return api_path("scheduling.koordinator.sh/v1alpha1", "devices", name)


def path_of_topology(name: str) -> str:
    """Return the path of a Node's NodeResourceTopology."""
    return api_path("topology.node.k8s.io/v1alpha2", "noderesourcetopologies", name)


class Applier(Protocol):
    """The API for reports, each call bounded. Raises ApiError; `apply` also ConflictError."""

    async def read(self, path: str) -> device.Object | None:
        """Return an object as the API server has it now; None if there is none."""

    async def apply(
        self, path: str, body: device.Object, *, manager: str, force: bool
    ) -> device.Object:
        """Apply an object's fields as this manager's (server-side apply)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """
    What one round did.

    Attributes:
        written: the paths of the API that were written, in order.
        problems: what is wrong with the machine, or kept something from being said.
        recovered: ids of devices that somebody declared whole again, once the object says that it
            was heard (`faults.recovered`).
    """

    written: tuple[str, ...] = ()
    problems: tuple[Fault, ...] = ()
    recovered: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Reporter:
    """
    Reports one node, round after round; it remembers only what it took back of late.

    Attributes:
        clock: seconds that only grow; `now`: the time of day, RFC 3339.
        dialects: whose quantities the Node gets beside our own.
        isolation: what keeps containers to their parts of this node's cards.
    """

    objects: Applier
    node_name: str
    clock: Callable[[], float]
    now: Callable[[], str]
    dialects: frozenset[Dialect] = frozenset({OUR_DIALECT})
    vocabulary: Vocabulary = DEFAULT_VOCABULARY
    isolation: Provider = Provider.NONE
    _repairs: dict[str, deque[float]] = field(default_factory=dict)
    _wrote: set[str] = field(default_factory=set)
    _unknown: set[Path] = field(default_factory=set)

    async def report(
        self,
        found: Discovery,
        pods: Sequence[HeldByPod] | None = None,
        asked: Asked | None = None,
        cpus: FoundCpus | None = None,
    ) -> Reported:
        """
        Bring the node's objects to what was found; write nothing that is so already.

        Every part is a call of its own: one that fails keeps no other from being written, and is
        tried again in the next round.

        Args:
            pods: what the ledger says is held here; None = not known, and then not told.
            asked: what the Pods that live here ask for; None = not known, and then nothing falls as
                cards fill.
            cpus: None = not to be reported, or not known; without `pods` they are not.
        """
        written: list[str] = []
        problems: list[Fault] = []
        node_path, device_path = path_of_node(self.node_name), path_of_device(self.node_name)
        try:
            node = await self.objects.read(node_path)
            there = await self.objects.read(device_path)
        except ApiError as error:
            return Reported(problems=(Fault(reason=UNREPORTED, message=str(error)),))
        if node is None:
            fact = f"there is no such Node: name={self.node_name}"
            return Reported(problems=(Fault(reason=NODE_ABSENT, message=fact),))
        if device.is_of_another(found.identity, node):
            fact = f"the Node is another machine's: name={self.node_name}"
            return Reported(problems=(Fault(reason=OTHER_MACHINE, message=fact),))
        want = device.wanted(found, node, there, pods, vocabulary=self.vocabulary, now=self.now())
        problems += want.problems
        quantities: Mapping[str, str] = {}
        if want.device is not None:
            quantities = node_offers(
                device.ours(found, node),
                pods,
                asked,
                dialects=self.dialects,
                vocabulary=self.vocabulary,
            )
        latest = {node_path: node, device_path: there}
        parts = self._parts(want, quantities)
        if cpus is not None and pods is not None:
            devices = items_in(want.device, "spec", "devices")
            try:
                topology = build_topology(cpus, node, devices, pods)
                part = _Part(path=path_of_topology(self.node_name), want=topology, whole=True)
                latest[part.path] = await self.objects.read(part.path)
                parts.append(part)
            except InputError as error:
                problems.append(Fault(reason=CPUS_UNKNOWN, message=str(error)))
            except (ApiError, ConflictError) as error:
                problems.append(Fault(reason=UNREPORTED, message=str(error)))
        for part in parts:
            try:
                answer = await self._written(part, latest[part.path], problems)
                if answer is not None:
                    latest[part.path] = answer
                    written.append(part.where)
            except (ApiError, ConflictError) as error:
                absent = isinstance(error, ApiError) and error.status == _NOT_FOUND
                kind = NO_TOPOLOGY_KIND if part.whole else NO_DEVICE_KIND
                reason = kind if absent else UNREPORTED
                problems.append(Fault(reason=reason, message=str(error)))
        unheard = device.recoveries(latest[device_path])
        return Reported(
            written=tuple(written),
            problems=tuple(problems[:_PROBLEMS_MAX]),
            recovered=tuple(each for each in device.recoveries(there) if each not in unheard),
        )

    async def closed(self) -> tuple[CardFault, ...]:
        """Return what the Device object says against cards. Raises ApiError: it can't be read."""
        return device.closed_cards(await self.objects.read(path_of_device(self.node_name)))

    def _parts(self, want: device.Wanted, quantities: Mapping[str, str]) -> list[_Part]:
        """Return what is written, the Device first: without it the Node's numbers are cards."""
        node_path, device_path = path_of_node(self.node_name), path_of_device(self.node_name)
        head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node_name}}
        labels = dict(want.labels)
        if labels:
            labels[LABEL_GPU_ISOLATION_PROVIDER] = str(self.isolation)
        labelled = {**head, "metadata": {"name": self.node_name, "labels": labels}}
        amounts = {"capacity": dict(quantities), "allocatable": dict(quantities)}
        parts = []
        if want.device is not None:
            kind = {key: want.device[key] for key in ("apiVersion", "kind")}
            status = {**kind, "metadata": {"name": self.node_name}, STATUS: want.allocations}
            parts.append(_Part(path=device_path, want=want.device))
            if want.allocations is not None:
                parts.append(_Part(path=device_path, want=status, part=STATUS))
        parts.append(_Part(path=node_path, want=labelled))
        parts.append(_Part(path=node_path, want={**head, STATUS: amounts}, part=STATUS))
        return parts

    async def _written(
        self, part: _Part, there: device.Object | None, problems: list[Fault]
    ) -> device.Object | None:
        want = _without(part.want, self._unknown) if part.path.startswith(DEVICES) else part.want
        if want is not part.want:
            problems.append(_NO_TOPOLOGIES)
        settled = settle(
            want,
            there,
            subresource=part.part,
            repairs=self._lately(part.where),
            wrote=part.where in self._wrote,
            whole=part.whole,
        )
        if settled.step is Step.NOTHING:
            return None
        if settled.step is Step.STOP:
            problems.append(Fault(reason=FOREIGN, message=_kept(part, settled)))
            return None
        force = settled.step is Step.REPAIR
        try:
            answer = await self._apply(part, want, there, force=force)
        except ApiError as error:
            if _NOT_IN_SCHEMA not in str(error) or found_in(want, *_TOPOLOGIES) is None:
                raise
            # The released kind has no such field: the rest is worth having without it.
            self._unknown.add(_TOPOLOGIES)
            problems.append(_NO_TOPOLOGIES)
            less = _without(want, self._unknown)
            answer = await self._apply(part, less, there, force=force)
        self._wrote.add(part.where)
        if settled.managers:
            self._repairs.setdefault(part.where, deque()).append(self.clock())
        return answer

    async def _apply(
        self, part: _Part, want: device.Object, there: device.Object | None, *, force: bool
    ) -> device.Object:
        """Apply it to what was read, and to nothing newer."""
        version = found_in(there, "metadata", "resourceVersion")
        metadata = {**want["metadata"], **({"resourceVersion": version} if version else {})}
        body = {**want, "metadata": metadata}
        return await self.objects.apply(part.where, body, manager=MANAGER, force=force)

    def _lately(self, where: str) -> int:
        times = self._repairs.get(where, deque())
        while times and times[0] <= self.clock() - REPAIR_SECONDS:
            times.popleft()
        return len(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """
    Fields of one object that are written together; `part` is its subresource, or none.

    Attributes:
        whole: the object is ours or somebody else's, and never both.
    """

    path: str
    want: device.Object
    part: str = ""
    whole: bool = False

    @property
    def where(self) -> str:
        """Return the path of the API that is written."""
        return f"{self.path}/{self.part}" if self.part else self.path


def _without(want: device.Object, unknown: set[Path]) -> device.Object:
    for top, name in unknown:
        section = want.get(top)
        if isinstance(section, Mapping) and name in section:
            want = {**want, top: {key: item for key, item in section.items() if key != name}}
    return want


def _kept(part: _Part, settled: Settled) -> str:
    fields = ", ".join(".".join(path) for path in settled.paths[:4]) or "the whole object"
    return f"{part.where}: written by {', '.join(settled.managers)}, not by us: {fields}"
