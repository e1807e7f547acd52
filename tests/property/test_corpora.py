"""Over all clusters of the corpus: two commands that are asked the same thing agree."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import Answer, CommandLine
from tests.support.corpus import CORPUS, NOW, every_dump, settle, waits
from tests.support.objects import Object

Json = Any
ONE_MORE: Final = 1
"""So many Pods beyond what is gettable ask, so that a number too low is found."""

PLAIN: Final = {
    "nvidia": {"nvidia.com/gpu": "1"},
    "koordinator": {"nvidia.com/gpu": "1"},
    "volcano": {
        "volcano.sh/vgpu-number": "1",
        "volcano.sh/vgpu-memory-percentage": "100",
        "volcano.sh/vgpu-cores": "100",
    },
    "gpushare": {},
    "mgpu": {},
    "dra": {},
    "rdma": {},
    "fpga": {},
}
"""How a Pod asks for one whole card, by who hands it out; of amounts and claims nothing.

Of all others, HAMi too, by the unit that the plugin counts.
"""


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a folder of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


@pytest.mark.parametrize("dump", every_dump())
def test_as_many_cards_are_gettable_as_plain_pods_of_one_card_are_given(
    dump: str, line: CommandLine
) -> None:
    """Of each node; but for one that is not ready and has no taint, of which nobody gets any."""
    settle({f"gettable {dump}": list(of_gettable(line, CORPUS / dump / "dump.json"))})


def of_gettable(line: CommandLine, dump: Path) -> Iterator[str]:
    """Yield the nodes of which a simulation gives another number of cards than the map has."""
    items = [each for each in items_of(dump) if not waits(each)]
    there: dict[str, tuple[Json, dict[str, str], list[Json]]] = {}
    for node in json.loads(line.run("map", str(dump), "-o", "json").out)["nodes"]:
        for group in node["groups"]:
            if request := plain_request(group):
                unit = f"a{len(there)}"
                for name, (other, asked, _) in there.items():
                    if (other["node"], asked) == (node["node"], request):
                        unit = name
                there.setdefault(unit, (node, request, []))[2].append(group["gettable"])
    for unit, (node, request, said) in there.items():
        number = sum(map(most, said)) + ONE_MORE
        items += (asking(f"{unit}-{each}", node["node"], request) for each in range(number))
    path = line.ledger.with_name("asked.json")
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), "utf-8")
    answer = line.run("simulate", str(path), "--now", NOW, "-o", "json")
    if answer.code:
        yield from unless_unreadable(answer)
        return
    given = Counter(
        each["name"].partition("-")[0]
        for each in json.loads(answer.out)["placements"]
        if each["namespace"] == ASKERS and each["node"]
    )
    for unit, (node, request, said) in there.items():
        low, high = sum(map(least, said)), sum(map(most, said))
        if not low <= given[unit] <= high and node["closed_because"] != ["not ready"]:
            yield f"{node['node']}, {request}: {given[unit]} are given, gettable are {said}"


def plain_request(group: Json) -> dict[str, str]:
    """Return what a Pod asks for that wants one such card whole; nothing where none can."""
    if group["mode"] not in {"whole", "shares"}:
        return {}
    if group["system"] not in PLAIN:
        counted = [unit for unit in group["units"] if not unit.endswith(("mem", "cores"))]
        if group["mode"] == "shares":  # of HAMi's other vendors units are given by number
            counted = [unit for unit in counted if unit.startswith("nvidia.com/")]
        return {counted[0]: "1"} if counted else {}
    request = PLAIN[group["system"]]
    return request if request.keys() & group["units"].keys() else {}


def asking(name: str, node: str, limits: dict[str, str]) -> Object:
    """Return a Pod that tolerates nothing and may run on one node alone."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": ASKERS},
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}],
        },
    }


ASKERS: Final = "askers"


def least(number: Json) -> int:
    """Return the lower end of a number or range."""
    return int(number["min"] if isinstance(number, dict) else number)


def most(number: Json) -> int:
    """Return the upper end of a number or range; of one without an end the lower one."""
    if not isinstance(number, dict):
        return int(number)
    return int(number["min"] if number["max"] is None else number["max"])


@pytest.mark.parametrize("dump", every_dump())
def test_why_and_simulate_give_every_pod_that_waits_one_answer(
    dump: str, line: CommandLine
) -> None:
    """Node, cards, CPUs, what is counted, and the message."""
    settle({f"why-as-simulate {dump}": list(of_why(line, CORPUS / dump / "dump.json"))})


def of_why(line: CommandLine, dump: Path) -> Iterator[str]:
    """Yield what the two say otherwise of a Pod."""
    if not any(waits(each) for each in items_of(dump)):
        return
    answer = line.run("simulate", str(dump), "--now", NOW, "-o", "json")
    if answer.code:
        yield from unless_unreadable(answer)
        return
    for each in json.loads(answer.out)["placements"]:
        name = f"{each['namespace']}/{each['name']}"
        asked = line.run("why", name, str(dump), "-o", "json")
        if asked.code:
            yield f"{name}: exit code {asked.code}: {asked.err[-500:]}"
            continue
        told = json.loads(asked.out)
        for key in ("node", "devices", "counted", "cpuset"):
            if told[key] != each[key]:
                yield f"{name}: {key} is {each[key]} by simulate, {told[key]} by why"
        refused = each["unschedulable"]
        if (told["state"] == "fits") is (each["node"] is None):
            yield f"{name}: {told['state']} by why, on {each['node']} by simulate"
        if told["message"] != (refused["message"] if refused else ""):
            yield f"{name}: {refused} by simulate, {told['message']} by why"


def unless_unreadable(answer: Answer) -> Iterator[str]:
    """Yield an error; that an object's annotation can't be read is none: nothing is decided."""
    if not re.search(r"metadata\.annotations\[.*\]: not valid JSON", answer.err):
        yield f"exit code {answer.code}: {answer.err[-500:]}"


def items_of(dump: Path) -> list[Object]:
    """Return the objects of a dump."""
    items: list[Object] = json.loads(dump.read_text("utf-8"))["items"]
    return items
