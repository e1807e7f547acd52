import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from ledger.domain.devices import GPU, DeviceRecord, DeviceTopology
from ledger.domain.log.events import (
    LedgerEvent,
    LedgerRecovered,
    NodeInventoried,
    RefusalReason,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import open_ledger
from scheduler.record.events import by, gone
from scheduler.service.api.words import WEBHOOK_ACTOR
from scheduler.service.beginning import told_refusals
from tests.support.cli import CommandLine
from tests.support.corpus import CORPUS, NOW
from tests.support.ledgers import EIGHT, MINUTE, NOON, ORIGIN, morning, write_ledger

AT_NINE_THIRTY = "2026-03-02T10:30:00+01:00"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of one morning."""
    return write_ledger(tmp_path_factory.mktemp("ledger") / "morning.db", morning())


@pytest.fixture
def tenure(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    """The command line in a place an hour east of Greenwich, wherever the test runs."""
    monkeypatch.setenv("TZ", "Africa/Lagos")
    time.tzset()
    yield CommandLine(ledger, capsys)
    monkeypatch.undo()
    time.tzset()


def test_who_names_the_holder_of_a_card_at_a_moment(tenure: CommandLine) -> None:
    """Since when, until when and why, in local time with its offset."""
    answer = tenure.ask("who", "gpu-a/0", "--at", AT_NINE_THIRTY)

    assert answer.code == 0
    line = answer.out.splitlines()[1]
    assert line.split() == [
        "gpu-a/0",
        "ml/nb-7",
        "25%",
        "4",
        "GiB",
        "2026-03-02T09:10:00+01:00",
        "2026-03-02T11:00:00+01:00",
        "1h",
        "50m",
        "event",
        "5,",
        "binpack,",
        "completed",
    ]


def test_who_counts_from_the_head_of_a_simulation(tenure: CommandLine) -> None:
    """Three hours before the last event, whatever the clock says; stderr says so."""
    answer = tenure.ask("who", "gpu-a/0", "--at", "3h ago", "-o", "json")

    document = json.loads(answer.out)
    assert [holder["pod"] for holder in document["holders"]] == ["nb-7"]
    assert document["at"] == "2026-03-02T10:00:00+01:00"
    assert "counted from the ledger's head" in answer.err


@pytest.mark.parametrize(
    ("at", "holders"),
    [
        pytest.param("2026-03-02T08:09:59Z", [], id="before it begins"),
        pytest.param("2026-03-02T08:10:00Z", ["nb-7"], id="at its first moment"),
        pytest.param("2026-03-02T09:59:59Z", ["nb-7"], id="just before it ends"),
        pytest.param("2026-03-02T10:00:00Z", [], id="at its end"),
    ],
)
def test_a_holding_includes_its_first_moment_and_not_its_last(
    tenure: CommandLine, at: str, holders: list[str]
) -> None:
    """Intervals are half open, so that nobody is ever counted twice."""
    document = json.loads(tenure.ask("who", "gpu-a/0", "--at", at, "-o", "json").out)

    assert [holder["pod"] for holder in document["holders"]] == holders


def test_a_free_card_says_who_had_it_last(tenure: CommandLine) -> None:
    """Nobody now, and the last one with the reason of its end."""
    answer = tenure.ask("who", "gpu-a/0")

    assert answer.code == 0
    assert answer.out.startswith("gpu-a/0 is held by nobody\nlast:\n")
    assert "ml/nb-7" in answer.out
    assert "completed" in answer.out


def test_history_lists_everyone_who_ever_held_it(tenure: CommandLine) -> None:
    """Past holders too, without a moment."""
    assert "ml/nb-7" in tenure.ask("who", "gpu-a/0", "--history").out


def test_who_of_a_node_shows_its_free_and_closed_cards_too(tenure: CommandLine) -> None:
    """Every card has a line; CPUs follow."""
    lines = tenure.ask("who", "gpu-a").out.splitlines()

    assert [line.split()[0] for line in lines] == ["HELD", "gpu-a/0", "gpu-a/1", "gpu-a/cpu/0-1"]
    assert "closed: unhealthy" in lines[1]
    assert "yes" in lines[2].split()


def test_who_of_a_cpu_names_its_holder(tenure: CommandLine) -> None:
    """CPU 1 is pinned, CPU 3 is not, CPU 99 does not exist."""
    assert "ml/train-0" in tenure.ask("who", "gpu-a/cpu/1").out
    assert "gpu-a/cpu/3 is held by nobody" in tenure.ask("who", "gpu-a/cpu/3").out
    assert tenure.ask("who", "gpu-a/cpu/99").code == 2


def test_who_of_a_list_of_cpus_names_each_holder_with_those_of_them(tenure: CommandLine) -> None:
    """Those that were asked about; a list with a CPU that is not there is refused."""
    lines = tenure.ask("who", "gpu-a/cpu/1-3").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["gpu-a/cpu/1", "ml/train-0"]]
    refused = tenure.ask("who", "gpu-a/cpu/0-9")
    assert (refused.code, "knows no CPU gpu-a/cpu/0-9" in refused.err) == (2, True)


@pytest.mark.parametrize("name", ["GPU-gpu-a-1", "gpu-a/GPU-gpu-a-1"])
def test_who_and_why_take_the_uuid_of_a_card(tenure: CommandLine, name: str) -> None:
    """It means the card that has it."""
    assert tenure.ask("who", name).out == tenure.ask("who", "gpu-a/1").out
    assert tenure.ask("why", name).out == tenure.ask("why", "gpu-a/1").out
    assert tenure.ask("who", "GPU-nobody-has").code == 2


def test_pods_lists_who_waits_first_and_who_has_what(tenure: CommandLine) -> None:
    """With devices and CPUs; those that ended are left out unless all are asked for."""
    rows = list(csv.DictReader(io.StringIO(tenure.ask("pods", "-o", "csv").out)))
    assert [(row["pod"], row["state"]) for row in rows] == [
        ("ml/big-1", "waiting"),
        ("ml/train-0", "placed"),
        ("old/legacy", "placed"),
    ]
    assert [(row["devices"], row["cpus"]) for row in rows] == [
        ("", ""),
        ("gpu:1", "0-1"),
        ("gpu:?", ""),
    ]
    assert rows[0]["why"] == "0/2 nodes are available: 2 Insufficient gpu devices."
    assert [line.split()[0] for line in tenure.ask("pods", "--waiting").out.splitlines()[1:]] == [
        "ml/big-1"
    ]
    everyone = json.loads(tenure.ask("pods", "--all", "-o", "json").out)
    assert {each["pod"]: each["state"] for each in everyone}["ml/nb-7"] == "ended"
    assert "3 more" in tenure.ask("pods", "--all", "--limit", "1").err


def test_pods_counts_a_wait_from_the_first_refusal(tenure: CommandLine) -> None:
    """Refused at 9:30 and at 9:40, asked at noon."""
    (waiting,) = json.loads(tenure.ask("pods", "--waiting", "-o", "json").out)
    assert (waiting["lasted"], waiting["since"]) == ("2h 30m", AT_NINE_THIRTY)


def test_a_wait_begins_anew_where_a_pod_had_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nb-7` was refused before it got its place, lost that, and is refused at noon."""
    events = morning()
    again = next(event for _, _, event in events if isinstance(event, RequestRefused))
    other = structs.replace(again, pod_uid="uid-nb-7", pod_name="nb-7")
    line = CommandLine(
        write_ledger(
            tmp_path / "waits.db",
            [
                *events[:3],
                (EIGHT + 5 * MINUTE, "sys", other),
                *events[3:],
                (NOON, "sys", other),
                (NOON, "sys", again),
            ],
        ),
        capsys,
    )
    waiting = json.loads(line.ask("pods", "--waiting", "-o", "json").out)
    assert [(each["pod"], each["lasted"]) for each in waiting] == [
        ("ml/big-1", "2h 30m"),
        ("ml/nb-7", "0s"),
    ]


def test_pods_names_the_cards_of_other_systems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of resource claims by their numbers, as `who` has them; slices as not known."""
    for dump, devices in (
        ("dra-whole", {"ml/a": "gpu:0", "ml/b1": "gpu:1", "ml/b2": "gpu:1", "ml/waits": "gpu:3"}),
        ("nvidia-mig-mixed", None),
    ):
        line = CommandLine(tmp_path / f"{dump}.db", capsys)
        path = str(CORPUS / dump / "dump.json")
        assert line.run("simulate", path, "--now", NOW, "--ledger", str(line.ledger)).code == 0
        found = json.loads(line.ask("pods", "-o", "json").out)
        told = {each["pod"]: each["devices"] for each in found if each["devices"]}
        if devices is not None:
            assert told == devices
        else:
            assert told
            assert set(told.values()) == {"gpu:?"}


def test_a_pod_is_found_without_its_namespace(tenure: CommandLine) -> None:
    """As long as one namespace alone has such a Pod."""
    assert tenure.ask("why", "big-1").out == tenure.ask("why", "ml/big-1").out
    assert tenure.ask("who", "train-0").out == tenure.ask("who", "ml/train-0").out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ml/trian-0", "ml/train-0"), ("trian-0", "ml/train-0"), ("gpu-aa", "gpu-a")],
)
def test_a_name_that_is_nearly_right_gets_a_suggestion(
    tenure: CommandLine, typed: str, meant: str
) -> None:
    """Of a node or a Pod."""
    refused = tenure.ask("who", typed)
    assert refused.code == 2
    assert f"did you mean {meant}" in refused.err


@pytest.mark.parametrize(
    ("at", "says"),
    [
        pytest.param("2026-03-02T07:59:59Z", "not recorded: this ledger begins at", id="before"),
        pytest.param("2026-03-02T12:00:01Z", "not known: this ledger ends at", id="after"),
    ],
)
def test_who_says_where_the_ledger_speaks_of_no_such_time(
    tenure: CommandLine, at: str, says: str
) -> None:
    """Nobody recorded it, which does not mean that nobody held it."""
    for name in ("gpu-a/0", "gpu-a/1", "gpu-b", "ml/train-0", "gpu-a/cpu/3"):
        answer = tenure.ask("who", name, "--at", at)
        assert says in answer.out
        assert "nobody" not in answer.out
        assert "holds nothing" not in answer.out
        document = json.loads(tenure.ask("who", name, "--at", at, "-o", "json").out)
        assert document["untold"].startswith(says)
        assert all(each["seconds"] <= 3 * 3600 for each in document["holders"])
    for edge in ("2026-03-02T08:00:00Z", "2026-03-02T12:00:00Z"):
        assert "not " not in tenure.ask("who", "gpu-a/0", "--at", edge).out


def test_who_says_that_a_recovery_lost_the_time_in_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was known before is told as that; the recovery itself is known again."""
    lost = LedgerRecovered(
        lost_from=6, lost_to=11, incarnation="second", lost_incarnation="first", began_at=6
    )
    events: list[tuple[int, str, LedgerEvent]] = [*morning()[:4], (NOON, "sys", lost)]
    tenure = CommandLine(write_ledger(tmp_path / "restored.db", events), capsys)

    free = tenure.ask("who", "gpu-a/1", "--at", "2026-03-02T11:00:00Z").out
    held = tenure.ask("who", "gpu-a/0", "--at", "2026-03-02T11:00:00Z").out

    assert free.startswith("gpu-a/1: not known: what happened from 2026-03-02T")
    assert free.endswith("is lost\n")
    assert held.splitlines()[1] == "last known:"
    assert "ml/nb-7" in held
    assert "held by nobody" in tenure.ask("who", "gpu-a/1", "--at", "2026-03-02T12:00:00Z").out


def test_who_takes_the_pci_address_that_an_xid_message_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the last inventory of the node; without one as long as a single node has it."""

    def node(name: str, *buses: str) -> NodeInventoried:
        cards = tuple(
            DeviceRecord(
                device_type=GPU,
                minor=minor,
                device_id=f"GPU-{name}-{minor}",
                topology=DeviceTopology(bus_id=bus),
            )
            for minor, bus in enumerate(buses)
        )
        return NodeInventoried(
            node_uid=f"uid-{name}", node_name=name, cpu_milli=1, memory_bytes=1, devices=cards
        )

    first, second = "0000:3b:00.0", "0000:5E:00.0"
    events: list[tuple[int, str, LedgerEvent]] = [
        (EIGHT, "node/uid-a", node("a", first, second)),
        (EIGHT, "node/uid-b", node("b", first)),
        (NOON, "node/uid-a", node("a", second, first)),  # the cards changed slots
    ]
    tenure = CommandLine(write_ledger(tmp_path / "pci.db", events), capsys)

    for text in ("a/PCI:0000:3b:00", "a/00000000:3B:00.0"):
        assert "a/1 is held by nobody" in tenure.ask("who", text).out
    assert "a/0 is held by nobody" in tenure.ask("who", "0000:5e:00.0").out
    several = tenure.ask("who", "0000:3b:00.0")
    assert (several.code, "2 are called so: a/1, b/0" in several.err) == (2, True)
    assert tenure.ask("who", "b/0000:5e:00.0").code == 2


@pytest.mark.parametrize("name", ["ml/train-0", "job/train", "ml/job/train"])
def test_who_of_a_pod_or_its_owner_names_all_it_holds(tenure: CommandLine, name: str) -> None:
    """The card, then the CPUs."""
    lines = tenure.ask("who", name).out.splitlines()[1:]

    assert [line.split()[0] for line in lines] == ["gpu-a/1", "gpu-a/cpu/0-1"]


def test_a_deployment_owns_the_pods_of_its_replica_sets(tenure: CommandLine) -> None:
    """A Pod is owned by a ReplicaSet called after the Deployment."""
    assert "ml/nb-7" in tenure.ask("who", "deploy/nb", "--history").out


def test_a_pod_on_an_unknown_card_is_shown_as_that(tenure: CommandLine) -> None:
    """It holds a card of the node, and nobody can say which."""
    assert "gpu-b/gpu/?" in tenure.ask("who", "old/legacy").out
    assert "unknown holder" in tenure.ask("why", "gpu-b/0").out


@pytest.mark.parametrize("arguments", [("who",), ("who", "--history"), ("who", "--at", "now")])
def test_who_of_a_card_names_the_pods_that_may_hold_it(
    tenure: CommandLine, arguments: tuple[str, ...]
) -> None:
    """A Pod on unknown cards of the node may have this one: it is never held by nobody."""
    command, *options = arguments
    answer = tenure.ask(command, "gpu-b/0", *options)

    assert answer.code == 0
    assert "nobody" not in answer.out
    assert "gpu-b/gpu/?  old/legacy" in answer.out
    assert "card unknown: old/legacy holds 1 of 1 cards of gpu-b\n" in answer.out
    document = json.loads(tenure.ask(command, "gpu-b/0", *options, "-o", "json").out)
    assert [(h["pod"], h["unknown_types"]) for h in document["holders"]] == [("legacy", "gpu")]


def test_before_a_stranger_came_its_card_was_held_by_nobody(tenure: CommandLine) -> None:
    """And no other node's cards are its to hold."""
    assert "held by nobody" in tenure.ask("who", "gpu-b/0", "--at", "1h ago").out
    assert "legacy" not in tenure.ask("who", "gpu-a/0").out


def test_why_of_a_card_names_the_pods_that_may_hold_it(tenure: CommandLine) -> None:
    """In the reason, among the holders, and for the whole node."""
    table = tenure.ask("why", "gpu-b/0").out
    document = json.loads(tenure.ask("why", "gpu-b/0", "-o", "json").out)

    assert "unknown holder: old/legacy may hold it" in table
    assert "card unknown: old/legacy holds 1 of 1 cards of gpu-b\n" in table
    assert document["state"] == "closed"
    assert [holder["pod"] for holder in document["holders"]] == ["legacy"]
    assert "old/legacy" in tenure.ask("why", "gpu-b").out


TWO_OF_FOUR = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: gpu-a},
     status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110", nvidia.com/gpu: "4"}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: t1, namespace: ml},
     spec: {nodeName: gpu-a, containers: [{name: m, resources: {limits: {nvidia.com/gpu: "2"}}}]},
     status: {phase: Running}}
