from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.log.events import LedgerEvent, PodBound, PodReserved
from ledger.domain.log.state import Folding, NodeState
from scheduler.service.ending import (
    COMPLETED,
    DELETED,
    MOVED,
    SILENT,
    Ends,
    NodeWord,
    PodLife,
    Wakes,
    ends,
    life_of,
    namespace_labels,
)
from tests.support.stores import bound, node, observed, released, reserved, share

AGENT = NodeWord(has_agent=True, agent_ready=True, kubelet_ready=True)
AGENT_DOWN = replace(AGENT, agent_ready=False)
BOTH_DOWN = replace(AGENT_DOWN, kubelet_ready=False)
GONE = replace(AGENT, gone=frozenset({"uid-p"}))
RUNNING = PodLife(uid="uid-p", namespace="team-a", name="p", node="n-1")
STATIC_UID = "0123456789abcdef0123456789abcdef"


def folded(*events: LedgerEvent) -> list[NodeState]:
    """Return the nodes that events come to."""
    fold = Folding()
    for position, event in enumerate((node(), *events), start=1):
        fold.add(position, event)
    return list(fold.state.nodes.values())


def compared(
    nodes: list[NodeState],
    *pods: PodLife,
    word: NodeWord = SILENT,
    under_way: frozenset[str] = frozenset(),
    last_seen: PodLife | None = None,
    has_devices: bool = True,
    gone_seconds: float = 0.0,
) -> Ends:
    """Compare Pods with holdings."""
    return ends(
        {pod.uid: pod for pod in pods},
        nodes,
        {"uid-n-1": word},
        is_under_way=under_way.__contains__,
        last_seen={} if last_seen is None else {last_seen.uid: last_seen},
        holds_devices=lambda _: has_devices,
        gone_seconds=lambda _: gone_seconds,
    )


HELD = (reserved("p", share(0)), bound("p"))


def reasons(found: Ends) -> list[str]:
    """Return why holdings are released."""
    return [event.reason for event in found.releases]


