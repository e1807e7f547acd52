"""A Pod is recorded whole or not at all, whichever of its parts is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ledger.domain.cpuset import cpuset_of
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from tests.support.recorded import Recorded
from tests.support.stores import (
    Store,
    gpu,
    health,
    node,
    observed,
    planned,
    released,
    reserved,
    share,
)

NIC = DeviceRecord(device_type="rdma", minor=0, device_id="0000:3b:00.0")
FPGA = DeviceRecord(device_type="fpga", minor=0, device_id="FPGA-0")
DEVICES = (FPGA, gpu(0), gpu(1), gpu(2), NIC)


def vf(bus_id: str, core: int = 1) -> DeviceShare:
    """Return a virtual function of the network card."""
    return share(0, core, gib=0, device_type="rdma", device_id=NIC.device_id, vf_bus_ids=(bus_id,))


FPGA_SHARE = share(0, 100, gib=0, device_type="fpga", device_id=FPGA.device_id)
WHOLE = reserved(
    "a", FPGA_SHARE, share(0, 100), share(1, 100), vf("0000:3b:00.2"), cpus=(0, 1), group="g"
)
PLAN = planned("g", ("a", (0, 1)), ("b", (2,)))


def rows(it: Recorded) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row that a reservation may write or change."""
    tables = (
        "ledger_devices",
        "ledger_cpus",
        "ledger_reservations",
        "ledger_holdings",
        "ledger_cpu_holdings",
        "ledger_slot_holdings",
        "ledger_planned_cards",
        "ledger_events",
        "ledger_streams",
    )
    with it.ledger.connection.begin():
        run = it.ledger.connection.exec_driver_sql
        return {
            table: sorted(map(tuple, run(f"SELECT * FROM {table}")), key=repr) for table in tables
        }


IN_THE_WAY: dict[str, tuple[list[LedgerEvent], LedgerEvent, str]] = {
    "the second card is held by others": (
        [PLAN, observed("x", share(1, 10))],
        WHOLE,
        "n-1/gpu/1 .* has 90 of 100 percent core left",
    ),
    "the first card is unhealthy": (
        [PLAN, health(0, healthy=False)],
        WHOLE,
        "n-1/gpu/0 .* is unhealthy",
    ),
    "another card waits for another member": (
        [PLAN],
        structs.replace(
            WHOLE, shares=(FPGA_SHARE, share(0, 100), share(2, 100), vf("0000:3b:00.2"))
        ),
        "n-1/gpu/2 .* waits for uid-b of group g",
    ),
    "the device of another type is taken": (
        [PLAN, reserved("x", FPGA_SHARE)],
        WHOLE,
        "n-1/fpga/0 .* has 0 of 100 percent core left",
    ),
    "the virtual function is taken": (
        [PLAN, reserved("x", vf("0000:3b:00.2"))],
        WHOLE,
        "n-1/0000:3b:00.2 has a holder",
    ),
    "a CPU is taken": (
        [PLAN, reserved("x", cpus=(1,))],
        WHOLE,
        "cpu n-1/cpu/1 has 1 of 1 holders",
    ),
    "a CPU is not there": (
        [PLAN],
        structs.replace(WHOLE, cpuset=cpuset_of((0, 99))),
        "no such CPU",
    ),
    "a card is not there": (
        [PLAN],
        structs.replace(WHOLE, shares=(*WHOLE.shares, share(7, 1, device_id="GPU-7"))),
        "no such card",
    ),
    "the Pod already holds something": (
        [PLAN, reserved("a", cpus=(3,), node="n-2")],
        WHOLE,
        "already holds a reservation",
    ),
}


@pytest.mark.parametrize(("known", "event", "message"), IN_THE_WAY.values(), ids=IN_THE_WAY.keys())
def test_one_part_that_is_refused_refuses_the_pod(
    store: Store, known: list[LedgerEvent], event: LedgerEvent, message: str
) -> None:
    """No card, function, CPU or place is touched, and no event is recorded."""
    with store.open() as ledger:
        it = Recorded(ledger, node(devices=DEVICES, cpus=4), node("n-2", cpus=4), *known)
        before = rows(it)
        it.refuses(event, message)

        assert rows(it) == before
        assert it.proved()


def test_the_whole_pod_is_recorded_at_once_and_given_back_at_once(store: Store) -> None:
    """All parts are there after one commit, the places are over, and one release frees it all."""
    with store.open() as ledger:
        it = Recorded(ledger, node(devices=DEVICES, cpus=4), PLAN)
        position = it.writer.append([it.clock.new(WHOLE)])
        after = rows(it)
        assert [row[0] for row in after["ledger_holdings"]] == [position] * 4
        assert [row[0] for row in after["ledger_cpu_holdings"]] == [position] * 2
        assert [row[1] for row in after["ledger_slot_holdings"]] == ["0000:3b:00.2"]
        assert [row[-1] for row in after["ledger_planned_cards"]] == [position, position, None]
        it.add(released("a"), structs.replace(WHOLE, pod_uid="uid-c", pod_name="c"))

        assert it.proved()


def test_a_batch_of_pods_is_recorded_whole(store: Store) -> None:
    """The members of a group go in together: the last one that is refused refuses the first."""
    with store.open() as ledger:
        it = Recorded(ledger, node(devices=DEVICES, cpus=4), reserved("x", cpus=(3,)))
        before = rows(it)
        with pytest.raises(CapacityError, match="cpu n-1/cpu/3"):
            it.writer.append(it.clock.all(PLAN, WHOLE, reserved("b", share(2, 100), cpus=(3,))))
        assert rows(it) == before
        it.writer.append(it.clock.all(PLAN, WHOLE, reserved("b", share(2, 100), cpus=(2,))))

        assert it.proved()
