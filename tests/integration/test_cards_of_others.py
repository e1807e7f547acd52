"""Cards that claims, annotations and other vendors' plugins give, asked of a ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.store.open import open_ledger
from tenure.asking import Sight
from tenure.output import OutputFormat
from tenure.query.who import WhoQuestion, answer_who
from tenure.report.map import MapQuestion, answer_map
from tests.support.cards_of_others import BASE, claim, sliced
from tests.support.cli import CommandLine
from tests.support.corpus import CORPUS, NOW
from tests.support.dra import card, resource_claim, resource_slice, result
from tests.support.objects import container, node, pod

pytestmark = pytest.mark.integration
UUID = "GPU-361ce3ee-5890-51fb-b475-e72f8f5ab991"


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a folder of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def simulated(line: CommandLine, dump: str) -> None:
    """Record what runs in a cluster of the corpus."""
    told = line.ask("simulate", str(CORPUS / dump / "dump.json"), "--now", NOW)
    assert told.code == 0, told.err


def test_a_claim_whose_pod_is_gone_is_named_everywhere(line: CommandLine, tmp_path: Path) -> None:
    """With its state: of the files, and of the ledger that they become."""
    cards = [card(f"gpu-{number}", f"GPU-{number}") for number in range(2)]
    zombie = resource_claim("left", result("gpu-0", node="h1"), node="h1", pods=("gone",))
    zombie["metadata"]["deletionTimestamp"] = "2026-11-18T08:00:00Z"
    there = pod(container(), name="other", uid="uid-other", nodeName="h1")
    objects = [node("h1"), resource_slice(cards, node="h1"), zombie, there]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    state = "being deleted, its Pod is not there (gone)"

    def holders(told: str) -> list[tuple[str, str]]:
        device = json.loads(told)["nodes"][0]["groups"][0]["devices"][0]
        assert device["closed"] == f"allocated to claim team-c/left, {state}"
        return [(each["name"], each["state"]) for each in device["holders"]]

    assert holders(line.run("map", str(path), "-o", "json").out) == [("left", state)]
    text = " ".join(line.run("map", str(path)).out.split())
    assert f"h1/0: allocated to claim team-c/left, {state}" in text
    assert line.ask("simulate", str(path), "--now", NOW).code == 0

    assert holders(line.ask("map", "-o", "json").out) == [("left", state)]
    (held,) = json.loads(line.ask("who", "h1/0", "-o", "json").out)["holders"]
    assert (held["namespace"], held["pod"], held["state"]) == ("team-c", "left", state)
    assert (held["since"], held["exclusive"]) == (f"{NOW[:-1]}+00:00", True)
    assert line.ask("who", "GPU-0").out.count("team-c/left") == 1
    assert line.ask("who", "h1").out.count("h1/0") == 1
    for name in ("h1/0", "h1"):
        (told,) = [json.loads(line.ask("why", name, "-o", "json").out)][:1]
        (told,) = told if isinstance(told, list) else [told]
        assert (told["state"], told["holders"][0]["pod"]) == ("closed", "left")
        assert told["why"] == f"allocated to claim team-c/left, {state}"


@pytest.mark.parametrize("name", [UUID, "dra-1/1"])
@pytest.mark.parametrize("more", [[], ["--history"]], ids=["now", "ever"])
def test_a_card_of_a_claim_is_asked_for_by_its_id_and_its_number(
    name: str, more: list[str], line: CommandLine
) -> None:
    """Two Pods have it by one claim, so that neither has it alone."""
    simulated(line, "dra-whole")

    holders = json.loads(line.ask("who", name, *more, "-o", "json").out)["holders"]

    assert {(each["pod"], each["device_id"], each["minor"]) for each in holders} == {
        ("b1", UUID, 1),
        ("b2", UUID, 1),
    }


def test_who_of_a_pod_names_the_card_that_volcano_gave_it(line: CommandLine) -> None:
    """With what it has of it."""
    simulated(line, "volcano-vgpu-shares")

    (held,) = json.loads(line.ask("who", "ml/s1", "-o", "json").out)["holders"]

    assert (held["device_type"], held["minor"]) == ("gpu", 0)
    assert held["core_percent"] or held["memory_bytes"]


def test_top_counts_cards_that_no_inventory_has(line: CommandLine) -> None:
    """A whole card of a claim, a vendor's cards by number, and of replicas what they are."""
    simulated(line, "dra-whole")
    told = json.loads(line.ask("top", "-o", "json").out)
    assert {each["name"]: each["gpus"] for each in told}["ml/a"] == 1.0

    of_vendors = json.loads(
        line.run("map", str(CORPUS / "vendors-some-held" / "dump.json"), "-o", "json").out
    )
    held = sum(
        pod["amount"]
        for node in of_vendors["nodes"]
        for group in node["groups"]
        for pod in group["unplaced"]
    )
    line.ledger.unlink()
    simulated(line, "vendors-some-held")
    told = json.loads(line.ask("top", "--by", "namespace", "-o", "json").out)
    assert sum(each["gpus"] for each in told) == held


