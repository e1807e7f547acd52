"""
What `make gpu` reads of `nvidia-smi`, and that it notices what we say otherwise.

The texts are written after the tool's own layout, shortened: two cards with NVLinks, whose minors
are not in the order of their PCI addresses, and a NIC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.discover.machine import Card, Common, Discovery, GpuLink, Place
from tests.support.nvidia_smi import differences, read

MIB = 1 << 20
DESCRIBED = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.90.07</driver_version>
  <attached_gpus>2</attached_gpus>
  <gpu id="00000000:3B:00.0">
    <product_name>NVIDIA A100-SXM4-80GB</product_name>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <uuid>GPU-b</uuid>
    <minor_number>1</minor_number>
    <pci><pci_bus>3B</pci_bus><pci_bus_id>00000000:3B:00.0</pci_bus_id></pci>
    <fb_memory_usage>
      <total>81920 MiB</total><reserved>769 MiB</reserved><used>3 MiB</used>
    </fb_memory_usage>
  </gpu>
  <gpu id="00000000:AF:00.0">
    <product_name>NVIDIA A100-SXM4-80GB</product_name>
    <mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>
    <uuid>GPU-a</uuid>
    <minor_number>0</minor_number>
    <pci><pci_bus>AF</pci_bus><pci_bus_id>00000000:AF:00.0</pci_bus_id></pci>
    <fb_memory_usage><total>81920 MiB</total><reserved>N/A</reserved></fb_memory_usage>
  </gpu>
</nvidia_smi_log>
"""
HEAD = "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
LEGEND = (
    "NIC0\tPXB\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
MATRIX = f"""{HEAD}GPU0\t X \tNV12\tPXB\t0-47,96-143\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t48-95\t1\t\tN/A
{LEGEND}"""
OF_PCI = MATRIX.replace("NV12", "SYS")
CARDS = tuple(
    Card(
        uuid=uuid,
        minor=minor,
        model="NVIDIA A100-SXM4-80GB",
        memory_bytes=(81920 - 769) * MIB,
        reserved_bytes=769 * MIB,
        place=Place(bus_id=bus_id, numa_node=numa),
    )
    for uuid, minor, bus_id, numa in (
        ("GPU-a", 0, "0000:af:00.0", 1),
        ("GPU-b", 1, "0000:3b:00.0", 0),
    )
)
LINK = GpuLink(first=0, second=1, nvlinks=12, nvlink_mbps=25_000, common=Common.SYSTEM)
FOUND = Discovery(driver_version="550.90.07", cards=CARDS, links=(LINK,))


def said_otherwise(found: Discovery) -> list[str]:
    """Return what is told differently."""
    return differences(read(DESCRIBED, MATRIX, OF_PCI), found)


def test_what_both_say_is_no_difference() -> None:
    """By UUID: minors and places in the matrix are in other orders. What it leaves out is none."""
    assert said_otherwise(FOUND) == []


def of_second(**fields: object) -> Callable[[Discovery], Discovery]:
    """Return a change of the card GPU-b."""
    return lambda found: replace(found, cards=(CARDS[0], replace(CARDS[1], **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda found: replace(found, driver_version="535"), "driver: "),
        (lambda found: replace(found, cards=CARDS[:1], links=()), "uuid: "),
        (of_second(minor=2), "GPU-b: minor: "),
        (of_second(model="NVIDIA H100"), "GPU-b: model: "),
        (of_second(memory_bytes=81920 * MIB), "GPU-b: total_mib: "),
        (of_second(place=Place(bus_id="0000:3c:00.0")), "GPU-b: bus_id: "),
        (of_second(place=Place(bus_id="0000:3b:00.0", numa_node=1)), "GPU-b: numa_node: "),
        (of_second(mig=True), "GPU-b: mig: "),
        (lambda found: replace(found, links=()), "[0, 1]: nvlinks: "),
        (lambda found: replace(found, links=(replace(LINK, nvlinks=11),)), "[0, 1]: nvlinks: "),
        (
            lambda found: replace(found, links=(replace(LINK, common=Common.NODE),)),
            "[0, 1]: between: ",
        ),
    ],
    ids=[
        "another driver",
        "a card that we miss",
        "another minor",
        "another model",
        "other memory",
        "another address",
        "another NUMA node",
        "cut into instances",
        "no link",
        "fewer NVLinks",
        "another way between",
    ],
)
def test_what_we_say_otherwise_is_named(
    change: Callable[[Discovery], Discovery], word: str
) -> None:
    """With both words, so that whoever runs it sees who is wrong."""
    found = said_otherwise(change(FOUND))
    assert any(one.startswith(word) for one in found), found
