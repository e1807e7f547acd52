"""Every kind of disagreement: named where it is, once, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log import drift
from ledger.domain.log.drift import DRIFT_KINDS
from ledger.domain.log.machines import contradictions, ids_taken
from ledger.domain.log.state import GRANTED, LOST, OBSERVED, Holding, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.systems import Claimant
from ledger.domain.topology import Cpu
from ledger.signing import PrivateKey, published, trusting
from scheduler.cluster.objects import ALONE
from scheduler.service.agents import AS_RESERVED, Otherwise
from scheduler.service.drift import (
    Disagreement,
    Proven,
    Sight,
    contradicted,
    disagreements,
    mislabelled,
    proven,
    reworded,
    skewed,
)
from scheduler.service.kept import PodSeen
from scheduler.service.reconciling import OF_CLUSTER

CLUSTER = "ledger/cluster"
GIVEN = b"given"
GIB = 2**30
POD = PodSeen(
    uid="p",
    namespace="ml",
    name="train",
    node="a",
    priority=0,
    version="1",
    holds=True,
    is_ours=True,
    given=GIVEN,
    proof=b"proof",
)
PROOF = Proven(cluster=CLUSTER, pod_uid="p", node_uid="uid-a", attempt=1)
CARDS = tuple(
    DeviceRecord(device_type="gpu", minor=minor, device_id=f"GPU-{minor}", memory_bytes=16 * GIB)
    for minor in range(2)
)
CPUS = tuple(Cpu(id=number, core=number, socket=0, numa=0) for number in range(4))


def share(minor: int = 0, percent: int = 50, **more: Any) -> DeviceShare:  # noqa: ANN401
    """Return a part of a card."""
    return DeviceShare(
        **{
            "device_type": "gpu",
            "minor": minor,
            "device_id": f"GPU-{minor}",
            "core_percent": percent,
            "memory_bytes": percent * GIB // 10,
            **more,
        }
    )


def holding(uid: str = "p", **more: Any) -> Holding:  # noqa: ANN401
    """Return what a Pod holds: a part of card 0 and a CPU, granted and bound."""
    held = {
        "pod_uid": uid,
        "attempt": 1,
        "namespace": "ml",
        "pod_name": "train",
        "kind": GRANTED,
        "phase": "bound",
        "opened_position": 1,
        "shares": (share(),),
        "cpuset": parse_cpuset("0-1"),
    }
    return Holding(**{**held, **more})


def state(*held: Holding, **more: Any) -> NodeState:  # noqa: ANN401
    """Return node `a` of the ledger."""
    facts = {"uid": "uid-a", "name": "a", "devices": CARDS, "cpus": CPUS}
    return NodeState(**{**facts, "holdings": {each.key: each for each in held}, **more})


def sight(*states: NodeState, pods: Mapping[str, PodSeen] | None = None, **more: Any) -> Sight:  # noqa: ANN401
    """Return node `a`, on which a Pod runs that holds what was given to it."""
    seen: dict[str, Any] = {
        "name": "a",
        "node_uid": "uid-a",
        "states": states or (state(holding()),),
        "pods": {"p": POD} if pods is None else pods,
        "given": lambda one: GIVEN if one.kind == GRANTED else None,
        "proven": {"p": PROOF},
        "cluster": CLUSTER,
    }
    return Sight(**{**seen, **more})


def pod(**more: Any) -> dict[str, PodSeen]:  # noqa: ANN401
    """Return the Pod, other than it should be."""
    return {"p": replace(POD, **more)}


def claimed(**more: Any) -> Holding:  # noqa: ANN401
    """Return what a claim holds."""
    return holding(pod_uid="c", pod_name="claim", holder="claim", **more)


CONSUMER = Claimant(name="train", uid="p")
ADOPTED = holding(kind=OBSERVED, phase="observed")
THEIRS = {"is_ours": False, "proof": b"", "given": b""}
OTHER = state(holding(attempt=2, phase=LOST), uid="uid-old", lost=True)

CASES: dict[str, tuple[str, Sight]] = {
    "bound to another node than reserved": (
        drift.BOUND_ELSEWHERE,
        sight(state(holding(phase="reserved")), pods=pod(node="b")),
    ),
    "bound by the ledger, and by the API to nothing": (
        drift.BOUND_ELSEWHERE,
        sight(pods=pod(node="", given=b"", proof=b"")),
    ),
    "reserved, and nobody knows whether it was bound": (
        drift.UNSETTLED,
        sight(state(holding(phase="reserved"))),
    ),
    "other words than were given": (drift.ANNOTATION_DIFFERS, sight(pods=pod(given=b"other"))),
    "words that are gone": (drift.ANNOTATION_MISSING, sight(pods=pod(given=b""))),
    "ours, bound by others and adopted": (drift.BOUND_PAST_TENURE, sight(state(ADOPTED))),
    "ours, bound by others and not adopted": (drift.BOUND_PAST_TENURE, sight(state())),
    "ours, asks for nothing, bound by others": (
        drift.BOUND_PAST_TENURE,
        sight(state(), pods=pod(holds=False, given=b"", proof=b"")),
    ),
    "words of an allocation on a Pod that asks for none": (
        drift.ANNOTATION_WITHOUT_HOLDING,
        sight(state(), pods=pod(is_ours=False, holds=False)),
    ),
    "a Pod that is gone holds": (drift.HOLDER_GONE, sight(pods={})),
    "a Pod that has ended holds": (drift.HOLDER_GONE, sight(pods=pod(ended="completed"))),
    "a Pod that is gone, and its node is silent": (
        drift.RELEASE_UNCONFIRMED,
        sight(pods={}, waiting=("p/1",)),
    ),
    "held through a lost Node": (
        drift.HOLDER_ON_LOST_NODE,
        sight(state(), OTHER, pods={}),
    ),
    "held through a Node that is gone, which nobody recorded": (
        drift.HOLDER_ON_LOST_NODE,
        sight(node_uid=None),
    ),
    "held through a Node that is another machine now": (
        drift.HOLDER_ON_LOST_NODE,
        sight(state(holding(machine=("old", "old")))),
    ),
    "held in a phase of loss": (
        drift.HOLDER_ON_LOST_NODE,
        sight(state(holding(phase=LOST))),
    ),
    "a card that is not listed": (drift.DEVICE_GONE, sight(state(holding(), devices=CARDS[1:]))),
    "a card whose object no longer names it": (
        drift.DEVICE_GONE,
        sight(state(holding(), devices=(replace(CARDS[0], device_id=""),))),
    ),
    "another card in its place": (
        drift.DEVICE_REPLACED,
        sight(state(holding(), devices=(replace(CARDS[0], device_id="GPU-new"),))),
    ),
    "a card that shrank": (
        drift.DEVICE_SHRUNK,
        sight(state(holding(), devices=(replace(CARDS[0], memory_bytes=GIB),))),
    ),
    "CPUs that are not listed": (drift.CPUS_GONE, sight(state(holding(), cpus=CPUS[:1]))),
    "CPUs of a topology that is gone": (drift.CPUS_GONE, sight(state(holding(), cpus=()))),
    "others hold more than there is": (
        drift.OVER_HELD,
        sight(
            state(holding(kind=OBSERVED, phase="observed", shares=(share(percent=150),))),
            pods=pod(**THEIRS),
        ),
    ),
    "others hold what a recovery could not grant": (
        drift.OVER_HELD,
        sight(state(ADOPTED), open=frozenset({"OverHeld/uid-a/p/1"})),
    ),
    "a node alone says that others hold what somebody has": (
        drift.OVER_HELD,
        sight(
            state(
                holding(shares=(share(exclusive=True),)),
                *(holding(uid, namespace=ALONE, kind=OBSERVED, cpuset=CpuSet()) for uid in "xyz"),
            )
        ),
    ),
    "a node names more Pods that nobody knows than it has places": (
        drift.OVER_HELD,
        sight(is_full=True),
    ),
    "others hold a card that nobody names": (
        drift.CARD_UNKNOWN,
        sight(
            state(holding(kind=OBSERVED, phase="observed", shares=(), unknown_types=("gpu",))),
            pods=pod(**THEIRS),
        ),
    ),
    "cards by number, and words that name some": (
        drift.ANNOTATION_DIFFERS,
        sight(
            state(holding(kind=OBSERVED, phase="observed", shares=(), unknown_types=("gpu",))),
            given=lambda _: b"",
        ),
    ),
    "a node that gave something else": (
        drift.NODE_GAVE_OTHER,
        sight(otherwise=lambda *_: {drift.NODE_GAVE_OTHER: Otherwise(words="it has GPU-1")}),
    ),
    "a node that gave something else, and has not spoken since": (
        drift.NODE_GAVE_OTHER,
        sight(otherwise=lambda *_: {}, open=frozenset({"NodeGaveOther/uid-a/p/1"})),
    ),
    "a container on other CPUs": (
        drift.CPUS_DIFFER,
        sight(otherwise=lambda *_: {drift.CPUS_DIFFER: Otherwise(words="2-3", cpus=CpuSet())}),
    ),
    "a container on other CPUs, and a CPU process that has not spoken since": (
        drift.CPUS_DIFFER,
        sight(
            otherwise=lambda *_: {drift.NODE_GAVE_OTHER: AS_RESERVED},
            open=frozenset({"CpusDiffer/uid-a/p/1"}),
        ),
    ),
    "a container with fewer CPUs than are written": (
        drift.CPUS_NARROWED,
        sight(otherwise=lambda *_: {drift.CPUS_NARROWED: Otherwise(words="0")}),
    ),
    "a Pod on CPUs that another has to itself": (
        drift.CPUS_NOT_EXCLUSIVE,
        sight(state(holding(cpuset=parse_cpuset("0-1"))), crossing={"x": parse_cpuset("1-2")}),
    ),
    "a Pod on CPUs that another had to itself, of which nobody has spoken since": (
        drift.CPUS_NOT_EXCLUSIVE,
        sight(
            pods={
                **pod(),
                "x": replace(POD, uid="x", name="other", is_ours=False, holds=False, given=b""),
            },
            crossing=None,
            open=frozenset({"CpusNotExclusive/uid-a/x"}),
        ),
    ),
    "no proof": (drift.PROOF_MISSING, sight(pods=pod(proof=b""))),
    "a proof that nobody believes": (
        drift.PROOF_INVALID,
        sight(proven={"p": Proven(fault="the signature does not hold")}),
    ),
    "a proof for another cluster": (
        drift.PROOF_FOREIGN,
        sight(proven={"p": replace(PROOF, cluster="ledger/other")}),
    ),
    "a proof for another Pod": (
        drift.PROOF_FOREIGN,
        sight(proven={"p": replace(PROOF, pod_uid="q")}),
    ),
    "a proof for another Node": (
        drift.PROOF_FOREIGN,
        sight(proven={"p": replace(PROOF, node_uid="uid-old")}),
    ),
    "a proof of what was released": (
        drift.PROOF_OUTDATED,
        sight(state(holding(attempt=2)), proven={"p": PROOF}),
    ),
    "a claim that got past the gate": (
        drift.UNGATED,
        sight(state(claims={"c/1": claimed(kind=OBSERVED, consumers=(CONSUMER,))}), pods={}),
    ),
    "a claim with other devices than were let through": (
        drift.REWRITTEN_AFTER_GATE,
        sight(
            state(claims={"c/1": claimed(kind=OBSERVED, consumers=(CONSUMER,))}),
            pods={},
            past_gate=lambda _: drift.REWRITTEN_AFTER_GATE,
        ),
    ),
    "a claim that is gone": (
        drift.CLAIM_GONE,
        sight(
            state(claims={"c/1": claimed(consumers=(CONSUMER,))}), pods={}, is_claim_gone="c".__eq__
        ),
    ),
    "the end of a claim that its node has not confirmed": (
        drift.RELEASE_UNCONFIRMED,
        sight(state(claims={"c/1": claimed(consumers=(CONSUMER,))}), pods={}, waiting=("c/1",)),
    ),
    "a claim that nobody uses": (
        drift.IDLE_CLAIM,
        sight(state(claims={"c/1": claimed()}), pods={}),
    ),
    "a node of ours whose cards a driver gives": (
        drift.TWO_MODES,
        sight(state(), pods={}, is_of_two_modes=True),
    ),
    "an object that can't be read": (
        drift.NODE_UNREADABLE,
        sight(fault=(drift.NODE_UNREADABLE, "spec.devices[0].id: must be text")),
    ),
    "an object that the ledger refuses": (
        drift.NODE_UNRECORDED,
        sight(fault=(drift.NODE_UNRECORDED, "one id twice")),
    ),
    "a holder that nobody knows": (
        drift.UNKNOWN_HOLDERS,
        sight(state(), pods=pod(is_ours=False)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_has_its_name_and_no_other(case: tuple[str, Sight]) -> None:
    """One cause, one name; and the object that it is about."""
    kind, seen = case
    [found] = disagreements(seen)
    assert found.kind == kind
    assert found.node_uid or kind == drift.HOLDER_ON_LOST_NODE
    assert "a" in found.words
    assert bool(found.claim_uid) is bool(seen.states and seen.states[0].claims)


def test_every_kind_has_a_case() -> None:
    """Those of a node above, those of several below."""
    assert {kind for kind, _ in CASES.values()} == DRIFT_KINDS.keys() - OF_CLUSTER


@pytest.mark.parametrize(
    ("crossing", "more"),
    [
        pytest.param({"x": parse_cpuset("2-3")}, {}, id="CPUs that nobody has alone by now"),
        pytest.param({"p": parse_cpuset("0-1")}, {}, id="its own"),
        pytest.param({}, {"open": frozenset({"CpusNotExclusive/uid-a/x"})}, id="nobody any more"),
        pytest.param({"y": parse_cpuset("0-1")}, {"other": "Succeeded"}, id="a Pod that has ended"),
        pytest.param(
            None,
            {"open": frozenset({"CpusNotExclusive/uid-a/x"})},
            id="a Pod that the API has no more, of which nobody has spoken since",
        ),
    ],
)
def test_who_crosses_nobodys_cpus_is_no_drift(
    crossing: dict[str, CpuSet] | None, more: dict[str, Any]
) -> None:
    """The node's word counts beside what the ledger has now: a holder may have gone since."""
    ended = {"y": replace(POD, uid="y", name="other", ended=more.pop("other", ""))}
    pods = {**pod(), **ended} if "y" in (crossing or ()) else pod()
    held = state(holding(cpuset=parse_cpuset("0-1")))
    assert disagreements(sight(held, pods=pods, crossing=crossing, **more)) == []


