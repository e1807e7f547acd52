"""Every dialect through a real API server, and what a user sees of each refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.control_plane import MALLORY, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.pods import (
    GPUSHARE,
    HALF,
    MGPU,
    SEEING,
    WHOLE,
    binding,
    pod,
    pods_in,
)
from tests.support.kube.webhooks import Webhooks, serving

SHOWN = Path(__file__).parent / "shown"
"""What `kubectl` prints of a refusal, word for word: `Error from server: ` and the message."""

Namespace = Callable[..., str]


@pytest.fixture(scope="module")
def hooks(plane: ControlPlane) -> Iterator[Webhooks]:
    """One replica of the webhook, registered."""
    with serving(plane) as running:
        yield running


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> str:
    """A node to bind to."""
    made = plane.api().create("/api/v1/nodes", {"metadata": {"name": "node-1"}})
    assert made.ok, made.message
    return "node-1"


@pytest.fixture(scope="module", autouse=True)
def rights(plane: ControlPlane) -> None:
    """Let our scheduler's account bind Pods, as its own role will."""
    group = "/apis/rbac.authorization.k8s.io/v1"
    named = {"metadata": {"name": "tenure-scheduler-test"}}
    rule = {"apiGroups": [""], "resources": ["pods", "pods/binding"], "verbs": ["*"]}
    plane.api().create(f"{group}/clusterroles", {**named, "rules": [rule]})
    _, _, where, account = SCHEDULER_ACCOUNT.split(":")
    subject = {"kind": "ServiceAccount", "namespace": where, "name": account}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    plane.api().create(
        f"{group}/clusterrolebindings",
        {**named, "roleRef": {**role, "name": "tenure-scheduler-test"}, "subjects": [subject]},
    )


@pytest.mark.parametrize(
    ("amounts", "resources"),
    [
        pytest.param(
            WHOLE,
            {
                "koordinator.sh/gpu-core": "200",
                "koordinator.sh/gpu-memory-ratio": "200",
                "koordinator.sh/gpu.shared": "2",
            },
            id="nvidia",
        ),
        pytest.param(HALF, {**HALF, "koordinator.sh/gpu.shared": "1"}, id="koordinator"),
        pytest.param(MGPU, MGPU, id="mgpu"),
        pytest.param(GPUSHARE, GPUSHARE, id="gpushare"),
        pytest.param(
            {"koordinator.sh/gpu": "100"},
            {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu.shared": "1",
            },
            id="koordinator shorthand",
        ),
        pytest.param(
            {"koordinator.sh/gpu": "50"},
            {
                "koordinator.sh/gpu-core": "50",
                "koordinator.sh/gpu-memory-ratio": "50",
                "koordinator.sh/gpu.shared": "1",
            },
            id="half of a card in short",
        ),
    ],
)
def test_each_dialect_is_normalised_and_taken_over(
    plane: ControlPlane,
    hooks: Webhooks,
    namespace: Namespace,
    amounts: dict[str, str],
    resources: dict[str, str],
) -> None:
    """The stored Pod asks in our vocabulary, has our scheduler and sees its cards when bound."""
    assert hooks.replicas
    made = plane.api().create(pods_in(namespace()), pod("train", amounts))
    assert made.ok, made.message
    (container,) = made.body["spec"]["containers"]
    assert container["resources"] == {"limits": resources, "requests": resources}
    assert made.body["spec"]["schedulerName"] == "tenure"
    assert made.body["metadata"]["annotations"]["tenure.sh/admitted"] == "true"
    env = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['tenure.sh/visible.0']"


def test_a_pod_that_asks_for_nothing_of_ours_is_untouched(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace
) -> None:
    """It does not even reach us: the API server's own match conditions leave it out."""
    log = hooks.replicas[0].log
    before = log.read_text().count('"event": "admission"')
    made = plane.api().create(pods_in(namespace()), pod("plain", {"cpu": "1"}))
    assert made.ok, made.message
    assert made.body["spec"]["schedulerName"] == "default-scheduler"
    assert "annotations" not in made.body["metadata"]
    assert log.read_text().count('"event": "admission"') == before


def test_an_unmanaged_namespace_keeps_its_pods(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace
) -> None:
    """Opting in is the namespace's."""
    assert hooks.replicas
    made = plane.api().create(pods_in(namespace(managed=False)), pod("train", WHOLE))
    assert made.body["spec"]["containers"][0]["resources"]["limits"] == WHOLE


