"""One account per physical device: Nodes come and go over a machine, what is held stays held."""

# ruff: noqa: ANN401 - a builder takes any field of its event

from __future__ import annotations

from typing import Any, Final

import pytest
from sqlalchemy import Connection
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError

from ledger.domain.cpuset import cpuset_of
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import (
    LedgerEvent,
    NodeCleared,
    NodeInventoried,
    NodeLost,
    PodAssigned,
)
from ledger.store.projections.known import load_nodes
from ledger.store.projections.rebuild import rebuild
from ledger.store.reading.report_queries import (
    cpu_holders,
    device_holders,
    devices,
    pod_holders,
    usage,
)
from ledger.store.reading.views import When
from tests.support.recorded import Recorded
from tests.support.stores import (
    MONDAY_US,
    Store,
    gpu,
    health,
    node,
    observed,
    planned,
    released,
    reserved,
    share,
    start,
)

PROJECTIONS = "ledger.store.projections"
CARDS = tuple(gpu(minor, node="m", unique_id=True) for minor in range(2))


def on_m(name: str, **changes: Any) -> NodeInventoried:
    """Return the inventory of a Node that stands on the machine `m`, with two cards and CPUs."""
    words: dict[str, Any] = {
        "system_uuid": "system-m",
        "machine_id": "machine-m",
        "boot_id": "boot-1",
        "devices": CARDS,
        "cpus": 2,
    }
    return node(name, **words | changes)


def holder(pod: str, name: str, minor: int = 0, **changes: Any) -> LedgerEvent:
    """Return the grant of a whole card of the machine, alone, through one of its Nodes."""
    whole = share(minor, 100, node="m", exclusive=True)
    return reserved(pod, whole, node=name, **changes)


def lost(name: str, reason: str = "deleted") -> NodeLost:
    """Return the loss of a Node."""
    return NodeLost(node_uid=f"uid-{name}", node_name=name, reason=reason)


def closed(it: Recorded) -> dict[str, str]:
    """Return why each device takes no grants, by id; empty where it does."""
    with it.ledger.connection.begin():
        return {each.device_id: each.closed_reason for each in devices(it.ledger.connection)}


def cleared(name: str, evidence: str, witness: str = "") -> NodeCleared:
    """Return that nothing runs any more which a lost Node's Pods held."""
    return NodeCleared(
        node_uid=f"uid-{name}",
        node_name=name,
        evidence=evidence,
        witness_uid=f"uid-{witness}" if witness else "",
    )


def test_two_nodes_of_one_machine_are_one_account(store: Store) -> None:
    """A card or CPU that is held through one Node is not granted through the other."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1", cpus=(0,)), on_m("n-2"))
        it.refuses(holder("b", "n-2"), "has 0 of 100 percent core left, 100 asked")
        it.refuses(reserved("b", node="n-2", cpus=(0,)), "has 1 of 1 holders, one more asked")
        it.add(holder("b", "n-2", 1, cpus=(1,)))
        it.refuses(holder("c", "n-1", 1), "has 0 of 100 percent core left, 100 asked")

        assert it.proved()


def test_who_takes_over_reads_what_a_machine_has_once_something_is_done_to_it(store: Store) -> None:
    """A large ledger has a million CPUs: a start is told of none, and a grant of its machine's."""
    with store.open() as ledger:
        Recorded(ledger, on_m("n-1"), node("n-2", cpus=2), holder("a", "n-1"))
        said: list[str] = []
        listen(ledger.connection, "before_cursor_execute", lambda *words: said.append(words[2]))
        with ledger.connection.begin():
            nodes, machines = load_nodes(ledger.connection)
            assert "FROM ledger_cpus" not in " ".join(" ".join(said).split())
            numbers = {uid: node.number for uid, node in nodes.items()}
            machine = nodes["uid-n-1"].machine
            assert machine.cpus == dict.fromkeys(range(2), numbers["uid-n-1"])
            assert [each.device_id for each in machine.devices] == [c.device_id for c in CARDS]
            highest = [each.number for one in nodes.values() for each in one.machine.devices]
            assert machines.last_device == max(highest)


