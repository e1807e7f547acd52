from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledger.domain.nodes import NodeFacts
from scheduler.decide.dialects.registry import CHOOSERS
from scheduler.decide.group import groups
from scheduler.decide.group import life as group_life
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.reasons import Reason
from scheduler.service.starts import ELSEWHERE, GANG_BACKOFF, MEMBERS_GATED

DOC = (Path(__file__).parents[4] / "docs" / "reasons.md").read_text()
OF_NODES = {reason.text for reason in vars(reasons).values() if isinstance(reason, Reason)}
OF_DIALECTS = {
    reason.text for each in CHOOSERS for reason in (*each.node_reasons, *each.search_reasons)
}
OF_GROUPS = {
    groups.MEMBERS_MISSING,
    groups.GANG_UNFIT,
    group_life.DEADLINE,
    GANG_BACKOFF,
    MEMBERS_GATED,
    ELSEWHERE,
}
NEVER_SAID = {reasons.UNEXPLAINED.text, reasons.NODE_ABSENT.text}
TEXTS = sorted((OF_NODES | OF_DIALECTS | OF_GROUPS) - NEVER_SAID)


@pytest.mark.parametrize("text", TEXTS)
def test_every_reason_is_in_the_list_that_users_look_it_up_in(text: str) -> None:
    """A reason that the message can carry stands in the table, as it is or as it begins."""
    assert re.search(rf"`{re.escape(text)}[` ]", DOC)


def test_the_words_of_the_cpu_picker_have_a_remedy() -> None:
    """Its own texts are the ones that `reasons` knows what to do about."""
    for reason in (reasons.NOT_WHOLE_CORES, reasons.BIND_POLICY_CONFLICT):
        assert reasons.closer_look(reason.text).remedy == reason.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("koordinator.sh/gpu-core", "run the agent with --node there"),
        (
            "kubernetes.io/gpu-core",
            "set admission's domain to koordinator.sh, and run the agent with --node there",
        ),
        ("nvidia.com/gpu", "run NVIDIA's device plugin there"),
        ("amd.com/gpu", "run its vendor's device plugin there"),
        ("huawei.com/npu-core", "run its vendor's device plugin there"),
        ("tenure.sh/slot", "run the agent with --mode plugin there"),
        ("vke.volcengine.com/mgpu-core", "run the agent with --offers mgpu there"),
        ("aliyun.com/gpu-mem", "run the agent with --offers gpushare there"),
    ],
)
def test_who_advertises_a_name_is_told_by_the_name(name: str, remedy: str) -> None:
    """Of the names that a node lacks the first counts; the closer look knows the same remedy."""
    node = NodeFacts(uid="a", name="a", advertised=("koordinator.sh/gpu",))
    found = reasons.not_offered(("koordinator.sh/gpu", name, "x.com/y"), node)
    text = f"NodeNotOffered: the node does not advertise {name}: {remedy}"
    assert found == Reason(text=text, remedy=remedy)
    assert reasons.closer_look(text) == found


def test_a_node_of_which_it_is_not_known_what_it_advertises_is_not_blamed() -> None:
    """Nor is one that has all names."""
    known, unknown = ("nvidia.com/gpu",), None
    for there in (known, unknown):
        node = NodeFacts(uid="a", name="a", advertised=there)
        assert reasons.not_offered(("nvidia.com/gpu",), node) is None
