from __future__ import annotations

import re
from dataclasses import replace

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import (
    LedgerEvent,
    NodeCleared,
    NodeInventoried,
    NodeLost,
    PodReleased,
    PodReserved,
)
from ledger.domain.log.machines import (
    Contradiction,
    cloned_ids,
    contradictions,
    ids_taken,
    is_witness,
    machine_of,
)
from ledger.domain.nodes import NodeFacts
from tests.support.folding import fold
from tests.support.violations import machine_violations, violations

SYSTEM, MACHINE = "4c4c4544-0042", "b4a1"


def card(device_id: str, minor: int = 0, *, unique: bool = True, core: int = 100) -> DeviceRecord:
    """Return a GPU with this id."""
    return DeviceRecord(
        device_type="gpu", minor=minor, device_id=device_id, core_percent=core, unique_id=unique
    )


def node(
    name: str,
    system: str = SYSTEM,
    machine: str = MACHINE,
    *cards: DeviceRecord,
    lost: bool = False,
) -> NodeFacts:
    """Return a Node object of a machine; its UID is `uid-<name>`."""
    return NodeFacts(
        uid=f"uid-{name}",
        name=name,
        system_uuid=system,
        machine_id=machine,
        devices=cards,
        lost=lost,
    )


def earlier(found: Contradiction) -> str:
    """Return the Node that claimed it before, as the detail names it."""
    name = re.search(r"(?:device of|machine id of|machine of|already, as) (\w+)\b", found.detail)
    assert name is not None, found
    return name[1]


def named(*nodes: NodeFacts) -> list[tuple[str, str, str]]:
    """Return the kind, the later claimant and the earlier one of each contradiction."""
    return [(each.kind, each.node_name, earlier(each)) for each in contradictions(nodes)]


def test_a_machine_is_both_ids_and_else_the_nodes_own() -> None:
    """An empty id equals nothing, not even another empty one."""
    assert machine_of(node("a")) == machine_of(node("b"))
    assert machine_of(node("a")) != machine_of(node("b", "other"))
    assert machine_of(node("a", "")) != machine_of(node("b", ""))
    assert machine_of(node("a", SYSTEM, "")) != machine_of(node("b", SYSTEM, ""))
    assert machine_of(node("a", "", "")) == machine_of(node("a", "", ""))


def test_two_live_nodes_of_one_machine_are_named() -> None:
    """The one that registered later is the claimant; a lost one claims nothing."""
    assert named(node("old"), node("new")) == [("MachineRegisteredTwice", "new", "old")]
    assert named(node("old", lost=True), node("new")) == []
    assert named(node("old"), node("new", lost=True)) == []
    assert named(node("a", "", ""), node("b", "", "")) == []


def test_a_witness_has_the_name_or_the_uid_of_the_lost_node() -> None:
    """Ids alone are no evidence, and another machine of the same name is none either."""
    lost, again = node("a", lost=True), replace(node("a"), uid="uid-new")
    assert is_witness(again, lost)
    assert is_witness(node("a", "other"), lost)
    others = [node("b"), node("a", "other"), node("a", "")]
    others = [others[0], *(replace(each, uid="uid-new") for each in others[1:])]
    assert [is_witness(each, lost) for each in others] == [False] * 3
    found = list(ids_taken([again, *others, node("c", lost=True)], [lost]))
    assert [(one.node_name, earlier(one)) for one in found] == [("b", "a")]
    assert list(ids_taken([node("b", "", ""), node("b")], [node("a", "", "", lost=True)])) == []


def test_a_machine_id_alone_is_shared_by_two_machines() -> None:
    """Named once a machine, with the Node that had it first; one without a system UUID too."""
    assert named(node("a"), node("b", "other")) == [("MachineIdCloned", "b", "a")]
    assert named(node("a"), node("b", "")) == [("MachineIdCloned", "b", "a")]
    assert named(node("a"), node("b", "x"), node("c", "y")) == [
        ("MachineIdCloned", "b", "a"),
        ("MachineIdCloned", "c", "a"),
    ]
    assert named(node("a"), node("b", "x", "other")) == []
    assert named(node("a", lost=True), node("b", "x")) == []


def test_the_same_card_on_two_live_machines_is_named() -> None:
    """Only ids that are unique in the world; the later claimant with its minor."""
    found = contradictions(
        [node("a", "x", "1", card("GPU-7")), node("b", "y", "2", card("GPU-7", 3), card("GPU-8"))]
    )

    (only,) = found
    assert (
        str(only) == "b: DeviceIdCloned: gpu 3 has the id of a device of a,"
        " both are closed to new grants: device_id=GPU-7"
    )
    assert (only.device, earlier(only)) == (card("GPU-7", 3), "a")
    local = card("0000:3b:00.0", unique=False)
    assert named(node("a", "x", "1", local), node("b", "y", "2", local)) == []
    lost = node("a", "x", "1", card("GPU-7"), lost=True)
    assert named(lost, node("b", "y", "2", card("GPU-7"))) == []