REFUSED: dict[str, dict[str, Any]] = {
    "percentage": pod("train", {**HALF, "koordinator.sh/gpu-core": "150"}),
    "core-alone": pod("train", {"koordinator.sh/gpu-core": "50"}),
    "two-dialects": pod("train", {**HALF, **MGPU}),
    "mgpu-core": pod("train", {**MGPU, "vke.volcengine.com/mgpu-core": "130"}),
    "lsr-fraction": pod("train", {"cpu": "1500m"}, labels={"koordinator.sh/qosClass": "LSR"}),
    "bad-json": pod(
        "train", HALF, annotations={"scheduling.koordinator.sh/device-allocate-hint": "{"}
    ),
    "pinned-node": pod("train", HALF, nodeName="node-1"),
    "visible-devices": pod("train", HALF, env={"NVIDIA_VISIBLE_DEVICES": "all"}),
    "forged": pod("train", HALF, annotations={"scheduling.koordinator.sh/device-allocated": "{}"}),
    "several": pod(
        "train",
        {"koordinator.sh/gpu-core": "150", "koordinator.sh/gpu-memory-ratio": "70"},
        labels={"koordinator.sh/qosClass": "XXL"},
        env={"NVIDIA_VISIBLE_DEVICES": "0"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_reads_as_shown(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace, case: str
) -> None:
    """Whoever changes these words changes what users see; the file is what they saw before."""
    assert hooks.replicas
    where = namespace()
    reply = plane.api(MALLORY).create(pods_in(where), REFUSED[case])
    assert reply.status == 422, (reply.status, reply.message)
    shown = f"Error from server: {reply.message}\n".replace(where, "NAMESPACE")
    assert shown == (SHOWN / f"{case}.txt").read_text()


@pytest.mark.parametrize("count", [250, 251])
def test_one_container_too_many_is_refused_in_a_sentence(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace, count: int
) -> None:
    """Its user reads the limit; an HTTP error of a webhook is "unknown reason" to them."""
    assert hooks.replicas
    body = pod("train", HALF)
    (first,) = body["spec"]["containers"]
    body["spec"]["containers"] = [{**first, "name": f"c-{one}"} for one in range(count)]
    reply = plane.api(MALLORY).create(pods_in(namespace()), body, dry_run=True)
    if count == 250:
        assert reply.ok, reply.message
        return
    assert reply.status == 422, (reply.status, reply.message)
    assert 'Pod "train" is invalid: spec.containers: Invalid value: 251 entries' in reply.message
    assert "admission decides on Pods of at most 250 in one list" in reply.message


def test_one_text_too_long_is_refused_in_a_sentence(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace
) -> None:
    """So is what is not even read."""
    assert hooks.replicas
    body = pod("train", HALF)
    body["spec"]["containers"][0]["args"] = ["x" * (2**20 + 1)]
    reply = plane.api(MALLORY).create(pods_in(namespace()), body, dry_run=True)
    assert reply.status == 422, (reply.status, reply.message)
    assert 'Pod "train" is invalid: a text is too long: length=1048577' in reply.message


def test_a_server_side_dry_run_shows_the_same_and_stores_nothing(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace
) -> None:
    """So users can look before they apply."""
    assert hooks.replicas
    where = pods_in(namespace())
    tried = plane.api().create(where, pod("train", WHOLE), dry_run=True)
    assert tried.body["spec"]["schedulerName"] == "tenure"
    assert not plane.api().create(where, REFUSED["percentage"], dry_run=True).ok
    assert plane.api().get(f"{where}/train").status == 404


def test_only_our_scheduler_binds_what_it_places(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace, node: str
) -> None:
    """A foreign scheduler's Binding is refused with an explanation, ours goes through."""
    assert hooks.replicas
    where = pods_in(namespace())
    assert plane.api().create(where, pod("train", HALF)).ok
    foreign = plane.api(MALLORY).create(f"{where}/train/binding", binding("train", node))
    assert foreign.status == 403, foreign.message
    assert "tenure" in foreign.message
    ours = plane.api(SCHEDULER_ACCOUNT).create(f"{where}/train/binding", binding("train", node))
    assert ours.ok, ours.message
    assert plane.api().get(f"{where}/train").body["spec"]["nodeName"] == node


def test_what_a_pod_was_given_stays(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace
) -> None:
    """The QoS class and the priority class never change after admission."""
    assert hooks.replicas
    where = pods_in(namespace())
    labels = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
    assert plane.api().create(where, pod("train", {"cpu": "2"}, labels=labels)).ok
    changed = {"metadata": {"labels": {"koordinator.sh/qosClass": "LS"}}}
    assert plane.api().patch(f"{where}/train", changed).status == 422
    removed = {"metadata": {"labels": {"koordinator.sh/qosClass": None}}}
    assert plane.api().patch(f"{where}/train", removed).status == 422


@pytest.mark.parametrize("asked", [HALF, GPUSHARE], ids=["koordinator", "gpushare"])
def test_a_near_miss_is_warned_about(
    plane: ControlPlane, hooks: Webhooks, namespace: Namespace, asked: dict[str, str]
) -> None:
    """The words come as a Warning header, which `kubectl` prints."""
    assert hooks.replicas
    reply = plane.api().create(pods_in(namespace()), pod("train", asked))
    assert reply.ok
    assert any("not enforced" in one or "isolation" in one for one in reply.warnings), (
        reply.warnings
    )
    assert all(len(one) < 256 for one in reply.warnings)


BY_VARIABLE = pod("a", {"cpu": "1"}, env={"NVIDIA_VISIBLE_DEVICES": "all"})
BLIND = pod("a", {"cpu": "1"}, env={"NVIDIA_VISIBLE_DEVICES": "void"})


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    "body",
    [BY_VARIABLE, *(each({"cpu": "1"}, {}) for each in SEEING.values())],
    ids=["a variable", *SEEING],
)
def test_a_pod_that_sees_cards_without_asking_is_warned_about(
    plane: ControlPlane, namespace: Namespace, body: dict[str, Any]
) -> None:
    """Monitors need it, and a runtime that injects by CDI alone shows them none."""
    mallory = plane.api(MALLORY)
    made = mallory.create(pods_in(namespace()), body)
    assert made.ok, made.message
    assert "may see cards that others hold" in "".join(made.warnings)
    assert not mallory.create(pods_in(namespace(managed=False)), body).warnings
    assert not mallory.create(pods_in(namespace()), BLIND).warnings


def test_every_shown_refusal_has_its_case() -> None:
    """No file without a test."""
    assert {path.stem for path in SHOWN.glob("*.txt")} == set(REFUSED)
    assert json.dumps(REFUSED)
