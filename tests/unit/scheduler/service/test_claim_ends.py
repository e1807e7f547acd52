"""What agents are asked about claims that end, over the listener, and what their words bring."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.log.events import (
    ClaimBound,
    ClaimConsumed,
    ClaimReleased,
    ClaimReserved,
    EpochStarted,
    NodeCleared,
    NodeLost,
)
from ledger.domain.systems import Claimant
from scheduler.gate.decide import Standing
from scheduler.service.agents import SILENT_SECONDS
from scheduler.service.claim_ends import NONE, NOTED, NOTHING, READS_SECONDS, TOLD_MAX
from scheduler.service.guard import Leaving
from tests.support.agent_scene import Scene
from tests.support.objects import container, pod

TRAIN = Claimant(name="train", uid="uid-train")
Json = dict[str, Any]


class Guarded:
    """Node `a` with an agent, and a claim there that Pod train uses."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.live = self.scene.live
        self.ends = self.scene.agents.claims
        self.leaving = Leaving(self.live.view, self.scene.agents)
        opening = ClaimReserved(
            claim_uid="c",
            attempt=1,
            node_uid="uid-a",
            namespace="ml",
            claim_name="gpu",
            node_name="a",
            consumers=(TRAIN,),
        )
        self.live.record(opening)
        self.live.record(ClaimBound(claim_uid="c", attempt=1, node_uid="uid-a"))
        self.standing = Standing(opening=opening, stored=True)
        self.ready(is_ready=True)

    def ready(self, *, is_ready: bool) -> None:
        """Let kubelet be Ready, or not."""
        condition = {"type": "Ready", "status": str(is_ready)}
        node = {"metadata": {"name": "a"}, "status": {"conditions": [condition]}}
        self.scene.agents.ready.put("uid-a", node)

    def run(self, *, running: bool = True, **more: Any) -> None:  # noqa: ANN401
        """Let the API have the Pod on the node."""
        made = pod(container(), name="train", uid="uid-train")
        made["spec"]["nodeName"] = "a"
        state: Json = {"running": {}} if running else {"terminated": {}}
        made["status"] = {"containerStatuses": [{"state": state}], **more}
        self.live.view.pods.put("uid-train", made)

    def why(self) -> str:
        """Return why the claim stays, in one word."""
        kept = self.leaving.kept("ml/gpu", self.standing, (TRAIN,))
        return "" if kept is None else kept.reason

    def ask(self) -> None:
        """Ask the node."""
        self.leaving.ask(self.standing, (TRAIN,))

    def changes(self, version: str | None = "0") -> Json:
        """Ask for changes as an agent does; one without a version reads no claims."""
        after = self.live.view.position
        more = "" if version is None else f"&claims={version}"
        status, said = self.scene.get(f"changes?after={after}&seconds=0{more}")
        assert status == 200, said
        return said


@pytest.fixture
def guarded() -> Guarded:
    """Return a claim on a node with an agent."""
    return Guarded()


FIRST = (2 << 32) + 1
"""Number of the first question here, in the epoch after the first."""
WORD = {"claim_uid": "c", "attempt": 1, "pods": ["uid-train"], "question": FIRST}


def test_an_agent_is_asked_what_waits_and_its_word_ends_it(guarded: Guarded) -> None:
    """With the claim's name, and the Pods that used it."""
    assert guarded.changes()["claims"] == {"version": NONE, "ends": []}
    assert guarded.why() == "ReleaseNotConfirmed"
    told: list[str] = []
    guarded.live.wakeups.claim_end_answered.subscribe(told.append)
    guarded.ask()

    asked = guarded.changes()["claims"]
    assert asked["ends"] == [{**WORD, "namespace": "ml", "name": "gpu"}]
    assert guarded.changes(asked["version"])["claims"] == asked

    status, said = guarded.scene.confirm(claims=[WORD])

    assert (status, [one["result"] for one in said["claims"]]) == (200, [NOTED])
    assert guarded.why() == ""
    assert told == ["uid-a"]
    guarded.live.record(ClaimReleased(claim_uid="c", attempt=1, node_uid="uid-a", reason="gone"))
    assert guarded.changes()["claims"] == {"version": NONE, "ends": []}
    assert guarded.ends.confirmed("c", 1) is None


@pytest.mark.parametrize("said", [True, False], ids=["its word came", "its word is on its way"])
def test_a_word_of_before_its_pod_ran_counts_no_more(guarded: Guarded, *, said: bool) -> None:
    """Our watch may tell late that a Pod was bound: its node was asked before kubelet heard."""
    guarded.ask()
    if said:
        guarded.scene.confirm(claims=[WORD])
        assert guarded.why() == ""

    guarded.run()
    guarded.live.view.pods.drop("uid-train")
    if not said:
        guarded.scene.confirm(claims=[WORD])

    assert guarded.why() == "ReleaseNotConfirmed"
    guarded.ask()
    guarded.scene.confirm(claims=[WORD])
    assert guarded.why() == "ReleaseNotConfirmed", "an answer to the question of before"
    guarded.scene.confirm(claims=[{**WORD, "question": FIRST + 1}])
    assert guarded.why() == "", "it is asked again"


