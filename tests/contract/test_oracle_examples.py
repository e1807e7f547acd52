"""
The oracles know the documents: each answers the worked examples that it was written from.

What the allocator is held against must itself be right; these are checked by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.topology import LinkMatrix
from scheduler.decide.settings import DeviceSettings, MGPUSettings
from tests.oracles import gpushare, koordinator, links, mgpu, wanted
from tests.oracles.machine import (
    GIB,
    MIB,
    REFUSED,
    UNFIT,
    Ask,
    Device,
    Function,
    Machine,
    Partition,
)
from tests.support.topologies import EIGHT_GPU_NVLINK

LEAST = DeviceSettings(scoring="LeastAllocated")
MOST = DeviceSettings(scoring="MostAllocated")
ANY_VF: Mapping[str, Any] = {"rdma": {"vfSelector": {}}}


def gpu(
    minor: int,
    memory: int = 24 * GIB,
    /,
    *,
    core_used: int = 0,
    memory_used: int = 0,
    numa: int | None = None,
    root: str = "",
) -> Device:
    """Return a GPU; what is used of it is one tenant's, in one container."""
    tenants = int(bool(core_used or memory_used))
    return Device(
        kind="gpu",
        minor=minor,
        memory=memory,
        core_used=core_used,
        memory_used=memory_used,
        tenants=tenants,
        instances=tenants,
        numa=numa,
        root=root,
    )


def minors(answer: object, kind: str = "gpu") -> list[int]:
    """Return which devices of a type were chosen; words for no answer fail the test."""
    assert isinstance(answer, tuple), answer
    return sorted(minor for name, minor in answer[0] if name == kind)


def ask(limits: Mapping[str, int], **annotations: object) -> Ask:
    """Return a Pod of one container; annotations by hint, joint, partition."""
    keys = {"hint": wanted.HINT, "joint": wanted.JOINT, "partition": wanted.PARTITION}
    return Ask(
        containers=(limits,),
        annotations={keys[word]: value for word, value in annotations.items()},
    )


