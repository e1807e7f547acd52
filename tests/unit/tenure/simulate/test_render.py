import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from ledger.domain.cpuset import cpuset_of
from ledger.domain.devices import DeviceShare
from ledger.domain.log.events import PodObserved, RefusalReason
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.cluster.model import RefusedPod
from scheduler.decide.outcome import NodeReasons, Placement, Unplaced
from scheduler.record.core import Placed
from tenure.output import OutputFormat
from tenure.simulate.render import document_of, write_result
from tenure.simulate.results import LedgerSpan, Outcome, Result, Tally
from tests.support.runs import GIB, arrival, broken_pod, gpu_node, gpu_pod

NODES = (gpu_node("a"), gpu_node("b"))
PLACED = Placed(
    placement=Placement(
        request=gpu_pod("good"),
        node=0,
        node_uid="uid-a",
        node_name="a",
        shares=(
            DeviceShare(
                device_type="gpu",
                minor=1,
                device_id="GPU-a-1",
                core_percent=30,
                memory_bytes=16 * GIB,
                memory_ratio_percent=100,
            ),
            DeviceShare(device_type="rdma", minor=0, device_id="0000:1f:00.0", core_percent=50),
        ),
        cpuset=cpuset_of([0, 1, 2, 3, 8]),
    ),
    annotations={"x": '{"a":1}'},
)
UNPLACED = Unplaced(
    request=gpu_pod("big", 4),
    message="0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient gpu devices.",
    reasons=(
        RefusalReason(reason="Insufficient cpu", nodes=1),
        RefusalReason(reason="Insufficient gpu devices", nodes=1),
    ),
    nodes=NodeReasons(texts=(("Insufficient gpu devices",), ("Insufficient cpu",)), codes=(1, 0)),
)
REFUSED = broken_pod("bad")
OBSERVED = PodObserved(
    pod_uid="uid-old",
    attempt=1,
    namespace="ml",
    pod_name="old",
    node_uid="uid-b",
    node_name="b",
    source="device-allocated",
    shares=PLACED.placement.shares[:1],
)


def result_of(outcomes: Sequence[Outcome], *, source: str = "manifests") -> Result:
    """Return a result with these outcomes."""
    placed = sum(isinstance(outcome, Placed) for outcome in outcomes)
    arrivals = [
        arrival(outcome if isinstance(outcome, RefusedPod) else gpu_pod("p"))
        for outcome in outcomes
    ]
    return Result(
        vocabulary=DEFAULT_VOCABULARY,
        source=source,
        policy="binpack",
        seed=42,
        nodes=NODES,
        arrivals=arrivals,
        outcomes=outcomes,
        adopted=(OBSERVED,),
        tally=Tally(
            placed=placed,
            failed=len(outcomes) - placed,
            decisions=len(outcomes),
            asked_core_percent=380,
            series=[(40, 40), (379, 300), (381, 310)],
        ),
        core_percent_capacity=400,
        core_percent_allocated=30,
        picture=None,
        fragmentation_percent=12.34567,
        conflicts=("node b: card gpu/1 is over-held",),
        warnings=("odd",),
        ledger=LedgerSpan(url="run.db", first=1, last=9, chain_hash="00"),
        seconds=0.5,
    )


def written(result: Result, output: OutputFormat) -> str:
    """Return the text of an answer."""
    out = io.StringIO()
    write_result(result, output, out)
    return out.getvalue()


def answer_of(*outcomes: Outcome, source: str = "manifests") -> dict[str, Any]:
    """Return the answer as a program reads it."""
    answer: dict[str, Any] = json.loads(
        written(result_of(outcomes, source=source), OutputFormat.JSON)
    )
    return answer


def test_a_placement_has_every_key_of_the_interface() -> None:
    """cli.md, Output: base units as decimal text, core only if asked, one entry per device."""
    (entry,) = answer_of(PLACED)["placements"]

    assert entry == {
        "namespace": "ml",
        "name": "good",
        "uid": "uid-good",
        "node": "a",
        "devices": {
            "gpu": [
                {
                    "minor": 1,
                    "id": "GPU-a-1",
                    "resources": {
                        "koordinator.sh/gpu-core": "30",
                        "koordinator.sh/gpu-memory": "17179869184",
                        "koordinator.sh/gpu-memory-ratio": "100",
                    },
                }
            ],
            "rdma": [
                {"minor": 0, "id": "0000:1f:00.0", "resources": {"koordinator.sh/rdma": "50"}}
            ],
        },
        "counted": {},
        "cpuset": "0-3,8",
        "cpuSharedPools": [],
        "annotations": {"x": '{"a":1}'},
        "unschedulable": None,
    }


