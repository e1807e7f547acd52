"""A schedule in CSV, from its rows to what a run is fed with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodSnapshot
from scheduler.cluster.model import Clearing, HealthChange, NodeChange, Pod
from tenure.simulate.model import PodChange
from tenure.simulate.schedule import Labels, Schedule, Subjects, read_schedule, with_labels
from tests.support.runs import SECOND_US, START_US, gpu_node, gpu_pod

NODES = (gpu_node("a"), gpu_node("b"))
HEADER = "at_seconds,event,object,value"


def kept(labels: Labels) -> dict[str, str]:
    """Return the labels that are there."""
    return {key: text for key, text in labels.items() if text is not None}


def node_with(name: str, labels: Labels) -> NodeFacts:
    """Return a Node with these labels alone."""
    return replace(next(node for node in NODES if node.name == name), labels=kept(labels))


def pod_with(path: str, labels: Labels) -> Pod:
    """Return a Pod with these labels alone."""
    name = path.partition("/")[2]
    return replace(gpu_pod(name), snapshot=PodSnapshot(labels=kept(labels)))


def read(folder: Path, *rows: str, header: str = HEADER, all_arrive: bool = True) -> Schedule:
    """Return what these rows say of two nodes and the Pods p and q."""
    path = folder / "schedule.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    subjects = Subjects(
        nodes=NODES,
        pods={f"ml/{name}": gpu_pod(name) for name in "pq"},
        node_with=node_with,
        pod_with=pod_with,
    )
    return read_schedule(path, subjects, START_US, all_arrive=all_arrive)


def test_pods_arrive_when_it_says_so_and_else_at_the_start(tmp_path: Path) -> None:
    """In the order of time; a Pod without a lifetime stays."""
    found = read(tmp_path, "5,arrive,ml/p,60").arrivals

    assert [(one.pod.name, (one.at_us - START_US) // SECOND_US) for one in found] == [
        ("q", 0),
        ("p", 5),
    ]
    assert [one.lifetime_us for one in found] == [None, 60 * SECOND_US]
    assert [
        one.pod.name for one in read(tmp_path, "5,arrive,ml/p,", all_arrive=False).arrivals
    ] == ["p"]


def test_changes_come_in_the_order_of_time_then_of_the_file(tmp_path: Path) -> None:
    """Whatever the order of their lines; Pods are named by their arrival."""
    found = read(
        tmp_path,
        "9,recover,a/gpu/1,replaced",
        "3,lose,b,",
        "3,fail,a/gpu/1,Xid79",
        "4,return,b,",
        "5,clear,b,switched off",
        "6,delete,ml/q,",
        "1,arrive,ml/p,",
    ).changes

    assert [type(change) for change in found] == [
        NodeChange,
        HealthChange,
        NodeChange,
        Clearing,
        PodChange,
        HealthChange,
    ]
    lost, dead, back, cleared, gone, healed = found
    assert isinstance(lost, NodeChange)
    assert (lost.node, lost.facts.lost, lost.reason) == (1, True, "deleted")
    assert isinstance(dead, HealthChange)
    assert (dead.node, dead.minor, dead.healthy, dead.reason) == (0, 1, False, "Xid79")
    assert isinstance(back, NodeChange)
    assert not back.facts.lost
    assert isinstance(cleared, Clearing)
    assert cleared.reason == "switched off"
    assert isinstance(gone, PodChange)
    assert (gone.arrival, gone.pod, gone.reason) == (0, None, "deleted")
    assert isinstance(healed, HealthChange)
    assert healed.healthy


def test_labels_are_set_and_taken_away_one_after_the_other(tmp_path: Path) -> None:
    """As `kubectl label` does: KEY=VALUE, KEY-; what was lost stays lost."""
    found = read(
        tmp_path,
        "1,label,a,zone=x",
        "2,lose,a,",
        "3,label,a,tier=",
        "4,label,a,zone-",
        "5,label,ml/p,app=web",
    ).changes

    nodes = [change for change in found if isinstance(change, NodeChange)]
    assert [(dict(change.facts.labels), change.facts.lost) for change in nodes] == [
        ({"zone": "x"}, False),
        ({"zone": "x"}, True),
        ({"zone": "x", "tier": ""}, True),
        ({"tier": ""}, True),
    ]
    (pod,) = [change for change in found if isinstance(change, PodChange)]
    assert pod.pod is not None
    assert pod.pod.snapshot.labels == {"app": "web"}


def test_what_was_changed_by_then_is_a_matter_of_time(tmp_path: Path) -> None:
    """A line that stands before another one and happens behind it changes nothing there."""
    rows = (
        "1,label,a,zone=x",
        "2,lose,a,",
        "3,label,a,zone-",
        "4,label,a,tier=1",
        "5,return,a,",
        "6,clear,a,",
        "7,label,a,last=1",
    )

    in_order = read(tmp_path, *rows).changes

    assert read(tmp_path, *reversed(rows)).changes == in_order
    assert read(tmp_path, *rows[::2], *rows[1::2]).changes == in_order


BAD = {
    "an unknown event": ("1,explode,a,", "not one of arrive, delete, fail"),
    "a time in other digits": ("\uff15,lose,a,", "not a number of seconds"),
    "no time": (",lose,a,", "not a number of seconds"),
    "a time before the start": ("-1,lose,a,", "not a number of seconds"),
    "an unknown Node": ("1,lose,z,", "there is no such Node: value='z'"),
    "a Node that is lost already": ("1,lose,a,\n2,lose,a,", "the Node is lost already"),
    "a Node that was never lost": ("1,return,a,", "the Node is not lost already"),
    "nothing to clear": ("1,clear,a,", "the Node was never lost"),
    "an unknown Pod": ("1,delete,ml/z,", "there is no such Pod that asks for a place"),
    "a Pod that arrives twice": ("1,arrive,ml/p,\n2,arrive,ml/p,", "the Pod arrives twice"),
    "a lifetime that is no number": ("1,arrive,ml/p,long", "not a number of seconds"),
    "an unknown GPU": ("1,fail,a/gpu/9,x", "the Node has no such device, such as a/gpu/0"),
    "a Node for a GPU": ("1,fail,a,x", "the Node has no such device"),
    "a label without a value": ("1,label,a,zone", "a label is set by KEY=VALUE"),
    "too few fields": ("1,lose,a", "not as many fields as columns"),
    "too many fields": ("1,lose,a,,", "not as many fields as columns"),
}


@pytest.mark.parametrize(("rows", "fact"), BAD.values(), ids=BAD)
def test_a_row_that_can_not_be_is_refused_with_its_line(
    tmp_path: Path, rows: str, fact: str
) -> None:
    """File and line are named."""
    with pytest.raises(InputError) as caught:
        read(tmp_path, rows)

    assert fact in str(caught.value)
    assert f"schedule.csv:{2 + rows.count(chr(10))}" in str(caught.value)


def test_what_is_no_schedule_is_refused(tmp_path: Path) -> None:
    """Other columns, no file, no text."""
    with pytest.raises(InputError, match="columns are not at_seconds,event,object,value"):
        read(tmp_path, header="time,event")
    with pytest.raises(InputError, match="the Pod never arrives"):
        read(tmp_path, "1,delete,ml/p,", all_arrive=False)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
    subjects = Subjects(nodes=(), pods={}, node_with=node_with, pod_with=pod_with)
    for name, fact in {"bytes.csv": "not UTF-8", "none.csv": "can't read"}.items():
        with pytest.raises(InputError, match=fact):
            read_schedule(tmp_path / name, subjects, START_US, all_arrive=True)


def test_labels_are_changed_beside_those_that_stay() -> None:
    """The object itself is left as it was."""
    node = {"metadata": {"name": "a", "labels": {"zone": "x", "tier": "1"}}, "spec": {}}

    changed = with_labels(node, {"zone": None, "new": "y"})

    assert changed == {"metadata": {"name": "a", "labels": {"tier": "1", "new": "y"}}, "spec": {}}
    assert node["metadata"] == {"name": "a", "labels": {"zone": "x", "tier": "1"}}
