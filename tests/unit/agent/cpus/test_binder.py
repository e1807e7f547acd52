"""Rounds of binding: what is allowed is written, what is not is planned, and all is given back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cpus.binder import (
    BOUND,
    MARK,
    NOT_BOUND,
    REWRITE_SECONDS,
    REWRITES_MAX,
    REWRITTEN,
    SETTLE_SECONDS,
    Binder,
)
from agent.cpus.tree import Kubepods
from agent.decide.cgroups import CgroupFile
from agent.decide.container_cpus import KubeQos
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import parse_cpuset
from tests.support.cgroup_trees import FakeTree, Layout, id_of
from tests.support.planned import node, planned

LAYOUT = Layout(version=1, driver="cgroupfs", runtime="containerd")
OWN, SHARED = 1, 2
LSR = planned(OWN, QosClass.LSR, KubeQos.GUARANTEED, "2-3")
LS = planned(SHARED, QosClass.LS, KubeQos.BURSTABLE)


class Scene:
    """A node with an LSR Pod and one of shared CPUs, as kubelet has made their cgroups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fake = FakeTree(folder / "cgroup", LAYOUT)
        self.own = self.fake.pod(OWN, containers=[OWN])
        self.shared = self.fake.pod(SHARED, "burstable", [SHARED])
        for path in (self.own, self.inside(self.own, OWN)):
            self.fake.say(path, "200000", "cpu.cfs_quota_us")
        self.state = folder / "state"
        self.state.mkdir()
        self.tree = Kubepods(self.fake.cpuset, self.fake.cpu, (6, 12))
        self.now = 0.0
        self.binder = self.again()

    def again(self) -> Binder:
        """Return what binds, as a new process begins."""
        return Binder(tree=self.tree, state=self.state, clock=lambda: self.now)

    def inside(self, path: str, number: int) -> str:
        """Return the path of a container's cgroup."""
        return f"{path}/{LAYOUT.container(id_of(number))}"

    def cpus(self) -> tuple[str, str]:
        """Return what both containers may use."""
        paths = self.inside(self.own, OWN), self.inside(self.shared, SHARED)
        return self.fake.says(paths[0]), self.fake.says(paths[1])

    def words(self) -> dict[str, str]:
        """Return what every file says."""
        return {
            path.removeprefix(str(self.folder)): text for path, (_, text) in self.files().items()
        }

    def files(self) -> dict[str, tuple[int, str]]:
        """Return every file, when it was written last, and its words."""
        roots = [self.fake.cpuset, self.fake.cpu]
        return {
            str(path): (path.stat().st_mtime_ns, path.read_text())
            for root in roots
            if root
            for path in root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """The node."""
    made = Scene(tmp_path)
    yield made
    made.tree.close()


def test_containers_get_what_is_planned_and_a_second_round_writes_nothing(scene: Scene) -> None:
    """Its own CPUs without a quota; what is left for whoever shares."""
    made = scene.binder.round(node(LSR, LS), allowed=True)
    assert scene.cpus() == ("2-3", "0-1")
    assert scene.fake.says(scene.inside(scene.own, OWN), "cpu.cfs_quota_us") == "-1"
    assert made.applied.done
    assert made.condition(str).reason == BOUND
    again = scene.binder.round(node(LSR, LS), allowed=True)
    assert not again.plan.writes
    assert (scene.state / MARK).exists()


def test_without_the_label_nothing_is_written_and_the_plan_is_there(scene: Scene) -> None:
    """Not even the mark."""
    before = scene.files()
    made = scene.binder.round(node(LSR, LS), allowed=False)
    assert {one.path for one in made.plan.writes} >= {scene.inside(scene.own, OWN)}
    assert scene.files() == before
    assert not [*scene.state.iterdir()]


def test_what_was_bound_is_given_back_once_the_label_is_gone(scene: Scene) -> None:
    """By whichever process: the mark says that one has written; then it writes nothing more."""
    scene.binder.round(node(LSR, LS), allowed=True)
    scene.binder = scene.again()
    made = scene.binder.round(node(LSR, LS), allowed=False)
    assert scene.cpus() == ("0-3", "0-3")
    assert scene.fake.says(scene.inside(scene.own, OWN), "cpu.cfs_quota_us") == "200000"
    assert made.applied.done
    scene.now += SETTLE_SECONDS
    scene.binder.round(node(LSR, LS), allowed=False)
    assert not (scene.state / MARK).exists()
    before = scene.files()
    scene.binder.round(node(LSR, LS), allowed=False)
    assert scene.files() == before


def test_a_container_that_was_in_the_making_is_given_back_as_well(scene: Scene) -> None:
    """The runtime was told its CPUs before the label went, and makes its cgroup after the round."""
    scene.binder.round(node(LSR, LS), allowed=True)
    scene.binder.round(node(LSR, LS), allowed=False)
    scene.now += SETTLE_SECONDS - 1
    late = scene.inside(scene.fake.pod(OWN, containers=[OWN, 9]), 9)
    scene.fake.say(late, "2-3")
    scene.binder.round(node(LSR, LS), allowed=False)
    assert scene.fake.says(late) == "0-3"
    scene.now += SETTLE_SECONDS - 1
    scene.binder.round(node(LSR, LS), allowed=False)
    assert (scene.state / MARK).exists(), "another one may come"
    scene.now += 1
    scene.binder.round(node(LSR, LS), allowed=False)
    assert not (scene.state / MARK).exists()


def test_the_mark_is_there_before_the_first_write(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends between any two of its acts leaves what a later process can give back."""
    seen: list[bool] = []
    really = Kubepods.write

    def note(tree: Kubepods, path: str, file: CgroupFile, value: str) -> None:
        seen.append((scene.state / MARK).exists())
        really(tree, path, file, value)

    monkeypatch.setattr(Kubepods, "write", note)
    scene.binder.round(node(LSR, LS), allowed=True)
    assert seen
    assert all(seen)


class EndedError(Exception):
    """The process was killed."""


class Ending(Kubepods):
    """A tree whose process ends before one of its writes."""

    def __init__(self, scene: Scene, writes: int) -> None:
        super().__init__(scene.fake.cpuset, scene.fake.cpu, (6, 12))
        self._left = writes

    def write(self, path: str, file: CgroupFile, value: str) -> None:
        """Write, or be killed."""
        if not self._left:
            raise EndedError
        self._left -= 1
        super().write(path, file, value)


def test_a_process_that_ends_between_any_two_writes_is_followed_by_one_that_finishes(
    tmp_path: Path,
) -> None:
    """The same cgroups come out."""
    whole = Scene(tmp_path / "whole")
    count = len(whole.binder.round(node(LSR, LS), allowed=True).applied.done)
    assert count > 2
    wanted = whole.words()
    whole.tree.close()
    for last in range(count):
        scene = Scene(tmp_path / f"ended-{last}")
        scene.binder.tree = Ending(scene, last)
        with pytest.raises(EndedError):
            scene.binder.round(node(LSR, LS), allowed=True)
        scene.binder.tree.close()
        scene.tree.close()
        scene.tree = Kubepods(scene.fake.cpuset, scene.fake.cpu, (6, 12))
        scene.again().round(node(LSR, LS), allowed=True)
        assert scene.words() == wanted
        scene.tree.close()


def test_who_writes_a_file_back_again_and_again_keeps_it_for_a_while(scene: Scene) -> None:
    """Two that repair each other never end: it is named, and tried again later."""
    inside = scene.inside(scene.shared, SHARED)
    for _ in range(REWRITES_MAX + 1):
        scene.binder.round(node(LSR, LS), allowed=True)
        assert scene.fake.says(inside) == "0-1"
        scene.fake.say(inside, "0-3")
        scene.now += 1
    made = scene.binder.round(node(LSR, LS), allowed=True)
    assert scene.fake.says(inside) == "0-3"
    assert [one.reason for one in made.problems] == [REWRITTEN]
    assert made.condition(str).reason == NOT_BOUND
    scene.now += REWRITE_SECONDS + REWRITES_MAX
    scene.binder.round(node(LSR, LS), allowed=True)
    assert scene.fake.says(inside) == "0-1"


def test_other_pools_are_no_rewriting(scene: Scene) -> None:
    """Pods come and go as often as they like."""
    for number in range(4 * REWRITES_MAX):
        cpus = "2-3" if number % 2 else "1,3"
        lsr = replace(LSR, status=ResourceStatus(cpuset=parse_cpuset(cpus)))
        scene.binder.round(node(lsr, LS), allowed=True)
        assert scene.cpus()[0] == cpus
