"""
Random small nodes, allocator against oracle, case by case.

One case again: `python -m tests.oracles.campaign DIALECT SEED`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from random import Random
from typing import Final

from ledger.domain.normalise import NormaliseSettings
from scheduler.decide.settings import DeviceSettings, MGPUSettings, SchedulingSettings
from tests.oracles import draw, gpushare, koordinator, mgpu
from tests.oracles.machine import REFUSED, UNFIT, Ask, Device, Machine, allocated

Answer = object


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One node, one Pod, the settings, and both answers."""

    machine: Machine
    ask: Ask
    settings: SchedulingSettings
    expected: Answer
    found: Answer

    @property
    def outcome(self) -> str:
        """Return what the oracle says, in one word."""
        words = {REFUSED: "refused", UNFIT: "unfit"}
        return words.get(str(self.expected), "placed")


def case_of(dialect: str, seed: int) -> Case:
    """Return one case with both answers."""
    return DIALECTS[dialect](Random(f"{dialect} {seed}"))


def disagreements(dialect: str, seeds: Iterable[int], outcomes: Counter[str]) -> list[int]:
    """Return the seeds on which allocator and oracle differ; count what the oracle says."""
    different = []
    for seed in seeds:
        case = case_of(dialect, seed)
        outcomes[case.outcome] += 1
        if case.found != case.expected:
            different.append(seed)
    return different


def _devices(rng: Random, machine: Machine, ask: Ask) -> Case:
    devices = DeviceSettings(
        scoring=rng.choice(["MostAllocated", "LeastAllocated"]),
        partition_score_order=rng.choice(["highest", "highest", "highest", "release"]),
    )
    settings = SchedulingSettings(devices=devices)
    return Case(
        machine=machine,
        ask=ask,
        settings=settings,
        expected=koordinator.expected(machine, ask, devices),
        found=allocated(machine, ask, settings, NormaliseSettings()),
    )


def _nvidia(rng: Random) -> Case:
    return _devices(rng, draw.machine(rng), draw.nvidia_ask(rng))


def _koordinator(rng: Random) -> Case:
    return _devices(rng, draw.machine(rng), draw.koordinator_ask(rng))


def _joint(rng: Random) -> Case:
    return _devices(rng, draw.joint_machine(rng), draw.joint_ask(rng))


def _partitions(rng: Random) -> Case:
    machine = draw.machine(rng, links=0.1, tables=0.95)
    return _devices(rng, machine, draw.partitions_ask(rng))


def _links(rng: Random) -> Case:
    return _devices(
        rng,
        draw.machine(rng, most=rng.choice([4, 6, 6, 8]), links=1.0, tables=0.1),
        draw.links_ask(rng),
    )


def _mgpu(rng: Random) -> Case:
    wishes = MGPUSettings(
        policy=rng.choice(["binpack", "spread"]),
        weight_of_core=rng.choice([0, 20, 20, 50, 100]),
        max_containers_per_card=rng.choice([1, 2, 3, 16]),
        search_levels=rng.choice([0, 1, 2, 5, 5, 5]),
    )
    machine, ask = draw.mgpu_machine(rng), draw.mgpu_ask(rng)
    settings = SchedulingSettings(mgpu=wishes)
    found = allocated(machine, ask, settings, NormaliseSettings())
    return Case(
        machine=machine,
        ask=ask,
        settings=settings,
        expected=mgpu.expected(machine, ask, wishes),
        found=found if isinstance(found, str) else found[1],
    )


def _gpushare(rng: Random) -> Case:
    unit = rng.choice(["MiB", "GiB"])
    machine, ask = (
        Machine(devices=tuple(draw.labelled(rng, card) for card in draw.gpus(rng))),
        draw.gpushare_ask(rng, unit),
    )
    settings = SchedulingSettings(gpushare_unit=unit)
    found = allocated(machine, ask, settings, NormaliseSettings(gpushare_unit=unit))
    return Case(
        machine=machine,
        ask=ask,
        settings=settings,
        expected=gpushare.expected(machine, ask, unit),
        found=found if isinstance(found, str) else found[0],
    )


DIALECTS: Final[dict[str, Callable[[Random], Case]]] = {
    "nvidia": _nvidia,
    "koordinator": _koordinator,
    "joint": _joint,
    "partitions": _partitions,
    "links": _links,
    "mgpu": _mgpu,
    "gpushare": _gpushare,
}


def told(case: Case) -> str:
    """Return a case in lines short enough to think about: what differs from an idle node."""
    nothing = Device(kind="", minor=0)
    lines = []
    for item in case.machine.devices:
        words = [
            f"{spec.name}={value}"
            for spec in fields(Device)
            if (value := getattr(item, spec.name)) != getattr(nothing, spec.name)
            and spec.name not in {"kind", "minor"}
        ]
        lines.append(f"{item.kind}-{item.minor} {' '.join(words)}")
    machine = case.machine
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
    lines += [f"{case.ask}", f"{case.settings.devices} {case.settings.mgpu}"]
    return "\n".join((*lines, f"expected {case.expected}", f"found    {case.found}", ""))


def main() -> None:
    """Print one case and both answers."""
    sys.stdout.write(told(case_of(sys.argv[1], int(sys.argv[2]))))


if __name__ == "__main__":
    main()
