"""
What every allocator of devices and CPUs on one node owes its caller, whatever its preferences.

A new allocator is one more line in `CARD_ALLOCATORS` or `CPU_ALLOCATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pytest

from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of, parse_cpuset
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, DeviceDemand, PodRequest
from ledger.domain.topology import CpuTopology
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.cpusets.choose import choose_cpus
from scheduler.decide.cpusets.pinned import CpuHolding, Pinned, pinned_of
from scheduler.decide.outcome import Unfit
from scheduler.decide.settings import DeviceSettings, MGPUSettings, SchedulingSettings
from tests.support.cards import (
    GIB,
    MIB,
    card,
    gpushare_pod,
    mgpu_pod,
    nic,
    node_of,
    part,
    pod,
    rdma,
    whole,
)
from tests.support.topologies import MACHINE_X, MACHINE_Y

CardAllocator = Callable[[PodRequest, NodeView, SchedulingSettings], Choice | Unfit]
CpuAllocator = Callable[[CpuSetDemand, NodeFacts, Pinned], CpuSet | Unfit]

CARD_ALLOCATORS: Final = (pytest.param(choose, id="the plain card choice"),)
CPU_ALLOCATORS: Final = (pytest.param(choose_cpus, id="the picker"),)

SETTINGS: Final = (
    pytest.param(SchedulingSettings(), id="packing"),
    pytest.param(
        SchedulingSettings(
            devices=DeviceSettings(scoring="LeastAllocated"), mgpu=MGPUSettings(policy="spread")
        ),
        id="spreading",
    ),
)

REQUESTS: Final = (
    pytest.param(pod(whole(1), dialect=Dialect.NVIDIA), id="one whole card"),
    pytest.param(pod(whole(3), dialect=Dialect.NVIDIA), id="three whole cards"),
    pytest.param(pod(part(30, ratio=30)), id="part by ratio"),
    pytest.param(pod(part(30, memory=7 * GIB)), id="part by bytes"),
    pytest.param(pod(part(20, ratio=40, count=2)), id="parts of two cards"),
    pytest.param(pod(whole(1), rdma(50)), id="card and NIC"),
    pytest.param(mgpu_pod(part(40, memory=GIB), part(70, memory=GIB)), id="two mGPU containers"),
    pytest.param(mgpu_pod(whole(2)), id="whole mGPU cards"),
    pytest.param(gpushare_pod(8138 * MIB), id="GPU share"),
)


def busy_node() -> NodeView:
    """Return a node with an idle, a used, a held, a closed and two more idle cards, and NICs."""
    return node_of(
        card(0),
        card(1, core_used=50, memory_used=20 * GIB),
        card(2, core_used=10, exclusive=True),
        card(3, closed=True),
        card(4, memory_bytes=24 * GIB),
        card(5),
        nic(0, used=80),
        nic(1),
    )


@pytest.mark.parametrize("allocate", CARD_ALLOCATORS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("request_", REQUESTS)
class TestCardAllocator:
    """Guarantees of `(request, node, settings) -> Choice | Unfit`."""

    def test_what_it_chooses_fits(
        self, allocate: CardAllocator, settings: SchedulingSettings, request_: PodRequest
    ) -> None:
        """Every share is on an open card that has that much left, alone if it must be."""
        node = busy_node()
        cards = {view.record.key: view for view in node.cards}

        answer = allocate(request_, node, settings)

        assert isinstance(answer, Choice), answer
        for share in answer.shares:
            view = cards[share.key]
            assert not view.closed
            assert not view.exclusive
            assert share.core_percent <= view.core_free
            assert share.memory_bytes <= view.memory_free
            assert view.tenants == 0 or not share.exclusive
            assert share.device_id == view.record.device_id

    def test_it_gives_what_was_asked(
        self, allocate: CardAllocator, settings: SchedulingSettings, request_: PodRequest
    ) -> None:
        """As many parts of devices of each type as demanded, ordered, one share per device."""
        answer = allocate(request_, busy_node(), settings)

        assert isinstance(answer, Choice), answer
        keys = [share.key for share in answer.shares]
        assert keys == sorted(set(keys))
        for device_type in {demand.device_type for demand in request_.devices}:
            shares = [share for share in answer.shares if share.device_type == device_type]
            demands = [item for item in request_.devices if item.device_type == device_type]
            assert sum(share.core_percent for share in shares) == sum(
                demand.count * demand.core_percent for demand in demands
            )
            assert len(shares) <= sum(demand.count for demand in demands)
            assert len(shares) >= max(demand.count for demand in demands)

    def test_the_same_node_gives_the_same_answer(
        self, allocate: CardAllocator, settings: SchedulingSettings, request_: PodRequest
    ) -> None:
        """Equal values, equal answer, and nothing that was given is changed."""
        node = busy_node()

        assert allocate(request_, node, settings) == allocate(request_, busy_node(), settings)
        assert node == busy_node()

    def test_a_node_without_devices_refuses_for_good(
        self, allocate: CardAllocator, settings: SchedulingSettings, request_: PodRequest
    ) -> None:
        """No device of the type at all: preemption can't help (Koordinator contract 13)."""
        answer = allocate(request_, node_of(), settings)

        assert isinstance(answer, Unfit)
        assert not answer.preemptible

    def test_a_full_node_refuses_for_now(
        self, allocate: CardAllocator, settings: SchedulingSettings, request_: PodRequest
    ) -> None:
        """Everything held: preemption could help."""
        full = node_of(
            *(card(minor, core_used=100, memory_used=40 * GIB) for minor in range(4)),
            nic(0, used=100),
        )

        answer = allocate(request_, full, settings)

        assert isinstance(answer, Unfit)
        assert answer.preemptible
        assert answer.reason