def status(phase: str, reason: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - a field
    """Return a bound Pod in this phase."""
    return {
        "metadata": {"uid": "uid-p", "name": "p", "namespace": "team-a"},
        "spec": {"nodeName": "n-1"},
        "status": {"phase": phase, "reason": reason, **more},
    }


LIVES: dict[str, tuple[dict[str, Any], str]] = {
    "completed": (status("Succeeded"), COMPLETED),
    "failed": (status("Failed"), "Failed"),
    "evicted": (status("Failed", "Evicted"), "Evicted"),
    "rejected by kubelet for CPUs": (status("Failed", "OutOfcpu"), "OutOfcpu"),
    "rejected by kubelet for memory": (status("Failed", "OutOfmemory"), "OutOfmemory"),
    "rejected for alignment": (
        status("Failed", "TopologyAffinityError"),
        "TopologyAffinityError",
    ),
    "rejected for SMT": (status("Failed", "SMTAlignmentError"), "SMTAlignmentError"),
    "rejected for another cause": (
        status("Failed", "UnexpectedAdmissionError"),
        "UnexpectedAdmissionError",
    ),
    "preempted, and ended": (status("Failed", "Preempting"), "Preempting"),
}


@pytest.mark.parametrize(("pod", "reason"), LIVES.values(), ids=LIVES)
def test_whoever_has_ended_in_any_phase_is_released(pod: dict[str, Any], reason: str) -> None:
    """Once, with the reason that kubelet or the phase gives."""
    found = compared(folded(*HELD), life_of(pod))

    assert reasons(found) == [reason]
    assert found.releases[0].attempt == 1
    assert compared(folded(*HELD, released("p")), life_of(pod)) == Ends()


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_who_has_not_ended_holds(phase: str) -> None:
    """A Pod that is being preempted or deleted runs until it is gone."""
    pod = status(phase)
    pod["metadata"]["deletionTimestamp"] = "2026-01-05T14:00:00Z"

    assert compared(folded(*HELD), life_of(pod)) == Ends()


def test_a_pod_that_is_gone_is_released() -> None:
    """Deleted, evicted by the API, or preempted and deleted: no object has its UID."""
    assert reasons(compared(folded(*HELD))) == [DELETED]


def test_a_pod_re_created_under_its_name_is_somebody_else() -> None:
    """Keyed by UID: the old one is released, the new one has nothing."""
    found = compared(folded(*HELD), replace(RUNNING, uid="uid-later", node=""))

    assert (reasons(found), found.adopts) == ([DELETED], ())


ENDED_LATER = replace(RUNNING, terminated=True)
ENDED = replace(RUNNING, ended=COMPLETED, terminated=True)
CPUS_SAY_SO = replace(GONE, cpus=GONE)
OF_CPUS: dict[str, tuple[NodeWord, PodLife | None, bool]] = {
    "both say so": (CPUS_SAY_SO, None, True),
    "the agent alone": (replace(GONE, cpus=AGENT), None, False),
    "the CPU process alone": (replace(AGENT, cpus=GONE), None, False),
    "the CPU process, on a node without an agent": (replace(SILENT, cpus=GONE), None, True),
    "nobody, on a node without an agent": (replace(SILENT, cpus=AGENT), ENDED_LATER, False),
    "the CPU process is silent, kubelet says terminated": (
        replace(GONE, cpus=AGENT_DOWN),
        ENDED_LATER,
        True,
    ),
    "and a container still runs": (replace(GONE, cpus=AGENT_DOWN), RUNNING, False),
    "and kubelet is away": (replace(GONE, cpus=BOTH_DOWN), ENDED_LATER, False),
    "there is no CPU process": (GONE, None, True),
}


@pytest.mark.parametrize(("word", "last_seen", "is_released"), OF_CPUS.values(), ids=OF_CPUS)
@pytest.mark.parametrize("phase", ["reserved", "bound"])
def test_the_end_of_a_pod_with_cpus_is_confirmed_by_both_processes_of_its_node(
    phase: str,
    word: NodeWord,
    last_seen: PodLife | None,
    is_released: bool,  # noqa: FBT001 - a case
) -> None:
    """Neither ends what the other has not called gone; one without CPUs waits for the agent."""
    opened = structs.replace(reserved("p", share(0)), cpuset=parse_cpuset("0-3"))
    nodes = folded(opened, bound("p")) if phase == "bound" else folded(opened)
    found = compared(nodes, word=word, last_seen=last_seen)
    assert bool(found.releases or found.settles) is is_released
    assert bool(found.waiting) is not is_released
    without = compared(folded(*HELD), word=word, last_seen=last_seen)
    agent = replace(word, cpus=None)
    assert without == compared(folded(*HELD), word=agent, last_seen=last_seen)


CONFIRMS: dict[str, tuple[NodeWord, PodLife | None, PodLife | None, bool]] = {
    "no agent ever reported": (SILENT, None, None, True),
    "the agent has not said so": (AGENT, ENDED, None, False),
    "the agent says that nothing is left": (GONE, ENDED, None, True),
    "and the Pod is gone": (GONE, None, None, True),
    "the agent is silent, kubelet says terminated": (AGENT_DOWN, ENDED, None, True),
    "and a container still runs": (AGENT_DOWN, replace(ENDED, terminated=False), None, False),
    "gone, and last seen terminated": (AGENT_DOWN, None, ENDED, True),
    "gone by force, and last seen running": (AGENT_DOWN, None, RUNNING, False),
    "gone, and nobody saw it": (AGENT_DOWN, None, None, False),
    "neither agent nor kubelet": (BOTH_DOWN, ENDED, None, False),
    "neither, but it was said before": (replace(GONE, agent_ready=False), ENDED, None, True),
}


@pytest.mark.parametrize(("word", "pod", "seen", "is_released"), CONFIRMS.values(), ids=CONFIRMS)
def test_a_release_needs_its_node(
    word: NodeWord, pod: PodLife | None, seen: PodLife | None, *, is_released: bool
) -> None:
    """What is not confirmed waits, and is seen to wait."""
    found = compared(folded(*HELD), *(() if pod is None else (pod,)), word=word, last_seen=seen)

    assert bool(found.releases) is is_released
    assert found.waiting == (() if is_released else ("uid-p/1",))


@pytest.mark.parametrize(
    ("word", "is_settled"), [(SILENT, True), (AGENT, False), (GONE, True), (AGENT_DOWN, False)]
)
def test_what_is_reserved_for_a_pod_that_is_gone_waits_for_the_node(
    word: NodeWord, *, is_settled: bool
) -> None:
    """It may have been bound before it was deleted, and its containers may run still."""
    found = compared(folded(*HELD[:1]), word=word)

    assert found.settles == (("uid-p",) if is_settled else ())
    assert found.waiting == (() if is_settled else ("uid-p/1",))


def test_a_running_container_is_not_terminated() -> None:
    """Of any kind; one without a state never ran."""
    state: list[dict[str, Any]] = [{"state": {"terminated": {}}}, {"state": {"running": {}}}]

    assert not life_of(status("Failed", containerStatuses=state)).terminated
    assert not life_of(status("Failed", initContainerStatuses=state)).terminated
    assert life_of(status("Failed", containerStatuses=state[:1])).terminated
    assert life_of(status("Failed")).terminated
    assert not life_of(status("Pending")).terminated  # kubelet has said nothing of it yet


def test_what_a_lost_node_holds_opens_with_its_machine_alone() -> None:
    """A Node that is gone releases nobody; the account stays held."""
    nodes = [
        replace(
            each,
            lost=True,
            holdings={
                key: structs.replace(held, phase="lost") for key, held in each.holdings.items()
            },
        )
        for each in folded(*HELD)
    ]

    assert compared(nodes) == Ends()


def test_a_reservation_that_nobody_knows_to_be_bound_is_settled() -> None:
    """Whether its Pod is there or not: only behind the fence is it void."""
    nodes = folded(reserved("p", share(0)))

    assert compared(nodes) == Ends(settles=("uid-p",))
    assert compared(nodes, replace(RUNNING, node="")) == Ends(settles=("uid-p",))


@pytest.mark.parametrize("events", [HELD, HELD[:1]], ids=["bound", "reserved"])
def test_what_is_under_way_is_left_to_who_is_at_it(
    events: tuple[PodReserved | PodBound, ...],
) -> None:
    """A Pod may end between its Binding and the word that it is bound."""
    assert compared(folded(*events), under_way=frozenset({"uid-p"})) == Ends()


def test_a_pod_bound_before_tenure_came_is_adopted() -> None:
    """It runs on a node of ours, has devices, and holds nothing by the ledger."""
    assert compared(folded(), RUNNING).adopts == ("uid-p",)
    assert compared(folded(), RUNNING, has_devices=False).adopts == ()
    assert compared(folded(), replace(RUNNING, ended=COMPLETED)).adopts == ()
    assert compared(folded(), replace(RUNNING, node="")).adopts == ()
    assert compared(folded(), replace(RUNNING, node="n-of-others")).adopts == ()
    assert compared(folded(), RUNNING, under_way=frozenset({"uid-p"})).adopts == ()
    assert compared(folded(*HELD), RUNNING).adopts == ()


def test_an_observed_holder_is_released_when_it_ends() -> None:
    """Whoever gave it its cards."""
    nodes = folded(observed("p", share(0)))

    assert compared(nodes, RUNNING) == Ends()
    assert reasons(compared(nodes)) == [DELETED]


def test_an_observed_holder_that_took_another_node_before_it_was_bound_is_released() -> None:
    """HAMi gives cards before it binds; what is granted by us is fenced instead."""
    elsewhere = replace(RUNNING, node="n-2")

    assert reasons(compared(folded(observed("p", share(0))), elsewhere)) == [MOVED]
    assert compared(folded(*HELD), elsewhere) == Ends()


def test_a_static_pod_is_known_by_the_uid_of_its_file() -> None:
    """Kubelet's checkpoints have 32 hex digits, the mirror in the API a UID of its own."""
    mirror = status("Running")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": STATIC_UID}
    life = life_of(mirror)
    nodes = folded(observed("p", share(0), pod_uid=STATIC_UID))

    assert life.static_uid == STATIC_UID
    assert compared(nodes, life) == Ends()
    assert reasons(compared(nodes, replace(life, ended=COMPLETED))) == [COMPLETED]
    assert reasons(compared(nodes)) == [DELETED]


def test_a_static_pod_outlives_its_mirror_for_a_while() -> None:
    """Kubelet makes another one of a Pod that runs on, and whose card nobody else may have."""
    nodes = folded(observed("p", share(0)))
    mirror = replace(RUNNING, static_uid=STATIC_UID)

    assert compared(nodes, last_seen=mirror, gone_seconds=119).waiting == ("uid-p/1",)
    assert reasons(compared(nodes, last_seen=mirror, gone_seconds=120)) == [DELETED]
    assert reasons(compared(nodes, last_seen=RUNNING)) == [DELETED]


def test_a_node_is_told_of_releases_once_a_second() -> None:
    """What is released meanwhile is told with the next one; what failed is told again."""
    now = 0.0
    wakes = Wakes(lambda: now)
    wakes.released("a")
    wakes.released("a")
    assert wakes.take() == ["a"]
    now = 0.5
    wakes.released("a")
    wakes.released("b")
    assert wakes.take() == ["b"]
    now = 1.0
    assert wakes.take() == ["a"]
    now = 2.0
    assert wakes.take() == []
    wakes.released("a")
    assert wakes.take() == ["a"]


def test_a_namespace_has_the_label_while_somebody_there_holds() -> None:
    """Only what differs is changed."""
    holding = {"team-a", "one-that-is-gone"}

    assert namespace_labels({"team-a": False, "team-b": True, "team-c": False}, holding) == {
        "team-a": True,
        "team-b": False,
    }
    assert namespace_labels({"team-a": True}, holding) == {}
