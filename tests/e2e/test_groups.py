"""Groups and gangs with the real kube-scheduler: planned whole, recorded once, bound as planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import GroupPlanned, LedgerEvent, PodReserved, RequestRefused
from ledger.store.open import open_ledger
from tests.support.kube.bursts import eventually, remove_pods, settled
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    ask,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure

GROUP = "gputopology.scheduling.koordinator.sh"
GANG = "gang.scheduling.koordinator.sh"
SEEN = "topology.scheduling.koordinator.sh/gpu"
NODES = ("g-0", "g-1", "g-2")


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[None]:
    """Three nodes of four cards."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in NODES:
        add_gpu_node(plane, name, gpus=4)
    yield
    for name in NODES:
        remove_node(plane, name)


def member(name: str, gpus: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - a Pod's fields
    """Return a Pod of whole cards."""
    return pod(name, {"nvidia.com/gpu": str(gpus)}, schedulerName="tenure", **more)


def wait_event(plane: ControlPlane, where: str, name: str) -> str:
    """Return what the newest Event about its wait says of a Pod, empty without one."""
    events = plane.api().get(where.replace("/pods", "/events")).body["items"]
    about = [
        (int(one["metadata"]["resourceVersion"]), str(one["message"]))
        for one in events
        if (one["involvedObject"]["name"], one["reason"]) == (name, "DevicesRefused")
    ]
    return max(about)[1] if about else ""


def waits_by(url: str, reason: str) -> list[RequestRefused]:
    """Return the refusals with a reason."""
    refusals = [one for one in recorded(url) if isinstance(one, RequestRefused)]
    return [one for one in refusals if any(each.reason == reason for each in one.reasons)]


def is_refused_for_gate(url: str, name: str, gate: str) -> bool:
    """Tell whether a Pod was refused for a gate, and for nothing else."""
    refusals = [one for one in recorded(url) if isinstance(one, RequestRefused)]
    words = [one.message for one in refusals if one.pod_name == name]
    return len(words) == 1 and words[0].endswith(f"until the gate is lifted: {gate}")


def recorded(url: str) -> list[LedgerEvent]:
    """Return all events."""
    with open_ledger(url, mode="read") as ledger:
        return [one.event for one in ledger.read_events()]


@pytest.mark.usefixtures("nodes")
def test_a_topology_group_gets_one_node_and_its_members_see_all_its_cards(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """
    Two Pods of two cards: one plan, in the ledger before who it is for.

    In Score the planned node gets all points, and every other none.
    """
    where = pods_in(namespace(managed=False))
    labels = {f"{GROUP}/name": "job", f"{GROUP}/replica": "2"}
    with extender(plane, ledger, identities, forked=True) as served:
        made = [
            plane.api().create(where, member(name, 2, labels=labels)) for name in ("job-0", "job-1")
        ]
        assert all(one.ok for one in made), [one.message for one in made]
        args = {"Pod": made[0].body, "NodeNames": list(NODES)}
        passing = eventually(lambda: ask(served, identities, "filter", args)["NodeNames"])
        scores = ask(served, identities, "prioritize", args)
        with plane.scheduler(asking(plane, served, identities)):
            bound = settled(plane, where, 2)
        assert len(bound) == 2, served.words()
    assert {one["spec"]["nodeName"] for one in bound} == set(passing)
    assert {one["Host"]: one["Score"] for one in scores} == dict.fromkeys(passing, 1000)
    seen = [json.loads(one["metadata"]["annotations"][SEEN]) for one in bound]
    assert [each["visibleGPUs"] for each in seen] == [["0", "1", "2", "3"]] * 2
    assert sorted(seen[0]["allocatedGPUs"]["0"] + seen[1]["allocatedGPUs"]["0"]) == [*"0123"]
    events = recorded(ledger)
    kinds = [type(one) for one in events if isinstance(one, GroupPlanned | PodReserved)]
    assert kinds == [GroupPlanned, PodReserved, PodReserved]
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", ledger, cwd=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    remove_pods(plane, where, ["job-0", "job-1"])


@pytest.mark.usefixtures("nodes")
def test_a_gang_waits_behind_its_gate_and_is_reserved_in_one_transaction(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """With three of four it stays gated; the fourth lets all go, on nodes that have the room."""
    where = pods_in(namespace(managed=False))
    annotations = {f"{GANG}/name": "gang", f"{GANG}/min-available": "4"}
    gates = [{"name": "tenure.sh/gang"}]
    names = [f"gang-{number}" for number in range(4)]

    def create(name: str) -> None:
        one = member(name, 3, annotations=annotations, schedulingGates=gates)
        made = plane.api().create(where, one)
        assert made.ok, made.message

    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name in names[:3]:
            create(name)
        eventually(lambda: wait_event(plane, where, names[2]))
        why = tenure("why", f"{where.split('/')[-2]}/{names[0]}", "--ledger", ledger, cwd=tmp_path)
        assert "3 GangMembersMissing" in why.stdout, why.stdout + why.stderr
        create(names[3])
        eventually(lambda: wait_event(plane, where, names[3]))
        # As Events of one Pod and reason are at least 30 s apart, the fourth Pod has the new one.
        assert wait_event(plane, where, names[3]) == (
            "0/3 nodes are available: 3 GangUnfit. Of the 4 pods that start together 3 fit."
        )
        eventually(lambda: len(waits_by(ledger, "GangUnfit")) == 4)
        waiting = tenure("pods", "--waiting", "-o", "json", "--ledger", ledger, cwd=tmp_path)
        assert {each["pod"].split("/")[1] for each in json.loads(waiting.stdout)} == set(names)
        api = plane.api()
        # Three nodes of four cards take three members of three: the gang does not fit.
        assert not [one for one in api.get(where).body["items"] if one["spec"].get("nodeName")]
        add_gpu_node(plane, "g-3", gpus=4)
        bound = settled(plane, where, 4)
        assert len(bound) == 4, served.words()
    remove_node(plane, "g-3")
    assert len({one["spec"]["nodeName"] for one in bound}) == 4
    events = recorded(ledger)
    at = [number for number, one in enumerate(events) if isinstance(one, PodReserved)]
    assert at == list(range(at[0], at[0] + 4)), "one transaction"
    assert isinstance(events[at[0] - 1], GroupPlanned)
    assert len(waits_by(ledger, "GangUnfit")) == 4, "once for each, however often it was planned"
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", ledger, cwd=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    remove_pods(plane, where, names)


@pytest.mark.usefixtures("nodes")
def test_a_member_whose_planned_node_kube_scheduler_does_not_offer_is_told_so(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """Its affinity to a Pod that is not there is a filter of kube-scheduler's own."""
    where = pods_in(namespace(managed=False))
    labels = {f"{GROUP}/name": "job", f"{GROUP}/replica": "2"}
    term = {"labelSelector": {"matchLabels": {"app": "none"}}, "topologyKey": "kubernetes.io/os"}
    beside = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name, more in (("job-0", {}), ("job-1", {"affinity": beside})):
            made = plane.api().create(where, member(name, 2, labels=labels, **more))
            assert made.ok, made.message
        [bound] = settled(plane, where, 1)
        node = bound["spec"]["nodeName"]
        [refused] = eventually(lambda: waits_by(ledger, "NodeNotOffered"))
        assert eventually(lambda: wait_event(plane, where, "job-1"))
    assert refused.pod_name == "job-1"
    [reason] = refused.reasons
    assert reason.detail == f"planned on {node}, kube-scheduler did not offer it"
    why = tenure("why", f"{refused.namespace}/job-1", "--ledger", ledger, cwd=tmp_path)
    assert reason.detail in why.stdout, why.stdout + why.stderr
    remove_pods(plane, where, ["job-0", "job-1"])


@pytest.mark.usefixtures("nodes")
def test_a_member_behind_somebody_elses_gate_has_its_place_until_that_is_gone(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
) -> None:
    """Three members fill the nodes: an outsider waits, and so do the two without such a gate."""
    where = pods_in(namespace(managed=False))
    annotations = {f"{GANG}/name": "gang", f"{GANG}/min-available": "3"}
    ours, other = {"name": "tenure.sh/gang"}, {"name": "example.org/quota"}
    names = [f"gang-{number}" for number in range(3)]
    api = plane.api()
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name, gates in zip(names, ([ours], [ours], [ours, other]), strict=True):
            one = member(name, 4, annotations=annotations, schedulingGates=gates)
            made = api.create(where, one)
            assert made.ok, made.message
        eventually(lambda: len(waits_by(ledger, "GangMembersGated")) == 2)
        eventually(lambda: is_refused_for_gate(ledger, names[2], "example.org/quota"))
        made = api.create(where, member("outsider", 4))
        assert made.ok, made.message
        eventually(lambda: waits_by(ledger, "Insufficient gpu devices"))
        remedies = {one.reasons[0].remedy for one in waits_by(ledger, "GangMembersGated")}
        [remedy] = remedies
        assert remedy.startswith("lift the scheduling gate example.org/quota of "), remedy
        lifted = api.patch(f"{where}/{names[2]}", {"spec": {"schedulingGates": [ours]}})
        assert lifted.ok, lifted.message
        bound = settled(plane, where, 3)
    assert {one["metadata"]["name"] for one in bound} == set(names), served.words()
    assert len({one["spec"]["nodeName"] for one in bound}) == 3
    remove_pods(plane, where, [*names, "outsider"])
