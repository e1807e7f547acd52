"""What `tenure why` says of Pods that no node of a dump takes: causes, numbers and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine, dumped
from tests.support.objects import Object, gpu_pod, node

pytestmark = pytest.mark.integration

ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
GPU = "nvidia.com/gpu"
COUNT = f"{GPU}.count"
PENDING = {"nvidia.com/mig.config.state": "pending"}


@pytest.fixture
def line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Return a command line that no ledger is there for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_LEDGER", raising=False)
    return CommandLine(tmp_path / "none.db", capsys)


def offering(name: str, labels: dict[str, str] | None = None, /, **offers: int) -> Object:
    """Return a node that offers these."""
    return node(name, allocatable={**ROOM, **offers}, labels=labels or {})


def why(
    line: CommandLine, limits: dict[str, Any], *objects: Object, **spec: str
) -> tuple[str, dict[str, Any]]:
    """Return what is said of a Pod with these limits: for people, and as JSON."""
    path = dumped(line, *objects, gpu_pod(limits, name="p", namespace="team", uid="p", **spec))
    text, found = line.run("why", "team/p", path), line.run("why", "team/p", path, "-o", "json")
    return text.out, json.loads(found.out)


@pytest.mark.parametrize(
    ("labels", "offers", "asked", "never", "said"),
    [
        pytest.param({COUNT: "8"}, {}, 1, False, "8 of 8 nvidia.com/gpu of n", id="none offered"),
        pytest.param({COUNT: "8"}, {GPU: 0}, 8, False, "8 of 8 nvidia.com/gpu of n", id="gone"),
        pytest.param({COUNT: "8"}, {}, 9, True, "the most is 8", id="more than there are"),
        pytest.param({f"{GPU}.present": "true"}, {}, 1, False, "of n", id="nobody says how many"),
        pytest.param({COUNT: "8", **PENDING}, {GPU: 0}, 1, False, "n is being cut", id="being cut"),
        pytest.param({COUNT: "8"}, {f"{GPU}.shared": 80}, 1, False, "meant", id="replicas"),
        pytest.param({}, {}, 1, True, "there is none", id="a node without cards"),
    ],
)
def test_cards_that_labels_tell_of_are_there(
    line: CommandLine,
    labels: dict[str, str],
    offers: dict[str, int],
    asked: int,
    *,
    never: bool,
    said: str,
) -> None:
    """A plugin that offers nothing may offer them again."""
    text, found = why(line, {GPU: asked}, offering("n", labels, **offers))
    assert bool(found["never"]) == never, text
    assert said in text


@pytest.mark.parametrize(
    ("number", "beside"),
    [
        ("huawei.com/Ascend910B3", "huawei.com/Ascend910B3-memory"),
        ("hygon.com/dcunum", "hygon.com/dcumem"),
        ("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"),
        ("metax-tech.com/sgpu", "metax-tech.com/vcore"),
        ("enflame.com/vgcu", "enflame.com/vgcu-percentage"),
    ],
)
def test_what_hami_reckons_from_its_register_is_never_refused_for_ever(
    line: CommandLine, number: str, beside: str
) -> None:
    """No node offers memory and cores of these cards: the number alone is a plugin's."""
    asked = {number: 1, beside: 10}
    text, found = why(line, asked, offering("n", {}, **{number: 8}), schedulerName="hami-scheduler")
    assert not found["never"], text
    assert f"not decided: spec.containers[{beside}]: hami-scheduler reckons" in text
