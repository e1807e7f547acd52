"""The corpus of clusters: its dumps, what was written down beside them, and what waits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

Json = Any
CORPUS: Final = Path(__file__).parent.parent / "corpus"
NOW: Final = "2026-11-23T08:00:00Z"
"""When the dumps were printed."""

WAITING: Final = frozenset((CORPUS / "waiting.txt").read_text("utf-8").splitlines())
"""What is not told rightly yet, as "command dump"; what is has to leave the list.

Of what `claims` says of a whole command line: "COMMAND of DUMP", of its ledger
"COMMAND --ledger of DUMP".
"""

QUICK: Final = {
    "a12-gpushare-gib",
    "a15-amd-cpx",
    "dra-725-zombie-claim",
    "dra-extended-resource",
    "dra-taints-and-rule",
    "gpushare-gib",
    "hami-1069-gpu.memory",
    "hami-1422b-one-mig-one-core",
    "hami-closed-each-way",
    "hami-shares",
    "kai-464-three-halves",
    "koordinator-double",
    "mgpu-shares",
    "mixed-five-systems",
    "nvidia-mig-mixed",
    "nvidia-plain-phases",
    "nvidia-timeslicing",
    "nvidia-two-nodes-one-machine",
    "operator-1065-seven-of-eight",
    "operator-386-two-slots",
    "queue-third-of-two",
    "tenure-on-plain-node",
    "vendors-some-held",
    "volcano-4713-one-smaller",
    "volcano-vgpu-shares",
}
"""One dump of each system or kind; the others are in `make slow` where each takes seconds."""


def dumps(part: str = "map") -> list[str]:
    """Return the dumps whose truth has such a part, by name."""
    found = sorted(path.parent.name for path in CORPUS.glob("*/truth.json"))
    return [dump for dump in found if part in truth_of(dump)]


def one_of_each(part: str = "map") -> list[Any]:
    """Return the dumps as cases, of which `make test` runs one of each system."""
    return [
        pytest.param(dump, marks=[] if dump in QUICK else pytest.mark.slow) for dump in dumps(part)
    ]


def every_dump() -> list[Any]:
    """Return all clusters that have a node as cases, of which `make test` runs one of each."""
    found = sorted(path.parent.name for path in CORPUS.glob("*/dump.json"))
    return [
        pytest.param(dump, marks=[] if dump in QUICK else pytest.mark.slow)
        for dump in found
        if '"Node"' in (CORPUS / dump / "dump.json").read_text("utf-8")
    ]


def truth_of(dump: str) -> Json:
    """Return what was written down beside a dump."""
    return json.loads((CORPUS / dump / "truth.json").read_text("utf-8"))


def waits(each: Json) -> bool:
    """Whether an object is a Pod that holds nothing yet: HAMi's Pods hold before they are bound."""
    if each["kind"] != "Pod" or "nodeName" in each["spec"]:
        return False
    return "hami.io/vgpu-node" not in each["metadata"].get("annotations", {})


def settle(cases: Mapping[str, Sequence[str]]) -> None:
    """Fail with what is wrong of any case, or because nothing is of one that still waits."""
    wrong = []
    for case, found in cases.items():
        if case not in WAITING and found:
            wrong.append("\n  ".join((case, *found)))
        elif case in WAITING and not found:
            wrong.append(f"{case} is told rightly: take it out of tests/corpus/waiting.txt")
    assert not wrong, "\n".join(wrong)
