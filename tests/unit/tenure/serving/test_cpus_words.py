"""The CPU process confirms what its rounds find, and binds nobody whom it called gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.cpus.applying import Applied
from agent.cpus.binder import CALLED_GONE, NOT_BOUND, TOO_MANY, Round
from agent.decide.cgroups import (
    CgroupNow,
    CgroupTree,
    CgroupVersion,
    ContainerPlanned,
    Plan,
    PodPlanned,
    Problem,
)
from agent.decide.confirming import AGAIN_SECONDS, Said
from agent.decide.confirming_cpus import COMING_SECONDS
from agent.decide.container_cpus import KubeQos
from agent.decide.node_holdings import NodeHoldings, all_holdings
from agent.decide.pools import NodeCpus, PodCpus
from agent.decide.wanted_cpus import NodePlanned
from agent.https import NoAnswerError
from agent.service.wire import Verdict, Verdicts, confirmation
from agent.witness.confirmer import GONE_FILE
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.proof import EVERY, ProvenContainer
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.resources import CONDITION_TENURE_CPUS
from ledger.domain.topology import Cpu, cpu_topology_of
from tenure.serving import cpus_words
from tenure.serving.agent_words import Told
from tenure.serving.cpus_words import CpuWords
from tests.support.proofs import ORIGIN, held_by_pod

OWN = parse_cpuset("0-3")
OURS = "ours"
TREE = CgroupTree(version=CgroupVersion.V2)
NODE = NodePlanned(
    cpus=NodeCpus(
        topology=cpu_topology_of([Cpu(id=n, core=n, socket=0, numa=0) for n in range(8)])
    ),
    held={},
    pods=(),
)


class Played:
    """Kubelet, and the link to a service that numbers messages."""

    def __init__(self) -> None:
        held = (ProvenContainer(index=EVERY, cpus=OWN),)
        one = held_by_pod(
            pod_uid="p", namespace="ml", pod_name="p", containers=held, phase="assigned"
        )
        self.holdings: NodeHoldings = all_holdings(ORIGIN, 1, [one])
        self.is_heard = True
        self.sequence = 7
        self.taken = True
        self.holds = "noted"
        self.away = False
        self.said: list[dict[str, Any]] = []
        self.uids = ["p", OURS]
        self.problem = ""

    def places(self) -> dict[str, Mapping[str, str]]:
        """Return the one container of each Pod."""
        return {uid: {"main": "0"} for uid in self.uids}

    async def confirm(self, said: Said, *, after: int) -> Verdicts:
        """Take a message, or not."""
        if self.away:
            raise NoAnswerError("away")
        self.said.append(json.loads(confirmation(said, after + 1)))
        self.sequence += 1
        here = tuple(Verdict(pod_uid=uid, result=self.holds) for uid in said.here)
        return Verdicts(taken=self.taken, here=here)


class Scene:
    """The words of a CPU process, with rounds by hand."""

    def __init__(self, folder: Path) -> None:
        self.played, self.folder = Played(), folder
        self.begin()

    def begin(self) -> None:
        """Begin, or begin anew."""
        told = type("T", (), {"link": self.played, "pods": self.played, "own_pod": ("o", OURS)})
        self.words = CpuWords(cast("Told", told), self.folder)

    def round(self, effective: str | None, *problems: Problem) -> dict[str, Any] | None:
        """Let a round find a container on CPUs, or none, and confirm it; return what was said."""
        cpus = parse_cpuset(effective or "")
        cgroup = CgroupNow(
            path="podp/c", pod_uid="p", container="c", cpus=cpus, effective=cpus, populated=True
        )
        pod = PodPlanned(
            uid="p",
            qos=QosClass.LSR,
            kube_qos=KubeQos.GUARANTEED,
            status=ResourceStatus(),
            containers=(ContainerPlanned(name="main", id="c"),),
        )
        held = {"p": PodCpus(cpus=OWN)}
        made = Round(
            tree=replace(TREE, cgroups=(cgroup,) if effective else ()),
            node=replace(NODE, held=held, pods=(pod,)),
            plan=Plan(),
            applied=Applied(),
            problems=problems,
        )
        before = len(self.played.said)
        self.words.take(made)
        asyncio.run(self.words.say())
        return self.played.said[-1] if len(self.played.said) > before else None


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A process that has made its first round."""
    scene = Scene(tmp_path)
    assert scene.round("0-3") is None, "what was taken before it is not known"
    return scene


def test_what_a_round_finds_is_confirmed_with_the_number_after_the_last(scene: Scene) -> None:
    """Each round follows the one before; what is known is not said again at once."""
    said = scene.round("0-3")
    assert said is not None
    assert said["sequence"] == 8
    assert said["assigned"][0]["containers"] == [{"index": "0", "cpus": "0-3", "written": ""}]
    assert said["crossing"] == {}
    again = scene.round("0-7")
    assert again is not None
    assert (again["sequence"], again["assigned"][0]["containers"][0]["cpus"]) == (9, "0-7")
    asyncio.run(scene.words.say())
    assert len(scene.played.said) == 2, "a look is said once"


def test_who_was_called_gone_is_on_disk_and_bound_once_that_is_taken_back(scene: Scene) -> None:
    """Also by the process that comes after us."""
    scene.played.uids = [OURS]
    said = scene.round(None)
    assert said is not None
    assert said["gone"] == ["p"]
    assert "p" in scene.words.gone()
    scene.begin()
    assert "p" in scene.words.gone()
    scene.played.uids = ["p", OURS]
    assert scene.round(None) is None
    said = scene.round(None)
    assert said is not None
    assert said["here"] == ["p"]
    assert "p" not in scene.words.gone()
    assert scene.words.soon.is_set(), "it is bound at once, in a round of its own"
    assert not scene.words.problems()