"""


def test_a_simulated_cluster_says_how_many_cards_a_stranger_holds(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """A running Pod on plain GPUs holds two of four, whichever card is asked for."""
    cluster, path = tmp_path / "cluster.yaml", str(tmp_path / "cluster.db")
    cluster.write_text(TWO_OF_FOUR, encoding="utf-8")
    assert tenure.run("simulate", str(cluster), "--ledger", path).code == 0

    for command, card in (("who", "gpu-a/0"), ("who", "gpu-a/3"), ("why", "gpu-a/3")):
        answer = tenure.run(command, card, "--ledger", path)
        assert "card unknown: ml/t1 holds 2 of 4 cards of gpu-a\n" in answer.out
        assert "nobody" not in answer.out


def test_a_card_that_the_inventory_calls_unhealthy_says_so(
    tenure: CommandLine, tmp_path: Path
) -> None:
    """No message about the card, so the inventory is the reason."""
    card = DeviceRecord(device_type=GPU, minor=0, device_id="G", model="T4", healthy=False)
    inventory = NodeInventoried(
        node_uid="uid-gpu-c",
        node_name="gpu-c",
        cpu_milli=1000,
        memory_bytes=1 << 30,
        devices=(card,),
    )
    events: list[tuple[int, str, LedgerEvent]] = [(EIGHT, "node/uid-gpu-c", inventory)]
    ledger = write_ledger(tmp_path / "sick.db", events)

    answer = tenure.run("why", "gpu-c/0", "--ledger", str(ledger))

    assert "unhealthy in the inventory since 2026-03-02T09:00:00+01:00, event 2" in answer.out


def test_answers_have_one_content_in_every_form(tenure: CommandLine) -> None:
    """JSON, YAML and CSV carry base units and ISO times; a table's words stay out of them."""
    arguments = ("who", "gpu-a/1", "-o")

    from_json = json.loads(tenure.ask(*arguments, "json").out)["holders"]
    from_yaml = yaml.safe_load(tenure.ask(*arguments, "yaml").out)["holders"]
    from_csv = list(csv.DictReader(io.StringIO(tenure.ask(*arguments, "csv").out)))

    assert from_json == from_yaml
    assert from_json[0]["memory_bytes"] == 16 << 30
    assert from_json[0]["since"] == "2026-03-02T10:00:00+01:00"
    assert from_json[0]["exclusive"] is True
    assert from_csv[0]["memory_bytes"] == str(16 << 30)
    assert from_csv[0]["exclusive"] == "true"


