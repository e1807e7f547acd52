"""NVIDIA's own binding, driven by a library that answers from a table: every call and error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pynvml
import pytest

from agent.discover.faults import CardFault
from agent.discover.host_files import HostFiles
from agent.discover.machine import (
    Card,
    CardProcess,
    Common,
    Fault,
    GpuLink,
    Kind,
    MigInstance,
    Place,
)
from agent.discover.nvml import NvmlProbe, card_events
from tests.support.nvml.driver import GIB, TABLE, Driver, loaded
from tests.support.sys_trees import SysTree

LOST: Final = pynvml.NVML_ERROR_GPU_IS_LOST
GONE: Final = frozenset({1, 9, 18})
"""Not initialised, not loaded, of another version than the library."""
CODES: Final = sorted(
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int) and value
)
NEEDED: Final = (
    "DeviceGetHandleByIndex_v2",
    "DeviceGetUUID",
    "DeviceGetMinorNumber",
    "DeviceGetMemoryInfo_v2",
)
OPTIONAL: Final = (
    ("DeviceGetName", "0"),
    ("DeviceGetPciInfo_v3", "0"),
    ("DeviceGetMigMode", "0"),
    ("DeviceGetComputeRunningProcesses_v3", "0"),
    ("DeviceGetGraphicsRunningProcesses_v3", "0"),
    ("DeviceGetTotalEccErrors", "0,1,0"),
    ("DeviceGetRemappedRows", "0"),
    ("DeviceGetNvLinkState", "0,0"),
    ("DeviceGetNvLinkRemoteDeviceType", "0,0"),
    ("DeviceGetNvLinkRemotePciInfo_v2", "0,0"),
    ("DeviceGetNvLinkVersion", "0,0"),
    ("DeviceGetTopologyCommonAncestor", "0,1"),
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver with two healthy cards."""
    loaded()
    monkeypatch.setenv(TABLE, str(tmp_path / "table"))
    made = Driver(path=tmp_path / "table")
    made.add_card(0)
    made.add_card(1)
    return made


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[NvmlProbe]:
    """A probe on a host whose sysfs knows where the cards are."""
    tree = SysTree(root=tmp_path / "host")
    for minor in (0, 1):
        folder = tree.pci(f"pci0000:3a/0000:3a:00.0/0000:{0x3B + minor:02x}:00.0", numa=1)
        tree.write(f"{folder}/vendor", "0x10de")
        tree.write(f"{folder}/class", "0x030200")
    made = NvmlProbe(HostFiles(root=tree.root))
    yield made
    made.close()


def only(cards: tuple[Card, ...], minor: int = 0) -> Card:
    """Return the card with this minor."""
    return next(card for card in cards if card.minor == minor)


def test_a_card_is_what_the_driver_says(driver: Driver, probe: NvmlProbe) -> None:
    """Memory less what the driver reserves; the place by its bus address, as sysfs has it."""
    driver.says("DeviceGetComputeRunningProcesses_v3", 0, "4711=1024", "99=2048")
    driver.says("DeviceGetGraphicsRunningProcesses_v3", 0, "4711=4096")
    found = probe.look()

    assert (found.driver_version, found.unknown, found.problems) == ("550.90.07", (), ())
    assert only(found.cards) == Card(
        uuid="GPU-00000000-1111-2222-3333-444444444444",
        minor=0,
        model="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * GIB - (600 << 20),
        reserved_bytes=600 << 20,
        place=Place(bus_id="0000:3b:00.0", root="pci0000:3a", numa_node=1),
        processes=(
            CardProcess(pid=99, memory_bytes=2048),
            CardProcess(pid=4711, memory_bytes=4096),
        ),
    )
    assert found.links == (GpuLink(first=0, second=1),)


def test_minors_are_the_drivers_and_not_the_order_of_the_bus(
    driver: Driver, probe: NvmlProbe
) -> None:
    """`/dev/nvidia<minor>` is what a container gets."""
    driver.says("DeviceGetMinorNumber", 0, 1)
    driver.says("DeviceGetMinorNumber", 1, 0)

    assert [card.uuid[:12] for card in probe.look().cards] == ["GPU-00000001", "GPU-00000000"]


