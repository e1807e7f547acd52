"""`tenure simulate` over a cluster of a plain device plugin: what runs is known by number alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import PodReserved
from ledger.store.open import open_ledger
from tests.support.cli import Answer, CommandLine
from tests.support.objects import Object, container, node, pod

pytestmark = pytest.mark.integration

NOW = ("--now", "2026-03-02T00:00:00Z")
UNKNOWN = "node(s) have a Pod on an unknown card"
HALF = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
REQUIRED = '{"gpu": {"requiredTopologyScope": "PCIe"}}'
GANG = {"name": "g", "min-available": "2"}


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def plugin_node(name: str = "n1", gpus: int = 8) -> Object:
    """Return a node whose device plugin tells a number, and nothing else."""
    return node(name, allocatable={"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": gpus})


def parted_node(name: str, units: int, **labels: str) -> Object:
    """Return a node whose device plugin hands out parts of cards as if they were cards."""
    told = {f"nvidia.com/{key.replace('_', '.')}": value for key, value in labels.items()}
    told = {key.replace("sharing.", "sharing-"): value for key, value in told.items()}
    quantities = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": units}
    return node(name, allocatable=quantities, labels=told)


def a_pod(name: str, gpus: int, **more: Any) -> Object:  # noqa: ANN401 - whatever else a Pod has
    """Return a Pod of whole cards."""
    return asking(name, {"nvidia.com/gpu": gpus}, **more)


def asking(name: str, limits: Object, **more: Any) -> Object:  # noqa: ANN401 - whatever else a Pod has
    """Return a Pod with these limits."""
    return pod(container(limits=limits), name=name, uid=name, **more)


def runs(name: str, gpus: int, on: str = "n1") -> Object:
    """Return a Pod that kubelet gave its cards."""
    return a_pod(name, gpus, nodeName=on, phase="Running")


def simulated(line: CommandLine, *objects: Object, more: tuple[str, ...] = ()) -> Answer:
    """Run these objects into the ledger of the line."""
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    answer = line.ask("simulate", str(path), *NOW, "-o", "json", *more)
    assert answer.code == 0, answer.err
    return answer


def places(answer: Answer) -> dict[str, tuple[str | None, int]]:
    """Return where each Pod goes, and how many cards it gets by number."""
    told = json.loads(answer.out)["placements"]
    return {each["name"]: (each["node"], each["counted"].get("gpu", 0)) for each in told}


def why_not(answer: Answer, name: str) -> dict[str, list[str]]:
    """Return why a Pod has no place, node by node."""
    told = json.loads(answer.out)["placements"]
    (refused,) = [each["unschedulable"] for each in told if each["name"] == name]
    nodes: dict[str, list[str]] = refused["nodes"]
    return nodes


def test_one_of_eight_is_held_and_seven_are_given(line: CommandLine) -> None:
    """The commonest cluster: kube-scheduler would bind these, and refuse the last one."""
    answer = simulated(
        line, plugin_node(), runs("r", 1), a_pod("p", 4), a_pod("q", 3), a_pod("late", 1)
    )

    assert places(answer) == {"p": ("n1", 4), "q": ("n1", 3), "late": (None, 0)}
    assert why_not(answer, "late") == {"n1": ["Insufficient gpu devices"]}
    told = json.loads(answer.out)
    first = told["placements"][0]
    assert (first["devices"], first["annotations"], first["unschedulable"]) == ({}, {}, None)
    assert [each["counted"] for each in told["adopted"]] == [{"gpu": 1}]
    assert told["summary"]["gpu"]["core_percent_allocated"] == 800
    (warning,) = told["summary"]["warnings"]
    assert warning.startswith("placed by count: ")
    assert warning in answer.err


def test_on_a_node_where_nothing_is_unknown_cards_are_named(line: CommandLine) -> None:
    """The other node's Pods are no matter to it."""
    answer = simulated(
        line, plugin_node("n1", 1), plugin_node("n2", 2), runs("r", 1), a_pod("p", 1)
    )

    (placement,) = json.loads(answer.out)["placements"]
    assert (placement["node"], placement["counted"]) == ("n2", {})
    assert [each["minor"] for each in placement["devices"]["gpu"]] == [0]
    assert json.loads(answer.out)["summary"]["warnings"] == []


def test_a_member_of_a_group_is_not_placed_by_count(line: CommandLine) -> None:
    """A plan keeps cards, so they have to be known."""
    name = "gputopology.scheduling.koordinator.sh/"
    labels = {f"{name}name": "g", f"{name}replica": "1"}
    answer = simulated(line, plugin_node(), runs("r", 1), a_pod("p", 1, labels=labels))

    assert why_not(answer, "p") == {"n1": [UNKNOWN]}


