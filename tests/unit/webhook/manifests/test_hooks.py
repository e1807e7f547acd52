"""The webhook configurations: what reaches us, and what the API server does without us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.manifests import printed

OPERATIONS_DOC = Path(__file__).parents[4] / "docs" / "operations.md"


def hooks(*options: str) -> list[dict[str, Any]]:
    """Return every hook of both configurations."""
    made = printed("webhook", *options)
    return [hook for configuration in made for hook in configuration["webhooks"]]


def conditions(hook: dict[str, Any]) -> str:
    """Return everything that has to hold for a request to reach the hook."""
    return " && ".join(one["expression"] for one in hook.get("matchConditions", ()))


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["name"])
def test_no_hook_holds_the_api_server_up(hook: dict[str, Any]) -> None:
    """A short timeout, no side effects, and nothing of our own or the cluster's namespaces."""
    assert 1 <= hook["timeoutSeconds"] <= 5
    assert hook["sideEffects"] == "None"
    assert hook["admissionReviewVersions"] == ["v1"]
    assert hook["matchPolicy"] == "Equivalent"
    (excluded,) = hook["namespaceSelector"]["matchExpressions"]
    assert excluded["operator"] == "NotIn"
    assert set(excluded["values"]) == {"kube-system", "kube-node-lease", "tenure-system"}


def test_only_the_creation_of_pods_of_ours_fails_without_us() -> None:
    """Everything else goes on; a policy holds what must hold."""
    failing = [hook for hook in hooks() if hook["failurePolicy"] == "Fail"]
    assert [hook["name"] for hook in failing] == [
        "pods.mutate.tenure.sh",
        "pods.validate.tenure.sh",
    ]
    for hook in failing:
        (rule,) = hook["rules"]
        assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
        assert hook["namespaceSelector"]["matchLabels"] == {"tenure.sh/managed": "true"}
        assert conditions(hook)


def test_ordinary_pods_and_bindings_hardly_wait_for_a_webhook_that_hangs() -> None:
    """One second at most, and then they go on."""
    waits = {hook["name"].partition(".")[0]: hook for hook in hooks()}
    for name in ("bindings", "others", "cpus"):
        assert (waits[name]["timeoutSeconds"], waits[name]["failurePolicy"]) == (1, "Ignore")


def test_pods_come_from_managed_namespaces_only() -> None:
    """Whatever the hook: opting in is the namespace's."""
    for hook in hooks():
        resources = [name for rule in hook["rules"] for name in rule["resources"]]
        if any(name.startswith(("pods", "bindings")) for name in resources):
            asked = {"tenure.sh/managed": "true"}
            if hook["name"] == "cpus.mutate.tenure.sh":
                asked |= {"tenure.sh/cpus": "true"}
            assert hook["namespaceSelector"]["matchLabels"] == asked


def test_every_name_of_a_device_reaches_us() -> None:
    """The names come from the vocabulary, so that a new one can't be forgotten here."""
    mutate = hooks()[0]
    for name in DEFAULT_VOCABULARY.device_names:
        assert f'"{name}"' in conditions(mutate)


def test_there_are_as_many_conditions_as_the_api_server_takes() -> None:
    """64 a hook."""
    assert all(len(hook.get("matchConditions", ())) <= 64 for hook in hooks())


def test_a_profile_brings_its_pods_to_us(tmp_path: Path) -> None:
    """They may ask for nothing of ours and get defaults all the same."""
    config = tmp_path / "admission.yaml"
    kind = "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\n"
    config.write_text(f"{kind}profiles: [{{name: batch, podLabels: {{app: batch, tier: low}}}}]")
    mutate, cpus, *others = hooks("--config", str(config))
    wanted = '"app" in object.metadata.labels && object.metadata.labels["app"] == "batch"'
    assert wanted in conditions(mutate)
    assert conditions(cpus) == f"!({conditions(mutate)})"
    assert not any(wanted in conditions(hook) for hook in others)
    config.write_text(f"{kind}profiles: [{{name: all}}]")
    assert conditions(hooks("--config", str(config))[0]).endswith(" || true")


def test_our_own_binding_and_wake_up_call_nobody() -> None:
    """The scheduler's acts are its own business."""
    quiet = [hook for hook in hooks() if "system:serviceaccount:tenure-system" in conditions(hook)]
    assert [hook["name"].partition(".")[0] for hook in quiet] == ["bindings", "nodes"]


def test_a_server_outside_the_cluster_is_called_by_its_url() -> None:
    """And one inside by its Service, under the port that it has."""
    (mutate, *_) = hooks("--url", "https://10.0.0.1:8443")
    assert mutate["clientConfig"] == {"url": "https://10.0.0.1:8443/mutate"}
    (mutate, *_) = hooks("--namespace", "b", "--service", "other")
    place = {"namespace": "b", "name": "other", "path": "/mutate", "port": 443}
    assert mutate["clientConfig"] == {"service": place}


def test_the_documentation_lists_every_hook_with_what_happens_without_us() -> None:
    """One row each, in order."""
    text = OPERATIONS_DOC.read_text()
    rows = [line for line in text.splitlines() if ".tenure.sh` |" in line]
    shown = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows]
    assert [(row[0], row[2]) for row in shown] == [
        (hook["name"], hook["failurePolicy"]) for hook in hooks()
    ]