def test_a_writer_that_took_over_grants_what_is_there_and_nothing_else(store: Store) -> None:
    """Its first grants of a machine are judged by what the ledger has of it, CPU by CPU."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1", cpus=(0,)))
        it.writer = start(ledger)
        it.refuses(reserved("b", node="n-1", cpus=(2,)), "no such CPU")
        it.refuses(holder("b", "n-1", 5), "no such card")
        it.add(holder("b", "n-1", 1, cpus=(1,)))

        assert it.proved()


def test_a_deleted_node_keeps_its_cards_held(store: Store) -> None:
    """Usage ends with the Node; the account opens for the next Node only when it is cleared."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1", cpus=(0,)), lost("n-1"))
        it.refuses(holder("x", "n-1", 1), "the node is lost")
        it.add(on_m("n-2"))
        it.refuses(holder("b", "n-2"), "has 0 of 100 percent core left, 100 asked")
        it.refuses(released("a"), "what it held opens when the machine is cleared")
        with ledger.connection.begin():
            for name in ("n-1", "n-2"):
                (held,) = device_holders(ledger.connection, node=name, device_type="gpu", minor=0)
                (cpu,) = cpu_holders(ledger.connection, When(), node=name, cpus=cpuset_of((0,)))
                whole = pod_holders(ledger.connection, node=name)
                assert [(each.pod_name, each.phase) for each in (held, cpu, *whole)] == [
                    ("a", "lost")
                ] * 3
        it.add(cleared("n-1", "act"), holder("b", "n-2", cpus=(0,)))

        assert it.proved()


@pytest.mark.parametrize(
    ("nodes", "clearing", "opens"),
    [
        pytest.param([on_m("n-2")], cleared("n-1", "boot", "n-2"), False, id="the same boot"),
        pytest.param(
            [on_m("n-2", boot_id="boot-2")], cleared("n-1", "boot", "n-2"), True, id="another boot"
        ),
        pytest.param([on_m("n-2", boot_id="")], cleared("n-1", "boot", "n-2"), False, id="no boot"),
        pytest.param(
            [on_m("n-2", boot_id="boot-2", system_uuid="other")],
            cleared("n-1", "boot", "n-2"),
            False,
            id="the boot of another machine",
        ),
        pytest.param(
            [on_m("n-2", boot_id="boot-2", by_agent=True)],
            cleared("n-1", "boot", "n-2"),
            False,
            id="another boot where an agent reports",
        ),
        pytest.param(
            [on_m("n-2", by_agent=True)], cleared("n-1", "agent", "n-2"), True, id="its agent"
        ),
        pytest.param(
            [on_m("n-2")], cleared("n-1", "agent", "n-2"), False, id="an agent unheard of"
        ),
        pytest.param(
            [on_m("n-2", by_agent=True), lost("n-2")],
            cleared("n-1", "agent", "n-2"),
            False,
            id="the agent of a lost node",
        ),
        pytest.param(
            [on_m("n-1", system_uuid="system-k", boot_id="boot-2", by_agent=True)],
            cleared("n-1", "agent", "n-1"),
            False,
            id="the agent of the machine that it went to",
        ),
        pytest.param(
            [on_m("n-1", system_uuid="system-k", boot_id="boot-2")],
            cleared("n-1", "boot", "n-1"),
            False,
            id="the boot of the machine that it went to",
        ),
        pytest.param([], cleared("n-1", "boot"), False, id="nobody"),
        pytest.param([], cleared("n-1", "act"), True, id="an act"),
        pytest.param([], cleared("n-1", "a rumour"), False, id="a word of its own"),
    ],
)
def test_what_opens_the_account_of_a_lost_node(
    store: Store, nodes: list[LedgerEvent], clearing: LedgerEvent, *, opens: bool
) -> None:
    """The agent, another boot where no agent ever reported, or an act, and nothing else."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), lost("n-1"), *nodes)
        if not opens:
            it.refuses(clearing, "nothing shows that|no event .* ends the reservation")
        else:
            it.add(clearing, on_m("n-3"), holder("b", "n-3"))

        assert it.proved()


@pytest.mark.parametrize("evidence", ["agent", "boot"])
def test_a_witness_speaks_after_the_loss(store: Store, evidence: str) -> None:
    """What another Node of the machine told before it says nothing of who runs there now."""
    before = on_m("n-2", boot_id="boot-2", by_agent=evidence == "agent")
    with store.open() as ledger:
        it = Recorded(ledger, before, on_m("n-1"), holder("a", "n-1"), lost("n-1"))
        it.refuses(cleared("n-1", evidence, "n-2"), "nothing shows that the machine is cleared")
        it.add(before, cleared("n-1", evidence, "n-2"), holder("b", "n-2"))

        assert it.proved()


def test_holders_of_a_node_that_joins_close_the_machine(store: Store) -> None:
    """They run there on CPUs that no account of the machine knows, whichever Node is asked."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), observed("o", node="n-2", cpus=(0,)), on_m("n-2"))
        for name in ("n-1", "n-2"):
            it.refuses(reserved("a", node=name, cpus=(0,)), "has holders from another machine")
        it.add(released("o", node="n-2"), reserved("a", node="n-1", cpus=(0,)))

        assert it.proved()


