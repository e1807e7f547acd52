from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from ledger.domain.log.events import NodeDescribed, PodReserved, RequestDescribed
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.nodes import Taint
from ledger.domain.request.requests import MatchExpression, PlacementRules, PodRequest
from ledger.domain.resources import LABEL_HOSTNAME
from ledger.store.open import open_ledger
from scheduler.cluster.model import OTHERS, ClusterSnapshot
from scheduler.cluster.rebuilt import request_of
from scheduler.cluster.snapshot import (
    UNKNOWN,
    FileObjects,
    names_a_node,
    read_objects,
    settings_of,
    snapshot_of_ledger,
)
from scheduler.decide.settings import SchedulingSettings
from tenure.manifests import read_manifests
from tests.support.archives import history, move
from tests.support.cli import CommandLine
from tests.support.clusters import held, nic, pod, share
from tests.support.ledgers import morning, write_ledger
from tests.support.stores import Clock, node, reserved, start

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture(scope="module")
def objects() -> FileObjects:
    """What the examples' files tell."""
    return read_objects(read_manifests([str(EXAMPLES)]), SchedulingSettings())


@pytest.fixture
def examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The ledger of a simulation of the examples."""
    line = CommandLine(tmp_path / "run.db", capsys)
    assert line.run("simulate", str(EXAMPLES), "--ledger", str(line.ledger)).code == 0
    return line.ledger


def scene(ledger: Path, objects: FileObjects | None = None) -> ClusterSnapshot:
    """Return the cluster as the ledger tells."""
    with open_ledger(str(ledger), mode="read") as source:
        return snapshot_of_ledger(source, objects, settings_of(source))


def test_requests_of_every_dialect_come_back_out_of_the_events(
    examples: Path, objects: FileObjects
) -> None:
    """Every field is that of the Pod object: hints, groups, selectors, policies and all."""
    told = scene(examples)

    assert len(told.holders) == 10
    for holder in told.holders:
        assert holder.request == objects.requests[holder.uid], holder.path
    assert dict(told.requests) == {uid: objects.requests[uid] for uid in told.requests}


def test_nodes_come_back_whole_out_of_the_events(examples: Path, objects: FileObjects) -> None:
    """Taints, reserves, policies, zones, links and partitions too: nothing is left to files."""
    told = scene(examples)

    assert told.nodes == objects.nodes
    assert told.untold == ()


def test_files_tell_what_is_so_now(examples: Path, objects: FileObjects) -> None:
    """With the objects of all nodes and Pods nothing is untold, and requests are whole."""
    told = scene(examples, objects)

    assert told.untold == ()
    assert {holder.uid: holder.request for holder in told.holders} == {
        holder.uid: objects.requests[holder.uid] for holder in told.holders
    }


def test_who_holds_what_is_the_ledgers_word(examples: Path, objects: FileObjects) -> None:
    """Nodes in the order of the input, and the members of a group known as such."""
    told = scene(examples, objects)

    assert [node.name for node in told.nodes] == ["dgx-1", "plain-1"]
    groups = {holder.path: holder.group for holder in told.holders if holder.group}
    assert groups == {"ml/worker-0": "group/ml/bert/2", "ml/worker-1": "group/ml/bert/2"}


def test_closed_cards_and_what_others_placed_are_seen(tmp_path: Path) -> None:
    """A card that a message closed is closed here; a Pod that nobody decided may not be moved."""
    told = scene(write_ledger(tmp_path / "morning.db", morning()))

    node = next(node for node in told.nodes if node.name == "gpu-a")
    assert next(item.healthy for item in node.devices if item.device_type == "gpu") is False
    assert {holder.fixed for holder in told.holders} <= {OTHERS, UNKNOWN, ""}


def test_what_an_archive_took_is_still_held_but_said_to_be_untold(tmp_path: Path) -> None:
    """
    Holders, unknown cards, closed cards and cards kept for a group come from the state.

    Their requests are in the archive, so that none of them may be moved.
    """
    with open_ledger(str(tmp_path / "run.db"), mode="create") as source:
        history(source, Clock())
        move(source, tmp_path)
        told = snapshot_of_ledger(source, None, SchedulingSettings())

    held_by = {holder.uid: holder for holder in told.holders}
    assert {"uid-long", "uid-seen", "uid-early"} <= held_by.keys()
    kept = [holder.fixed for holder in told.holders if holder.fixed.startswith("kept for")]
    assert kept == ["kept for group"]
    assert all(holder.fixed for holder in told.holders)
    assert any("moved to the archive" in text for text in told.untold)
    closed = [r.minor for node in told.nodes for r in node.devices if not r.healthy]
    assert closed == [3]


def test_what_was_described_before_an_archive_is_known_behind_it(tmp_path: Path) -> None:
    """Nodes as deciding reads them, and requests that are named later."""
    clock = Clock()
    taint = Taint(key="owned", value="", effect="NoSchedule")
    facts = RecordedNode(version=1, taints=(taint,), pods_max=7)
    asked = recorded_request(
        PodRequest(uid="u", namespace="ml", name="p", cpu_milli=1000, memory_bytes=0)
    )
    with open_ledger(str(tmp_path / "run.db"), mode="create") as source:
        start(source).append(
            clock.all(
                node("n-1", gpus=4, cpus=8, refs=2),
                NodeDescribed(node_uid="uid-n-1", node_name="n-1", facts=facts),
                RequestDescribed(request=asked),
            )
        )
        history(source, clock, events=300)
        move(source, tmp_path)
        later = structs.replace(reserved("later"), request=request_digest(asked))
        start(source, "next").append(clock.all(later))
        told = snapshot_of_ledger(source, None, SchedulingSettings())

    (n_1,) = (each for each in told.nodes if each.name == "n-1")
    assert (n_1.taints, n_1.pods_max, n_1.cpu_milli) == ((taint,), 7, None)
    assert told.requests["uid-later"].cpu_milli == later.cpu_milli


def test_a_pod_whose_request_no_event_has_is_not_decided_again() -> None:
    """A reservation that was read off a Pod after a restore says what it holds, and no more."""
    request = pod("p", share(47))
    event = PodReserved(
        pod_uid=request.uid,
        attempt=1,
        namespace="default",
        pod_name=request.name,
        node_uid="n",
        node_name="n",
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        shares=(held(3, 47),),
        dialect="koordinator",
    )

    recorded = recorded_request(request)
    told = {request_digest(recorded): recorded}
    assert request_of(event, told) is None
    assert request_of(structs.replace(event, request=request_digest(recorded)), told) == request


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (PlacementRules(), False),
        (PlacementRules(node_selector=((LABEL_HOSTNAME, "n1"),)), True),
        (PlacementRules(node_selector=(("zone", "a"),)), False),
        (
            PlacementRules(
                affinity_terms=(
                    (
                        MatchExpression(
                            key="metadata.name", operator="In", values=("n1",), is_field=True
                        ),
                    ),
                )
            ),
            True,
        ),
        (
            PlacementRules(
                affinity_terms=(
                    (MatchExpression(key=LABEL_HOSTNAME, operator="In", values=("a", "b")),),
                )
            ),
            False,
        ),
    ],
    ids=["anywhere", "by host name", "by zone", "by the node's name", "one of two"],
)
def test_a_request_that_names_its_node_is_pinned(rules: PlacementRules, *, expected: bool) -> None:
    """One node by name is a pin; several, or a label many nodes may have, is not."""
    assert names_a_node(pod("p", nic(50), placement=rules)) is expected