def test_a_word_of_before_the_claim_was_stored_counts_no_more(guarded: Guarded) -> None:
    """None of its Pods could run by then."""
    guarded.ask()
    guarded.scene.confirm(claims=[WORD])
    assert guarded.why() == ""

    guarded.ends.take(ClaimBound(claim_uid="c", attempt=1, node_uid="uid-a"))

    assert guarded.why() == "ReleaseNotConfirmed"
    assert guarded.changes()["claims"] == {"version": NONE, "ends": []}


@pytest.mark.parametrize(
    "word",
    [{**WORD, "claim_uid": "other"}, {**WORD, "attempt": 2}, {**WORD, "question": FIRST + 1}, None],
    ids=["of another claim", "of another attempt", "of another question", "of what is not asked"],
)
def test_what_is_not_asked_is_no_word(guarded: Guarded, word: Json | None) -> None:
    """It may have been said of what was before."""
    guarded.changes()
    if word is not None:
        guarded.ask()

    _, said = guarded.scene.confirm(claims=[word or WORD])

    assert [one["result"] for one in said["claims"]] == [NOTHING]
    assert guarded.why() == "ReleaseNotConfirmed"


def test_an_answer_to_another_process_is_none(guarded: Guarded) -> None:
    """An agent may have its question still, and know our number of messages already."""
    after = Guarded()
    after.live.ledger.take_over()
    for one in (guarded, after):
        one.ask()
    [before] = guarded.ends.told("uid-a")[1]

    assert after.ends.said("uid-a", [before]) == [NOTHING]
    assert after.ends.said("uid-a", after.ends.told("uid-a")[1]) == [NOTED]


def test_a_word_counts_no_more_once_others_use_the_claim(guarded: Guarded) -> None:
    """And in another epoch, and for what was lost with its node."""
    used: Json = {"claim_uid": "c", "attempt": 1, "node_uid": "uid-a"}
    for event, still in (
        (ClaimConsumed(**used, consumers=()), True),
        (ClaimConsumed(**used, consumers=(TRAIN,)), True),
        (ClaimConsumed(**used, consumers=(TRAIN, Claimant(name="x", uid="x"))), False),
        (EpochStarted(epoch=7, holder="h", origin="o", tenure_version="1"), False),
        (NodeLost(node_uid="uid-a", node_name="a", reason="deleted"), False),
    ):
        guarded.ask()
        guarded.ends.said("uid-a", [guarded.ends.told("uid-a")[1][0]])
        guarded.ends.take(event)
        assert (guarded.ends.confirmed("c", 1) is not None) is still, event


def test_an_agent_that_reads_no_claims_is_no_witness(guarded: Guarded) -> None:
    """Before it was heard it may be one; beside one at an upgrade it counts for nothing yet."""
    guarded.scene.get("holdings")
    assert guarded.why() == "ReleaseNotConfirmed"
    guarded.changes(None)
    assert guarded.why() == ""
    assert "claims" not in guarded.changes(None)

    guarded.changes("0")
    guarded.changes(None)
    assert guarded.why() == "ReleaseNotConfirmed"
    guarded.live.clock.now += READS_SECONDS
    assert guarded.why() == ""


def test_a_node_without_an_agent_is_asked_nothing(guarded: Guarded) -> None:
    """The claim controller's word counts."""
    assert guarded.why() == ""


def test_a_silent_agent_is_replaced_by_kubelets_own_word(guarded: Guarded) -> None:
    """Rule: design section 8; a Pod that was deleted while it ran has none."""
    guarded.changes()
    guarded.run(running=True)
    assert guarded.why() == "StillUsed"
    guarded.scene.pass_by(SILENT_SECONDS)
    guarded.live.view.pods.drop("uid-train")
    assert guarded.why() == "ReleaseNotConfirmed", "it was deleted by force while it ran"

    guarded.run(running=False, phase="Succeeded")
    assert guarded.why() == ""
    guarded.ready(is_ready=False)
    assert guarded.why() == "ReleaseNotConfirmed", "nobody on the node says anything"
    guarded.ready(is_ready=True)
    guarded.live.view.pods.drop("uid-train")
    assert guarded.why() == "", "its last word was that nothing runs"

    guarded.changes()
    assert guarded.why() == "ReleaseNotConfirmed", "the agent is back, and is asked"


def test_what_a_lost_node_has_opens_with_its_machine(guarded: Guarded) -> None:
    """Its agent says that none of the Pods runs there that used the claim."""
    guarded.live.record(NodeLost(node_uid="uid-a", node_name="a", reason="deleted"))
    assert guarded.why() == "HeldOnLostNode"
    guarded.live.record(NodeCleared(node_uid="uid-a", node_name="a", evidence="agent"))
    assert guarded.why() == ""


def test_an_agent_is_asked_no_more_than_it_can_say_at_once(guarded: Guarded) -> None:
    """The oldest first; the others have their turn."""
    for number in range(TOLD_MAX + 5):
        opening = ClaimReserved(
            claim_uid=f"c{number}",
            attempt=1,
            node_uid="uid-a",
            namespace="ml",
            claim_name=f"n{number}",
            node_name="a",
        )
        guarded.leaving.ask(Standing(opening=opening, stored=True), ())

    _, ends = guarded.ends.told("uid-a")

    assert [one.claim_uid for one in ends] == [f"c{number}" for number in range(TOLD_MAX)]