def test_a_boot_that_another_node_told_before_the_loss_is_no_new_one(store: Store) -> None:
    """The lost Node had not told of it, but its Pods may have come after it."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), on_m("n-2", boot_id="boot-2"), holder("a", "n-1"))
        it.add(lost("n-1"), on_m("n-2", boot_id="boot-2"))
        it.refuses(cleared("n-1", "boot", "n-2"), "nothing shows that the machine is cleared")
        it.add(on_m("n-2", boot_id="boot-3"), cleared("n-1", "boot", "n-2"), holder("b", "n-2"))

        assert it.proved()


def test_a_boot_is_known_whoever_told_it_and_wherever_he_went(store: Store) -> None:
    """The Node that told of it is on another machine by the loss; the Pod may run behind it."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), on_m("n-2", boot_id="boot-2"))
        it.add(on_m("n-2", system_uuid="system-k", devices=()), lost("n-1"))
        it.add(on_m("n-1", boot_id="boot-2"))
        it.refuses(cleared("n-1", "boot", "n-1"), "nothing shows that the machine is cleared")
        it.add(on_m("n-1", boot_id="boot-3"), cleared("n-1", "boot", "n-1"), holder("b", "n-1"))

        assert it.proved()


_OF_N_2: Final = "fact_position = 5 WHERE node_no = 2"
STANDS: Final = {
    "as it told": (True, f"UPDATE ledger_stands SET boot_id = 'boot-2', {_OF_N_2}"),
    "another boot": (False, f"UPDATE ledger_stands SET boot_id = 'boot-3', {_OF_N_2}"),
    "the agent unheard": (
        False,
        f"UPDATE ledger_stands SET boot_id = 'boot-2', by_agent = 0, {_OF_N_2}",
    ),
    "another machine": (
        False,
        f"UPDATE ledger_stands SET boot_id = 'boot-2', machine_no = 2, {_OF_N_2}",
    ),
    "another node": (
        False,
        "UPDATE ledger_stands SET boot_id = 'boot-2', fact_position = 5 WHERE node_no = 1",
    ),
}


