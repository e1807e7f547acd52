from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import pytest
import yaml

from ledger.domain.resources import GPU_TEMPLATES_NAME, LABEL_TENURE_LEADER, WAKING_CLASS
from scheduler.service.api.words import (
    AGENT_ACCOUNT,
    FORCE,
    GROUP,
    HOLDINGS,
    RESOURCE,
    VERSION,
)
from scheduler.service.witnesses import CONFIG_MAP
from tenure.serving.options import declared
from tenure.serving.scheduling.cluster import PATHS
from tenure.serving.scheduling.options import SchedulerOptions
from tests.support.manifests import kube_scheduler, printed_agent, printed_scheduler

DRIVER: Final = ("--driver", "gpu.nvidia.com")
IMAGE: Final = ("--image", "tenure:1")

Thing = dict[str, Any]


def by_name(things: list[Thing]) -> dict[str, Thing]:
    """Return objects by kind and name."""
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in things}


def test_the_right_to_evict_comes_with_its_option_alone() -> None:
    """And the Deployment is told of it."""
    for options, times in (((), 0), ((*IMAGE, "--evict-partial-gangs"), 1)):
        things = printed_scheduler(*options)
        rules = [rule for thing in things for rule in thing.get("rules", ())]
        [*verbs] = [rule["verbs"] for rule in rules if "pods/eviction" in rule["resources"]]
        assert verbs == [["create"]] * times
        text = str(things)
        assert (text.count("pods/eviction"), text.count("--evict-partial-gangs")) == (times, times)
    defaults = {field.name: field.default for field in fields(SchedulerOptions)}
    assert defaults["evict_partial_gangs"] is False


@pytest.mark.parametrize(("mode", "times"), [("off", 0), ("dry-run", 0), ("on", 1)])
def test_the_rights_to_preempt_come_with_their_option_alone(mode: str, times: int) -> None:
    """A dry run writes Events, and needs no more."""
    text = str(printed_scheduler(*IMAGE, "--preemption", mode))
    assert (text.count("pods/eviction"), text.count("pods/status")) == (times, times)
    assert f"'--preemption', '{mode}'" in text or mode == "off"


def test_the_second_kube_scheduler_has_one_profile_and_asks_for_every_pod_of_it() -> None:
    """GPU-sharing contract C.1, "Ours": names only, no managedResources; docs/adr/0043."""
    config = kube_scheduler("https://x", "/certs", "")
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["tenure"]
    entry, binds = config["extenders"]
    for each in (entry, binds):
        assert each["nodeCacheCapable"] is True
        assert each["ignorable"] is False
        assert "managedResources" not in each
    assert (entry["httpTimeout"], entry["weight"]) == ("10s", 5)
    assert binds["httpTimeout"] == "30s"
    assert {"filterVerb", "bindVerb"} & entry.keys() == {"filterVerb"}
    assert {key for key in binds if key.endswith("Verb")} == {"bindVerb"}
    assert config["percentageOfNodesToScore"] == 100
    disabled = config["profiles"][0]["plugins"]["score"]["disabled"]
    assert {"name": "NodeResourcesFit"} in disabled


def test_the_configuration_of_the_manifests_is_that_of_its_deployment() -> None:
    """The ConfigMap has it as text, and the Deployment mounts it with the certificates."""
    things = by_name(printed_scheduler())
    config = yaml.safe_load(things["ConfigMap/tenure-kube-scheduler"]["data"]["config.yaml"])
    url = "https://tenure-scheduler.tenure-system.svc"
    assert [entry["urlPrefix"] for entry in config["extenders"]] == [url, url]
    assert config["clientConnection"]["kubeconfig"] == ""
    assert config["leaderElection"]["leaderElect"] is True
    spec = things["Deployment/tenure-kube-scheduler"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.36.3"
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "certs"}


def test_who_guards_claims_may_ask_whether_one_is_there() -> None:
    """A claim whose deletion no watch showed is released once the API server says so."""
    things = printed_scheduler(*DRIVER)
    [verbs] = [
        rule["verbs"]
        for thing in things
        for rule in thing.get("rules", ())
        if rule["resources"] == ["resourceclaims"]
    ]
    assert set(verbs) == {"get", "list", "watch", "patch"}


