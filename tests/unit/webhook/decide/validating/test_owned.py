"""Pods that would get onto nodes of ours by themselves; the API server's policy judges alike."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.vocabulary import Vocabulary
from tests.support.claiming import ALLOWED, ANYTHING, BY_NAME, CORE, REFUSED, wanting
from tests.support.kube.pods import WHOLE
from tests.support.requests_to_admit import MANAGED, UNMANAGED, change, creation, rules_of
from webhook.decide.settings import DEFAULT_ADMISSION
from webhook.decide.validating.validate import validate


def broken(body: dict[str, Any]) -> set[str]:
    """Return the rules that a new Pod of a namespace that has not opted in breaks."""
    answer = validate(creation(body), facts=UNMANAGED)
    return {item.rule for item in answer.refusals if item.mode == "enforce"}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_nobody_gets_onto_our_nodes_by_himself(body: dict[str, Any]) -> None:
    """Whoever made it, and in every namespace."""
    assert "OwnedNode" in broken(body)


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_other_nodes_go_on_serving_whom_they_serve(body: dict[str, Any]) -> None:
    """A name that others share is never refused by itself."""
    assert not broken(body)


def test_our_own_pods_tolerate_the_taint() -> None:
    """Admission gave them the toleration."""
    body = wanting(CORE, BY_NAME, schedulerName="tenure")
    assert "OwnedNode" not in str(validate(creation(body), facts=MANAGED))


def test_a_name_that_is_not_rewritten_is_none_that_our_nodes_advertise() -> None:
    """It is the plugin's (ADR 0033): a Pod with `nvidia.com/gpu` fits on no node of ours."""
    settings = replace(DEFAULT_ADMISSION, vocabulary=Vocabulary(whole_cards="nvidia"))
    assert validate(creation(wanting(WHOLE, ANYTHING)), settings, UNMANAGED).allowed


def test_a_toleration_that_comes_later_is_seen() -> None:
    """The API server lets a Pod gain one; a Pod that had it before loses its finalizer still."""
    before, after = wanting(CORE), wanting(CORE, BY_NAME)
    for old in (before, after):
        answer = validate(change(old, after), facts=MANAGED)
        assert ("OwnedNode" in rules_of(answer).values()) == (old is before)
    lighter = deepcopy(after)
    lighter["metadata"]["finalizers"] = []
    assert validate(change(after, lighter), facts=UNMANAGED).allowed


@pytest.mark.parametrize("amounts", [CORE, {"cpu": "2"}])
def test_our_scheduler_is_for_namespaces_that_opted_in(amounts: dict[str, str]) -> None:
    """Nobody completes a Pod elsewhere."""
    own_cpus = {"labels": {"koordinator.sh/qosClass": "LSR"}}
    body = wanting(amounts, schedulerName="tenure", priority=9500)
    body["metadata"] |= own_cpus if amounts != CORE else {}
    answer = validate(creation(body), facts=UNMANAGED)
    assert rules_of(answer)["spec.schedulerName"] == "OwnedNode"
    assert "OwnedNode" not in rules_of(validate(creation(body), facts=MANAGED)).values()


CLAIM = [{"name": "c", "resourceClaimName": "x"}]


@pytest.mark.parametrize("tolerations", [(), (BY_NAME,)], ids=["plain", "tolerates our taint"])
def test_our_scheduler_gives_no_claims_where_nobody_opted_in(
    tolerations: tuple[dict[str, str], ...],
) -> None:
    """A device by a claim is a device."""
    body = wanting({"cpu": "1"}, *tolerations, schedulerName="tenure", resourceClaims=CLAIM)
    answer = validate(creation(body), facts=UNMANAGED)
    assert rules_of(answer) == {"spec.schedulerName": "OwnedNode"}
    assert "a device by spec.resourceClaims" in answer.message
    assert validate(creation(body), facts=MANAGED).allowed
    del body["spec"]["resourceClaims"]
    assert validate(creation(body), facts=UNMANAGED).allowed
