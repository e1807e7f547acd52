import csv
import io
import json
import re
import sqlite3
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.store.open import open_ledger
from ledger.store.proving.verify import verify
from ledger.store.reading import report_queries as queries
from ledger.store.reading.views import When
from scheduler.decide.settings import SchedulingSettings
from scheduler.usage.model import History
from tenure.report.build import read_report, write_report
from tenure.simulate.runner import RunRecord, run_simulation
from tenure.simulate.trace.reader import read_trace
from tenure.simulate.trace.week import write_week
from tests.support.cli import CommandLine
from tests.support.corpus import CORPUS
from tests.support.ledgers import morning, write_ledger
from tests.support.objects import container, node, pod
from tests.support.packing import unpack

CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: gpu-a},
     status: {allocatable: {cpu: "64", memory: 256Gi, nvidia.com/gpu: "4"}}}
  - {apiVersion: v1, kind: Node, metadata: {name: cpu-1},
     status: {allocatable: {cpu: "64", memory: 256Gi}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: train-0, namespace: ml},
     spec: {nodeName: gpu-a, containers: [{name: m, resources: {limits: {nvidia.com/gpu: "2"}}}]},
     status: {phase: Running}}
  - {apiVersion: v1, kind: Pod, metadata: {name: done, namespace: ml},
     spec: {nodeName: gpu-a, containers: [{name: m, resources: {limits: {nvidia.com/gpu: "2"}}}]},
     status: {phase: Succeeded}}
"""


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a simulated week on twelve nodes."""
    folder = tmp_path_factory.mktemp("week")
    (folder / "trace").mkdir()
    write_week(folder / "trace", nodes=12, pods=400, seed=5)
    settings = SchedulingSettings(node_policy="fgd")
    run_simulation(
        read_trace(folder / "trace", settings.vocabulary),
        settings=settings,
        seed=5,
        version="test",
        clock=lambda: 0.0,
        record=RunRecord(ledger=str(folder / "week.db"), batch=1000),
    )
    return folder / "week.db"


