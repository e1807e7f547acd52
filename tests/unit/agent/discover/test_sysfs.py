"""What the kernel's files say of NICs and of the machine, and what they can't make us read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.discover.host_files import HostFiles
from agent.discover.machine import Discovery, Identity, Kind, Place
from agent.discover.sysfs import SysfsProbe, place_of
from ledger.domain.devices import VirtualFunction
from tests.support.sys_trees import HPC_WORKER, SysTree, hpc_worker


def look(tree: SysTree) -> Discovery:
    """Look at a host."""
    return SysfsProbe(host=HostFiles(root=tree.root)).look()


def test_the_nics_of_a_real_machine_are_found_where_they_sit(tmp_path: Path) -> None:
    """By bus address, whatever their names: root, bridges and NUMA node out of the links."""
    found = look(hpc_worker(tmp_path))

    assert [(nic.minor, nic.name, nic.place.bus_id) for nic in found.nics] == [
        (0, "mlx5_4", "0000:2d:00.0"),
        (1, "mlx5_0", "0000:48:00.0"),
        (2, "mlx5_1", "0000:48:00.1"),
        (3, "mlx5_2", "0000:4c:00.0"),
        (4, "mlx5_10", "0000:c3:00.0"),
    ]
    assert found.nics[0].place == Place(bus_id="0000:2d:00.0", root="pci0000:2c", numa_node=0)
    assert [nic.place.numa_node for nic in found.nics] == [0, 0, 0, 0, 1]
    assert {nic.fabric for nic in found.nics} == {"roce"}
    assert not found.problems


def test_nics_behind_switches_of_one_root_have_that_root(tmp_path: Path) -> None:
    """Whatever lies between: the root complex is what `pcieID` names."""
    nics = {nic.name: nic.place for nic in look(hpc_worker(tmp_path)).nics}

    assert nics["mlx5_0"].root == nics["mlx5_2"].root == "pci0000:3f"


def test_the_machine_is_who_kubelet_says(tmp_path: Path) -> None:
    """The same three ids; the firmware's UUID in lower case."""
    assert look(hpc_worker(tmp_path)).identity == Identity(
        system_uuid="4c4c4544-0051-3010-8059-b7c04f4e3832",
        machine_id="9f2c8b0e5d1a4c7e8b3f6a2d1c0e9b8a",
        boot_id="0f3b8a52-6a3e-4d8e-9f4e-5f0b9d1c2a77",
    )
    assert look(SysTree(root=tmp_path / "empty")) == Discovery()


def test_virtual_functions_belong_to_their_physical_one(tmp_path: Path) -> None:
    """Numbered as the kernel does, beyond nine too; those with an RDMA device are no NICs."""
    tree = SysTree(root=tmp_path)
    physical = tree.nic("mlx5_0", "pci0000:5d/0000:5d:00.0/0000:5e:00.0", numa=1)
    addresses = [f"0000:5e:0{n // 8}.{n % 8}" for n in range(1, 13)]
    tree.functions(physical, addresses, named=2)

    (nic,) = look(tree).nics
    assert nic.vfs == tuple(
        VirtualFunction(minor=number, bus_id=address) for number, address in enumerate(addresses)
    )


@pytest.mark.parametrize(
    ("layer", "state", "fabric", "faults"),
    [
        ("InfiniBand", "4: ACTIVE", "ib", ()),
        ("Ethernet", "4: ACTIVE", "roce", ()),
        ("Unknown", "4: ACTIVE", "", ()),
        ("InfiniBand", "1: DOWN", "ib", ("port 1 is 1: DOWN",)),
        ("InfiniBand", "2: INIT", "ib", ("port 1 is 2: INIT",)),
    ],
    ids=["ib that is up", "roce that is up", "another layer", "down", "no subnet manager"],
)
def test_a_nic_without_a_port_that_is_up_takes_nobody(
    tmp_path: Path, layer: str, state: str, fabric: str, faults: tuple[str, ...]
) -> None:
    """Link layer and state in the kernel's own words."""
    tree = SysTree(root=tmp_path)
    tree.nic("mlx5_0", "pci0000:5d/0000:5e:00.0", layer=layer, state=state)

    (nic,) = look(tree).nics
    assert (nic.fabric, tuple(fault.message for fault in nic.faults)) == (fabric, faults)


def test_a_software_nic_is_named_and_not_offered(tmp_path: Path) -> None:
    """Soft RoCE has no PCI function that a Pod could have."""
    tree = SysTree(root=tmp_path)
    here = "sys/devices/virtual/infiniband/rxe0"
    tree.write(f"{here}/ports/1/state", "4: ACTIVE")
    tree.link("sys/class/infiniband/rxe0", here)

    found = look(tree)
    assert not found.nics
    assert [problem.reason for problem in found.problems] == ["NotPCI"]


def test_two_rdma_devices_of_one_function_are_one_nic(tmp_path: Path) -> None:
    """Whoever of them is up counts."""
    tree = SysTree(root=tmp_path)
    folder = tree.nic("mlx4_0", "pci0000:5d/0000:5e:00.0", state="1: DOWN")
    tree.write(f"{folder}/infiniband/mlx4_1/ports/1/state", "4: ACTIVE")
    tree.link("sys/class/infiniband/mlx4_1", f"{folder}/infiniband/mlx4_1")

    (nic,) = look(tree).nics
    assert (nic.name, nic.faults) == ("mlx4_1", ())


def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    """Above the root is the root, and `/` is the root: what lies beside it is never read."""
    tree = hpc_worker(tmp_path / "host")
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "host" / "secret").write_text("inside")
    host = HostFiles(root=tree.root)
    for number, target in enumerate(("../../../secret", "/secret", "../../../../../../secret")):
        (tree.root / f"sys/link{number}").symlink_to(target)
        assert host.text(f"sys/link{number}") == "inside"
    (tree.root / "sys/circle").symlink_to("circle")
    (tree.root / "sys/gone").symlink_to(str(tmp_path / "secret"))

    assert host.text_or("sys/circle", "none") == "none"
    assert host.text_or("sys/gone", "none") == "none"
    assert host.text_or("../secret", "none") == "inside"


def test_a_nic_that_points_elsewhere_is_a_problem_and_harms_no_other(tmp_path: Path) -> None:
    """A broken link, and a virtual function that is no PCI address."""
    tree = hpc_worker(tmp_path)
    (tmp_path / "sys/class/infiniband/broken").symlink_to("../../devices/none")
    folder = f"sys/devices/{HPC_WORKER['mlx5_4']}"
    tree.link(f"{folder}/virtfn0", "etc")

    found = look(tree)
    assert [nic.name for nic in found.nics] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert [problem.reason for problem in found.problems] == ["Unreadable", "Unreadable"]
    assert found.unknown == (Kind.RDMA,)


def test_what_is_no_address_has_no_place(tmp_path: Path) -> None:
    """A path is never made of it."""
    host = HostFiles(root=hpc_worker(tmp_path).root)

    assert place_of(host, "../../class") == Place()
    assert place_of(host, "0000:ff:00.0") == Place(bus_id="0000:ff:00.0")


def test_a_file_that_never_ends_is_read_as_far_as_a_page(tmp_path: Path) -> None:
    """And one that can't be opened without waiting is not waited for."""
    host = HostFiles(root=tmp_path)
    (tmp_path / "long").write_text("x" * 100_000)
    os.mkfifo(tmp_path / "pipe")

    assert len(host.text("long")) == 4096
    assert host.text("pipe") == ""
