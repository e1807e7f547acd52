"""What agents are told and what they confirm, as docs/contracts/agents.md has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from agent.decide.following import OTHER_NODE
from agent.service.wire import read_beside
from ledger.domain.annotations.proof import decode_proof
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import LedgerError
from ledger.domain.log.codec import plain_value
from ledger.domain.log.events import (
    EpochStarted,
    NodeInventoried,
    NodeLost,
)
from ledger.signing import published, trusting
from ledger.store.writing.commands import Command, Outcome
from scheduler.service.agents import CONFIRMED_MAX, SILENT_SECONDS
from scheduler.service.api.callers import Caller
from scheduler.service.node_log import CHANGES_MAX
from scheduler.service.ports import Recorder
from tests.support.agent_scene import CPUS, PROOF_KEY, Scene, agent_of
from tests.support.live import Live, types
from tests.support.loops import run_in_virtual_time
from tests.support.objects import node

Json = dict[str, Any]


CARD = {"device_type": "gpu", "device_id": "GPU-a-0", "minor": 0}
GIVEN = {"index": "0", "cpus": "", "devices": [CARD]}


class SlowLedger:
    """Records when it may."""

    def __init__(self, ledger: Recorder) -> None:
        self._ledger = ledger
        self.waits, self.goes_on = asyncio.Event(), asyncio.Event()

    @property
    def epoch(self) -> int:
        """Return the ledger's."""
        return self._ledger.epoch

    @property
    def position(self) -> int:
        """Return the ledger's."""
        return self._ledger.position

    async def record(self, command: Command) -> Outcome:
        """Wait, then record."""
        self.waits.set()
        await self.goes_on.wait()
        return await self._ledger.record(command)


def given(name: str = "p", **changes: Any) -> Json:  # noqa: ANN401
    """Return what an agent says it gave a Pod."""
    return {"pod_uid": f"pod-{name}", "attempt": 1, "containers": [GIVEN], **changes}


@pytest.mark.parametrize("question", ["holdings?mode=plugin", "changes?after=0&mode=plugin"])
def test_an_agent_of_another_mode_is_refused_with_both_values(question: str) -> None:
    """It would show containers other cards than they hold, or none; it counts as silent."""
    scene = Scene()
    status, body = scene.get(question)
    fact = "slotMode of the service is env, --mode of the agent plugin: give both one value"
    assert (status, body["message"]) == (412, fact)
    assert status != OTHER_NODE, "the agent would forget what is held on its node"
    assert scene.told == []
    assert scene.get(question.replace("plugin", "env"))[0] in {200, 410}  # of an old position


def test_a_node_is_told_what_is_held_there_and_nothing_of_another() -> None:
    """By container, with devices and amounts, and as of which position."""
    scene = Scene()
    scene.hold("p")
    scene.hold("q", "b")
    status, body = scene.get("holdings")
    assert (status, body["node"], body["format"]) == (200, {"name": "a", "uid": "uid-a"}, 1)
    assert body["position"] == scene.live.view.position
    [held] = body["holdings"]
    assert (held["pod_uid"], held["phase"], held["kind"]) == ("pod-p", "bound", "granted")
    [of_pod] = held["containers"]
    assert of_pod["devices"][0].items() >= {"device_id": "GPU-a-0", "core_percent": 50}.items()


def test_a_node_is_told_which_claims_have_cpus_and_no_claim_is_a_holding() -> None:
    """Those of its own with CPUs, the oldest first; whatever it asks."""
    scene = Scene()
    _, before = scene.get("holdings")
    scene.claim("c", "2-3")
    scene.claim("cards alone", "")
    scene.claim("of b", "4-5", on="b")
    _, body = scene.get("holdings")
    assert (before["cpu_claims"], body["holdings"]) == ([], [])
    [one] = body["cpu_claims"]
    said = {"claim_uid": "claim-c", "namespace": "ml", "name": "c", "cpus": "2-3"}
    assert one == {**said, "position": before["position"] + 1}
    _, changed = scene.get(f"changes?after={before['position']}")
    assert (changed["cpu_claims"], changed["changes"]) == ([one], [])
    read = read_beside(json.dumps(body).encode()).cpu_claims
    assert read is not None
    assert [(one.name, one.cpus) for one in read] == [("c", parse_cpuset("2-3"))]