def test_the_gate_listens_where_the_control_plane_reaches_it() -> None:
    """A private control plane opens few ports, and may see nodes alone."""
    options = (*IMAGE, *DRIVER, "--gate-open", "--gate-port", "9443", "--host-network")
    things = by_name(printed_scheduler(*options))
    ports = things["Service/tenure-scheduler"]["spec"]["ports"]
    assert {"name": "gate", "port": 9443, "targetPort": 9443} in ports
    spec = things["Deployment/tenure-scheduler"]["spec"]["template"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert {"0.0.0.0:9443", "--gate-open"} <= {*spec["containers"][0]["args"]}
    own = [key for key in things if key.startswith("NetworkPolicy")]
    assert own == ["NetworkPolicy/tenure-kube-scheduler-https"], "the others would have no force"


def test_a_network_policy_says_who_reaches_each_port() -> None:
    """The gate: the API servers. The extender: its kube-scheduler. The API, by token: everybody."""
    things = by_name(
        [*printed_scheduler(*IMAGE, *DRIVER, "--api", "--gate-open"), *printed_agent()]
    )
    callers: dict[tuple[str, int], Any] = {}
    for thing in things.values():
        if thing["kind"] == "NetworkPolicy":
            [rule], [name] = thing["spec"]["ingress"], thing["spec"]["podSelector"].values()
            [port] = rule["ports"]
            callers[name["app.kubernetes.io/name"], port["port"]] = rule.get("from", "all")
    ports = {
        (thing["metadata"]["name"], port["containerPort"])
        for thing in things.values()
        if thing["kind"] in {"Deployment", "DaemonSet"}
        for container in thing["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    }
    assert ports == callers.keys()
    assert callers["tenure-scheduler", 8445] == [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    asks = {"matchLabels": {"app.kubernetes.io/name": "tenure-kube-scheduler"}}
    assert callers["tenure-scheduler", 8443] == [{"podSelector": asks}]
    assert callers["tenure-scheduler", 8444] == "all"
    probes = {port: who for port, who in callers.items() if port[1] in {8080, 10259}}
    assert all(who == [{"namespaceSelector": {}}] for who in probes.values())


def test_our_own_pods_use_no_claim() -> None:
    """Who answers the gate must not wait for it."""
    own = [
        *printed_scheduler(*IMAGE, *DRIVER, "--gate-open"),
        *printed_agent(),
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
    for thing in printed_scheduler(authority=b"PEM"):
        for rule in thing.get("rules", ()):
            assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]
            assert "secrets" not in rule["resources"]


def test_every_collection_that_is_followed_may_be_listed_and_watched() -> None:
    """One that may not would leave the view stale for good."""
    granted = {
        (group, resource)
        for thing in printed_scheduler()
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
    things = printed_scheduler()
    assert "APIService" not in [thing["kind"] for thing in things]
    assert not any("reviews" in str(thing.get("rules")) for thing in things)
    assert "APIService" not in [thing["kind"] for thing in printed_scheduler("--api")]


def test_the_api_service_leads_to_the_listener_of_every_replica() -> None:
    """By a Service of its own, whose Pods need neither lead nor have a ledger."""
    things = by_name(printed_scheduler(authority=b"PEM"))
    spec = things["APIService/v1alpha1.audit.tenure.sh"]["spec"]
    assert spec["service"] == {"name": "tenure-api", "namespace": "tenure-system", "port": 443}
    assert spec["caBundle"] == "UEVN"
    service = things["Service/tenure-api"]["spec"]
    assert service["selector"] == {"app.kubernetes.io/name": "tenure-scheduler"}
    assert service["publishNotReadyAddresses"] is True
    assert service["ports"] == [{"name": "api", "port": 443, "targetPort": 8444}]


def running(*options: str) -> dict[str, Thing]:
    """Return what is printed with an image and the API."""
    return by_name(printed_scheduler(*IMAGE, "--api", *options))


def test_on_sqlite_one_replica_runs_on_a_disk_of_its_own() -> None:
    """The old one has ended before the new one starts: one file, one writer."""
    made = running()
    spec = made["Deployment/tenure-scheduler"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = made["PersistentVolumeClaim/tenure-scheduler-ledger"]["metadata"]["name"]
    pod = spec["template"]["spec"]
    assert {"name": "ledger", "persistentVolumeClaim": {"claimName": claim}} in pod["volumes"]


def test_on_postgres_as_many_run_as_are_wanted_and_a_rollout_goes_on() -> None:
    """The URL has a password: it is in a Secret, and on no command line."""
    made = running("--replicas", "3", "--ledger-secret", "ledger")
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
    made = running()
    labels = made["Deployment/tenure-scheduler"]["spec"]["template"]["metadata"]["labels"]
    selector = made["Service/tenure-scheduler"]["spec"]["selector"]
    assert selector.pop("tenure.sh/leader") == "true"
    assert selector.items() <= labels.items()
    assert selector == made["Deployment/tenure-scheduler"]["spec"]["selector"]["matchLabels"]


def test_the_command_takes_all_that_it_is_given() -> None:
    """Every option is one of `tenure serve scheduler`, and the ports are those of the Services."""
    more = ("--config-map", "c", "--gate-client-ca", "s", "--untold-devices", "record")
    made = running(*DRIVER, *more)
    [container] = made["Deployment/tenure-scheduler"]["spec"]["template"]["spec"]["containers"]
    known = {each.flag for each in declared(SchedulerOptions)}
    options = [arg for arg in container["args"] if arg.startswith("--")]
    assert set(options) <= known
    api = made["Service/tenure-api"]["spec"]["ports"][0]["targetPort"]
    assert f"0.0.0.0:{api}" in container["args"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"extender": 8443, "probes": 8080, "api": api, "gate": 8445}
    probes = [container[f"{name}Probe"]["httpGet"]["port"] for name in ("liveness", "readiness")]
    assert probes == ["probes", "probes"]


def test_names_that_the_service_has_in_code_are_those_of_the_files() -> None:
    """What it may read, write and answer is called so in both."""
    things = by_name(printed_scheduler(*DRIVER, authority=b"PEM"))
    rights = [
        (resource, name)
        for thing in things.values()
        for rule in thing.get("rules", ())
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ())
    ]
    for right in (
        ("configmaps", GPU_TEMPLATES_NAME),
        ("configmaps", CONFIG_MAP),
        ("deviceclasses", WAKING_CLASS),
    ):
        assert right in rights
    answers, force = (things[f"ClusterRole/tenure-{name}"] for name in ("answers", "force-release"))
    assert answers["rules"] == [{"apiGroups": [GROUP], "resources": [RESOURCE], "verbs": ["get"]}]
    orders = [f"{HOLDINGS}/{order}" for order in ("release", "clear")]
    assert force["rules"] == [
        {"apiGroups": [GROUP], "resources": [HOLDINGS], "verbs": [FORCE]},
        {"apiGroups": [GROUP], "resources": orders, "verbs": ["create"]},
    ]
    assert f"APIService/{VERSION}.{GROUP}" in things
    assert LABEL_TENURE_LEADER in things["Service/tenure-scheduler"]["spec"]["selector"]


def test_a_settings_file_is_mounted_where_the_command_reads_it() -> None:
    """From a ConfigMap of yours; without one the command has none."""
    for config in ("", "settings"):
        made = running("--config-map", config)
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
    made = running()
    account = made[f"ServiceAccount/{AGENT_ACCOUNT}"]["metadata"]
    assert (account["namespace"], account["name"]) == ("tenure-system", AGENT_ACCOUNT)
    rule, _ = made["ClusterRole/tenure-force-release"]["rules"]
    assert (rule["verbs"], rule["resources"]) == (["force-release"], ["holdings"])
    without = by_name(printed_scheduler())
    assert not any("force" in key or AGENT_ACCOUNT in key for key in without)


def test_only_its_own_lease_can_be_changed() -> None:
    """Creating one can't be kept to a name."""
    [role] = [
        one
        for one in printed_scheduler()
        if one["kind"] == "Role"
        and (one["metadata"]["name"], one["metadata"]["namespace"])
        == ("tenure-scheduler", "tenure-system")
    ]
    leases = [rule for rule in role["rules"] if rule["resources"] == ["leases"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in leases] == [
        (["create"], None),
        (["get", "update"], ["tenure-scheduler"]),
    ]