@pytest.mark.parametrize("dump", ["dra-whole", "nvidia-mig-mixed", "volcano-vgpu-mig-and-broken"])
def test_hours_are_what_top_counts_for_as_long_as_it_lasts(dump: str, line: CommandLine) -> None:
    """Whoever shares a card with others, or has slices of two kinds, is billed as he is shown."""
    objects = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))
    limits = {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-3g.20gb": "1"}
    name = next(each["metadata"]["name"] for each in objects["items"] if each["kind"] == "Node")
    objects["items"] += [
        pod(container(requests={"cpu": "1m"}), name="late", uid="late"),
        pod(container(limits=limits), name="two", uid="two", phase="Running", nodeName=name),
    ]
    files = line.ledger.with_name("dump.json"), line.ledger.with_name("schedule.csv")
    files[0].write_text(json.dumps(objects))
    files[1].write_text("at_seconds,event,object,value\n36000,arrive,ml/late,\n")

    line.ask("simulate", str(files[0]), "--schedule", str(files[1]), "--now", NOW)

    used = json.loads(line.ask("usage", "-o", "json").out)["groups"]
    shown = json.loads(line.ask("top", "--by", "namespace", "-o", "json").out)
    assert {each["group"]: round(each["gpu_hours"], 6) for each in used} == {
        each["name"]: round(10 * each["gpus"], 6) for each in shown
    }


def test_a_node_whose_plugin_offers_nothing_more_has_its_cards_in_a_ledger_too(
    line: CommandLine,
) -> None:
    """Its labels say of what it still has that these are replicas."""
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    body = node("n", allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"}, labels=labels)
    body["status"]["capacity"] = {**body["status"]["allocatable"], "nvidia.com/gpu": "8"}
    dump = line.ledger.with_name("dump.json")
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [body]}))

    of_objects = json.loads(line.run("map", str(dump), "-o", "json").out)
    line.ask("simulate", str(dump), "--now", NOW)

    assert json.loads(line.ask("map", "-o", "json").out) == of_objects
    assert of_objects["summary"]["cards"] == 2


def test_who_sees_one_namespace_sees_no_others_cards(line: CommandLine) -> None:
    """Claims and registers name Pods of everybody, and amounts tell of them."""
    simulated(line, "dra-whole")
    sight = Sight(namespace="other")

    with open_ledger(str(line.ledger), mode="read") as ledger:
        drawn = answer_map(ledger, MapQuestion(output=OutputFormat.JSON), sight).out.getvalue()
        whose = answer_who(
            ledger, WhoQuestion(name="dra-1", output=OutputFormat.JSON), sight
        ).out.getvalue()

    assert json.loads(drawn)["nodes"] == []
    assert json.loads(whose)["holders"] == []


