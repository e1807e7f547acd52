"""What a node's CPU process says, beside what its agent says."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.log import drift
from ledger.domain.log.events import EpochStarted, NodeLost, PodBound, PodReserved
from ledger.domain.resources import CONDITION_TENURE_CPUS, LABEL_TENURE_CPU_MANAGED
from scheduler.service.agents import SILENT_SECONDS
from tests.support.agent_scene import AGENT, CPUS, Scene, agent_of
from tests.support.objects import container, pod

Json = dict[str, Any]
OWN = "0-3"
CARD = {"device_type": "gpu", "device_id": "GPU-a-0", "minor": 0}
DEVICES = {"index": "0", "devices": [CARD]}


class Both(Scene):
    """The same, asked by the agent or by the CPU process of node `a`."""

    def say(self, who: str, on: str = "a", **words: Any) -> Json:  # noqa: ANN401
        """Let one of both confirm something; return the answer."""
        self.known.caller = agent_of(on, user=who)
        status, body = self.confirm(**words)
        assert status == 200, body
        return body

    def given(self, who: str, *containers: Json, name: str = "p") -> tuple[str, str]:
        """Let one of both say what a Pod has; return what came of it, and why."""
        words = {"pod_uid": f"pod-{name}", "attempt": 1, "containers": [*containers]}
        [one] = self.say(who, assigned=[words])["assigned"]
        return one["result"], one["why"]

    def hold_cpus(self, name: str = "p", cpus: str = OWN) -> PodReserved:
        """Let a Pod have CPUs and nothing else."""
        asked = pod(container(limits={"koordinator.sh/gpu": 50}), name=name, uid=f"pod-{name}")
        placement = self.live.placement(asked, "a")
        event = self.live.reserve(structs.replace(placement, cpuset=parse_cpuset(cpus), shares=()))
        self.live.record(PodBound(pod_uid=event.pod_uid, attempt=1, node_uid="uid-a"))
        return event

    def condition(self, status: str | None) -> None:
        """Let the Node have the condition of a CPU process, or no more."""
        ours = [] if status is None else [{"type": CONDITION_TENURE_CPUS, "status": status}]
        node = {"metadata": {"name": "a"}, "status": {"conditions": ours}}
        self.agents.ready.put("uid-a", node)

    def called_gone(self) -> tuple[set[str], set[str]]:
        """Return whom the agent calls gone, and whom the CPU process, which is there."""
        word = self.word()
        assert word.cpus is not None
        return set(word.gone), set(word.cpus.gone)

    def kinds(self, name: str = "p") -> dict[str, str]:
        """Return what the node has otherwise, by kind, in words."""
        state = self.live.view.recorded("uid-a")
        assert state is not None
        said = self.agents.otherwise("uid-a", state.holdings[f"pod-{name}/1"])
        return {kind: one.words for kind, one in said.items() if one.words}


def on(cpus: str, index: str = "0", written: str = "") -> Json:
    """Return a container by the kernel."""
    return {"index": index, "cpus": cpus, "written": written}


@pytest.mark.parametrize("first", [AGENT, CPUS])
def test_a_pod_with_both_is_assigned_once_both_have_confirmed_it(first: str) -> None:
    """Each its part, in either order; the first is told that the other's is missing."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    scene.say(CPUS)  # it is there
    words = {AGENT: DEVICES, CPUS: on(OWN)}
    second = CPUS if first == AGENT else AGENT

    result, why = scene.given(first, words[first])

    missing = "cpus" if first == AGENT else "devices"
    assert (result, why) == ("later", f"the node has not confirmed its {missing} yet")
    assert scene.assigned == []
    assert scene.given(second, words[second]) == ("assigned", "")
    assert scene.given(first, words[first]) == ("assigned", "")
    assert scene.assigned == ["pod-p"]


def test_a_pod_with_cpus_alone_is_assigned_by_the_cpu_process() -> None:
    """The agent does not look at CPUs, so nobody confirms such a Pod else."""
    scene = Both()
    scene.hold_cpus()
    assert scene.given(CPUS, on(OWN), on(OWN, "init-0")) == ("assigned", "")
    assert scene.assigned == ["pod-p"]


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_node_without_a_cpu_process_waits_for_none(status: str) -> None:
    """The agent's word is enough there, as ever; with its condition, the process has to come."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    assert scene.given(AGENT, DEVICES) == ("assigned", "")
    scene.condition(status)
    scene.hold("q", cpus=parse_cpuset("4-5"))
    result, _ = scene.given(AGENT, {"index": "0", "devices": [CARD]}, name="q")
    assert result == "later"
    scene.condition(None)
    assert scene.given(AGENT, {"index": "0", "devices": [CARD]}, name="q") == ("assigned", "")
    scene.condition(status)
    assert scene.word().cpus is not None
    scene.agents.ready.drop("uid-a")
    assert scene.word().cpus is None


def test_a_node_whose_label_alone_says_so_waits_for_none() -> None:
    """Anybody may take the label off, so no release hangs on it."""
    scene = Both()
    scene.live.add_node("a", 2, labels={LABEL_TENURE_CPU_MANAGED: "true"})
    scene.live.settle()
    scene.hold("p", cpus=parse_cpuset(OWN))
    assert scene.word().cpus is None
    assert scene.given(AGENT, DEVICES) == ("assigned", "")


def test_a_cpu_process_that_only_asks_is_waited_for_by_nobody() -> None:
    """It is a witness once it has confirmed anything."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    scene.known.caller = agent_of("a", user=CPUS)
    assert scene.get("holdings")[0] == 200
    assert scene.word().cpus is None
    scene.say(CPUS)
    assert scene.word().cpus is not None
    assert not scene.word().has_agent, "what it says is no word of the agent"
    assert scene.agents.reported == set()