class TestRequests:
    """Koordinator contract 4.2 and 4.4, the worked rows."""

    @pytest.mark.parametrize(
        "limits",
        [
            {wanted.RATIO: 250},
            {wanted.CORE: 100, wanted.RATIO: 100, wanted.SHARED: 3},
            {wanted.CORE: 330, wanted.MEMORY: 60 * GIB, wanted.SHARED: 3},
            {wanted.CORE: 50},
            {wanted.MEMORY: GIB, wanted.RATIO: 10},
            {wanted.SHARED: 1},
            {wanted.NVIDIA: 1, wanted.GPU: 50},
            {wanted.SHARED: 3, wanted.CORE: 90, wanted.MEMORY: 10 * GIB},
            {wanted.UNITS["rdma"]: 150},
        ],
        ids=str,
    )
    def test_what_no_rule_allows_is_refused(self, limits: Mapping[str, int]) -> None:
        """Bad percents, shares that do not divide, keys that do not go together."""
        assert wanted.wants_of(ask(limits)) is None

    @pytest.mark.parametrize(
        ("limits", "count", "each", "whole"),
        [
            ({wanted.NVIDIA: 3}, 3, (100, 100, 0), True),
            ({wanted.GPU: 35}, 1, (35, 35, 0), False),
            ({wanted.RATIO: 300}, 3, (0, 100, 0), True),
            ({wanted.CORE: 90, wanted.RATIO: 60, wanted.SHARED: 3}, 3, (30, 20, 0), False),
            ({wanted.SHARED: 4, wanted.CORE: 200, wanted.RATIO: 240}, 4, (50, 60, 0), False),
            ({wanted.SHARED: 2, wanted.RATIO: 200}, 2, (0, 100, 0), True),
            ({wanted.MEMORY: 10 * GIB}, 1, (0, 0, 10 * GIB), False),
            ({wanted.CORE: 200, wanted.MEMORY: 40 * GIB}, 2, (100, 0, 20 * GIB), False),
        ],
        ids=str,
    )
    def test_the_split_per_device(
        self,
        limits: Mapping[str, int],
        count: int,
        each: tuple[int, int, int],
        whole: bool,  # noqa: FBT001 - a column of the table
    ) -> None:
        """Count, core, ratio and bytes of each, and whether it is a whole card."""
        wants = wanted.wants_of(ask(limits))

        assert wants is not None
        want = wants["gpu"]
        assert (want.count, (want.core, want.ratio, want.memory), want.whole) == (
            count,
            each,
            whole,
        )

    @pytest.mark.parametrize(
        ("units", "hint", "count", "each"),
        [
            (300, {}, 3, 100),
            (5, {}, 1, 5),
            (5, {"allocateStrategy": "RequestsAsCount"}, 5, 1),
            (5, {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, 5, 100),
        ],
    )
    def test_how_many_nics(self, units: int, hint: object, count: int, each: int) -> None:
        """Contract 8.3, the table."""
        wants = wanted.wants_of(ask({wanted.UNITS["rdma"]: units}, hint={"rdma": hint}))

        assert wants is not None
        assert (wants["rdma"].count, wants["rdma"].core) == (count, each)


class TestOrder:
    """Koordinator contract 4.5 and 8.2."""

    @pytest.mark.parametrize(("settings", "minor"), [(LEAST, 1), (MOST, 0)], ids=["least", "most"])
    def test_three_cards_of_40_gib(self, settings: DeviceSettings, minor: int) -> None:
        """Card 0 uses 40 %, ratio 25 is asked: 47 against 87, and 52 against 12."""
        machine = Machine(
            devices=(gpu(0, 40 * GIB, memory_used=16 * GIB), gpu(1, 40 * GIB), gpu(2, 40 * GIB))
        )

        answer = koordinator.expected(machine, ask({wanted.RATIO: 25}), settings)

        assert minors(answer) == [minor]

    def test_mixed_units_do_not_over_commit(self) -> None:
        """Three Pods of 7 GiB on 24 GiB, then ratio 13 = 3350074490 bytes of 3221225472 free."""
        machine = Machine(devices=(gpu(0, memory_used=21 * GIB),))

        assert koordinator.expected(machine, ask({wanted.RATIO: 13}), MOST) == UNFIT
        assert minors(koordinator.expected(machine, ask({wanted.RATIO: 12}), MOST)) == [0]

    def test_a_whole_card_has_no_tenant(self) -> None:
        """512 MiB of 80 GiB are a tenant, though less than 1 %."""
        machine = Machine(devices=(gpu(0, 80 * GIB, memory_used=512 * MIB), gpu(1, 80 * GIB)))

        assert minors(koordinator.expected(machine, ask({wanted.NVIDIA: 1}), MOST)) == [1]


class TestPartitions:
    """Koordinator contract 8.5, the example."""

    @pytest.mark.parametrize(("used", "minor"), [([1, 4], 0), ([4], 0)], ids=str)
    def test_what_leaves_most_behind(self, used: Sequence[int], minor: int) -> None:
        """One GPU out of singles 0 to 4, two pairs and a group of four."""
        groups: dict[int, list[tuple[int, ...]]] = {
            1: [(n,) for n in range(5)],
            2: [(0, 1), (2, 3)],
            4: [(0, 1, 2, 3)],
        }
        machine = Machine(
            devices=tuple(gpu(n, core_used=100 if n in used else 0) for n in range(5)),
            partitions={
                size: [Partition(minors=item) for item in items] for size, items in groups.items()
            },
            honors=True,
        )

        assert minors(koordinator.expected(machine, ask({wanted.NVIDIA: 1}), MOST)) == [minor]


def machine_z() -> Machine:
    """Return the machine of contract 8.6."""
    gpus = [(0, "a0"), (0, "a0"), (0, "a1"), (1, "b0"), (1, "b0")]
    nics = {10: (0, "a0"), 11: (0, "a1"), 12: (1, "b0")}
    return Machine(
        devices=(
            *(gpu(n, numa=numa, root=root) for n, (numa, root) in enumerate(gpus)),
            *(
                Device(
                    kind="rdma",
                    minor=minor,
                    numa=numa,
                    root=root,
                    functions=tuple(
                        Function(bus_id=f"0000:{minor:02x}:01.{n}", use="train") for n in range(2)
                    ),
                )
                for minor, (numa, root) in nics.items()
            ),
        )
    )


def using(machine: Machine, **percent: int) -> Machine:
    """Return the machine with these devices used, by name such as `gpu3`."""
    return replace(
        machine,
        devices=tuple(
            replace(item, core_used=used, memory_used=item.memory * used // 100, tenants=1)
            if (used := percent.get(f"{item.kind}{item.minor}", 0))
            else item
            for item in machine.devices
        ),
    )


BESIDE: Mapping[str, object] = {"deviceTypes": ["gpu", "rdma"]}
SAME: Mapping[str, object] = {**BESIDE, "requiredScope": "SamePCIe"}
Z_ROWS = [
    (2, 1, {}, BESIDE, ([0, 1], [10])),
    (3, 1, {}, BESIDE, ([0, 1, 2], [10, 11])),
    (4, 1, {}, BESIDE, ([0, 1, 2, 3], [10, 11, 12])),
    (1, 1, {"gpu3": 100}, BESIDE, ([4], [12])),
    (1, 1, {"gpu2": 100}, BESIDE, ([0], [10])),
    (3, 1, {"rdma11": 100}, BESIDE, ([0, 1, 2], [10, 12])),
    (3, 1, {"rdma11": 100}, SAME, None),
    (1, 200, {}, BESIDE, ([0], [10, 11])),
]


class TestMachineZ:
    """Koordinator contract 8.6, the table."""

    @pytest.mark.parametrize("row", Z_ROWS, ids=str)
    def test_a_row(
        self,
        row: tuple[int, int, dict[str, int], object, tuple[list[int], list[int]] | None],
    ) -> None:
        """GPUs and NICs side by side, or the rules violated."""
        gpus, nics, used, joint, expected = row
        limits = {wanted.NVIDIA: gpus, wanted.UNITS["rdma"]: nics}

        answer = koordinator.expected(
            using(machine_z(), **used), ask(limits, joint=joint, hint=ANY_VF), LEAST
        )

        if expected is None:
            assert answer == UNFIT
        else:
            assert (minors(answer), minors(answer, "rdma")) == expected

    def test_no_numa_node_holds_four(self) -> None:
        """The error is "Insufficient Topology Scoped GPU Devices"."""
        request = ask({wanted.NVIDIA: 4}, hint={"gpu": {"requiredTopologyScope": "NUMANode"}})

        assert koordinator.expected(machine_z(), request, LEAST) == UNFIT


class TestLinks:
    """GPU-topology proposal, Motivation."""

    def test_the_proposals_matrix(self) -> None:
        """{0,1,2,3} has 48.33; {0,1,2,5} has 15.52, whatever the text says."""
        matrix: LinkMatrix = EIGHT_GPU_NVLINK

        assert links.bottleneck(matrix, (0, 1, 2, 3)) == 48.33
        assert links.bottleneck(matrix, (0, 1, 2, 5)) == 15.52
        assert links.pick(matrix, [(0, 1, 2, 5), (0, 1, 2, 3)], range(8)) == (0, 1, 2, 3)


class TestMGPU:
    """GPU-sharing contract A.3 and A.5."""

    CARDS = Machine(
        devices=(
            gpu(0, 16384 * MIB),
            gpu(1, 16384 * MIB, core_used=30, memory_used=4096 * MIB),
        ),
        mgpu_policy="fixed-share",
    )

    @pytest.mark.parametrize(("policy", "card"), [("binpack", 1), ("spread", 0)])
    def test_two_cards(self, policy: str, card: int) -> None:
        """Binpack takes the used card (0.681250), spread the idle one (0.355750)."""
        request = Ask(containers=({mgpu.CORE: 20, mgpu.MEMORY: 2048},))

        answer = mgpu.expected(self.CARDS, request, MGPUSettings(policy=policy))

        assert answer == [("c0", card, 20, 2048 * MIB)]

    @pytest.mark.parametrize(
        ("limits", "counts"),
        [
            ({mgpu.CORE: -20, mgpu.MEMORY: 6000}, None),
            ({mgpu.CORE: 120, mgpu.MEMORY: 128}, None),
            ({mgpu.CORE: 120}, None),
            ({mgpu.CORE: 200, mgpu.MEMORY: 6000}, None),
            ({mgpu.CORE: 200, mgpu.MEMORY: 6000}, "3,2"),
            ({mgpu.CORE: 200, mgpu.MEMORY: 6000}, "-1,2"),
            ({mgpu.CORE: 200, mgpu.MEMORY: 6000}, "2"),
            ({mgpu.CORE: 130, mgpu.MEMORY: 6000}, "3"),
            ({mgpu.CORE: 50, mgpu.MEMORY: 255}, None),
        ],
        ids=str,
    )
    def test_what_the_proposal_denies(self, limits: Mapping[str, int], counts: str | None) -> None:
        """The proposal's examples of Webhook Admission, and 255 MiB."""
        annotations: dict[str, object] = {} if counts is None else {mgpu.COUNTS: counts}
        request = Ask(containers=(limits,), annotations=annotations)

        assert mgpu.expected(self.CARDS, request, MGPUSettings()) == REFUSED


class TestGpuShare:
    """GPU-share proposal, the figures: cards of 16276 MiB, 8138 MiB asked."""

    REQUEST = Ask(containers=({gpushare.MEMORY: 8138},))

    @pytest.mark.parametrize(
        ("left", "card"),
        [
            ([0, 4069], None),
            ([4069, 4069], None),
            ([8138, 0], 0),
            ([12207, 8138, 4069, 16276], 1),
        ],
        ids=["N1", "N2", "N3", "four cards"],
    )
    def test_a_node(self, left: Sequence[int], card: int | None) -> None:
        """The card with the least left that is enough; the sum over cards is not asked."""
        machine = Machine(
            devices=tuple(
                gpu(minor, 16276 * MIB, memory_used=(16276 - mib) * MIB)
                for minor, mib in enumerate(left)
            )
        )

        answer = gpushare.expected(machine, self.REQUEST, "MiB")

        if card is None:
            assert answer == UNFIT
        else:
            assert set(answer) == {("gpu", card)}
