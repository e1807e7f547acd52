"""A machine is put together out of its parts; a part that fails hides nothing of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent.discover.combined import CombinedProbe, Part
from agent.discover.declared import DeclaredProbe, FileProbe
from agent.discover.host_files import HostFiles
from agent.discover.machine import Discovery, Kind
from agent.discover.sysfs import SysfsProbe
from ledger.domain.devices import VirtualFunction
from ledger.domain.errors import InputError
from tests.support.machines_found import TWO_CARDS, write_machine
from tests.support.sys_trees import SysTree, hpc_worker

FPGAS = """
devices:
- {device_type: fpga, device_id: lab-1, minor: 4}
- {device_type: qpu, device_id: rack-7, minor: 0, labels: [[site, cellar]]}
pci:
- {device_type: fpga, vendor: "0x10ee", device: "0x5020", memory_bytes: 64, labels: [[model, U250]]}
"""


@dataclass(frozen=True)
class Seen:
    """A probe that always finds the same."""

    found: Discovery

    def look(self) -> Discovery:
        """Return it."""
        return self.found


def with_fpgas(tree: SysTree) -> None:
    """Add two FPGAs, one of them with a virtual function, and a card of another model."""
    for number, model in enumerate(("0x5020", "0x5020", "0x9999")):
        folder = tree.pci(f"pci0000:80/0000:8{number}:00.0", numa=1)
        tree.write(f"{folder}/vendor", "0x10ee")
        tree.write(f"{folder}/device", model)
    function = tree.pci("pci0000:80/0000:80:00.1")
    tree.write(f"{function}/vendor", "0x10ee")
    tree.write(f"{function}/device", "0x5020")
    tree.link(f"{function}/physfn", "sys/devices/pci0000:80/0000:80:00.0")
    tree.link("sys/devices/pci0000:80/0000:80:00.0/virtfn0", function)


def test_declared_devices_are_found_by_name_and_on_the_bus(tmp_path: Path) -> None:
    """Minors of the bus come after those that are declared; functions are no devices."""
    tree = SysTree(root=tmp_path / "host")
    with_fpgas(tree)
    (tmp_path / "devices.yaml").write_text(FPGAS)
    probe = DeclaredProbe(path=tmp_path / "devices.yaml", host=HostFiles(root=tree.root))

    found = probe.look().others
    assert [(one.device_type, one.minor, one.device_id) for one in found] == [
        ("fpga", 4, "lab-1"),
        ("fpga", 5, "0000:80:00.0"),
        ("fpga", 6, "0000:81:00.0"),
        ("qpu", 0, "rack-7"),
    ]
    assert found[1].vfs == (VirtualFunction(minor=0, bus_id="0000:80:00.1"),)
    assert (found[1].place.numa_node, found[1].memory_bytes) == (1, 64)
    assert found[1].labels == (("model", "U250"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: [{device_type: gpu, device_id: a, minor: 0}]", "devices[0].device_type: found"),
        ("pci: [{device_type: rdma, vendor: a, device: b}]", "pci[0].device_type: found by the"),
        ("pci: [{device_type: fpga}]", "missing required field `vendor`"),
        ("fpga: 1", "unknown field 'fpga'"),
    ],
    ids=["a GPU", "a NIC", "no ids", "another file"],
)
def test_what_is_no_declaration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With file and field."""
    (tmp_path / "d.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        DeclaredProbe(path=tmp_path / "d.yaml", host=HostFiles(root=tmp_path)).look()

    assert str(caught.value).startswith(str(tmp_path / "d.yaml"))
    assert message in str(caught.value)


def test_parts_are_one_machine(tmp_path: Path) -> None:
    """Cards of one, NICs of another, the kernel's ids of the machine."""
    cards = replace(TWO_CARDS, nics=(), others=(), identity=Discovery().identity)
    host = HostFiles(root=hpc_worker(tmp_path).root)
    parts = (
        Part(probe=Seen(cards), kinds=(Kind.GPU,)),
        Part(probe=SysfsProbe(host=host), kinds=(Kind.RDMA,)),
    )
    found = CombinedProbe(parts=parts).look()

    assert (found.cards, len(found.nics)) == (TWO_CARDS.cards, 5)
    assert found.identity == SysfsProbe(host=host).look().identity
    assert found.driver_version == TWO_CARDS.driver_version


def test_a_part_that_can_t_be_read_leaves_its_kinds_unknown(tmp_path: Path) -> None:
    """Unknown is not gone: who reports keeps what it knew of them."""
    file = write_machine(tmp_path / "m.json", TWO_CARDS)
    probe = CombinedProbe(
        parts=(
            Part(probe=FileProbe(path=file), kinds=(Kind.GPU, Kind.RDMA)),
            Part(probe=Seen(Discovery()), kinds=(Kind.OTHER,)),
        )
    )
    assert probe.look() == TWO_CARDS
    file.write_text("cards: [")
    found = probe.look()

    assert (found.unknown, found.cards) == ((Kind.GPU, Kind.RDMA), ())
    assert [problem.reason for problem in found.problems] == ["BadFile"]


def test_two_parts_that_tell_of_one_card_make_all_unknown() -> None:
    """Nobody knows which of them is right."""
    parts = tuple(Part(probe=Seen(TWO_CARDS), kinds=(Kind.GPU,)) for _ in range(2))
    found = CombinedProbe(parts=parts).look()

    assert (found.unknown, found.cards, found.identity) == (
        tuple(Kind),
        (),
        TWO_CARDS.identity,
    )


def test_a_measurement_that_does_not_fit_is_named_and_links_are_told_by_kind(
    tmp_path: Path,
) -> None:
    """The cards stay."""
    parts = (Part(probe=Seen(TWO_CARDS), kinds=(Kind.GPU,)),)
    for measured in (tmp_path / "absent", write_machine(tmp_path / "other", TWO_CARDS)):
        found = CombinedProbe(parts=parts, measured=measured).look()
        assert (found.cards, found.measured) == (TWO_CARDS.cards, None)
        assert [problem.reason for problem in found.problems] == ["BadFile"]
