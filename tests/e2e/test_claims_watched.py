"""A service without a gate knows who holds cards by claims."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.domain.log.state import OBSERVED
from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.dra import (
    SCHEDULERS,
    SHARE,
    WHOLE,
    add_templates,
    bound_in,
    claiming,
    held,
    remove_claims,
    some_cards,
    stock_schedulers,
    stored,
    submit,
)
from tests.support.kube.schedulers import Identities, extender
from tests.support.process import tenure


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_claims_are_known_without_a_gate(
    plane: ControlPlane, namespace: Callable[..., str], ledger: str, identities: Identities
) -> None:
    """No driver is listed: what a stock scheduler gave is observed and told, no drift."""
    where = namespace()
    with (
        some_cards(plane, 1, prefix="watched"),
        stock_schedulers(plane, SCHEDULERS[:1]),
        extender(plane, ledger, identities),
    ):
        add_templates(plane, where)
        pods = [claiming(f"p{number}", template=kind) for number, kind in enumerate((WHOLE, SHARE))]
        submit(plane, where, pods)
        eventually(lambda: len(bound_in(plane.api(), where)) == len(pods))
        eventually(lambda: held(ledger) == stored(plane) != {})
        with open_ledger(ledger, mode="read") as opened:
            state = load_state(opened).state
        holders = [one for node in state.nodes.values() for one in node.claims.values()]
        assert {one.kind for one in holders} == {OBSERVED}
        assert {each.name for one in holders for each in one.consumers} == {"p0", "p1"}
        told = tenure("who", "watched-0", "--ledger", ledger, cwd=plane.folder)
        assert all(f"{where}/{one.pod_name}" in told.stdout for one in holders), told.stdout
        drift = tenure("drift", "--ledger", ledger, cwd=plane.folder)
        assert "Ungated" not in drift.stdout
        remove_claims(plane, where)
        eventually(lambda: not held(ledger))
