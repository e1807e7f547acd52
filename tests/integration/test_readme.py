"""Every command of README, typed in its order; the block for a cluster is typed in tests/e2e."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from tenure.cli import app
from tenure.exits import run
from tests.support.corpus import CORPUS
from tests.support.process import ROOT, environment

pytestmark = pytest.mark.integration

README: Final = (ROOT / "README.md").read_text("utf-8")
CLUSTER: Final = "<!-- cluster -->\n"
SHELL: Final = re.compile(r"[|$<>&]")
"""What has to be typed into a shell."""


def commands() -> list[str]:
    """Every command of README's blocks but the one for a cluster, without its comment."""
    text = README.replace("\\\n", " ")
    blocks = re.findall(rf"({CLUSTER})?```console\n(.*?)```", text, re.DOTALL)
    lines = [line for mark, block in blocks if not mark for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [re.split(r"\s+#\s", line[2:])[0].strip() for line in lines]


def shell(folder: Path) -> dict[str, str]:
    """An environment with `tenure`, and a `kubectl` that prints the objects of some cluster."""
    dump = CORPUS / "mixed-five-systems" / "dump.json"
    programs = {
        "tenure": f'exec {shlex.quote(sys.executable)} -m tenure "$@"',
        "kubectl": f'[ "$*" = "get nodes,pods -A -o json" ] && cat {shlex.quote(str(dump))}',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return environment(PATH=f"{folder}:{os.environ['PATH']}")


DEMO: Final = "tenure demo --size small --out week"


def test_every_command_runs_as_written(
    shown: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    One after the other in a folder that has the examples; `make` is what runs this.

    The demonstration, which other tests want too, has run already.
    """
    where = tmp_path / "checkout"
    where.mkdir()
    (where / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(where)
    known = shell(tmp_path)
    typed = [line for line in commands() if not line.startswith("make ")]
    assert typed.pop(0) == DEMO
    shutil.copytree(shown[0], where / "week")

    for line in typed:
        if SHELL.search(re.sub(r"'[^']*'", "", line)):
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line],
                cwd=where,
                env=known,
                capture_output=True,
                text=True,
                check=False,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            code = run(app, shlex.split(line)[1:])
            out, err = capsys.readouterr()
        assert code == 0, f"{line}: {err}"
        assert out or line.startswith(("tenure report", "tenure drift")), line
    assert len(typed) > 20
    assert (where / "report.html").is_file()


def test_every_target_of_make_is_there() -> None:
    """What README tells to make."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {match[1] for match in re.finditer(r"(?:`|\$ )make ([a-z0-9]+)", README)}

    assert {"demo", "test", "live", "e2e"} <= targets
    for target in targets:
        assert re.search(rf"(?m)^{target}:.*## ", makefile), target


def test_it_opens_with_what_it_is_and_two_commands_and_says_what_is_not_there_first() -> None:
    """For a stranger, in this order."""
    marks = ["# Tenure\n", "$ make demo", "$ make test", "docs/images/page.png"]
    marks += ["## Three commands first", "## What is not built yet", "## Why not what you have?"]
    marks += ["## See it live", "## What to do with it today", "## Guarantees"]

    places = [README.index(mark) for mark in marks]

    assert places == sorted(places)
    assert "```console\n$ make demo" in README[:1000]


def test_every_link_and_picture_is_there() -> None:
    """Files of this checkout."""
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]

    assert len(links) > 15
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_pod_before_and_after_is_what_simulate_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The annotations of the first Pod of the example that README names."""
    monkeypatch.chdir(ROOT)
    found = re.search(
        r"```yaml\n# after: .*?\((tenure simulate .*?)\)\n(.*?)```", README, re.DOTALL
    )
    assert found is not None

    assert run(app, shlex.split(found[1])[1:]) == 0

    first = json.loads(capsys.readouterr().out)["placements"][0]
    assert yaml.safe_load(found[2]).items() <= first["annotations"].items()


def test_the_examples_place_all_but_those_that_nobody_can(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the simplest one, which asks for one card."""
    monkeypatch.chdir(ROOT)
    assert run(app, ["simulate", "examples/", "-o", "json"]) == 0

    placements = json.loads(capsys.readouterr().out)["placements"]

    refused = yaml.safe_load_all((ROOT / "examples" / "cannot.yaml").read_text("utf-8"))
    nowhere = {each["metadata"]["name"] for each in refused}
    assert {each["name"] for each in placements if each["node"] is None} == nowhere
    assert "trainer" in {each["name"] for each in placements if each["node"] == "plain-1"}
