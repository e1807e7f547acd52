"""The questions that a service answers, each by the function of its command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tenure.asking import Answer, Answers, Lines, Sight, lines_of, question_of
from tenure.output import LINE_WIDTH
from tenure.query.drift import DriftQuestion, answer_drift
from tenure.query.pods import PodsQuestion, answer_pods
from tenure.query.top import TopQuestion, answer_top
from tenure.query.usage import UsageQuestion, answer_usage
from tenure.query.who import WhoQuestion, answer_who
from tenure.query.why import WhyQuestion, answer_why
from tenure.report.map import MapQuestion, answer_map

if TYPE_CHECKING:
    from ledger.store.open import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a question is made of, and who answers it."""

    question: type[Any]
    answers: Answers[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question that can be answered, with the line length of the asker."""

    kind: Kind
    question: Any
    lines: Lines

    def answer(self, source: Ledger, sight: Sight) -> Answer:
        """Answer it. Raises InputError: it is of what nobody knows."""
        LINE_WIDTH.set(self.lines.columns)  # the asker's, not this process's
        return self.kind.answers(source, self.question, sight)


QUESTIONS: Final[Mapping[str, Kind]] = {
    "drift": Kind(question=DriftQuestion, answers=answer_drift),
    "map": Kind(question=MapQuestion, answers=answer_map),
    "pods": Kind(question=PodsQuestion, answers=answer_pods),
    "top": Kind(question=TopQuestion, answers=answer_top),
    "usage": Kind(question=UsageQuestion, answers=answer_usage),
    "who": Kind(question=WhoQuestion, answers=answer_who),
    "why": Kind(question=WhyQuestion, answers=answer_why),
}


def asked(name: str, params: Iterable[tuple[str, str]]) -> Asked:
    """Return a question of `QUESTIONS`. Raises InputError: a parameter is unknown or wrong."""
    kind = QUESTIONS[name]
    own, lines = list[tuple[str, str]](), list[tuple[str, str]]()
    for each in params:
        (lines if each[0] == "columns" else own).append(each)
    return Asked(kind=kind, question=question_of(kind.question, own), lines=lines_of(lines))