def test_who_knows_other_claims_with_cpus_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One came, or has ended, between two questions; an older agent does not say."""
    scene = Scene()
    first = scene.live.view.position + 1
    waited: list[str] = []

    async def wait(node_uid: str, *_: object) -> None:
        waited.append(node_uid)

    monkeypatch.setattr(scene.agents.log, "wait", wait)

    def waits(known: str) -> bool:
        waited.clear()
        assert scene.get(f"changes?after={scene.live.view.position}&seconds=20{known}")[0] == 200
        return waited == ["uid-a"]

    assert waits("&cpu_claims=0/0")
    scene.claim("c", "2-3")
    assert not waits("&cpu_claims=0/0")
    assert waits(f"&cpu_claims=1/{first}")
    assert waits("")
    scene.claim_ends("c")
    assert not waits(f"&cpu_claims=1/{first}")


def test_changes_since_a_position_are_told_once_in_order() -> None:
    """With the holding as it is now; who asks from the newest position hears nothing."""
    scene = Scene()
    _, before = scene.get("holdings")
    event = scene.hold("p")
    scene.hold("q", "b")
    status, body = scene.get(f"changes?after={before['position']}")
    assert status == 200
    assert [(one["what"], one["pod_uid"]) for one in body["changes"]] == [
        ("reserved", "pod-p"),
        ("bound", "pod-p"),
    ]
    assert body["changes"][0]["holding"]["phase"] == "bound"
    scene.live.release(event)
    status, later = scene.get(f"changes?after={body['position']}")
    [change] = later["changes"]
    assert (change["what"], change["reason"], change["holding"]) == ("released", "deleted", None)
    assert scene.get(f"changes?after={later['position']}")[1]["changes"] == []


@pytest.mark.parametrize(
    "upset",
    [
        pytest.param(
            lambda scene: [scene.live.release(scene.hold(f"p{n}")) for n in range(CHANGES_MAX)],
            id="more changes than are kept",
        ),
        pytest.param(
            lambda scene: scene.live.record(
                NodeLost(node_uid="uid-a", node_name="a", reason="deleted")
            ),
            id="the node was lost",
        ),
    ],
)
def test_who_lags_behind_asks_for_all_again(upset: Callable[[Scene], object]) -> None:
    """A 410, as of a watch of Kubernetes; so for a position that this ledger never had."""
    scene = Scene()
    position = scene.live.view.position
    upset(scene)
    assert scene.get(f"changes?after={position}")[0] == 410
    assert scene.get("changes?after=1")[0] == 410
    assert scene.get(f"changes?after={scene.live.view.position + 1}")[0] == 410


def test_who_waits_for_changes_is_woken_by_one_of_its_own_node() -> None:
    """A second one of the same node takes the place of the first, which is answered."""
    scene = Scene()

    async def waiting() -> None:
        first, second = (
            asyncio.create_task(scene.agents.log.wait("uid-a", seconds, "agent"))
            for seconds in (3600, 3600)
        )
        await asyncio.sleep(0)
        await first
        scene.hold("q", "b")
        await asyncio.sleep(0)
        before = second.done()
        scene.hold("p")
        await second
        assert [before, second.done()] == [False, True]

    run_in_virtual_time(waiting())


def test_two_agents_of_one_node_do_not_race() -> None:
    """Each asks again once it is answered: that is once a second, and not as often as it can."""
    scene = Scene()
    asked = 0

    async def agent() -> None:
        nonlocal asked
        while asked < 1000:
            await scene.agents.log.wait("uid-a", 25.0, "agent")
            asked += 1

    async def waiting() -> None:
        both = [asyncio.create_task(agent()) for _ in range(2)]
        await asyncio.sleep(10.5)
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)

    run_in_virtual_time(waiting())
    assert asked <= 20


def test_what_binds_cpus_waits_beside_the_agent_of_its_node() -> None:
    """Neither takes the other's place, and a change wakes both."""
    scene = Scene()

    async def waiting() -> None:
        both = [
            asyncio.create_task(scene.agents.log.wait("uid-a", 3600, by)) for by in ("agent", CPUS)
        ]
        await asyncio.sleep(10)
        before = [one.done() for one in both]
        scene.hold("p")
        await asyncio.gather(*both)
        assert before == [False, False]

    run_in_virtual_time(waiting())