@pytest.mark.parametrize(("taken", "statement"), STANDS.values(), ids=list(STANDS))
def test_what_is_known_of_a_machine_is_what_its_nodes_told(
    store: Store, statement: str, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    """By plain SQL as well, in the transaction that records the event; an agent stays heard."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), on_m("n-2", by_agent=True), on_m("k", system_uuid="k"))
        monkeypatch.setattr(f"{PROJECTIONS}.project.Projection._stands", lambda *_, **__: None)
        told = it.clock.new(on_m("n-2", boot_id="boot-2"))

        def change(connection: Connection) -> None:
            connection.exec_driver_sql(statement)

        if taken:
            it.writer.commit([told], beside=change)
            monkeypatch.undo()
            assert it.proved()
        else:
            with pytest.raises(DBAPIError, match="facts of a node on a machine change with"):
                it.writer.commit([told], beside=change)


def test_a_loss_is_at_the_newest_boot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes the rows: a lost Pod is compared with what the machine was told by then."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"))
        monkeypatch.setattr(f"{PROJECTIONS}.inventory.KnownMachine.boot_id", lambda _: "boot-0")
        it.refuses(lost("n-1"), "no event at position 4 loses the node of pod team-a/a")


def test_a_second_loss_of_the_node_does_not_undo_a_boot(store: Store) -> None:
    """Whoever was lost before the boot does not run behind it, whenever the Node is lost again."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), lost("n-1"), on_m("n-1"))
        it.add(holder("b", "n-1", 1), on_m("n-2", boot_id="boot-2"))
        it.add(released("b"), lost("n-1"), cleared("n-1", "boot", "n-2"), holder("c", "n-2"))

        assert it.proved()


def test_an_agent_speaks_for_the_machine_that_it_is_on(store: Store) -> None:
    """A Node that it reported through is no word of it on another machine, and stays one here."""
    elsewhere = {"system_uuid": "system-k", "devices": ()}
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"))
        it.add(on_m("n-2", by_agent=True, **elsewhere), lost("n-1"), on_m("n-2"))
        it.refuses(cleared("n-1", "agent", "n-2"), "nothing shows that the machine is cleared")
        it.add(on_m("n-2", by_agent=True), on_m("n-2", **elsewhere))
        it.add(on_m("n-3", boot_id="boot-2"))
        it.refuses(cleared("n-1", "boot", "n-3"), "nothing shows that the machine is cleared")
        it.add(on_m("n-2"), cleared("n-1", "agent", "n-2"), holder("b", "n-2"))

        assert it.proved()


def test_a_node_comes_back_to_its_machine(store: Store) -> None:
    """It may name fewer CPUs than before it went; what it told there is known once."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), on_m("n-1", system_uuid="system-k"))
        it.add(on_m("n-1", cpus=1), on_m("n-1", system_uuid="system-k"), on_m("n-1", cpus=1))
        it.refuses(reserved("a", node="n-1", cpus=(1,)), "cpu n-1/cpu/1 is gone")

        assert it.proved()


def test_usage_ends_with_the_node(store: Store) -> None:
    """What a lost Node's Pods hold is held, and counted no further."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), lost("n-1"))
        position = it.writer.head.at_us
        it.add(on_m("n-2"), on_m("n-2"), on_m("n-2"))
        with ledger.connection.begin():
            counted = usage(ledger.connection, "namespace", MONDAY_US, it.writer.head.at_us)
            until = usage(ledger.connection, "namespace", MONDAY_US, position)

        assert counted == until
        assert until[0].gpu_hours > 0
        assert it.proved()


def test_a_lost_node_that_comes_back_keeps_what_was_lost(store: Store) -> None:
    """Its new Pods are its own; the old ones wait for the clearing, whatever phase is told."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), lost("n-1"), on_m("n-1"))
        it.add(PodAssigned(pod_uid="uid-a", attempt=1, node_uid="uid-n-1"))
        it.add(holder("b", "n-1", 1))
        it.refuses(holder("c", "n-1"), "has 0 of 100 percent core left, 100 asked")
        it.add(cleared("n-1", "act"), holder("c", "n-1"), released("b"), holder("d", "n-1", 1))

        assert it.proved()


def test_an_empty_machine_equals_nothing(store: Store) -> None:
    """Nodes that do not tell both ids are machines of their own; only unique ids are compared."""
    plain = tuple(gpu(0, node="m", device_id="0000:3b:00.0") for _ in range(1))
    with store.open() as ledger:
        it = Recorded(
            ledger,
            on_m("n-1", system_uuid="", devices=plain, cpus=2),
            on_m("n-2", system_uuid="", devices=plain, cpus=2),
        )
        held = share(0, 100, device_id="0000:3b:00.0", exclusive=True)
        it.add(reserved("a", held, cpus=(0,)), reserved("b", held, node="n-2", cpus=(0,)))

        assert it.proved()


def test_machines_that_share_machine_id_alone_are_two(store: Store) -> None:
    """A cloned image is no second Node of a machine."""
    other = tuple(gpu(minor, node="k", unique_id=True) for minor in range(2))
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), on_m("n-2", system_uuid="system-k", devices=other))
        it.add(holder("a", "n-1", cpus=(0,)))
        it.add(reserved("b", share(0, 100, node="k"), node="n-2", cpus=(0,)))

        assert it.proved()


def test_one_uuid_on_two_live_machines_closes_both(store: Store) -> None:
    """Holders stay, nobody comes; the refusal names the other one."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), reserved("a", share(0, 50, node="m"), node="n-1"))
        it.add(on_m("n-2", system_uuid="system-k"))
        it.refuses(reserved("b", share(0, 50, node="m"), node="n-1"), "is also n-2/gpu/0")
        it.refuses(reserved("b", share(0, 50, node="m"), node="n-2"), "is also n-1/gpu/0")
        it.add(on_m("n-2", system_uuid="system-k", devices=()))
        it.add(reserved("b", share(0, 50, node="m"), node="n-1"))

        assert it.proved()


def test_a_card_that_moved_opens_when_its_holders_left(store: Store) -> None:
    """The other machine has it now; those who held it on the first one are still there."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), on_m("n-1", devices=CARDS[1:]))
        it.add(on_m("n-2", system_uuid="system-k", devices=CARDS[:1]))
        it.refuses(holder("b", "n-2"), "is also n-1/gpu/0")
        it.add(released("a"), holder("b", "n-2"))

        assert it.proved()


def test_a_node_that_tells_its_machine_later_keeps_its_account(store: Store) -> None:
    """Its own machine gets the name; another Node of that name is on the same one."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1", system_uuid="", machine_id=""), holder("a", "n-1"))
        it.add(on_m("n-1"), on_m("n-2"))
        it.refuses(holder("b", "n-2"), "has 0 of 100 percent core left, 100 asked")

        assert it.proved()


