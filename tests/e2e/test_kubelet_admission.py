"""Kubelet's own code admits every Pod of which deciding says that it does."""

from __future__ import annotations

from typing import Final

from tests.oracles.kubelet import Answers, ours, question_of
from tests.support.kube.kubelet import admissions

CASES: Final = 20_000


def test_what_we_place_kubelet_admits_on_random_machines() -> None:
    """CPU proposal, Story 3: CPU and Topology Manager, both scopes, restricted and single."""
    questions = [question_of(seed) for seed in range(CASES)]
    asked = zip(questions, admissions(questions), strict=True)
    answers = [Answers(question=each, kubelet=said, ours=ours(each)) for each, said in asked]

    different = [number for number, answer in enumerate(answers) if not answer.agree]
    assert not different, (len(different), answers[different[0]])
    assert sum(answer.kubelet for answer in answers) > CASES // 2
    assert sum(not answer.kubelet for answer in answers) > CASES // 4
    assert sum(answer.kubelet and not answer.ours for answer in answers) < CASES // 10
