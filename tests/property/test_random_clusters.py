"""Random clusters of all systems: every command says what is true of them, node by node."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.test_corpus import of_holders, of_who
from tests.support import random_clusters
from tests.support.claims import sums_of
from tests.support.cli import CommandLine
from tests.support.corpus import NOW, WAITING
from tests.support.random_clusters import (
    FEW_PLACES,
    KINDS,
    NodeTruth,
    Number,
    RandomCluster,
    is_exact,
    random_cluster,
)
from tests.support.truth import differences

Json = Any
CLUSTERS: Final = 2000
SHARDS: Final = 40
BESIDE: Final = 3
"""So many kinds are in one cluster of `make test`."""

PAGES: Final = 4
"""Of so many clusters one is asked for its page, which takes longest."""

ASKED_WHO: Final = 3
"""Of so many nodes of a cluster it is asked who holds what; the maps say it of all."""

OF_A_KIND: Final = 40
"""So many nodes of a kind that waits are asked until one is told wrongly."""

ASKED: Final = ("map", "map-of-ledger", "who", "usage", "simulate", "why", "check")
CALLED: Final = (*KINDS, FEW_PLACES)
CASES: Final = frozenset(f"random {command} {kind}" for command in ASKED for kind in CALLED)
"""How waiting.txt calls what is not told rightly of a kind of node."""

Wrong = dict[str, list[str]]


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a folder of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


@pytest.mark.parametrize("first", range(0, len(KINDS), BESIDE))
def test_each_kind_of_node_is_told_rightly_beside_others(first: int, line: CommandLine) -> None:
    """By every command, but for what waits: a few kinds, each twice."""
    kinds = list(KINDS)[first : first + BESIDE]
    fail_with(wrong_of(random_cluster(first, (*kinds, *kinds)), line))


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_two_thousand_random_clusters_are_told_rightly(
    shard: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command, but for what waits."""
    found: Wrong = defaultdict(list)
    for seed in range(shard, CLUSTERS, SHARDS):
        line = CommandLine(tmp_path / f"run-{seed}.db", capsys)
        for case, words in wrong_of(random_cluster(seed), line).items():
            found[case] += words
    fail_with(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(CASES & WAITING))
