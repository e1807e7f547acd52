"""The comparison as it runs: what is planted is named once, and over once it is mended."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ledger.domain.errors import LedgerError, UnknownOutcomeError
from ledger.domain.log import drift
from ledger.domain.log.events import PodReleased
from ledger.domain.log.machines import MACHINE_IDS_TAKEN
from ledger.domain.resources import (
    ANNOTATION_DEVICE_ALLOCATED,
    ANNOTATION_TENURE_PROOF,
    LABEL_TENURE_HOLDING,
)
from ledger.store.writing.commands import Command, Outcome, Refused
from scheduler.service.reconciling import GRACE_SECONDS
from scheduler.service.telling import AGAIN_SECONDS
from tests.support.live import MemoryLedger
from tests.support.reconciled import NAMESPACE, Cluster

LONG = 100.0
FORGED = json.dumps({"gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-core": "100"}}]})


@pytest.fixture
def cluster() -> Cluster:
    """A Pod bound by us on each of two nodes."""
    return Cluster().bound_pods()


def forge(cluster: Cluster) -> None:
    """Let somebody write another card on a Pod."""
    cluster.annotate("p", **{ANNOTATION_DEVICE_ALLOCATED: FORGED})


def test_nothing_is_found_where_nothing_is_wrong(cluster: Cluster) -> None:
    """However long one looks, over a restart too."""
    cluster.wait(2 * LONG)
    cluster.start()
    cluster.wait(LONG)
    assert cluster.log == []
    assert cluster.live.reconciling.lasting.counts() == {}


Plant = Callable[[Cluster], None]


def bind_past_us(cluster: Cluster) -> None:
    """Let somebody bind a Pod of ours by hand."""
    cluster.put_pod("x", percent=0, nodeName="n0")


def bind_a_holder_past_us(cluster: Cluster) -> None:
    """Let somebody bind a Pod of ours that asks for a card."""
    cluster.put_pod("x", nodeName="n0")


def shrink(cluster: Cluster) -> None:
    """Let the Device of a node lose all its cards."""
    cluster.put_device("n0", [])


def restore(cluster: Cluster) -> None:
    """Let them come back."""
    cluster.put_device("n0", ["GPU-n0-0", "GPU-n0-1"])


def swap(cluster: Cluster) -> None:
    """Let another card take the place of the one that is held."""
    cluster.put_device("n0", ["GPU-other-0", "GPU-other-1"])


def clone(cluster: Cluster) -> None:
    """Let another node list a card of ours too."""
    cluster.put_device("n1", ["GPU-n1-0", "GPU-n1-1", "GPU-n0-1"])


def unclone(cluster: Cluster) -> None:
    """Let it list its own."""
    cluster.put_device("n1", ["GPU-n1-0", "GPU-n1-1"])


def garble(cluster: Cluster) -> None:
    """Let a Device object be one that can't be read."""
    cluster.server.change(
        "/devices/n0", lambda value: value["spec"]["devices"][0].update(minor="x")
    )


def words_again(cluster: Cluster) -> None:
    """Let a Pod say again what it was bound with."""
    cluster.annotate("p", **cluster.words("p") | SAID)


