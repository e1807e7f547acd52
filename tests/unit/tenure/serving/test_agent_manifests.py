"""How the agent runs: little privilege, no gap at an upgrade, each mount with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from agent.decide.env_proof import COMMAND, MEMORY, NAME, SCHEDULER, SECONDS_MAX
from agent.decide.isolation import LIBRARY
from ledger.domain.annotations.tenure import visible_key
from ledger.domain.dialects.gpushare.words import ANNOTATION_GPUSHARE_ASSIGNED
from ledger.domain.resources import (
    ANNOTATION_TENURE_VISIBLE_PREFIX,
    CALLER_NODE_NAME,
    CALLER_POD_UID,
    ENV_NVIDIA_VISIBLE,
    LABEL_TENURE_OWNED,
    TAINT_TENURE_OWNED,
)
from ledger.signing import published
from tenure.cli import app
from tests.support.manifests import printed_agent
from tests.support.process import ROOT
from tests.support.proofs import KEY, OTHER_KEY


def of_kind(kind: str, *options: str) -> dict[str, Any]:
    """Return the one object of a kind."""
    [found] = (one for one in printed_agent(*options) if one["kind"] == kind)
    return found


def container(*options: str) -> dict[str, Any]:
    """Return the agent's container."""
    [found] = of_kind("DaemonSet", *options)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_it_has_no_privilege_and_writes_to_three_folders_alone() -> None:
    """Kubelet's plugins, the runtime's specifications, its own; nothing of its own root."""
    security = container()["securityContext"]
    assert not security["allowPrivilegeEscalation"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    pod = of_kind("DaemonSet")["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    written = {one["mountPath"] for one in container()["volumeMounts"] if not one["readOnly"]}
    assert written == {"/var/lib/kubelet/device-plugins", "/var/run/cdi", "/var/lib/tenure"}


def test_no_mount_of_it_holds_a_cgroup() -> None:
    """Below a read-only mount other mounts stay writable, and /sys has all cgroups below."""
    pod = of_kind("DaemonSet", *ISOLATED, "--claims")["spec"]["template"]["spec"]
    hosts = [one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one]
    assert not [path for path in hosts if "/sys/fs/cgroup/".startswith(f"{path}/")]


ISOLATED: Final = ("--isolation", "HAMi-core")


def test_the_library_of_isolation_is_looked_at_where_the_node_has_it() -> None:
    """For reading alone, at the place that the agent has for the node's own root."""
    assert "--isolation" not in container()["args"]
    args = container(*ISOLATED)["args"]
    assert args[args.index("--isolation") + 1] == "HAMi-core"
    mounts = {one["mountPath"]: one for one in container(*ISOLATED)["volumeMounts"]}
    assert mounts["/host/usr/local/vgpu"]["readOnly"]


def test_kubelets_own_folder_is_mounted_only_where_claims_are_confirmed() -> None:
    """For reading alone, and so that no volume of a Pod's stays mounted because of it."""
    assert "--kubelet-root" not in container()["args"]
    args = container("--claims")["args"]
    root = args[args.index("--kubelet-root") + 1]
    [mount] = (one for one in container("--claims")["volumeMounts"] if one["mountPath"] == root)
    assert mount["readOnly"]
    assert mount["mountPropagation"] == "HostToContainer"


def test_cpus_are_reported_and_may_be_only_where_that_is_asked_for() -> None:
    """Kubelet's configuration from kubelet itself: no folder of its is mounted for that."""
    kind = "noderesourcetopologies"
    assert "--topology" not in container()["args"]
    assert kind not in str(printed_agent())
    assert "configz" not in str(printed_agent())
    args = container("--topology")["args"]
    assert args[args.index("--topology") + 1] == "configz"
    rights = {
        one["resources"][0]: one["verbs"] for one in of_kind("ClusterRole", "--topology")["rules"]
    }
    assert rights[kind] == ["get", "create", "patch"]
    assert rights["nodes/configz"] == ["get"]
    policy = of_kind("ValidatingAdmissionPolicy", "--topology")
    held_to = policy["spec"]["matchConstraints"]["resourceRules"]
    assert [one["operations"] for one in held_to if one["resources"] == [kind]] == [
        ["CREATE", "UPDATE", "DELETE"]
    ]
    assert container("--topology")["volumeMounts"] == container()["volumeMounts"]


def test_every_mount_and_every_right_has_its_reason_in_the_docs() -> None:
    """Whoever installs it reads what it gets."""
    words = (ROOT / "docs" / "agent.md").read_text()
    sources = of_kind("DaemonSet", *ISOLATED, "--claims")["spec"]["template"]["spec"]["volumes"]
    hosts = [one["hostPath"]["path"] for one in sources if "hostPath" in one]
    rights = [one["resources"][0] for one in of_kind("ClusterRole", "--topology")["rules"]]
    missing = [one for one in (*hosts, *rights) if f"`{one}`" not in words]
    assert not missing


PROBING: Final = ("--env", "--probe-runtime-class", "nvidia")


def test_a_binding_gives_a_probe_no_label_but_those_of_its_nodes_place() -> None:
    """The API server's own plugin writes these, and whatever a Binding has goes into its Pod."""
    [policy] = [
        one
        for one in printed_agent(*PROBING)
        if one["kind"] == "ValidatingAdmissionPolicy"
        and one["metadata"]["name"].endswith("binding")
    ]
    [rule] = [one for one in policy["spec"]["validations"] if "no label" in one["message"]]
    assert rule["expression"] == (
        "object.metadata.?labels.orValue({}).all(k, k in "
        "['topology.kubernetes.io/zone', 'topology.kubernetes.io/region'])"
    )


def test_pods_are_made_where_a_probe_is_needed_and_in_no_other_mode() -> None:
    """In its own namespace alone; the agent is told of whom it makes one, and policies hold it."""
    kinds = [one["kind"] for one in printed_agent()]
    assert "Role" not in kinds
    [role] = (one for one in printed_agent(*PROBING) if one["kind"] == "Role")
    assert role["metadata"]["namespace"] == "tenure-system"
    assert [(one["resources"], one["verbs"]) for one in role["rules"]] == [
        (["pods"], ["create", "delete"]),
        (["pods/binding"], ["create"]),
    ]
    args = container(*PROBING)["args"]
    named = ("--mode", "--probe-image", "--probe-namespace", "--probe-runtime-class")
    assert [args[args.index(one) + 1] for one in named] == ["env", "i", "tenure-system", "nvidia"]
    assert "--probe-image" not in container()["args"]


def test_an_upgrade_starts_the_new_one_before_the_old_one_ends() -> None:
    """So neither may want a port of the node."""
    spec = of_kind("DaemonSet")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert all("hostPort" not in one for one in container()["ports"])


def test_it_may_list_nothing() -> None:
    """Pods come from kubelet; marks of Pods are for the mode that has them."""
    verbs = {verb for rule in of_kind("ClusterRole")["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "patch", "create"}
    added = [
        rule
        for rule in of_kind("ClusterRole", "--gpushare")["rules"]
        if rule not in of_kind("ClusterRole")["rules"]
    ]
    assert added == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]


def test_names_that_the_agent_has_in_code_are_those_of_the_files() -> None:
    """What a policy compares, and what a node is chosen by, is called so in both."""
    pod = of_kind("DaemonSet", *ISOLATED)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {LABEL_TENURE_OWNED: "true"}
    assert pod["tolerations"] == [{"key": TAINT_TENURE_OWNED, "operator": "Exists"}]
    [isolation] = (one for one in pod["volumes"] if one["name"] == "isolation")
    assert isolation["hostPath"]["path"] == LIBRARY.rpartition("/")[0]

    marking, probing = (
        " ".join(
            rule["expression"]
            for one in printed_agent(*options)
            for part in ("variables", "validations")
            for rule in one.get("spec", {}).get(part, ())
        )
        for options in (("--gpushare",), PROBING)
    )
    assert f"k == '{ANNOTATION_GPUSHARE_ASSIGNED}'" in marking
    for words in (
        f"extra[?'{CALLER_NODE_NAME}']",
        f"request.name == '{NAME}' + request.userInfo.extra[?'{CALLER_POD_UID}']",
        f"c.command == {[*COMMAND]}",
        f"orValue('') == '{MEMORY}'",
        f"schedulerName == '{SCHEDULER}'",
        f"orValue(0) == {SECONDS_MAX}",
        f"e.name == '{ENV_NVIDIA_VISIBLE}'",
        f'startsWith("metadata.annotations[\'{ANNOTATION_TENURE_VISIBLE_PREFIX}")',
        f"k == '{visible_key('0')}'",
    ):
        assert words in probing, words


def test_the_agent_is_given_the_keys_by_the_names_that_it_reads_them_by() -> None:
    """As `ledger.signing.published` calls them, and the authority as it was."""
    data = {
        one["metadata"]["name"]: one["data"]
        for one in printed_agent()
        if one["kind"] == "ConfigMap"
    }
    assert data == {
        "tenure-agent-ca": {"ca.crt": "PEM"},
        "tenure-agent-proof-keys": published([KEY.public]),
    }


def test_the_command_prints_what_it_was_told(tmp_path: Path) -> None:
    """With the keys as an agent reads them; what can't be is refused."""
    (tmp_path / "ca").write_text("AUTHORITY")
    words = ["manifests", "agent", "--image", "i", "--api-ca", str(tmp_path / "ca")]
    words += ["--proof-key", str(KEY.public), "--ledger-key", str(OTHER_KEY.public)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "AUTHORITY" in done.output
    for key in (KEY, OTHER_KEY):
        assert str(key.public) in done.output
    for wrong in (["--service", "http://a"], ["--cards", "/etc/cards.yaml"]):
        assert CliRunner().invoke(app, [*words, *wrong]).exit_code != 0


@pytest.mark.parametrize(
    ("words", "mode"), [([], "plugin"), (["--gpushare"], "gpushare"), (["--env"], "")]
)
def test_a_mode_that_is_not_the_services_default_is_said_beside_the_manifests(
    words: list[str], mode: str, tmp_path: Path
) -> None:
    """docs/admission.md, One slotMode: printed agents and default services would disagree."""
    (tmp_path / "ca").write_text("AUTHORITY")
    asked = ["manifests", "agent", "--image", "i", "--api-ca", str(tmp_path / "ca")]

    done = CliRunner().invoke(app, [*asked, "--proof-key", str(KEY.public), *words])

    assert done.exit_code == 0, done.output
    said = done.stderr
    assert (f"without slotMode: {mode} in the settings" in said) if mode else (not said)
