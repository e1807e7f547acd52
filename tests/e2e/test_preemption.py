"""A preemption of kube-scheduler's ends the Pods that it needs, and nobody else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.support.campaign import print_figures
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.pods import pods_in
from tests.support.kube.preempting import SHAPES, Agents, Played, know_kinds, make_classes
from tests.support.kube.schedulers import Identities, asking, extender
from tests.support.kube.service_api import Service
from tests.support.process import tenure

WAYS: Final[dict[str, dict[str, Any]]] = {  # both sides of BEGUN_SECONDS
    "without grace": {},
    "with grace": {"grace": 2.0},
    "with a long grace": {"grace": 8.0},
    "with a late agent": {"late": 3.0},
    "with a very late agent": {"late": 8.0},
    "with competitors": {"waiting": 2, "coming": 2},
}
SAMPLE: Final = (
    *((shape, "without grace") for shape in SHAPES),
    ("a whole card on halves", "with grace"),
    ("a whole card on halves", "with a late agent"),
    ("a whole card on halves", "with competitors"),
)
CAMPAIGN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A service and a kube-scheduler that runs, and where Pods are made."""

    plane: ControlPlane
    where: str
    service: Service

    def play(self, number: int, shape: str, way: str) -> tuple[int, int]:
        """Let Pods be preempted; return how many ended, and how many had to."""
        more = dict(WAYS[way])
        late = more.pop("late", None)
        agents = None if late is None else Agents(service=self.service, late_seconds=late)
        played = Played(
            plane=self.plane,
            where=self.where,
            name=f"pre{number}",
            shape=SHAPES[shape],
            agents=agents,
            **more,
        )
        return played.run()


@pytest.fixture
def scene(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
) -> Iterator[Scene]:
    """A live service on SQLite, asked by a stock kube-scheduler."""
    know_kinds(plane)
    make_classes(plane)
    url, port = f"sqlite:///{tmp_path / 'live.db'}", free_port()
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    where = pods_in(namespace(managed=False))
    with (
        extender(plane, url, identities, api=port, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        service = Service(port=port, authority=identities.server / "ca.crt")
        yield Scene(plane=plane, where=where, service=service)


def test_a_preemption_ends_the_least_number_of_pods(scene: Scene) -> None:
    """Also while releases wait for a grace period or an agent, and beside other Pods."""
    found = {each: scene.play(number, *each) for number, each in enumerate(SAMPLE)}
    assert {each: counts for each, counts in found.items() if counts[0] != counts[1]} == {}


@pytest.mark.slow
def test_two_hundred_preemptions_end_the_least_number_of_pods(scene: Scene) -> None:
    """Of every shape in every way, in an order that a seed draws."""
    kinds = [(shape, way) for shape in SHAPES for way in WAYS]
    order = (kinds * (CAMPAIGN // len(kinds) + 1))[:CAMPAIGN]
    Random(37).shuffle(order)
    found = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for number, kind in enumerate(order):
        found[kind].append(scene.play(number, *kind))
        print_figures(
            f"{number}: {', '.join(kind)}",
            dict(zip(("ended", "least"), found[kind][-1], strict=True)),
        )
    for kind in kinds:
        ended, least = map(sum, zip(*found[kind], strict=True))
        figures = {"preemptions": len(found[kind]), "ended": ended, "least": least}
        print_figures(", ".join(kind), figures)
    assert {kind: each for kind, each in found.items() if any(a != b for a, b in each)} == {}
