"""
Random small nodes, allocator against oracle, case by case.

One case again: `python -m tests.oracles.campaign DIALECT SEED`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Final

from ledger.domain.vocabulary import Vocabulary
from scheduler.decide.settings import DeviceSettings, MGPUSettings, SchedulingSettings
from tests.oracles import draw, gpushare, hami, koordinator, mgpu
from tests.oracles.allocator import chosen, decided, requested
from tests.oracles.machine import REFUSED, UNFIT, Ask, Device, Given, Machine

ENGINE_EVERY: Final = 4
"""One case in so many is decided by an engine too, which takes longer than all the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One node, one Pod, the settings, and what the oracle says.

    Attributes:
        spoken_of: keeps of an answer what the oracle speaks of.
    """

    machine: Machine
    ask: Ask
    settings: SchedulingSettings
    expected: object
    spoken_of: Callable[[Given], object]

    @property
    def outcome(self) -> str:
        """Return what the oracle says, in one word."""
        words = {REFUSED: "refused", UNFIT: "unfit"}
        return words.get(str(self.expected), "placed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question with the answers of the ways into the allocator, by name."""

    question: Question
    answers: Mapping[str, object]

    @property
    def agrees(self) -> bool:
        """Tell whether all answers are the oracle's, ties included."""
        return all(answer == self.question.expected for answer in self.answers.values())


def case_of(dialect: str, seed: int) -> Case:
    """Return one case with its answers."""
    question = DIALECTS[dialect](Random(f"{dialect} {seed}"))
    ways = {"chosen": chosen} | ({} if seed % ENGINE_EVERY else {"decided": decided})
    answers: dict[str, object] = {}
    request = requested(question.ask, question.settings)
    for name, way in ways.items():
        answer = REFUSED if request is None else way(question.machine, request, question.settings)
        answers[name] = answer if isinstance(answer, str) else question.spoken_of(answer)
    return Case(question=question, answers=answers)


def disagreements(dialect: str, seeds: Iterable[int], outcomes: Counter[str]) -> list[int]:
    """Return the seeds on which allocator and oracle differ; count what the oracle says."""
    different = []
    for seed in seeds:
        case = case_of(dialect, seed)
        outcomes[case.question.outcome] += 1
        if not case.agrees:
            different.append(seed)
    return different


def _everything(given: Given) -> object:
    return given


def _parts(given: Given) -> object:
    return given[0]


def _uses(given: Given) -> object:
    return given[1]


def _devices(rng: Random, machine: Machine, ask: Ask) -> Question:
    devices = DeviceSettings(
        scoring=rng.choice(["MostAllocated", "LeastAllocated"]),
        partition_score_order=rng.choice(["highest", "highest", "highest", "release"]),
    )
    return Question(
        machine=machine,
        ask=ask,
        settings=SchedulingSettings(devices=devices),
        expected=koordinator.expected(machine, ask, devices),
        spoken_of=_everything,
    )


def _nvidia(rng: Random) -> Question:
    return _devices(rng, draw.machine(rng), draw.nvidia_ask(rng))


def _koordinator(rng: Random) -> Question:
    return _devices(rng, draw.machine(rng), draw.koordinator_ask(rng))


def _joint(rng: Random) -> Question:
    return _devices(rng, draw.joint_machine(rng), draw.joint_ask(rng))


def _partitions(rng: Random) -> Question:
    machine = draw.machine(rng, links=0.1, tables=0.95)
    return _devices(rng, machine, draw.partitions_ask(rng))


def _links(rng: Random) -> Question:
    return _devices(
        rng,
        draw.machine(rng, most=rng.choice([4, 6, 6, 8]), links=1.0, tables=0.1),
        draw.links_ask(rng),
    )


def _mgpu(rng: Random) -> Question:
    wishes = MGPUSettings(
        policy=rng.choice(["binpack", "spread"]),
        weight_of_core=rng.choice([0, 20, 20, 50, 100]),
        max_containers_per_card=rng.choice([1, 2, 3, 16]),
        search_levels=rng.choice([0, 1, 2, 5, 5, 5]),
    )
    machine, ask = draw.mgpu_machine(rng), draw.mgpu_ask(rng)
    return Question(
        machine=machine,
        ask=ask,
        settings=SchedulingSettings(mgpu=wishes),
        expected=mgpu.expected(machine, ask, wishes),
        spoken_of=_uses,
    )


def _gpushare(rng: Random) -> Question:
    unit = rng.choice(["MiB", "GiB"])
    machine, ask = draw.gpushare_machine(rng), draw.gpushare_ask(rng, unit)
    return Question(
        machine=machine,
        ask=ask,
        settings=SchedulingSettings(vocabulary=Vocabulary(gpushare_unit=unit)),
        expected=gpushare.expected(machine, ask, unit),
        spoken_of=_parts,
    )


def _hami(rng: Random) -> Question:
    devices = DeviceSettings(scoring=rng.choice(["MostAllocated", "LeastAllocated"]))
    machine, ask = draw.gpushare_machine(rng), draw.hami_ask(rng)
    return Question(
        machine=machine,
        ask=ask,
        settings=SchedulingSettings(devices=devices),
        expected=hami.expected(machine, ask, devices),
        spoken_of=_everything,
    )


DIALECTS: Final[dict[str, Callable[[Random], Question]]] = {
    "nvidia": _nvidia,
    "koordinator": _koordinator,
    "joint": _joint,
    "partitions": _partitions,
    "links": _links,
    "mgpu": _mgpu,
    "gpushare": _gpushare,
    "hami": _hami,
}


def told(case: Case) -> str:
    """Return a case in lines short enough to think about: what differs from an idle node."""
    nothing = Device(kind="", minor=0)
    lines = []
    question = case.question
    for item in question.machine.devices:
        words = [
            f"{spec.name}={value}"
            for spec in fields(Device)
            if (value := getattr(item, spec.name)) != getattr(nothing, spec.name)
            and spec.name not in {"kind", "minor"}
        ]
        lines.append(f"{item.kind}-{item.minor} {' '.join(words)}")
    machine = question.machine
    lines += [f"links {row}" for row in (machine.links.rows if machine.links else ())]
    lines += [f"nominal {row}" for row in (machine.nominal.rows if machine.nominal else ())]
    lines += [
        f"partition {item.minors} score={item.score} ring={item.ring}"
        for group in (machine.partitions or {}).values()
        for item in group
    ]
    lines.append(
        f"table={machine.partitions is not None} honors={machine.honors} mgpu={machine.mgpu_policy}"
    )
    lines += [f"{question.ask}", f"{question.settings.devices} {question.settings.mgpu}"]
    return "\n".join(
        (
            *lines,
            f"expected {question.expected}",
            *(f"{name:8} {answer}" for name, answer in case.answers.items()),
            "",
        )
    )


def main() -> None:
    """Print one case and both answers."""
    sys.stdout.write(told(case_of(sys.argv[1], int(sys.argv[2]))))


if __name__ == "__main__":
    main()