def test_one_machine_lists_its_cards_twice_without_a_clone() -> None:
    """Registered again a machine still has the cards it had."""
    twice = [node("a", SYSTEM, MACHINE, card("GPU-7")), node("b", SYSTEM, MACHINE, card("GPU-7"))]

    assert cloned_ids(twice) == {}
    assert named(*twice) == [("MachineRegisteredTwice", "b", "a")]


def inventoried(
    name: str, *cards: DeviceRecord, system: str = SYSTEM, refs: int = 1
) -> NodeInventoried:
    """Return what a Node of the machine has."""
    return NodeInventoried(
        node_uid=f"uid-{name}",
        node_name=name,
        system_uuid=system,
        machine_id=MACHINE if system else "",
        devices=cards or (card("GPU-7"),),
        cpu_ref_count_max=refs,
    )


def reserved(
    pod: str, name: str, core: int = 100, *, exclusive: bool = False, cpus: str = ""
) -> PodReserved:
    """Return a promise of a part of GPU-7, none with 0, and of CPUs."""
    part = DeviceShare(
        device_type="gpu", minor=0, device_id="GPU-7", core_percent=core, exclusive=exclusive
    )
    return PodReserved(
        pod_uid=f"uid-{pod}",
        attempt=1,
        namespace="ml",
        pod_name=pod,
        node_uid=f"uid-{name}",
        node_name=name,
        cpu_milli=0,
        memory_bytes=0,
        shares=(part,) if core else (),
        cpuset=parse_cpuset(cpus),
    )


def lost(name: str) -> NodeLost:
    """Return the loss of a Node."""
    return NodeLost(node_uid=f"uid-{name}", node_name=name, reason="deleted")


def found(*events: LedgerEvent) -> list[str]:
    """Return what several Nodes of one machine promise too much of, after these events."""
    return [str(each) for each in machine_violations(fold(enumerate(events, 1)).values())]


def test_a_card_that_two_nodes_of_one_machine_promise_is_found() -> None:
    """Each Node alone is within what it has; the sum is not."""
    events = (
        inventoried("old"),
        inventoried("new"),
        reserved("p", "old", 60, exclusive=True),
        reserved("q", "new", 50),
    )
    assert not [v for each in fold(enumerate(events, 1)).values() for v in violations(each)]

    assert found(*events) == [
        "old+new/gpu/GPU-7: core promised beyond capacity: 110 of 100 percent",
        "old+new/gpu/GPU-7: exclusive holder is not alone: holders=2",
    ]
    assert found(*events[:3], reserved("q", "new", 0)) == []
    other = inventoried("new", system="another")
    assert found(events[0], other, *events[2:]) == []


def test_what_a_lost_node_holds_counts_until_it_is_cleared() -> None:
    """A release does not open it either."""
    held = (inventoried("old"), reserved("p", "old", 60), lost("old"), inventoried("new"))
    released = PodReleased(pod_uid="uid-p", attempt=1, node_uid="uid-old", reason="gone")
    cleared = NodeCleared(node_uid="uid-old", node_name="old", evidence="act")
    second = reserved("q", "new", 50)

    assert found(*held, second) == found(*held, released, second) != []
    assert found(*held, cleared, second) == []


def test_a_cpu_that_two_nodes_of_one_machine_promise_is_found() -> None:
    """Within the reference count it is none."""
    pods = (reserved("p", "old", 0, cpus="0-3"), reserved("q", "new", 0, cpus="3-4"))

    assert found(inventoried("old"), inventoried("new"), *pods) == [
        "old+new/cpu/3: more holders than allowed: 2 of 1"
    ]
    assert found(inventoried("old", refs=2), inventoried("new", refs=2), *pods) == []


def test_what_a_node_held_before_it_became_another_machine_stays_where_it_was() -> None:
    """It counts for the machine that was left, and for no device of the new one."""
    moved = (inventoried("n"), reserved("p", "n", 60), inventoried("n", system="another"))

    assert found(*moved, inventoried("stays"), reserved("q", "stays", 50)) == [
        "n+stays/gpu/GPU-7: core promised beyond capacity: 110 of 100 percent"
    ]
    there = inventoried("there", system="another")
    assert found(*moved, there, reserved("q", "there", 50)) == []


def test_a_node_that_begins_to_tell_its_machine_keeps_what_it_holds_there() -> None:
    """It was that machine all along; and what it stops telling, it still is."""
    told = (inventoried("n", system=""), reserved("p", "n", 60), inventoried("n"))

    for events in (told, (*told, inventoried("n", system=""))):
        assert found(*events, inventoried("new"), reserved("q", "new", 50)) != []
