"""`tenure ledger recover` on a service's own ledger, in either database, by what Pods carry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import LedgerRecovered, PodReserved
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION, ANNOTATION_TENURE_PROOF
from ledger.signing import PrivateKey
from ledger.store.mending.recover import incarnations
from ledger.store.open import Ledger
from ledger.store.proving.verify import verify
from scheduler.service.proofs import Signing
from scheduler.service.witnesses import config_map
from tests.support.cli import Answer, CommandLine
from tests.support.recovery import open_holdings, witness
from tests.support.stores import Clock, PostgresStore, Store, bound, node, reserved, share, start

PROOFS, CHECKPOINTS = PrivateKey.new("proofs"), PrivateKey.new("tenure")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A ledger that was put back from a copy, and files of what its cluster has seen since."""

    ledger: CommandLine
    url: str
    folder: Path
    backup: Store
    held: set[tuple[Any, ...]]

    def recover(self, *more: str, pods: str = "pods.json") -> Answer:
        """Run the command."""
        keys = ["--public-key", str(CHECKPOINTS.public), "--public-key", str(PROOFS.public)]
        files = ["--pods", str(self.folder / pods)]
        return self.ledger.run(
            "ledger", "recover", *files, *keys, *more, "--ledger", self.url, "-o", "json"
        )

    def write(self, name: str, value: object) -> str:
        """Write a file; return its path."""
        (self.folder / name).write_text(json.dumps(value), "utf-8")
        return str(self.folder / name)

    def pods(self) -> list[dict[str, Any]]:
        """Return the Pods of the dump."""
        items: list[dict[str, Any]] = json.loads((self.folder / "pods.json").read_text())["items"]
        return items


def _pods(ledger: Ledger) -> list[dict[str, Any]]:
    """Return every bound Pod, with what the scheduler signs on it."""
    signing = Signing(
        cluster=ledger.head().origin,
        incarnation=lambda: "first",
        proof_key=PROOFS,
        ledger_key=CHECKPOINTS,
        machine_of=lambda _: ("", ""),
    )
    pods = []
    for each in ledger.read_events():
        event, at = each.event, each.envelope
        if isinstance(event, PodReserved):
            notes = signing.annotations(event, epoch=at.epoch, position=at.position, at_us=at.at_us)
            metadata = {"name": event.pod_name, "namespace": event.namespace, "uid": event.pod_uid}
            pods.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**metadata, "annotations": dict(notes)},
                    "spec": {"nodeName": event.node_name},
                    "status": {"phase": "Running"},
                }
            )
    return pods


@pytest.fixture
def scene(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    """Put the ledger of the morning back in the afternoon."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append(clock.all(node(gpus=2), reserved("old", share(0, 100)), bound("old")))
    backup = store.copy(tmp_path / "backup.db")
    with store.open() as ledger:
        start(ledger, "later").append(clock.all(reserved("new", share(1, 50)), bound("new")))
        pods, held, seen = _pods(ledger), open_holdings(ledger), witness(ledger)
    made = Scene(
        ledger=CommandLine(tmp_path, capsys),
        url=backup.url,
        folder=tmp_path,
        backup=backup,
        held=held,
    )
    made.write("pods.json", {"kind": "List", "items": pods})
    made.write("head.json", config_map(seen, "tenure-system"))
    yield made
    if isinstance(backup, PostgresStore):
        backup.server.drop(backup.database)


def test_signed_pods_alone_bring_back_what_they_hold(scene: Scene) -> None:
    """The ledger proves itself, holds what the annotations say, and names what it lost."""
    answer = scene.recover()
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert document["lost"] == [{"incarnation": "first", "from": 5, "to": 6}]
    assert [(row["what"], row["pod"]) for row in document["pods"]] == [
        ("granted again", "team-a/new")
    ]
    with scene.backup.open("read") as ledger:
        assert open_holdings(ledger) == scene.held
        assert verify(ledger).findings == ()
        query = "SELECT lost_from, lost_to FROM audit_unknown_ranges"
        rows = ledger.connection.exec_driver_sql(query).all()
    assert [tuple(row) for row in rows] == [(5, 6)]


def test_the_scheduler_s_config_map_is_a_witness(scene: Scene) -> None:
    """It saw the last position, which no Pod of the dump tells of."""
    head = str(scene.folder / "head.json")
    answer = scene.recover("--witness", head)
    assert json.loads(answer.out)["lost"] == [{"incarnation": "first", "from": 5, "to": 7}]


def test_a_config_map_that_can_t_be_read_is_named_with_its_place(scene: Scene) -> None:
    """Nothing is recorded."""
    head = scene.write("head.json", {"kind": "ConfigMap", "metadata": {}, "data": {}})
    answer = scene.recover("--witness", head)
    assert answer.code == 2
    assert "head.json" in answer.err
    assert "data[witness]" in answer.err


def test_a_proof_without_its_allocation_names_the_loss_and_its_pod(scene: Scene) -> None:
    """Nothing can be made again from it; the range is lost all the same."""
    pods = scene.pods()
    del pods[1]["metadata"]["annotations"][ANNOTATION_TENURE_ALLOCATION]
    scene.write("pods.json", {"kind": "List", "items": pods})
    answer = scene.recover()
    assert answer.code == 1
    document = json.loads(answer.out)
    assert document["lost"] == [{"incarnation": "first", "from": 5, "to": 6}]
    [row] = document["pods"]
    assert (row["what"], row["fact"]) == (
        "not believed",
        "a proof without an allocation: position=6",
    )


def test_a_forged_proof_tells_nothing(scene: Scene) -> None:
    """Its position is not one that anybody has seen."""
    pods = scene.pods()
    notes = pods[1]["metadata"]["annotations"]
    forged = notes[ANNOTATION_TENURE_PROOF].replace('"position":6', '"position":60')
    assert forged != notes[ANNOTATION_TENURE_PROOF]
    notes[ANNOTATION_TENURE_PROOF] = forged
    scene.write("pods.json", {"kind": "List", "items": pods})
    answer = scene.recover()
    assert json.loads(answer.out)["lost"] == [{"incarnation": "first", "from": 5, "to": 6}]


def test_an_api_server_that_was_set_back_opens_an_incarnation_without_a_loss(
    store: Store, scene: Scene
) -> None:
    """The ledger lacks nothing; its operator says that versions count anew from here."""
    whole = Scene(**{**vars(scene), "url": store.url, "backup": store})
    answer = whole.recover("--api-restored")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert (document["lost"], document["opened"]) == ([], True)
    with store.open("read") as ledger:
        lives, _ = incarnations(ledger)
        assert [each.name for each in lives] == ["first", document["incarnation"]]
        events = [each.event for each in ledger.read_events()]
        [event] = [each for each in events if isinstance(each, LedgerRecovered)]
        assert event.lost_to == event.lost_from - 1
        assert verify(ledger).findings == ()
        assert open_holdings(ledger) == scene.held


@pytest.mark.parametrize("sources", [[], ["--pods", "x", "--kubeconfig", "y"]], ids=["no", "two"])
def test_pods_come_from_one_source(
    sources: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dump or the cluster."""
    line = CommandLine(tmp_path / "x.db", capsys)
    answer = line.ask("ledger", "recover", *sources, "--public-key", str(PROOFS.public))
    assert answer.code == 2
    assert "of --pods and --kubeconfig one is needed" in answer.err
