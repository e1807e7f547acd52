"""Who is called gone: nobody of whom a process may be left, whatever could not be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hypothesis import event, given, settings
from hypothesis import strategies as st

from agent.decide.confirming import Confirming, Look, said
from agent.decide.node_holdings import HeldByPod, Origin, all_holdings
from agent.discover.machine import Card, CardProcess
from agent.witness.confirmer import hidden_cards
from agent.witness.said import EXITED, RUNNING
from agent.witness.seen import Place, Read
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from tests.support.examples import examples
from tests.support.proofs import held_by_pod
from tests.support.witnessing import card, listed, look, read

PODS: Final = ("p", "q", "r", "s")
CARDS: Final = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """
    What is on a node, and what of it can't be read.

    Attributes:
        holds: the card that the ledger has for each Pod; None = CPUs alone.
        runs: Pods with a container; `untold`: those of which nobody says what it was made with.
        on: processes, each with its Pod and card; `unread`: those whose cgroup can't be read.
        lost: cards off the bus; `seen_once`: the driver told all cards before that.
        to_come: Pods that kubelet may start.
    """

    holds: dict[str, int | None]
    runs: frozenset[str]
    untold: frozenset[str]
    on: tuple[tuple[str, int], ...]
    unread: frozenset[int]
    lost: frozenset[int]
    seen_once: bool
    to_come: frozenset[str]


def _some(of: tuple[str, ...]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(of))


TRUTHS: Final = st.builds(
    Truth,
    holds=st.fixed_dictionaries({pod: st.sampled_from((*CARDS, None)) for pod in PODS}),
    runs=_some(PODS),
    untold=_some(PODS),
    on=st.lists(st.tuples(st.sampled_from(PODS), st.sampled_from(CARDS)), max_size=4).map(tuple),
    unread=st.frozensets(st.integers(0, 3), max_size=2),
    lost=st.frozensets(st.sampled_from(CARDS), max_size=2),
    seen_once=st.booleans(),
    to_come=_some(PODS),
)


def is_left(truth: Truth, pod: str) -> bool:
    """Tell whether something of a Pod is there, or to come, or on the card that it holds."""
    on_its_card = any(one == (pod, truth.holds[pod]) for one in truth.on)
    return pod in truth.runs | truth.to_come or on_its_card


def could_be_hidden(truth: Truth, pod: str) -> bool:
    """Tell whether the card that a Pod holds is lost, or has a process that is nobody's."""
    held = truth.holds[pod]
    unread = {truth.on[pid][1] for pid in truth.unread if pid < len(truth.on)}
    return held in truth.lost | unread


def gone(truth: Truth) -> frozenset[str]:
    """Return whom the agent calls gone, out of what can be read."""

    def of(number: int) -> Card:
        pids = [pid for pid, (_, on) in enumerate(truth.on) if on == number]
        return replace(card(number), processes=tuple(CardProcess(pid=pid) for pid in pids))

    told = [of(number) for number in CARDS if number not in truth.lost]
    blind = [replace(of(number), processes=None) for number in sorted(truth.lost)]
    containers = [listed(pod, state=RUNNING if pod in truth.runs else EXITED) for pod in PODS]
    said_of = read(
        containers=containers,
        driver=not truth.lost,
        all_known=truth.seen_once or not truth.lost,
        places={
            pid: Place(pod_uid=f"uid-{pod}", container_id=f"{pod}-main")
            for pid, (pod, on) in enumerate(truth.on)
            if pid not in truth.unread and on not in truth.lost
        },
    )
    inside = {key: one for key, one in said_of.inside.items() if key[0] not in truth.untold}
    seen_of: Read = replace(said_of, inside=inside)
    found = look((*told, *(blind if truth.seen_once else ())), seen_of)
    known = all_holdings(
        Origin(node_name="a", node_uid="uid-a"), 1, [_held(pod, on) for pod, on in _holds(truth)]
    )
    now = Look(
        places={f"uid-{pod}": {"main": "0"} for pod in truth.to_come},
        live=found.live,
        complete=found.complete,
        hidden=frozenset(hidden_cards(known, found)),
        blind=found.blind,
    )
    return frozenset(said(Confirming(), known, now, now=0.0)[1].gone)


def _holds(truth: Truth) -> list[tuple[str, int | None]]:
    return sorted(truth.holds.items())


def _held(pod: str, on: int | None) -> HeldByPod:
    devices = (
        () if on is None else (ProvenDevice(device_type="gpu", device_id=f"GPU-{on}", minor=on),)
    )
    containers = (ProvenContainer(index="0", devices=devices),)
    return held_by_pod(pod_uid=f"uid-{pod}", namespace="ml", pod_name=pod, containers=containers)


@given(TRUTHS)
@settings(max_examples=examples(600))
def test_nobody_is_called_gone_of_whom_a_process_may_be_left_on_what_it_holds(
    truth: Truth,
) -> None:
    """And of whom nothing may be left is: a lost card, or an untold container, keeps no other."""
    called = gone(truth)
    for pod in PODS:
        is_called = f"uid-{pod}" in called
        if is_left(truth, pod) or could_be_hidden(truth, pod):
            assert not is_called, pod
        elif not any(whose == pod for whose, _ in truth.on):
            assert is_called, pod
            event("gone beside a lost card" if truth.lost else "gone")
