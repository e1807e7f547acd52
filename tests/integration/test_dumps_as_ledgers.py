"""`pods`, `top`, `usage` and `report` of a cluster's objects: what a ledger of them answers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli import Answer, CommandLine, dumped
from tests.support.corpus import CORPUS, NOW, one_of_each, truth_of
from tests.support.cpu_objects import cpu_node, cpu_pod
from tests.support.hami import REGISTER, card, registered
from tests.support.objects import Json, Object, container, device, gpu_device, gpu_pod, node, pod

pytestmark = pytest.mark.integration

ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": 2}
GPU = {"nvidia.com/gpu": 1}
COMMANDS = ("pods", "top", "usage", "report")
UNTIMED = ("lasted", "since", "seconds")
"""What a simulation says of its own time alone."""


def rows(answer: Answer) -> Json:
    """Return the JSON of an answer."""
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def untimed(answer: Answer) -> list[dict[str, Any]]:
    """Return the rows of an answer without the times of a simulation."""
    return [{key: row[key] for key in row if key not in UNTIMED} for row in rows(answer)]


# --- the same answer as of a ledger -----------------------------------------------------------


@pytest.mark.parametrize("dump", one_of_each("simulate"))
def test_who_holds_is_the_answer_of_the_ledger_of_these_objects(
    dump: str, line: CommandLine
) -> None:
    """`top` and `pods` say of Pods that run what they say of a ledger that adopted them."""
    items = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))["items"]
    runs = [each for each in items if each["kind"] != "Pod" or each["spec"].get("nodeName")]
    path = dumped(line, *runs)
    line.run("simulate", path, "--now", NOW, "--ledger", str(line.ledger))

    for by in ("pod", "node"):
        ours = untimed(line.run("top", path, "--by", by, "-o", "json"))
        theirs = untimed(line.ask("top", "--by", by, "-o", "json"))
        assert [row for row in theirs if row not in ours] == []
    ours = untimed(line.run("pods", path, "-o", "json"))
    theirs = untimed(line.ask("pods", "-o", "json"))
    assert [row for row in theirs if row not in ours] == []


@pytest.mark.parametrize("dump", one_of_each("simulate"))
def test_who_waits_is_the_answer_of_a_simulation(dump: str, line: CommandLine) -> None:
    """With the message that `simulate` has for each; a Pod that fits says where."""
    items = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))["items"]
    path = dumped(line, *items, *(each["pod"] for each in truth_of(dump)["simulate"]))
    simulated = rows(line.run("simulate", path, "--now", NOW, "-o", "json"))["placements"]

    found = rows(line.run("pods", "--waiting", path, "-o", "json"))

    assert len(found) == len(simulated)
    waiting = {row["pod"]: row for row in found}
    for each in simulated:
        row = waiting[f"{each['namespace']}/{each['name']}"]
        if each["unschedulable"] is None:
            assert (row["state"], row["node"]) == ("fits", each["node"])
        else:
            assert (row["state"], row["why"]) == ("waiting", each["unschedulable"]["message"])
            assert (row["node"], row["devices"], row["cpus"]) == ("", "", "")


# --- time -------------------------------------------------------------------------------------


def timed() -> list[Object]:
    """Return a node of noon, a Pod of ten o'clock, one without a start, and one that waits."""
    heard = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-03-02T12:00:00Z"}
    one = node("n1", allocatable=ROOM | {"nvidia.com/gpu": 4})
    one["status"]["conditions"] = [heard]
    early, odd, waits = (
        gpu_pod(GPU, name="early", nodeName="n1", phase="Running"),
        gpu_pod(GPU, name="odd", nodeName="n1", phase="Running"),
        gpu_pod({"nvidia.com/gpu": 3}, name="waits"),
    )
    for each in (early, odd, waits):
        each["metadata"]["creationTimestamp"] = "2026-03-02T09:00:00Z"
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-02T10:00:00Z"}
    early["status"] |= {"startTime": "2026-03-02T10:00:01Z", "conditions": [bound]}
    return [one, early, odd, waits]


def test_usage_counts_from_the_start_of_a_pod_where_an_object_says_it(line: CommandLine) -> None:
    """To the newest moment that the objects tell; nobody knows what was idle before."""
    path = dumped(line, *timed())

    found, answer = rows(line.run("usage", path, "-o", "json")), line.run("usage", path)

    assert found["groups"][0]["gpu_hours"] == pytest.approx(2.0, abs=0.001)
    assert found["groups"][0]["share_percent"] == 100
    assert found["not_counted"] == ["ml/odd"]
    assert found["capacity_percent"] is None
    assert "not counted: no object says since when they run: ml/odd" in answer.err
    assert "Pods that ended before are not in the objects: their hours are not known" in answer.err
    assert "GPU capacity" not in answer.out


def test_usage_within_a_window_of_a_dump(line: CommandLine) -> None:
    """Relative moments count from the newest moment that the objects tell."""
    path = dumped(line, *timed())

    found = rows(line.run("usage", path, "--since", "1h ago", "-o", "json"))

    assert found["groups"][0]["gpu_hours"] == pytest.approx(1.0, abs=0.001)


