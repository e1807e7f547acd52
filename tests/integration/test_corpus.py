"""Clusters of all systems as kubectl prints them, and what every command has to tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.truth import differences

pytestmark = pytest.mark.integration

Json = Any
CORPUS: Final = Path(__file__).parent.parent / "corpus"
DUMPS: Final = sorted(path.parent.name for path in CORPUS.glob("*/truth.json"))
WAITING: Final = frozenset((CORPUS / "waiting.txt").read_text("utf-8").splitlines())
"""What is not told rightly yet, as "command dump"; what is has to leave the list."""


def truth_of(dump: str) -> Json:
    """Return what was written down beside a dump."""
    return json.loads((CORPUS / dump / "truth.json").read_text("utf-8"))


def asked(dumps: list[str], part: str) -> list[str]:
    """Return the dumps whose truth says something to a command."""
    return [dump for dump in dumps if part in truth_of(dump)]


def settle(case: str, found: list[str]) -> None:
    """Fail with what is wrong, or because nothing is and the case still waits."""
    if case in WAITING:
        assert found, f"{case} is told rightly: take it out of tests/corpus/waiting.txt"
    else:
        assert not found, "\n".join((case, *found))


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a folder of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


@pytest.mark.parametrize("dump", DUMPS)
def test_map_is_right(dump: str, line: CommandLine) -> None:
    """Cards, holders and what is free, by the interface of `map -o json`."""
    settle(f"map {dump}", list(of_map(truth_of(dump), line, CORPUS / dump / "dump.json")))


def of_map(truth: Json, line: CommandLine, dump: Path) -> Iterator[str]:
    """Yield how the map of a dump is wrong."""
    answer = line.run("map", str(dump), "-o", "json")
    if answer.code:
        yield f"exit code {answer.code}: {answer.err[-500:]}"
        return
    told = json.loads(answer.out)
    claim = dict(truth["map"])
    for words in claim.pop("mentioned", ()):
        if not all(f'"{word}"' in answer.out for word in words.split("/")):
            yield f"{words} is not mentioned"
    yield from differences(claim, told)
    if isinstance(told, dict):
        yield from of_holders(truth.get("who", {}), told)


def of_holders(who: dict[str, dict[str, list[str]]], told: Json) -> Iterator[str]:
    """Yield how the holders in a map are wrong; "" is a card that nobody knows, "?" any."""
    for name, cards in who.items():
        nodes = [node for node in told["nodes"] if node["node"] == name]
        held = {key: found for node in nodes for key, found in holders_of(node)}
        everybody = {holder for found in held.values() for holder in found}
        for card, holders in cards.items():
            if card == "?":
                if missing := set(holders) - everybody:
                    yield f"who {name}: {sorted(missing)} hold something, and nothing is told"
            elif held.get(card, set()) != set(holders):
                yield f"who {name}/{card}: {holders} is right, told {sorted(held.get(card, ()))}"


def holders_of(node: Json) -> Iterator[tuple[str, set[str]]]:
    """Yield each card of a node by id, else by minor, with its holders; "" are the unplaced."""
    unplaced: set[str] = set()
    for group in node["groups"]:
        unplaced |= {f"{each['namespace']}/{each['name']}" for each in group.get("unplaced", ())}
        for card in group.get("devices", ()):
            names = {f"{each['namespace']}/{each['name']}" for each in card["holders"]}
            yield card["id"] or str(card["minor"]), names
    yield "", unplaced


@pytest.mark.parametrize("dump", asked(DUMPS, "simulate"))
def test_simulate_is_right(dump: str, line: CommandLine) -> None:
    """Each question alone is answered as the system of that cluster would."""
    found = [
        words
        for number, question in enumerate(truth_of(dump)["simulate"])
        for words in of_simulate(question, line, CORPUS / dump / "dump.json", number)
    ]
    settle(f"simulate {dump}", found)


def of_simulate(question: Json, line: CommandLine, dump: Path, number: int) -> Iterator[str]:
    """Yield how one Pod is answered wrongly that comes before all who wait."""
    name = question["pod"]["metadata"]["name"]
    first = line.ledger.with_name(f"question-{number}.json")
    first.write_text(json.dumps(question["pod"]), "utf-8")
    answer = line.run(
        "simulate", str(first), str(dump), "--now", "2026-11-23T08:00:00Z", "-o", "json"
    )
    if answer.code:
        yield f"{name}: exit code {answer.code}: {answer.err[-500:]}"
        return
    placements = json.loads(answer.out)["placements"]
    (told,) = [each for each in placements if each["name"] == name]
    refusal = told["unschedulable"] or {"message": "", "nodes": {}}
    if "placed" in question:
        if told["node"] not in question["placed"]:
            yield f"{name}: goes to {question['placed']}, told {told['node']}: {refusal['message']}"
        if (counted := question.get("counted", told["counted"])) != told["counted"]:
            yield f"{name}: {counted} by number, told {told['counted']}"
    elif "never" in question:
        reasons = [
            refusal["message"],
            *(text for each in refusal["nodes"].values() for text in each),
        ]
        for text in question["never"]:
            if any(text in reason for reason in reasons):
                yield f"{name}: not for {text!r}, told {refusal['message']}"
    else:
        if told["node"] is not None:
            yield f"{name}: has no place, told {told['node']}"
            return
        for node, texts in question["refused"].items():
            reasons = refusal["nodes"].get(node, [])
            if not set(texts) & set(reasons):
                yield f"{name} on {node}: one of {texts}, told {reasons}: {refusal['message']}"


def test_every_system_is_told_of_in_at_least_three_dumps() -> None:
    """None is covered by one fortunate example."""
    resources = {
        "nvidia": '"mode": "whole"',
        "mig": "nvidia.com/mig-",
        "replicas": '"mode": "replicas"',
        "hami": '"system": "hami"',
        "volcano": '"system": "volcano"',
        "koordinator": '"system": "koordinator"',
        "gpushare": '"system": "gpushare"',
        "mgpu": '"system": "mgpu"',
        "dra": '"system": "dra"',
        "amd": "amd.com/gpu",
        "intel": "gpu.intel.com/",
        "ascend": "huawei.com/Ascend910",
        "tpu": "google.com/tpu",
        "gaudi": "habana.ai/gaudi",
        "rdma": "rdma/",
    }
    texts = [(CORPUS / dump / "truth.json").read_text("utf-8") for dump in DUMPS]

    found = {name: sum(text in each for each in texts) for name, text in resources.items()}

    assert len(DUMPS) >= 30
    assert {name: number for name, number in found.items() if number < 3} == {}


def test_what_waits_exists() -> None:
    """The list names cases that are run."""
    cases = {f"map {dump}" for dump in DUMPS}
    cases |= {f"simulate {dump}" for dump in asked(DUMPS, "simulate")}

    assert cases >= WAITING


@pytest.mark.parametrize(
    ("claim", "told", "number"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, 0, id="what is left out is not claimed"),
        pytest.param({"a": 1}, {"b": 1}, 1, id="what is claimed has to be told"),
        pytest.param({"a": {"min": 1, "max": 1}}, {"a": 1}, 0, id="a range of one number is it"),
        pytest.param({"a": {"min": 0, "max": 1}}, {"a": 1}, 1, id="a number claims too much"),
        pytest.param({"a": {"min": 0, "max": None}}, {"a": {"min": 0, "max": 9}}, 1, id="no end"),
        pytest.param({"a": {"any_of": [1, 2]}}, {"a": 2}, 0, id="one of two readings"),
        pytest.param({"a": {"any_of": [1, 2]}}, {"a": 3}, 1, id="neither reading"),
        pytest.param({"a": []}, {"a": [3]}, 1, id="an entry too many"),
        pytest.param({"a": {"includes": [3]}}, {"a": [1, 3]}, 0, id="one among others"),
        pytest.param({"a": {"includes": [3]}}, {"a": [1]}, 1, id="not among others"),
        pytest.param({"a": {"contains": "n1"}}, {"a": "node n1"}, 0, id="named"),
        pytest.param({"nodes": [{"node": "n", "x": 1}]}, {"nodes": [{"node": "m"}]}, 1, id="node"),
        pytest.param(
            {"groups": [{"units": {"r": 1, "s": 2}, "cards": 3}]},
            {"groups": [{"units": {"r": 1}, "cards": 1}, {"units": {"s": 2}, "cards": 2}]},
            0,
            id="a group in two parts",
        ),
        pytest.param(
            {"holders": [{"namespace": "a", "name": "b", "whole": True}]},
            {"holders": [{"namespace": "a", "name": "b", "whole": False}]},
            1,
            id="the same holder otherwise",
        ),
    ],
)
def test_what_is_compared(claim: Json, told: Json, number: int) -> None:
    """A comparison that can't fail would make every dump pass."""
    assert len(list(differences(claim, told))) == number