def test_a_pod_that_crosses_is_told_with_whose_cpus_and_which() -> None:
    """Its name as the API has it, the CPUs that are somebody's, and no others."""
    pods = {
        **pod(),
        "y": replace(POD, uid="y", name="other", is_ours=False, holds=False, given=b""),
    }
    held = state(holding(cpuset=parse_cpuset("0-1")))
    [found] = disagreements(sight(held, pods=pods, crossing={"y": parse_cpuset("1-3")}))
    assert found.words == "ml/other on a: runs on CPUs 1 of ml/train"
    assert (found.cpus, found.pod_uid, found.pod) == (parse_cpuset("1"), "y", ("ml", "other"))
    assert found.drift_id == "CpusNotExclusive/uid-a/y"


def test_the_cpus_that_the_kernel_gives_go_with_the_words() -> None:
    """So that whoever asks about one CPU is told."""
    said = {drift.CPUS_DIFFER: Otherwise(words="others", cpus=parse_cpuset("2-3"))}
    [found] = disagreements(sight(otherwise=lambda *_: said))
    assert (found.words, found.cpus) == ("ml/train on a: others", parse_cpuset("2-3"))


def test_what_the_node_alone_tells_of_is_no_drift_while_it_fits() -> None:
    """The API can't be asked of it, and it does not wait for the node: that is who tells of it."""
    alone = holding("x", namespace=ALONE, kind=OBSERVED, cpuset=CpuSet())
    assert disagreements(sight(state(holding(), alone), waiting=["x/1"])) == []


