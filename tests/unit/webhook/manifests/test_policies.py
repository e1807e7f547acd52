"""The policies as objects: bound, narrow, and shown in the documentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.annotations.guarded import (
    ALLOCATION_ANNOTATIONS,
    CHECKPOINT_ANNOTATIONS,
    TOPOLOGY_ANNOTATIONS,
)
from webhook.decide.settings import DEFAULT_ADMISSION, Takeover
from webhook.manifests.fixed import owned_nodes
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions

OPERATIONS_DOC = Path(__file__).parents[4] / "docs" / "operations.md"


def pairs(options: PolicyOptions | None = None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return every policy with its binding."""
    made = policies(options or PolicyOptions())
    return list(zip(made[::2], made[1::2], strict=True))


@pytest.mark.parametrize(("policy", "binding"), pairs(), ids=lambda one: one["metadata"]["name"])
def test_every_policy_is_bound_and_says_what_is_wrong(
    policy: dict[str, Any], binding: dict[str, Any]
) -> None:
    """A policy without a binding does nothing, one without a message explains nothing."""
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    for validation in policy["spec"]["validations"]:
        assert validation["message"]
        assert len(validation["message"]) < 256


def test_every_guarded_annotation_is_in_a_policy() -> None:
    """They hold while our Pods are down, so the list is the webhook's own."""
    said = {policy["metadata"]["name"]: str(policy["spec"]) for policy, _ in pairs()}
    for name in ("tenure-pods", "tenure-bindings"):
        assert all(f'"{key}"' in said[name] for key in ALLOCATION_ANNOTATIONS)
    assert all(f'"{key}"' in said["tenure-checkpoints"] for key in CHECKPOINT_ANNOTATIONS)
    assert all(f'"{key}"' in said["tenure-topologies"] for key in TOPOLOGY_ANNOTATIONS)


def of_pods(options: PolicyOptions | None = None) -> dict[str, str]:
    """Return the rules of Pods: message -> expression."""
    [policy] = [one for one, _ in pairs(options) if one["metadata"]["name"].endswith("-pods")]
    return {one["message"]: one["expression"] for one in policy["spec"]["validations"]}


def test_what_kubelet_does_is_never_looked_at_for_rules() -> None:
    """Static Pods run whatever is answered, and status reports carry no request."""
    for message, expression in of_pods().items():
        shown, reported = (
            f"variables.not_{name}_by_kubelet" in expression for name in ("shown", "reported")
        )
        new, status = '"CREATE"' in expression, '"status"' in expression
        assert (shown, reported) == ((False, False) if new and status else (new, status)), message


def test_the_pods_of_a_foreign_scheduler_are_judged_by_nobody() -> None:
    """As in the webhook; who may write allocations, and the mark, hold for them too."""
    takeover = Takeover(foreign_schedulers=frozenset({"volcano"}))
    rules = of_pods(PolicyOptions(settings=replace(DEFAULT_ADMISSION, takeover=takeover)))
    free, judged = (
        {message for message, expression in rules.items() if f"variables.{word}" in expression}
        for word in ("not_of_a_foreign_scheduler", "of_managed")
    )
    assert free
    assert free == judged


def test_two_releases_have_policies_of_their_own() -> None:
    """Names and the excluded namespace follow the release."""
    options = PolicyOptions(name="b", namespace="b-system", actions=("Warn", "Audit"))
    for policy, binding in pairs(options):
        assert policy["metadata"]["name"].startswith("b-")
        assert binding["spec"]["validationActions"] == ["Warn", "Audit"]
        selector = binding["spec"]["matchResources"]["namespaceSelector"]
        if policy["metadata"]["name"] in {"b-pods", "b-holding"}:
            assert selector == {}  # no namespace gets to the cards
            continue
        (excluded,) = selector["matchExpressions"]
        assert "b-system" in excluded["values"]
    everywhere = [text for text in of_pods(options).values() if '"b-system"' not in text]
    assert len(everywhere) == len(owned_nodes(DEFAULT_ADMISSION))


def test_the_documentation_lists_every_policy() -> None:
    """One row each, in order."""
    rows = [
        line for line in OPERATIONS_DOC.read_text().splitlines() if line.startswith("| `tenure-")
    ]
    assert [row.split("`")[1] for row in rows] == [
        policy["metadata"]["name"] for policy, _ in pairs()
    ]
