from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    JointAllocation,
    JointScope,
    LabelSelector,
    PartitionPolicy,
    PartitionSpec,
    TopologyScope,
)
from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.devices import DeviceRecord, DeviceTopology, VirtualFunction
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import quantity_from_int
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import CardView, Placement, Unfit, Unplaced
from scheduler.decide.settings import SchedulingSettings
from tests.support.cards import GIB, part, pod, rdma, whole
from tests.support.machine_z import view_of

ROOTS = ("a0", "a1", "b0")
GOLD = LabelSelector(match_labels=(("tier", "gold"),))
SETTINGS = SchedulingSettings()


@st.composite
def records(draw: st.DrawFn, device_type: str, minor: int, *, placed: bool) -> DeviceRecord:
    """A device somewhere; a NIC with up to two VFs."""
    root = draw(st.sampled_from(ROOTS))
    count = 0 if device_type == "gpu" else draw(st.integers(0, 2))
    tiers = [{"tier": draw(st.sampled_from(["gold", "tin"]))} for _ in range(count)]
    return DeviceRecord(
        device_type=device_type,
        minor=minor,
        device_id=f"{device_type}-{minor}",
        memory_bytes=24 * GIB if device_type == "gpu" else 0,
        healthy=draw(st.sampled_from([True, True, True, False])),
        labels={"tier": draw(st.sampled_from(["gold", "gold", "tin"]))},
        topology=DeviceTopology(numa_node=int(root[0] == "b"), pcie_id=root) if placed else None,
        vfs=tuple(
            VirtualFunction(minor=n, bus_id=f"0000:{minor:02x}:00.{n}", labels=labels)
            for n, labels in enumerate(tiers)
        ),
    )


@st.composite
def machines(draw: st.DrawFn) -> NodeFacts:
    """Up to five GPUs and three NICs, most of them placed; half of them with a partition table."""
    placed = draw(st.sampled_from([True, True, True, False]))
    gpus = [draw(records("gpu", minor, placed=placed)) for minor in range(draw(st.integers(1, 5)))]
    nics = [draw(records("rdma", minor, placed=placed)) for minor in range(draw(st.integers(0, 3)))]
    table = draw(st.none() | tables(len(gpus)))
    return NodeFacts(
        uid="uid-n1",
        name="n1",
        devices=(*gpus, *nics),
        partitions=table,
        honors_partitions=draw(st.booleans()) and draw(st.booleans()),
    )


@st.composite
def tables(draw: st.DrawFn, gpus: int) -> dict[int, tuple[GpuPartition, ...]]:
    """A table of some groups of one or two GPUs, scored and with rings."""
    groups = [*combinations(range(gpus), 1), *combinations(range(gpus), 2)]
    table: dict[int, tuple[GpuPartition, ...]] = {}
    for minors in draw(st.lists(st.sampled_from(groups), unique=True)):
        speed = draw(st.none() | st.sampled_from([100, 300]))
        partition = GpuPartition(
            minors=minors,
            allocation_score=draw(st.integers(0, 2)),
            ring_bus_bandwidth=None if speed is None else quantity_from_int(speed),
        )
        table[len(minors)] = (*table.get(len(minors), ()), partition)
    return table


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    """A Pod for GPUs, NICs or both, with any wishes."""
    gpu = draw(st.none() | gpu_demands())
    nic = draw(st.none() | nic_demands())
    demands = [demand for demand in (gpu, nic) if demand is not None]
    joint = None
    if len(demands) == 2 and draw(st.booleans()):
        types = draw(st.permutations(["gpu", "rdma"]))
        scope = draw(st.sampled_from(list(JointScope)))
        joint = JointAllocation(device_types=tuple(types), required_scope=scope)
    spec = None
    if gpu is not None and draw(st.booleans()) and draw(st.booleans()):
        spec = draw(specs())
    return replace(pod(*demands), joint=joint, partition=spec)


def specs() -> st.SearchStrategy[PartitionSpec]:
    """Any wish about partitions."""
    return st.builds(
        PartitionSpec,
        allocate_policy=st.sampled_from(list(PartitionPolicy)),
        ring_bus_bandwidth=st.none() | st.just(quantity_from_int(200)),
    )


@st.composite
def whole_gpus(draw: st.DrawFn) -> DeviceDemand:
    """One GPU, or two under a scope."""
    if draw(st.booleans()):
        return whole(1)
    scopes = [TopologyScope.UNSET, TopologyScope.NUMA_NODE, TopologyScope.PCIE]
    return with_hint(whole(2), DeviceHint(required_topology_scope=draw(st.sampled_from(scopes))))