def test_why_groups_the_reasons_of_a_waiting_pod_with_numbers_and_a_remedy(
    tenure: CommandLine,
) -> None:
    """How many nodes, what the closest one lacks, and what would make it fit."""
    answer = tenure.ask("why", "ml/big-1")

    assert answer.code == 0
    assert "asks for 2 x whole gpu" in answer.out
    assert "refused 2 times" in answer.out
    row = answer.out.splitlines()[3]
    assert row.split()[0] == "2"
    assert "asks 2 whole GPU, 0 untouched" in row
    assert "release 2 whole GPU on gpu-a" in row


def test_a_pod_that_was_deleted_while_it_waited_waits_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For no command that says who waits, nor for a service that starts; its history stays."""
    path = write_ledger(tmp_path / "gone.db", morning())
    with open_ledger(str(path), mode="read") as ledger:
        ((uid, told),) = told_refusals(ledger, None).items()
    assert told.waiting == ("ml", "big-1")
    tenure = CommandLine(path, capsys)
    before = json.loads(tenure.ask("status", "-o", "json").out)

    with open_ledger(str(path), mode="write") as ledger:
        writer = ledger.start_epoch(holder="test", origin=ORIGIN, version="1", wall_us=NOON)
        event = gone((uid, *told.waiting), told.number + 1, NOON)
        writer.append([by("scheduler", event)])
        assert told_refusals(ledger, None) == {}

    counts = json.loads(tenure.ask("status", "-o", "json").out)
    assert (before["pods_waiting"], counts["pods_waiting"]) == (1, 0)
    assert "big-1" not in tenure.ask("pods", "--waiting").out
    assert json.loads(tenure.ask("why", "ml/big-1", "-o", "json").out)["state"] == "ended"
    assert tenure.ask("verify").code == 0
    out = tmp_path / "report.html"
    assert tenure.run("report", "--ledger", str(path), "-o", str(out)).code == 0
    assert "1 Pod waits" not in out.read_text("utf-8")


def test_what_was_refused_at_admission_does_not_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never was; and where a Pod of its name is there, that one is meant."""
    path = write_ledger(tmp_path / "told.db", morning())

    def told(name: str) -> NewEvent:
        event = RequestRefused(
            pod_uid=f"review-{name}",
            namespace="ml",
            pod_name=name,
            stage="admission",
            message="spec: no",
            reasons=(RefusalReason(reason="DevicePercent", nodes=0, detail="spec: no"),),
        )
        return NewEvent(
            stream="sys", event=event, actor=WEBHOOK_ACTOR, idempotency_key=name, wall_us=NOON
        )

    with open_ledger(str(path), mode="write") as ledger:
        writer = ledger.start_epoch(holder="test", origin=ORIGIN, version="1", wall_us=NOON)
        writer.append([told(name) for name in ("never", "train-0", "big-1")])
    tenure = CommandLine(path, capsys)

    lines = tenure.ask("why", "ml/never").out.splitlines()
    assert lines[0].startswith("ml/never was refused at admission, ")
    assert lines[1] == "spec: no"
    record = json.loads(tenure.ask("why", "ml/never", "-o", "json").out)
    assert (record["state"], record["reasons"][0]["reason"]) == ("refused", "DevicePercent")
    assert tenure.ask("why", "ml/train-0").out.startswith("ml/train-0 has its place")
    assert tenure.ask("why", "ml/big-1").out.startswith("ml/big-1 waits")
    counts = json.loads(tenure.ask("status", "-o", "json").out)
    assert (counts["pods_waiting"], counts["pods_refused_at_admission"]) == (1, 3)
    out = tmp_path / "report.html"
    assert tenure.run("report", "--ledger", str(path), "-o", str(out)).code == 0
    assert "4 refused at least once, 3 at admission" in out.read_text("utf-8")


