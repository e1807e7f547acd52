"""Clusters of all systems as kubectl prints them, and what every command has to tell of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.claims import command_lines, failures, sums_of
from tests.support.cli import CommandLine
from tests.support.corpus import (
    CORPUS,
    NOW,
    WAITING,
    dumps,
    every_dump,
    one_of_each,
    settle,
    truth_of,
    waits,
)
from tests.support.truth import differences

pytestmark = pytest.mark.integration

Json = Any


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a folder of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


@pytest.mark.parametrize("dump", dumps())
def test_map_is_right(dump: str, line: CommandLine) -> None:
    """Cards, holders and what is free, by the interface of `map -o json`."""
    found = list(of_map(truth_of(dump), line, CORPUS / dump / "dump.json"))
    settle({f"map {dump}": found})


def of_map(truth: Json, line: CommandLine, dump: Path) -> Iterator[str]:
    """Yield how the map of a dump is wrong."""
    answer = line.run("map", str(dump), "-o", "json")
    if answer.code:
        yield f"exit code {answer.code}: {answer.err[-500:]}"
        return
    told = json.loads(answer.out)
    claim = dict(truth["map"])
    for words in claim.pop("mentioned", ()):
        by_name = all(f'"{word}"' in answer.out for word in words.split("/"))
        if not by_name and f'"object": "Pod {words}"' not in answer.out:
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


@pytest.mark.parametrize("dump", dumps("simulate"))
def test_simulate_is_right(dump: str, line: CommandLine) -> None:
    """Each question alone is answered as the system of that cluster would."""
    found = [
        words
        for number, question in enumerate(truth_of(dump)["simulate"])
        for words in of_simulate(question, line, CORPUS / dump / "dump.json", number)
    ]
    settle({f"simulate {dump}": found})


def of_simulate(question: Json, line: CommandLine, dump: Path, number: int) -> Iterator[str]:
    """Yield how one Pod is answered wrongly that comes before all who wait."""
    name = question["pod"]["metadata"]["name"]
    first = line.ledger.with_name(f"question-{number}.json")
    first.write_text(json.dumps(question["pod"]), "utf-8")
    answer = line.run("simulate", str(first), str(dump), "--now", NOW, "-o", "json")
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


@pytest.mark.parametrize("dump", one_of_each("totals"))
def test_a_ledger_of_it_is_right(dump: str, line: CommandLine) -> None:
    """What a simulation of the Pods that run records, as the other commands tell it."""
    cluster = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))
    cluster["items"] = [each for each in cluster["items"] if not waits(each)]
    path = line.ledger.with_name("cluster.json")
    path.write_text(json.dumps(cluster), "utf-8")
    recorded = line.ask("simulate", str(path), "--now", NOW)
    truth = truth_of(dump)

    found = {
        f"{command} {dump}": [recorded.err[-500:]] if recorded.code else list(wrong(truth, line))
        for command, wrong in OF_LEDGER.items()
    }
    if not recorded.code:
        found[f"last-lines {dump}"] = list(of_last_lines(recorded.out, truth, line))
    settle(found)


def of_who(truth: Json, line: CommandLine) -> Iterator[str]:
    """Yield how the holders of a node are wrong, whichever of its cards they have."""
    for node, cards in truth.get("who", {}).items():
        answer = line.ask("who", node, "-o", "json")
        if answer.code:
            yield f"who {node}: exit code {answer.code}: {answer.err[-500:]}"
            continue
        told = {
            f"{each['namespace']}/{each['pod']}"
            for each in json.loads(answer.out)["holders"]
            if each["device_type"] == "gpu" or each["unknown_types"]
        }
        right = {holder for holders in cards.values() for holder in holders}
        if told != right and not ("?" in cards and told >= right):
            yield f"who {node}: {sorted(right)} is right, told {sorted(told)}"


def of_last_lines(told: str, truth: Json, line: CommandLine) -> Iterator[str]:
    """Yield how the cards in the last lines of a simulation are not those of the map's."""
    drawn = " ".join(line.ask("map").out.split())
    found = LAST_LINE.search(told)
    if found is None:
        if not re.search(r"(no|\b0) cards", drawn):
            yield f"no cards are told of: {drawn}"
        return
    cards, percent, left = found["cards"], int(found["percent"].split(".")[0]), found["left"]
    words = re.escape(f"{cards}: {percent} % held, {left}") + "(?!,)"
    if not re.search(words, drawn):
        yield f"the map says otherwise than {found[0]!r}: {drawn}"
    sums = truth["map"].get("summary", {})
    claim = {"cards": truth["totals"]["cards"]}
    claim |= {key: sums[key] for key in ("gettable",) if key in sums}
    numbers = {"cards": bounds_of(cards), "gettable": bounds_of(left.partition(" free")[0])}
    yield from differences(claim, numbers, "last lines")