@st.composite
def gpu_demands(draw: st.DrawFn) -> DeviceDemand:
    """Whole GPUs, or a part of one, by hint."""
    shared = draw(st.booleans())
    demand = part(40, ratio=40) if shared else whole(draw(st.integers(1, 3)))
    scopes = [TopologyScope.UNSET, TopologyScope.NUMA_NODE, TopologyScope.PCIE]
    return with_hint(
        demand,
        DeviceHint(
            selector=draw(st.none() | st.just(GOLD)),
            required_topology_scope=draw(
                st.sampled_from(scopes if demand.count > 1 else scopes[:1])
            ),
            exclusive_policy=draw(pcie_level()),
        ),
    )


@st.composite
def nic_demands(draw: st.DrawFn) -> DeviceDemand:
    """Parts of NICs or whole ones, by hint."""
    everywhere = draw(st.sampled_from([False, False, True]))
    demand = rdma(5) if everywhere else rdma(draw(st.sampled_from([1, 60, 100])))
    if demand.core_percent == 100:
        demand = replace(demand, count=draw(st.integers(1, 2)))
    strategy = AllocateStrategy.APPLY_FOR_ALL if everywhere else AllocateStrategy.UNSET
    return with_hint(
        replace(demand, exclusive=draw(st.booleans()) and draw(st.booleans())),
        DeviceHint(
            selector=draw(st.none() | st.just(GOLD)),
            vf_selector=draw(st.none() | st.just(LabelSelector()) | st.just(GOLD)),
            allocate_strategy=strategy,
            exclusive_policy=draw(pcie_level()),
        ),
    )


def pcie_level() -> st.SearchStrategy[DeviceExclusivePolicy]:
    """Mostly unset."""
    unset = DeviceExclusivePolicy.UNSET
    return st.sampled_from([unset, unset, DeviceExclusivePolicy.PCIE_LEVEL])


def with_hint(demand: DeviceDemand, hint: DeviceHint) -> DeviceDemand:
    """Return the demand with a hint that says something, else as it is."""
    return demand if hint == DeviceHint() else replace(demand, hint=hint)


@st.composite
def views(draw: st.DrawFn) -> NodeView:
    """A machine with some of its devices and VFs in use, by minor whatever the type."""
    facts = draw(machines())
    used = draw(st.lists(st.integers(0, 4), max_size=3))
    names = [vf.bus_id for record in facts.devices for vf in record.vfs]
    functions = draw(st.lists(st.sampled_from(names), max_size=2)) if names else []
    percent = draw(st.sampled_from([1, 50, 100]))
    return view_of(facts, used=used, percent=percent, functions=functions)


@dataclass(frozen=True, slots=True)
class Oracle:
    """The contract said again over every group of devices; shares no code with the choice."""

    view: NodeView
    request: PodRequest

    def of_type(self, device_type: str) -> list[CardView]:
        """Return the devices of one type."""
        return [card for card in self.view.cards if card.record.device_type == device_type]

    def usable(self, demand: DeviceDemand) -> list[CardView]:
        """Return the devices that can serve one share and pass every filter."""
        hint = demand.hint or DeviceHint()
        cards = self.of_type(demand.device_type)
        dirty = {root(card) for card in cards if card.tenants}
        result = []
        for card in cards:
            labels = card.record.labels
            alone = hint.exclusive_policy is DeviceExclusivePolicy.PCIE_LEVEL
            refusals = (
                not card.record.healthy,
                card.exclusive,
                card.core_free < demand.core_percent,
                card.memory_free < demand.memory_ratio_percent * card.record.memory_bytes // 100,
                demand.exclusive and card.tenants > 0,
                hint.selector is not None and labels["tier"] != "gold",
                alone and (card.tenants > 0 or (root(card) in dirty and root(card) != "")),
                hint.vf_selector is not None and not functions_of(card, hint.vf_selector),
            )
            if not any(refusals):
                result.append(card)
        return result

    def gpu_groups(self, demand: DeviceDemand) -> list[tuple[CardView, ...]]:
        """Return every group of GPUs that the Pod may have."""
        groups = list(combinations(self.usable(demand), demand.count))
        scope = (demand.hint or DeviceHint()).required_topology_scope
        if scope is TopologyScope.PCIE:
            groups = [group for group in groups if len({root(card) for card in group} - {""}) == 1]
            groups = [group for group in groups if "" not in {root(card) for card in group}]
        if scope is TopologyScope.NUMA_NODE:
            groups = [group for group in groups if len({numa(card) for card in group}) == 1]
            groups = [group for group in groups if None not in {numa(card) for card in group}]
        facts, spec = self.view.facts, self.request.partition
        if demand.exclusive and (facts.honors_partitions or spec is not None):
            table = {} if facts.partitions is None else facts.partitions
            legal = {partition.minors for partition in self.legal(table.get(demand.count, ()))}
            groups = [
                group for group in groups if tuple(card.record.minor for card in group) in legal
            ]
        return groups

    def legal(self, partitions: Sequence[GpuPartition]) -> list[GpuPartition]:
        """Return the partitions that the spec's ring and its restriction leave."""
        spec = self.request.partition
        if spec is None:
            return list(partitions)
        best = max((partition.allocation_score for partition in partitions), default=0)
        restricted = spec.allocate_policy is PartitionPolicy.RESTRICTED
        return [
            partition
            for partition in partitions
            if (not restricted or partition.allocation_score == best)
            and (
                spec.ring_bus_bandwidth is None
                or (
                    partition.ring_bus_bandwidth is not None
                    and partition.ring_bus_bandwidth >= spec.ring_bus_bandwidth
                )
            )
        ]

    def rank(self, group: Sequence[CardView]) -> tuple[int, int]:
        """Return how deep the scope is that holds the group, and how many around it are used."""
        gpus = self.of_type("gpu")
        inner = [card for card in gpus if numa(card) == numa(group[0])]
        innermost = [card for card in inner if root(card) == root(group[0])]
        scopes = [scope for scope in (gpus, inner, innermost) if all(c in scope for c in group)]
        return len(scopes), sum(any(card.tenants for card in scope) for scope in scopes)