def test_why_of_a_placed_pod_says_where_and_by_which_policy(tenure: CommandLine) -> None:
    """The event that gave it its place is named."""
    document = json.loads(tenure.ask("why", "ml/train-0", "-o", "json").out)

    assert document["state"] == "placed"
    assert document["policy"] == "binpack"
    assert [holder["held"] for holder in document["holders"]] == ["gpu-a/1", "gpu-a/cpu/0-1"]


def test_why_of_a_pod_that_ended_says_when_and_why(tenure: CommandLine) -> None:
    """It is neither waiting nor placed."""
    answer = tenure.ask("why", "ml/nb-7")

    assert "holds nothing since 2026-03-02T11:00:00+01:00: completed" in answer.out


def test_why_of_a_card_says_what_is_left_and_what_closed_it(tenure: CommandLine) -> None:
    """A dead card names its error and the event; a full one its holder."""
    closed = tenure.ask("why", "gpu-a/0").out
    full = json.loads(tenure.ask("why", "gpu-a/1", "-o", "json").out)

    assert "Xid79 since 2026-03-02T12:00:00+01:00, event 10" in closed
    assert full["state"] == "full"
    assert full["core_left_percent"] == 0
    assert [holder["pod"] for holder in full["holders"]] == ["train-0"]


def test_usage_adds_up_shares_over_time(tenure: CommandLine) -> None:
    """25 % of a card for 110 minutes and a whole one for three hours."""
    document = json.loads(tenure.ask("usage", "-o", "json").out)

    ml = next(group for group in document["groups"] if group["group"] == "ml")
    assert ml["gpu_hours"] == pytest.approx(0.25 * 110 / 60 + 3, abs=0.001)
    assert ml["cpu_hours"] == pytest.approx(2 * 110 / 60 + 2 * 3, abs=0.001)
    assert sum(document["capacity_percent"].values()) == pytest.approx(100, abs=0.3)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        pytest.param("label:team", {"red": 0.458, "blue": 3.0}, id="a label"),
        pytest.param("owner", {"replicaset/nb-5d8f": 0.458, "job/train": 3.0}, id="the owner"),
        pytest.param("model", {"A100": 3.458}, id="the card's model"),
    ],
)
def test_usage_is_grouped_as_asked(
    tenure: CommandLine, by: str, expected: dict[str, float]
) -> None:
    """Every GPU-hour is in exactly one group."""
    document = json.loads(tenure.ask("usage", "--by", by, "-o", "json").out)

    found = {g["group"]: g["gpu_hours"] for g in document["groups"] if g["gpu_hours"]}
    assert found == pytest.approx(expected, abs=0.001)


