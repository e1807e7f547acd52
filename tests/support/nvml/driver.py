"""A driver made of a table, behind NVIDIA's real binding: see `shim.c`."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
TABLE: Final = "TENURE_TEST_NVML"
GIB: Final = 1 << 30


@functools.cache
def shim() -> Path:
    """Compile the library once per source, for every process of the tests; return it."""
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tenure-nvml-{os.getuid()}-{name}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        made = folder / f"{os.getpid()}.so"
        flags = [
            "-shared",
            "-fPIC",
            "-O1",
            "-fno-sanitize=undefined",
            "-Wl,-soname,libnvidia-ml.so.1",
        ]
        compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
        subprocess.run([*compiler, *flags, "-o", str(made), str(SOURCE)], check=True, timeout=300)
        made.replace(library)
    return library


@functools.cache
def loaded() -> None:
    """Load it under the name by which the binding asks for the driver's."""
    ctypes.CDLL(str(shim()), mode=ctypes.RTLD_GLOBAL)


@dataclass(slots=True)
class Driver:
    """
    The table that the library answers from; every change is written at once.

    Attributes:
        lines: function and key -> status and values.
    """

    path: Path
    lines: dict[tuple[str, str], str] = field(default_factory=dict)

    def says(self, function: str, key: object, *values: object, status: int = 0) -> None:
        """Answer so from now on."""
        words = " ".join(map(str, values))
        self.lines[f"nvml{function}", str(key)] = f"{status} {words}"
        self.write()

    def fails(self, function: str, key: object, status: int) -> None:
        """Answer with an error from now on."""
        self.says(function, key, status=status)

    def write(self) -> None:
        """Write the table for the library."""
        rows: Iterable[str] = (f"{name} {key} {said}" for (name, key), said in self.lines.items())
        self.path.write_text("\n".join(rows) + "\n")

    def add_card(self, index: int, *, minor: int | None = None, gib: int = 80) -> None:
        """Add a healthy card of a driver of today."""
        self.says("InitWithFlags", "-")
        self.says("SystemGetDriverVersion", "-", "550.90.07")
        self.says("DeviceGetCount_v2", "-", index + 1)
        self.says("DeviceGetHandleByIndex_v2", index)
        self.says("DeviceGetUUID", index, f"GPU-0000000{index}-1111-2222-3333-444444444444")
        self.says("DeviceGetMinorNumber", index, index if minor is None else minor)
        self.says("DeviceGetName", index, "NVIDIA A100-SXM4-80GB")
        self.says("DeviceGetMemoryInfo_v2", index, gib * GIB, 600 << 20)
        self.says("DeviceGetPciInfo_v3", index, f"00000000:{0x3B + index:02X}:00.0")
        self.says("DeviceGetMigMode", index, 0, 0)
        self.says("DeviceGetComputeRunningProcesses_v3", index)
        self.says("DeviceGetGraphicsRunningProcesses_v3", index)
        self.says("DeviceGetTotalEccErrors", f"{index},1,0", 0)
        self.says("DeviceGetRemappedRows", index, 0, 0, 0, 0)
        self.says("EventSetCreate", "-")
        self.says("DeviceRegisterEvents", f"{index},10")

    def event(self, number: int, index: int, kind: int, xid: int) -> None:
        """Let the n-th wait bring an event of a card."""
        self.says("EventSetWait_v2", number, index, kind, xid)
