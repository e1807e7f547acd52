from __future__ import annotations

import math
from itertools import combinations

import pytest

from ledger.domain.cpuset import cpuset_of
from ledger.domain.errors import InputError
from ledger.domain.topology import (
    CoreId,
    Cpu,
    CpuTopology,
    LinkMatrix,
    cpu_topology_of,
    format_link_matrix,
    link_matrix_of,
    parse_link_matrix,
)
from tests.support.topologies import (
    EIGHT_GPU_DEVICE_TEXT,
    EIGHT_GPU_NVLINK,
    MACHINE_X,
    MACHINE_Y,
)


def test_machine_x_is_the_contracts() -> None:
    """Koordinator contract 6.5: node 0 = 0-5,12-17, node 1 = 6-11,18-23, i and i+12 one core."""
    assert len(MACHINE_X) == 24
    assert MACHINE_X.sockets == (0,)
    assert MACHINE_X.numa_nodes == (0, 1)
    assert len(MACHINE_X.cores) == 12
    assert MACHINE_X.threads_per_core == 2
    assert MACHINE_X.cpus_per_socket == 24
    assert str(MACHINE_X.cpus_in_numa(0)) == "0-5,12-17"
    assert str(MACHINE_X.cpus_in_numa(1)) == "6-11,18-23"
    assert str(MACHINE_X.cpus_in_core(CoreId(0, 3))) == "3,15"
    assert str(MACHINE_X.cpus_in_socket(0)) == "0-23" == str(MACHINE_X.cpuset)


def test_machine_y_is_the_contracts() -> None:
    """Koordinator contract 6.5: cores 0 and 4 are CPUs 0,8 and 4,12 on two sockets."""
    assert MACHINE_Y.sockets == MACHINE_Y.numa_nodes == (0, 1)
    assert str(MACHINE_Y.cpus_in_core(CoreId(0, 0)) | MACHINE_Y.cpus_in_core(CoreId(1, 4))) == (
        "0,4,8,12"
    )
    assert str(MACHINE_Y.cpus_in_socket(1)) == "4-7,12-15"


def test_a_core_is_told_apart_by_its_socket() -> None:
    """Core ids may repeat per socket (Koordinator contract 2.4)."""
    topology = cpu_topology_of(
        [Cpu(id=0, core=0, socket=0, numa=0), Cpu(id=1, core=0, socket=1, numa=1)]
    )

    assert topology.cores == (CoreId(0, 0), CoreId(1, 0))
    assert topology.threads_per_core == 1
    assert topology.cpu(1).core_id == CoreId(1, 0)


def test_order_of_input_does_not_matter() -> None:
    """CPUs are sorted by id, so equal machines are equal values."""
    assert cpu_topology_of(reversed(MACHINE_X.cpus)) == MACHINE_X
    assert hash(cpu_topology_of(reversed(MACHINE_X.cpus))) == hash(MACHINE_X)


def test_unknown_places_are_empty() -> None:
    """Asking for a node the machine lacks is no error; asking for such a CPU is."""
    assert not MACHINE_X.cpus_in_numa(7)
    assert not MACHINE_X.cpus_in_socket(7)
    assert not MACHINE_X.cpus_in_core(CoreId(7, 0))
    with pytest.raises(KeyError):
        MACHINE_X.cpu(99)


def test_no_cpus_are_a_topology_too() -> None:
    """A node may report none; it then counts as having no topology."""
    none = CpuTopology(cpus=())

    assert not none
    assert not none.cpuset
    assert (none.threads_per_core, none.cpus_per_socket) == (0, 0)


@pytest.mark.parametrize(
    ("ids", "fact"),
    [([0, 0], "two CPUs have one id: id=0"), ([-1], "not a CPU id"), ([4097], "not a CPU id")],
    ids=["a repeated id", "a negative id", "an id above the limit"],
)
def test_broken_topologies_are_refused(ids: list[int], fact: str) -> None:
    """The message names the id."""
    with pytest.raises(InputError, match=fact):
        cpu_topology_of(Cpu(id=number, core=number, socket=0, numa=0) for number in ids)


