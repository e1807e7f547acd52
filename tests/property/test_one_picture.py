"""Every command that counts cards says of one input what the map says of it, card by card."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ledger.store.open import Ledger, open_ledger
from scheduler.cluster.mending import cluster_as_far_as_read
from scheduler.decide.settings import SchedulingSettings
from scheduler.usage.history import UNNAMED
from scheduler.usage.model import History
from scheduler.usage.picture import (
    NONE,
    Many,
    NodeNow,
    Picture,
    gpu_groups,
    held_cards,
    unplaced_on,
)
from tenure.card_totals import totals_of
from tenure.manifests import read_manifests
from tenure.picture import many_record, picture_of_cluster, picture_of_ledger
from tenure.query.status import status_record
from tenure.report.build import read_report
from tests.support.cards_of_others import a_cluster
from tests.support.cli import CommandLine
from tests.support.examples import examples
from tests.support.objects import Object, container, device, gpu_device, node, pod

NOW = "2026-03-02T00:00:00Z"
SEEDS = range(examples(45) // 3)
CORPUS = Path(__file__).parent.parent / "corpus"
CLOSED: tuple[Object, ...] = (
    {},
    {},
    {"unschedulable": True},
    {"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]},
)


def plugin_node(name: str, cards: int, rng: Random) -> Object:
    """A node of a plain device plugin, which may be closed."""
    offered = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": cards}
    return node(name, allocatable=offered, **rng.choice(CLOSED))


def device_node(name: str, cards: int, rng: Random) -> list[Object]:
    """A node whose Device object lists its cards, of which some are ill."""
    gpus = [gpu_device(minor, health=rng.random() < 0.85) for minor in range(cards)]
    offered = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return [node(name, allocatable=offered, **rng.choice(CLOSED)), device(*gpus, name=name)]


def a_dump(seed: int) -> list[Object]:
    """A cluster of both kinds of node with Pods that run, some on cards that nobody can name."""
    rng, items = Random(seed), []
    for number in range(rng.randint(1, 4)):
        name, cards = f"n{number}", rng.choice((1, 2, 4, 8))
        named = rng.random() < 0.5
        items += device_node(name, cards, rng) if named else [plugin_node(name, cards, rng)]
        free = [100] * cards
        for place in range(rng.randint(0, cards)):
            percent = rng.choice((100, 100, 50, 20)) if named else 100
            minor = rng.randrange(cards)
            if free[minor] < percent:
                continue
            free[minor] -= percent
            items.append(running(f"p{number}-{place}", name, minor if named else None, percent))
    return items


def running(name: str, on: str, minor: int | None, percent: int) -> Object:
    """A Pod on a card: by its annotation, or by its number alone."""
    if minor is None:
        body = container(limits={"nvidia.com/gpu": 1})
        return pod(body, name=name, uid=name, nodeName=on, phase="Running")
    asked = {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent}
    given = {"gpu": [{"minor": minor, "resources": {key: str(n) for key, n in asked.items()}}]}
    return pod(
        container(limits=asked),
        name=name,
        uid=name,
        nodeName=on,
        phase="Running",
        annotations={"scheduling.koordinator.sh/device-allocated": json.dumps(given)},
    )


def written(path: Path, objects: list[Object]) -> Path:
    """The objects as kubectl prints them."""
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return path


def picture_of_dump(path: Path) -> Picture:
    """What the map draws of a dump."""
    settings = SchedulingSettings()
    cluster = cluster_as_far_as_read(read_manifests([str(path)]), settings)
    return picture_of_cluster(cluster, settings.vocabulary)


def by_name(picture: Picture) -> dict[str, NodeNow]:
    """The nodes, in whichever order."""
    return {node.name: node for node in picture.nodes}


def exact(number: Many) -> int:
    """A number that is known: nothing in these clusters is not."""
    assert number.exact is not None, number
    return number.exact


@pytest.mark.parametrize("seed", SEEDS)
def test_all_commands_say_of_one_cluster_what_its_map_says(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the dump and from the ledger of its simulation, and by the audit views."""
    line = CommandLine(tmp_path / "run.db", capsys)
    path = written(tmp_path / "dump.json", a_dump(seed))
    drawn = picture_of_dump(path)
    told = line.ask("simulate", str(path), "--now", NOW, "-o", "json")
    assert told.code == 0, told.err

    with open_ledger(str(line.ledger), mode="read") as ledger:
        of_ledger = picture_of_ledger(ledger, None)
        assert by_name(of_ledger) == by_name(drawn)
        assert of_ledger.summary == drawn.summary
        status_says_the_same(ledger, drawn)
        the_page_says_the_same(ledger, drawn)
    the_views_say_the_same(line, drawn)
    simulate_says_the_same(json.loads(told.out)["summary"]["gpu"], drawn)
    who_says_the_same(line, drawn)
    top_says_the_same(line, drawn)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_all_commands_say_of_every_system_what_the_map_of_its_objects_says(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replicas, slices, ill cards, other vendors' cards, DRA and Volcano's, out of a ledger."""
    line = CommandLine(tmp_path / "run.db", capsys)
    path = written(tmp_path / "dump.json", a_cluster(Random(seed)))
    drawn = picture_of_dump(path)
    told = line.ask("simulate", str(path), "--now", NOW)
    assert told.code == 0, told.err
    assert f"GPU: {totals_of(drawn.nodes).allocated}\n" in told.out

    with open_ledger(str(line.ledger), mode="read") as ledger:
        of_ledger = picture_of_ledger(ledger, None)
        assert by_name(of_ledger) == by_name(drawn)
        record, report = status_record(ledger), read_report(ledger, proof=None, command="")
    sums = drawn.summary
    assert record["cards"] == many_record(sums.cards)
    assert record["cards_free"] == many_record(sums.free)
    assert record["cards_held"] == many_record(sum(map(held_cards, drawn.nodes), NONE))
    parts = asdict(drawn.parts)
    assert {name: record[f"percent_{name}"] for name in parts} == parts
    assert {name: getattr(report.capacity[-1], name) for name in parts} == parts
    assert report.cards == sum((row.cards for row in report.models), NONE) == sums.cards
    assert sum((row.free for row in report.models), NONE) == sums.free
    the_slider_shows_no_more_cards_than_there_are(report.history, drawn)
    runs = {item["metadata"]["name"] for item in a_cluster(Random(seed)) if is_pod(item)}
    for each in drawn.nodes:
        told_of = {one["pod"] for one in ask_json(line, "who", each.name)["holders"]}
        assert told_of & runs == runs & {  # a claim whose Pod is gone holds by its own name
            *(h.name for g in gpu_groups(each) for card in g.devices for h in card.holders),
            *(pod.name for pod in unplaced_on(each)),
        }
    gpus = {one["name"]: one["gpus"] for one in ask_json(line, "top", "--by", "node")}
    for each in drawn.nodes:
        if all(pod.is_counted for pod in unplaced_on(each)):
            assert gpus.get(each.name, 0) <= most_cards(each)


def is_pod(item: Object) -> bool:
    """Not a claim, which may be for Pods that nobody tells of."""
    return str(item["kind"]) == "Pod"


def ask_json(line: CommandLine, *words: str) -> Any:  # noqa: ANN401 - JSON
    """What a command says as JSON."""
    return json.loads(line.ask(*words, "-o", "json").out)


def most_cards(node: NodeNow) -> int:
    """How many cards a node has at most; without an end where a claim is on one of no slice."""
    cards = sum((group.cards for group in gpu_groups(node)), NONE)
    return 1 << 30 if cards.most is None else cards.most


def the_slider_shows_no_more_cards_than_there_are(history: History, drawn: Picture) -> None:
    """Each card once, whoever hands it out, and nobody on more than all of it."""
    for info, each in zip(history.nodes, drawn.nodes, strict=True):
        gpus = [card for card in info.cards if history.cards[card].device_type == "gpu"]
        assert len(gpus) == sum(group.cards.least for group in gpu_groups(each))


def percent_of(node: NodeNow) -> int:
    """What is held of the cards of a node, a card that nobody can name whole."""
    levels = [card.level_percent for group in gpu_groups(node) for card in group.devices]
    return sum(levels) + 100 * sum(pod.cards for pod in unplaced_on(node))


def status_says_the_same(ledger: Ledger, drawn: Picture) -> None:
    """Cards, held, free and gettable."""
    record, sums = status_record(ledger), drawn.summary
    assert record["cards"] == exact(sums.cards)
    assert record["cards_free"] == exact(sums.free)
    assert record["cards_gettable"] == exact(sums.gettable)
    assert record["cards_held"] == sum(exact(held_cards(node)) for node in drawn.nodes)
    parts = {name: record[f"percent_{name}"] for name in asdict(drawn.parts)}
    assert parts == asdict(drawn.parts)


def the_page_says_the_same(ledger: Ledger, drawn: Picture) -> None:
    """The level of each card that is named, how many others are held, and the sum of both."""
    report = read_report(ledger, proof=None, command="")
    history = report.history
    levels: dict[tuple[str, int], int] = {}
    unnamed: dict[str, int] = {}
    for hold in history.holds:
        card = history.cards[hold.card]
        name = history.nodes[card.node].name
        if history.endings[hold.ending].policy == UNNAMED:
            unnamed[name] = unnamed.get(name, 0) + 1
        else:
            percent = history.shares[hold.share].percent
            levels[name, card.minor] = levels.get((name, card.minor), 0) + percent
    devices = {
        (node.name, card.minor or 0): card
        for node in drawn.nodes
        for group in gpu_groups(node)
        for card in group.devices
    }
    held = {key: card.level_percent for key, card in devices.items() if card.holders}
    assert levels == held
    by_node = {
        node.name: sum(pod.cards for pod in unplaced_on(node))
        for node in drawn.nodes
        if unplaced_on(node)
    }
    assert unnamed == by_node
    point, parts = report.capacity[-1], drawn.parts
    assert point.at == history.end
    assert (point.allocated, point.stranded, point.idle, point.closed, point.unknown) == (
        *(parts.allocated, parts.stranded, parts.idle, parts.closed),
        0,
    )
    assert point.allocated == sum(map(percent_of, drawn.nodes))


def the_views_say_the_same(line: CommandLine, drawn: Picture) -> None:
    """`audit_holdings` has each holder of a card that is named, and nobody else."""
    sql = (
        "SELECT node_name, minor, namespace, pod_name, core_percent FROM audit_holdings"
        " WHERE closed_at_us IS NULL AND device_type = 'gpu'"
    )
    rows = {
        tuple(row.values()) for row in json.loads(line.ask("ledger", "sql", sql, "-o", "json").out)
    }
    assert rows == {
        (node.name, card.minor, holder.namespace, holder.name, holder.core_percent)
        for node in drawn.nodes
        for group in node.groups
        for card in group.devices
        for holder in card.holders
    }


def simulate_says_the_same(gpu: dict[str, int], drawn: Picture) -> None:
    """What is decided on is all of them, where every card is of a Device or of a plain plugin."""
    assert gpu["cards"] == exact(drawn.summary.cards)
    assert gpu["core_percent_allocated"] == sum(map(percent_of, drawn.nodes))


def who_says_the_same(line: CommandLine, drawn: Picture) -> None:
    """Who holds which card of a node, and who holds one that nobody can name."""
    for each in drawn.nodes:
        told = json.loads(line.ask("who", each.name, "-o", "json").out)["holders"]
        assert {(one["pod"], one["minor"]) for one in told} == {
            *(
                (holder.name, card.minor)
                for group in each.groups
                for card in group.devices
                for holder in card.holders
            ),
            *((stranger.name, None) for stranger in unplaced_on(each)),
        }


def top_says_the_same(line: CommandLine, drawn: Picture) -> None:
    """The cards of all Pods together."""
    told = json.loads(line.ask("top", "--by", "node", "-o", "json").out)
    held = {each.name: percent_of(each) / 100 for each in drawn.nodes}
    assert {one["name"]: one["gpus"] for one in told} == {
        name: gpus for name, gpus in held.items() if gpus
    }


def of_52() -> list[Object]:
    """Seven nodes of a plain device plugin with 52 cards, of which 16 are held."""
    rng = Random(1)
    nodes = [plugin_node(f"n{number}", 8 if number < 6 else 4, rng) for number in range(7)]
    for each in nodes:
        each["spec"] = {}
    pods = []
    for name, on, cards in (("a", "n0", 8), ("b", "n1", 4), ("c", "n2", 3), ("d", "n6", 1)):
        body = container(limits={"nvidia.com/gpu": cards})
        pods.append(pod(body, name=name, uid=name, nodeName=on, phase="Running"))
    return [*nodes, *pods]


def test_of_52_cards_with_16_held_by_number_nobody_says_that_52_are_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page said 52 free and 0.0 %, and so did the last lines of a simulation."""
    line = CommandLine(tmp_path / "run.db", capsys)
    path = written(tmp_path / "dump.json", of_52())

    simulated = line.ask("simulate", str(path), "--now", NOW).out
    mapped = line.run("map", str(path)).out
    page = tmp_path / "page.html"
    assert line.ask("report", "-o", str(page)).code == 0
    row = model_row(page.read_text(encoding="utf-8"))

    assert "GPU: 16 of 52 cards allocated (30.77%)" in simulated
    assert "7 nodes, 52 cards: 30 % held, 36 free, 16 on unknown cards" in mapped
    assert row == ["gpu", "7", "52", "16", "0", "36", "0", "30.8 %"]
    status: dict[str, Any] = json.loads(line.ask("status", "-o", "json").out)
    assert (status["cards_held"], status["cards_free"]) == (16, 36)


def test_the_last_lines_are_of_the_state_after_the_placements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cards of DRA count, and it is said that claims alone give them."""
    line = CommandLine(tmp_path / "run.db", capsys)
    folder = CORPUS / "dra-beside-plugin"
    question = json.loads((folder / "truth.json").read_text("utf-8"))["simulate"][0]["pod"]
    path = tmp_path / "question.json"
    path.write_text(json.dumps(question))

    told = line.ask("simulate", str(path), str(folder / "dump.json"), "--now", NOW).out

    assert "GPU: 5 of 6 cards allocated (83.33%), 1 free, 4 on unknown cards\n" in told
    assert "  2 cards of DRA, given by claims alone\n" in told
    assert "2 nodes, 6 cards: 83 % held, 1 free, 4 on unknown cards" in line.ask("map").out


@pytest.mark.parametrize(
    ("dump", "decided_on", "cards"),
    [
        pytest.param("nvidia-timeslicing", 0, "4", id="nothing of cards that are shared"),
        pytest.param("nvidia-plain-unhealthy", 6, "8", id="without what the plugin withholds"),
        pytest.param("dra-whole", 0, "5", id="nothing of DRA"),
    ],
)
def test_the_json_counts_what_is_decided_on_and_the_last_lines_count_cards(
    dump: str, decided_on: int, cards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/map.md, The same numbers everywhere: two things that each say which they are."""
    line = CommandLine(tmp_path / "run.db", capsys)
    simulate = ("simulate", str(CORPUS / dump / "dump.json"), "--now", "2026-11-23T08:00:00Z")
    gpu = decided_gpus(line.run(*simulate, "-o", "json").out)

    assert (gpu["cards"], gpu["core_percent_capacity"]) == (decided_on, 100 * decided_on)
    assert f" of {cards} cards allocated" in line.run(*simulate).out


def decided_gpus(text: str) -> dict[str, int]:
    """The sums of the GPUs in what `simulate` says as JSON."""
    gpu: dict[str, int] = json.loads(text)["summary"]["gpu"]
    return gpu


def model_row(page: str) -> list[str]:
    """The only row of the page's table of models."""
    table = page[page.index("By model") :]
    row = table[table.index("<tbody") : table.index("</tbody>")]
    return [cell.split(">")[-1].strip() for cell in row.split("</t")[:-1] if cell.strip()][:8]


@pytest.mark.parametrize(
    "dump",
    [
        "nvidia-two-nodes-one-machine",
        "tenure-on-plain-node",
        "hami-shares",
        "koordinator-shares",
        "mgpu-shares",
    ],
)
def test_status_and_the_page_have_the_totals_that_were_written_down(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of clusters as kubectl prints them; a machine with two Node objects has its cards once."""
    line = CommandLine(tmp_path / "run.db", capsys)
    folder = CORPUS / dump
    truth = json.loads((folder / "truth.json").read_text("utf-8"))["totals"]
    told = line.ask("simulate", str(folder / "dump.json"), "--now", "2026-11-23T08:00:00Z")
    assert told.code == 0, told.err

    with open_ledger(str(line.ledger), mode="read") as ledger:
        record = status_record(ledger)
        history = read_report(ledger, proof=None, command="").history

    cards = [card for card in history.cards if card.device_type == "gpu"]
    held = {hold.card for hold in history.holds if hold.closed is None}
    assert {key: record[f"cards_{key}"] for key in ("held", "free")} == {
        key: truth[key] for key in ("held", "free")
    }
    assert record["cards"] == len(cards) == truth["cards"]
    assert len(held) == truth["held"]
    assert f"of {truth['cards']} cards allocated" in told.out


@pytest.mark.parametrize(
    ("dump", "words"),
    [
        ("mgpu-unknown-card", "GPU: 1.4 of 4 cards allocated (35.00%)"),
        ("gpushare-unassigned", "GPU: 1.39 of 2 cards allocated (69.50%)"),
    ],
)
def test_a_share_of_some_card_counts_in_a_simulation_as_on_the_map(
    dump: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole card of those without a holder, as nobody can say less of it."""
    line = CommandLine(tmp_path / "run.db", capsys)
    path = str(CORPUS / dump / "dump.json")
    percent = words.partition("(")[2].partition(".")[0]

    assert words in line.run("simulate", path, "--now", "2026-11-23T08:00:00Z").out
    assert f"cards: {percent} % held" in line.run("map", path).out
