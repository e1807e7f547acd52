"""How what binds CPUs runs: kubepods is mounted, and written only where that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.resources import (
    CONDITION_TENURE_CPUS,
    LABEL_TENURE_CPU_MANAGED,
    LABEL_TENURE_OWNED,
)
from tenure.cli import app
from tenure.exits import run
from tests.support.manifests import printed_agent, printed_cpus
from tests.support.process import ROOT

V1 = (
    *("--kubepods", "/sys/fs/cgroup/cpuset/kubepods"),
    *("--kubepods-cpu", "/sys/fs/cgroup/cpu,cpuacct/kubepods"),
)


def of_kind(kind: str, *options: str) -> dict[str, Any]:
    """Return the one object of a kind."""
    [found] = (one for one in printed_cpus(*options) if one["kind"] == kind)
    return found


def mounts(*options: str) -> dict[str, tuple[str, bool]]:
    """Return each folder of the node that is mounted, where, and whether it may be written."""
    pod = of_kind("DaemonSet", *options)["spec"]["template"]["spec"]
    sources = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    [container] = pod["containers"]
    return {
        sources[one["name"]]: (one["mountPath"], not one["readOnly"])
        for one in container["volumeMounts"]
        if one["name"] in sources
    }


def test_it_may_write_nothing_before_that_is_asked_for() -> None:
    """Neither a cgroup nor its Node; it reads both, and plans."""
    written = {path for path, (_, may_write) in mounts().items() if may_write}
    assert written == {"/var/lib/tenure-cpus"}
    rules = of_kind("ClusterRole")["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get"}


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ((), {"/sys/fs/cgroup/kubepods.slice"}),
        (V1, {"/sys/fs/cgroup/cpuset/kubepods", "/sys/fs/cgroup/cpu,cpuacct/kubepods"}),
    ],
    ids=["v2", "v1"],
)
def test_with_bind_it_writes_kubepods_and_nothing_above(
    options: tuple[str, ...], written: set[str]
) -> None:
    """No mount holds another cgroup: /sys itself is not mounted, whose mounts are not read-only."""
    found = mounts("--bind", *options)
    assert {path for path, (_, may_write) in found.items() if may_write} == {
        *written,
        "/var/lib/tenure-cpus",
    }
    others = [path for path in found if path not in written]
    assert not [path for path in others if "/sys/fs/cgroup/".startswith(f"{path}/")]
    names = {path.rpartition("/")[2] for path in written}
    assert {found[path][0].rpartition("/")[2] for path in written} == names


def test_it_has_no_privilege_and_no_capability_but_the_one_that_is_asked_for() -> None:
    """Root, because cgroups are root's; partitions take `CAP_SYS_ADMIN`, by the kernel."""
    pod = of_kind("DaemonSet", "--bind")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    security = container["securityContext"]
    assert not security["allowPrivilegeEscalation"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    asked = of_kind("DaemonSet", "--bind", "--partitions")["spec"]["template"]["spec"]
    assert asked["containers"][0]["securityContext"] == security | {
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    }
    assert "privileged" not in security
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["nodeSelector"] == {LABEL_TENURE_OWNED: "true"}


def test_it_reads_and_writes_its_node_and_lists_nothing() -> None:
    """Its account is its own: the device agent has no right on cgroups, nor this one on devices."""
    rules = of_kind("ClusterRole", "--bind")["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["nodes"], ["get", "patch"]),
        (["nodes/status"], ["patch"]),
        (["nodes/pods", "nodes/configz"], ["get"]),
    ]
    names = {one["metadata"]["name"] for one in printed_cpus("--bind")}
    assert not names & {one["metadata"]["name"] for one in printed_agent()}


def test_names_that_it_has_in_code_are_those_of_the_policy() -> None:
    """What it writes of its Node, and no more."""
    policy = of_kind("ValidatingAdmissionPolicy")
    words = " ".join(rule["expression"] for rule in policy["spec"]["validations"])
    assert f"c.type != '{CONDITION_TENURE_CPUS}'" in words
    assert f"k == '{LABEL_TENURE_CPU_MANAGED}'" in words


def test_the_socket_of_nri_is_mounted_where_that_is_asked_for() -> None:
    """Its folder, and the process is told where."""
    assert "/var/run/nri" not in mounts("--bind")
    options = ("--bind", "--nri")
    folder, may_write = mounts(*options)["/var/run/nri"]
    [container] = of_kind("DaemonSet", *options)["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert (told["TENURE_CPUS_NRI"], may_write) == (f"{folder}/nri.sock", False)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--kubepods", "/sys/fs/cgroup"],
        ["--kubepods", "/kubepods.slice"],
        ["--kubepods", "/sys/fs/cgroup/../x/pods"],
        ["--kubepods-cpu", "/sys/fs/cgroup/cpu/../../kubepods.slice"],
        ["--kubepods-cpu", "/sys/fs/cgroup/cpu/other"],
        ["--service", "http://a"],
        ["--nri"],
        ["--partitions"],
    ],
    ids=str,
)
def test_what_is_no_cgroup_of_pods_is_not_mounted(wrong: list[str], tmp_path: Any) -> None:  # noqa: ANN401 - pytest's
    """Nothing above kubepods either."""
    (tmp_path / "ca").write_text("PEM")
    words = ["manifests", "cpus", "--image", "i", "--api-ca", str(tmp_path / "ca")]
    assert run(app, [*words, "--proof-key", "k", *wrong]) == 2


def test_every_mount_and_every_right_has_its_reason_in_the_docs() -> None:
    """Whoever installs it reads what it gets."""
    words = (ROOT / "docs" / "cpus.md").read_text()
    rights = [
        name for rule in of_kind("ClusterRole", "--bind")["rules"] for name in rule["resources"]
    ]
    missing = [one for one in (*mounts("--bind", "--nri", *V1), *rights) if f"`{one}`" not in words]
    assert not missing