SAID: dict[str, str] = {}
PLANTS: dict[str, tuple[list[str], Plant, Plant | None]] = {
    "a forged annotation": ([drift.ANNOTATION_DIFFERS], forge, words_again),
    "a proof that is gone": (
        [drift.PROOF_MISSING],
        lambda cluster: cluster.annotate("p", **{ANNOTATION_TENURE_PROOF: None}),
        words_again,
    ),
    "a proof that was written by hand": (
        [drift.PROOF_INVALID],
        lambda cluster: cluster.annotate("p", **{ANNOTATION_TENURE_PROOF: "{}"}),
        words_again,
    ),
    "another Pod's proof": (
        [drift.PROOF_FOREIGN],
        lambda cluster: cluster.annotate(
            "p", **{ANNOTATION_TENURE_PROOF: cluster.words("q")[ANNOTATION_TENURE_PROOF]}
        ),
        words_again,
    ),
    "a Pod bound past us": (
        [drift.BOUND_PAST_TENURE],
        bind_past_us,
        lambda cluster: cluster.delete_pod("x"),
    ),
    "a Pod with a card bound past us": (
        [drift.BOUND_PAST_TENURE],
        bind_a_holder_past_us,
        lambda cluster: cluster.delete_pod("x"),
    ),
    "cards that are gone": ([drift.DEVICE_GONE], shrink, restore),
    "cards that were replaced": ([drift.DEVICE_REPLACED], swap, restore),
    "one card on two nodes": (["DeviceIdCloned"], clone, unclone),
    "an object that can't be read": ([drift.NODE_UNREADABLE], garble, restore),
    "a Node that is gone": (
        [drift.HOLDER_ON_LOST_NODE],
        lambda cluster: cluster.server.delete("/api/v1/nodes/n0"),
        None,
    ),
    "a clock that is off": (
        [drift.CLOCK_SKEW],
        lambda cluster: setattr(cluster, "skew", -30.0),
        lambda cluster: setattr(cluster, "skew", 0.0),
    ),
}


@pytest.mark.parametrize("case", PLANTS.values(), ids=PLANTS)
def test_what_is_planted_is_named_once_and_over_once_mended(
    case: tuple[list[str], Plant, Plant | None], cluster: Cluster
) -> None:
    """Over restarts too, and after it has been mended."""
    kinds, plant, mend = case
    SAID.clear()
    SAID.update(cluster.words("p"))
    plant(cluster)
    cluster.wait(GRACE_SECONDS - 5)
    assert cluster.kinds == [], "no passing lag is drift"
    cluster.wait(LONG)
    assert cluster.kinds == kinds
    assert [cluster.live.reconciling.count(kind) for kind in kinds] == [1]
    cluster.start()
    cluster.wait(LONG)
    assert cluster.kinds == kinds, "a restart records it again"
    assert len(cluster.open) == 1
    if mend is None:
        return
    mend(cluster)
    cluster.wait(LONG)
    assert cluster.open == set()
    assert cluster.kinds == kinds


def test_a_node_that_takes_the_ids_of_a_lost_machine_is_named(cluster: Cluster) -> None:
    """On that Node, until the lost one is cleared or the ids are its own again."""

    def tell(name: str, machine: str) -> None:
        ids = {"systemUUID": machine, "machineID": machine}
        cluster.server.change(
            f"/api/v1/nodes/{name}", lambda node: node["status"].update(nodeInfo=ids)
        )
        cluster.wait(LONG)

    tell("n0", "m0")
    tell("n1", "m1")
    cluster.delete_pod("q")
    cluster.wait(LONG)
    cluster.server.delete("/api/v1/nodes/n0")
    cluster.wait(LONG)
    assert cluster.kinds == [drift.HOLDER_ON_LOST_NODE]
    tell("n1", "m0")
    assert cluster.kinds[1:] == [MACHINE_IDS_TAKEN]
    [(name, note)] = cluster.told(MACHINE_IDS_TAKEN)
    assert name == "n1"
    assert "it tells the ids of the machine of n0, which is lost" in note
    tell("n1", "m1")
    assert len(cluster.open) == 1


def test_people_read_it_on_the_pod(cluster: Cluster) -> None:
    """Which annotations, and what becomes of it."""
    forge(cluster)
    cluster.wait(LONG)
    [(name, note)] = cluster.told(drift.ANNOTATION_DIFFERS)
    assert name == "p"
    assert f"changed: {ANNOTATION_DEVICE_ALLOCATED}" in note


def test_people_read_it_on_the_node(cluster: Cluster) -> None:
    """What is about a card is said of its Node."""
    shrink(cluster)
    cluster.wait(LONG)
    assert [name for name, _ in cluster.told(drift.DEVICE_GONE)] == ["n0"]


def test_what_the_api_server_says_otherwise_is_no_drift(cluster: Cluster) -> None:
    """A watch that lags longer than any grace: a consistent read tells."""
    words = cluster.words("p")
    forge(cluster)
    cluster.lags = True
    cluster.annotate("p", **words)
    cluster.wait(LONG)
    assert cluster.log == []
    cluster.lags = False
    cluster.deliver()
    cluster.wait(LONG)
    assert cluster.log == []