def root(card: CardView) -> str:
    """Return the PCIe root, empty if unknown."""
    return "" if card.record.topology is None else card.record.topology.pcie_id


def numa(card: CardView) -> int | None:
    """Return the NUMA node, None if unknown."""
    return None if card.record.topology is None else card.record.topology.numa_node


def functions_of(card: CardView, selector: LabelSelector) -> list[str]:
    """Return the VFs of a device that are free and wanted."""
    any_label = selector == LabelSelector()
    return [
        vf.bus_id
        for vf in card.record.vfs
        if vf.bus_id not in card.vfs_in_use and (any_label or vf.labels["tier"] == "gold")
    ]


@given(view=views(), request=requests())
def test_choices_by_hint_agree_with_every_group_there_is(
    view: NodeView, request: PodRequest
) -> None:
    """Feasible exactly when some group is; what is chosen keeps every wish."""
    agree(view, request)


@given(view=views(), gpu=gpu_demands(), nic=nic_demands(), primary=st.sampled_from(["gpu", "rdma"]))
def test_devices_under_the_same_roots_agree_with_every_group_there_is(
    view: NodeView, gpu: DeviceDemand, nic: DeviceDemand, primary: str
) -> None:
    """The same, for Pods that require one set of PCIe roots."""
    types = ("gpu", "rdma") if primary == "gpu" else ("rdma", "gpu")
    joint = JointAllocation(device_types=types, required_scope=JointScope.SAME_PCIE)

    agree(view, replace(pod(gpu, nic), joint=joint))


@given(view=views(), table=tables(5), demand=whole_gpus(), spec=specs())
def test_partitions_agree_with_every_group_there_is(
    view: NodeView,
    table: dict[int, tuple[GpuPartition, ...]],
    demand: DeviceDemand,
    spec: PartitionSpec,
) -> None:
    """The same, for Pods with a partition spec."""
    view = replace(view, facts=replace(view.facts, partitions=table))

    agree(view, replace(pod(demand), partition=spec))


def agree(view: NodeView, request: PodRequest) -> None:
    """Hold the choice against every group of devices there is."""
    oracle = Oracle(view, request)
    by_type = {demand.device_type: demand for demand in request.devices}
    answer = choose(request, view, SETTINGS)

    feasible = True
    if (gpu := by_type.get("gpu")) is not None:
        feasible &= bool(oracle.gpu_groups(gpu))
    if (nic := by_type.get("rdma")) is not None:
        feasible &= len(oracle.usable(nic)) >= least_nics(oracle, nic)
    same = request.joint is not None and request.joint.required_scope is JointScope.SAME_PCIE
    everywhere = nic is not None and is_everywhere(nic)
    if same and not everywhere:
        assert feasible or isinstance(answer, Unfit)  # and the roots may be what fails
    else:
        assert isinstance(answer, Choice) == feasible
    if isinstance(answer, Unfit):
        assert answer.reason
        return
    cards = {card.record.key: card for card in view.cards}
    chosen = {
        name: [cards[share.key] for share in answer.shares if share.device_type == name]
        for name in by_type
    }
    if gpu is not None:
        assert tuple(chosen["gpu"]) in oracle.gpu_groups(gpu)
    if nic is not None:
        usable = oracle.usable(nic)
        assert all(card in usable for card in chosen["rdma"])
        assert len(chosen["rdma"]) >= least_nics(oracle, nic)
        for share in answer.shares:
            wanted = nic.hint.vf_selector if nic.hint and share.device_type == "rdma" else None
            free = [] if wanted is None else functions_of(cards[share.key], wanted)
            assert share.vf_bus_ids == tuple(sorted(free)[:1])
    if same and not everywhere:
        roots = [{root(card) for card in group} for group in chosen.values()]
        assert roots[0] == roots[1]
        assert "" not in roots[0]


