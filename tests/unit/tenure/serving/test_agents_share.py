"""How many of its descriptors a service leaves to the connections of agents."""

from __future__ import annotations

import resource

import pytest

from tenure.serving.connections import AGENTS_MAX, agents_share


@pytest.mark.parametrize(
    ("descriptors", "agents"),
    [
        pytest.param(1_024, 512, id="half of few"),
        pytest.param(8_192, 4_096, id="half is as much as all but those of others"),
        pytest.param(16_096, 12_000, id="two for each of 6,000 nodes"),
        pytest.param(20_096, 16_000, id="two for each of 8,000 nodes"),
        pytest.param(65_536, AGENTS_MAX, id="no more than the most"),
        pytest.param(resource.RLIM_INFINITY, AGENTS_MAX, id="of as many as one likes"),
    ],
)
def test_agents_leave_room_to_others(descriptors: int, agents: int) -> None:
    """Half of the descriptors, or all but 4,096 where that is more."""
    assert agents_share(descriptors) == agents
