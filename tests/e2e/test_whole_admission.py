"""Webhooks and policies together, as a cluster has them: what is let through, and by whom."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.api import Api, Reply
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import (
    ADMIN,
    AGENT_ACCOUNT,
    KUBELET,
    MALLORY,
    SCHEDULER_ACCOUNT,
    WEBHOOK_ACCOUNT,
    ControlPlane,
)
from tests.support.kube.inventory import TOPOLOGIES, know
from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE, binding, pod, pods_in
from tests.support.kube.policies import wait_in_force
from tests.support.kube.webhooks import NAMESPACE, Webhooks, apply, remove, serving
from tests.support.process import tenure
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions

Namespace = Callable[..., str]
PINNED = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
STRATEGIC = "application/strategic-merge-patch+json"
HEAD = "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\n"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings file of the webhook."""
    path = tmp_path_factory.mktemp("settings") / "admission.yaml"
    path.write_text(HEAD)
    return path


@pytest.fixture(scope="module", autouse=True)
def hooks(plane: ControlPlane, settings: Path) -> Iterator[Webhooks]:
    """One replica, and every policy in force."""
    made = policies(PolicyOptions())
    grant(plane, SCHEDULER_ACCOUNT, "", "pods", "pods/binding")
    with serving(plane, arguments=("--config", str(settings))) as running:
        apply(plane, made)
        wait_in_force(plane)
        yield running
        remove(plane, made)