def test_the_ledger_has_a_count_and_no_grant(line: CommandLine) -> None:
    """What is recorded is an observation; it is proved, decided again, and shown like any other."""
    simulated(line, plugin_node(), runs("r", 1), a_pod("p", 2), a_pod("late", 6))

    sql = "select event_type, body from ledger_events order by position"
    rows = json.loads(line.ask("ledger", "sql", sql, "-o", "json").out)
    types = [row["event_type"] for row in rows]
    assert "pod.reserved.v1" not in types
    seen = [json.loads(row["body"]) for row in rows if row["event_type"] == "pod.observed.v1"]
    assert [(each["pod_name"], each["source"], each["counted"]) for each in seen] == [
        ("r", "", {"gpu": 1}),
        ("p", "count", {"gpu": 2}),
    ]
    assert line.ask("verify").code == 0
    assert line.ask("ledger", "rebuild").code == 0
    replayed = line.ask("ledger", "replay")
    assert (replayed.code, replayed.out.split(" (")[0]) == (0, "equal: 2 decisions")
    ((group,),) = (
        each["groups"] for each in json.loads(line.ask("map", "-o", "json").out)["nodes"]
    )
    assert [pod["amount"] for pod in group["unplaced"]] == [1, 2]
    assert (group["cards"], group["free"], group["gettable"]) == (8, 5, 5)


def test_a_count_that_was_tampered_with_is_decided_otherwise(line: CommandLine) -> None:
    """Replay compares what was counted, not only where."""
    files = (plugin_node(), runs("r", 1), a_pod("p", 2))
    simulated(line, *files)
    whole = line.ask("ledger", "replay")
    other = CommandLine(line.ledger.parent / "other.db", line.capture)
    simulated(other, plugin_node(gpus=2), runs("r", 1), a_pod("p", 2))

    assert whole.code == 0
    refused = json.loads(other.ask("ledger", "replay", "-o", "json").out)
    assert refused["differences"] == []


def test_what_ends_gives_back_as_many(line: CommandLine) -> None:
    """A Pod that was placed by count ends after 60 s, and who waits for its cards gets them."""
    rows = "at_seconds,event,object,value\n0,arrive,ml/p,60\n1,arrive,ml/late,\n"
    schedule = line.ledger.parent / "s.csv"
    schedule.write_text(rows)
    answer = simulated(
        line,
        plugin_node(),
        runs("r", 1),
        a_pod("p", 7),
        a_pod("late", 2),
        more=("--schedule", str(schedule)),
    )

    assert places(answer) == {"p": ("n1", 7), "late": ("n1", 2)}
    assert line.ask("verify").code == 0
    assert line.ask("ledger", "replay").code == 0


def test_a_comparison_counts_the_cards_that_were_held_by_number(line: CommandLine) -> None:
    """Of eight cards three were touched, whichever they were."""
    path = line.ledger.parent / "in.json"
    objects = [plugin_node(), runs("r", 1), a_pod("p", 2)]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    answer = line.run("simulate", str(path), "--compare", "binpack,spread", "-o", "json")

    rows = json.loads(answer.out)
    assert [row["cards_untouched"] for row in rows] == [5, 5]


def test_a_group_before_it_changes_nothing_for_a_plain_pod(line: CommandLine) -> None:
    """What a member is refused for is not remembered for who asks for as much."""
    name = "gputopology.scheduling.koordinator.sh/"
    labels = {f"{name}name": "g", f"{name}replica": "1"}
    answer = simulated(
        line, plugin_node(), runs("r", 1), a_pod("m", 1, labels=labels), a_pod("p", 1)
    )

    assert places(answer) == {"m": (None, 0), "p": ("n1", 1)}


def test_why_and_defrag_count_as_the_simulation_did(line: CommandLine) -> None:
    """Ending one Pod of one card is enough; and where seven are free nobody has to move."""
    simulated(line, plugin_node(), runs("r", 1), a_pod("p", 7), a_pod("late", 1))
    why = line.ask("why", "ml/late")
    assert "unknown card" not in why.out
    assert "end 2 Pods" not in why.out

    roomy = CommandLine(line.ledger.parent / "roomy.db", line.capture)
    simulated(roomy, plugin_node(), runs("r", 1), a_pod("p", 1))
    wanted = roomy.ledger.parent / "wanted.json"
    wanted.write_text(json.dumps(a_pod("wanted", 1)))
    plan = roomy.ask("defrag", "plan", "-f", str(wanted))
    assert plan.code == 0
    assert "no plan" not in plan.out