def test_usage_counts_only_inside_its_window(tenure: CommandLine) -> None:
    """One hour in which both held something."""
    document = json.loads(
        tenure.ask(
            "usage", "--since", "2026-03-02T09:00:00Z", "--until", "2h ago", "-o", "json"
        ).out
    )

    assert document["groups"][0]["gpu_hours"] == pytest.approx(1.25, abs=0.001)


def test_verify_says_what_was_proved(tenure: CommandLine) -> None:
    """Events, chain, over-commits, projection; exit 0."""
    answer = tenure.ask("verify")

    assert answer.code == 0
    assert answer.out.startswith("11 events, chain ok, 0 over-commits")


def test_verify_names_the_position_of_an_altered_event(tenure: CommandLine, tmp_path: Path) -> None:
    """One byte in a copy is enough: exit 1, and the position is on stdout."""
    copy = tmp_path / "copy.db"
    content = tenure.ledger.read_bytes()
    copy.write_bytes(content.replace(b'"shape":"2 x whole', b'"shape":"3 x whole', 1))

    answer = tenure.run("verify", "-o", "json", "--ledger", str(copy))

    assert answer.code == 1
    assert json.loads(answer.out)["findings"][0]["position"] in (7, 8)


def test_status_counts_what_the_ledger_holds(tenure: CommandLine) -> None:
    """Origin, head and counts in one record."""
    record = json.loads(tenure.ask("status", "-o", "json").out)

    assert record["origin"] == "simulation/morning"
    assert record["head"] == 11
    assert (record["nodes"], record["cards"], record["cards_held"]) == (2, 3, 2)
    assert (record["pods_decided"], record["pods_placed"], record["pods_waiting"]) == (3, 2, 1)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--until", "2021-01-01T00:00:00Z"), id="before"),
        pytest.param(("--since", "2027-01-01T00:00:00Z"), id="after"),
    ],
)
def test_usage_of_a_time_that_nobody_recorded_is_an_error(
    tenure: CommandLine, words: tuple[str, str]
) -> None:
    """No empty table, which would say that nobody held anything; the option is the one given."""
    answer = tenure.ask("usage", *words)
    assert answer.code == 2
    assert f"{words[0]}: nothing is recorded in this period" in answer.err
    assert "choose a part of 2026-03-02T09:00:00+01:00 to 2026-03-02T13:00:00+01:00" in answer.err


