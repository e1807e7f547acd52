"""What the map calls gettable is what a simulation gives plain Pods of one card."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.corpus import CORPUS, NOW, one_of_each

Json = Any
GPU: Final = "nvidia.com/gpu"
SERVE_PLAIN: Final = {"nvidia", "hami", "koordinator"}
"""Systems whose cards a Pod gets by `nvidia.com/gpu`; others are asked by their own resources."""


@pytest.mark.parametrize("dump", one_of_each())
def test_gettable_is_what_a_simulation_gives(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On each node of the corpus, as many Pods of one whole card, and not one more."""
    line = CommandLine(tmp_path / "run.db", capsys)
    cluster = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))
    cluster["items"] = [each for each in cluster["items"] if not is_waiting(each)]
    told = json.loads(line.run("map", str(written(tmp_path, cluster)), "-o", "json").out)
    asked = {
        name: found
        for node in told["nodes"]
        if "not ready" not in node["closed_because"]  # without a taint kube-scheduler gives some
        for name, found in plain_cards(node).items()
    }
    cluster["items"] += [
        a_pod(node, resource, number)
        for (node, resource), many in asked.items()
        for number in range(many + 1)
    ]
    answer = line.run("simulate", str(written(tmp_path, cluster)), "--now", NOW, "-o", "json")
    if answer.code == 2:  # what can't be read stops a simulation, and not the map
        return
    assert not answer.code, answer.err
    placed = Counter(
        each["name"].rpartition("-")[0]
        for each in json.loads(answer.out)["placements"]
        if each["node"] is not None
    )
    assert {of_pod(*key): many for key, many in asked.items() if many} == dict(placed)


def is_waiting(each: Json) -> bool:
    """Tell whether an object is a Pod that somebody is to place."""
    if each["kind"] != "Pod" or "nodeName" in each["spec"]:
        return False
    given = each["metadata"].get("annotations", {})
    return not {"hami.io/vgpu-node", "volcano.sh/vgpu-node"} & given.keys()


def plain_cards(node: Json) -> dict[tuple[str, str], int]:
    """Return node and resource -> how many whole cards can be got by it, where that is told."""
    found: Counter[tuple[str, str]] = Counter()
    for group in node["groups"]:
        names = [GPU] if group["system"] in SERVE_PLAIN else list(group["units"])
        is_whole = group["mode"] == "whole" or (group["mode"] == "shares" and names == [GPU])
        if GPU in group["units"] and not (is_whole and group["cards"]):
            return {}  # parts of cards are given by their number
        if is_whole and len(names) == 1 and isinstance(group["gettable"], int):
            found[node["node"], names[0]] += group["gettable"]
    return dict(found)


def of_pod(node: str, resource: str) -> str:
    """Return how the Pods for a resource of a node are called."""
    return f"{node}-{resource.replace('/', '-').replace('.', '-').lower()}"


def a_pod(node: str, resource: str, number: int) -> Json:
    """Return a Pod of one card that goes to one node alone."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{of_pod(node, resource)}-{number}", "namespace": "gettable"},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        },
    }


def written(folder: Path, cluster: Json) -> Path:
    """Return a file with these objects."""
    path = folder / "cluster.json"
    path.write_text(json.dumps(cluster), "utf-8")
    return path
