"""Who has CPUs alone: the ledger's word over kubelet's, and both where they speak of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from agent.decide.node_cpus import find_cpu_holders
from agent.decide.node_holdings import HeldByPod
from agent.decide.pools import PodCpus
from ledger.domain.annotations.node_cpu import PodCpuAlloc
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tests.support.found_cpus import found_cpus, holding, pod_here
from tests.support.topologies import MACHINE_X

OBSERVED = "observed"


def holders(
    pinned: Mapping[str, str], held: Sequence[HeldByPod], *pods: Mapping[str, object]
) -> list[tuple[str, str, bool]]:
    """Return UID, CPUs and whether they are kubelet's, of all holders."""
    found = find_cpu_holders(found_cpus(MACHINE_X, pinned=pinned, pods=pods), held)
    assert all(own.cpus == one.cpus for one, own in found)
    assert all(own.by_kubelet is one.managed_by_kubelet for one, own in found)
    return [(one.uid, str(one.cpus), one.managed_by_kubelet) for one, _ in found]


@pytest.mark.parametrize(
    ("pinned", "held", "wanted"),
    [
        pytest.param({}, [], [], id="nobody has any"),
        pytest.param({"a": "2-3"}, [], [("a", "2-3", True)], id="kubelet gave them"),
        pytest.param({}, [holding("a", "2-3")], [("a", "2-3", False)], id="the scheduler did"),
        pytest.param(
            {"a": "2-3"},
            [holding("a", "6-7")],
            [("a", "6-7", False)],
            id="what the scheduler gave replaces what kubelet's record says",
        ),
        pytest.param(
            {"a": "2-3"},
            [holding("a", "2-3", kind=OBSERVED)],
            [("a", "2-3", True)],
            id="what the ledger observed is kubelet's own word",
        ),
        pytest.param(
            {"a": "2-3"},
            [holding("a", "4-5", kind=OBSERVED)],
            [("a", "2-3", True)],
            id="whose newer word counts",
        ),
        pytest.param(
            {"b": "2-3"},
            [holding("b", "6-7", kind=OBSERVED)],
            [("b", "6-7", False)],
            id="another scheduler gave them, by the status on the Pod",
        ),
        pytest.param(
            {},
            [holding("a", "2-3", kind=OBSERVED)],
            [("a", "2-3", False)],
            id="the Pod ended by kubelet's record, and the ledger has not released it",
        ),
        pytest.param(
            {},
            [holding("a", "2-3"), holding("a", "4-5", attempt=2)],
            [("a", "2-5", False)],
            id="it moves to another reservation and has both until then",
        ),
        pytest.param(
            {"a": "0-1"},
            [holding("a", "2-3"), holding("a", "4-5", attempt=2)],
            [("a", "2-5", False)],
            id="also where kubelet gave it some",
        ),
        pytest.param({}, [holding("a", "")], [], id="it has cards alone"),
        pytest.param(
            {"z": "2-3", "gone": "4-5"},
            [holding("a", "6-7")],
            [("gone", "4-5", True), ("a", "6-7", False), ("z", "2-3", True)],
            id="each has its own, by name; one that kubelet does not tell any more has none",
        ),
    ],
)
def test_whose_cpus_these_are(
    pinned: Mapping[str, str], held: Sequence[HeldByPod], wanted: list[tuple[str, str, bool]]
) -> None:
    """The scheduler's word replaces kubelet's record; nobody who has CPUs is left out."""
    pods = [pod_here("a", "LSR"), pod_here("b", "LSR", "6-7"), pod_here("z")]
    assert holders(pinned, held, *pods) == wanted


def test_who_shares_them_is_said_by_the_pods_label() -> None:
    """One that kubelet does not know yet shares with nobody."""
    pods = [pod_here("a", "LSR"), pod_here("b", "LSE"), pod_here("c")]
    held = [holding(uid, cpus) for uid, cpus in zip("abcd", ("1", "2", "3", "4"), strict=True)]
    found = find_cpu_holders(found_cpus(MACHINE_X, pods=pods), held)
    assert [own for _, own in found] == [
        PodCpus(cpus=parse_cpuset(cpus), qos=qos)
        for cpus, qos in (
            ("1", QosClass.LSR),
            ("2", QosClass.LSE),
            ("3", QosClass.NONE),
            ("4", QosClass.LSE),
        )
    ]
    assert found[0][0] == PodCpuAlloc(
        namespace="web", name="pod-a", uid="a", cpus=parse_cpuset("1")
    )


def test_a_status_that_can_not_be_read_is_no_empty_one() -> None:
    """Whether kubelet's record or the scheduler's word counts is not guessed."""
    pod = pod_here("a", "LSR", "6-7")
    pod["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"] = "{"
    with pytest.raises(InputError, match="resource-status"):
        holders({"a": "2-3"}, [holding("a", "6-7", kind=OBSERVED)], pod)