def test_who_names_the_cards_of_a_time_sliced_node_and_not_its_units(line: CommandLine) -> None:
    """Four cards as sixteen units, of which three are held: which cards is not known."""
    simulated(line, "nvidia-timeslicing")

    told = line.ask("who", "ts-1").out
    rows = [row.split()[0] for row in told.splitlines() if row.startswith("ts-1/")]
    assert rows == ["ts-1/0", "ts-1/1", "ts-1/2", "ts-1/3", *["ts-1/gpu/?"] * 3]
    assert "1 to 3 of 4 held, which of them is not known" in told
    for name in ("ts-1/0", "ts-1/3"):
        for verb in ("who", "why"):
            told = line.ask(verb, name).out
            assert "1 to 3 of 4 held, which of them is not known" in told
            assert "16 cards" not in told
    unknown = line.ask("who", "ts-1/4")
    assert unknown.code == 2
    assert "knows no card ts-1/4" in unknown.err
    assert "next: `tenure map --node ts-1` shows its cards" in unknown.err


def test_a_machine_that_is_registered_twice_has_its_cards_at_one_node(line: CommandLine) -> None:
    """The other Node's are closed, by that reason; a map of a ledger says it too."""
    simulated(line, "nvidia-two-nodes-one-machine")
    old, new = "ip-10-3-1-7", "ip-10-3-1-7.eu-west-1.compute.internal"
    closed = f"the machine is registered again, as {new}"

    told = line.ask("who", old).out
    assert told.count(f"closed: {closed}") == 8
    assert closed not in line.ask("who", new).out
    assert f"closed: {closed}" not in line.ask("why", f"{new}/0").out
    told = line.ask("why", f"{old}/0").out
    assert f"{closed}; unknown holder: ml/before, ml/after may hold it" in told
    assert "of 0 cards" not in told
    of_ledger = json.loads(line.ask("map", "-o", "json").out)["contradictions"]
    dump = str(CORPUS / "nvidia-two-nodes-one-machine" / "dump.json")
    assert of_ledger == json.loads(line.run("map", dump, "-o", "json").out)["contradictions"]
    assert [each["object"] for each in of_ledger] == [f"Node {new}"]


def test_pods_says_how_many_cards_a_pod_holds_that_nobody_can_name(line: CommandLine) -> None:
    """Two of them are not one."""
    simulated(line, "nvidia-two-nodes-one-machine")

    devices = {row["pod"]: row["devices"] for row in json.loads(line.ask("pods", "-o", "json").out)}

    assert (devices["ml/before"], devices["ml/after"]) == ("gpu:? (2 cards)", "gpu:?")


def test_a_share_of_no_hours_is_none(line: CommandLine) -> None:
    """Whoever held something for a microsecond used not all of it."""
    simulated(line, "nvidia-timeslicing")

    groups = json.loads(line.ask("usage", "-o", "json").out)["groups"]

    assert {row["share_percent"] for row in groups} == {None}
    assert "100.0%" not in line.ask("usage").out


def test_no_open_drift_is_said(line: CommandLine) -> None:
    """And what was looked at."""
    simulated(line, "dra-whole")

    told = line.ask("drift")

    assert told.code == 0
    assert told.out.startswith("no drift is open, of what was recorded up to position ")
    assert json.loads(line.ask("drift", "-o", "json").out) == []


def test_a_dump_without_nodes_is_said_to_have_none(line: CommandLine, tmp_path: Path) -> None:
    """Nobody can be placed, and what runs there holds what nobody knows."""
    path = tmp_path / "pods.json"
    runs = pod(container(limits={"nvidia.com/gpu": 1}), name="r", nodeName="n", phase="Running")
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [runs]}))

    told = line.run("simulate", str(path), "-o", "json")

    assert "warning: the input has no Node" in told.err
    assert any("no Node" in each for each in json.loads(told.out)["summary"]["warnings"])
    assert "the ledger does not record" not in told.err


def test_a_file_that_is_given_twice_is_said_to_be(line: CommandLine, tmp_path: Path) -> None:
    """No field of it is wrong."""
    path = tmp_path / "n.json"
    path.write_text(json.dumps(node("n")))

    told = line.run("simulate", str(path), str(path))

    assert told.code == 2
    assert told.err == f"error: {path}: the file is given twice\nnext: name each file once\n"