PARTED = {
    "time-slicing": {"gpu_replicas": "10", "gpu_count": "2", "gpu_product": "Tesla-T4-SHARED"},
    "MPS": {"gpu_sharing_strategy": "mps", "gpu_count": "2", "gpu_product": "NVIDIA-L4"},
    "a product that is shared": {"gpu_product": "NVIDIA-L4-SHARED"},
    "MIG": {"mig_strategy": "single", "gpu_product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"},
    "more than there are cards": {"gpu_count": "2", "gpu_product": "NVIDIA-L4"},
}


@pytest.mark.parametrize("labels", PARTED.values(), ids=PARTED)
def test_parts_of_cards_are_given_by_number_where_nobody_runs_yet(
    line: CommandLine, labels: dict[str, str]
) -> None:
    """The node's mode decides: no card is named, nothing is granted, nobody has one alone."""
    there = parted_node("n1", 20, **labels)
    answer = simulated(line, there, a_pod("a", 19), a_pod("b", 1), a_pod("late", 1))

    assert places(answer) == {"a": ("n1", 19), "b": ("n1", 1), "late": (None, 0)}
    assert why_not(answer, "late") == {"n1": ["Insufficient gpu devices"]}
    told = json.loads(answer.out)
    for each in told["placements"][:2]:
        assert (each["devices"], each["annotations"], each["unschedulable"]) == ({}, {}, None)
    assert told["summary"]["warnings"][0].startswith("placed by count: ")
    assert line.ask("verify").code == 0
    assert json.loads(line.ask("who", "n1", "-o", "json").out)
    with open_ledger(str(line.ledger), mode="read") as ledger:
        assert not [one for one in ledger.read_events() if isinstance(one.event, PodReserved)]
    assert line.ask("ledger", "rebuild").code == 0
    assert line.ask("ledger", "replay").out.startswith("equal: 3 decisions")


def test_no_card_of_parts_has_a_number(line: CommandLine) -> None:
    """Twenty places are two cards: nobody has the eighth, and no sum counts twenty."""
    there = parted_node("mps", 20, **PARTED["time-slicing"])
    answer = simulated(line, there, plugin_node("plain", 2), runs("r", 5, "mps"), a_pod("a", 12))

    assert places(answer) == {"a": ("mps", 12)}
    gpu = json.loads(answer.out)["summary"]["gpu"]
    assert (gpu["cards"], gpu["core_percent_capacity"]) == (2, 200)
    assert gpu["core_percent_allocated"] == 0
    assert line.ask("who", "mps/7").code == 2
    shown = json.loads(line.ask("map", "-o", "json").out)
    assert shown["contradictions"] == []
    (group,) = next(one for one in shown["nodes"] if one["node"] == "mps")["groups"]
    assert (group["mode"], group["cards"], group["gettable"]) == ("replicas", 2, 0)
    assert group["units"] == {"nvidia.com/gpu": {"allocatable": 20, "held": 17}}


def test_a_part_is_no_place_for_who_needs_a_named_card(line: CommandLine) -> None:
    """Members of groups are planned on cards; other dialects ask for cards of ours."""
    there = parted_node("n1", 20, **PARTED["time-slicing"])
    name = "gputopology.scheduling.koordinator.sh/"
    labels = {f"{name}name": "g", f"{name}replica": "1"}
    hint = {"scheduling.koordinator.sh/device-allocate-hint": REQUIRED}
    pods = a_pod("m", 1, labels=labels), a_pod("linked", 2, annotations=hint)
    answer = simulated(line, there, *pods, asking("half", HALF))

    for each in ("m", "linked"):
        assert why_not(answer, each) == {"n1": ["node(s) give whole cards by number alone"]}
    assert why_not(answer, "half") == {"n1": ["DialectNotServed"]}


def test_why_places_no_gang_where_cards_have_no_names(line: CommandLine) -> None:
    """Its members are planned on cards, however few are asked for at once."""
    gang = {f"gang.scheduling.koordinator.sh/{key}": value for key, value in GANG.items()}
    there = parted_node("n1", 20, **PARTED["time-slicing"])
    simulated(line, there, *(a_pod(name, 1, annotations=gang) for name in ("a", "b")))

    told = line.ask("why", "ml/a").out
    assert "of its group 0 of 2 waiting members fit together now" in told