class Stubborn(MemoryLedger):
    """A ledger that refuses every release while it is so."""

    is_stubborn = False

    async def record(self, command: Command) -> Outcome:
        """Record a command, unless it is a release."""
        if self.is_stubborn and isinstance(command.events[-1].event, PodReleased):
            return Refused(error=LedgerError("no"))
        return await super().record(command)


def test_a_release_that_the_ledger_refuses_is_named_until_it_is_recorded() -> None:
    """A leak: the Pod is gone, and holds."""
    stubborn = Stubborn()
    cluster = Cluster(ledger=stubborn)
    cluster.put_pod("p")
    cluster.bind("p", "n0")
    stubborn.is_stubborn = True
    cluster.delete_pod("p")
    cluster.wait(LONG)
    assert cluster.kinds == [drift.HOLDER_GONE]
    stubborn.is_stubborn = False
    cluster.wait(LONG)
    assert cluster.open == set()
    assert not cluster.live.view.holders()


def test_a_label_that_is_taken_off_is_set_again_and_named_only_where_that_fails(
    cluster: Cluster,
) -> None:
    """The repair comes first."""

    def label() -> bool:
        return LABEL_TENURE_HOLDING in cluster.server.objects[NAMESPACE]["metadata"]["labels"]

    def strip() -> None:
        cluster.server.change(NAMESPACE, lambda value: value["metadata"]["labels"].clear())

    strip()
    cluster.wait(LONG)
    assert label()
    assert cluster.log == []
    cluster.refused = lambda verb, path: (verb, path) == ("patch", NAMESPACE)
    strip()
    cluster.wait(LONG)
    assert cluster.kinds == [drift.NAMESPACE_LABEL_WRONG]
    cluster.refused = lambda _verb, _path: False
    cluster.wait(LONG)
    assert label()
    assert cluster.open == set()


@pytest.mark.parametrize("error", [LedgerError("down"), UnknownOutcomeError("no answer")])
def test_what_could_not_be_recorded_is_recorded_later_once(
    error: LedgerError, cluster: Cluster
) -> None:
    """In the same words, or it would be there twice."""
    ledger = cluster.ledger
    assert isinstance(ledger, MemoryLedger)
    forge(cluster)
    cluster.wait(GRACE_SECONDS - 5)
    ledger.away = error
    cluster.wait(LONG)
    ledger.away = None
    cluster.wait(LONG)
    assert cluster.kinds == [drift.ANNOTATION_DIFFERS]


def test_an_api_server_that_is_away_delays_what_needs_its_word(cluster: Cluster) -> None:
    """Nothing is recorded of a Pod that nobody could read."""
    forge(cluster)
    cluster.refused = lambda verb, _path: verb == "read"
    cluster.wait(LONG)
    assert cluster.log == []
    cluster.refused = lambda _verb, _path: False
    cluster.wait(LONG)
    assert cluster.kinds == [drift.ANNOTATION_DIFFERS]


def test_nothing_is_compared_while_the_view_is_behind(cluster: Cluster) -> None:
    """What is not known to be true disagrees with nothing."""
    forge(cluster)
    cluster.live.reconciling._why_not = lambda: "ClusterViewStale: pods"
    cluster.wait(LONG)
    assert cluster.log == []


def test_found_again_after_it_was_over_it_is_another_drift(cluster: Cluster) -> None:
    """And people are told again."""
    words = cluster.words("p")
    for turn in (1, 2):
        forge(cluster)
        cluster.wait(LONG)
        assert len(cluster.open) == 1
        cluster.annotate("p", **words)
        cluster.wait(LONG + AGAIN_SECONDS)
        assert cluster.open == set()
        assert cluster.kinds == [drift.ANNOTATION_DIFFERS] * turn


def test_only_nodes_where_something_happens_are_looked_at_before_their_turn(
    cluster: Cluster,
) -> None:
    """Nothing is read of the API where nothing disagrees."""
    cluster.wait(LONG)
    cluster.api.calls.clear()
    cluster.wait(2 * LONG)
    assert cluster.api.calls == []
