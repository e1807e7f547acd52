from __future__ import annotations

import gc

from tenure.serving.memory import give_back, look_seldom


def test_cycles_are_looked_for_seldom_until_a_start_is_over() -> None:
    """And then more often, but seldom beside many who wait, and no more in what the start made."""
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        look_seldom()
        at_start = gc.get_threshold()[0]
        assert at_start > 1_000 * usual[0]
        there = [[number] for number in range(1000)]

        give_back()

        assert 50 * usual[0] < gc.get_threshold()[0] < at_start
        assert gc.get_freeze_count() > frozen
        assert len(there) == 1000
    finally:
        gc.set_threshold(*usual)