def test_cards_that_a_node_gave_by_number_are_no_drift() -> None:
    """Our Binding carries no words of devices, and nobody has to name the cards."""
    counted = holding(kind=OBSERVED, phase="observed", shares=(), unknown_types=("gpu",))
    seen = sight(state(counted), pods=pod(given=b"", proof=b""), given=lambda _: b"")
    assert disagreements(seen) == []


def test_what_agrees_is_no_drift() -> None:
    """A bound Pod with our words, one of others that was adopted, one of nobody's concern."""
    others = {
        "q": replace(POD, uid="q", is_ours=False, given=b"", proof=b""),
        "r": replace(POD, uid="r", is_ours=False, holds=False, given=b"", proof=b""),
        "s": replace(POD, uid="s", ended="completed"),
        "t": replace(POD, uid="t", is_ours=False, static_uid="file"),
    }
    theirs = [
        holding(uid, kind=OBSERVED, phase="observed", shares=(share(1, 25),), cpuset=CpuSet())
        for uid in ("q", "file")
    ]
    assert disagreements(sight(state(holding(), *theirs), pods={"p": POD, **others})) == []


UNDECIDED: dict[str, Sight] = {
    "on its way": sight(
        state(holding(phase="reserved")), pods={}, is_under_way=lambda uid: uid == "p"
    ),
    "on its way, not reserved yet": sight(state(), is_under_way=lambda uid: uid == "p"),
    "held on another node": sight(state(), holds_elsewhere=lambda uid: uid == "p"),
    "a proof that nobody has looked at": sight(proven={}),
    "proofs are not written": sight(cluster="", pods=pod(proof=b"")),
    "what was given is in an archive": sight(given=lambda _: None, pods=pod(given=b"else")),
    "on a node that the ledger does not know": sight(state(uid="uid-other"), node_uid="uid-a"),
    "a fault where nobody is": sight(
        state(), pods={}, fault=(drift.NODE_UNREADABLE, "spec: must be an object")
    ),
}


