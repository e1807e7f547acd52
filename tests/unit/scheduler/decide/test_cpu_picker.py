from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.cpuset import CpuSet, format_cpuset, parse_cpuset
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.layout import CpuLayout, layout_of, lowest
from scheduler.decide.cpusets.picker import CpusHeld, PickRequest, pick
from tests.support.topologies import MACHINE_X, MACHINE_Y

X = layout_of(MACHINE_X)
Y = layout_of(MACHINE_Y)
RECORDED = Path(__file__).parents[3] / "samples" / "released_cpu_picks.jsonl.gz"


def mask(text: str) -> int:
    """Return the CPUs of a list text as bits."""
    return parse_cpuset(text).mask


def full(count: int, **more: bool) -> PickRequest:
    """Return a FullPCPUs request, LeastAllocated unless told."""
    return PickRequest(count=count, full_cores=True, **more)


def spread(count: int, **more: bool) -> PickRequest:
    """Return a SpreadByPCPUs request, LeastAllocated unless told."""
    return PickRequest(count=count, full_cores=False, **more)


def picked(
    request: PickRequest,
    taken: str = "",
    *,
    layout: CpuLayout = X,
    held: CpusHeld | None = None,
    preferred: str = "",
) -> str | None:
    """Return the list text of what is picked where `taken` is not available."""
    available = layout.cpus & ~mask(taken)
    chosen = pick(layout, request, available, held or CpusHeld(), preferred=mask(preferred))
    return None if chosen is None else format_cpuset(CpuSet(mask=chosen))


def refs(once: str, twice: str = "") -> CpusHeld:
    """Return holders of CPUs that may have two."""
    count = dict.fromkeys(parse_cpuset(once), 1) | dict.fromkeys(parse_cpuset(twice), 2)
    return CpusHeld(refs=count)


NODE_0_EXCLUSIVE = CpusHeld(exclusive_numas=mask("0-5,12-17"))
THREE_CORES_EXCLUSIVE = CpusHeld(exclusive_cores=mask("0-2,12-14"))
ODD_CORES = "0,2,4,6,8,10"

WORKED_PICKS: list[Any] = [
    # pick, request, taken, held, preferred, result
    ("1: a tie goes to node 0", full(4), "", None, "", "0-1,12-13"),
    ("2: whole cores count", full(4), "0-1,12", None, "", "6-7,18-19"),
    ("3: the fuller node", full(4, most_allocated=True), "0-1,12", None, "", "2-3,14-15"),
    ("4: the head of the core list", full(5), "", None, "", "0-2,12-13"),
    ("5: one socket", full(16), "", None, "", "0-7,12-19"),
    ("6: a thread of each core", spread(4), "", None, "", "0-3"),
    ("7: doubles up in the node", spread(8), "", None, "", "0-5,12-13"),
    ("8: a core for each", spread(6, most_allocated=True), "0-1,12-13", None, "", "6-11"),
    (
        "9: clean cores for PCPULevel",
        spread(4, most_allocated=True, avoid_cores=True),
        "0-2",
        THREE_CORES_EXCLUSIVE,
        "",
        "6-9",
    ),
    (
        "10: None ignores what others wish",
        spread(4, most_allocated=True),
        "0-2",
        THREE_CORES_EXCLUSIVE,
        "",
        "3-5,12",
    ),
    (
        "11: a clean node for NUMANodeLevel",
        full(2, most_allocated=True, avoid_numas=True),
        "0,12",
        NODE_0_EXCLUSIVE,
        "",
        "6,18",
    ),
    ("12: None", full(2, most_allocated=True), "0,12", NODE_0_EXCLUSIVE, "", "1,13"),
    ("13: clean cores of node 0", full(6), ODD_CORES, None, "", "1,3,5,13,15,17"),
    ("14: clean cores of the socket", full(8), ODD_CORES, None, "", "1,3,5,7,13,15,17,19"),
    ("15: fewest holders", full(4, most_allocated=True), "", refs("0,12"), "", "1-2,13-14"),
    (
        "16: out at the limit",
        full(4, most_allocated=True),
        "0,12",
        refs("1,13", "0,12"),
        "",
        "2-3,14-15",
    ),
    ("17: the rest starts anew", full(4), "", None, "4-5,16", "4-6,16"),
    ("18: more than there are", full(13), "0-11", None, "", None),
]


