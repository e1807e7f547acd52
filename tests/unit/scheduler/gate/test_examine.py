"""What is found of the way to the gate, by what the API says and answers."""

from __future__ import annotations

from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from scheduler.gate import examine
from scheduler.gate.configuration import OPEN
from tests.support.manifests import printed

DRIVER = "gpu.example.com"


def printed_for(*drivers: str) -> dict[str, Any]:
    """Return the configuration that is printed for these drivers."""
    with NamedTemporaryFile() as file:
        file.write(b"-----BEGIN CERTIFICATE-----\nx")
        file.flush()
        return printed("dra", "--ca", file.name, *(f"--driver={one}" for one in drivers))[0]


GOOD = printed_for(DRIVER)


def changed(**hook: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the configuration with other fields of its webhook."""
    return {**GOOD, "webhooks": [{**GOOD["webhooks"][0], **hook}]}


@pytest.mark.parametrize(
    ("there", "drivers", "states"),
    [
        pytest.param([GOOD], [], ["ok", "ok"], id="as it is printed"),
        pytest.param([{"webhooks": None}, GOOD], [DRIVER], ["ok", "ok"], id="beside another"),
        pytest.param([], [], ["wrong"], id="none"),
        pytest.param([GOOD], [DRIVER, "b"], ["wrong", "ok"], id="of fewer drivers"),
        pytest.param([changed(failurePolicy="Ignore")], [], ["wrong", "ok"], id="fails open"),
        pytest.param([changed(matchConditions=[])], [], ["wrong", "ok"], id="of no drivers"),
        pytest.param([changed(clientConfig={})], [], ["ok", "wrong"], id="no authority"),
        pytest.param([changed(clientConfig={"caBundle": "?"})], [], ["ok", "wrong"], id="broken"),
    ],
)
def test_the_configuration_is_looked_at(
    there: list[dict[str, Any]], drivers: list[str], states: list[str]
) -> None:
    """What is wrong comes with what to do about it."""
    found, _ = examine.of_configurations(there, drivers)
    assert [one.state for one in found] == states
    assert all(bool(one.mend) == (one.state != "ok") for one in found)


def test_the_drivers_are_those_that_it_was_printed_for() -> None:
    """Read back out of its expression."""
    two = printed_for("b.example.com", "a.example.com")
    assert examine.of_configurations([two], [])[1] == ("a.example.com", "b.example.com")


NAME = 'webhook "claims.dra.tenure.sh"'


@pytest.mark.parametrize(
    ("refusal", "state", "says"),
    [
        (f"admission {NAME} denied the request: NodeUnknown: no n", "ok", "NodeUnknown: no n"),
        ("", "wrong", "without asking"),
        (f"failed calling {NAME}: x509: certificate signed by unknown authority", "wrong", "x509"),
        (f"failed calling {NAME}: an error on the server: standby", "wrong", "standby"),
        ("resourceclaims is forbidden: user may not", "not known", "may not"),
    ],
    ids=["answered", "stored", "wrong authority", "a standby", "no right"],
)
def test_what_a_dry_run_was_answered_is_told(refusal: str, state: str, says: str) -> None:
    """Only a word of the gate's own proves the way."""
    found = examine.of_trial(refusal)
    assert (found.state, says in found.says) == (state, True)


def deployed(*args: str, env: str = "") -> dict[str, Any]:
    """Return a Deployment whose command has these words."""
    container = {"args": list(args), "env": [{"name": env}] if env else []}
    return {
        "metadata": {"name": "tenure-scheduler"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def test_a_listener_that_anybody_may_call_is_told() -> None:
    """A forged review reserves cards for nobody."""
    gate, asked = ("--gate", "0.0.0.0:8445"), "TENURE_SCHEDULER_GATE_CLIENT_CA"
    open_to_all = examine.of_deployments([deployed(), deployed(*gate, "--gate-open")])
    assert (open_to_all.state, "--gate-client-ca" in open_to_all.mend) == ("warning", True)
    assert OPEN in open_to_all.says
    assert examine.of_deployments([deployed(*gate)]).state == "wrong"
    assert examine.of_deployments([deployed(*gate, "--gate-client-ca", "f")]).state == "ok"
    assert examine.of_deployments([deployed(*gate, env=asked)]).state == "ok"
    assert examine.of_deployments([deployed()]).state == "not known"


def test_own_pods_with_claims_are_told() -> None:
    """Who answers the gate would wait for it."""
    plain = {"metadata": {"name": "a"}, "spec": {}}
    claiming = {"metadata": {"name": "b"}, "spec": {"resourceClaims": [{"name": "gpu"}]}}
    assert examine.of_pods([plain]).state == "ok"
    assert "b" in examine.of_pods([plain, claiming]).says
