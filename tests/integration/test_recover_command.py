"""`tenure ledger recover` and what `tenure status` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.recovery_scene import make_scene


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A scene of its own."""
    return make_scene(tmp_path)


@pytest.fixture
def tenure(scene: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line beside the restored ledger."""
    return CommandLine(scene / "tenure.db", capsys)


def options(scene: Path, pods: str = "pods.json") -> list[str]:
    """Return what every call names."""
    files = ["--pods", str(scene / pods), "--public-key", str(scene / "tenure.vkey")]
    return ["ledger", "recover", *files, "--witness", str(scene / "witness.yaml")]


def test_recover_names_the_loss_and_holds_again_what_runs(tenure: CommandLine, scene: Path) -> None:
    """Status then shows the incarnation and the unknown range; a second call has nothing to do."""
    answer = tenure.ask(*options(scene), "--all-pods", "-o", "json")
    status = tenure.ask("status", "-o", "json")
    again = tenure.ask(*options(scene), "--all-pods")

    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert document["lost"] == [{"incarnation": "first", "from": 6, "to": 11}]
    assert [(row["what"], row["pod"]) for row in document["pods"]] == [
        ("granted again", "ml/train-0"),
        ("released", "ml/nb-7"),
    ]
    record = json.loads(status.out)
    assert record["incarnation"] == document["incarnation"] != "first"
    assert record["unknown_positions"] == "6-11 of first"
    assert again.out.startswith("lost: nothing that anybody has seen\n")


def test_a_dry_run_leaves_the_ledger_as_it_is(tenure: CommandLine, scene: Path) -> None:
    """The table names what would be done."""
    answer = tenure.ask(*options(scene), "--dry-run")

    assert "lost: positions 6 to 11 of incarnation first\ndry run: nothing" in answer.out
    assert json.loads(tenure.ask("status", "-o", "json").out)["head"] == 5


def test_a_forged_allocation_is_an_answer_of_no(tenure: CommandLine, scene: Path) -> None:
    """The rest is recovered; the Pod is named with the fact."""
    text = (scene / "pods.json").read_text(encoding="utf-8")
    (scene / "forged.json").write_text(text.replace('\\"position\\":6', '\\"position\\":9'))

    answer = tenure.ask(*options(scene, "forged.json"))

    assert answer.code == 1
    assert "not believed" in answer.out
    assert "the signature does not hold" in answer.out


def test_a_broken_witness_file_is_named(tenure: CommandLine, scene: Path) -> None:
    """File, line and field; nothing is recorded."""
    (scene / "witness.yaml").write_text("- origin: x\n  position: one\n")

    answer = tenure.ask(*options(scene))

    assert answer.code == 2
    assert "witness.yaml" in answer.err
