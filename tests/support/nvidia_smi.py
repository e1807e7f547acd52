"""What `nvidia-smi` prints of a machine's GPUs, and where our own look at them says otherwise."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from agent.discover.machine import Card, Common, Discovery

SECONDS: Final = 120
_MIB: Final = 1 << 20
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_LANES: Final = re.compile(r"NV(\d+)")
_COMMON: Final = {
    "PIX": Common.SINGLE,
    "PXB": Common.MULTIPLE,
    "PHB": Common.HOST_BRIDGE,
    "NODE": Common.NODE,
    "SYS": Common.SYSTEM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """
    What it printed, by names of a GPU's properties.

    Attributes:
        gpus: in its own order, that of PCI addresses, which its matrices count by.
        lanes: pairs of places in that order -> NVLinks between them; `common`: what else lies
            between, by its own words; `numa`: place -> NUMA node.
    """

    driver_version: str
    gpus: tuple[Mapping[str, object], ...]
    lanes: Mapping[tuple[int, int], int]
    common: Mapping[tuple[int, int], str]
    numa: Mapping[int, int]


def printed() -> Printed:
    """Run it. Raises OSError, CalledProcessError, TimeoutExpired: it is not there, or fails."""
    return read(*(_run(*words) for words in (("-q", "-x"), ("topo", "-m"), ("topo", "-mp"))))


def _run(*words: str) -> str:
    command = ["nvidia-smi", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout


def read(described: str, matrix: str, of_pci: str) -> Printed:
    """
    Return what it printed.

    Args:
        described: of `-q -x`; `matrix`: of `topo -m`; `of_pci`: of `topo -mp`, without NVLinks.
    """
    log = ET.fromstring(described)
    gpus = tuple(_gpu(one) for one in log.iter("gpu"))
    words, numa = _matrix(matrix, len(gpus))
    lanes = {pair: _LANES.fullmatch(word) for pair, word in words.items()}
    return Printed(
        driver_version=log.findtext("driver_version", ""),
        gpus=gpus,
        lanes={pair: int(found[1]) if found else 0 for pair, found in lanes.items()},
        common=_matrix(of_pci, len(gpus))[0],
        numa=numa,
    )


def _gpu(one: ET.Element) -> Mapping[str, object]:
    def mib(name: str) -> int | None:
        amount, _, unit = one.findtext(f"fb_memory_usage/{name}", "").partition(" ")
        return int(amount) if unit == "MiB" else None

    domain, _, rest = one.findtext("pci/pci_bus_id", "").lower().partition(":")
    return {
        "uuid": one.findtext("uuid", ""),
        "minor": int(one.findtext("minor_number", "-1")),
        "model": one.findtext("product_name", ""),
        "bus_id": f"{int(domain, 16):04x}:{rest}",
        "total_mib": mib("total"),
        "reserved_mib": mib("reserved"),
        "mig": one.findtext("mig_mode/current_mig", "") == "Enabled",
    }


def _matrix(text: str, count: int) -> tuple[dict[tuple[int, int], str], dict[int, int]]:
    """Return what lies between each two GPUs, and the NUMA nodes of those that have one."""
    header, *lines = [_ESCAPE.sub("", line).split() for line in text.splitlines() if line.strip()]
    names = header[: header.index("CPU")] if "CPU" in header else header
    rows = {line[0]: line[1:] for line in lines if line[0] in names}
    pairs, numa = {}, {}
    for first in range(count):
        row = rows[f"GPU{first}"]
        for second in range(first + 1, count):
            pairs[first, second] = row[names.index(f"GPU{second}")]
        beside = row[len(names) :]
        if len(beside) > 1 and beside[1].isdigit():  # CPUs, NUMA node
            numa[first] = int(beside[1])
    return pairs, numa


def differences(said: Printed, found: Discovery) -> list[str]:
    """Return each property that we and it tell differently; none of what it leaves out."""
    return list(_differences(said, found))


def _differences(said: Printed, found: Discovery) -> Iterator[str]:
    cards = {card.uuid: card for card in found.cards}
    if said.driver_version != found.driver_version:
        yield f"driver: nvidia-smi={said.driver_version}, ours={found.driver_version}"
    told = {str(gpu["uuid"]) for gpu in said.gpus}
    if told != cards.keys():
        yield f"uuid: nvidia-smi={sorted(told)}, ours={sorted(cards)}"
        return
    in_order = [cards[str(gpu["uuid"])] for gpu in said.gpus]
    for place, (gpu, card) in enumerate(zip(said.gpus, in_order, strict=True)):
        ours = {**_ours(card), "numa_node": card.place.numa_node}
        theirs = {**gpu, "numa_node": said.numa.get(place)}
        for name, value in theirs.items():
            if value is not None and value != ours[name]:
                yield f"{card.uuid}: {name}: nvidia-smi={value}, ours={ours[name]}"
    links = {(link.first, link.second): link for link in found.links}
    for first, second in combinations(range(len(in_order)), 2):
        minors = sorted(in_order[each].minor for each in (first, second))
        link = links.get((minors[0], minors[1]))
        count, common = said.lanes[first, second], said.common[first, second]
        if link is None or link.nvlinks != count:
            yield f"{minors}: nvlinks: nvidia-smi={count}, ours={link}"
        if link is None or link.common is not _COMMON.get(common):
            yield f"{minors}: between: nvidia-smi={common}, ours={link}"


def _ours(card: Card) -> Mapping[str, object]:
    return {
        "uuid": card.uuid,
        "minor": card.minor,
        "model": card.model,
        "bus_id": card.place.bus_id,
        "total_mib": (card.memory_bytes + card.reserved_bytes) // _MIB,
        "reserved_mib": card.reserved_bytes // _MIB,
        "mig": card.mig,
    }
