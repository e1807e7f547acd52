"""What a guest is made of, as far as it can be seen without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guest import attendant
from tests.support.guest.initrd import archive
from tests.support.guest.machine import CgroupForm, CommandError, Guest
from tests.support.guest.poller import Claim, Poller
from tests.support.guest.programs import load_order
from tests.support.guest.scenarios import KINDS, Scenario, scenarios
from tests.support.guest.switches import Switches


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Guest]:
    """A box that is served on this very machine."""
    (tmp_path / "box").mkdir()
    (tmp_path / "console").touch()
    with subprocess.Popen([sys.executable, "-I", attendant.__file__, tmp_path / "box"]) as process:
        yield Guest(release="", form=CgroupForm.V2, folder=tmp_path, process=process)
        process.kill()


def test_a_command_gives_its_output_or_fails_by_its_code(served: Guest) -> None:
    """Also one that can't be started, and one whose time is up."""
    assert served.run("cat", stdin="so\n") == "so\n"
    with pytest.raises(CommandError, match=r"code=3: [^\n]*\n\nso it is"):
        served.run("sh", "-c", "echo so it is >&2; exit 3")
    with pytest.raises(CommandError, match=f"code={attendant.NO_COMMAND}"):
        served.run("/no/such/program")
    with pytest.raises(CommandError, match=f"code={attendant.LATE}"):
        served.run("sleep", "1000", seconds=0.2)


def test_two_commands_run_beside_each_other_and_one_is_stopped(served: Guest) -> None:
    """The one that waits does not keep the other one back."""
    waiting = served.start("sleep", "1000", seconds=1000.0)

    assert served.run("echo", "here") == "here\n"
    waiting.stop()
    assert waiting.wait() == attendant.LATE