def test_what_binds_cpus_is_told_what_is_held_and_is_no_agent() -> None:
    """A node with it alone has no agent whose word a release would wait for."""
    scene = Scene()
    scene.hold("p", cpus=parse_cpuset("0-1"))
    scene.known.caller = agent_of("a", user=CPUS)

    status, body = scene.get("holdings")

    [held] = body["holdings"]
    assert (status, held["containers"][0]["cpus"]) == (200, "0-1")
    assert scene.get(f"changes?after={body['position']}")[0] == 200
    assert not scene.word().has_agent
    assert not scene.told
    [(status, _)] = scene.ask(("POST", "/agents/v1/checkpoint", {}))
    assert status == 403


def test_a_long_poll_is_answered_at_its_end_without_a_change() -> None:
    """So that nothing between cuts it."""
    scene = Scene()
    after = scene.live.view.position
    scene.routes.seconds_max = 0.01
    assert scene.get(f"changes?after={after}&seconds=60")[1]["changes"] == []


def test_what_was_given_exactly_as_reserved_is_recorded_once() -> None:
    """Repeating it changes nothing."""
    scene = Scene()
    scene.hold("p")
    for _ in range(2):
        status, body = scene.confirm(assigned=[given()])
        assert (status, body["assigned"][0]["result"]) == (200, "assigned")
    assert scene.assigned == ["pod-p"]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        pytest.param({"containers": []}, "different", id="nothing"),
        pytest.param(
            {"containers": [{**GIVEN, "cpus": "0-1"}]}, "different", id="CPUs that are not its own"
        ),
        pytest.param(
            {"containers": [{**GIVEN, "devices": [CARD | {"device_id": "GPU-a-1"}]}]},
            "different",
            id="another card",
        ),
        pytest.param({"containers": [{**GIVEN, "index": ""}]}, "different", id="to all containers"),
        pytest.param({"attempt": 2}, "unknown", id="another reservation"),
        pytest.param({"pod_uid": "pod-q"}, "unknown", id="a Pod of another node"),
    ],
)
def test_what_was_not_given_as_reserved_is_not_recorded(words: Json, result: str) -> None:
    """The agent is told what it is, and goes on with the others."""
    scene = Scene()
    scene.hold("p")
    scene.hold("q", "b")
    status, body = scene.confirm(assigned=[given(**words)])
    [one] = body["assigned"]
    assert (status, one["result"]) == (200, result)
    assert one["why"]
    assert not scene.assigned
    assert scene.agents.counts == {f"assigned {result}": 1}


@pytest.mark.parametrize(
    ("said", "result"),
    [
        pytest.param([], "assigned", id="nobody looked at them"),
        pytest.param([{"index": "", "cpus": "0-3", "devices": []}], "assigned", id="its own"),
        pytest.param([{"index": "", "cpus": "0-7", "devices": []}], "different", id="others"),
    ],
)
def test_cpus_are_compared_where_an_agent_says_some(said: list[Json], result: str) -> None:
    """An agent says what it saw: cards now, CPUs once it looks at them; older ones said both."""
    scene = Scene()
    scene.hold("p", cpus=parse_cpuset("0-3"))
    card = {key: value for key, value in GIVEN.items() if key != "cpus"}
    body = scene.confirm(assigned=[given(containers=[*said, card])])[1]
    assert body["assigned"][0]["result"] == result


def test_a_pod_that_is_not_known_to_be_bound_is_confirmed_later() -> None:
    """Its Binding may be seen on the node before the ledger has it."""
    scene = Scene()
    scene.hold("p", is_bound=False)
    assert scene.confirm(assigned=[given()])[1]["assigned"][0]["result"] == "later"
    assert not scene.assigned


def test_gone_counts_for_pods_of_the_own_node_alone() -> None:
    """A node that says so of another node's Pods says nothing."""
    scene = Scene()
    scene.hold("p")
    scene.hold("q", "b")
    _, body = scene.confirm(gone=["pod-p", "pod-q", "pod-z"])
    results = {one["pod_uid"]: one["result"] for one in body["gone"]}
    assert results == {"pod-p": "noted", "pod-q": "nothing", "pod-z": "nothing"}
    words = [
        scene.agents.word(state)
        for uid in ("uid-a", "uid-b")
        if (state := scene.live.view.recorded(uid))
    ]
    assert [each.gone for each in words] == [{"pod-p"}, frozenset()]
    assert scene.told == ["first a", "gone a"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({}, id="with what was reserved"),
        pytest.param({"containers": []}, id="with something else"),
        pytest.param({"attempt": 2}, id="by another reservation"),
    ],
)
def test_who_runs_again_is_not_gone(words: Json) -> None:
    """The newer word of a node counts, whatever the Pod was given."""
    scene = Scene()
    scene.hold("p")
    scene.confirm(gone=["pod-p"])
    scene.confirm(assigned=[given(**words)])
    assert scene.word().gone == frozenset()


