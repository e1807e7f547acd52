from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.manifests import AgentManifests
from agent.manifests import manifests as agent_manifests
from scheduler.service.api.words import AGENT_ACCOUNT
from scheduler.service.deployment import Deployed
from scheduler.service.manifests import (
    ApiManifests,
    SchedulerManifests,
    configuration,
    manifests,
)
from tenure.serving.options import declared
from tenure.serving.scheduling.cluster import PATHS
from tenure.serving.scheduling.options import SchedulerOptions

OPTIONS = SchedulerManifests(version="v1.36.3")


def test_the_right_to_evict_comes_with_its_option_alone() -> None:
    """And the Deployment is told of it."""
    wanted = SchedulerManifests(deployed=Deployed(image="i"), evict_partial_gangs=True)
    for options, times in ((OPTIONS, 0), (wanted, 1)):
        text = str(manifests(options))
        assert (text.count("pods/eviction"), text.count("--evict-partial-gangs")) == (times, times)


def test_the_second_kube_scheduler_has_one_profile_and_asks_for_every_pod_of_it() -> None:
    """GPU-sharing contract C.1, "Ours": names only, ten seconds, no managedResources."""
    config = configuration("https://x", "/certs", namespace="tenure-system")
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["tenure"]
    [entry] = config["extenders"]
    assert entry["nodeCacheCapable"] is True
    assert entry["ignorable"] is False
    assert (entry["httpTimeout"], entry["weight"]) == ("10s", 5)
    assert "managedResources" not in entry
    assert config["percentageOfNodesToScore"] == 100
    disabled = config["profiles"][0]["plugins"]["score"]["disabled"]
    assert {"name": "NodeResourcesFit"} in disabled


def test_the_configuration_of_the_manifests_is_that_of_its_deployment() -> None:
    """The ConfigMap has it as text, and the Deployment mounts it with the certificates."""
    things = {(thing["kind"], thing["metadata"]["name"]): thing for thing in manifests(OPTIONS)}
    text = things["ConfigMap", "tenure-kube-scheduler"]["data"]["config.yaml"]
    url = "https://tenure-scheduler.tenure-system.svc"
    assert json.loads(text)["extenders"][0]["urlPrefix"] == url
    spec = things["Deployment", "tenure-kube-scheduler"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.36.3"
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "certs"}


def test_who_guards_claims_may_ask_whether_one_is_there() -> None:
    """A claim whose deletion no watch showed is released once the API server says so."""
    things = manifests(replace(OPTIONS, drivers=("gpu.example.com",)))
    [verbs] = [
        rule["verbs"]
        for thing in things
        for rule in thing.get("rules", ())
        if rule["resources"] == ["resourceclaims"]
    ]
    assert set(verbs) == {"get", "list", "watch", "patch"}


def test_the_gate_listens_where_the_control_plane_reaches_it() -> None:
    """A private control plane opens few ports, and may see nodes alone."""
    options = replace(
        OPTIONS,
        drivers=("gpu.example.com",),
        gate_port=9443,
        deployed=Deployed(image="tenure", host_network=True),
    )
    things = {(thing["kind"], thing["metadata"]["name"]): thing for thing in manifests(options)}
    ports = things["Service", "tenure-scheduler"]["spec"]["ports"]
    assert {"name": "gate", "port": 9443, "targetPort": 9443} in ports
    spec = things["Deployment", "tenure-scheduler"]["spec"]["template"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "0.0.0.0:9443" in spec["containers"][0]["args"]


def test_our_own_pods_use_no_claim() -> None:
    """Who answers the gate must not wait for it."""
    own = [
        *manifests(replace(OPTIONS, drivers=("gpu.nvidia.com",), deployed=Deployed(image="t"))),
        *agent_manifests(AgentManifests(image="t", authority="PEM")),
    ]
    pods = [
        thing["spec"]["template"]["spec"]
        for thing in own
        if thing["kind"] in {"Deployment", "DaemonSet"}
    ]
    assert len(pods) == 3
    for pod in pods:
        assert "resourceClaims" not in pod
        for one in (*pod.get("initContainers", ()), *pod["containers"]):
            asked = one.get("resources", {})
            names = {name for part in asked.values() for name in part}
            assert names <= {"cpu", "memory", "ephemeral-storage"}


def test_no_right_has_a_wildcard_and_none_reads_secrets() -> None:
    """Each right is one that `tenure serve scheduler` or kube-scheduler uses."""
    for thing in manifests(replace(OPTIONS, api=ApiManifests(authority=b"PEM"))):
        for rule in thing.get("rules", ()):
            assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]
            assert "secrets" not in rule["resources"]