def bounds_of(text: str) -> dict[str, int | None]:
    """Return the bounds of a number as people read it."""
    low, *rest = map(int, re.findall(r"\d+", text.replace(",", "")))
    return {"min": low, "max": rest[0] if rest else None if "or more" in text else low}


def of_status(truth: Json, line: CommandLine) -> Iterator[str]:
    """Yield how the sums of `status` are wrong."""
    told = json.loads(line.ask("status", "-o", "json").out)
    claim = {"cards": truth["totals"]["cards"], "cards_held": truth["totals"]["held"]}
    yield from differences(claim, told, "status")


def of_ledger_map(truth: Json, line: CommandLine) -> Iterator[str]:
    """Yield how the sums of the map of a ledger are wrong."""
    claim = {key: truth["totals"][key] for key in ("cards", "free")}
    yield from differences({"summary": claim}, json.loads(line.ask("map", "-o", "json").out), "map")


def of_report(truth: Json, line: CommandLine) -> Iterator[str]:
    """Yield how the page's table by model is wrong, summed over the models."""
    told = sums_of(line.ask("report", "--no-verify", "-o", "-").out)
    claim = {key: truth["totals"][key] for key in ("cards", "free")}
    yield from differences(claim, told, "report")


LAST_LINE: Final = re.compile(
    r"^GPU: \S+ of (?P<cards>.* cards?) allocated \((?P<percent>.*?)%\), (?P<left>.*)$",
    re.MULTILINE,
)
OF_LEDGER: Final = {
    "who": of_who,
    "status": of_status,
    "map-of-ledger": of_ledger_map,
    "report": of_report,
}


@pytest.mark.parametrize("dump", one_of_each("claims"))
def test_what_is_claimed_of_command_lines(dump: str, line: CommandLine) -> None:
    """Every command says of files and of their ledger what the report's right answer says."""
    claims = truth_of(dump)["claims"]
    recorded = False
    found = {}
    for case, asked in command_lines(claims, dump).items():
        if asked.of_ledger and not recorded:
            line.ask("simulate", str(CORPUS / dump / "dump.json"), "--now", NOW)
            recorded = True
        found[case] = list(failures(asked, line, CORPUS / dump / "dump.json"))
    settle(found)


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
    texts = [(CORPUS / dump / "truth.json").read_text("utf-8") for dump in dumps()]

    found = {name: sum(text in each for each in texts) for name, text in resources.items()}

    assert len(dumps()) >= 30
    assert {name: number for name, number in found.items() if number < 3} == {}


def test_what_waits_exists() -> None:
    """The list names cases that are run."""
    cases = {f"map {dump}" for dump in dumps()}
    cases |= {f"simulate {dump}" for dump in dumps("simulate")}
    cases |= {
        f"{command} {dump}" for dump in dumps("totals") for command in (*OF_LEDGER, "last-lines")
    }
    for part in ("gettable", "why-as-simulate"):  # tests/property/test_corpora.py
        cases |= {f"{part} {case.values[0]}" for case in every_dump()}
    cases |= {case for case in WAITING if case.startswith("random ")}  # of random clusters
    for dump in dumps("claims"):
        cases |= command_lines(truth_of(dump)["claims"], dump).keys()

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
        pytest.param({"a": {"none_of": [3, 4]}}, {"a": 3}, 1, id="one of the wrong readings"),
        pytest.param({"a": {"none_of": [3, 4]}}, {"a": 5}, 0, id="none of the wrong readings"),
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
