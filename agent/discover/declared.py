"""
A machine as a file describes it, and devices that somebody declares in one.

The first is for tests, and for nodes whose devices nobody else tells of. Devices are declared one
by one, or all PCI devices of a vendor's model:

    devices:
    - {device_type: qpu, device_id: rack-7, minor: 0, labels: [[site, cellar]]}
    pci:
    - {device_type: fpga, vendor: "0x10ee", device: "0x5020", labels: [[model, U250]]}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from agent.discover.host_files import HostFiles
from agent.discover.machine import Discovery, OtherDevice, checked
from agent.discover.sysfs import bus_order, place_of, virtual_functions
from agent.documents import yaml_document
from agent.durable import read_regular
from ledger.domain.bounds import Count, Name
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value
from ledger.domain.resources import TYPE_GPU, TYPE_RDMA

BYTES_MAX: Final = 4 << 20
"""A machine is described in thousands of bytes; whatever is larger is another file."""

_PCI: Final = "sys/bus/pci/devices"
_FOUND_ELSEWHERE: Final = frozenset({TYPE_GPU, TYPE_RDMA})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProbe:
    """Reads the file anew at every look, so that a test changes the machine by writing it."""

    path: Path

    def look(self) -> Discovery:
        """
        Read the machine from YAML or JSON: the fields of `Discovery`, each of which has a default.

        Raises:
            InputError: an unknown field, another type, a number that no machine has, two devices
                with one id; with file and field.
        """
        try:
            value = read_document(self.path)
            found: Discovery = checked(decode_value(Discovery, {} if value is None else value, ""))
        except InputError as error:
            raise error.at(str(self.path)) from error
        return found


def read_document(path: Path) -> object:
    """
    Return the one document of a small YAML or JSON file.

    Raises:
        InputError: it can't be read, is too large, is no such document, or has a key twice.
    """
    try:
        raw = read_regular(path, BYTES_MAX + 1, follows=True)  # links of a ConfigMap
        if len(raw) > BYTES_MAX:
            raise InputError(f"too large: bytes_max={BYTES_MAX}")
        return yaml_document(raw.decode())
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"not YAML: {' '.join(str(error).split())[:200]}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PciModel:
    """All physical functions of PCI ids, as in sysfs (`0x10ee`), with their virtual ones."""

    device_type: Name
    vendor: Name
    device: Name
    memory_bytes: Count = 0
    labels: tuple[tuple[Name, Name], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a file declares."""

    devices: tuple[OtherDevice, ...] = ()
    pci: tuple[PciModel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredProbe:
    """Looks for the devices of a file, which it reads anew every time."""

    path: Path
    host: HostFiles

    def look(self) -> Discovery:
        """
        Return the declared devices.

        A type has its declared minors first; what is found on the bus comes after them.

        Raises:
            InputError: the file can't be read, says something else, or two devices are one.
        """
        try:
            value = read_document(self.path)
            said: Declared = decode_value(Declared, {} if value is None else value, "")
            _check_types(said)
            return checked(Discovery(others=(*said.devices, *self._on_the_bus(said))))
        except InputError as error:
            raise error.at(str(self.path)) from error
        except (OSError, ValueError) as error:
            raise InputError(f"the bus can't be read: {error}", place=str(self.path)) from error

    def _on_the_bus(self, said: Declared) -> Iterator[OtherDevice]:
        free = {one.device_type: one.minor + 1 for one in sorted(said.devices, key=_by_minor)}
        for bus_id in sorted(self.host.names(_PCI), key=bus_order):
            model = self._model_of(bus_id, said)
            if model is not None:
                minor = free.get(model.device_type, 0)
                free[model.device_type] = minor + 1
                yield OtherDevice(
                    device_type=model.device_type,
                    device_id=bus_id,
                    minor=minor,
                    memory_bytes=model.memory_bytes,
                    place=place_of(self.host, bus_id),
                    labels=model.labels,
                    vfs=virtual_functions(self.host, bus_id),
                )

    def _model_of(self, bus_id: str, said: Declared) -> PciModel | None:
        """Return what declares a PCI device, the first that does; None for a virtual function."""
        folder = f"{_PCI}/{bus_id}"
        ids = (self.host.text_or(f"{folder}/vendor"), self.host.text_or(f"{folder}/device"))
        found = next((model for model in said.pci if (model.vendor, model.device) == ids), None)
        if found is None or "physfn" in self.host.names(folder):
            return None
        return found


def _by_minor(device: OtherDevice) -> int:
    return device.minor


def _check_types(said: Declared) -> None:
    places = [(f"devices[{n}]", one.device_type) for n, one in enumerate(said.devices)]
    places += [(f"pci[{n}]", one.device_type) for n, one in enumerate(said.pci)]
    for place, name in places:
        if name in _FOUND_ELSEWHERE:
            fact = f"found by the agent itself, not declared: value={name!r}"
            raise InputError(fact, field=f"{place}.device_type")
