"""What a node's CPU process says of cgroups: docs/contracts/agents.md, "CPUs"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from agent.decide.cgroups import (
    CgroupNow,
    CgroupTree,
    CgroupVersion,
    ContainerPlanned,
    PodPlanned,
)
from agent.decide.confirming import (
    AGAIN_SECONDS,
    PODS_MAX,
    Confirming,
    Said,
    answered,
    unanswered,
)
from agent.decide.confirming_cpus import COMING_SECONDS, CpusHere, said_of_cpus
from agent.decide.container_cpus import KubeQos
from agent.decide.node_holdings import LOST, HeldByPod, NodeHoldings, all_holdings
from agent.decide.pools import PodCpus
from agent.service.wire import confirmation
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.proof import EVERY, ProvenContainer
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from scheduler.service.api.agents import read_confirmation
from tests.support.proofs import ORIGIN, held_by_pod, holds

OWN: Final = parse_cpuset("0-3")
ONLINE: Final = parse_cpuset("0-7")


def held(uid: str = "p", cpus: CpuSet = OWN, **more: Any) -> HeldByPod:  # noqa: ANN401
    """Return a holding with CPUs and a card."""
    containers = (ProvenContainer(index=EVERY, cpus=cpus), holds("0", "GPU-0"))
    words = {"namespace": "ml", "pod_name": uid, "containers": containers, **more}
    return held_by_pod(pod_uid=uid, **words)


def known(*of: HeldByPod) -> NodeHoldings:
    """Return the service's word."""
    return all_holdings(ORIGIN, 1, of)


def planned(uid: str = "p", qos: QosClass = QosClass.LSR, **more: Any) -> PodPlanned:  # noqa: ANN401
    """Return a Pod with an app container and an init container."""
    return PodPlanned(
        uid=uid,
        qos=qos,
        kube_qos=more.pop("kube_qos", KubeQos.GUARANTEED),
        status=ResourceStatus(),
        containers=(
            ContainerPlanned(name="main", id=more.pop("id", f"{uid}-main")),
            ContainerPlanned(name="first", id=f"{uid}-first"),
        ),
    )


PLACES: Final = {"main": "0", "first": "init-0"}


def cgroup(
    name: str = "p-main",
    effective: str = "0-3",
    cpus: str | None = None,
    *,
    populated: bool = True,
    below: str = "",
) -> CgroupNow:
    """Return a container's cgroup, or one that it made below."""
    uid, _, _ = name.partition("-")
    return CgroupNow(
        path=f"pod{uid}/{name}{below}",
        pod_uid=uid,
        container=name,
        cpus=parse_cpuset(effective if cpus is None else cpus),
        effective=parse_cpuset(effective),
        populated=populated,
    )


def here(*cgroups: CgroupNow, pods: tuple[PodPlanned, ...] = (), **more: Any) -> CpusHere:  # noqa: ANN401
    """Return the node's CPUs: of the Pods that have cgroups, and those named."""
    there = pods or tuple(planned(uid) for uid in dict.fromkeys(one.pod_uid for one in cgroups))
    words: dict[str, Any] = {"places": {one.uid: PLACES for one in there}, "online": ONLINE, **more}
    tree = CgroupTree(version=CgroupVersion.V2, cgroups=cgroups)
    return CpusHere(tree=tree, planned=there, **words)


def say(
    now: CpusHere,
    *of: HeldByPod,
    state: Confirming | None = None,
    owners: dict[str, PodCpus] | None = None,
    at: float = 0.0,
) -> Said:
    """Return what is said, of one holding if no other is named."""
    return said_of_cpus(
        state or Confirming(), known(*(of or (held(),))), now, owners or {}, now=at
    )[1]


def told(message: Said) -> list[tuple[str, str, str]]:
    """Return each container that is confirmed: its place, its CPUs and what is written."""
    return [
        (one["index"], one["cpus"], one["written"])
        for pod in _body(message)["assigned"]
        for one in pod["containers"]
    ]