def grant(plane: ControlPlane, account: str, api_group: str, *resources: str) -> None:
    """Let an account write these kinds, as its own role will."""
    group, name = "/apis/rbac.authorization.k8s.io/v1", f"whole-test-{resources[0]}"
    rule = {"apiGroups": [api_group], "resources": list(resources), "verbs": ["*"]}
    plane.api().create(f"{group}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})
    _, _, where, own = account.split(":")
    subject = {"kind": "ServiceAccount", "namespace": where, "name": own}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    plane.api().create(f"{group}/clusterrolebindings", body)


@pytest.fixture
def mallory(plane: ControlPlane) -> Api:
    """Somebody who may do everything that admission lets through."""
    return plane.api(MALLORY)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod("a", WHOLE), id="nvidia"),
        pytest.param(pod("a", HALF), id="koordinator"),
        pytest.param(pod("a", MGPU), id="mgpu"),
        pytest.param(pod("a", GPUSHARE), id="gpushare"),
        pytest.param(pod("a", {"nvidia.com/gpu": "0"}), id="no cards at all, in numbers"),
        pytest.param(
            pod("a", WHOLE, labels={"tenure.sh/takeover": "false"}), id="left to another scheduler"
        ),
        pytest.param(
            pod("a", {"cpu": "2"}, labels=PINNED),
            id="pinned CPUs",
        ),
        pytest.param(
            pod("a", HALF, initContainers=[{"name": "setup", "image": "x"}]), id="init container"
        ),
        pytest.param(pod("a", {"cpu": "1"}), id="nothing of ours"),
    ],
)
def test_what_the_webhook_lets_through_the_policies_do_too(
    mallory: Api, namespace: Namespace, body: dict[str, Any]
) -> None:
    """And its life goes on: labels, finalizers, status, debugging, deletion."""
    where = pods_in(namespace())
    made = mallory.create(where, body)
    assert made.ok, made.message
    one = f"{where}/a"
    metadata = {"labels": {"team": "b"}, "finalizers": ["example.com/hold"]}
    for changed in (metadata, {"finalizers": None}):
        reply = mallory.patch(one, {"metadata": changed})
        assert reply.ok, reply.message
    status = mallory.patch(f"{one}/status", {"status": {"phase": "Running"}})
    assert status.ok, status.message
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x"}]}}
    debugged = mallory.patch(f"{one}/ephemeralcontainers", debug, STRATEGIC)
    assert debugged.ok, debugged.message
    if made.body["spec"]["schedulerName"] == "tenure":
        (added,) = debugged.body["spec"]["ephemeralContainers"]
        assert added["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert mallory.delete(one).ok


def test_an_ephemeral_container_that_would_see_cards_is_refused(
    plane: ControlPlane, hooks: Webhooks, mallory: Api, namespace: Namespace
) -> None:
    """By the policy alone too; whoever debugs while we are down says `void` by hand."""
    where = pods_in(namespace())
    assert mallory.create(where, pod("a", HALF)).ok

    def debug(name: str, **env: str) -> Any:  # noqa: ANN401 - JSON
        entries = [{"name": key, "value": value} for key, value in env.items()]
        container = {"name": name, "image": "x", "env": entries}
        body = {"spec": {"ephemeralContainers": [container]}}
        return plane.api(MALLORY).patch(f"{where}/a/ephemeralcontainers", body, STRATEGIC)

    seen = debug("one", NVIDIA_VISIBLE_DEVICES="all")
    assert seen.body["spec"]["ephemeralContainers"][0]["env"][0]["value"] == "void"
    hooks.stop(hooks.replicas[0])
    try:
        assert "NVIDIA_VISIBLE_DEVICES=void" in debug("two", NVIDIA_VISIBLE_DEVICES="all").message
        assert "NVIDIA_VISIBLE_DEVICES=void" in debug("two").message
        assert debug("two", NVIDIA_VISIBLE_DEVICES="void").ok
    finally:
        hooks.add()


def test_a_forged_mark_gets_nobody_past_the_rewrite(
    plane: ControlPlane, hooks: Webhooks, mallory: Api, namespace: Namespace
) -> None:
    """With us there the Pod is completed all the same; without us a policy sees what is missing."""
    where = pods_in(namespace())
    forged = pod("a", HALF, annotations={"tenure.sh/admitted": "true"}, schedulerName="tenure")
    made = mallory.create(where, forged, dry_run=True)
    assert made.body["spec"]["containers"][0]["env"][0]["name"] == "NVIDIA_VISIBLE_DEVICES"
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"
    registered = plane.api().get(path).body
    without = {**registered, "webhooks": []}
    assert plane.api().replace(path, without).ok
    try:
        until = time.monotonic() + 60
        refused = mallory.create(where, forged, dry_run=True)
        while refused.ok and time.monotonic() < until:
            refused = mallory.create(where, forged, dry_run=True)
        assert "is told which cards it sees" in refused.message
    finally:
        current = plane.api().get(path).body
        current["webhooks"] = registered["webhooks"]
        assert plane.api().replace(path, current).ok
        hooks.balancer.wait_for(hooks.backends[0])


def test_kubelet_shows_a_static_pod_whatever_it_asks_for(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """It runs already: refusing it would only hide it."""
    node = plane.api().create("/api/v1/nodes", {"metadata": {"name": "kubelet-1"}})
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "kubelet-1",
        "controller": True,
        "uid": node.body["metadata"]["uid"],
    }
    mark = {"kubernetes.io/config.mirror": "hash"}
    shown = pod("static", HALF, annotations=mark, nodeName="kubelet-1")
    shown["metadata"]["ownerReferences"] = [owner]
    made = plane.api(KUBELET).create(pods_in(namespace()), shown)
    assert made.ok, made.message
    pretended = pod("static", HALF, annotations=mark, nodeName="kubelet-1")
    refused = plane.api(MALLORY).create(pods_in(namespace()), pretended)
    assert refused.status in (403, 422), refused.message


def test_a_bare_pod_is_applied_again_in_the_names_that_it_is_stored_with(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """docs/admission.md: as its user wrote it, it is refused as any change of resources is."""
    where = pods_in(namespace())
    made = plane.api().create(where, pod("a", WHOLE))
    assert made.ok, made.message
    (stored,) = made.body["spec"]["containers"]

    def apply(limits: dict[str, str]) -> Reply:
        container = {"name": stored["name"], "resources": {"limits": limits}}
        return plane.api().patch(f"{where}/a", {"spec": {"containers": [container]}}, STRATEGIC)

    assert apply(WHOLE).status == 422
    again = apply(stored["resources"]["limits"])
    assert again.ok, again.message


def test_a_namespace_leaves_whole_cards_to_the_plugin_by_its_label(
    mallory: Api, namespace: Namespace
) -> None:
    """By webhooks and policies together; an unknown word is refused with its field."""
    where = pods_in(namespace(**{"tenure.sh/whole-cards": "nvidia"}))
    made = mallory.create(where, pod("a", WHOLE))
    assert made.ok, made.message
    [container] = made.body["spec"]["containers"]
    assert container["resources"]["limits"] == WHOLE
    assert "env" not in container
    assert made.body["spec"]["schedulerName"] == "tenure"
    chosen = mallory.create(where, pod("b", WHOLE, env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert not chosen.ok
    strange = mallory.create(
        pods_in(namespace(**{"tenure.sh/whole-cards": "amd"})), pod("a", WHOLE)
    )
    assert "metadata.annotations[tenure.sh/whole-cards]" in strange.message, strange.message


def test_a_quota_on_whole_cards_is_translated_in_the_refusal(
    plane: ControlPlane, mallory: Api, namespace: Namespace
) -> None:
    """Rewriting behind its back would leave it without effect."""
    where = namespace()
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
    assert plane.api().create(f"/api/v1/namespaces/{where}/resourcequotas", quota).ok
    refused = mallory.create(pods_in(where), pod("a", WHOLE))
    assert not refused.ok
    assert "requests.koordinator.sh/gpu-core" in refused.message
    assert "400" in refused.message
    for asked in (HALF, {"koordinator.sh/gpu": "100"}, {"vke.volcengine.com/mgpu-core": "100"}):
        evading = mallory.create(pods_in(where), pod("b", asked))
        assert evading.status == 422, evading.message
        assert "ResourceQuota" in evading.message


def test_a_quota_on_memory_counts_what_it_limits_and_nothing_more(
    plane: ControlPlane, mallory: Api, namespace: Namespace
) -> None:
    """Bytes that are counted pass until they are used up; whole cards and percentages do not."""
    where = namespace()
    bytes_, ratio = "requests.koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
    hard = {bytes_: "12Gi", "requests.koordinator.sh/gpu.shared": "8"}
    quota = {"metadata": {"name": "memory"}, "spec": {"hard": hard}}
    quotas = f"/api/v1/namespaces/{where}/resourcequotas"
    assert plane.api().create(quotas, quota).ok
    counted = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}  # by no controller here
    assert plane.api().patch(f"{quotas}/memory/status", counted, STRATEGIC).ok
    share = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}

    evading = [mallory.create(pods_in(where), pod("a", one)) for one in (WHOLE, HALF)]
    assert [one.status for one in evading] == [422, 422], evading
    assert all(
        f"limits koordinator.sh/gpu-memory but does not count {ratio}" in e.message for e in evading
    )
    assert all(f"requests.{ratio}: 800" in one.message for one in evading)
    made = mallory.create(pods_in(where), pod("b", share))
    assert made.ok, made.message
    too_much = mallory.create(pods_in(where), pod("c", share))
    assert too_much.status == 403, too_much.message
    assert "exceeded quota" in too_much.message

    more = {"spec": {"hard": {f"requests.{ratio}": "800"}}}
    changed = plane.api().patch(f"{quotas}/memory", more, STRATEGIC)
    assert changed.ok, changed.message
    assert eventually(lambda: mallory.create(pods_in(where), pod("d", WHOLE)).ok)


def test_arm_pods_are_held_to_arms_cpu_policies(mallory: Api, namespace: Namespace) -> None:
    """Whole cores and whole NUMA nodes alone; on other machines every policy stands."""
    where, key = pods_in(namespace()), "scheduling.koordinator.sh/resource-spec"
    wrong = {"requiredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}
    right = {"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "NUMANodeLevel"}

    def asked(policies: dict[str, str], arch: str) -> Reply:
        annotations = {key: json.dumps(policies)}
        selector = {"kubernetes.io/arch": arch}
        body = pod("a", {"cpu": "4"}, labels=PINNED, annotations=annotations, nodeSelector=selector)
        return mallory.create(where, body, dry_run=True)

    refused = asked(wrong, "arm64")
    assert refused.status == 422, refused.message
    assert "requiredCPUBindPolicy" in refused.message
    assert "preferredCPUExclusivePolicy" in refused.message
    for allowed in (asked(right, "arm64"), asked(wrong, "amd64")):
        assert allowed.ok, allowed.message


def test_the_proposals_topology_is_taken_with_a_word_about_unknown_cpus(
    plane: ControlPlane,
) -> None:
    """Its example lists 2 CPUs of many; of the community's kind one that can't be read is none."""
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    cores = [{"id": one, "core": one, "socket": one, "node": one} for one in (0, 1)]
    options = {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"}
    allocated = {
        "namespace": "default",
        "name": "static-guaranteed-pod",
        "uid": "32b14702-2efe-4be9-a9da-f3b779175846",
        "cpu": "4-8",
        "managedByKubelet": "true",
    }
    annotations: dict[str, object] = {
        "kubelet.koordinator.sh/cpu-manager-policy": {"policy": "static", "options": options},
        "node.koordinator.sh/cpu-topology": {"detail": cores},
        "node.koordinator.sh/cpu-shared-pools": [{"socket": 0, "node": 0, "cpuset": "0-3"}],
        "node.koordinator.sh/pod-cpu-allocs": [allocated],
    }
    texts = {name: json.dumps(value) for name, value in annotations.items()}
    example = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": "node1",
            "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
            "annotations": texts,
        },
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "zones": [{"name": "node-0", "type": "Node"}],
    }
    grant(plane, AGENT_ACCOUNT, "topology.node.k8s.io", "noderesourcetopologies")
    agent = plane.api(AGENT_ACCOUNT)
    made = agent.create(TOPOLOGIES, example, dry_run=True)
    assert made.ok, made.message
    assert any("does not list" in one and "4-8" in one for one in made.warnings), made.warnings
    texts["node.koordinator.sh/cpu-topology"] = "{"
    refused = agent.create(TOPOLOGIES, example, dry_run=True)
    assert "node.koordinator.sh/cpu-topology" in refused.message


def test_shares_in_hamis_words_are_ours_by_a_label_and_counted_by_translated_quotas(
    mallory: Api, plane: ControlPlane, namespace: Namespace, tmp_path: Path
) -> None:
    """A Pod of HAMi's own scheduler stays as it is written."""
    team, amounts = namespace(), {"gpu": "1", "gpumem": "3001", "gpucores": "30"}
    where, share = pods_in(team), {f"nvidia.com/{key}": text for key, text in amounts.items()}
    theirs = mallory.create(where, pod("a", share, schedulerName="hami-scheduler"), dry_run=True)
    assert theirs.ok, theirs.message
    (container,) = theirs.body["spec"]["containers"]
    assert (container["resources"]["limits"], "env" in container) == (share, False)
    labels = {"hami.io/webhook": "ignore"}
    ours = pod("a", share, labels=labels)
    refused = mallory.create(where, pod("a", share), dry_run=True)
    assert (refused.status, "hami.io/webhook" in refused.message) == (422, True)
    made = mallory.create(where, ours, dry_run=True)
    assert made.ok, made.message
    assert made.body["spec"]["schedulerName"] == "tenure"

    hard = {
        f"limits.nvidia.com/{key}": text for key, text in (("gpumem", "5000"), ("gpucores", "90"))
    }
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "shares"},
        "spec": {"hard": hard},
    }
    quotas = f"/api/v1/namespaces/{team}/resourcequotas"
    assert plane.api().create(quotas, quota).ok
    evading = mallory.create(where, ours, dry_run=True)
    assert (evading.status, "ResourceQuota" in evading.message) == (422, True)
    (tmp_path / "quota.json").write_text(json.dumps(quota))
    translated = tenure("quota", "translate", "quota.json", "-o", "json", cwd=tmp_path)
    assert translated.returncode == 0, translated.stderr
    [counting] = json.loads(translated.stdout)["items"]
    wanted = counting["spec"]["hard"]
    assert plane.api().patch(f"{quotas}/shares", {"spec": {"hard": wanted}}).ok
    status = {"hard": wanted, "used": dict.fromkeys(wanted, "0")}  # no controller counts here
    assert plane.api().patch(f"{quotas}/shares/status", {"status": status}).ok
    eventually(lambda: mallory.create(where, ours).ok)  # webhook and API server follow quotas
    second = mallory.create(where, pod("b", share, labels=labels))
    assert (second.status, "exceeded quota" in second.message) == (403, True), second.message


def test_a_binding_of_ours_carries_the_allocation_and_kubelet_may_report(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """What our scheduler wrote stays; kubelet's own reports are no forgery."""
    where = pods_in(namespace())
    plane.api().create("/api/v1/nodes", {"metadata": {"name": "kubelet-1"}})
    assert plane.api().create(where, pod("a", HALF)).ok
    key = "scheduling.koordinator.sh/device-allocated"
    bound = binding("a", "kubelet-1", **{key: "{}"})
    ours = plane.api(SCHEDULER_ACCOUNT).create(f"{where}/a/binding", bound)
    assert ours.ok, ours.message
    reported = plane.api(KUBELET).patch(
        f"{where}/a/status", {"status": {"phase": "Running"}}, STRATEGIC
    )
    assert reported.ok, reported.message
    assert plane.api().get(f"{where}/a").body["metadata"]["annotations"][key] == "{}"


def test_a_node_is_forged_by_no_path_and_reports_all_the_same(
    plane: ControlPlane, mallory: Api
) -> None:
    """A patch of the status can write annotations too."""
    plane.api().create("/api/v1/nodes", {"metadata": {"name": "kubelet-1"}})
    node = "/api/v1/nodes/kubelet-1"
    moment = "2026-01-05T14:05:09.250000Z"
    forged = {"metadata": {"annotations": {"tenure.sh/released-at": moment}}}
    for path in (node, f"{node}/status"):
        assert "written by Tenure alone" in mallory.patch(path, forged).message
    condition = {"type": "Ready", "status": "True"}
    reported = plane.api(KUBELET).patch(
        f"{node}/status", {"status": {"conditions": [condition]}}, STRATEGIC
    )
    assert reported.ok, reported.message


def test_settings_are_read_again_without_a_restart(
    mallory: Api, namespace: Namespace, settings: Path
) -> None:
    """A rule that only warns refuses nobody."""
    where = pods_in(namespace())
    wrong = pod("a", {"koordinator.sh/gpu-core": "50"})
    assert not mallory.create(where, wrong, dry_run=True).ok
    settings.write_text(f"{HEAD}mode: warn\n")
    try:
        until = time.monotonic() + 60
        reply = mallory.create(where, wrong, dry_run=True)
        while not reply.ok and time.monotonic() < until:
            time.sleep(0.2)
            reply = mallory.create(where, wrong, dry_run=True)
        assert reply.ok, reply.message
        assert reply.warnings
    finally:
        settings.write_text(HEAD)


def test_the_webhooks_account_may_do_what_it_must_and_nothing_else(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """It holds its own Secret and no other, and changes no Pod."""
    where = namespace()
    plane.api().create(SECRETS, {"metadata": {"name": "others"}})
    webhook = plane.api(WEBHOOK_ACCOUNT)
    registered = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    allowed = [
        f"{SECRETS}/tenure-webhook-certs",
        f"/api/v1/namespaces/{where}",
        f"/api/v1/namespaces/{where}/resourcequotas",
        "/api/v1/namespaces?limit=1",
        "/api/v1/resourcequotas?limit=1",
        f"{registered}/tenure",
    ]
    assert [webhook.get(path).status for path in allowed] == [200] * len(allowed)
    assert webhook.get(f"{pods_in(where)}/absent").status == 404
    refused = [
        webhook.get(f"{SECRETS}/others"),
        webhook.get(SECRETS),
        webhook.get("/api/v1/secrets"),
        webhook.get(f"{registered}/another"),
        webhook.get(pods_in(where)),
        webhook.get("/api/v1/nodes"),
        webhook.delete(f"{SECRETS}/tenure-webhook-certs"),
        webhook.delete(f"{registered}/tenure"),
        webhook.create(pods_in(where), pod("a", {"cpu": "1"})),
        webhook.create(f"{pods_in(where)}/a/binding", binding("a", "x")),
        webhook.patch(f"{pods_in(where)}/a", {"metadata": {"labels": {"a": "b"}}}),
        webhook.get(f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases"),
    ]
    assert [reply.status for reply in refused] == [403] * len(refused)


def test_a_rotation_is_asked_for_and_watched_by_the_command_line(
    plane: ControlPlane, mallory: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """Pods are created all the while; in the end one authority is trusted, and it is another."""
    where = pods_in(namespace())
    kubeconfig = ("--kubeconfig", str(plane.kubeconfig(ADMIN)))
    before = plane.api().get(f"{SECRETS}/tenure-webhook-certs").body["data"]["ca.crt"]
    asked = tenure("certs", "rotate", *kubeconfig, cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    until = time.monotonic() + 120
    while True:
        made = mallory.create(where, pod("a", HALF), dry_run=True)
        assert made.ok, made.message
        secret = plane.api().get(f"{SECRETS}/tenure-webhook-certs").body
        phase = secret["metadata"]["annotations"]["tenure.sh/rotation"]
        if '"phase":"stable"' in phase and secret["data"]["ca.crt"] != before:
            break
        assert time.monotonic() < until, "the rotation did not end"
        time.sleep(0.1)
    status = tenure("certs", "status", *kubeconfig, cwd=tmp_path)
    while status.returncode:  # the smaller bundle is published right after
        assert time.monotonic() < until, status.stdout + status.stderr
        status = tenure("certs", "status", *kubeconfig, cwd=tmp_path)
    assert "serves another leaf" not in status.stdout