def test_what_waits_of_random_clusters_is_wrong(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is told rightly has to leave the list."""
    kind = case.rsplit(maxsplit=1)[-1]
    for seed in range(OF_A_KIND):
        line = CommandLine(tmp_path / f"run-{seed}.db", capsys)
        if case in wrong_of(random_cluster(seed, (kind,) if kind in KINDS else ()), line):
            return
    pytest.fail(f"{case} is told rightly: take it out of tests/corpus/waiting.txt")


def test_the_input_decides_nearly_every_node() -> None:
    """At least 95 of 100 nodes have exact numbers, so that a range is no way out."""
    nodes = [node for seed in range(CLUSTERS) for node in random_cluster(seed).nodes]

    assert {node.kind for node in nodes} == set(CALLED)
    assert sum(map(is_exact, nodes)) >= 0.95 * len(nodes)


def test_who_knows_the_truth_shares_nothing_with_the_readers() -> None:
    """It imports the standard library alone."""
    tree = ast.parse(Path(random_clusters.__file__).read_text("utf-8"))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }

    assert imported <= {
        "__future__", "collections", "dataclasses", "json", "random", "typing", "uuid",
    }  # fmt: skip


def fail_with(found: Wrong) -> None:
    """Fail with what is wrong and does not wait."""
    wrong = {case: words for case, words in found.items() if case not in WAITING}
    assert not wrong, "\n".join(
        "\n  ".join((case, *words[:4])) for case, words in sorted(wrong.items())
    )


# --- the commands -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Files:
    """The objects of a cluster: those that run, all of them, and the Pods that wait."""

    runs: str
    everything: str
    waits: str


def wrong_of(cluster: RandomCluster, line: CommandLine) -> Wrong:
    """Return what every command tells wrongly, by command and kind of node."""
    found: Wrong = defaultdict(list)
    questions = [each.pod for each in cluster.questions]
    running = [each for each in cluster.items if each not in questions]
    files = Files(
        runs=written(line.ledger.with_suffix(".runs.json"), running),
        everything=written(line.ledger.with_suffix(".all.json"), cluster.items),
        waits=written(line.ledger.with_suffix(".waits.json"), questions),
    )
    drawn = json.loads(line.run("map", files.runs, "-o", "json").out)
    of_map("map", cluster, drawn, found)
    recorded = line.ask("simulate", files.runs, "--now", NOW)
    if recorded.code:
        found["random simulate"].append(recorded.err[-500:])
        return found
    of_map("map-of-ledger", cluster, json.loads(line.ask("map", "-o", "json").out), found)
    for node in cluster.nodes[:ASKED_WHO]:
        found[f"random who {node.kind}"] += of_who({"who": {node.name: node.who}}, line)
    if not any(f"random {each} {node.kind}" in WAITING for each in ASKED for node in cluster.nodes):
        found["random sums"] += of_sums(cluster.nodes, line)
    of_usage(cluster, files, line, found)
    of_questions(cluster, files, line, found)
    return {case: words for case, words in found.items() if words}


def written(path: Path, items: list[Json]) -> str:
    """Write objects as kubectl prints them, and return where."""
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), "utf-8")
    return str(path)


def of_map(command: str, cluster: RandomCluster, drawn: Json, found: Wrong) -> None:
    """Add how nodes are drawn wrongly: their sums, and who holds which card."""
    there = {each["node"]: each for each in drawn["nodes"]}
    for node in cluster.nodes:
        case = f"random {command} {node.kind}"
        told = {"open": there[node.name]["open"], "node": node.name}
        for key in ("cards", "free", "gettable"):
            told[key] = total([group[key] for group in there[node.name]["groups"]])
        found[case] += differences(node.map, told, node.name)
        found[case] += of_holders({node.name: node.who}, drawn)


def of_sums(nodes: Sequence[NodeTruth], line: CommandLine) -> Iterator[str]:
    """Yield how the sums over all nodes are wrong, in `status` and on the page."""
    claim = {key: total([node.map[key] for node in nodes]) for key in ("cards", "free")}
    status = json.loads(line.ask("status", "-o", "json").out)
    yield from differences(
        claim, {"cards": status["cards"], "free": status["cards_free"]}, "status"
    )
    if int(nodes[0].name[1:].partition("n")[0]) % PAGES == 0:
        page = line.ask("report", "--no-verify", "-o", "-").out
        yield from differences(claim, sums_of(page), "report")


def of_usage(cluster: RandomCluster, files: Files, line: CommandLine, found: Wrong) -> None:
    """Add how the hours of Pods that hold cards or parts by number are wrong, node by node."""
    told = json.loads(line.run("usage", files.runs, "--by", "owner", "-o", "json").out)
    hours = {each["group"]: each["gpu_hours"] for each in told["groups"]}
    for node in cluster.nodes:
        if node.hours is not None:
            said = hours.get(f"job/{node.name}", 0.0)
            if abs(said - node.hours) > 0.01:  # it counts until a second after what was heard
                found[f"random usage {node.name.partition('-')[2]}"].append(
                    f"{node.name}: {node.hours} GPU-hours, told {said}"
                )


def of_questions(cluster: RandomCluster, files: Files, line: CommandLine, found: Wrong) -> None:
    """Add how Pods that wait for whole cards of a node are answered wrongly."""
    if not cluster.questions:
        return
    simulated = json.loads(line.run("simulate", files.everything, "--now", NOW, "-o", "json").out)
    placements = {f"{each['namespace']}/{each['name']}": each for each in simulated["placements"]}
    checked = json.loads(line.run("check", files.waits, "-o", "json").out)
    for each, allowed in zip(cluster.questions, checked, strict=True):
        told = placements[each.name]
        if told["node"] != each.node:
            found[f"random simulate {each.kind}"].append(
                f"{each.name}: goes to {each.node}, told {told['node']}: {told['unschedulable']}"
            )
        if not allowed["allowed"]:
            found[f"random check {each.kind}"].append(f"{each.name}: {allowed['message']}")
        case = f"random why {each.kind}"
        why = json.loads(line.run("why", each.name, files.everything, "-o", "json").out)
        if why["node"] != told["node"] or (why["state"] == "fits") is (told["node"] is None):
            found[case].append(f"{each.name}: {why['state']} {why['node']}, by simulate {told}")
        if each.never is not None and bool(why.get("never")) is not each.never:
            found[case].append(f"{each.name}: never is {each.never}, told {why.get('never')!r}")


def total(numbers: Iterable[Number]) -> Number:
    """Return a sum of numbers and ranges."""
    low, high = 0, 0
    endless = False
    for each in numbers:
        ends = (each["min"], each["max"]) if isinstance(each, dict) else (each, each)
        low += ends[0] or 0
        high += ends[1] or 0
        endless |= ends[1] is None
    return {"min": low, "max": None if endless else high}