@pytest.fixture(scope="module")
def page(week: Path) -> str:
    """Its report."""
    path = week.with_name("report.html")
    with open_ledger(str(week), mode="read") as ledger:
        proof = verify(ledger)
        report = read_report(ledger, proof=proof, command="tenure report", seed="5")
        write_report(report, path)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def tenure(week: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the week."""
    return CommandLine(week, capsys)


def document_of(page: str) -> dict[str, object]:
    """The packed history of a page."""
    found = re.search(r'<script type="application/json" id="history">(.*?)</script>', page)
    assert found is not None
    document: dict[str, object] = json.loads(found[1])
    return document


def count(ledger: Path, sql: str) -> int:
    """One number, by Python's own sqlite3."""
    connection = sqlite3.connect(ledger)
    try:
        return int(connection.execute(sql).fetchone()[0])
    finally:
        connection.close()


def test_the_numbers_of_the_headline_are_those_of_sql(page: str, week: Path) -> None:
    """Decided and placed, counted independently."""
    decided = count(
        week,
        "SELECT count(*) FROM (SELECT pod_uid FROM audit_reservations"
        " UNION SELECT pod_uid FROM audit_refusals)",
    )
    placed = count(week, "SELECT count(DISTINCT pod_uid) FROM audit_reservations")

    found = re.search(r"<h1>(.*?)</h1>", page)

    assert found is not None
    assert found[1] == (
        f"{decided} Pods decided, {placed} placed,"
        " 0 cards ever above 100 %, proved at every position"
    )


def shown_at(history: History, at: int) -> set[tuple[str, int, str, int]]:
    """What the page's slider shows at a moment: node, card, Pod, core percent."""
    return {
        (
            history.nodes[history.cards[hold.card].node].name,
            history.cards[hold.card].minor,
            "/".join(history.pods[hold.pod]),
            history.shares[hold.share].core_percent,
        )
        for hold in history.holds
        if history.cards[hold.card].device_type == "gpu"
        and hold.opened <= at
        and (hold.closed is None or hold.closed > at)
    }


def test_every_moment_of_the_slider_is_what_who_answers(page: str, week: Path) -> None:
    """The map is the ledger, at any step."""
    document = document_of(page)
    history = unpack(document)
    steps, tick, end = (int(str(document[key])) for key in ("steps", "tick", "end"))
    moments = [history.start + tick * (end * i // steps) for i in range(0, steps + 1, steps // 25)]

    with open_ledger(str(week), mode="read") as ledger:
        for at in moments:
            holders = queries.device_holders(ledger.connection, When(at_us=at), device_type="gpu")
            asked = {
                (h.node_name, h.minor, f"{h.namespace}/{h.pod_name}", h.core_percent)
                for h in holders
            }
            assert shown_at(history, at) == asked
    assert any(shown_at(history, at) for at in moments)


def test_gpu_hours_of_the_page_are_those_of_the_usage_view(tenure: CommandLine, week: Path) -> None:
    """`tenure usage` adds up what the view gives by day, cards without core aside."""
    groups = json.loads(tenure.ask("usage", "-o", "json").out)["groups"]

    by_view = dict(
        sqlite3.connect(week).execute(
            "SELECT namespace, sum(cpu_hours) FROM audit_usage_days GROUP BY namespace"
        )
    )

    assert {g["group"]: g["cpu_hours"] for g in groups} == pytest.approx(by_view, abs=0.01)


def test_the_map_of_a_moment_counts_what_sql_counts(tenure: CommandLine, week: Path) -> None:
    """Tenants per card on Wednesday noon."""
    at_us = 1_772_625_600_000_000  # 2026-03-04T12:00:00Z

    told = json.loads(tenure.ask("map", "--at", "2026-03-04T12:00:00Z", "-o", "json").out)

    groups = [group for node in told["nodes"] for group in node["groups"]]
    tenants = sum(len(card["holders"]) for group in groups for card in group["devices"])
    held = (
        "SELECT count(*) FROM audit_holdings"
        f" WHERE opened_at_us <= {at_us} AND coalesce(closed_at_us, {at_us} + 1) > {at_us}"
    )
    assert tenants == count(week, held) > 0


def test_a_map_before_the_ledger_begins_says_that_nothing_is_recorded(tenure: CommandLine) -> None:
    """Cards that nobody had told of yet were not free."""
    asked = ("map", "--at", "2020-01-01T00:00Z")
    began = "not recorded: this ledger begins at 2026-03-02T"

    assert tenure.ask(*asked).out.startswith(began)
    told = json.loads(tenure.ask(*asked, "-o", "json").out)
    assert told["untold"].startswith(began)
    assert (told["summary"]["cards"], told["nodes"]) == (0, [])


def test_report_writes_one_file_and_proves_first(tenure: CommandLine, tmp_path: Path) -> None:
    """`--no-verify` writes it too, and claims nothing."""
    path = tmp_path / "report.html"

    assert tenure.ask("report", "-o", str(path)).code == 0
    assert "proved at every position" in path.read_text(encoding="utf-8")
    assert tenure.ask("report", "--no-verify", "-o", str(path)).code == 0
    assert "not verified</h1>" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_same_ledger_gives_the_same_page(tenure: CommandLine) -> None:
    """A report can be made again and compared."""
    first = tenure.ask("report", "--no-verify", "-o", "-").out

    assert first.startswith("<!DOCTYPE html>")
    assert tenure.ask("report", "--no-verify", "-o", "-").out == first


def test_a_report_of_a_day_tells_of_that_day(tenure: CommandLine) -> None:
    """The numbers of the headline are SQL's for the day; what began before is there."""
    since, until = 1_772_496_000_000_000, 1_772_582_400_000_000  # 3 and 4 March, 0:00 UTC
    told = ("--since", "2026-03-03T00:00Z", "--until", "2026-03-04T00:00Z")

    page = tenure.ask("report", "--no-verify", "-o", "-", *told).out

    shown = unpack(document_of(page))
    assert (shown.start, shown.end) == (since, until)
    held = (
        "SELECT count(*) FROM audit_holdings WHERE opened_at_us <= {until}"
        " AND (closed_at_us IS NULL OR closed_at_us > {since})"
    )
    assert len(shown.holds) == count(tenure.ledger, held.format(since=since, until=until)) > 0
    placed = (
        "SELECT count(DISTINCT pod_uid) FROM audit_reservations"
        f" WHERE opened_at_us BETWEEN {since} AND {until}"
    )
    assert f" {count(tenure.ledger, placed)} placed, not verified</h1>" in page
    whole = tenure.ask("report", "--no-verify", "-o", "-").out
    assert len(page) < len(whole)


@pytest.mark.parametrize(
    ("since", "message"),
    [
        pytest.param("2027-03-03T00:00Z", "nothing is recorded in this period", id="after the end"),
        pytest.param("2026-03-03T00:00", "a time needs its zone", id="no zone"),
    ],
)
def test_a_period_that_cannot_be_told_is_one_message(
    tenure: CommandLine, since: str, message: str
) -> None:
    """With what can be chosen."""
    answer = tenure.ask("report", "--no-verify", "-o", "-", "--since", since)

    assert answer.code == 2
    assert message in answer.err
    assert "next:" in answer.err


def test_a_report_on_a_broken_ledger_says_so_and_exits_1(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """One byte of one event: the page is written, with the finding on top."""
    copy = tmp_path / "copy.db"
    content = tenure.ledger.read_bytes()
    copy.write_bytes(content.replace(b'"policy":"fgd"', b'"policy":"fgD"', 1))
    path = tmp_path / "report.html"

    answer = tenure.run("report", "-o", str(path), "--ledger", str(copy))

    assert answer.code == 1
    assert "does not prove itself</h1>" in path.read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_is_one_message(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """The folder is not there."""
    answer = tenure.ask("report", "--no-verify", "-o", str(tmp_path / "no" / "report.html"))

    assert answer.code == 2
    assert "can't write the report" in answer.err


def test_an_empty_ledger_has_no_report(tmp_path: Path) -> None:
    """There is nothing to say, and the message says what to do."""
    with (
        open_ledger(str(tmp_path / "new.db"), mode="create") as ledger,
        pytest.raises(InputError, match="no events"),
    ):
        read_report(ledger, proof=None, command="")


def test_any_cluster_can_be_drawn(tenure: CommandLine, tmp_path: Path) -> None:
    """Pods on plain nvidia.com/gpu hold cards that nobody can name; a Pod that ended none."""
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")

    answer = tenure.run("map", str(path))

    assert answer.code == 0
    line = "gpu-a: 2 of 4 held, which of them is not known (ml/train-0); 2 free"
    assert line in answer.out
    assert "1 node without cards" in answer.out


@pytest.mark.parametrize(
    ("dump", "line"),
    [
        pytest.param(
            "nvidia-timeslicing",
            "ts-1: 1 to 3 of 4 held, which of them is not known (nb/one, nb/two, nb/three);"
            " 1 to 3 free",
            id="three replicas on as many cards, or on one",
        ),
        pytest.param(
            "dra-without-slices",
            "dra-1: no object tells of the cards that are held (ml/d)",
            id="cards that nobody can count",
        ),
    ],
)
def test_cards_that_nobody_can_name_are_counted_as_far_as_they_can_be(
    tenure: CommandLine, dump: str, line: str
) -> None:
    """Held and free add up to what there is; "0 of 0 held" would deny the Pod that runs."""
    answer = tenure.run("map", str(CORPUS / dump / "dump.json"))
    assert line in " ".join(answer.out.split())


def test_a_strangers_init_container_takes_no_card_of_its_own(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """Init 2 and main 1 are 2 cards in map and who, of files and of the ledger alike."""
    body = pod(
        container("main", limits={"nvidia.com/gpu": 1}),
        init=[container("prep", limits={"nvidia.com/gpu": 2})],
        name="old",
        nodeName="n1",
        phase="Running",
    )
    path = tmp_path / "cluster.json"
    items = [node(allocatable={"cpu": 8, "memory": "8Gi", "nvidia.com/gpu": 4}), body]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    ledger = str(tmp_path / "run.db")
    line = "n1: 2 of 4 held, which of them is not known (ml/old); 2 free"

    assert tenure.run("simulate", str(path), "--ledger", ledger).code == 0

    for question in (("map", str(path)), ("map", "--ledger", ledger)):
        assert line in tenure.run(*question).out, question
    of_card = tenure.run("who", "n1/gpu/0", "--ledger", ledger).out
    assert "card unknown: ml/old holds 2 of 4 cards of n1" in of_card


def test_a_ledger_with_a_stranger_is_drawn_like_the_cluster(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """Who holds an unknown card is shown from events as from objects."""
    ledger = write_ledger(tmp_path / "morning.db", morning())

    answer = tenure.run("map", "--ledger", str(ledger))

    rows = [line.split() for line in answer.out.splitlines()[1:3]]
    assert rows == [["gpu-a", "A100", "!", "100", "50%"], ["gpu-b", "T4", "?", "100%"]]
    line = "gpu-b: 1 of 1 held, which one is not known (old/legacy); 0 free"
    assert line in answer.out


def test_the_map_as_csv_names_who_may_hold_a_card(tenure: CommandLine, tmp_path: Path) -> None:
    """Each card of the node has the Pod beside it and how many cards it holds; others have none."""
    ledger = write_ledger(tmp_path / "morning.db", morning())
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER, encoding="utf-8")

    of_ledger = csv.DictReader(
        io.StringIO(tenure.run("map", "-o", "csv", "--ledger", str(ledger)).out)
    )
    of_files = csv.DictReader(io.StringIO(tenure.run("map", str(cluster), "-o", "csv").out))

    assert [(row["node"], row["unknown_holders"], row["unknown_cards"]) for row in of_ledger] == [
        ("gpu-a", "", "0"),
        ("gpu-a", "", "0"),
        ("gpu-b", "old/legacy", "1"),
    ]
    found = [(row["minor"], row["unknown_holders"], row["unknown_cards"]) for row in of_files]
    assert found == [(str(minor), "ml/train-0", "2") for minor in range(4)]


def test_the_map_as_csv_keeps_a_holder_on_a_node_without_cards(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """The Pod has a row of its own, without a minor."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.replace(', nvidia.com/gpu: "4"', ""), encoding="utf-8")

    rows = list(csv.DictReader(io.StringIO(tenure.run("map", str(cluster), "-o", "csv").out)))

    assert [(row["node"], row["minor"], row["unknown_holders"]) for row in rows] == [
        ("gpu-a", "", "ml/train-0")
    ]


def test_what_is_no_cluster_is_one_message(tenure: CommandLine, tmp_path: Path) -> None:
    """No Node, no file, a moment for files: exit 2 each."""
    path = tmp_path / "pod.yaml"
    path.write_text("{apiVersion: v1, kind: Namespace, metadata: {name: x}}", encoding="utf-8")

    for arguments in (
        ("map", str(path)),
        ("map", str(tmp_path / "nope.yaml")),
        ("map", str(path), "--at", "now"),
    ):
        answer = tenure.run(*arguments)
        assert answer.code == 2
        assert answer.err.count("next:") == 1


def test_cards_in_replicas_are_free_in_parts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody gets one of them whole, and both lines of the map say the same of them."""
    dump = Path(__file__).parents[1] / "corpus/nvidia-timeslicing/dump.json"
    told = " ".join(CommandLine(dump, capsys).run("map", str(dump)).out.split())
    assert "18 % held, 0 free, 1 to 3 more free in replicas or slices" in told
    assert "3 of 4 held, which of them is not known" in told
