from __future__ import annotations

import pytest

from ledger.domain.devices import DeviceShare
from scheduler.decide.nodes import node_arrays
from scheduler.decide.nodes.arrays import UNLIMITED
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import ChangeLog, NodeArrays
from tests.support.clusters import GIB, gpu_node, held


def _card(
    *shares: DeviceShare, card_bytes: int = 16 * GIB, unhealthy: bool = False
) -> DeviceArrays:
    closed = frozenset({0}) if unhealthy else frozenset[int]()
    devices = DeviceArrays("gpu", [gpu_node("n", 1, card_bytes=card_bytes, closed=closed)])
    for share in shares:
        devices.add(0, 0, share, 1)
    return devices


@pytest.mark.parametrize(
    ("shares", "left"),
    [
        pytest.param((), 100, id="an untouched card has all of itself left"),
        pytest.param((held(0, 81),), 19, id="a share leaves the rest"),
        pytest.param((held(0, 100),), 0, id="a card held alone has nothing left"),
        pytest.param(
            (DeviceShare(device_type="gpu", minor=0, device_id="", memory_bytes=1),),
            99,
            id="any tenant leaves less than a whole card",
        ),
        pytest.param(
            (DeviceShare(device_type="gpu", minor=0, device_id="", memory_bytes=8 * GIB),),
            50,
            id="memory limits what is left when core is free",
        ),
        pytest.param((held(0, 60), held(0, 60)), 0, id="an over-full card is closed"),
    ],
)
def test_what_is_left_of_a_card(shares: tuple[DeviceShare, ...], left: int) -> None:
    """`left` is the percent that one more tenant gets as core and as memory ratio at once."""
    assert _card(*shares).left.tolist() == [[left]]


def test_the_ratio_left_counts_the_byte_that_rounding_keeps() -> None:
    """Two floored 50 % shares fit a card of odd size, although bytes/size is below 50 %."""
    devices = _card(held(0, 50, card_bytes=1001), card_bytes=1001)

    assert devices.memory_free.item(0, 0) == 501
    assert devices.left.item(0, 0) == 50


def test_giving_back_restores_every_array() -> None:
    """A share added and removed leaves no trace."""
    fresh, used = _card(), _card()
    used.add(0, 0, held(0, 100), 1)
    used.add(0, 0, held(0, 100), -1)

    for name in ("core_free", "memory_free", "tenants", "exclusive", "instances", "left", "whole"):
        assert getattr(used, name).tolist() == getattr(fresh, name).tolist(), name


def test_cards_that_grant_nothing_are_closed_and_counted() -> None:
    """A closed card has nothing left, keeps its holders, and opens again."""
    unhealthy, barred = _card(unhealthy=True), _card(held(0, 30))
    barred.set_barred(0, 0, barred=True)

    for devices in (unhealthy, barred):
        assert (devices.left.item(0, 0), devices.closed_count) == (0, 1)
    barred.set_barred(0, 0, barred=False)
    unhealthy.put(0, gpu_node("n", 1))
    assert (barred.left.item(0, 0), barred.closed_count) == (70, 0)
    assert (unhealthy.left.item(0, 0), unhealthy.closed_count) == (100, 0)


def test_a_holder_of_an_unknown_card_closes_the_whole_row() -> None:
    """Nobody knows which card it is, so none is given out until the holder is gone."""
    devices = DeviceArrays("gpu", [gpu_node("n", 2)])

    devices.add_unknown(0, 1)
    assert devices.left_total.tolist() == [0]
    devices.add_unknown(0, -1)
    assert (devices.left_total.tolist(), devices.whole.tolist()) == ([200], [2])


def test_sums_follow_every_card() -> None:
    """`whole` and `left_total` are what counting anew would give."""
    devices = DeviceArrays("gpu", [gpu_node("a", 2), gpu_node("b", 4)])
    devices.add(1, 2, held(2, 40), 1)
    devices.add(1, 3, held(3, 100), 1)

    assert devices.left_total.tolist() == [200, 260]
    assert devices.whole.tolist() == [2, 2]


def test_a_node_without_limits_has_more_than_anyone_asks() -> None:
    """No limit is a number so large that it never binds and never overflows."""
    arrays = NodeArrays([gpu_node("n", cpu_milli=None, memory_bytes=None)])

    assert arrays.cpu_free.tolist() == arrays.memory_free.tolist() == [UNLIMITED]


def test_the_log_names_what_changed_since() -> None:
    """A reader gets the nodes in order, repeats included, and nothing once it is up to date."""
    log = ChangeLog()
    log.append(3, gave_back=False)
    seen = log.position
    log.append(1, gave_back=False)
    log.append(1, gave_back=False)

    since = log.since(seen)
    assert since is not None
    assert since.tolist() == [1, 1]
    assert log.since(log.position) is not None


def test_the_log_says_when_it_has_forgotten() -> None:
    """A reader that is too far behind must look at everything."""
    log = ChangeLog()
    for node in range(node_arrays._LOG_LENGTH + 1):
        log.append(node, gave_back=False)

    assert log.since(0) is None
    since = log.since(log.position - 2)
    assert since is not None
    assert since.tolist() == [node_arrays._LOG_LENGTH - 1, node_arrays._LOG_LENGTH]
