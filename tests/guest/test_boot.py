"""The guest is the machine that its tests speak of, and runs commands within bounds."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.guest import attendant
from tests.support.guest.machine import CgroupForm, CommandError, Guest

READS = """
import json, pathlib, platform, sys
files = [line.strip() for line in sys.stdin]
read = {name: pathlib.Path(name).read_text().strip() for name in files}
json.dump({"kernel": platform.release(), "files": read}, sys.stdout)
"""
CPU = "/sys/devices/system/cpu/"
NODE = "/sys/devices/system/node/"


def test_it_has_the_kernel_the_sockets_and_the_nodes(machine: Guest) -> None:
    """Eight CPUs in pairs of siblings, two sockets that are NUMA nodes, 21 apart."""
    wanted = {
        f"{CPU}online": "0-7",
        f"{CPU}cpu0/topology/thread_siblings_list": "0-1",
        f"{CPU}cpu7/topology/thread_siblings_list": "6-7",
        f"{CPU}cpu3/topology/physical_package_id": "0",
        f"{CPU}cpu4/topology/physical_package_id": "1",
        f"{NODE}online": "0-1",
        f"{NODE}node0/cpulist": "0-3",
        f"{NODE}node1/cpulist": "4-7",
        f"{NODE}node0/distance": "10 21",
        f"{NODE}node1/distance": "21 10",
    }

    seen = json.loads(machine.run("python3", "-c", READS, stdin="\n".join(wanted)))

    assert seen["kernel"].startswith(f"{machine.release}.")
    assert seen["files"] == wanted


def test_it_has_the_form_of_cgroups_that_was_asked_for(machine: Guest) -> None:
    """CPU sets are of one hierarchy alone."""
    types = machine.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").strip()

    assert types == ("cgroup2fs" if machine.form is CgroupForm.V2 else "tmpfs")


def test_a_command_gives_its_output_and_its_code(machine: Guest) -> None:
    """What it writes to its error output comes with the failure."""
    assert machine.run("cat", stdin="so\n") == "so\n"
    with pytest.raises(CommandError, match=r"code=3[^\n]*\n\nso it is"):
        machine.run("sh", "-c", "echo so it is >&2; exit 3")
    with pytest.raises(CommandError, match="code=127"):
        machine.run("/no/such/program")


def test_a_command_ends_with_its_time_or_when_it_is_stopped(machine: Guest) -> None:
    """With it all processes of its session; the guest goes on."""
    began = time.monotonic()
    late = machine.start("sh", "-c", "sleep 1000 & sleep 1000", seconds=1.0)
    stopped = machine.start("sleep", "1000", seconds=1000.0)
    stopped.stop()

    assert late.wait() == attendant.LATE
    assert stopped.wait() == attendant.LATE
    assert time.monotonic() - began < 900
    assert machine.run("sh", "-c", "grep -l sleep /proc/[0-9]*/comm || :") == ""


def test_nothing_of_this_machine_can_be_written(machine: Guest) -> None:
    """Its root is shared read only; what is the guest's own can be."""
    with pytest.raises(CommandError, match="Read-only file system"):
        machine.run("sh", "-c", "echo x > /etc/tenure-guest")
    machine.run("sh", "-c", "echo x > /run/x && echo x > /var/lib/x")