def test_every_collection_that_is_followed_may_be_listed_and_watched() -> None:
    """One that may not would leave the view stale for good."""
    granted = {
        (group, resource)
        for thing in manifests(OPTIONS)
        if thing["metadata"]["name"] == "tenure-scheduler"
        for rule in thing.get("rules", ())
        if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    for path in PATHS.values():
        steps = path.split("/")
        assert (steps[2] if steps[1] == "apis" else "", steps[-1]) in granted, path


def test_nobody_is_answered_and_nothing_registered_unless_it_is_asked_for() -> None:
    """An APIService that is unavailable stalls the deletion of every namespace."""
    kinds = [thing["kind"] for thing in manifests(OPTIONS)]
    assert "APIService" not in kinds
    assert not any("reviews" in str(thing.get("rules")) for thing in manifests(OPTIONS))
    with_api = manifests(replace(OPTIONS, api=ApiManifests()))
    assert "APIService" not in [thing["kind"] for thing in with_api]


def test_the_api_service_leads_to_the_listener_of_every_replica() -> None:
    """By a Service of its own, whose Pods need neither lead nor have a ledger."""
    made = manifests(replace(OPTIONS, api=ApiManifests(authority=b"PEM")))
    things = {(thing["kind"], thing["metadata"]["name"]): thing for thing in made}
    spec = things["APIService", "v1alpha1.audit.tenure.sh"]["spec"]
    assert spec["service"] == {"name": "tenure-api", "namespace": "tenure-system", "port": 443}
    assert spec["caBundle"] == "UEVN"
    service = things["Service", "tenure-api"]["spec"]
    assert service["selector"] == {"app.kubernetes.io/name": "tenure-scheduler"}
    assert service["publishNotReadyAddresses"] is True
    assert service["ports"] == [{"name": "api", "port": 443, "targetPort": 8444}]


def _running(deployed: Deployed, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any option
    options = replace(OPTIONS, deployed=deployed, api=ApiManifests(), **more)
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in manifests(options)}


def test_on_sqlite_one_replica_runs_on_a_disk_of_its_own() -> None:
    """The old one has ended before the new one starts: one file, one writer."""
    made = _running(Deployed(image="tenure:1"))
    spec = made["Deployment/tenure-scheduler"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = made["PersistentVolumeClaim/tenure-scheduler-ledger"]["metadata"]["name"]
    pod = spec["template"]["spec"]
    assert {"name": "ledger", "persistentVolumeClaim": {"claimName": claim}} in pod["volumes"]
    with pytest.raises(AssertionError):
        Deployed(image="tenure:1", replicas=2)


def test_on_postgres_as_many_run_as_are_wanted_and_a_rollout_goes_on() -> None:
    """The URL has a password: it is in a Secret, and on no command line."""
    made = _running(Deployed(image="tenure:1", replicas=3, ledger="ledger"))
    spec = made["Deployment/tenure-scheduler"]["spec"]
    assert spec["replicas"] == 3
    assert "strategy" not in spec
    assert not any(key.startswith("PersistentVolumeClaim") for key in made)
    [container] = spec["template"]["spec"]["containers"]
    env = {one["name"]: one["valueFrom"] for one in container["env"]}
    assert env["TENURE_LEDGER"] == {"secretKeyRef": {"name": "ledger", "key": "url"}}
    assert env["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_the_extender_is_whoever_leads_and_its_pods_can_be_told_by_it() -> None:
    """The Service selects the leader's label beside the Deployment's own."""
    made = _running(Deployed(image="tenure:1"))
    labels = made["Deployment/tenure-scheduler"]["spec"]["template"]["metadata"]["labels"]
    selector = made["Service/tenure-scheduler"]["spec"]["selector"]
    assert selector == {**labels, "tenure.sh/leader": "true"}


def test_the_command_takes_all_that_it_is_given() -> None:
    """Every option is one of `tenure serve scheduler`, and the ports are those of the Services."""
    running = Deployed(image="tenure:1", config="c", gate_clients="s")
    made = _running(running, drivers=("gpu.nvidia.com",), untold="record")
    [container] = made["Deployment/tenure-scheduler"]["spec"]["template"]["spec"]["containers"]
    known = {each.flag for each in declared(SchedulerOptions)}
    options = [arg for arg in container["args"] if arg.startswith("--")]
    assert set(options) <= known
    api = made["Service/tenure-api"]["spec"]["ports"][0]["targetPort"]
    assert f"0.0.0.0:{api}" in container["args"]


def test_a_settings_file_is_mounted_where_the_command_reads_it() -> None:
    """From a ConfigMap of yours; without one the command has none."""
    for config in ("", "settings"):
        made = _running(Deployed(image="tenure:1", config=config))
        pod = made["Deployment/tenure-scheduler"]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        named = {"name": "config", "configMap": {"name": "settings"}}
        assert (named in pod["volumes"]) is bool(config)
        assert ("--config" in container["args"]) is bool(config)
        if config:
            place = container["args"][container["args"].index("--config") + 1]
            mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            assert place == f"{mounts['config']}/config.yaml"


def test_agents_and_those_who_may_force_a_release_are_there_with_the_api() -> None:
    """An account whose token says whose node it is, and a role that you bind."""
    made = _running(Deployed(image="tenure:1"))
    account = made[f"ServiceAccount/{AGENT_ACCOUNT}"]["metadata"]
    assert (account["namespace"], account["name"]) == ("tenure-system", AGENT_ACCOUNT)
    [rule] = made["ClusterRole/tenure-force-release"]["rules"]
    assert (rule["verbs"], rule["resources"]) == (["force-release"], ["holdings"])
    assert not any("force" in key or AGENT_ACCOUNT in key for key in _names(manifests(OPTIONS)))


def _names(things: list[dict[str, Any]]) -> list[str]:
    return [f"{one['kind']}/{one['metadata']['name']}" for one in things]


def test_only_its_own_lease_can_be_changed() -> None:
    """Creating one can't be kept to a name."""
    [role] = [
        one
        for one in manifests(OPTIONS)
        if one["kind"] == "Role"
        and (one["metadata"]["name"], one["metadata"]["namespace"])
        == ("tenure-scheduler", "tenure-system")
    ]
    leases = [rule for rule in role["rules"] if rule["resources"] == ["leases"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in leases] == [
        (["create"], None),
        (["get", "update"], ["tenure-scheduler"]),
    ]
