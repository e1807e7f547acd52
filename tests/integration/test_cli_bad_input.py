import json
import sqlite3
from pathlib import Path
from typing import Final

import pytest

from tenure.cli import app
from tenure.exits import run
from tests.support.cli import CommandLine
from tests.support.forked import forked

pytestmark = pytest.mark.integration

NODE: Final = """kind: Node
metadata: {name: n1}
status:
  allocatable: {cpu: "8", memory: 32Gi, nvidia.com/gpu: "4"}
---
"""
POD: Final = """kind: Pod
metadata:
  name: web
  namespace: ml
  uid: u1
spec:
  containers:
  - name: main
    resources:
      limits:
        cpu: 1
"""
NODES_CSV: Final = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n"
PODS_CSV: Final = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,1000,1024,1,500,\n"


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line, run in the folder of the test with `run.db` as its ledger."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(Path("run.db"), capsys)


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        pytest.param(
            f"{NODE}kind: [Pod\nmetadata: {{}}\n", "in.yaml:7", "broken YAML", id="broken YAML"
        ),
        pytest.param(
            NODE + POD.replace("cpu: 1", "cpu: 1\n        memory: 1.5Gi2"),
            "in.yaml:17: Pod ml/web: spec.containers[0].resources.limits[memory]",
            "1.5Gi2",
            id="a wrong quantity",
        ),
        pytest.param(
            NODE + POD.replace("cpu: 1", 'koordinator.sh/gpu: "-1"'),
            "in.yaml:16: Pod ml/web: spec.containers[0].resources.limits[koordinator.sh/gpu]",
            "-1",
            id="a negative GPU",
        ),
        pytest.param(
            NODE
            + POD.replace(
                "  uid: u1",
                '  uid: u1\n  annotations:\n    scheduling.koordinator.sh/resource-spec: "{"',
            ),
            "in.yaml:12: Pod ml/web: metadata.annotations[scheduling.koordinator.sh/resource-spec]",
            "JSON",
            id="an annotation of ours that is not JSON",
        ),
        pytest.param(
            f"{NODE}{POD}---\n{POD.replace('name: web', 'name: other')}",
            "in.yaml:22: Pod ml/other: metadata.uid",
            "duplicate value 'u1', also at in.yaml:10: Pod ml/web",
            id="a duplicate Pod UID",
        ),
        pytest.param(
            f"{NODE}{POD}---\n{POD.replace('uid: u1', 'uid: u2')}",
            "in.yaml:20: Pod ml/web: metadata.name",
            "duplicate value 'web', also at in.yaml:8: Pod ml/web",
            id="a duplicate name",
        ),
        pytest.param(
            NODE + POD.replace("uid: u1", "labels: {team: no}"),
            "in.yaml:10: Pod: metadata.labels[team]",
            "must be text, is the boolean false",
            id="a label of no",
        ),
        pytest.param("{" * 100_000, "in.yaml", "nested deeper", id="a nest that breaks parsers"),
    ],
)
def test_a_bad_manifest_is_one_message_with_file_line_and_field(
    tmp_path: Path, cli: CommandLine, text: str, place: str, fact: str
) -> None:
    """Exit code 2, one error and one next step, no traceback, nothing written."""
    (tmp_path / "in.yaml").write_text(text, encoding="utf-8")

    done = cli.ask("simulate", "in.yaml")

    error, step = done.err.splitlines()
    assert done.code == 2
    assert done.out == ""
    assert error.startswith(f"error: {place}")
    assert fact in error
    assert step.startswith("next: ")
    assert [path.name for path in tmp_path.iterdir()] == ["in.yaml"]