def test_status_says_bounds_and_percents_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is for people; in the JSON bounds are an object."""
    line = CommandLine(tmp_path / "slices.db", capsys)
    path = str(CORPUS / "nvidia-mig-mixed-no-whole" / "dump.json")
    assert line.run("simulate", path, "--now", NOW, "--ledger", str(line.ledger)).code == 0
    record = json.loads(line.ask("status", "-o", "json").out)["cards_free"]
    assert record["min"] < record["max"]
    said = line.ask("status").out.splitlines()
    assert ["cards", "free", *f"{record['min']} to {record['max']}".split()] in [
        each.split() for each in said
    ]
    assert any(each.startswith("percent idle") and "(100 = one card)" in each for each in said)


def test_sql_answers_a_select_and_nothing_else(tenure: CommandLine) -> None:
    """The views are the interface; what would write is refused with exit 2."""
    count = "SELECT count(*) AS n FROM audit_holdings"
    assert json.loads(tenure.ask("ledger", "sql", count, "-o", "json").out) == [{"n": 2}]

    refused = tenure.ask("ledger", "sql", "DELETE FROM ledger_events")
    assert refused.code == 2
    assert refused.out == ""
    assert "next:" in refused.err


def test_two_columns_of_one_name_are_both_shown(tenure: CommandLine) -> None:
    """A join may name a column twice; no value is lost."""
    rows = json.loads(tenure.ask("ledger", "sql", "SELECT 1 AS x, 2 AS x", "-o", "json").out)

    assert rows == [{"x": 1, "x_2": 2}]


def test_what_json_has_no_number_for_is_text(tenure: CommandLine) -> None:
    """`Infinity` ends other programs' readers."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    told = tenure.ask("ledger", "sql", "SELECT 1e999 AS x, -1e999 AS y, 0.5 AS z", "-o", "json").out

    assert json.loads(told, parse_constant=refuse) == [{"x": "inf", "y": "-inf", "z": 0.5}]


