"""Recorded answers of kubelet: what is rejected there is not placed here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

from tests.oracles.kubelet import Answers, ours

RECORDED: Final = Path(__file__).parents[1] / "samples" / "kubelet_admissions.jsonl.gz"


def test_what_kubelet_rejected_is_not_placed() -> None:
    """CPU proposal, Story 3: 1,500 recorded admissions; `tests/e2e` asks kubelet's code anew."""
    with gzip.open(RECORDED, "rt", encoding="ascii") as lines:
        _, *entries = map(json.loads, lines)
    answers = [Answers(question=each, kubelet=each["admits"], ours=ours(each)) for each in entries]

    assert len(answers) == 1500
    assert [answer for answer in answers if not answer.agree] == []


def test_a_pod_of_six_cpus_needs_one_numa_node_of_twelve() -> None:
    """CPU proposal, Story 3: two NUMA nodes of 12 CPUs, 4 free each; four fit, six do not."""
    question = {
        "cpus": [[cpu, cpu % 12, 0, cpu % 12 // 6] for cpu in range(24)],
        "reserved": [0],
        "taken": [1, 2, 3, 12, 13, 14, 15, 6, 7, 8, 9, 18, 19, 20, 21],
        "policy": "restricted",
        "options": {},
    }
    for scope in ("pod", "container"):
        asked = [{**question, "scope": scope, "containers": [["app", n]]} for n in (4, 6)]
        assert [ours(each) for each in asked] == [True, False]