def _body(message: Said) -> dict[str, Any]:
    import json

    text = confirmation(message)
    read_confirmation(text)  # the service takes it
    body: dict[str, Any] = json.loads(text)
    return body


LOOKS: dict[str, tuple[CpusHere, list[tuple[str, str, str]]]] = {
    "as reserved": (here(cgroup()), [("0", "0-3", "")]),
    "an init container as well": (
        here(cgroup("p-first"), cgroup()),
        [("0", "0-3", ""), ("init-0", "0-3", "")],
    ),
    "an init container alone: the others may come": (here(cgroup("p-first")), []),
    "an init container alone, on others": (
        here(cgroup("p-first", "0-7")),
        [("init-0", "0-7", "0-7")],
    ),
    "no container yet": (here(pods=(planned(),)), []),
    "others, and so it is written": (here(cgroup(effective="0-7")), [("0", "0-7", "0-7")]),
    "nothing written, so that the parent's count": (
        here(cgroup(effective="0-7", cpus="")),
        [("0", "0-7", "")],
    ),
    "fewer than are written: the cgroup above has fewer": (
        here(cgroup(effective="0-2", cpus="0-3")),
        [("0", "0-2", "0-3")],
    ),
    "an offline CPU on v2": (
        here(cgroup(effective="0-2", cpus="0-3"), online=parse_cpuset("0-2,4-7")),
        [("0", "0-2", "0-3")],
    ),
    "an offline CPU on v1, which takes it out of what was written": (
        here(cgroup(effective="0-2", cpus="0-2"), online=parse_cpuset("0-2,4-7")),
        [("0", "0-2", "0-3")],
    ),
    "fewer are written, and all are online": (here(cgroup(effective="0-2")), [("0", "0-2", "0-2")]),
    "only what differs is told": (
        here(cgroup("p-first", "4"), cgroup()),
        [("init-0", "4", "4")],
    ),
    "a container that ended leaves an empty cgroup": (
        here(cgroup("p-old", "0-7", populated=False), cgroup()),
        [("0", "0-3", "")],
    ),
    "one that was made anew, before kubelet tells its id": (
        here(cgroup("p-new", "0-7"), cgroup(populated=False)),
        [("", "0-7", "0-7")],
    ),
    "its sandbox alone: no container has started": (here(cgroup("p-pause")), []),
    "its sandbox, on others": (
        here(cgroup("p-pause", "0-7"), cgroup()),
        [("", "0-7", "0-7")],
    ),
    "tasks in a cgroup of its own making": (
        here(cgroup(populated=False), cgroup(effective="1", below="/own")),
        [("0", "0-3", "")],
    ),
}


@pytest.mark.parametrize(("now", "expected"), LOOKS.values(), ids=LOOKS)
def test_it_tells_what_the_kernel_gives(
    now: CpusHere, expected: list[tuple[str, str, str]]
) -> None:
    """Of containers that have tasks, by their places."""
    assert told(say(now)) == expected


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(held(kind="observed", phase="observed"), id="what others gave"),
        pytest.param(held(phase=LOST), id="what it held through a Node that is lost"),
        pytest.param(held(cpus=EMPTY), id="a Pod with devices alone"),
    ],
)
def test_only_cpus_that_we_gave_are_confirmed(one: HeldByPod) -> None:
    """Of the others the ledger promises nothing."""
    assert told(say(here(cgroup(effective="0-7")), one)) == []


def test_what_is_right_is_said_again_after_a_while_and_what_differs_at_once() -> None:
    """The service may have forgotten; a difference is news each time."""
    state, first = said_of_cpus(
        Confirming(), known(held(phase="assigned")), here(cgroup()), {}, now=0.0
    )
    assert told(first)
    held_now = held(phase="assigned")
    assert told(say(here(cgroup()), held_now, state=state, at=1.0)) == []
    assert told(say(here(cgroup()), held_now, state=state, at=AGAIN_SECONDS))
    assert told(say(here(cgroup(effective="4")), held_now, state=state, at=1.0))
    assert told(say(here(cgroup()), state=state, at=1.0)), "the ledger does not have it yet"


