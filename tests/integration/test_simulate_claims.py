"""`tenure simulate`: a card that a node lists and that a claim of the files has is held by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.dra import card, resource_claim, resource_slice, result
from tests.support.objects import Object, container, device, gpu_device, node, pod

pytestmark = pytest.mark.integration

NOW = ("--now", "2026-03-02T00:00:00Z")


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def claim(name: str, *devices: str, pods: tuple[str, ...] = ()) -> Object:
    """Return a claim that has these devices of node `n1`."""
    results = [result(each, node="n1") for each in devices]
    return resource_claim(name, *results, node="n1", pods=pods, namespace="ml")


def cluster(*claims: Object) -> list[Object]:
    """Return a node with three cards, which a driver lists too, with one more, and a Pod there."""
    cards = [gpu_device(number) for number in range(3)]
    sliced = [card(f"gpu-{number}", each.get("id", "")) for number, each in enumerate(cards)]
    sliced.append(card("gpu-3", "GPU-of-the-slice-alone"))
    user = pod(container(), name="user", uid="uid-user", namespace="ml", nodeName="n1")
    user["status"] = {"phase": "Running"}
    return [node("n1"), device(*cards), resource_slice(sliced, node="n1"), user, *claims]


def written(line: CommandLine, *objects: Object) -> str:
    """Write objects into a file and return its path."""
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)


def holders(told: str) -> dict[str, Any]:
    """Return who holds which card of a map, by id."""
    return {
        one["id"]: [(each["name"], each.get("pods")) for each in one["holders"]]
        for each_node in json.loads(told)["nodes"]
        for group in each_node["groups"]
        for one in group["devices"]
    }


def test_a_claim_of_a_nodes_own_card_whose_pod_is_gone_is_idle(line: CommandLine) -> None:
    """Of the files, and of the ledger that they become."""
    left = claim("left", "gpu-1", pods=("gone",))
    left["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    path = written(line, *cluster(left))
    state = "no Pod uses it"

    def told(answer: str) -> list[tuple[str, list[str], str]]:
        cards = json.loads(answer)["nodes"][0]["groups"][0]["devices"]
        return [(each["name"], each["pods"], each["state"]) for each in cards[1]["holders"]]

    assert told(line.run("map", path, "-o", "json").out) == [("left", [], state)]
    assert line.ask("simulate", path, *NOW).code == 0
    assert told(line.ask("map", "-o", "json").out) == [("left", [], state)]
    (held,) = json.loads(line.ask("who", "n1/1", "-o", "json").out)["holders"]
    assert held["pod"] == "left"


def test_a_card_that_a_claim_has_is_given_to_nobody_else(line: CommandLine) -> None:
    """One account for each card: of three, two are held by claims, used or not."""
    wants = [
        pod(container(limits={"nvidia.com/gpu": 1}), name=name, uid=name, namespace="ml")
        for name in ("a", "b")
    ]
    claims = (claim("train", "gpu-0", "gpu-3", pods=("user",)), claim("idle", "gpu-2"))
    dump = written(line, *cluster(*claims, claim("waits")))
    before = json.loads(line.run("map", dump, "-o", "json").out)

    recorded = line.ask("simulate", dump, *NOW)
    assert recorded.code == 0, recorded.err
    assert json.loads(line.ask("map", "-o", "json").out) == before
    ids = [each["id"] for each in (gpu_device(number) for number in range(3))]
    assert before["summary"]["cards"] == 4
    assert holders(json.dumps(before)) == {
        ids[0]: [("train", ["user"])],
        ids[1]: [],
        ids[2]: [("idle", [])],
        "GPU-of-the-slice-alone": [("user", None)],
    }
    assert "CLAIM" in line.ask("why", "ml/train").out
    assert line.ask("verify").code == 0

    line.ledger.unlink()
    done = line.ask("simulate", written(line, *cluster(*claims), *wants), *NOW, "-o", "json")
    assert done.code == 0, done.err
    found = {each["name"]: each for each in json.loads(done.out)["placements"]}
    assert [one["id"] for one in found["a"]["devices"]["gpu"]] == [ids[1]]
    assert found["b"]["node"] is None
    replayed = line.ask("ledger", "replay")
    assert (replayed.code, "equal: 2 decisions" in replayed.out) == (0, True), replayed.out


def _field(key: str, name: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [name]}


@pytest.mark.parametrize(
    "terms",
    [
        [],
        [{"matchExpressions": [_field("kubernetes.io/hostname", "n1")]}],
        [{"matchFields": [_field("metadata.name", name)]} for name in ("n1", "n2")],
    ],
    ids=["no node", "by its host name", "of several"],
)
def test_a_card_is_held_however_the_allocation_names_its_node(
    line: CommandLine, terms: list[Object]
) -> None:
    """The card is on the node that lists it, whatever the claim says of nodes."""
    train = claim("train", "gpu-0")
    train["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": terms} if terms else None

    told = holders(line.run("map", written(line, *cluster(train)), "-o", "json").out)

    assert told[gpu_device(0)["id"]] == [("train", [])]
