"""What hostile neighbours of an agent reach on a real node, as docs/threat-model.md says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hostile.page import rows
from tests.support.hostile.real_node import ATTACKS, RealAttack, RealNode
from tests.support.node.agents import Agent, agent
from tests.support.node.node import Node
from tests.support.node.pods import Pods


@pytest.fixture(scope="module")
def attacked(machine: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent for all plays: what one of them did to it, the next one meets."""
    with agent(machine, tmp_path_factory.mktemp("attacked"), slots=2) as running:
        yield running


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: f"{one.who} {one.what}")
def test_what_came_is_what_the_page_says(attacked: Agent, pods: Pods, attack: RealAttack) -> None:
    """Word by word; the agent is there after it."""
    came = attack.play(RealNode(agent=attacked, pods=pods))

    assert rows(real=True)[attack.who, attack.what] == came
    attacked.node.until(attacked.is_ready, "it is not ready")