@pytest.mark.parametrize("allocate", CARD_ALLOCATORS)
def test_nothing_asked_is_nothing_chosen(allocate: CardAllocator) -> None:
    """A Pod without devices fits every node."""
    demands: tuple[DeviceDemand, ...] = ()

    assert allocate(pod(*demands), busy_node(), SchedulingSettings()) == Choice()


CPU_DEMANDS: Final = tuple(
    pytest.param(policy, required, cpus, id=f"{cpus} CPUs, {text} {policy}")
    for policy in ("FullPCPUs", "SpreadByPCPUs")
    for required, text in ((True, "required"), (False, "preferred"))
    for cpus in (2, 4, 6)
)
HELD: Final = "1,4,8"
RESERVED: Final = "0"


def held_by(
    machine: CpuTopology, refs: Mapping[int, int], *, reserved: CpuSet = EMPTY, most: int = 1
) -> tuple[NodeFacts, Pinned]:
    """Return a node with these CPUs held so many times, by Pods without wishes."""
    node = NodeFacts(
        uid="n-0",
        name="n-0",
        cpu_topology=machine,
        reserved_cpus=reserved,
        cpu_ref_count_max=most,
    )
    holdings = [CpuHolding(cpus=1 << cpu) for cpu, count in refs.items() for _ in range(count)]
    return node, pinned_of(node, holdings)


@pytest.mark.parametrize("allocate", CPU_ALLOCATORS)
@pytest.mark.parametrize("machine", [MACHINE_X, MACHINE_Y], ids=["machine X", "machine Y"])
@pytest.mark.parametrize(("policy", "required", "cpus"), CPU_DEMANDS)
class TestCpuAllocator:
    """Guarantees of `(demand, node, pinned) -> CpuSet | Unfit`."""

    def test_it_takes_exactly_so_many_available_cpus(
        self,
        allocate: CpuAllocator,
        machine: CpuTopology,
        policy: str,
        required: bool,  # noqa: FBT001 - a column of the table
        cpus: int,
    ) -> None:
        """None that is held or reserved, all of the machine, and the required policy holds."""
        held, reserved = parse_cpuset(HELD), parse_cpuset(RESERVED)
        demand = CpuSetDemand(
            cpus=cpus, bind_policy=policy, required=required, exclusive_policy="None"
        )

        answer = allocate(demand, *held_by(machine, dict.fromkeys(held, 1), reserved=reserved))

        assert isinstance(answer, CpuSet), answer
        assert len(answer) == cpus
        assert answer <= machine.cpuset - held - reserved
        if required:
            parts = [answer & machine.cpus_in_core(core) for core in machine.cores]
            if policy == "FullPCPUs":
                assert all(
                    not cpu or cpu == machine.cpus_in_core(core)
                    for core, cpu in zip(machine.cores, parts, strict=True)
                )
            else:
                assert all(len(cpu) <= 1 for cpu in parts)

    def test_the_last_cpus_can_be_had(
        self,
        allocate: CpuAllocator,
        machine: CpuTopology,
        policy: str,
        required: bool,  # noqa: FBT001 - a column of the table
        cpus: int,
    ) -> None:
        """What is left is found wherever it is: whole cores or one thread per core."""
        step = 2 if policy == "FullPCPUs" else 1
        left = cpuset_of(
            cpu
            for core in machine.cores[-(cpus // step) :]
            for cpu in list(machine.cpus_in_core(core))[:step]
        )
        held = dict.fromkeys(machine.cpuset - left, 1)
        demand = CpuSetDemand(
            cpus=cpus, bind_policy=policy, required=required, exclusive_policy="None"
        )

        assert allocate(demand, *held_by(machine, held)) == left

    def test_a_full_machine_refuses_for_now(
        self,
        allocate: CpuAllocator,
        machine: CpuTopology,
        policy: str,
        required: bool,  # noqa: FBT001 - a column of the table
        cpus: int,
    ) -> None:
        """Every CPU at its reference limit: preemption could help."""
        demand = CpuSetDemand(
            cpus=cpus, bind_policy=policy, required=required, exclusive_policy="None"
        )

        answer = allocate(demand, *held_by(machine, dict.fromkeys(machine.cpuset, 2), most=2))

        assert isinstance(answer, Unfit)
        assert answer.preemptible


@pytest.mark.parametrize("allocate", CPU_ALLOCATORS)
def test_cpus_below_the_reference_limit_are_available(allocate: CpuAllocator) -> None:
    """Koordinator contract 6.3: with a limit of 2 a CPU held once can be had again."""
    demand = CpuSetDemand(cpus=24, bind_policy="FullPCPUs", required=True, exclusive_policy="None")

    assert (
        allocate(demand, *held_by(MACHINE_X, dict.fromkeys(MACHINE_X.cpuset, 1), most=2))
        == MACHINE_X.cpuset
    )