def test_a_card_held_before_it_had_an_id_is_held_with_one(store: Store) -> None:
    """Another Node of the machine told the id first, so that the card has two rows."""
    nameless = (gpu(0, node="m", device_id=""),)
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1", devices=nameless))
        it.add(reserved("a", share(0, 100, device_id="", exclusive=True), node="n-1"))
        it.add(on_m("n-2"), on_m("n-1"))
        it.refuses(holder("b", "n-1"), "may be held from before it had an id")
        assert closed(it) == {"": "gone", "GPU-m-0": "held before its id", "GPU-m-1": ""}
        it.add(released("a"), holder("b", "n-1"))
        assert closed(it)["GPU-m-0"] == ""

        assert it.proved()


def test_a_node_on_another_machine_grants_once_its_holders_left(store: Store) -> None:
    """The Node is the same, the board is not: its Pods may still run there, with the same CPUs."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), reserved("a", node="n-1", cpus=(0,)))
        it.add(on_m("n-1", system_uuid="system-k"))
        it.refuses(
            reserved("b", node="n-1", cpus=(0,)), "node n-1 has holders from another machine"
        )
        it.add(released("a"), reserved("b", node="n-1", cpus=(0,)))

        assert it.proved()


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([on_m("n-1", system_uuid=""), on_m("n-1")], id="told later"),
        pytest.param(
            [on_m("n-1"), holder("a", "n-1"), on_m("n-2", system_uuid="system-k")],
            id="held before another machine listed it",
        ),
    ],
)
def test_a_rebuild_makes_the_same_machines(store: Store, events: list[LedgerEvent]) -> None:
    """Many events' rows go to the database at once, in an order in which each is right."""
    with store.open() as ledger:
        assert Recorded(ledger, *events).proved()
        assert rebuild(ledger).equal


