from __future__ import annotations

import json
from dataclasses import replace

from scheduler.service.manifests import (
    ApiManifests,
    SchedulerManifests,
    configuration,
    manifests,
)

OPTIONS = SchedulerManifests(version="v1.36.3")


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


def test_no_right_has_a_wildcard_and_none_reads_secrets() -> None:
    """Each right is one that `tenure serve scheduler` or kube-scheduler uses."""
    for thing in manifests(replace(OPTIONS, api=ApiManifests(authority=b"PEM"))):
        for rule in thing.get("rules", ()):
            assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]
            assert "secrets" not in rule["resources"]


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
