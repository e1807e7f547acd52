"""A cluster that changes under an engine, and beside it the state that it came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random
from typing import Any, Final

from msgspec import structs

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.partitions import HOPPER_PARTITIONS, GpuPartition
from ledger.domain.cpuset import cpuset_of
from ledger.domain.devices import DeviceRecord, DeviceShare, DeviceTopology, VirtualFunction
from ledger.domain.dialects.names import Dialect
from ledger.domain.log.events import PodObserved
from ledger.domain.log.machines import granting_nodes
from ledger.domain.nodes import KubeletPolicy, NodeFacts, NumaZone, Taint
from ledger.domain.request.requests import PodRequest
from ledger.domain.resources import HUAWEI_NPU_CORE
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cards.view import NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.group.room import Rooms
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings
from tests.support.links import islands

GIB: Final = 2**30
UIDS: Final = tuple(f"u{number}" for number in range(9))
NAMES: Final = ("a", "b", "c", "d", "e")
ROOTS: Final = ("r0", "r1")
MODELS: Final = ("T4", "A10", "H100")

TWO_NUMAS: Final = cpu_topology_of(
    Cpu(id=cpu, core=cpu // 2, socket=cpu // 4, numa=cpu // 4) for cpu in range(8)
)
ONE_NUMA: Final = cpu_topology_of(Cpu(id=cpu, core=cpu, socket=0, numa=0) for cpu in range(6))
TOPOLOGIES: Final = (None, None, TWO_NUMAS, TWO_NUMAS, ONE_NUMA)

Holding = Placement | PodObserved


@dataclass(slots=True)
class Cluster:
    """
    An engine whose nodes come, go and change, and what an engine made anew would be given.

    Attributes:
        nodes: number -> facts.
        ranks: number -> tie-break position.
        held: Pod UID -> the number of the Node it is held through, and what was taken.
    """

    settings: SchedulingSettings
    typical: Sequence[PodRequest]
    engine: Engine
    nodes: dict[int, NodeFacts]
    ranks: dict[int, int]
    by_count: bool = False
    held: dict[str, tuple[int, Holding]] = field(default_factory=dict)

    def anew(self) -> Engine:
        """Return an engine made anew from the final state."""
        numbers = sorted(self.nodes)
        fresh = Engine(
            [self.nodes[number] for number in numbers],
            self.settings,
            workload=workload_of(self.typical),
            seed=7,
            rank=self._dense_ranks(numbers),
            by_count=self.by_count,
        )
        for number, what in self.held.values():
            here = numbers.index(number)
            if isinstance(what, Placement):
                fresh.reserve(structs.replace(what, node=here))
            else:
                fresh.adopt(here, what)
        return fresh

    def _dense_ranks(self, numbers: Sequence[int]) -> list[int]:
        ranked = sorted(numbers, key=self.ranks.__getitem__)
        return [ranked.index(number) for number in numbers]

    def number_of(self, uid: str) -> int | None:
        """Return the number of the Node with this UID, None where it is not there."""
        return next((number for number, facts in self.nodes.items() if facts.uid == uid), None)

    def put(self, facts: NodeFacts, rank: int | None = None) -> None:
        """Let a Node come, or be as the facts say; it gets the lowest free number and rank."""
        known = self.number_of(facts.uid)
        number = self.engine.put_node(facts, rank=rank if known is None else None)
        if known is None:
            known = _lowest(self.nodes)
            self.ranks[known] = _lowest(self.ranks.values()) if rank is None else rank
        assert number == known
        self.nodes[known] = facts

    def drop(self, uid: str) -> None:
        """Let a Node go; what is held stays with another Node of its machine, if there is one."""
        number = self.number_of(uid)
        assert number is not None, uid
        family = self._family(number)
        given_back = self.engine.drop_node(uid)
        del self.nodes[number]
        del self.ranks[number]
        through = [pod for pod, (node, _) in self.held.items() if node == number]
        left = [other for other in family if other != number]
        if left:
            account = self._account(left[0])
            for pod in through:
                self.held[pod] = (account, self.held[pod][1])
            assert given_back == ()
        else:
            for pod in through:
                del self.held[pod]
            assert sorted(given_back) == sorted(through)

    def release(self, pod_uid: str) -> None:
        """Let a Pod end."""
        self.engine.release(pod_uid)
        del self.held[pod_uid]

    def reserve(self, placement: Placement) -> None:
        """Take what was decided."""
        self.engine.reserve(placement)
        self.held[placement.request.uid] = (placement.node, placement)

    def adopt(self, number: int, pod: PodObserved) -> None:
        """Take what a Pod is seen to hold; both engines name the same contradictions."""
        fresh = self.anew()
        told = self.engine.adopt(number, pod)
        assert told == fresh.adopt(sorted(self.nodes).index(number), pod)
        self.held[pod.pod_uid] = (number, pod)

    def _family(self, number: int) -> list[int]:
        numbers = sorted(self.nodes)
        granting = granting_nodes([self.nodes[each] for each in numbers])
        mine = granting[numbers.index(number)]
        return [each for each, account in zip(numbers, granting, strict=True) if account == mine]

    def _account(self, number: int) -> int:
        numbers = sorted(self.nodes)
        granting = granting_nodes([self.nodes[each] for each in numbers])
        return numbers[granting[numbers.index(number)]]


def _lowest(taken: object) -> int:
    used = set(taken)  # type: ignore[call-overload]
    return next(number for number in range(len(used) + 1) if number not in used)


class Renumbered:
    """The changed engine with its nodes numbered as an engine made anew numbers them."""

    def __init__(self, engine: Engine, numbers: Sequence[int]) -> None:
        self._engine = engine
        self._numbers = numbers
        self._new = {number: new for new, number in enumerate(numbers)}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the engine has
        return getattr(self._engine, name)

    def decide(self, request: PodRequest, *, ordinal: int = 0) -> Placement | Unplaced:
        """Decide as the engine does."""
        answer = self._engine.decide(request, ordinal=ordinal)
        return self._inside(answer) if isinstance(answer, Placement) else answer

    def filter(self, request: PodRequest, nodes: Sequence[int]) -> tuple[object, ...]:
        """Return the whole answer of a filter, with its reasons in words."""
        judged = self._engine.filter(request, [self._numbers[node] for node in nodes])
        return (
            None if judged.best is None else self._inside(judged.best),
            judged.passing.tolist(),
            judged.ratings.tolist(),
            judged.failing.tolist(),
            judged.hopeless.tolist(),
            [judged.reasons[code] for code in judged.codes.tolist()],
        )

    def candidates(self, request: PodRequest) -> list[int]:
        """Return the engine's candidates."""
        return [self._new[node] for node in self._engine.candidates(request)]

    def rooms(self, requests: Sequence[PodRequest], most: Sequence[int]) -> Rooms:
        """Return the engine's rooms."""
        rooms = self._engine.rooms(requests, most)
        return replace(rooms, nodes=[self._new[node] for node in rooms.nodes])

    def has_room(self, request: PodRequest, nodes: Sequence[int]) -> bool:
        """Ask the engine."""
        return self._engine.has_room(request, [self._numbers[node] for node in nodes])

    def view(self, node: int, group: str | None = None) -> NodeView:
        """Return the engine's view."""
        return self._engine.view(self._numbers[node], group)

    def try_place(
        self, request: PodRequest, node: int, only_minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Try it in the engine."""
        answer = self._engine.try_place(request, self._numbers[node], only_minors)
        return None if answer is None else self._inside(answer)

    def reserve(self, placement: Placement) -> None:
        """Reserve in the engine."""
        self._engine.reserve(structs.replace(placement, node=self._numbers[placement.node]))

    def adopt(self, node: int, pod: PodObserved) -> list[str]:
        """Adopt in the engine."""
        return self._engine.adopt(self._numbers[node], pod)

    def _inside(self, placement: Placement) -> Placement:
        return structs.replace(placement, node=self._new[placement.node])


# --- Nodes out of a seed ------------------------------------------------------------------------


def node_of(rng: Random, uid: str) -> NodeFacts:
    """Return a Node of any kind; some are of one machine with others, some cards cloned."""
    name = rng.choice(NAMES)
    machine = rng.choice(("", "", "m1", "m2"))
    facts = NodeFacts(
        uid=uid,
        name=name,
        system_uuid=machine,
        machine_id=machine,
        created=rng.choice(("", "", "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z")),
        lost=rng.random() < 0.1,
        pods_max=rng.choice((None, None, 2, 8)),
    )
    for change in CHANGES:
        facts = change(rng, facts)
    return facts


def changed(rng: Random, facts: NodeFacts) -> NodeFacts:
    """Return the Node after one or two changes."""
    for _ in range(rng.choice((1, 1, 2))):
        facts = rng.choice((*CHANGES, *REPAIRS))(rng, facts)
    return facts


def _words(rng: Random, facts: NodeFacts) -> NodeFacts:
    labels = {key: rng.choice("xy") for key in "ab" if rng.random() < 0.6}
    taint = Taint(key=rng.choice("st"), value="", effect=rng.choice(("NoSchedule", "NoExecute")))
    return replace(
        facts,
        labels=labels,
        taints=(taint,) if rng.random() < 0.15 else (),
        unschedulable=rng.random() < 0.1,
    )


def _size(rng: Random, facts: NodeFacts) -> NodeFacts:
    limited = rng.random() < 0.8
    return replace(
        facts,
        cpu_milli=rng.randint(1, 16) * 1000 if limited else None,
        memory_bytes=rng.randint(1, 32) * GIB if limited else None,
    )


def _devices(rng: Random, facts: NodeFacts) -> NodeFacts:
    stock = facts.machine_id or facts.uid
    gpus, models = rng.choice((0, 1, 2, 3, 4, 8)), rng.choices(MODELS, k=rng.choice((1, 1, 2)))
    first, place = rng.choice((0, 0, 1)), rng.random() < 0.5
    cards = [
        DeviceRecord(
            device_type="gpu",
            minor=minor,
            device_id=_id(rng, f"GPU-{stock}-{(minor + first) % 8}"),
            model=rng.choice(models),
            memory_bytes=rng.choice((16 * GIB, 16 * GIB, 1000)),
            healthy=rng.random() < 0.9,
            topology=_place(rng) if place else None,
            unique_id=True,
        )
        for minor in range(gpus)
    ]
    nics = [
        DeviceRecord(
            device_type=kind,
            minor=minor,
            device_id=f"0000:0{minor}",
            healthy=rng.random() < 0.9,
            topology=_place(rng) if place else None,
            vfs=tuple(
                VirtualFunction(minor=n, bus_id=f"0000:0{minor}.{n}") for n in range(minor + 1)
            ),
        )
        for kind in ("fpga", "rdma")
        for minor in range(rng.choice((0, 0, 1, 2)))
    ]
    devices = sorted((*cards, *nics), key=lambda each: (each.device_type, each.minor))
    amounts = {minor: {HUAWEI_NPU_CORE: 8} for minor in range(gpus) if gpus and rng.random() < 0.05}
    return replace(facts, devices=tuple(devices), card_amounts=amounts)


def _id(rng: Random, usual: str) -> str:
    if rng.random() < 0.1:
        return f"GPU-clone-{rng.randint(0, 2)}"
    return "" if rng.random() < 0.05 else usual


def _place(rng: Random) -> DeviceTopology:
    root = rng.choice(ROOTS)
    return DeviceTopology(socket=int(root == "r1"), numa_node=int(root == "r1"), pcie_id=root)


def _cpus(rng: Random, facts: NodeFacts) -> NodeFacts:
    topology: CpuTopology | None = rng.choice(TOPOLOGIES)
    numas = topology.numa_nodes if topology else ()
    zoned = rng.random() < 0.5
    binds = {"tenure.sh/cpu-managed": "true"} if rng.random() < 0.7 else {}
    return replace(
        facts,
        labels={**facts.labels, **binds},
        cpu_topology=topology,
        reserved_cpus=cpuset_of({0} if topology and rng.random() < 0.2 else ()),
        cpu_ref_count_max=rng.choice((1, 1, 2)),
        cpu_bind_policy=rng.choice(("", "", "FullPCPUs", "SpreadByPCPUs")) if topology else "",
        numa_strategy=rng.choice(("", "MostAllocated", "DistributeEvenly")),
        numa_policy=rng.choice((NumaPolicy.NONE, NumaPolicy.NONE, *NumaPolicy)),
        numa_zones=tuple(NumaZone(id=numa, memory_bytes=8 * GIB) for numa in numas if zoned),
        cpu_amplification=rng.choice((Fraction(1), Fraction(1), Fraction(3, 2))),
        kubelet=KubeletPolicy(whole_cores=True) if topology and rng.random() < 0.1 else None,
    )


def _links(rng: Random, facts: NodeFacts) -> NodeFacts:
    count = sum(device.device_type == "gpu" for device in facts.devices)
    links = rng.choice((None, None, islands(8, 4, inside=300.0, between=20.0)))
    if links is None and rng.random() < 0.3:
        links = islands(8, 2, inside=150.0, between=rng.choice((9.0, 20.0)))
    pairs = tuple(GpuPartition(minors=(one, one + 1)) for one in range(0, count - 1, 2))
    return replace(
        facts,
        links=links,
        derived_links=rng.choice((None, islands(8, 4, inside=60.0, between=10.0))),
        partitions=rng.choice((None, None, {2: pairs}, HOPPER_PARTITIONS)),
        honors_partitions=rng.random() < 0.15,
    )


def _dialects(rng: Random, facts: NodeFacts) -> NodeFacts:
    return replace(
        facts,
        dialects=rng.choice((None, None, None, frozenset({Dialect.NVIDIA, Dialect.MGPU}))),
        mgpu_policy=rng.choice(("", "native-burst-share")),
        mgpu_invalid=rng.random() < 0.1,
    )


def _health(rng: Random, facts: NodeFacts) -> NodeFacts:
    return _one_card(rng, facts, lambda card: replace(card, healthy=not card.healthy))


def _card(rng: Random, facts: NodeFacts) -> NodeFacts:
    """Rename a card, shrink it or take it away."""
    match rng.choice(("rename", "shrink", "gone")):
        case "rename":
            name = rng.choice((f"GPU-new-{rng.randint(0, 9)}", "GPU-clone-1"))
            return _one_card(rng, facts, lambda card: replace(card, device_id=name))
        case "shrink":
            return _one_card(
                rng, facts, lambda card: replace(card, memory_bytes=card.memory_bytes // 2)
            )
        case _:
            return _one_card(rng, facts, lambda _: None)


def _one_card(rng: Random, facts: NodeFacts, change: Any) -> NodeFacts:  # noqa: ANN401
    if not facts.devices:
        return facts
    devices = list(facts.devices)
    place = rng.randrange(len(devices))
    devices[place : place + 1] = [each for each in (change(devices[place]),) if each is not None]
    return replace(facts, devices=tuple(devices))


def _lost(rng: Random, facts: NodeFacts) -> NodeFacts:  # noqa: ARG001 - as the others are
    return replace(facts, lost=not facts.lost)


def _machine(rng: Random, facts: NodeFacts) -> NodeFacts:
    machine = rng.choice(("", "m1", "m2"))
    return replace(facts, system_uuid=machine, machine_id=machine)


CHANGES: Final = (_words, _size, _devices, _cpus, _links, _dialects)
REPAIRS: Final = (_health, _health, _card, _card, _lost, _machine)


def seen_on(rng: Random, uid: str, facts: NodeFacts) -> PodObserved:
    """Return a Pod that is seen to hold something of a Node, whether or not it is there."""
    shares: Mapping[tuple[str, int], DeviceShare] = {
        share.key: share for share in (_share(rng, facts) for _ in range(rng.choice((0, 1, 1, 2))))
    }
    cpus = rng.sample(range(8), rng.choice((0, 0, 0, 2, 3)))
    unknown = rng.choice(("rdma", "gpu", "gpu", "gpu")) if rng.random() < 0.2 else ""
    return PodObserved(
        pod_uid=uid,
        attempt=1,
        namespace="ml",
        pod_name=uid,
        node_uid=facts.uid,
        node_name=facts.name,
        source="device-allocated",
        cpu_milli=max(1000 * len(cpus), rng.choice((0, 500, 2000))),
        memory_bytes=rng.choice((0, GIB)),
        shares=tuple(shares[key] for key in sorted(shares)),
        cpuset=cpuset_of(cpus),
        unknown_types=(unknown,) if unknown else (),
        counted={unknown: rng.randint(1, 3)} if unknown and rng.random() < 0.8 else {},
        dialect=rng.choice(("", "mgpu")),
    )


def _share(rng: Random, facts: NodeFacts) -> DeviceShare:
    percent = rng.choice((10, 40, 60, 100))
    known = [each for each in facts.devices if each.device_type == "gpu"]
    strange = not known or rng.random() < 0.15
    minor = rng.randrange(9) if strange else rng.choice(known).minor
    ids = {each.minor: each.device_id for each in known}
    return DeviceShare(
        device_type="gpu",
        minor=minor,
        device_id=_id(rng, ids.get(minor, "GPU-strange")),
        core_percent=percent,
        memory_bytes=percent * 16 * GIB // 100,
        memory_ratio_percent=percent,
        exclusive=percent == 100,
    )
