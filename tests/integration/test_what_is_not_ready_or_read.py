"""Nodes that say they are not ready, and nodes whose register can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import container, node, pod

ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
NOT_READY = "node.kubernetes.io/not-ready"


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


@pytest.mark.parametrize("has_taint", [True, False])
def test_a_taint_that_says_not_ready_is_not_missed(line: CommandLine, *, has_taint: bool) -> None:
    """Who tolerates the taint goes there; only without one is it said that there is none."""
    offers = ROOM | {"nvidia.com/gpu": "2"}
    there = node("n", allocatable=offers)
    there["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    there["spec"] = {"taints": [{"key": NOT_READY, "effect": "NoSchedule"}] if has_taint else []}
    asks = pod(container(limits={"nvidia.com/gpu": 1}), tolerations=[{"operator": "Exists"}])
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": [there, asks]}))

    answer = line.run("simulate", str(path))

    assert "1 placed" in answer.out
    assert ("not ready and have no taint that says so" in answer.err) is not has_taint


@pytest.mark.parametrize("vendor", ["nvidia-register", "register-Ascend910B"])
def test_a_register_that_cant_be_read_may_be_of_any_number(line: CommandLine, vendor: str) -> None:
    """No label counts them and nothing is offered: nobody knows that there are none."""
    there = node("n", allocatable=ROOM, annotations={f"hami.io/node-{vendor}": "garbage"})
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": [there]}))

    told = json.loads(line.run("map", str(path), "-o", "json").out)["summary"]

    assert (told["cards"], told["free"], told["gettable"]) == (
        {"min": 0, "max": None},
        {"min": 0, "max": None},
        0,
    )
