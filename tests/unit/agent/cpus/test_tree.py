"""The kubepods tree as it is read: every layout of kubelet's drivers and of the runtimes."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cpus import tree
from agent.cpus.tree import Changes, GoneError, Kubepods, version_of_kernel
from agent.decide.cgroups import CgroupFile, CgroupNow, CgroupVersion
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tests.support.cgroup_trees import CONTAINERS, FakeTree, Layout, id_of, uid_of

LAYOUTS = [
    Layout(version=version, driver=driver, runtime=runtime)
    for version, (runtime, driver) in itertools.product((1, 2), CONTAINERS)
]


@pytest.fixture(params=LAYOUTS, ids=str)
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> FakeTree:
    """A tree of each layout."""
    return FakeTree(tmp_path, request.param)


@pytest.fixture
def pods(fake: FakeTree) -> Iterator[Kubepods]:
    """What reads it, opened while it was empty."""
    opened = Kubepods(fake.cpuset, fake.cpu, (6, 12))
    yield opened
    opened.close()


def found(pods: Kubepods, *, whole: bool = False) -> dict[str, CgroupNow]:
    """Return what is there by path."""
    return {one.path: one for one in pods.look(whole=whole).cgroups}


def test_pods_and_containers_are_told_by_the_names_of_their_cgroups(
    fake: FakeTree, pods: Kubepods
) -> None:
    """Guaranteed Pods lie beside the classes, others in them; systemd's names have no dashes."""
    made = [
        fake.pod(number, of_class, [number])
        for number, of_class in enumerate(("", "burstable", "besteffort"))
    ]
    nested = fake.make(f"{made[1]}/{fake.layout.container(id_of(1))}/own/deeper")
    beside = fake.make(f"{made[1]}/crio-conmon-{id_of(1)}.scope")
    fake.make("foreign/deeper")
    static = fake.make(fake.layout.pod("a" * 32, "burstable"))

    there = found(pods)

    for number, path in enumerate(made):
        inside = f"{path}/{fake.layout.container(id_of(number))}"
        assert (there[path].pod_uid, there[path].container) == (uid_of(number), "")
        assert (there[inside].pod_uid, there[inside].container) == (uid_of(number), id_of(number))
    assert (there[nested].pod_uid, there[nested].container) == (uid_of(1), id_of(1))
    assert (there[beside].pod_uid, there[beside].container) == (uid_of(1), "")
    assert there[static].pod_uid == "a" * 32
    assert there[""].pod_uid == ""
    assert not [path for path in there if path.startswith("foreign")]
    assert pods.look().version == fake.layout.version
    order = list(there)
    assert all(order.index(path) > order.index(path.rpartition("/")[0]) for path in order[1:])


def test_what_files_say_is_read(fake: FakeTree, pods: Kubepods) -> None:
    """Also the quota, which v1 has in another hierarchy."""
    path = fake.pod(1)
    fake.say(path, "1,3")
    file, text = ("cpu.cfs_quota_us", "40000") if fake.cpu else ("cpu.max", "40000 100000")
    fake.say(path, text, file)
    one = found(pods)[path]
    assert (one.cpus, one.mems) == (parse_cpuset("1,3"), parse_cpuset("0"))
    assert (one.quota, one.period, one.populated) == (40_000, 100_000, True)
    assert one.partition == ("" if fake.cpu else "member")
    assert one.effective == parse_cpuset("1,3" if fake.cpu else "0-3")


def test_what_comes_changes_and_goes_is_seen_at_the_next_look(
    fake: FakeTree, pods: Kubepods
) -> None:
    """A container that starts again has another cgroup, also where its name is the same."""
    path = fake.pod(1, "burstable", [1])
    inside = f"{path}/{fake.layout.container(id_of(1))}"
    assert inside in found(pods)
    fake.say(inside, "2")
    assert found(pods)[inside].cpus == parse_cpuset("2")
    fake.remove(inside)
    fake.make(inside)
    assert found(pods)[inside].cpus == parse_cpuset("0-3")
    fake.remove(inside)
    fake.remove(path)
    assert set(found(pods)) == {"", *([path.rpartition("/")[0]])}
    with pytest.raises(GoneError):
        pods.write(inside, CgroupFile.CPUS, "1")