@pytest.mark.parametrize("seen", UNDECIDED.values(), ids=UNDECIDED)
def test_what_can_not_be_told_is_no_drift(seen: Sight) -> None:
    """What is under way or is not known yet is looked at again later."""
    assert disagreements(seen) == []


def test_two_causes_have_two_names() -> None:
    """And ids of their own."""
    found = disagreements(sight(pods=pod(given=b"other", proof=b"")))
    assert [one.kind for one in found] == [drift.ANNOTATION_DIFFERS, drift.PROOF_MISSING]
    assert [one.drift_id for one in found] == [
        "AnnotationDiffers/uid-a/p/1",
        "ProofMissing/uid-a/p/1",
    ]


def test_a_proof_is_believed_by_its_signature_alone() -> None:
    """Not JSON, and a key that nobody trusts."""
    ours, other = PrivateKey.new("proofs"), PrivateKey.new("proofs")
    check = trusting(published([ours.public]))
    assert proven("{", check).fault
    assert proven('{"proof":{},"key":"x","signature":""}', check).fault
    assert other.public.key_id != ours.public.key_id


def test_annotations_are_told_apart_by_key() -> None:
    """For whoever has to put them back."""
    said = {"a": "1", "b": "forged", "d": "4"}
    assert reworded({"a": "1", "b": "2", "c": "3"}, said) == "absent: c, added: d, changed: b"