def is_everywhere(demand: DeviceDemand) -> bool:
    """Tell whether the demand is for all devices."""
    hint = demand.hint
    return hint is not None and hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL


def least_nics(oracle: Oracle, demand: DeviceDemand) -> int:
    """Return how many NICs the demand needs on this node, as its own count."""
    if not is_everywhere(demand):
        return demand.count
    hint = demand.hint or DeviceHint()
    gold = [
        card
        for card in oracle.of_type("rdma")
        if hint.selector is None or card.record.labels["tier"] == "gold"
    ]
    return max(1, len(gold))


@given(view=views(), demand=gpu_demands())
def test_the_tree_gives_the_deepest_and_fullest_scope(view: NodeView, demand: DeviceDemand) -> None:
    """Over every group of fitting GPUs none is deeper, or as deep with more used around it."""
    view = replace(view, facts=replace(view.facts, partitions=None, honors_partitions=False))
    request = pod(demand)
    oracle = Oracle(view, request)
    groups = oracle.gpu_groups(demand)
    placed = all(card.record.topology is not None for card in oracle.of_type("gpu"))
    answer = choose(request, view, SETTINGS)
    if not groups or not placed:
        return

    assert isinstance(answer, Choice)
    minors = [share.minor for share in answer.shares]
    chosen = [card for card in oracle.of_type("gpu") if card.record.minor in minors]
    assert oracle.rank(chosen) == max(oracle.rank(group) for group in groups)


@given(view=views(), request=requests())
def test_the_order_of_a_partition_table_changes_nothing(
    view: NodeView, request: PodRequest
) -> None:
    """Numbers of GPUs may be listed in any order, and a choice made twice is the same choice."""
    answer = choose(request, view, SETTINGS)
    table = view.facts.partitions
    turned = None if table is None else dict(reversed(list(table.items())))
    again = choose(request, replace(view, facts=replace(view.facts, partitions=turned)), SETTINGS)

    assert again == answer


@given(
    facts=machines(),
    arrivals=st.lists(requests(), min_size=1, max_size=3).flatmap(
        lambda pool: st.lists(st.sampled_from(pool), max_size=9)
    ),
    leaving=st.lists(st.integers(0, 8), max_size=9),
)
def test_nothing_is_promised_twice_and_all_comes_back(
    facts: NodeFacts, arrivals: list[PodRequest], leaving: list[int]
) -> None:
    """Units, bytes, exclusivity and VFs hold after every step; releases restore exactly."""
    engine = Engine([facts, replace(facts, name="n2", uid="uid-n2", devices=())], SETTINGS)
    idle = engine.view(0)
    held: dict[str, Placement] = {}
    for number, arrival in enumerate(arrivals):
        request = replace(arrival, uid=f"uid-{number}")
        answer = engine.decide(request)
        expected = anew(facts, list(held.values())).decide(request)
        if isinstance(answer, Placement) and isinstance(expected, Placement):
            if not request.devices:
                continue
            assert answer.shares == expected.shares
            engine.reserve(answer)
            held[request.uid] = answer
        else:
            assert isinstance(answer, Unplaced)
            assert isinstance(expected, Unplaced)
            assert answer.nodes is not None
            assert expected.nodes is not None
            assert answer.nodes.by_node(("n1", "n2"))["n1"] == expected.nodes.by_node(("n1",))["n1"]
        gone = f"uid-{leaving[number]}" if number < len(leaving) else ""
        if gone in held:
            engine.release(gone)
            del held[gone]
        check(engine.view(0), list(held.values()))
    for uid in list(held):
        engine.release(uid)
    assert engine.view(0) == idle


def anew(facts: NodeFacts, held: Sequence[Placement]) -> Engine:
    """
    Return an engine that remembers nothing, with the one node in the same state.

    A node that is never picked, and what was refused before, must change no answer.
    """
    engine = Engine([facts], SETTINGS)
    for placement in held:
        engine.reserve(placement)
    return engine


def check(view: NodeView, held: Sequence[Placement]) -> None:
    """Hold a node's free amounts against what Pods have of it."""
    shares = [share for placement in held for share in placement.shares]
    assert max(Counter(vf for share in shares for vf in share.vf_bus_ids).values(), default=1) == 1
    for card in view.cards:
        here = [share for share in shares if share.key == card.record.key]
        core = sum(share.core_percent for share in here)
        assert card.core_free == card.record.core_percent - core >= 0
        taken = sum(share.memory_bytes for share in here)
        assert card.memory_free == card.record.memory_bytes - taken >= 0
        assert len(here) == 1 or not any(share.exclusive for share in here)
        assert card.vfs_in_use == {vf for share in here for vf in share.vf_bus_ids}
