"""How a service starts."""

from __future__ import annotations

import resource
import sys

from tenure.serving.run import SWITCH_SECONDS, run_service


def test_a_thread_that_computes_keeps_the_loop_waiting_for_a_millisecond() -> None:
    """Answers to people are worked out in such a thread, beside 6,000 agents."""
    before = sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)
    found: list[float] = []

    async def serve() -> None:
        found.append(sys.getswitchinterval())

    try:
        run_service(serve())
    finally:
        sys.setswitchinterval(before[0])
        resource.setrlimit(resource.RLIMIT_NOFILE, before[1])
    assert found == [SWITCH_SECONDS]