@pytest.mark.parametrize(
    ("request_", "taken", "held", "preferred", "expected"),
    [pytest.param(*row[1:], id=row[0]) for row in WORKED_PICKS],
)
def test_worked_picks_on_machine_x(
    request_: PickRequest, taken: str, held: CpusHeld | None, preferred: str, expected: str | None
) -> None:
    """Koordinator contract 6.5, every row of the table."""
    assert picked(request_, taken, held=held, preferred=preferred) == expected


def test_the_worked_pick_on_machine_y() -> None:
    """Koordinator contract 6.5: one socket's six, then two cores of the other."""
    assert picked(full(10), "0,8,4,12", layout=Y) == "1-3,5-6,9-11,13-14"


def test_nothing_asked_is_nothing_picked() -> None:
    """Contract 6.4, stage 0."""
    assert picked(full(0)) == ""
    assert picked(spread(-1)) == ""


def test_an_odd_cpu_over_several_sockets_is_exactly_one() -> None:
    """
    Nine CPUs of four sockets with six each, two sockets in use by halves.

    The release hands out a whole core for the odd CPU here, ten in all; contract 6.4 (1d) stops
    as soon as less than a core is needed.
    """
    machine = cpu_topology_of(
        Cpu(id=cpu, core=cpu // 2, socket=cpu // 6, numa=cpu // 6) for cpu in range(24)
    )
    assert picked(full(9), layout=layout_of(machine)) == "0-8"


@pytest.mark.parametrize("cpus", [1, 2, 3, 64, 255])
def test_lowest_takes_that_many_from_below(cpus: int) -> None:
    """All of a mask that has no more."""
    everything = (1 << 256) - 1

    assert lowest(everything, cpus) == (1 << cpus) - 1
    assert lowest(0b1011 << 40, 2) == 0b11 << 40
    assert lowest(0b1011, 9) == 0b1011


def recorded() -> Iterator[tuple[CpuLayout, Mapping[str, Any]]]:
    """Yield (machine, pick) as the released allocator answered."""
    machines: dict[int, CpuLayout] = {}
    with gzip.open(RECORDED, "rt", encoding="ascii") as lines:
        for line in lines:
            entry = json.loads(line)
            if "cpus" in entry:
                machines[entry["machine"]] = layout_of(_topology(entry["cpus"]))
            else:
                yield machines[entry["machine"]], entry


def _topology(cpus: list[list[int]]) -> CpuTopology:
    return cpu_topology_of(
        Cpu(id=cpu, core=core, socket=socket, numa=numa) for cpu, core, socket, numa in cpus
    )


def _held(layout: CpuLayout, pick_: Mapping[str, Any]) -> CpusHeld:
    counts: dict[int, int] = {}
    cores = numas = 0
    for holders, exclusive, cpus in pick_["held"]:
        for cpu in parse_cpuset(cpus):
            counts[cpu] = holders
            if exclusive == "PCPULevel":
                cores |= layout.core_cpus[cpu]
            elif exclusive == "NUMANodeLevel":
                numas |= layout.numa_cpus[cpu]
    shared = pick_["max_refs"] > 1
    return CpusHeld(refs=counts if shared else {}, exclusive_cores=cores, exclusive_numas=numas)


def test_every_recorded_pick_of_the_released_allocator_is_ours_too() -> None:
    """1,598 picks on 40 machines: SMT 1 to 4, offline CPUs, repeated core ids, shared CPUs."""
    checked = 0
    for layout, pick_ in recorded():
        request = PickRequest(
            count=pick_["n"],
            full_cores=pick_["bind"] == "FullPCPUs",
            most_allocated=pick_["strategy"] == "MostAllocated",
            avoid_cores=pick_["exclusive"] == "PCPULevel",
            avoid_numas=pick_["exclusive"] == "NUMANodeLevel",
        )
        available, preferred = mask(pick_["available"]), mask(pick_["preferred"])

        chosen = pick(layout, request, available, _held(layout, pick_), preferred=preferred)

        answer = None if chosen is None else format_cpuset(CpuSet(mask=chosen))
        assert answer == pick_["answer"], pick_
        checked += 1
    assert checked == 1598
