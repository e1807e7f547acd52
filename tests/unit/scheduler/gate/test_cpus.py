"""CPUs by claims: what the gate stores, what it refuses, and what the watch shows of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.dialects.dra.cpus import CPU_DRIVER, MACHINE, cpu_config
from ledger.domain.log.events import ClaimObserved, ClaimReserved, PodObserved, PodReserved
from scheduler.gate.claims import claim_seen
from scheduler.gate.cpus import patch_of
from scheduler.gate.decide import Barred, Standing, Through, Write, decide
from scheduler.gate.follow import follow
from tests.support.gated import (
    DRIVERS,
    NODE,
    FoldedAccounts,
    MachineCpus,
    claim,
    cpus,
    result,
    seen,
)

CHOSEN = MachineCpus()


def parameters(**what: object) -> dict[str, Any]:
    """Return what the driver is told besides the version."""
    return {"driver": CPU_DRIVER, "parameters": {"apiVersion": "v1alpha1", **what}}


def told(cpuset: str, request: str = "g", **more: object) -> dict[str, Any]:
    """Return the configuration that gives a request these CPUs."""
    return {**cpu_config(request, parse_cpuset(cpuset)), **more}


def appears(
    name: str, *results: dict[str, Any], config: list[dict[str, Any]] | None = None
) -> Write:
    """Return the write by which an allocation appears, told these configurations already."""
    return Write(old=seen(name, 7), new=seen(name, 7, *results, pods=["p"], config=config or ()))


def answer(accounts: FoldedAccounts, write: Write, standing: Standing | None = None) -> Any:  # noqa: ANN401 - either
    """Return what is answered, and let what is recorded be so."""
    found = decide(write, accounts, standing, cpus=CHOSEN)
    if isinstance(found, Through):
        accounts.events.extend(found.events)
    return found


def opening(found: Through | Barred) -> ClaimReserved:
    """Return what an answer reserves."""
    assert isinstance(found, Through), found
    [event] = found.events
    assert isinstance(event, ClaimReserved)
    return event


def test_cpus_are_chosen_and_kept_with_the_claim() -> None:
    """Whole cores that are free, in the claim's result and held, shared with nobody."""
    accounts = FoldedAccounts()
    first = opening(answer(accounts, appears("a", cpus(4))))
    second = opening(answer(accounts, appears("b", cpus(2))))

    assert [str(each.cpuset) for each in (first, second)] == ["8-11", "2-3"]
    assert [each.cpus for each in first.results] == [first.cpuset]
    assert first.snapshot.qos == "LSE"
    assert first.shares == ()


def test_a_card_and_cpus_are_one_claim() -> None:
    """Of each driver its own: the card is an account, the CPUs are a set."""
    found = opening(answer(FoldedAccounts(), appears("a", result(1), cpus(2, request="c"))))

    assert [share.device_id for share in found.shares] == ["GPU-1"]
    assert len(found.cpuset) == 2


def test_two_requests_of_one_claim_have_different_cpus() -> None:
    """One that is written out keeps its own, though it comes second."""
    write = appears(
        "a", cpus(2, request="x"), cpus(2, request="y"), config=[told("8-9", request="y")]
    )

    found = opening(answer(FoldedAccounts(), write))

    assert [str(each.cpus) for each in found.results] == ["2-3", "8-9"]


def test_what_is_written_out_stays() -> None:
    """It is free and as many as are consumed: nothing is patched."""
    found = answer(FoldedAccounts(), appears("a", cpus(2), config=[told("3,5")]))

    assert str(opening(found).cpuset) == "3,5"
    assert found.results is None


HOLDERS = (
    ClaimReserved(
        claim_uid="claim-h",
        attempt=1,
        node_uid="node-1",
        namespace="ml",
        claim_name="h",
        node_name=NODE,
        cpuset=parse_cpuset("4-5"),
    ),
    PodReserved(
        pod_uid="h",
        attempt=1,
        namespace="ml",
        pod_name="h",
        node_uid="node-1",
        node_name=NODE,
        cpu_milli=0,
        memory_bytes=0,
        cpuset=parse_cpuset("4-5"),
    ),
    PodObserved(
        pod_uid="h",
        attempt=1,
        namespace="ml",
        pod_name="h",
        node_uid="node-1",
        node_name=NODE,
        source="kubelet",
        cpuset=parse_cpuset("4-5"),
    ),
)