def test_a_claim_for_a_pod_of_an_odd_uid_is_told(line: CommandLine, tmp_path: Path) -> None:
    """Nobody takes it for a position of the log; whose Pod does not run closes the card."""
    path = tmp_path / "c.json"
    items = [node("n", allocatable=BASE), sliced("n", 2), claim("c", "n", "gpu-1", ("@x", "@1"))]
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    assert line.ask("simulate", str(path), "--now", NOW).code == 0

    assert line.ask("usage").code == 0
    assert line.ask("who", "n").code == 0
    percent = json.loads(line.ask("map", "-o", "json").out)["summary"]["percent"]
    assert percent == {"allocated": 0, "stranded": 0, "idle": 100, "closed": 100}


def test_a_card_that_its_plugin_withholds_is_closed_and_there(line: CommandLine) -> None:
    """The map shows eight closed cards, of which none is in the inventory."""
    simulated(line, "nvidia-plain-plugin-gone")

    assert line.ask("who", "gpu-1").out.count("closed: plugin gone") == 8
    for verb in ("who", "why"):
        told = line.ask(verb, "gpu-1/7")
        assert told.code == 0
        assert "2 of 8 held, which of them is not known" in told.out


def test_a_card_of_another_vendor_is_asked_for_by_its_number(line: CommandLine) -> None:
    """As the map numbers it: who holds it is as little known as of which."""
    simulated(line, "vendors-some-held")

    for verb in ("who", "why"):
        told = line.ask(verb, "tpu-1/0")
        assert told.code == 0
        assert "which of them is not known" in told.out or "which one is not known" in told.out


@pytest.mark.parametrize(
    "dump", ["hami-broken-pod", "hami-broken-register", "volcano-vgpu-mig-and-broken"]
)
def test_a_ledger_says_what_of_a_dump_could_not_be_read(dump: str, line: CommandLine) -> None:
    """What a map of the objects names, a map of what they were recorded as names too."""
    of_objects = json.loads(line.run("map", str(CORPUS / dump / "dump.json"), "-o", "json").out)
    simulated(line, dump)

    of_ledger = json.loads(line.ask("map", "-o", "json").out)

    assert of_ledger["contradictions"] == of_objects["contradictions"]
    assert of_objects["contradictions"]
    with open_ledger(str(line.ledger), mode="read") as ledger:
        drawn = answer_map(ledger, MapQuestion(output=OutputFormat.JSON), Sight(namespace="other"))
    assert json.loads(drawn.out.getvalue())["contradictions"] == []


@pytest.mark.parametrize("core", [100, 50])
def test_a_card_that_two_systems_give_is_a_double(
    line: CommandLine, tmp_path: Path, core: int
) -> None:
    """One Pod has it whole by a claim, another one a part by Volcano."""
    register = {"volcano.sh/node-vgpu-register": f"{UUID},2,40960,NVIDIA-A100,true:"}
    given = {"volcano.sh/vgpu-ids-new": f"{UUID},NVIDIA,1000,{core}:", "volcano.sh/vgpu-node": "h1"}
    asks = container(limits={"volcano.sh/vgpu-number": 1})
    objects = [
        node("h1", allocatable={"volcano.sh/vgpu-number": "2"}, annotations=register),
        resource_slice([card("gpu-0", UUID)], node="h1"),
        resource_claim("c", result("gpu-0", node="h1"), node="h1", pods=("w",)),
        pod(container(), name="w", namespace="team-c", uid="uid-w", nodeName="h1"),
        pod(asks, name="v", namespace="ml", uid="v", nodeName="h1", annotations=given),
    ]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    double = json.loads(line.run("map", str(path), "-o", "json").out)["double"]

    assert [each["id"] for each in double] == [UUID]


def test_a_ledger_without_claims_is_not_read_for_them(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every node all descriptions ever written would be decoded."""
    simulated(line, "nvidia-plain-containers")
    monkeypatch.setattr("ledger.store.reading.kept.seldom_of", None)

    nodes = json.loads(line.ask("map", "-o", "json").out)["nodes"]
    assert line.ask("who", nodes[0]["node"]).code == 0
