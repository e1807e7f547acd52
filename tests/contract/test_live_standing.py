"""What a live scheduler compares before it takes a ledger over, out of either database."""

from __future__ import annotations

import asyncio

import pytest

from ledger.domain.log.standing import Witness
from ledger.store.mending.recover import incarnations
from scheduler.service.witnesses import set_back
from tenure.serving.scheduling.standing import PODS, examined, version_now
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.recovery import check, recovered, witness
from tests.support.stores import Clock, Store, bound, node, reserved, share, start


def _lived(store: Store) -> Witness:
    """Let two Pods be reserved for at versions of the API server's; return what was seen."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append(
            clock.all(
                node(),
                reserved("a", share(0), resource_version="90"),
                bound("a"),
                reserved("b", share(1), resource_version="100"),
            )
        )
        return witness(ledger)


def test_an_api_server_that_was_set_back_is_known_until_its_operator_says_so(store: Store) -> None:
    """Its versions are below one that a Pod was reserved at; a new incarnation counts anew."""
    seen = _lived(store)
    own, found, versions = examined(store.url, (), seen, check)
    assert (own.position, found.reason) == (seen.position, "")
    assert sorted(versions) == ["100", "90"]
    assert set_back(versions, "95").startswith("LedgerRecovering: the API server was set back")
    with store.open() as ledger:
        recovered(ledger, (), api_restored=True)
        assert incarnations(ledger)[0][-1].name == "i2"
    _, found, versions = examined(store.url, (), seen, check)
    assert (found.reason, versions) == ("", [])


@pytest.mark.parametrize(
    ("told", "there", "now"),
    [
        pytest.param("95", "101", "101", id="our watch is behind another replica's"),
        pytest.param("95", "96", "96", id="it was set back"),
        pytest.param("100", "", "100", id="what was told is enough, and it is not asked"),
        pytest.param("", "", "", id="Pods are listed anew"),
    ],
)
def test_a_watch_that_is_behind_is_no_api_server_that_was_set_back(
    told: str, there: str, now: str
) -> None:
    """Who takes over asks the API server itself before it says so."""
    page = {"metadata": {"resourceVersion": there}}
    api = ApiClient(ApiServer(objects={f"{PODS}?limit=1": page}), asyncio.sleep)
    assert asyncio.run(version_now(api, told, ["90", "100"])) == now
    assert len(api.calls) == bool(there)


def test_another_event_where_the_config_map_saw_one_is_another_history(store: Store) -> None:
    """By the chain at the position."""
    seen = _lived(store)
    other = Witness(
        origin=seen.origin,
        incarnation=seen.incarnation,
        epoch=seen.epoch,
        position=seen.position,
        chain="00" * 32,
    )
    _, found, _ = examined(store.url, (), other, check)
    assert "another event at the position" in found.reason