@pytest.mark.parametrize("holder", HOLDERS, ids=["claim", "extender's Pod", "observed"])
def test_cpus_of_somebody_else_are_refused_by_name_and_never_chosen(
    holder: ClaimReserved | PodReserved | PodObserved,
) -> None:
    """Whoever has them and however: in one account."""
    accounts = FoldedAccounts(events=[holder])

    written = answer(accounts, appears("a", cpus(2), config=[told("5-6")]))
    chosen = opening(answer(accounts, appears("b", cpus(13))))
    none_left = answer(accounts, appears("c", cpus(1)))

    who = "claim" if isinstance(holder, ClaimReserved) else "Pod"
    assert isinstance(written, Barred)
    assert (written.reason, written.taken) == ("DeviceTaken", True)
    assert written.message == (
        f"request g names CPUs 5-6 of node n1, of which 5 are held by {who} ml/h"
    )
    assert chosen.cpuset.isdisjoint(holder.cpuset)
    assert isinstance(none_left, Barred)
    assert (none_left.reason, none_left.taken) == ("DeviceTaken", True)
    assert f"1 asked, 0 left; CPUs are held by {who} ml/h" in none_left.message


@pytest.mark.parametrize(
    ("results", "config", "reason", "words"),
    [
        ([cpus(2)], [told("3")], "CpusMiscounted", "names CPUs 3 of node n1, 1 of the 2"),
        ([cpus(2)], [told("3-5")], "CpusMiscounted", "names CPUs 3-5 of node n1, 3 of the 2"),
        ([cpus(2)], [told("0-1")], "CpusUntold", "of which 0 are none that it gives"),
        ([cpus(2)], [told("15-16")], "CpusUntold", "of which 16 are none that it gives"),
        (
            [cpus(2, request="x"), cpus(2, request="y")],
            [told("3-4", request="x"), told("4-5", request="y")],
            "CpusMiscounted",
            "of which another request has 4",
        ),
        ([cpus("1500m")], [], "CpusUntold", "expected a whole number of CPUs: value='1500m'"),
        ([cpus(1, consumedCapacity={})], [], "CpusUntold", "expected a whole number of CPUs"),
        ([cpus(2), cpus(2)], [], "CpusUntold", "a request has several results"),
        ([cpus(2)], [told("3-4", source="FromClass")], "CpusUntold", "CPUs of a class"),
        ([cpus(2)], [told("3-4"), told("3-4")], "CpusUntold", "request g has two of them"),
        ([cpus(2)], [told("3-4", requests=[])], "CpusUntold", "expected one request"),
        (
            [cpus(2)],
            [told("3-4", opaque={"driver": CPU_DRIVER, "parameters": {"apiVersion": "v2"}})],
            "CpusUntold",
            "expected v1alpha1",
        ),
        (
            [cpus(2)],
            [told("3-4", opaque={"driver": CPU_DRIVER, "parameters": {"apiVersion": "v1alpha1"}})],
            "CpusUntold",
            "missing; expected CPUs",
        ),
        *(
            ([cpus(2)], [told("3-4", opaque=parameters(**twice))], "CpusUntold", "another field")
            for twice in (
                {"cpuConfig": {"cpuset": "3-4", "CPUSET": "8-9"}},
                {"cpuConfig": {"cpuset": "3-4", "cpu\u017fet": "8-9"}},
                {"cpuConfig": {"cpuset": "3-4"}, "CPUConfig": {"cpuset": "8-9"}},
            )
        ),
        ([cpus(16)], [], "DeviceClosed", "16 asked, 15 left"),
    ],
)
def test_what_the_driver_would_not_take_is_refused(
    results: list[dict[str, Any]], config: list[dict[str, Any]], reason: str, words: str
) -> None:
    """Before it is stored, and with what is wrong with it."""
    found = answer(FoldedAccounts(), appears("a", *results, config=config))

    assert isinstance(found, Barred), found
    assert found.reason == reason
    assert words in found.message


def test_of_a_machine_that_tells_no_cpus_none_are_given() -> None:
    """Nothing is guessed: the refusal says what is missing."""
    cpu = MachineCpus(untold="node n1: no topology")

    found = decide(appears("a", cpus(1)), FoldedAccounts(), None, cpus=cpu)

    assert isinstance(found, Barred)
    assert (found.reason, found.message) == ("CpusUntold", "node n1: no topology")
    assert isinstance(decide(appears("a", cpus(1)), FoldedAccounts(), None), Barred)