def test_a_tree_in_which_nothing_changes_is_not_read_again(
    fake: FakeTree, pods: Kubepods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle agent costs nothing; a whole look reads what the kernel tells nobody."""
    path = fake.pod(1)
    before = found(pods)
    reads: list[Any] = []
    really = os.open

    def note(*given: Any, **more: Any) -> int:  # noqa: ANN401 - as it is called
        reads.append(given)
        return really(*given, **more)

    monkeypatch.setattr(os, "open", note)
    assert found(pods) == before
    assert not reads
    assert path in found(pods, whole=True)
    assert reads


def test_a_file_is_written_below_kubepods_and_told_back(fake: FakeTree, pods: Kubepods) -> None:
    """Shorter texts leave nothing of what was there."""
    path = fake.pod(1, containers=[7])
    inside = f"{path}/{fake.layout.container(id_of(7))}"
    found(pods)
    pods.write(inside, CgroupFile.CPUS, "3")
    quota = CgroupFile.QUOTA if fake.cpu else CgroupFile.MAX
    value = "5000" if fake.cpu else "5000 100000"
    pods.write(inside, quota, value)
    assert (fake.says(inside), fake.says(inside, quota)) == ("3", value)
    assert pods.text(inside, CgroupFile.CPUS) == "3"
    assert found(pods)[inside].cpus == parse_cpuset("3")


def test_no_link_is_followed(fake: FakeTree, pods: Kubepods, tmp_path: Path) -> None:
    """Neither a folder that is a link, nor a file in a cgroup."""
    path = fake.pod(1, containers=[1])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cpuset.cpus").write_text("0-3")
    (fake.cpuset / path / fake.layout.container(id_of(9))).symlink_to(outside)
    inside = f"{path}/{fake.layout.container(id_of(1))}"
    assert f"{path}/{fake.layout.container(id_of(9))}" not in found(pods)
    (fake.cpuset / inside / "cpuset.cpus").unlink()
    (fake.cpuset / inside / "cpuset.cpus").symlink_to(outside / "cpuset.cpus")
    with pytest.raises(OSError, match="symbolic"):
        pods.write(inside, CgroupFile.CPUS, "1")
    for wrong in ("../outside", f"{path}/../../outside", "/etc"):
        with pytest.raises(GoneError):
            pods.write(wrong, CgroupFile.CPUS, "1")
    assert (outside / "cpuset.cpus").read_text() == "0-3"
    link = tmp_path / "link.slice"
    link.symlink_to(fake.cpuset)
    with pytest.raises(InputError, match="no cgroup of Pods"):
        Kubepods(link, None, (6, 12))


def test_cgroups_of_one_container_are_bounded(
    fake: FakeTree, pods: Kubepods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that may make cgroups keeps no other from being looked at, and is named."""
    monkeypatch.setattr(tree, "NESTED_MAX", 4)
    path = fake.pod(1, containers=[1])
    inside = f"{path}/{fake.layout.container(id_of(1))}"
    for number in range(9):
        fake.make(f"{inside}/own-{number}")
    other = fake.pod(2, containers=[2])
    there = found(pods)
    assert other in there
    assert sum(path.startswith(f"{inside}/") for path in there) == 4
    assert pods.cut == {inside}


def test_a_container_of_which_not_all_is_looked_at_may_have_tasks(
    fake: FakeTree, pods: Kubepods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of v2 the kernel tells it of all below; v1 tells of each cgroup alone."""
    monkeypatch.setattr(tree, "NESTED_MAX", 2)
    inside = f"{fake.pod(1, containers=[1])}/{fake.layout.container(id_of(1))}"
    for number in range(4):
        fake.make(f"{inside}/own-{number}")
        fake.say(f"{inside}/own-{number}", "", "cgroup.procs")
    fake.say(inside, "", "cgroup.procs")
    if fake.layout.version == CgroupVersion.V2:
        fake.say(inside, "populated 0\nfrozen 0\n", "cgroup.events")
    assert found(pods)[inside].populated is (fake.layout.version == CgroupVersion.V1)
    for number in range(4):
        fake.remove(f"{inside}/own-{number}")
    assert not found(pods)[inside].populated


def number_of_open() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("fails", [1, 2])
def test_a_cgroup_that_could_not_be_watched_is_tried_again_and_leaves_nothing_open(
    fake: FakeTree, pods: Kubepods, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Watches are bounded for each user of the machine: an error of it is no leak a round."""
    assert found(pods)
    really, calls = Changes.add, itertools.count(1)

    def add(self: Changes, folder: int) -> int:
        if next(calls) >= fails:
            raise OSError(errno.ENOSPC, "no watch is left")
        return really(self, folder)

    path = fake.pod(1, containers=[1])
    open_before = number_of_open()
    with monkeypatch.context() as patch:
        patch.setattr(Changes, "add", add)
        for _ in range(5):
            with pytest.raises(OSError, match="no watch is left"):
                pods.look()
        assert number_of_open() <= open_before + fails - 1
    there = found(pods)
    inside = f"{path}/{fake.layout.container(id_of(1))}"
    assert {path, inside} <= there.keys()
    fake.say(inside, "1")
    assert found(pods)[inside].cpus == parse_cpuset("1")


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.12.9-amd64", (6, 12)), ("6.12-rc1", (6, 12)), ("5.4.0", (5, 4))],
)
def test_a_kernel_is_told_by_its_release(release: str, version: tuple[int, int]) -> None:
    """Whatever a distribution adds to it."""
    assert version_of_kernel(release) == version


def test_what_names_no_kernel_is_refused() -> None:
    """No number of it is made up."""
    with pytest.raises(InputError, match="no release of a kernel"):
        version_of_kernel("linux")


def test_a_tree_that_is_too_large_is_cut_and_named(
    fake: FakeTree, pods: Kubepods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at takes a bounded time."""
    monkeypatch.setattr(tree, "CGROUPS_MAX", 5)
    for number in range(9):
        fake.pod(number)
    assert len(found(pods)) == 5
    assert pods.cut == {""}


def test_the_end_of_kubepods_itself_is_said(fake: FakeTree, pods: Kubepods) -> None:
    """Nothing is known then: not that there are no Pods."""
    fake.remove("")
    with pytest.raises(InputError, match="has ended"):
        pods.look(whole=True)
