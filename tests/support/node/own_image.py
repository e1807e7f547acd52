"""An image with the command `tenure` as it is here, and all that it takes to say what it sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.node.images import image
from tests.support.process import ROOT, environment

OWN: Final = "node.test/tenure:1"
_LOADER: Final = Path("/lib64/ld-linux-x86-64.so.2")
_TAKES: Final = """\
import json, sys
from agent.inside import say
from tenure.cli import app
from tenure.exits import run
sys.stdout, kept = sys.stderr, sys.stdout
run(app, ["serve", "inside", "--help"])
modules = [getattr(one, "__file__", None) for one in list(sys.modules.values())]
mapped = [line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/" in line]
print(json.dumps(sorted({*filter(None, modules), *mapped})), file=kept)
"""


def own_image(folder: Path) -> Path:
    """Write the image: this interpreter and what it loads, where they are on this machine."""
    done = subprocess.run(
        [sys.executable, "-c", _TAKES],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    venv = Path(sys.executable).parent.parent
    files = {Path(one) for one in json.loads(done.stdout)}
    files |= {Path(sys.executable), venv / "pyvenv.cfg", *venv.glob("lib/*/site-packages/*.pth")}
    files |= {link for one in files if ".so." in one.name for link in _names_of(one)} | {_LOADER}
    more = {str(one).lstrip("/"): one for one in files if one.is_file()}
    command = shutil.which("tenure", path=str(venv / "bin"))
    assert command is not None
    more["usr/bin/tenure"] = Path(command)
    return image(
        folder / "own.tar", name=OWN, program=Path(sys.executable), arguments=[], more=more
    )


def _names_of(library: Path) -> list[Path]:
    """Return the names by which programs ask for a library, beside its own."""
    beside = library.parent.glob(f"{library.name.partition('.so.')[0]}.so*")
    return [one for one in beside if one.resolve() == library.resolve()]