def test_a_ledger_that_is_away_is_a_503_and_the_same_words_are_good_again() -> None:
    """Nothing is noted as confirmed that is not recorded."""
    scene = Scene()
    scene.hold("p")
    scene.live.ledger.away = LedgerError("down")
    assert scene.confirm(assigned=[given()])[0] == 503
    scene.live.ledger.away = None
    assert scene.confirm(assigned=[given()])[1]["assigned"][0]["result"] == "assigned"


@pytest.mark.parametrize(
    ("caller", "status"),
    [
        pytest.param(agent_of("a", user="anna"), 403, id="a user"),
        pytest.param(agent_of("a", how="request-header"), 403, id="by headers of a proxy"),
        pytest.param(agent_of(""), 403, id="a token of no Pod"),
        pytest.param(agent_of("a", "uid-a-next"), 404, id="a Node made anew, not known yet"),
        pytest.param(agent_of("z"), 404, id="a node that is not known"),
        pytest.param(agent_of("a", "uid-a"), 200, id="this Node"),
    ],
)
def test_an_agent_is_who_has_a_token_of_its_node(caller: Caller, status: int) -> None:
    """And nobody else is answered, or heard."""
    scene = Scene()
    scene.known.caller = caller
    assert scene.get("holdings")[0] == status
    assert scene.confirm(gone=[])[0] == status
    assert (len(scene.agents.reported) == 1) is (status == 200)


