"""Who holds cards by claims is known to a service without a gate, and where no gate is asked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ledger.domain.log.state import OBSERVED
from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    SCHEDULERS,
    SHARE,
    WHOLE,
    add_templates,
    asked,
    bound_in,
    claiming,
    claims_in,
    doubled,
    forged,
    given,
    held,
    remove_claims,
    request,
    settled_claims,
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


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_claim_of_an_exempt_namespace_is_observed_and_its_cards_are_given_to_nobody_else(
    plane: ControlPlane, namespace: Callable[..., str], ledger: str, identities: Identities
) -> None:
    """The API server asks nobody about a namespace: drift Ungated, and what is left goes on."""
    exempt, where, port, api = namespace(), namespace(), free_port(), plane.api()
    with (
        some_cards(plane, 1, prefix="exempt"),
        stock_schedulers(plane, SCHEDULERS[:1]),
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
        asked(plane, identities, port, exempt=[exempt]),
    ):
        for each in (exempt, where):
            add_templates(plane, each)
        submit(plane, where, [claiming("first", template=WHOLE)])
        eventually(lambda: held(ledger) == stored(plane) != {})
        assert 'what="granted"' in served.probe("metrics"), "the gate is asked elsewhere"

        submit(plane, exempt, [claiming("past", template=WHOLE)])
        eventually(lambda: len(held(ledger)) == 2 and held(ledger) == stored(plane))
        with open_ledger(ledger, mode="read") as opened:
            state = load_state(opened).state
        kinds = {
            one.namespace: (one.kind, [share.device_id for share in one.shares])
            for node in state.nodes.values()
            for one in node.claims.values()
        }
        kind, [taken] = kinds[exempt]
        assert kind == OBSERVED != kinds[where][0]
        [past] = api.get(claims_in(exempt)).body["items"]
        told = eventually(lambda: _ungated(plane, ledger))
        assert [one.partition(" ")[0] for one in told] == [f"{exempt}/{past['metadata']['name']}"]

        number = int(taken.rpartition("-")[2])
        body = {"metadata": {"name": "wants-it"}, "spec": request(uuid=taken)}
        made = api.create(claims_in(where), body)
        assert made.ok, made.message
        refused = api.replace(
            f"{claims_in(where)}/wants-it/status",
            {**made.body, "status": forged("exempt-0", number)},
        )
        assert refused.status == 409
        assert f"held by claim {exempt}/{past['metadata']['name']}" in refused.message

        submit(plane, where, [claiming(f"p{number}", template=WHOLE) for number in range(8)])
        settled_claims(plane, where, most=9)
        assert len(bound_in(api, where)) == 7, "all cards but the one of the exempt namespace"
        assert not doubled(given(api))
        eventually(lambda: held(ledger) == stored(plane))
        for each in (exempt, where):
            remove_claims(plane, each)
        eventually(lambda: not held(ledger))


def _ungated(plane: ControlPlane, ledger: str) -> list[str]:
    told = tenure("drift", "--ledger", ledger, "-o", "json", cwd=plane.folder)
    assert told.returncode in (0, 1), told.stderr
    return [one["words"] for one in json.loads(told.stdout) if one["kind"] == "Ungated"]