def test_cores_cover_the_machine_without_overlap() -> None:
    """Sets by core, NUMA node and socket are three partitions of the CPUs."""
    for machine in (MACHINE_X, MACHINE_Y):
        for parts in (
            [machine.cpus_in_core(core) for core in machine.cores],
            [machine.cpus_in_numa(numa) for numa in machine.numa_nodes],
            [machine.cpus_in_socket(socket) for socket in machine.sockets],
        ):
            assert sorted(cpu for part in parts for cpu in part) == list(machine.cpuset)
            assert all(a.isdisjoint(b) for a, b in combinations(parts, 2))
    assert cpuset_of(range(24)) == MACHINE_X.cpuset


def test_the_proposals_example_group_has_its_bottleneck() -> None:
    """
    GPUs 0-3 reach 48.33 GB/s, as the proposal's Motivation says.

    Its second number, 4.64, is the link from 1 to 4; the group it names holds 5 instead of 4,
    whose slowest link is 15.52.
    """
    assert EIGHT_GPU_NVLINK.bottleneck_gbps([0, 1, 2, 3]) == 48.33
    assert EIGHT_GPU_NVLINK.bottleneck_gbps([0, 1, 2, 4]) == 4.64
    assert EIGHT_GPU_NVLINK.bottleneck_gbps([0, 1, 2, 5]) == 15.52


def test_a_link_counts_at_its_slower_direction() -> None:
    """4 to 0 is slower than 0 to 4."""
    assert EIGHT_GPU_NVLINK.rows[0][4] == 15.77
    assert EIGHT_GPU_NVLINK.bandwidth_gbps(0, 4) == EIGHT_GPU_NVLINK.bandwidth_gbps(4, 0) == 5.0


def test_groups_without_a_link_have_no_bottleneck() -> None:
    """The diagonal is not read."""
    assert EIGHT_GPU_NVLINK.bottleneck_gbps([]) == math.inf
    assert EIGHT_GPU_NVLINK.bottleneck_gbps([3]) == math.inf


def test_the_proposals_device_text_is_read() -> None:
    """Row = from, column = to; text and value are each other's inverse."""
    matrix = parse_link_matrix(EIGHT_GPU_DEVICE_TEXT)

    assert len(matrix) == 8
    assert matrix.rows[2][3] == 6.02
    assert matrix.rows[3][2] == 96.48
    assert matrix.bandwidth_gbps(3, 2) == 6.02
    assert parse_link_matrix(format_link_matrix(matrix)) == matrix
    assert format_link_matrix(matrix) == EIGHT_GPU_DEVICE_TEXT


def test_integers_are_bandwidths_too() -> None:
    """The contract's example is a matrix of integers; no GPUs are an empty matrix."""
    assert parse_link_matrix("[[0,1],[1,0]]") == LinkMatrix(rows=((0.0, 1.0), (1.0, 0.0)))
    assert format_link_matrix(parse_link_matrix("[[0,1],[1,0]]")) == "[[0,1],[1,0]]"
    assert parse_link_matrix("[]") == LinkMatrix(rows=())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[1,2],[3]]",
        "[[1,2]]",
        "[1,2]",
        "{}",
        "[[1,-2],[3,4]]",
        '[["1"]]',
        "[[true]]",
        "[[null]]",
        "[[NaN]]",
        "[[1e999]]",
        "[[1,2],[3,4]",
        "[" * 100_000,
    ],
    ids=[
        "no text",
        "a ragged matrix",
        "more columns than rows",
        "a flat list",
        "an object",
        "a negative bandwidth",
        "a bandwidth as text",
        "a boolean",
        "null",
        "NaN",
        "infinity",
        "an open bracket",
        "absurd nesting",
    ],
)
def test_other_texts_are_no_matrix(text: str) -> None:
    """The error says what is wrong; nothing is guessed."""
    with pytest.raises(InputError):
        parse_link_matrix(text)


def test_rows_may_come_decoded() -> None:
    """A Device read from YAML may hold the matrix itself."""
    assert link_matrix_of([[0, 2.5], [2.5, 0]]).bottleneck_gbps([0, 1]) == 2.5