def test_an_unknown_card_closes_every_node_of_the_machine(store: Store) -> None:
    """Somebody holds one of them, whichever Node it is seen on."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), observed("a", unknown_types=("gpu",)), on_m("n-2"))
        it.refuses(holder("b", "n-2"), "may be held by a Pod on an unknown card")

        assert it.proved()


def test_any_node_of_the_machine_tells_that_a_card_died(store: Store) -> None:
    """The card is the machine's, whichever Node listed it last."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), on_m("n-2"))
        it.add(health(0, healthy=False, device_id="GPU-m-0"))
        it.refuses(holder("a", "n-2"), "is unhealthy")
        it.add(health(0, healthy=True, node="n-2", device_id="GPU-m-0"), holder("a", "n-2"))

        assert it.proved()


def test_a_plan_names_cards_that_its_node_lists(store: Store) -> None:
    """Another Node of the machine lists them now; a writer that starts anew says the same."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), on_m("n-2"))
        it.refuses(planned("g", ("a", (0,))), "no such card")
        again = Recorded(ledger)
        again.clock = it.clock
        again.refuses(planned("g", ("a", (0,))), "no such card")


def test_a_plan_waits_on_the_node_that_it_names(store: Store) -> None:
    """A second Node of the machine changes nothing of where its places are."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), planned("g", ("a", (0,))), on_m("n-2"))
        it.refuses(holder("b", "n-2"), "waits for uid-a of group g")
        it.add(holder("a", "n-1"))

        assert it.proved()


def test_minor_and_uuid_of_a_share_are_of_one_card(store: Store) -> None:
    """Two Pods told minor 3 would both look for it; the refusal says where the card is."""
    mixed = share(1, 100, node="m", device_id="GPU-m-0", exclusive=True)
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"))
        it.refuses(reserved("a", mixed, node="n-1"), "which is at minor 0")
        it.add(on_m("n-1", devices=(gpu(1, node="m", device_id="GPU-m-0"),)))
        it.add(reserved("a", mixed, node="n-1"))

        assert it.proved()


def test_the_database_refuses_a_minor_that_is_not_the_cards(store: Store) -> None:
    """Whoever writes the rows: the holding has the minor that the inventory says."""
    with store.open() as ledger:
        Recorded(ledger, on_m("n-1"), holder("a", "n-1"))
    with store.raw() as raw, pytest.raises(Exception, match="asks for this card"):
        raw.execute(
            "INSERT INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes,"
            " memory_ratio_percent, exclusive, instances, kind, opened_at_us)"
            " SELECT position, 2, 0, 0, 0, 0, 0, 1, kind, opened_at_us FROM ledger_holdings"
        )


def test_a_second_reservation_of_the_pod_waits_for_the_clearing(store: Store) -> None:
    """The Pod's UID holds one reservation at a time, a lost one too."""
    with store.open() as ledger:
        it = Recorded(ledger, on_m("n-1"), holder("a", "n-1"), lost("n-1"), on_m("n-2"))
        with pytest.raises(CapacityError, match="already holds a reservation"):
            it.add(holder("a", "n-2", 1, attempt=2))
