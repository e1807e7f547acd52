"""`tenure check -o diff`: what admission would change, to read in a review."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.cli import CommandLine
from tests.support.objects import container, pod
from tests.support.process import ROOT

pytestmark = pytest.mark.integration

EXAMPLES: Final = ROOT / "examples"
HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A command line."""
    return CommandLine(tmp_path / "none.db", capsys)


def patched(before: str, hunks: list[str]) -> str:
    """The text after a unified diff, which has to fit it."""
    lines, result, at = before.splitlines(), list[str](), 0
    for each in hunks:
        if (head := HUNK.match(each)) is not None:
            start = int(head[1]) - 1
            result += lines[at:start]
            at = start
        elif each.startswith("+"):
            result.append(each[1:])
        else:
            assert lines[at] == each[1:]
            result += [] if each.startswith("-") else [each[1:]]
            at += 1
    return "\n".join([*result, *lines[at:]])


def test_the_diff_makes_the_manifest_what_admission_would_store(line: CommandLine) -> None:
    """Applied to each object as it was written, of several in several files."""
    files = [str(EXAMPLES / name) for name in ("koordinator.yaml", "nvidia.yaml", "cluster.yaml")]
    objects = [each for name in files for each in yaml.safe_load_all(Path(name).read_text())]
    after = [each["object"] for each in json.loads(line.run("check", *files, "-o", "json").out)]

    answer = line.run("check", *files, "-o", "diff")

    parts = re.split(r"(?m)^(?=--- )", answer.out)[1:]
    by_name = {part.split("\n", 1)[0].rsplit("/", 1)[-1]: part.splitlines()[2:] for part in parts}
    changed = [
        one["metadata"]["name"] for one, end in zip(objects, after, strict=True) if one != end
    ]
    assert answer.code == 0
    assert list(by_name) == changed
    assert len(changed) >= 4
    for one, end in zip(objects, after, strict=True):
        text = yaml.safe_dump(one, sort_keys=False, allow_unicode=True, width=1_000_000)
        assert yaml.safe_load(patched(text, by_name.get(one["metadata"]["name"], []))) == end


def test_each_part_says_file_line_and_object(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(
        (EXAMPLES / "nvidia.yaml").read_bytes()
    )))  # fmt: skip

    lines = line.run("check", "-", "-o", "diff").out.splitlines()

    assert re.fullmatch(r"--- stdin:\d+ Pod ml/trainer", lines[0])
    assert lines[1].endswith("Pod ml/trainer, as admitted")


def test_what_is_refused_is_said_beside_the_diff_and_ends_with_1(line: CommandLine) -> None:
    """Every violation with its object."""
    answer = line.run("check", str(EXAMPLES / "cannot.yaml"), "-o", "diff")

    assert answer.code == 1
    assert "Pod ml/two-dialects: refused: spec.containers[0].resources" in answer.err
    assert "refused" not in answer.out


def test_without_a_change_nothing_is_printed(line: CommandLine, tmp_path: Path) -> None:
    """A Pod that asks for nothing of ours is left as it is."""
    path = tmp_path / "web.yaml"
    path.write_text(json.dumps(pod(container(limits={"cpu": "1"}), name="web")), "utf-8")

    answer = line.run("check", str(path), "-o", "diff")

    assert (answer.code, answer.out) == (0, "")


def test_unreadable_input_and_settings_have_no_diff(line: CommandLine, tmp_path: Path) -> None:
    """Exit 2, with what to do."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [", "utf-8")
    settings = str(EXAMPLES / "settings" / "admission.yaml")

    unread = line.run("check", str(broken), "-o", "diff")
    compared = line.run("check", "--config", settings, "--config", settings, "-o", "diff")

    assert (unread.code, compared.code) == (2, 2)
    assert "broken.yaml:2: broken YAML" in unread.err
    assert "take -o table or -o json" in compared.err
