"""The live service and the files' commands say the same, byte for byte; and who may see what."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from msgspec import structs

from ledger.domain.log.events import DriftFound, LedgerEvent
from scheduler.service.api.http import Route
from tenure.serving.scheduling.api import Answering, ApiListener, questions
from tests.support.api_callers import Cluster, api_options, authority, server_folder
from tests.support.cli import Answer, CommandLine
from tests.support.kube.control_plane import free_port
from tests.support.ledgers import NOON, morning, write_ledger

pytestmark = pytest.mark.integration

SECONDS: Final = 120.0
QUESTIONS: Final = (
    ("who", "gpu-a/0"),
    ("who", "gpu-a/0", "--at", "2026-03-02T10:30:00+01:00"),
    ("who", "gpu-a/0", "--history", "-o", "csv"),
    ("who", "gpu-a", "-o", "wide"),
    ("who", "gpu-a", "--since", "2026-03-02", "--until", "2026-03-02T10:30:00+01:00"),
    ("who", "gpu-a/cpu/0", "--since", "2026-03-02T09:30:00+01:00", "-o", "json"),
    ("who", "ml/nb-7", "--history", "-o", "json"),
    ("why", "gpu-a/0"),
    ("why", "gpu-a", "-o", "json"),
    ("why", "ml/nb-7", "-o", "yaml"),
    ("map",),
    ("map", "-o", "json"),
    ("map", "-o", "csv"),
    ("map", "--at", "2026-03-02T10:30:00+01:00"),
    ("map", "--cpus"),
    ("map", "--node", "gpu-*", "--namespace", "*", "-o", "json"),
    ("pods", "--all", "-o", "json"),
    ("pods", "--waiting"),
    ("top",),
    ("top", "--by", "namespace", "-o", "json"),
    ("top", "--by", "owner", "--limit", "1", "-o", "wide"),
    ("usage",),
    ("usage", "--by", "owner", "-o", "csv"),
    ("usage", "-o", "json", "--since", "2026-03-02T09:00:00+01:00"),
)


AT_NINE_THIRTY: Final = ("map", "--at", "2026-03-02T10:30:00+01:00")


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Africa/Lagos")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@contextmanager
def served(
    folder: Path, ledger: str, cluster: Cluster, acts: Sequence[Route] = ()
) -> Iterator[tuple[str, ...]]:
    """Serve a ledger in a thread; yield the options of who asks with the token `good`."""
    server, port = authority("server"), free_port()
    ready, ends = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        options = api_options(port, server_folder(folder / "server", server))
        listener = ApiListener(options, cluster, lambda: datetime.now(UTC))
        answering = Answering(ledger)
        async with listener.listening([*questions(cluster, answering), *acts]):
            ready.set()
            await ends.wait()
        answering.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(SECONDS)
    (folder / "token").write_text("good\n")
    try:
        yield (
            *("--server", f"https://127.0.0.1:{port}"),
            *("--token-file", str(folder / "token")),
            *("--server-ca", str(folder / "server" / "ca.crt")),
        )
    finally:
        loops[0].call_soon_threadsafe(ends.set)
        thread.join(SECONDS)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of one morning."""
    return write_ledger(tmp_path_factory.mktemp("ledger") / "morning.db", morning())


def ask(tenure: CommandLine, place: tuple[str, ...], *arguments: str) -> Answer:
    """Ask the service."""
    return tenure.run(*arguments, *place)


