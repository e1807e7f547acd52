"""The CPU oracle itself: the contract's worked picks, and every recorded pick of the release."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.cpuset import cpuset_of, format_cpuset, parse_cpuset
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.oracles.cpus import Held, Host, Wish, pick
from tests.support.topologies import MACHINE_X, MACHINE_Y

RECORDED = Path(__file__).parents[1] / "samples" / "released_cpu_picks.jsonl.gz"
EXCLUSIVES = {"-": "None", "P": "PCPULevel", "N": "NUMANodeLevel"}

WORKED = """
    1   Full 4    Least -
    2   Full 4    Least -  taken=0-1,12
    3   Full 4    Most  -  taken=0-1,12
    4   Full 5    Least -
    5   Full 16   Least -
    6   Spread 4  Least -
    7   Spread 8  Least -
    8   Spread 6  Most  -  taken=0-1,12-13
    9   Spread 4  Most  P  taken=0-2 cores=0-2
    10  Spread 4  Most  -  taken=0-2 cores=0-2
    11  Full 2    Most  N  taken=0,12 numas=0
    12  Full 2    Most  -  taken=0,12 numas=0
    13  Full 6    Least -  taken=0,2,4,6,8,10
    14  Full 8    Least -  taken=0,2,4,6,8,10
    15  Full 4    Most  -  once=0,12
    16  Full 4    Most  -  taken=0,12 once=1,13
    17  Full 4    Least -  preferred=4-5,16
    18  Full 13   Least -  taken=0-11
"""
"""Contract 6.5, machine X: number, request, strategy, exclusive policy, state."""

RESULTS = """
    0-1,12-13 | 6-7,18-19 | 2-3,14-15 | 0-2,12-13 | 0-7,12-19 | 0-3 | 0-5,12-13 | 6-11 | 6-9
    | 3-5,12 | 6,18 | 1,13 | 1,3,5,13,15,17 | 1,3,5,7,13,15,17,19 | 1-2,13-14 | 2-3,14-15
    | 4-6,16 | error
"""
"""The CPUs of each."""

CASES = list(
    zip(
        filter(None, map(str.strip, WORKED.splitlines())),
        map(str.strip, RESULTS.split("|")),
        strict=True,
    )
)


@pytest.mark.parametrize(("line", "result"), CASES, ids=[line.split()[0] for line, _ in CASES])
def test_the_oracle_gives_the_worked_picks(line: str, result: str) -> None:
    """Koordinator contract 6.5, every row of the table."""
    _, bind, count, strategy, exclusive, *facts = line.split()
    state = {name: ids(text) for name, text in (fact.split("=") for fact in facts)}
    host = Host(MACHINE_X)
    held = Held(
        refs=dict.fromkeys(state.get("once", ()), 1),
        cores=frozenset(host.core[cpu] for cpu in state.get("cores", ())),
        numas=frozenset(state.get("numas", ())),
    )
    wish = Wish(
        count=int(count),
        full=bind == "Full",
        exclusive=EXCLUSIVES[exclusive],
        most=strategy == "Most",
    )
    available = set(host.places) - set(state.get("taken", ()))
    assert text(pick(host, wish, available, held, state.get("preferred", ()))) == result


def test_the_oracle_gives_the_worked_pick_on_machine_y() -> None:
    """Koordinator contract 6.5: one socket's six, then two cores of the other."""
    host = Host(MACHINE_Y)
    chosen = pick(host, Wish(count=10, full=True), set(host.places) - {0, 8, 4, 12}, Held())
    assert text(chosen) == "1-3,5-6,9-11,13-14"


def test_the_oracle_gives_every_recorded_pick_of_the_release() -> None:
    """1,598 picks on 40 machines: SMT 1 to 4, offline CPUs, repeated core ids, shared CPUs."""
    hosts: dict[int, Host] = {}
    checked = 0
    with gzip.open(RECORDED, "rt", encoding="ascii") as lines:
        for entry in map(json.loads, lines):
            if "cpus" in entry:
                hosts[entry["machine"]] = _host(entry["cpus"])
                continue
            answer = "error" if entry["answer"] is None else entry["answer"]
            assert _answered(hosts[entry["machine"]], entry) == answer, entry
            checked += 1
    assert checked == 1598


def _host(cpus: list[list[int]]) -> Host:
    return Host(
        cpu_topology_of(
            Cpu(id=cpu, core=core, socket=socket, numa=numa) for cpu, core, socket, numa in cpus
        )
    )


def _answered(host: Host, entry: dict[str, Any]) -> str:
    held = [(holders, policy, ids(cpus)) for holders, policy, cpus in entry["held"]]
    wish = Wish(
        count=entry["n"],
        full=entry["bind"] == "FullPCPUs",
        exclusive=entry["exclusive"],
        most=entry["strategy"] == "MostAllocated",
    )
    refs = {cpu: holders for holders, _, cpus in held for cpu in cpus}
    chosen = pick(
        host,
        wish,
        ids(entry["available"]),
        Held(
            refs=refs if entry["max_refs"] > 1 else {},
            cores=frozenset(
                host.core[cpu] for _, policy, cpus in held if policy == "PCPULevel" for cpu in cpus
            ),
            numas=frozenset(
                host.places[cpu].numa
                for _, policy, cpus in held
                if policy == "NUMANodeLevel"
                for cpu in cpus
            ),
        ),
        ids(entry["preferred"]),
    )
    return text(chosen)


def ids(cpus: str) -> list[int]:
    """Return the CPUs of a list text."""
    return list(parse_cpuset(cpus))


def text(cpus: Collection[int] | None) -> str:
    """Return the list text of CPUs, or `error`."""
    return "error" if cpus is None else format_cpuset(cpuset_of(cpus))