def node(name: str, **more: Any) -> NodeFacts:  # noqa: ANN401
    """Return a live Node with one card."""
    card = replace(CARDS[0], device_id=f"GPU-{name}", unique_id=True)
    facts = {"uid": f"uid-{name}", "name": name, "devices": (card,), "machine_id": name}
    return NodeFacts(**{**facts, "system_uuid": name, **more})


CLAIMS = {
    "MachineRegisteredTwice": (node("a"), node("b", machine_id="a", system_uuid="a")),
    "MachineIdCloned": (node("a"), node("b", machine_id="a")),
    "DeviceIdCloned": (node("a"), replace(node("b"), devices=node("a").devices)),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_what_two_nodes_claim_has_the_name_that_a_simulation_gives(kind: str) -> None:
    """One list of names, whoever finds it."""
    found = [contradicted(one) for one in contradictions(CLAIMS[kind])]
    assert [one.kind for one in found] == [kind]
    assert found[0].drift_id.startswith(f"{kind}/uid-b/")


def test_who_takes_the_ids_of_a_lost_machine_is_the_one_that_is_named() -> None:
    """By its UID, so that it is found and over once."""
    taken = ids_taken([node("b", machine_id="a", system_uuid="a")], [node("a", lost=True)])
    assert [contradicted(one).drift_id for one in taken] == ["MachineIdsTaken/uid-b/machine"]


def test_labels_and_clocks_are_of_no_node() -> None:
    """They are about the cluster."""
    found: list[Disagreement] = [*mislabelled({"ml": "403"}), *skewed(7.5, 5.0), *skewed(-4.9, 5.0)]
    assert [(one.kind, one.node_uid, one.drift_id) for one in found] == [
        (drift.NAMESPACE_LABEL_WRONG, "", "NamespaceLabelWrong/ml"),
        (drift.CLOCK_SKEW, "", "ClockSkew/clock"),
    ]


def test_what_a_node_alone_tells_of_is_drift_once_its_agent_is_silent() -> None:
    """While it reports, it says itself when the Pod is gone."""
    alone = holding("x", namespace=ALONE, kind=OBSERVED, cpuset=CpuSet())
    found = disagreements(sight(state(holding(), alone), waiting=["x/1"], is_silent=True))
    assert [(one.kind, one.about) for one in found] == [(drift.RELEASE_UNCONFIRMED, "x/1")]
