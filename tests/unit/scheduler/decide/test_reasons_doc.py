from __future__ import annotations

import re
from pathlib import Path

import pytest

from scheduler.decide.dialects.registry import CHOOSERS
from scheduler.decide.group import groups
from scheduler.decide.group import life as group_life
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.reasons import Reason

DOC = (Path(__file__).parents[4] / "docs" / "reasons.md").read_text()
OF_NODES = {reason.text for reason in vars(reasons).values() if isinstance(reason, Reason)}
OF_DIALECTS = {
    reason.text for each in CHOOSERS for reason in (*each.node_reasons, *each.search_reasons)
}
OF_GROUPS = {groups.MEMBERS_MISSING, groups.GANG_UNFIT, group_life.DEADLINE}
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
