"""A program that is linked dynamically, and a library that its loader loads first."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.support.node.images import image

LINKED: Final = "node.test/linked:1"
_SOURCES: Final = Path(__file__).parents[2] / "node" / "isolation"


def linked_image(folder: Path) -> Path:
    """Write an image of the program, with the loader and the C library of this machine."""
    program = _compiled(folder / "program", "program.c")
    places = {"lib64": "ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu": "libc.so.6"}
    files = {f"{place}/{name}": _of_this_machine(name) for place, name in places.items()}
    return image(folder / "linked.tar", name=LINKED, program=program, arguments=[], more=files)


def library(folder: Path) -> Path:
    """Return a library as a node has it, with the folder of locks beside it."""
    (folder / "locks").mkdir()
    return _compiled(folder / "libvgpu.so", "library.c", "-shared", "-fPIC")


def _compiled(made: Path, source: str, *flags: str) -> Path:
    command = ["cc", "-O1", *flags, "-o", str(made), str(_SOURCES / source)]
    subprocess.run(command, check=True, timeout=60)
    return made


def _of_this_machine(name: str) -> Path:
    """Return where the compiler finds a library."""
    done = subprocess.run(
        ["cc", f"-print-file-name={name}"], check=True, timeout=60, capture_output=True, text=True
    )
    return Path(done.stdout.strip()).resolve(strict=True)
