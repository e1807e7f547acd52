"""What the kernel says of CPUs where it differs from the ledger, in what people ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.log.drift import CPUS_DIFFER, CPUS_NARROWED, CPUS_NOT_EXCLUSIVE, OVER_HELD
from ledger.domain.log.events import DriftFound, DriftResolved, LedgerEvent, PodReserved
from ledger.store.open import open_ledger
from tenure.asking import Sight
from tenure.kernel import kernel_words
from tests.support.cli import CommandLine
from tests.support.cpu_objects import cpu_node, cpu_pod, simulated
from tests.support.stores import Clock

pytestmark = pytest.mark.integration

JsonObject = dict[str, Any]
NOW_US = 1_900_000_000_000_000


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A ledger in which ml/a has CPUs 0-1,12-13 and ml/b 6,18 of node x."""
    line = CommandLine(ledger=tmp_path / "run.db", capture=capsys)
    simulated(line, [*cpu_node(), cpu_pod("a", "4"), cpu_pod("b", "2", "LSE")])
    return line


def url(line: CommandLine) -> str:
    """Return where the ledger is."""
    return f"sqlite:///{line.ledger}"


def found(line: CommandLine, kind: str, pod: str, cpus: str) -> DriftFound:
    """Return drift of a Pod; one of another node's is nobody's here."""
    with open_ledger(url(line), mode="read") as ledger:
        held = [one.event for one in ledger.read_events() if isinstance(one.event, PodReserved)]
    uids = {one.pod_name: one.pod_uid for one in held}
    return DriftFound(
        drift_id=f"{kind}/{pod}",
        kind=kind,
        node_uid=held[0].node_uid,
        detail=f"ml/{pod} on x: by the kernel {cpus}",
        pod_uid=uids.get(pod, f"uid-{pod}"),
        cpus=parse_cpuset(cpus),
    )


def record(line: CommandLine, *events: LedgerEvent) -> None:
    """Let the scheduler have recorded these."""
    with open_ledger(url(line), mode="write") as ledger:
        head = ledger.head()
        writer = ledger.start_epoch("test", head.origin, "test")
        clock = Clock(NOW_US)
        for event in events:
            writer.append([clock.new(event, key=f"drift-{head.position}-{event}")])


def who(line: CommandLine, cpu: object, *more: str) -> list[str]:
    """Return the kinds that are told of a CPU."""
    document = json.loads(line.ask("who", f"x/cpu/{cpu}", "-o", "json", *more).out)
    return [each["kind"] for each in document.get("kernel", ())]


def test_who_has_a_cpu_by_the_kernel_is_told_below_its_holder(line: CommandLine) -> None:
    """With since when; of a CPU about which both agree, and of what is over, nothing."""
    record(line, found(line, CPUS_DIFFER, "a", "0-3"))
    told = line.ask("who", "x/cpu/2").out
    assert "x/cpu/2 is held by nobody" in told
    assert "CpusDiffer since " in told
    assert "ml/a on x: by the kernel 0-3" in told
    assert [len(who(line, cpu)) for cpu in (0, 2, 12, 6, 23)] == [0, 1, 1, 0, 0]
    assert "CpusDiffer" not in line.ask("who", "x/cpu/0").out
    assert who(line, 2, "--history") == []
    record(line, DriftResolved(drift_id=f"{CPUS_DIFFER}/a", how="no longer so"))
    assert who(line, 2) == []


@pytest.mark.parametrize(
    ("kind", "pod", "cpus", "about"),
    [
        pytest.param(CPUS_NARROWED, "a", "0-1,12", [13], id="one of its own is offline"),
        pytest.param(CPUS_NOT_EXCLUSIVE, "x", "6", [6], id="a Pod that holds nothing"),
        pytest.param(OVER_HELD, "a", "6", [], id="what is not about the kernel"),
    ],
)
def test_each_cpu_is_told_by_what_differs_of_it(
    line: CommandLine, kind: str, pod: str, cpus: str, about: Sequence[int]
) -> None:
    """Held by the ledger and not given, or given and not held."""
    record(line, found(line, kind, pod, cpus))
    assert [cpu for cpu in range(24) if who(line, cpu)] == about


def test_the_map_and_why_tell_it_too(line: CommandLine) -> None:
    """Below the node, and below the Pod that it is about; as data with the CPUs."""
    record(line, found(line, CPUS_DIFFER, "a", "0-3"), found(line, CPUS_NOT_EXCLUSIVE, "x", "6"))
    drawn = line.ask("map", "--cpus").out
    assert "  ! CpusDiffer since " in drawn
    assert max(map(len, drawn.splitlines())) <= 80
    [node] = json.loads(line.ask("map", "--cpus", "-o", "json").out)
    assert [(each["kind"], each["cpuset"]) for each in node["kernel"]] == [
        (CPUS_DIFFER, "0-3"),
        (CPUS_NOT_EXCLUSIVE, "6"),
    ]
    assert "CpusDiffer since " in line.ask("why", "ml/a").out
    story: JsonObject = json.loads(line.ask("why", "ml/a", "-o", "json").out)
    assert [each["kind"] for each in story["kernel"]] == [CPUS_DIFFER]
    assert "kernel" not in json.loads(line.ask("why", "ml/b", "-o", "json").out)
    assert "Cpus" not in line.ask("why", "ml/b").out


def test_where_both_agree_nothing_is_said(line: CommandLine) -> None:
    """No word of a kernel, in any form."""
    for command in (("who", "x/cpu/13"), ("map", "--cpus"), ("why", "ml/a")):
        for form in ("table", "json"):
            assert "kernel" not in line.ask(*command, "-o", form).out


def test_whoever_sees_one_namespace_is_told_of_its_pods_alone(line: CommandLine) -> None:
    """A Pod that the ledger does not know has no namespace there."""
    record(line, found(line, CPUS_DIFFER, "a", "0-3"), found(line, CPUS_NOT_EXCLUSIVE, "x", "6"))
    with open_ledger(url(line), mode="read") as ledger, ledger.connection.begin():
        kinds = {
            name: [one.row.kind for one in kernel_words(ledger, Sight(namespace=name))]
            for name in ("", "ml", "other")
        }
    assert kinds == {"": [CPUS_DIFFER, CPUS_NOT_EXCLUSIVE], "ml": [CPUS_DIFFER], "other": []}