def test_agents_of_a_node_made_anew_are_told_which_of_both_they_are() -> None:
    """The new one asks again until its Node is known; the old one is told that its Node is gone."""
    scene = Scene()
    scene.hold("p")
    old, new = agent_of("a", "uid-a"), agent_of("a", "uid-a-next")

    def told(caller: Caller) -> tuple[int, str]:
        scene.known.caller = caller
        status, body = scene.get("holdings")
        return status, str(body.get("message") or body["node"]["uid"])

    assert told(old) == (200, "uid-a")
    assert told(new) == (404, "the node is not known yet: name=a, uid=uid-a-next")
    scene.live.drop_node("a")
    scene.live.add_node("a", 2, uid="uid-a-next")
    scene.live.settle()
    assert told(new) == (200, "uid-a-next")
    status, words = told(old)
    assert (status, "yours=uid-a, now=uid-a-next" in words) == (409, True)
    assert scene.agents.reported == {"uid-a-next"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"gone": "pod-p"}, id="a text for a list"),
        pytest.param({"went": []}, id="a word that is not known"),
        pytest.param({"assigned": [given(attempt=-1)]}, id="no attempt"),
        pytest.param({"assigned": [given(containers=[{**GIVEN, "cpus": "x"}])]}, id="no CPUs"),
        pytest.param({"gone": [f"p{n}" for n in range(CONFIRMED_MAX + 1)]}, id="too many"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_place(body: Json) -> None:
    """And nothing of it counts."""
    scene = Scene()
    status, answer = scene.confirm(**body)
    assert status == 400
    assert answer["message"].startswith("body")


@pytest.mark.parametrize("query", ["", "after=-1", "after=x", "after=1&seconds=x"])
def test_a_position_is_a_number(query: str) -> None:
    """From 0."""
    assert Scene().get(f"changes?{query}")[0] == 400


def test_nobody_is_answered_while_nothing_may_be_decided() -> None:
    """The agent has what it knows, and asks again."""
    scene = Scene()
    scene.why = "ClusterViewStale: nodes"
    assert scene.get("holdings")[0] == 503


@pytest.mark.parametrize(("why", "kept"), [("NotLeader", False), ("", True)])
def test_who_asks_a_standby_connects_again(why: str, *, kept: bool) -> None:
    """The Service has every replica: on a connection that is kept, the leader is never found."""
    scene = Scene()
    scene.why = why

    async def asking() -> str:
        app = scene.app()
        async with TestClient(TestServer(app)) as client, client.get("/agents/v1/holdings") as told:
            return told.headers.get("Connection", "")

    assert asyncio.run(asking()) == ("" if kept else "close")


def test_an_agent_is_away_after_some_silence_and_has_that_time_after_a_restart() -> None:
    """Kubelet's word counts then, and before only where no agent ever reported."""
    scene = Scene()
    assert not scene.word().has_agent
    scene.get("holdings")
    assert scene.word().agent_ready
    scene.pass_by(SILENT_SECONDS)
    word = scene.word()
    assert (word.has_agent, word.agent_ready) == (True, False)


@pytest.mark.parametrize("why", ["NotLeader", "LedgerUnavailable", "ClusterViewStale: pods"])
def test_an_agent_that_nobody_hears_is_not_silent(why: str) -> None:
    """It was there all the time and got 503s: kubelet's word does not count in its place."""
    scene = Scene()
    scene.get("holdings")
    scene.why = why
    scene.pass_by(10 * SILENT_SECONDS)
    assert scene.word().agent_ready
    scene.why = ""
    scene.pass_by(SILENT_SECONDS - 1)
    assert scene.word().agent_ready, "it has as long as any to report again"
    assert max(scene.agents.seconds()) == SILENT_SECONDS - 1
    scene.live.clock.now += 1
    assert not scene.word().agent_ready


def test_a_process_that_was_paused_takes_nobody_for_silent() -> None:
    """Agents called meanwhile, and nobody listened: the first look is before their next call."""
    scene = Scene()
    scene.get("holdings")
    scene.pass_by(30)
    scene.live.clock.now += 10 * SILENT_SECONDS
    assert scene.word().agent_ready
    scene.pass_by(SILENT_SECONDS)
    assert not scene.word().agent_ready


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_kubelet_is_ready_as_its_node_says(status: str) -> None:
    """And the node is looked at again when that changes."""
    scene = Scene()
    changed: list[str] = []
    scene.live.wakeups.kubelet_ready_changed.subscribe(changed.append)
    told = node("a") | {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    for _ in range(2):
        scene.agents.ready.put("uid-a", told)
    assert scene.word().kubelet_ready is (status == "True")
    assert changed == ["a"]
    scene.agents.ready.drop("uid-a")
    assert not scene.word().kubelet_ready


def test_that_an_agent_reported_is_recorded_with_the_inventory_and_stays() -> None:
    """From then on what ends there waits for its word, after a restart too."""
    scene = Scene()
    live = scene.live
    before = types(live.ledger.log).count("node.inventoried")
    scene.get("holdings")
    live.reported.update(scene.agents.reported)
    live.settle()
    state = live.view.recorded("uid-a")
    assert state is not None
    assert state.by_agent
    assert types(live.ledger.log).count("node.inventoried") == before + 1
    again = Live(live.ledger)
    again.add_node("a", 2)
    again.settle()
    assert types(live.ledger.log).count("node.inventoried") == before + 1


def test_agents_have_time_to_report_to_whoever_takes_over() -> None:
    """They spoke to another replica before."""
    scene = Scene()
    scene.live.record(NodeInventoried(node_uid="uid-a", node_name="a", by_agent=True))
    scene.pass_by(2 * SILENT_SECONDS)
    assert not scene.word().agent_ready
    scene.live.record(EpochStarted(epoch=9, holder="h", origin="o", tenure_version="1"))
    assert scene.word().agent_ready
    scene.pass_by(SILENT_SECONDS)
    assert not scene.word().agent_ready


def test_an_agent_is_shown_the_checkpoint_in_quarantine_too() -> None:
    """It says what it has kept; who is no agent is told nothing."""
    scene = Scene()
    scene.why = "LedgerRecovering: whatever"
    call = ("POST", "/agents/v1/checkpoint", {"kept": "note"})
    [answer] = scene.ask(call)
    assert answer == (
        200,
        {
            "format": 1,
            "checkpoint": "after note of the agent of a",
            "consistency": [],
            "again_seconds": 0,
        },
    )
    assert scene.ask(("POST", "/agents/v1/checkpoint", {"kept": 5}))[0][0] == 400
    scene.known.caller = agent_of("a", user="system:admin")
    assert scene.ask(call)[0][0] == 403


def test_all_agents_together_ask_for_a_hundred_checkpoints_a_second() -> None:
    """Each is told to wait longer the more nodes there are, also before any was heard."""
    scene = Scene()
    for number in range(5_999):
        scene.agents.ready.put(str(number), {"metadata": {"name": f"node-{number}"}})
    call = ("POST", "/agents/v1/checkpoint", {"kept": "note"})
    [(_, few)] = scene.ask(call)
    scene.agents.ready.put("last", {"metadata": {"name": "last"}})
    [(_, many)] = scene.ask(call)
    assert (few["again_seconds"], many["again_seconds"]) == (59, 60)


def test_each_holding_that_we_gave_is_proved_for_its_node() -> None:
    """As the ledger says it now, with all answers by whom; what was not given has no proof."""
    scene = Scene()
    scene.hold("p")
    _, body = scene.get("holdings")
    assert body["ledger"] == {"cluster": "ledger/test", "incarnation": "first"}
    [held] = body["holdings"]
    check = trusting(published([PROOF_KEY.public]))
    proof = decode_proof(held["proof"], check=check)
    said = (proof.pod_uid, proof.node_uid, proof.attempt, proof.position)
    assert said == ("pod-p", "uid-a", held["attempt"], held["position"])
    assert proof.machine == ("system-uid-a", "")
    assert json.loads(json.dumps(list(map(plain_value, proof.containers)))) == held["containers"]
    _, later = scene.get(f"changes?after={held['position'] - 1}")
    assert {one["holding"]["proof"] for one in later["changes"]} == {held["proof"]}
    state = scene.live.view.recorded("uid-a")
    assert state is not None
    [holding] = state.holdings.values()
    for others in ({"kind": "observed"}, {"phase": "lost"}, {"machine": ("another", "")}):
        assert not scene.signing.proof(msgspec.structs.replace(holding, **others), "uid-a")


def test_a_machine_that_registered_again_opens_by_its_agents_word() -> None:
    """Nothing that held something through the lost Node runs; a Pod that does keeps it closed."""
    scene = Scene()
    event = scene.hold("p")
    scene.live.record(NodeLost(node_uid="uid-a", node_name="a", reason="deleted"))
    scene.live.drop_node("a")
    scene.live.add_node("a", 2, uid="uid-new")
    scene.live.settle()
    for uid in ("uid-a", "uid-new"):
        state = scene.live.view.recorded(uid)
        assert state is not None
        told = [
            one
            for one in scene.live.ledger.log
            if isinstance(one, NodeInventoried) and one.node_uid == uid
        ][-1]
        scene.live.record(replace(told, system_uuid="board", machine_id="disk"))
    assert scene.confirm(runs=[event.pod_uid])[1]["cleared"] == []
    assert scene.confirm()[1]["cleared"] == []
    lost = scene.live.view.recorded("uid-a")
    assert lost is not None
    assert len(lost.holdings) == 1
    assert scene.confirm(runs=["other"])[1]["cleared"] == ["uid-a"]
    assert scene.confirm(runs=[])[1]["cleared"] == []
    lost = scene.live.view.recorded("uid-a")
    assert lost is not None
    assert lost.holdings == {}


def test_a_node_that_takes_the_ids_of_a_lost_machine_ends_nothing_there() -> None:
    """Any kubelet writes into its own Node what ids it likes; the lost Node's name it has not."""
    scene = Scene()
    scene.hold("p")

    def tell(name: str, uid: str) -> None:
        scene.live.record(
            NodeInventoried(node_uid=uid, node_name=name, system_uuid="board", machine_id="disk")
        )

    tell("a", "uid-a")
    scene.live.record(NodeLost(node_uid="uid-a", node_name="a", reason="deleted"))
    scene.known.caller = agent_of("b")
    tell("b", "uid-b")
    assert scene.confirm(runs=[])[1]["cleared"] == []
    [lost] = scene.agents.lost()
    assert [one.pod_uid for one in lost.holdings.values()] == ["pod-p"]
    tell("a", "uid-a")
    assert scene.confirm(runs=[])[1]["cleared"] == []
    scene.known.caller = agent_of("a")
    assert scene.confirm(runs=[])[1]["cleared"] == ["uid-a"]
    assert scene.agents.lost() == []


def test_a_pod_that_was_called_gone_is_here_again_before_it_starts() -> None:
    """Nobody releases it by the old word then."""
    scene = Scene()
    scene.hold("p")
    scene.confirm(gone=["pod-p"])
    assert scene.word().gone == {"pod-p"}
    _, body = scene.confirm(here=["pod-p", "pod-x"])
    assert scene.word().gone == frozenset()
    assert {one["pod_uid"]: one["result"] for one in body["here"]} == {
        "pod-p": "noted",
        "pod-x": "nothing",  # what it held may be another's by now
    }


def test_a_replica_that_leads_again_believes_no_pod_gone_by_what_it_heard_before() -> None:
    """Agents told another one meanwhile that it is here; who is gone is told again."""
    scene = Scene()
    scene.hold("p")
    scene.confirm(gone=["pod-p"])
    scene.live.record(EpochStarted(epoch=9, holder="h", origin="o", tenure_version="1"))
    assert scene.word().gone == frozenset()
    scene.confirm(gone=["pod-p"])
    assert scene.word().gone == {"pod-p"}


def test_a_message_that_waits_for_the_ledger_takes_back_nothing_that_is_said_meanwhile() -> None:
    """The agent gave its answer up and says that the Pod is here, before the ledger is there."""
    scene = Scene()
    scene.hold("p")
    scene.hold("q")
    ledger = SlowLedger(scene.live.ledger)
    scene.agents._recorder = ledger

    async def asking() -> None:
        async with TestClient(TestServer(scene.app())) as client:
            path = "/agents/v1/confirmations"
            body = {"assigned": [given("q")], "gone": ["pod-p"]}
            late = asyncio.create_task(client.post(path, json=body))
            await ledger.waits.wait()
            async with client.post(path, json={"here": ["pod-p"]}) as answer:
                assert answer.status == 200
            ledger.goes_on.set()
            async with await late as answer:
                assert answer.status == 200

    asyncio.run(asking())
    assert scene.assigned == ["pod-q"]
    assert scene.word().gone == frozenset()


def test_a_message_that_is_late_counts_for_nothing() -> None:
    """That a Pod is gone, said before it was taken back; each message counts once."""
    scene = Scene()
    scene.hold("p")
    _, told = scene.get("holdings")
    first = told["sequence"] + 1
    _, answer = scene.confirm(gone=[], sequence=first)
    assert (answer["taken"], answer["sequence"]) == (True, first)
    for sequence in (first - 1, first, first + 2):
        status, late = scene.confirm(gone=["pod-p"], sequence=sequence)
        assert (status, late["taken"], late["sequence"]) == (200, False, first)
        assert "gone" not in late
    assert scene.word().gone == frozenset()
    assert scene.agents.counts["late"] == 3
    assert scene.confirm(gone=["pod-p"], sequence=first + 1)[1]["taken"]
    assert scene.word().gone == {"pod-p"}


def test_a_message_without_a_number_counts_and_makes_those_before_it_late() -> None:
    """Of an agent of an earlier release; each node has numbers of its own, and so has an epoch."""
    scene = Scene()
    scene.hold("p")
    first = scene.get("holdings")[1]["sequence"] + 1
    assert scene.confirm(gone=["pod-p"])[1]["taken"]
    assert not scene.confirm(here=["pod-p"], sequence=first)[1]["taken"]
    scene.known.caller = agent_of("b")
    assert scene.confirm(sequence=first)[1]["taken"]
    scene.known.caller = agent_of("a")
    scene.live.ledger.epoch += 1
    assert scene.get("changes?after=999999")[0] == 410
    assert scene.get("holdings")[1]["sequence"] > first + 1
    assert not scene.confirm(here=["pod-p"], sequence=first + 1)[1]["taken"]


def test_what_is_left_of_a_message_that_waits_counts_not_after_a_newer_one() -> None:
    """Whom it calls assigned is called gone meanwhile, and stays so."""
    scene = Scene()
    for name in ("p", "q"):
        scene.hold(name)
    slow = SlowLedger(scene.live.ledger)
    scene.agents._recorder = slow
    first = scene.get("holdings")[1]["sequence"] + 1
    words = {"assigned": [given("p"), given("q")], "runs": ["pod-p"], "sequence": first}

    async def both() -> Json:
        async with TestClient(TestServer(scene.app())) as client:
            path = "/agents/v1/confirmations"
            older = asyncio.create_task(client.post(path, json=words))
            await slow.waits.wait()
            body = {"gone": ["pod-q"], "sequence": first + 1}
            async with client.post(path, json=body) as newer:
                assert (await newer.json())["taken"]
            slow.goes_on.set()
            async with await older as answer:
                told: Json = await answer.json()
        return told

    told = asyncio.run(both())
    assert [one["result"] for one in told["assigned"]] == ["assigned", "later"]
    assert scene.word().gone == {"pod-q"}