def test_an_old_driver_reserves_nothing_that_it_tells_of(driver: Driver, probe: NvmlProbe) -> None:
    """Without the second version of the call all of the memory counts."""
    driver.fails("DeviceGetMemoryInfo_v2", 0, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    driver.says("DeviceGetMemoryInfo", 0, 16 * GIB)
    card = only(probe.look().cards)

    assert (card.memory_bytes, card.reserved_bytes) == (16 * GIB, 0)


def test_direct_nvlinks(driver: Driver, probe: NvmlProbe) -> None:
    """Links that are up, by the card at their other end; what lies between the two besides."""
    for link in range(4):
        for index in (0, 1):
            driver.says("DeviceGetNvLinkState", f"{index},{link}", int(link != 3))
            driver.says("DeviceGetNvLinkVersion", f"{index},{link}", 4)
            driver.says("DeviceGetNvLinkRemoteDeviceType", f"{index},{link}", 0)
            other = f"00000000:{0x3C - index:02X}:00.0"
            driver.says("DeviceGetNvLinkRemotePciInfo_v2", f"{index},{link}", other)
    driver.says("DeviceGetTopologyCommonAncestor", "0,1", 50)

    assert probe.look().links == (
        GpuLink(first=0, second=1, nvlinks=3, nvlink_mbps=25_000, common=Common.SYSTEM),
    )


def test_cards_behind_an_nvswitch_are_linked_by_the_fewer_links(
    driver: Driver, probe: NvmlProbe
) -> None:
    """All to all; a card with links that are down is the bottleneck."""
    for index, up in ((0, 18), (1, 12)):
        for link in range(18):
            driver.says("DeviceGetNvLinkState", f"{index},{link}", int(link < up))
            driver.says("DeviceGetNvLinkRemoteDeviceType", f"{index},{link}", 2)
            driver.says("DeviceGetNvLinkVersion", f"{index},{link}", 6)

    (pair,) = probe.look().links
    assert (pair.nvlinks, pair.nvlink_mbps) == (12, 25_000)


@pytest.mark.parametrize(
    ("level", "common"),
    [
        (0, "internal"),
        (10, "single"),
        (20, "multiple"),
        (30, "host-bridge"),
        (40, "node"),
        (50, "system"),
        (77, None),
    ],
    ids=str,
)
def test_what_lies_between_two_cards(
    driver: Driver, probe: NvmlProbe, level: int, common: str | None
) -> None:
    """The levels of `nvidia-smi topo`; one that nobody knows is none."""
    driver.says("DeviceGetTopologyCommonAncestor", "0,1", level)

    (link,) = probe.look().links
    assert link.common == (common and Common(common))


def test_a_card_in_mig_mode_names_its_instances_and_is_closed(
    driver: Driver, probe: NvmlProbe
) -> None:
    """Numbers without an instance are passed over; the other card goes on."""
    driver.says("DeviceGetMigMode", 0, 1, 1)
    driver.says("DeviceGetMaxMigDeviceCount", 0, 7)
    for index in (0, 2):
        driver.says("DeviceGetMigDeviceHandleByIndex", f"0,{index}")
        driver.says("DeviceGetUUID", f"0.{index}", f"MIG-{index}")
        driver.says("DeviceGetName", f"0.{index}", "NVIDIA A100-SXM4-80GB MIG 1g.10gb")
    found = probe.look()

    cut = only(found.cards)
    assert cut.mig
    assert cut.instances == (
        MigInstance(uuid="MIG-0", profile="1g.10gb"),
        MigInstance(uuid="MIG-2", profile="1g.10gb"),
    )
    fault = Fault(reason="MIGNotServed", message="1g.10gb MIG-0, 1g.10gb MIG-2")
    assert cut.faults == (fault,)
    assert not only(found.cards, 1).faults


def test_mig_mode_without_instances_is_closed_too(driver: Driver, probe: NvmlProbe) -> None:
    """Nothing runs on such a card."""
    driver.says("DeviceGetMigMode", 0, 1, 0)

    card = only(probe.look().cards)
    assert card.faults == (Fault(reason="MIGNotServed", message="no instances"),)


def test_what_the_cards_memory_says_against_it(driver: Driver, probe: NvmlProbe) -> None:
    """Uncorrected errors, rows to be remapped, and rows that could not be."""
    driver.says("DeviceGetTotalEccErrors", "0,1,0", 3)
    driver.says("DeviceGetRemappedRows", 0, 0, 1, 1, 1)

    assert [fault.reason for fault in only(probe.look().cards).faults] == [
        "RowRemapFailure",
        "RowRemapPending",
        "UncorrectedECC",
    ]


def test_every_error_of_every_call_leaves_two_cards_or_says_which_is_missing(
    driver: Driver, probe: NvmlProbe
) -> None:
    """
    No look raises; a card that can't be read is counted, and one that lacks a detail stays.

    All error codes of the binding, in every call that a look makes.
    """
    driver.says("DeviceGetNvLinkState", "0,0", 1)
    assert len(CODES) > 25
    for name, key in (*((name, "0") for name in NEEDED), *OPTIONAL):
        kept = dict(driver.lines)
        for code in CODES:
            driver.fails(name, key, code)
            found, where = probe.look(), (name, code)
            assert bool(found.problems) == (found.unknown == (Kind.GPU,)), where
            if [one.reason for one in found.problems] in (["DriverGone"], ["NoDriver"]):
                assert code in GONE, where
            else:
                assert len(found.cards) + len(found.problems) == 2, where
            if code not in {LOST, *GONE} and name not in NEEDED:
                assert len(found.cards) == 2, where
            if code == LOST and name in NEEDED:
                assert [card.minor for card in found.cards] == [1], where
        driver.lines = kept
        driver.write()
        assert len(probe.look().cards) == 2, name


def test_every_error_of_the_driver_itself_hides_no_card(driver: Driver, probe: NvmlProbe) -> None:
    """Cards are on the bus and nobody tells which: that is another thing than none."""
    for name in ("InitWithFlags", "DeviceGetCount_v2"):
        kept = dict(driver.lines)
        for code in CODES:
            probe.close()
            driver.fails(name, "-", code)
            found = probe.look()
            assert (found.unknown, found.cards) == ((Kind.GPU,), ()), (name, code)
            (problem,) = found.problems
            assert problem.message.endswith("NVIDIA cards on the PCI bus: 2")
        driver.lines = kept
        driver.write()
    assert len(probe.look().cards) == 2


def test_a_driver_that_comes_back_is_found_again(driver: Driver, probe: NvmlProbe) -> None:
    """The next look begins anew: a driver may be upgraded under a running agent."""
    assert not probe.look().unknown
    driver.fails("DeviceGetCount_v2", "-", 18)
    assert probe.look().unknown
    driver.says("DeviceGetCount_v2", "-", 2)
    driver.says("SystemGetDriverVersion", "-", "570.10")

    assert probe.look().driver_version == "570.10"


def test_a_library_without_cards_is_no_driver_that_is_gone(driver: Driver, tmp_path: Path) -> None:
    """A machine without cards says so, with the library or without."""
    driver.fails("InitWithFlags", "-", 9)

    found = NvmlProbe(HostFiles(root=tmp_path)).look()
    assert (found.unknown, found.problems) == ((), ())


def test_a_machine_without_the_library_has_no_cards(tmp_path: Path) -> None:
    """In a process of its own, which has loaded nothing."""
    script = (
        "import sys; from pathlib import Path\n"
        "from agent.discover.nvml import NvmlProbe\n"
        "from agent.discover.host_files import HostFiles\n"
        "print(NvmlProbe(HostFiles(root=Path(sys.argv[1]))).look())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert "unknown=()" in done.stdout
    assert "cards=()" in done.stdout


def test_events_name_the_card_and_the_xid(driver: Driver, probe: NvmlProbe) -> None:
    """One at a time, then nothing until the time is over; ECC errors without an Xid as well."""
    driver.event(0, 1, pynvml.nvmlEventTypeXidCriticalError, 79)
    driver.event(1, 0, pynvml.nvmlEventTypeDoubleBitEccError, 0)
    with card_events(probe) as wait:
        first, second, none = wait(1), wait(1), wait(1)

    assert first == (CardFault(uuid="GPU-00000001-1111-2222-3333-444444444444", reason="Xid79"),)
    assert [one.reason for one in second] == ["DoubleBitECC"]
    assert none == ()


def test_an_event_of_a_card_that_is_lost_by_then_names_it(driver: Driver, probe: NvmlProbe) -> None:
    """As Xid 79 does to it; once it is back it has to be declared whole all the same."""
    driver.event(0, 1, pynvml.nvmlEventTypeXidCriticalError, 79)
    with card_events(probe) as wait:
        driver.fails("DeviceGetUUID", 1, LOST)
        (event,) = wait(1)

    assert event == CardFault(uuid="GPU-00000001-1111-2222-3333-444444444444", reason="Xid79")


def test_every_error_of_listening_is_raised_or_passed_over(
    driver: Driver, probe: NvmlProbe
) -> None:
    """A card without events harms no other; a driver that is gone is said at once."""
    for code in CODES:
        driver.fails("DeviceRegisterEvents", "0,10", code)
        with card_events(probe) as wait:
            assert wait(1) == ()
        driver.fails("EventSetWait_v2", 0, code)
        with card_events(probe) as wait:
            if code == pynvml.NVML_ERROR_TIMEOUT:
                assert wait(1) == ()
            else:
                with pytest.raises(pynvml.NVMLError):
                    wait(1)
        del driver.lines["nvmlEventSetWait_v2", "0"]
        driver.fails("EventSetCreate", "-", code)
        with pytest.raises(pynvml.NVMLError), card_events(probe):
            pass
        driver.says("EventSetCreate", "-")