def test_who_has_no_cgroup_and_is_not_kubelets_is_gone() -> None:
    """Not who is to run, nor whose cgroup has a task, nor whoever nobody could look for."""
    nothing, ran = here(pods=(planned("other"),)), held(phase="assigned")
    assert say(nothing, ran).gone == ("p",)
    assert say(nothing, held(cpus=EMPTY)).gone == (), "it speaks of CPUs alone"
    assert say(here(pods=(planned(),))).gone == ()
    assert say(here(cgroup("p-pause"), places={})).gone == ()
    assert say(here(cgroup(populated=False), places={}), ran).gone == ("p",)
    assert say(replace(nothing, complete=False), ran).gone == ()
    assert say(replace(nothing, places=None), ran).gone == ()
    assert say(nothing, held(kind="observed", phase="observed")).gone == ("p",)


@pytest.mark.parametrize("phase", ["reserved", "bound"])
def test_who_may_come_yet_is_called_gone_after_a_while(phase: str) -> None:
    """It would start without its CPUs; one that kubelet never hears of is not waited for."""
    of, nothing = known(held(phase=phase)), here(pods=(planned("other"),))
    state, message = said_of_cpus(Confirming(), of, nothing, {}, now=1.0)
    assert message.gone == ()
    state, message = said_of_cpus(state, of, nothing, {}, now=COMING_SECONDS)
    assert message.gone == ()
    state, message = said_of_cpus(state, of, nothing, {}, now=1.0 + COMING_SECONDS)
    assert message.gone == ("p",)
    _, message = said_of_cpus(replace(state, since={}), of, nothing, {}, now=99.0)
    assert (message.gone, message.here) == (("p",), ()), "also by the process that comes after us"


def test_who_kubelet_had_is_called_gone_at_once() -> None:
    """Kubelet forgets a Pod after its end, and runs it no more."""
    of = known(held())
    state, _ = said_of_cpus(Confirming(), of, here(pods=(planned(),)), {}, now=0.0)
    assert said_of_cpus(state, of, here(pods=(planned("q"),)), {}, now=1.0)[1].gone == ("p",)


def test_who_was_called_gone_gets_no_cpus_before_that_is_taken_back() -> None:
    """The service may have given them to another by then."""
    of = known(held(phase="assigned"))
    state, message = said_of_cpus(Confirming(), of, here(pods=(planned("q"),)), {}, now=0.0)
    assert not state.may_start("p")
    state = answered(state, message, {"p"})
    state, message = said_of_cpus(state, of, here(cgroup()), {}, now=1.0)
    assert message.here == ("p",)
    assert not state.may_start("p")
    assert answered(state, message, {"p"}).may_start("p")


LSR, LSE = PodCpus(cpus=OWN), PodCpus(cpus=OWN, qos=QosClass.LSE)
BY_KUBELET: Final = PodCpus(cpus=OWN, by_kubelet=True)
BE: Final = planned("q", QosClass.BE)
BEST_EFFORT: Final = planned("q", QosClass.NONE, kube_qos=KubeQos.BEST_EFFORT)
CROSSINGS: dict[str, tuple[PodPlanned, dict[str, PodCpus], str]] = {
    "a Pod of the shared pool": (planned("q", QosClass.LS), {"p": LSR}, "2-3"),
    "BE on an LSR Pod's": (BE, {"p": LSR}, ""),
    "BestEffort without a label on an LSR Pod's": (BEST_EFFORT, {"p": LSR}, ""),
    "BE on an LSE Pod's": (BE, {"p": LSE}, "2-3"),
    "BE on what kubelet gave": (BE, {"p": BY_KUBELET}, "2-3"),
    "BE on an LSR Pod's and an LSE Pod's": (
        BE,
        {"p": LSR, "x": PodCpus(cpus=parse_cpuset("4"), qos=QosClass.LSE)},
        "4",
    ),
    "on its own": (planned("q"), {"q": PodCpus(cpus=parse_cpuset("2-5"))}, ""),
    "on its own, which another has too": (
        planned("q"),
        {"p": LSR, "q": PodCpus(cpus=parse_cpuset("2-5"))},
        "",
    ),
    "on CPUs that are nobody's": (planned("q"), {}, ""),
    "on a claim's": (planned("q", QosClass.LS), {"claim": LSE}, "2-3"),
}