def test_rebuild_finds_the_projections_equal(tenure: CommandLine, tmp_path: Path) -> None:
    """What is derived can be dropped and made again."""
    copy = tmp_path / "copy.db"
    copy.write_bytes(tenure.ledger.read_bytes())

    answer = tenure.run("ledger", "rebuild", "--ledger", str(copy))

    assert answer.code == 0
    assert "equal" in answer.out


def test_a_new_ledger_is_made_once(tenure: CommandLine, tmp_path: Path) -> None:
    """It is empty and proves itself; a ledger with events is never made over."""
    path = str(tmp_path / "new.db")

    assert tenure.run("ledger", "init", "--ledger", path).code == 0
    assert tenure.run("verify", "--ledger", path).code == 0
    assert tenure.ask("ledger", "init").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("who", "gpu-z/0"), id="a node that is not there"),
        pytest.param(("who", "gpu-a/7"), id="a card that is not there"),
        pytest.param(("why", "ml/nobody"), id="a Pod that is not there"),
        pytest.param(("why", "gpu-a/cpu/0"), id="why of a CPU"),
        pytest.param(("who", "a/b/c/d"), id="no name at all"),
        pytest.param(("who", "gpu-a/0", "--at", "2026-03-02T09:00:00"), id="a time without zone"),
        pytest.param(("usage", "--by", "colour"), id="an unknown group"),
        pytest.param(("usage", "--since", "now", "--until", "2h ago"), id="a window backwards"),
        pytest.param(("who", "gpu-a/0", "--history", "--at", "now"), id="two kinds of time"),
        pytest.param(("map", "--watch", "--at", "now"), id="watching the past"),
    ],
)
def test_a_wrong_question_ends_with_one_message_and_a_next_step(
    tenure: CommandLine, arguments: tuple[str, ...]
) -> None:
    """Exit 2, nothing on stdout, no traceback."""
    answer = tenure.ask(*arguments)

    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.count("error:") == 1
    assert answer.err.count("next:") == 1
    assert "Traceback" not in answer.err


def test_a_missing_ledger_says_how_to_name_one(
    tenure: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without option and variable it is ./tenure.db."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_LEDGER", raising=False)

    answer = tenure.run("status")

    assert answer.code == 2
    assert "tenure.db: no such ledger" in answer.err
    assert "--ledger" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_variable_names_the_ledger(
    tenure: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TENURE_LEDGER counts where --ledger is not given; stderr says which one was asked."""
    monkeypatch.setenv("TENURE_LEDGER", str(tenure.ledger))

    answer = tenure.run("status")

    assert answer.code == 0
    assert str(tenure.ledger) in answer.err


def test_questions_leave_the_file_as_it_is(tenure: CommandLine) -> None:
    """Read-only means not one byte."""
    before = tenure.ledger.read_bytes()

    for arguments in (("who", "gpu-a"), ("usage",), ("verify",), ("map",), ("status",)):
        tenure.ask(*arguments)

    assert tenure.ledger.read_bytes() == before
