"""An image of the agent out of this checkout: interpreter, what the agent loads, our packages."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from tests.support.node.images import image
from tests.support.process import ROOT

AGENT: Final = "node.test/agent:1"
_PINNED: Final = re.compile(r"(?m)^([\w.-]+)==")
_LEFT_OUT: Final = frozenset(
    {"alembic", "asyncpg", "mako", "numpy", "psycopg", "psycopg-binary", "sqlalchemy"}
)
"""What no node needs: the agent opens no database, and decides with integers."""
_OURS: Final = ("agent", "certs", "ledger", "scheduler", "tenure", "webhook")
_NOT_TAKEN: Final = frozenset({"__pycache__", "idlelib", "site-packages", "test", "tests"})
_LIBRARY: Final = re.compile(r"(?m)^\s+(?:\S+ => )?(/\S+) \(0x")


def agent_image(folder: Path) -> Path:
    """Write the image, whose command is `tenure`, and return its file."""
    base = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib"))
    interpreter = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = library / "site-packages"
    files = {interpreter: interpreter, **{path: path for path in _below(library)}}
    for path in _installed():
        files[packages / path.relative_to(sysconfig.get_path("purelib"))] = path
    for name in _OURS:
        files |= {packages / path.relative_to(ROOT): path for path in _below(ROOT / name)}
    for path in _linked([interpreter, *(one for one in files.values() if ".so" in one.name)]):
        files[path] = path
    command = folder / "tenure"
    command.write_text(f"#!{interpreter} -P\nfrom tenure.cli import main\n\nmain()\n")
    return image(
        folder / "agent.tar",
        name=AGENT,
        program=command,
        arguments=[],
        more={
            "usr/local/bin/tenure": command,
            **{str(at).lstrip("/"): path for at, path in files.items()},
        },
    )


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files of a package that are loaded."""
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder).parts
        if path.is_file() and path.suffix != ".a" and not _NOT_TAKEN & set(below):
            yield path


def _installed() -> Iterator[Path]:
    """Yield the files of the packages that are locked for the agent."""
    locked = _PINNED.findall((ROOT / "requirements" / "agent.txt").read_text())
    for name in (*locked, "tenure"):
        if name in _LEFT_OUT:
            continue
        own = Path(sysconfig.get_path("purelib"))
        for file in metadata.distribution(name).files or ():
            path = Path(str(file.locate()))
            if path.is_file() and path.is_relative_to(own) and "__pycache__" not in path.parts:
                yield path


def _linked(programs: list[Path]) -> Iterator[Path]:
    """Yield the shared libraries of programs, where their loader finds them."""
    command = ["ldd", *map(str, programs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    yield from sorted({Path(found) for found in _LIBRARY.findall(done.stdout)})