def test_a_refusal_names_every_node() -> None:
    """Every node has its reasons, in node order."""
    (entry,) = answer_of(UNPLACED)["placements"]

    assert entry["node"] is None
    assert (entry["devices"], entry["cpuset"], entry["annotations"]) == ({}, "", {})
    assert entry["unschedulable"] == {
        "message": UNPLACED.message,
        "nodes": {"a": ["Insufficient cpu"], "b": ["Insufficient gpu devices"]},
    }
    assert list(entry["unschedulable"]["nodes"]) == ["a", "b"]


def test_a_pod_that_breaks_a_rule_has_no_nodes() -> None:
    """The field errors are the message."""
    (entry,) = answer_of(REFUSED)["placements"]

    assert entry["unschedulable"] == {"message": "spec.x: Forbidden: no", "nodes": {}}


def test_the_summary_has_every_key_of_the_interface() -> None:
    """The sums agree with the lists; conflicts and warnings are there when empty, too."""
    answer = answer_of(PLACED, UNPLACED, REFUSED)

    assert list(answer) == ["placements", "adopted", "summary"]
    assert answer["summary"] == {
        "nodes": 2,
        "pods": 3,
        "placed": 1,
        "unschedulable": 2,
        "adopted": 1,
        "policy": "binpack",
        "seed": 42,
        "gpu": {"cards": 4, "core_percent_capacity": 400, "core_percent_allocated": 30},
        "ledger": {"url": "run.db", "from": 1, "to": 9},
        "conflicts": ["node b: card gpu/1 is over-held"],
        "warnings": ["odd"],
    }


def test_an_adopted_pod_is_listed_with_its_source() -> None:
    """What was there before, read from whoever wrote it down."""
    (entry,) = answer_of()["adopted"]

    assert {
        key: entry[key] for key in ("namespace", "name", "uid", "node", "cpuset", "source")
    } == {
        "namespace": "ml",
        "name": "old",
        "uid": "uid-old",
        "node": "b",
        "cpuset": "",
        "source": "device-allocated",
    }
    assert entry["devices"]["gpu"][0]["minor"] == 1


def test_openb_adds_the_figures_of_the_paper() -> None:
    """The row value at t is the mean over the arrivals whose arrived percent rounds to t."""
    summary = answer_of(PLACED, source="openb")["summary"]

    assert summary["arrived_percent"] == 95.0
    assert summary["allocated_percent"] == 7.5
    assert summary["fragmentation_percent"] == 12.3457


def test_every_form_says_the_same() -> None:
    """JSON is streamed; it, YAML and the document are one answer. CSV has one line per Pod."""
    result = result_of([PLACED, UNPLACED, REFUSED])

    document = document_of(result)
    assert json.loads(written(result, OutputFormat.JSON)) == document
    assert yaml.safe_load(written(result, OutputFormat.YAML)) == document
    lines = written(result, OutputFormat.CSV).splitlines()
    assert lines[0] == "namespace,name,uid,node,devices,cpuset,message"
    assert [line.split(",")[1] for line in lines[1:]] == ["good", "big", "bad"]


@pytest.mark.parametrize(
    "output",
    [pytest.param(OutputFormat.TABLE, id="table"), pytest.param(OutputFormat.WIDE, id="wide")],
)
def test_people_see_who_got_what_and_why_not(output: OutputFormat) -> None:
    """One line per Pod, then the sums, the conflicts and the refusals by reason."""
    text = written(result_of([PLACED, UNPLACED, REFUSED]), output)

    assert "gpu:1(30%)" in text
    assert "3 Pods decided: 1 placed, 2 unschedulable" in text
    assert "conflict: node b: card gpu/1 is over-held" in text
    assert "1 Pod: Insufficient cpu; Insufficient gpu devices" in text
    assert ("uid-good" in text) == (output is OutputFormat.WIDE)


def test_a_long_table_is_left_out_and_says_how_to_get_it() -> None:
    """10,000 lines answer no question; wide prints them all."""
    many = result_of([PLACED] * 201)

    table, wide = written(many, OutputFormat.TABLE), written(many, OutputFormat.WIDE)
    assert len(table.splitlines()) < 20
    assert "-o wide" in table
    assert len(wide.splitlines()) > 201


def test_an_empty_cluster_has_an_answer_too() -> None:
    """Nothing in, zeros out."""
    answer = answer_of()

    assert answer["placements"] == []
    assert answer["summary"]["pods"] == 0