OTHERWISE: dict[str, tuple[list[Json], str, str]] = {
    "others": ([on("0-7")], drift.CPUS_DIFFER, "0-7 in container 0"),
    "others, in one container of two": (
        [on(OWN), on("4", "1")],
        drift.CPUS_DIFFER,
        "4 in container 1",
    ),
    "others, of a container that is new": (
        [on(OWN), on("0-7", "")],
        drift.CPUS_DIFFER,
        "0-7 in a container that its spec does not list",
    ),
    "fewer, and so it is written": (
        [on("0-2", written="0-2")],
        drift.CPUS_DIFFER,
        "0-2 in container 0",
    ),
    "fewer than are written": ([on("0-2", written=OWN)], drift.CPUS_NARROWED, "0-2 in"),
}


@pytest.mark.parametrize(("said", "kind", "words"), OTHERWISE.values(), ids=OTHERWISE)
def test_other_cpus_than_its_own_have_a_name(said: list[Json], kind: str, words: str) -> None:
    """Nothing is recorded as assigned, and what was said of it counts until something else is."""
    scene = Both()
    scene.hold_cpus()
    result, why = scene.given(CPUS, *said)
    assert (result, scene.kinds()) == ("different", {kind: why})
    assert words in why
    assert OWN in why
    assert scene.assigned == []
    assert scene.given(CPUS, on(OWN)) == ("assigned", "")
    assert scene.kinds() == {}


def test_neither_takes_back_what_the_other_has_found() -> None:
    """The agent's word of devices says nothing of CPUs, and the other way round."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    scene.given(CPUS, on("0-7"))
    scene.given(AGENT, {"index": "0", "devices": [CARD | {"device_id": "GPU-a-1"}]})
    assert scene.kinds().keys() == {drift.CPUS_DIFFER, drift.NODE_GAVE_OTHER}
    scene.given(AGENT, DEVICES)
    assert scene.kinds().keys() == {drift.CPUS_DIFFER}
    assert scene.given(CPUS, on(OWN)) == ("assigned", "")


def test_a_word_that_was_taken_back_is_no_part_of_the_confirmation() -> None:
    """A container that starts again with other CPUs: what was confirmed before counts no more."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    assert scene.given(CPUS, on(OWN))[0] == "later"
    assert scene.given(CPUS, on("0-7"))[0] == "different"
    assert scene.given(AGENT, DEVICES)[0] == "later"
    assert scene.assigned == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="nothing"),
        pytest.param([{"index": "0"}], id="a container that nobody looked at"),
    ],
)
def test_who_says_no_cpus_confirms_none(words: list[Json]) -> None:
    """What was not looked at is neither the same nor another."""
    scene = Both()
    scene.hold_cpus()
    assert scene.given(CPUS, *words)[0] == "unknown"
    assert (scene.assigned, scene.kinds()) == ([], {})


def test_of_a_pod_without_cpus_of_its_own_the_cpu_process_says_nothing() -> None:
    """It neither confirms nor ends what the ledger has of devices alone."""
    scene = Both()
    scene.hold("p")
    assert scene.given(CPUS, on(OWN))[0] == "unknown"
    said = scene.say(CPUS, gone=["pod-p"])["gone"], scene.say(CPUS, here=["pod-p"])["here"]
    assert [one["result"] for [one] in said] == ["nothing", "nothing"]
    assert scene.given(AGENT, DEVICES) == ("assigned", "")


