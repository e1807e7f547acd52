"""`-o parquet`: typed columns into a file or a pipe, never onto a terminal."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.domain.errors import InputError
from tenure import parquet
from tenure.cli import app
from tenure.exits import run
from tenure.output import DataFormat
from tenure.parquet import Parquet, parquet_target
from tests.support.cli import CommandLine
from tests.support.ledgers import morning, write_ledger


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with one morning in it."""
    return write_ledger(tmp_path_factory.mktemp("parquet") / "ledger.db", morning())


def piped(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    program = "import sys; from tenure.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    ("command", "column"),
    [
        pytest.param(
            ("ledger", "sql", "SELECT minor, opened_at FROM audit_holdings"),
            ("minor", pa.int64()),
            id="a query",
        ),
        pytest.param(("usage",), ("gpu_hours", pa.float64()), id="usage"),
        pytest.param(("who", "gpu-a", "--history"), ("core_percent", pa.int64()), id="who"),
    ],
)
def test_an_answer_has_typed_columns(
    ledger: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    command: tuple[str, ...],
    column: tuple[str, pa.DataType],
) -> None:
    """The file that --out names and the bytes on stdout are the same table."""
    words = (*command, "--ledger", str(ledger), "-o", "parquet")
    path = tmp_path / "answer.parquet"

    assert (run(app, [*words, "--out", str(path)]), capsysbinary.readouterr().out) == (0, b"")
    assert run(app, words) == 0
    table = pq.read_table(path)
    assert table.num_rows > 0
    assert column in [(field.name, field.type) for field in table.schema]
    assert pq.read_table(io.BytesIO(capsysbinary.readouterr().out)).equals(table)


def test_a_table_reads_back_as_the_answer_was(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Every value of a query, row by row, whole numbers as such and nothing as nothing.

    The file that --out names and the bytes in a pipe are the same table.
    """
    query = (
        "SELECT position, node_name, minor, core_percent, memory_bytes, closed_position, opened_at,"
        " core_percent / 8.0 AS eighth FROM audit_holdings ORDER BY position, minor"
    )
    cli, path = CommandLine(ledger, capsys), tmp_path / "answer.parquet"
    said = json.loads(cli.ask("ledger", "sql", query, "-o", "json").out)
    assert cli.ask("ledger", "sql", query, "-o", "parquet", "--out", str(path)).code == 0
    table = pq.read_table(path)
    sent = piped("ledger", "sql", query, "--ledger", str(ledger), "-o", "parquet")

    assert pq.read_table(io.BytesIO(sent.stdout)).equals(table), sent.stderr
    assert len(said) == 2
    assert any(row["closed_position"] is None for row in said)
    assert table.to_pylist() == said
    kinds = {field.name: field.type for field in table.schema}
    assert kinds == {
        **dict.fromkeys(("position", "minor", "core_percent", "memory_bytes"), pa.int64()),
        **dict.fromkeys(("node_name", "opened_at"), pa.string()),
        "closed_position": pa.int64(),
        "eighth": pa.float64(),
    }


def test_values_keep_their_kind(tmp_path: Path) -> None:
    """Whole and broken numbers are floats, mixed kinds and nothing at all are text."""
    rows: list[dict[str, object]] = [
        {"n": 1, "f": 1, "flag": True, "mixed": 1, "none": None, "list": [1]},
        {"n": None, "f": 0.5, "flag": False, "mixed": "x", "none": None, "list": [2]},
    ]
    Parquet(path=tmp_path / "t.parquet").write(rows, list(rows[0]))

    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == [
        {"n": 1, "f": 1.0, "flag": True, "mixed": "1", "none": None, "list": "[1]"},
        {"n": None, "f": 0.5, "flag": False, "mixed": "x", "none": None, "list": "[2]"},
    ]


def test_a_terminal_gets_no_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where to send it."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(InputError, match="not for a terminal") as caught:
        parquet_target(DataFormat.PARQUET, None)
    assert "--out FILE" in caught.value.__notes__[0]


def test_without_pyarrow_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional: every other form works without it."""
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="needs pyarrow") as caught:
        parquet_target(DataFormat.PARQUET, None)
    assert ".[parquet]" in caught.value.__notes__[0]
    assert parquet_target(DataFormat.CSV, None) is None


def test_a_file_is_for_parquet_alone(tmp_path: Path) -> None:
    """Text goes where the shell sends it."""
    with pytest.raises(InputError, match="only parquet is written to a file"):
        parquet_target(DataFormat.CSV, tmp_path / "x.csv")