def test_who_is_here_and_holds_nothing_by_the_answer_is_not_bound_by_an_older_word(
    scene: Scene,
) -> None:
    """Its CPUs may be another's by now; once the holdings say so too it is forgotten."""
    scene.played.uids = [OURS]
    scene.round(None)
    scene.played.uids, scene.played.holds = ["p", OURS], "nothing"
    scene.round(None)
    assert scene.round(None) is not None
    assert "p" in scene.words.gone()
    scene.played.holdings = all_holdings(ORIGIN, 2, ())
    assert scene.round(None) is not None
    assert "p" not in scene.words.gone()


def test_where_it_is_forgotten_who_was_called_gone_a_pod_without_cpus_is_none(
    scene: Scene, tmp_path: Path
) -> None:
    """The service notes nothing of it to the CPU process, so it would be asked for ever."""
    devices = (ProvenContainer(index="0", cpus=parse_cpuset("")),)
    other = held_by_pod(
        pod_uid="d", namespace="ml", pod_name="d", containers=devices, phase="assigned"
    )
    there = (*scene.played.holdings.held.values(), other)
    scene.played.holdings = all_holdings(ORIGIN, 1, there)
    (tmp_path / GONE_FILE).write_bytes(b"no JSON")
    scene.begin()
    assert scene.words.gone() == {"p"}


def test_a_pod_without_its_cpus_as_it_was_called_gone_is_a_problem(scene: Scene) -> None:
    """The Node does not say Bound meanwhile; of one that is gone there is nothing to say."""
    scene.played.uids = [OURS]
    scene.round(None)
    assert not scene.words.problems()
    scene.played.uids, scene.played.away = ["p", OURS], True
    [problem] = scene.words.problems()
    assert (problem.about, problem.reason) == ("p", CALLED_GONE)
    empty = Round(tree=TREE, node=NODE, plan=Plan(), applied=Applied(), problems=(problem,))
    assert empty.condition(str).reason == NOT_BOUND


def test_what_nobody_heard_is_said_again(scene: Scene) -> None:
    """Where the service is away, or another process of the node has spoken."""
    scene.played.away = True
    with pytest.raises(NoAnswerError):
        scene.round("0-3")
    scene.played.away, scene.played.taken = False, False
    assert scene.round("0-3") is not None
    assert scene.words.soon.is_set(), "at once"
    scene.played.taken = True
    said = scene.round("0-3")
    assert said is not None
    assert said["assigned"]


@pytest.mark.parametrize("fault", ["kubelet", "own", "cut"])
def test_nobody_is_gone_where_not_all_was_told(scene: Scene, fault: str) -> None:
    """Kubelet is away or has not read its Pods, or there are more cgroups than are looked at."""
    scene.played.uids = [] if fault == "own" else [OURS]
    scene.played.problem = "away" if fault == "kubelet" else ""
    cut = (Problem(about="kubepods", reason=TOO_MANY, words=""),) if fault == "cut" else ()
    said = scene.round(None, *cut)
    assert said is None or said["gone"] == []


def test_cgroups_that_a_container_made_keep_nobody_here(scene: Scene) -> None:
    """However many: the container's own cgroup tells whether tasks are left below."""
    held = (ProvenContainer(index=EVERY, cpus=parse_cpuset("6")),)
    other = held_by_pod(
        pod_uid="q", namespace="ml", pod_name="q", containers=held, phase="assigned"
    )
    scene.played.holdings = all_holdings(ORIGIN, 1, [*scene.played.holdings.pods(), other])
    said = scene.round("0-3", Problem(about="podp/c", reason=TOO_MANY, words=""))
    assert said is not None
    assert said["gone"] == ["q"]


def test_it_is_heard_once_a_minute_whatever_there_is_to_say(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent process is away: so it says nothing, where it could not look at all."""
    now = [0.0]
    monkeypatch.setattr(cpus_words, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cut = Problem(about="kubepods", reason=TOO_MANY, words="")
    scene.played.uids = [OURS]
    for at, expected in ((0.0, True), (AGAIN_SECONDS - 1, False), (AGAIN_SECONDS, True)):
        now[0] = at
        said = scene.round(None, cut)
        assert (said is not None) is expected
        assert said is None or not any(said.get(one) for one in ("assigned", "gone", "crossing"))
        assert said is None or "crossing" not in said, "nobody was looked for"


def test_since_when_kubelet_lacks_a_pod_is_remembered_also_where_nothing_was_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called gone after its time, not later."""
    now = [0.0]
    monkeypatch.setattr(cpus_words, "time", SimpleNamespace(monotonic=lambda: now[0]))
    scene.round("0-3")
    [one] = scene.played.holdings.pods()
    coming = replace(one, pod_uid="q", phase="bound")
    scene.played.holdings = all_holdings(ORIGIN, 2, [one, coming])
    now[0] = 1.0
    assert scene.round("0-3") is None
    now[0] += COMING_SECONDS
    said = scene.round("0-3")
    assert said is not None
    assert said["gone"] == ["q"]


def test_the_condition_has_one_name() -> None:
    """By it the service knows over its restarts that a node has such a process."""
    assert CONDITION_TENURE_CPUS == "TenureCPUs"