@pytest.mark.parametrize(
    ("who", "words"),
    [
        pytest.param(CPUS, {"observed": [{}]}, id="what others gave"),
        pytest.param(CPUS, {"runs": []}, id="all that runs"),
        pytest.param(CPUS, {"runs": ["pod-p"]}, id="some that run"),
        pytest.param(CPUS, {"claims": [{"claim_uid": "c", "attempt": 1}]}, id="claims"),
        pytest.param(
            CPUS,
            {"assigned": [{"pod_uid": "pod-p", "attempt": 1, "containers": [DEVICES]}]},
            id="devices",
        ),
        pytest.param(AGENT, {"crossing": {}}, id="who crosses, by the agent"),
    ],
)
def test_each_speaks_of_its_own_part_alone(who: str, words: Json) -> None:
    """The other's is refused with its place, and nothing of the message counts."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    scene.known.caller = agent_of("a", user=who)
    status, body = scene.confirm(gone=["pod-p"], **words)
    assert (status, body["message"].startswith("body.")) == (400, True), body
    word = scene.word()
    assert word.gone == frozenset()
    assert word.cpus is None


def test_what_is_gone_is_said_by_each_for_itself() -> None:
    """Neither ends what the other has not called gone, nor takes back what the other said."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    scene.say(CPUS, gone=["pod-p"])
    assert scene.called_gone() == (set(), {"pod-p"})
    scene.say(AGENT, here=["pod-p"])
    assert scene.called_gone() == (set(), {"pod-p"})
    scene.say(CPUS, here=["pod-p"])
    assert scene.called_gone() == (set(), set())


def test_each_numbers_its_own_messages() -> None:
    """Two processes of a node that count together would hold each other up for ever."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    numbers = {}
    for who in (AGENT, CPUS):
        scene.known.caller = agent_of("a", user=who)
        numbers[who] = scene.get("holdings")[1]["sequence"]
    for turn in range(1, 4):
        for who in (AGENT, CPUS):
            answer = scene.say(who, sequence=numbers[who] + turn)
            assert (answer["taken"], answer["sequence"]) == (True, numbers[who] + turn)
    late = scene.say(CPUS, sequence=numbers[CPUS] + 3, gone=["pod-p"])
    assert late["taken"] is False
    assert scene.called_gone() == (set(), set()), "a late word counts for nothing"


def test_a_silent_cpu_process_is_replaced_by_kubelets_word() -> None:
    """As the agent is, each by its own silence; one that took its condition away is not missed."""
    scene = Both()
    scene.condition("True")
    scene.say(CPUS)
    scene.say(AGENT)
    for _ in range(4):
        scene.pass_by(SILENT_SECONDS / 3)
        scene.say(AGENT)
    word = scene.word()
    assert word.cpus is not None
    assert (word.agent_ready, word.cpus.has_agent, word.cpus.agent_ready) == (True, True, False)
    scene.condition(None)
    assert scene.word().cpus is None
    scene.say(CPUS)
    assert scene.word().cpus is not None


@pytest.mark.parametrize(
    "upset",
    [
        pytest.param(
            EpochStarted(epoch=9, holder="h", origin="o", tenure_version="1"), id="another epoch"
        ),
        pytest.param(NodeLost(node_uid="uid-a", node_name="a", reason="deleted"), id="a lost Node"),
    ],
)
def test_what_was_said_before_counts_no_more_after(upset: Any) -> None:  # noqa: ANN401
    """Another replica may have heard otherwise since."""
    scene = Both()
    scene.hold("p", cpus=parse_cpuset(OWN))
    scene.given(CPUS, on(OWN))
    scene.say(CPUS, gone=["pod-p"], crossing={"pod-x": "1"})
    scene.live.record(upset)
    word = scene.word()
    assert word.cpus is None or word.cpus.gone == frozenset()
    assert scene.agents.crossing("uid-a") is None
    if isinstance(upset, EpochStarted):
        assert scene.given(AGENT, DEVICES)[0] == "later", "the CPUs are confirmed anew"


def test_who_crosses_is_told_whole_each_time() -> None:
    """The last list counts; none is said where the node did not look."""
    scene = Both()
    assert scene.agents.crossing("uid-a") is None
    scene.say(CPUS, crossing={"pod-x": "1,3"})
    assert scene.agents.crossing("uid-a") == {"pod-x": parse_cpuset("1,3")}
    scene.say(CPUS)
    assert scene.agents.crossing("uid-a") == {"pod-x": parse_cpuset("1,3")}
    scene.say(CPUS, crossing={})
    assert scene.agents.crossing("uid-a") == {}
    assert scene.agents.crossing("uid-b") is None
    assert scene.told.count("gone a") == 2, "the node is looked at when that changes"


def test_a_released_pod_has_nothing_otherwise() -> None:
    """What its node said of it ends with it, and another attempt begins without a word."""
    scene = Both()
    event = scene.hold_cpus()
    state = scene.live.view.recorded("uid-a")
    assert state is not None
    [holding] = state.holdings.values()
    scene.given(CPUS, on("0-7"))
    assert scene.agents.otherwise("uid-a", holding)
    scene.say(CPUS, gone=["pod-p"])
    scene.live.release(event)
    assert scene.called_gone() == (set(), set())
    assert scene.agents.otherwise("uid-a", holding) == {}