@pytest.mark.parametrize(("pod", "owners", "crossed"), CROSSINGS.values(), ids=CROSSINGS)
def test_who_runs_on_cpus_that_others_have_alone_is_told(
    pod: PodPlanned, owners: dict[str, PodCpus], crossed: str
) -> None:
    """With the CPUs that are somebody else's, and no others."""
    message = say(here(cgroup("q-main", "2-5"), pods=(pod,)), owners=owners)
    assert message.crossing == ({"q": parse_cpuset(crossed)} if crossed else {})


def test_who_runs_on_the_cpus_of_its_own_claim_crosses_nobody_and_others_there_do() -> None:
    """A claim is among the owners, as an LSE Pod is."""
    user = replace(planned("q", QosClass.LS), stays=True, claimed=parse_cpuset("2-3"))
    owners = {"c": PodCpus(cpus=parse_cpuset("2-3"), qos=QosClass.LSE)}
    cgroups = (cgroup("q-main", "2-3"), cgroup("r-main", "3-4"))
    message = say(here(*cgroups, pods=(user, planned("r", QosClass.BE))), owners=owners)
    assert message.crossing == {"r": parse_cpuset("3")}


def test_a_sandbox_and_what_kubelet_does_not_list_cross_as_well() -> None:
    """Tasks are tasks; whose CPUs they may have is not known, so none."""
    message = say(
        here(cgroup("q-pause", "0"), cgroup("z-new", "1"), pods=(planned("q", QosClass.LS),)),
        owners={"p": LSR},
    )
    assert message.crossing == {"q": parse_cpuset("0"), "z": parse_cpuset("1")}


def test_who_crosses_is_told_when_it_changes_and_once_in_a_while() -> None:
    """So is nobody; nothing is said where not every cgroup was read."""
    quiet, crossed = here(pods=(planned(),)), here(cgroup("q-main", "2"))
    of, owners = known(held()), {"p": LSR}
    state, message = said_of_cpus(Confirming(), of, quiet, owners, now=0.0)
    assert message.crossing == {}
    assert _body(message)["crossing"] == {}
    assert say(quiet, state=state, owners=owners, at=1.0).crossing is None
    assert say(quiet, state=state, owners=owners, at=AGAIN_SECONDS).crossing == {}
    state, message = said_of_cpus(state, of, crossed, owners, now=2.0)
    assert _body(message)["crossing"] == {"q": "2"}
    lost = unanswered(state, message)
    assert say(crossed, state=state, owners=owners, at=3.0).crossing is None
    assert say(crossed, state=lost, owners=owners, at=3.0).crossing, "nobody heard it"
    assert say(replace(crossed, complete=False), owners=owners).crossing is None
    assert say(crossed, owners=owners).runs is None, "that is the agent's"


def test_a_message_has_no_more_pods_than_the_service_takes() -> None:
    """Who crosses counts too, and is told whole as far as it can be; the rest comes next."""
    of = known(*(held(f"h{number}", parse_cpuset("9")) for number in range(400)))
    owners = {"p": LSR}
    holders = [cgroup(f"h{number}-main", "8") for number in range(400)]
    for count in (300, 600):
        crossing = [cgroup(f"q{number}-main", "2") for number in range(count)]
        now = here(*holders, *crossing)
        state, message = said_of_cpus(Confirming(), of, now, owners, now=0.0)
        body = _body(message)
        assert len(body["crossing"]) == min(count, PODS_MAX)
        assert len(body["assigned"]) == max(0, PODS_MAX - count)
        assert len(said_of_cpus(state, of, now, owners, now=1.0)[1].assigned) == 400