def test_the_same_write_again_is_told_the_same_cpus() -> None:
    """kube-scheduler tries again on a conflict, and writes no CPUs the second time either."""
    accounts = FoldedAccounts()
    first = opening(answer(accounts, appears("a", cpus(2))))
    standing = Standing(opening=first, stored=False)

    again = decide(appears("a", cpus(2)), accounts, standing, cpus=CHOSEN)
    written = decide(appears("a", cpus(2), config=[told("8-9")]), accounts, standing, cpus=CHOSEN)
    other = decide(appears("a", cpus(2), config=[told("3-4")]), accounts, standing, cpus=CHOSEN)
    twice = [told("8-9"), told("8-9")]
    faulty = decide(appears("a", cpus(2), config=twice), accounts, standing, cpus=CHOSEN)

    assert isinstance(again, Through)
    assert (again.events, again.results) == ((), first.results)
    assert isinstance(written, Through)
    assert written.results is None
    assert isinstance(other, Barred)
    assert isinstance(faulty, Barred)
    assert faulty.fence


def test_what_is_stored_is_bound_and_other_cpus_are_held_beside() -> None:
    """A webhook behind ours that writes other CPUs: both sets are held until the claim ends."""
    accounts = FoldedAccounts()
    first = opening(answer(accounts, appears("a", cpus(2))))
    standing = Standing(opening=first, stored=False)

    def shown(cpuset: str) -> Any:  # noqa: ANN401 - events
        item = seen("a", 8, cpus(2), pods=["p"], config=[told(cpuset)])
        return follow(item, standing, first.consumers, accounts, attempts=1)

    [bound] = shown("8-9")
    assert bound.event_type == "claim.bound.v1"
    voided, beside = shown("3-4")
    assert voided.event_type == "claim.voided.v1"
    assert isinstance(beside, ClaimObserved)
    assert (beside.source, str(beside.cpuset)) == ("rewritten", "3-4,8-9")


def test_a_stored_claim_is_adopted_with_its_cpus() -> None:
    """Without a gate: outside of the constraint, and nobody else's then."""
    accounts = FoldedAccounts()
    item = seen("a", 8, cpus(2), config=[told("8-9")])

    [adopted] = follow(item, None, (), accounts, attempts=0)

    assert isinstance(adopted, ClaimObserved)
    assert (str(adopted.cpuset), adopted.snapshot.qos) == ("8-9", "LSE")
    assert adopted.unknown_types == ()
    accounts.events.append(adopted)
    assert opening(answer(accounts, appears("b", cpus(13)))).cpuset.isdisjoint(adopted.cpuset)


def test_of_a_stored_claim_without_cpus_any_may_be_its_own() -> None:
    """Its driver chose them: nobody else gets CPUs there while it is held; cards stay open."""
    accounts = FoldedAccounts()
    [adopted] = follow(seen("a", 8, cpus(2)), None, (), accounts, attempts=0)
    assert isinstance(adopted, ClaimObserved)
    accounts.events.append(adopted)
    standing = Standing(opening=adopted, stored=True)

    found = answer(accounts, appears("b", cpus(2)))

    assert adopted.unknown_types == ("cpu",)
    assert isinstance(found, Barred)
    assert found.message == "nobody knows which CPUs of node n1 are held by claim ml/a"
    assert isinstance(answer(accounts, appears("c", result(0))), Through)
    assert follow(seen("a", 8, cpus(2)), standing, (), accounts, attempts=1) == ()


def test_access_of_an_administrator_holds_no_cpus() -> None:
    """What its claim asked for by that word: nothing is chosen, and nothing held."""
    write = appears("a", cpus(2, adminAccess=True))
    spec = {"devices": {"requests": [{"name": "g", "exactly": {"adminAccess": True}}]}}
    item = {**claim("a", 7, cpus(2, adminAccess=True)), "spec": spec}

    found = opening(answer(FoldedAccounts(), replace(write, new=claim_seen(item, DRIVERS))))

    assert not found.cpuset


def test_the_patch_touches_our_own_paths_alone() -> None:
    """What others are told stays where it is, and results of other drivers are not counted."""
    nic = {"request": "n", "driver": "nic.example.com", "pool": NODE, "device": "eth0"}
    other = {"source": "FromClass", "opaque": {"driver": "nic.example.com", "parameters": {}}}
    written = claim("a", 7, nic, cpus(2), config=[other])
    results = claim_seen(written, DRIVERS).allocated
    assert results is not None
    stored = opening(answer(FoldedAccounts(), appears("a", cpus(2)))).results

    path = "/status/allocation/devices/config"
    add = {"op": "add", "path": f"{path}/-", "value": told("8-9")}
    assert patch_of(written, results.results, stored, DRIVERS) == [add]
    bare = claim("a", 7, nic, cpus(2))
    first = {"op": "add", "path": path, "value": []}
    assert patch_of(bare, results.results, stored, DRIVERS) == [first, add]
    assert patch_of(bare, stored, stored, DRIVERS) == []
    assert MACHINE == "cpudevmachine"