@pytest.mark.parametrize(
    ("nodes", "pods", "place", "fact"),
    [
        pytest.param(
            NODES_CSV.replace(",gpu,", ",cards,"),
            PODS_CSV,
            "nodes.csv",
            "gpu",
            id="a missing column",
        ),
        pytest.param(
            NODES_CSV,
            PODS_CSV.replace(",1,500", ",-1,500"),
            "pods.csv:2: num_gpu",
            "-1",
            id="negative",
        ),
        pytest.param(NODES_CSV, "", "pods.csv", "", id="an empty file"),
        pytest.param(NODES_CSV, PODS_CSV + "p0,1,1,0,0,\n", "pods.csv:3", "p0", id="a name twice"),
    ],
)
def test_a_bad_trace_is_one_message_with_file_line_and_column(
    cli: CommandLine, nodes: str, pods: str, place: str, fact: str
) -> None:
    """The same for the CSV files of a trace."""
    Path("nodes.csv").write_text(nodes, encoding="utf-8")
    Path("pods.csv").write_text(pods, encoding="utf-8")
    files = ("--openb-nodes", "nodes.csv", "--openb-pods", "pods.csv")

    done = cli.ask("simulate", *files)

    error, step = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert error.startswith(f"error: {place}")
    assert fact in error
    assert step.startswith("next: ")
    assert not Path("run.db").exists()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        pytest.param(["no.yaml"], "no.yaml: no such file or directory", id="a missing manifest"),
        pytest.param(
            ["--openb-nodes", "n.csv", "--openb-pods", "p.csv"], "n.csv: ", id="a missing CSV"
        ),
        pytest.param(["--trace", "nowhere"], "nowhere", id="a missing trace"),
        pytest.param(["in.yaml", "--config", "no.yaml"], "no.yaml: no such", id="missing settings"),
        pytest.param([], "", id="no input"),
        pytest.param(["in.yaml", "--trace", "t"], "one input is needed", id="two inputs"),
        pytest.param(["in.yaml", "--schedule", "no.csv"], "no.csv: can't read", id="no schedule"),
        pytest.param(
            ["--trace", "t", "--schedule", "s.csv"],
            "--schedule: only with FILE",
            id="a second schedule",
        ),
        pytest.param(["--openb-nodes", "n.csv"], "--openb-pods", id="half a trace"),
        pytest.param(
            ["in.yaml", "--inflate", "1.3"], "--inflate: only with", id="inflated manifests"
        ),
        pytest.param(
            ["--openb-nodes", "n", "--openb-pods", "p", "--inflate", "\uff12"],
            "--inflate: not a ratio",
            id="a ratio in full-width digits",
        ),
        pytest.param(
            ["--openb-nodes", "n", "--openb-pods", "p", "--inflate", "much"],
            "--inflate: not a ratio",
            id="no ratio",
        ),
        pytest.param(["in.yaml", "--policy", "best"], "--policy", id="no such policy"),
        pytest.param(
            ["in.yaml", "--compare", "fgd,best"], "--compare: not one of", id="to compare"
        ),
        pytest.param(
            ["in.yaml", "--compare", "fgd", "--ledger", "x"],
            "--ledger: not with --compare",
            id="both",
        ),
        pytest.param(["in.yaml", "--now", "noon"], "--now: not a time", id="no time"),
        pytest.param(
            ["in.yaml", "--resume"], "--resume: needs the ledger", id="resume without ledger"
        ),
        pytest.param(["in.yaml", "--ledger", "no/dir/x.db"], "no/dir", id="no such directory"),
        pytest.param(["in.yaml", "--ledger", ""], "--ledger: a file name", id="no ledger's name"),
        pytest.param(["in.yaml", "--ledger", "mysql://h/d"], "ledger URL", id="another database"),
        pytest.param(
            ["in.yaml", "--ledger", "postgresql:///d?host=/nowhere"],
            "can't connect to the database",
            id="no such server",
        ),
    ],
)
def test_wrong_usage_is_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    fact: str,
) -> None:
    """Exit code 2 and what to do, before anything is decided or written."""
    (tmp_path / "in.yaml").write_text(NODE + POD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    code = run(app, ["simulate", *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert fact in captured.err
    assert "Traceback" not in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.yaml"]


@pytest.fixture
def ledger(tmp_path: Path, cli: CommandLine) -> Path:
    """A finished run's ledger."""
    (tmp_path / "in.yaml").write_text(NODE + POD, encoding="utf-8")
    assert cli.ask("simulate", "in.yaml").code == 0
    return tmp_path / "run.db"


def test_a_ledger_of_a_newer_version_is_refused(ledger: Path, cli: CommandLine) -> None:
    """Its events may mean what this release can't know; every command says the same."""
    with sqlite3.connect(ledger) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = ledger.read_bytes()

    for command in (("simulate", "in.yaml", "--resume"), ("verify",), ("status",)):
        done = cli.ask(*command)
        error = done.err.splitlines()[-2]
        assert (done.code, done.out) == (2, "")
        assert error.startswith("error: run.db: written by a newer version")
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        pytest.param(b"not a database", "not a ledger", id="another file"),
        pytest.param(b"", "", id="an empty file"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(
    tmp_path: Path, cli: CommandLine, content: bytes, fact: str
) -> None:
    """It is not overwritten: only an empty file may become a ledger."""
    (tmp_path / "in.yaml").write_text(NODE + POD, encoding="utf-8")
    (tmp_path / "run.db").write_bytes(content)

    done = cli.ask("simulate", "in.yaml")

    if content:
        assert done.code == 2
        assert f"run.db: {fact}" in done.err
        assert (tmp_path / "run.db").read_bytes() == content
    else:
        assert done.code == 0


def test_a_new_run_does_not_write_into_a_ledger(ledger: Path, cli: CommandLine) -> None:
    """Nor does it read TENURE_LEDGER or ./tenure.db, which may be a live one."""
    before = ledger.read_bytes()

    again = cli.ask("simulate", "in.yaml")
    (ledger.parent / "tenure.db").write_bytes(before)
    aside = forked("simulate", "in.yaml", cwd=ledger.parent, env={"TENURE_LEDGER": str(ledger)})

    assert again.code == 2
    assert "--resume" in again.err.splitlines()[-1]
    assert aside.returncode == 0
    assert "temporary" in aside.stderr
    assert ledger.read_bytes() == (ledger.parent / "tenure.db").read_bytes() == before


def test_an_error_names_stdin_as_stdin(tmp_path: Path) -> None:
    """What came through a pipe has lines, too."""
    text = json.dumps({"kind": "Pod", "metadata": {"name": 3}}, indent=1)

    done = forked("simulate", "-", cwd=tmp_path, stdin=text)

    assert done.stderr.startswith("error: stdin:4: Pod: metadata.name: must be text")


@pytest.mark.parametrize("command", ["map", "check", "simulate"])
def test_a_pipe_that_brings_nothing_is_not_an_empty_cluster(command: str, tmp_path: Path) -> None:
    """The command before it failed, most likely."""
    done = forked(command, "-", cwd=tmp_path, stdin=" \n")

    assert (done.returncode, done.stdout) == (2, "")
    assert "error: stdin: nothing came in" in done.stderr
    assert "next: run the command before the pipe alone" in done.stderr


def test_a_wrong_choice_is_said_in_one_line_of_plain_words(cli: CommandLine) -> None:
    """Which ones there are, without what a library puts before it."""
    form = cli.run("map", "-o", "jsn")
    missing = cli.run("trace", "generate")

    assert "'jsn' is not one of 'table', 'wide', 'json', 'yaml', 'csv'" in form.err
    assert "Value error" not in form.err
    assert "missing option '--like'. Choose from: openb, week" in missing.err
    assert (form.code, missing.code) == (2, 2)


def test_without_a_ledger_the_next_step_is_one_that_needs_none(cli: CommandLine) -> None:
    """What a newcomer types first on a cluster of his own."""
    answer = cli.run("map")

    assert answer.code == 2
    assert "`kubectl get nodes,pods -A -o json | tenure map -` needs none" in answer.err
