from __future__ import annotations

import json

from scheduler.service.manifests import SchedulerManifests, configuration, manifests

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
    for thing in manifests(OPTIONS):
        for rule in thing.get("rules", ()):
            assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]
            assert "secrets" not in rule["resources"]