def test_since_when_is_null_where_no_object_says_it(line: CommandLine) -> None:
    """In `pods` and `top`; a Pod that waits does so since it was made."""
    path = dumped(line, *timed())

    pods = {row["pod"]: row for row in rows(line.run("pods", path, "-o", "json"))}
    top = {row["name"]: row for row in rows(line.run("top", path, "-o", "json"))}
    both = rows(line.run("top", "--by", "namespace", path, "-o", "json"))

    assert [pods[name]["lasted"] for name in ("ml/early", "ml/odd", "ml/waits")] == [
        "2h 1s",
        "",
        "3h 1s",
    ]
    assert (top["ml/early"]["seconds"], top["ml/odd"]["seconds"]) == (pytest.approx(7201, 1), None)
    assert (top["ml/odd"]["since"], both[0]["since"]) == (None, None)


def test_nothing_is_counted_of_who_is_on_a_lost_node(line: CommandLine) -> None:
    """Nobody says when it was lost, so nobody says until when usage counts."""
    one, *rest = timed()
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}
    one["spec"]["taints"] = [taint]

    found = rows(line.run("usage", dumped(line, one, *rest), "-o", "json"))

    assert found["not_counted"] == ["ml/early", "ml/odd"]
    assert sum(row["gpu_hours"] for row in found["groups"]) == 0


# --- inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_the_inputs_are_those_of_map(
    command: str, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stdin and a directory; no Node, a missing file and a ledger beside it are errors (2)."""
    path = Path(dumped(line, *timed()))
    (line.ledger.parent / "dir").mkdir()
    (line.ledger.parent / "dir" / "a.json").write_bytes(path.read_bytes())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))

    piped, folder = line.run(command, "-"), line.run(command, "dir")
    no_node = line.run(command, dumped(line, gpu_pod(GPU), name="x.json"))
    missing, both = line.run(command, "missing.json"), line.ask(command, str(path))

    assert (piped.code, folder.code, piped.out) == (0, 0, folder.out)
    assert "ledger: " not in piped.err
    assert (no_node.code, "no Node in the input" in no_node.err) == (2, True)
    assert missing.code == 2
    assert (both.code, "in place of a ledger" in both.err) == (2, True)
    assert not line.ledger.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_object_that_cannot_be_read_is_named_and_the_rest_is_told(
    command: str, line: CommandLine
) -> None:
    """As `map` does: exit 0, and what it holds is unknown."""
    broken = gpu_pod({"nvidia.com/gpu": "one"}, name="broken", nodeName="n1", phase="Running")

    answer = line.run(command, dumped(line, *timed(), broken))

    assert answer.code == 0, answer.err
    assert "warning: Pod ml/broken" in answer.err


def test_files_show_one_moment(line: CommandLine) -> None:
    """Nothing of them changes, so nothing is watched; and a service is no file."""
    path = dumped(line, *timed())

    watched = line.run("top", path, "--watch")
    served = line.run("pods", path, "--server", "https://127.0.0.1:1")

    assert (watched.code, "files show one moment only" in watched.err) == (2, True)
    assert (served.code, "in place of a ledger" in served.err) == (2, True)


def test_pods_that_ended_are_counted_beside_the_answer(line: CommandLine) -> None:
    """A ledger knows what they had, objects do not."""
    ended = pod(container(limits=GPU), name="done", nodeName="n1", phase="Succeeded")

    answer = line.run("pods", "--all", dumped(line, *timed(), ended))

    assert "ml/done" not in answer.out
    assert "not listed: Pods that ended: 1" in answer.err


def test_names_that_no_node_advertises_keep_an_admitted_pod_back(line: CommandLine) -> None:
    """As `why` of the same objects says it; it does not fit there by our cards alone."""
    asked = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
    admitted = gpu_pod(asked, name="first", annotations={"tenure.sh/admitted": "true"})
    path = dumped(line, node("n1", allocatable=ROOM), device(gpu_device(0)), admitted)

    why = rows(line.run("why", "ml/first", path, "-o", "json"))
    (row,) = rows(line.run("pods", "--waiting", path, "-o", "json"))
    line.run("report", path, "-o", "page.html")

    assert "the node does not advertise koordinator.sh/gpu-core" in why["message"]
    assert (row["state"], row["why"]) == (why["state"], why["message"])
    page = (line.ledger.parent / "page.html").read_text("utf-8")
    assert '<th scope="row" role="rowheader">the node does not advertise' in page


# --- what the service would not give ----------------------------------------------------------


HAMI: Object = node("n1", allocatable=ROOM, annotations={REGISTER: registered(card("GPU-a"))})


@pytest.mark.parametrize("command", ["pods", "report", "why"])
@pytest.mark.parametrize(
    ("code", "objects"),
    [
        ("CPUsNotBound", [*cpu_node(), cpu_pod("one", "2")]),
        ("NodeOfOtherScheduler", [HAMI, gpu_pod(GPU, name="one")]),
    ],
)
def test_a_place_that_the_service_would_not_give_is_said_to_be_none(
    command: str, code: str, objects: list[Object], line: CommandLine
) -> None:
    """Objects are decided as a simulation does, which names what the service keeps closed."""
    words = {"report": ["-o", "page.html"], "why": [f"{objects[-1]['metadata']['namespace']}/one"]}

    answer = line.run(command, *words.get(command, []), dumped(line, *objects))

    assert answer.code == 0, answer.err
    [warning] = [text for text in answer.err.splitlines() if code in text]
    assert warning.endswith("pods=1")