def test_an_archive_has_folders_before_their_files() -> None:
    """The kernel makes no folder by itself."""
    made = archive({"init": (0o755, b"#!"), "bin/deep/busybox": (0o755, b"12345")})

    names, contents, at = [], {}, 0
    while at < len(made):
        assert made[at : at + 6] == b"070701"
        mode, size, length = (int(made[at + n : at + n + 8], 16) for n in (14, 54, 94))
        name = made[at + 110 : at + 110 + length - 1].decode()
        at += -(-(110 + length) // 4) * 4
        names.append((name, mode))
        contents[name] = made[at : at + size]
        at += -(-size // 4) * 4
    assert names == [
        ("bin", 0o40755),
        ("bin/deep", 0o40755),
        ("bin/deep/busybox", 0o100755),
        ("init", 0o100755),
        ("TRAILER!!!", 0),
    ]
    assert (contents["init"], contents["bin/deep/busybox"]) == (b"#!", b"12345")


def test_a_module_loads_after_all_that_it_stands_on(tmp_path: Path) -> None:
    """What has no file is part of the kernel."""
    for name, needs in (("9p", "net-fs,9pnet"), ("9pnet", ""), ("net_fs", "built_in")):
        (tmp_path / f"{name}.ko").write_bytes(b"ELF\0depends=%b\0name=x\0" % needs.encode())

    ordered = load_order(["9p", "9pnet"], tmp_path)

    assert [path.stem for path in ordered] == ["net_fs", "9pnet", "9p"]


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda each: each.name)
def test_every_step_has_an_answer_of_every_kernel(scenario: Scenario) -> None:
    """A mark of what nobody has asked yet is no answer."""
    assert set(scenario.answers) == set(KINDS)
    for answers in scenario.answers.values():
        assert len(answers) == len(scenario.steps)
        assert "?" not in answers


@pytest.fixture
def polled(tmp_path: Path) -> tuple[Poller, Path]:
    """Three cgroups with processes, of which nobody has a claim."""
    for name in ("one", "two", "three"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "cgroup.procs").write_text("17\n")
        (tmp_path / "tree" / name / "effective").write_text("0-7\n")
    _claim(tmp_path, {})
    return Poller(tmp_path / "claims", tmp_path / "tree", "effective"), tmp_path


def _claim(folder: Path, claims: dict[str, Claim]) -> None:
    named = {str(folder / "tree" / name): claim for name, claim in claims.items()}
    (folder / "claims").write_text(json.dumps(named))


def test_the_poller_sees_who_may_run_on_anothers_cpus(polled: tuple[Poller, Path]) -> None:
    """From the first look to the last one that showed it; a guest of a claim is none."""
    poller, folder = polled
    poller.look()
    two, three = (str(folder / "tree" / name) for name in ("two", "three"))
    (folder / "tree/one/effective").write_text("2-3\n")
    (folder / "tree/two/effective").write_text("3-5\n")
    _claim(folder, {"one": Claim(since=1, cpus=[2, 3], guests=[three])})
    poller.look()
    poller.look()
    (folder / "tree/two/effective").write_text("4-5\n")
    poller.look()

    seen = poller.end()

    (exposure,) = seen["exposures"]
    assert (exposure["who"], exposure["cpus"], exposure["at_birth"]) == (two, [3], False)
    assert exposure["lasted"] > 0
    assert (seen["looks"], seen["cgroups"]) == (4, 3)


def test_the_poller_tells_who_was_born_exposed_and_passes_over_the_empty(
    polled: tuple[Poller, Path],
) -> None:
    """A cgroup without a process uses no CPU, whatever it may."""
    poller, folder = polled
    for name in ("two", "three"):
        (folder / "tree" / name / "cgroup.procs").write_text("")
    _claim(folder, {"one": Claim(since=1, cpus=[2], guests=[])})
    poller.look()
    (folder / "tree/two/cgroup.procs").write_text("18\n")
    poller.look()

    (exposure,) = poller.end()["exposures"]

    assert exposure["who"].endswith("/two")
    assert exposure["at_birth"]


def test_the_poller_sees_a_cgroup_that_took_anothers_place(polled: tuple[Poller, Path]) -> None:
    """As many folders as before are not the same ones."""
    poller, folder = polled
    poller.look()
    (folder / "tree/two").rename(folder / "four")
    (folder / "four").rename(folder / "tree/four")
    poller.look()

    assert poller.end()["cgroups"] == 4


def test_a_claim_that_was_lifted_during_a_look_counts_for_none(
    polled: tuple[Poller, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may take longer than everything that happens while the claim is lifted."""
    poller, folder = polled
    _claim(folder, {"one": Claim(since=1, cpus=[2], guests=[])})
    look = Poller._usable

    def slow(self: Poller, path: str) -> set[int]:
        _claim(folder, {"one": Claim(since=2, cpus=[2], guests=[])})
        return look(self, path)

    monkeypatch.setattr(Poller, "_usable", slow)
    poller.look()

    assert poller.end()["exposures"] == []


@pytest.fixture
def traced(tmp_path: Path) -> tuple[Switches, Path]:
    """The kernel's counts as files; nobody has a claim, and two processes are known."""
    event = tmp_path / "events/sched/sched_switch"
    event.mkdir(parents=True)
    _count(event, {})
    switches = Switches(tmp_path)
    switches.born(17, "one")
    switches.born(18, "two")
    switches.claim({})
    return switches, event


def _count(event: Path, counts: dict[tuple[int, int], int], dropped: int = 0) -> None:
    lines = [
        f"{{ next_pid: {pid:10}, common_cpu: {cpu:10} }} hitcount: {times:10}"
        for (pid, cpu), times in counts.items()
    ]
    (event / "hist").write_text("\n".join([*lines, "Totals:", f"    Dropped: {dropped}\n"]))


def test_who_ran_on_anothers_cpu_is_counted_by_the_claims_until_then(
    traced: tuple[Switches, Path],
) -> None:
    """Not by the new ones; whoever came meanwhile was born so."""
    switches, event = traced
    claim = Claim(since=1, cpus=[2, 3], guests=["three"])
    switches.claim({"one": claim})
    switches.born(19, "three")
    switches.born(20, "four")
    _count(event, {(17, 2): 5, (18, 2): 1, (18, 4): 9, (19, 3): 4, (20, 3): 7})

    switches.claim({})
    _count(event, {(17, 2): 5, (18, 2): 1, (18, 4): 10, (19, 3): 4, (20, 3): 7})
    switches.claim({"two": Claim(since=2, cpus=[4], guests=[])})

    assert [tuple(each.values()) for each in switches.ran] == [
        ("two", "one", 2, 1, False),
        ("four", "one", 3, 7, True),
    ]
    assert switches.total == 27
    _count(event, {}, dropped=3)
    with pytest.raises(AssertionError, match="the kernel lost switches"):
        switches.claim({})