@pytest.mark.parametrize("columns", ["", "80", "2000"])
def test_a_service_says_what_the_command_says_of_its_ledger(
    ledger: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    """Every question, in text and as data, however wide the terminal; notes stay beside it."""
    monkeypatch.setenv("COLUMNS", columns)
    cluster = Cluster(tokens={"good": "anna"}, may={"anna": {""}})
    tenure = CommandLine(ledger, capsys)
    with served(tmp_path, str(ledger), cluster) as place:
        for question in QUESTIONS:
            of_file, live = tenure.ask(*question), ask(tenure, place, *question)
            assert (live.code, live.out) == (0, of_file.out), question
            notes = [line for line in of_file.err.splitlines() if not line.startswith("ledger:")]
            assert live.err.splitlines() == notes, question
            assert of_file.out


def of_two_teams() -> list[tuple[int, str, LedgerEvent]]:
    """Return the morning with everybody but nb-7 and big-1 in another namespace."""
    return [
        (
            at_us,
            stream,
            event
            if getattr(event, "pod_name", "nb-7") in ("nb-7", "big-1")
            else structs.replace(event, namespace="secret"),
        )
        for at_us, stream, event in morning()
    ]


TOLD_OF_ONE: Final = {
    ("who", "gpu-a/1"): "gpu-a/1 is held by no Pod of namespace ml\n",
    ("who", "gpu-b"): "gpu-b is held by no Pod of namespace ml\n",
    ("map",): "no cards on 0 nodes\n",
}


def test_who_may_see_one_namespace_sees_its_lines_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody else's Pod is named or counted, and no card of theirs is called free."""
    cluster = Cluster(tokens={"good": "anna"}, may={"anna": {"ml"}})
    two_teams = write_ledger(tmp_path / "two.db", of_two_teams())
    tenure = CommandLine(two_teams, capsys)
    asked = [*QUESTIONS, *TOLD_OF_ONE, ("who", "gpu-b/0"), ("why", "ml/big-1", "-o", "json")]
    with served(tmp_path, str(two_teams), cluster) as place:
        for question in asked:
            refused = ask(tenure, place, *question)
            assert (refused.code, refused.out) == (2, ""), question
            assert "forbidden" in refused.err
            answer = ask(tenure, place, *question, "-n", "ml")
            said = answer.out + answer.err
            assert not any(word in said for word in ("secret", "train-0", "legacy")), question
            assert " free" not in answer.out.replace("0 free", "").replace(". free", ""), question
            if question in TOLD_OF_ONE:
                assert (answer.code, answer.out) == (0, TOLD_OF_ONE[question])
        for question in (("who", "secret/train-0"), ("why", "secret/train-0")):
            unknown = ask(tenure, place, *question, "-n", "ml")
            assert "the ledger knows no Pod secret/train-0" in unknown.err
        for typed in ("gpu-aa", "train-1", "secret/train-1"):
            suggested = ask(tenure, place, "who", typed, "-n", "ml").err
            assert "did you mean" not in suggested, "names are seen as lines are"
        for question in (("why", "gpu-a/0"), ("map", "--cpus")):
            refused = ask(tenure, place, *question, "-n", "ml")
            assert "is about the Pods of all namespaces" in refused.err
        held = json.loads(ask(tenure, place, *AT_NINE_THIRTY, "-n", "ml", "-o", "json").out)
        (node,) = held["nodes"]
        (card,) = node["groups"][0]["devices"]
        assert (node["node"], [each["core_percent"] for each in card["holders"]]) == ("gpu-a", [25])
        assert held["summary"] == {"nodes": 1, "cards": 1, "free": 0, "gettable": 0}
        used = json.loads(ask(tenure, place, "usage", "-n", "ml", "-o", "json").out)
        assert [(one["group"], one["pods"]) for one in used["groups"]] == [("ml", 1)]
        assert (used["namespace"], used["capacity_percent"]) == ("ml", None)
        assert "forbidden" in ask(tenure, place, "who", "gpu-a/0", "-n", "secret").err


def test_what_a_service_can_not_read_is_said_with_its_place(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of the command."""
    cluster = Cluster(tokens={"good": "anna"}, may={"anna": {""}})
    tenure = CommandLine(ledger, capsys)
    with served(tmp_path, str(ledger), cluster) as place:
        for question in (
            ("who", "gpu-z/9"),
            ("who", "a/b/c/d"),
            ("who", "gpu-a/0", "--at", "noon"),
            ("usage", "--by", "colour"),
        ):
            of_file, live = tenure.ask(*question), ask(tenure, place, *question)
            assert (of_file.code, live.code) == (2, 2), question
            fact = of_file.err.split("error: ")[1].splitlines()[0]
            assert fact in live.err, (question, live.err)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--live", "--server", "https://a"), "exclude each other"),
        (("--server", "http://a"), "https alone"),
        (("--token-file", "t"), "a ledger is asked"),
        (("-n", "ml"), "a ledger is asked"),
        (("--live", "--token-file", "t"), "goes with --server"),
        (("--live", "--ledger", "x.db"), "exclude each other"),
        (("--server", "https://127.0.0.1:9"), "who asks is not said"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_that_do_not_go_together_are_refused(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is asked."""
    answer = CommandLine(Path("none"), capsys).run("who", "gpu-a/0", *options)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_drift_ends_the_command_as_one_whose_answer_is_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Live as of a file; and who sees one namespace is not told of everybody's."""
    found = DriftFound(drift_id="d", kind="OverHeld", node_uid="uid-gpu-a", detail="two hold it")
    ledger = write_ledger(tmp_path / "drift.db", [*morning(), (NOON, "sys", found)])
    cluster = Cluster(tokens={"good": "anna"}, may={"anna": {""}})
    tenure = CommandLine(ledger, capsys)
    with served(tmp_path, str(ledger), cluster) as place:
        for form in ("table", "json"):
            of_file, live = tenure.ask("drift", "-o", form), ask(tenure, place, "drift", "-o", form)
            assert (of_file.code, live.code) == (1, 1)
            assert "two hold it" in live.out
            assert live.out == of_file.out
        refused = ask(tenure, place, "drift", "-n", "ml")
        assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        (("top",), [("ml/train-0", 1.0, 2000), ("old/legacy", 1.0, 0)]),
        (("top", "--by", "namespace"), [("ml", 1.0, 2000), ("old", 1.0, 0)]),
        (("top", "--by", "node"), [("gpu-a", 1.0, 2000), ("gpu-b", 1.0, 0)]),
        (("top", "--limit", "1"), [("ml/train-0", 1.0, 2000)]),
    ],
    ids=["by Pod", "by namespace", "by node", "the first alone"],
)
def test_top_compares_what_is_held_now(
    question: tuple[str, ...],
    rows: list[tuple[str, float, int]],
    ledger: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who holds most GPUs comes first; what has ended counts nothing."""
    answer = CommandLine(ledger, capsys).ask(*question, "-o", "json")
    told = json.loads(answer.out)
    assert [(one["name"], one["gpus"], one["cpu_milli"]) for one in told] == rows
    assert ("more hold less" in answer.err) == ("--limit" in question)


def test_the_group_is_there_while_the_ledger_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A question is told to come again, and nobody where the ledger lies; then it is answered."""
    ledger = write_ledger(tmp_path / "morning.db", morning())
    cluster = Cluster(tokens={"good": "anna"}, may={"anna": {""}})
    tenure = CommandLine(ledger, capsys)
    with served(tmp_path, str(ledger), cluster) as place:
        ledger.rename(tmp_path / "away.db")
        refused = ask(tenure, place, "who", "gpu-a/0")
        assert refused.code == 2
        assert "the ledger does not answer now (status 503)" in refused.err
        assert str(ledger) not in refused.err
        context = ssl.create_default_context(cafile=place[5])
        with urllib.request.urlopen(
            f"{place[1]}/apis/audit.tenure.sh/v1alpha1", context=context, timeout=SECONDS
        ) as found:
            assert (found.status, json.load(found)["kind"]) == (200, "APIResourceList")
        (tmp_path / "away.db").rename(ledger)
        assert ask(tenure, place, "who", "gpu-a/0").code == 0
