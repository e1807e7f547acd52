"""Our own command line, run in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.cli import app
from tenure.exits import run
from tests.support.objects import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs commands against one ledger."""

    ledger: Path
    capture: pytest.CaptureFixture[str]

    def ask(self, *arguments: str) -> Answer:
        """Run `tenure` with these arguments and `--ledger`."""
        return self.run(*arguments, "--ledger", str(self.ledger))

    def run(self, *arguments: str) -> Answer:
        """Run `tenure` with just these arguments."""
        self.capture.readouterr()
        code = run(app, list(arguments))
        captured = self.capture.readouterr()
        return Answer(code=code, out=captured.out, err=captured.err)


def dumped(line: CommandLine, *objects: Object, name: str = "dump.json") -> str:
    """Return a file of these objects, as kubectl prints them."""
    path = line.ledger.with_name(name)
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)
