"""CPUs of one's own on a real control plane: only where something on the node binds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.test_scheduler import is_refused, node_of
from tests.support.kube.api import Api, Reply
from tests.support.kube.bursts import DIALECTS, eventually, remove_pods
from tests.support.kube.control_plane import AGENT_ACCOUNT, MALLORY, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.policies import in_force
from tests.support.kube.schedulers import Identities, add_gpu_node, asking, extender, remove_node
from tests.support.kube.webhooks import apply, serving
from tests.support.process import tenure

LABEL: Final = "tenure.sh/cpu-managed"
NODE: Final = "unbound"
SETTINGS: Final = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """A node with cards and CPUs, where nothing binds CPUs."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE, binds_cpus=False)
    yield NODE
    remove_node(plane, NODE)


def refusal(api: Api, path: str) -> str:
    """Return what kube-scheduler says of a Pod that no node takes."""
    conditions = api.get(path).body["status"].get("conditions") or ()
    return "".join(one.get("message", "") for one in conditions if one["type"] == "PodScheduled")


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_no_cpus_are_granted_before_something_binds_them(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """An LSR Pod waits with the reason; once the agent says that it binds, the Pod is bound."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        for name in ("cpuset", "nvidia"):
            body = pod(name, schedulerName="tenure", **DIALECTS[name])
            assert api.create(where, body).ok
        one = f"{where}/cpuset"
        eventually(lambda: is_refused(plane, one) or node_of(plane, one))
        said = refusal(api, f"{where}/cpuset")
        assert "1 CPUsNotBound" in said, said
        eventually(lambda: node_of(plane, f"{where}/nvidia") == NODE)
        team = where.split("/")[4]
        why = tenure("why", f"{team}/cpuset", "--ledger", ledger, cwd=tmp_path)
        assert "CPUsNotBound" in why.stdout, why.stdout
        assert LABEL in why.stdout, why.stdout
        told = tenure("why", f"{team}/cpuset", "-o", "json", "--ledger", ledger, cwd=tmp_path)
        (row,) = (one for one in json.loads(told.stdout)["nodes"] if one["node"] == NODE)
        assert (row["reason"], row["never"]) == ("CPUsNotBound", False)
        marked = api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {LABEL: "true"}}})
        assert marked.ok, marked.message
        eventually(lambda: node_of(plane, f"{where}/cpuset") == NODE)
    remove_pods(plane, where, ["cpuset", "nvidia"])


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_where_koordlet_binds_cpus_the_settings_say_so(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """No node has the label then, and every one grants CPUs."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    config = tmp_path / "scheduler.yaml"
    config.write_text(f"{SETTINGS}cpu: {{boundBy: koordlet}}\n")
    with (
        extender(plane, ledger, identities, forked=True, config=config) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        assert api.create(where, pod("cpuset", schedulerName="tenure", **DIALECTS["cpuset"])).ok
        eventually(lambda: node_of(plane, f"{where}/cpuset") == NODE)
    remove_pods(plane, where, ["cpuset"])


def marked_by(api: Api, node: str, value: str | None) -> Reply:
    """Set the label of a Node, or take it off."""
    return api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: value}}})


def rights_on_nodes() -> list[dict[str, Any]]:
    """Return what lets our agent's account label Nodes, as its own role will."""
    name, group = "tenure-test-labels", "rbac.authorization.k8s.io"
    _, _, where, account = AGENT_ACCOUNT.split(":")
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    return [
        {**head, "kind": "ClusterRole", "rules": [rule]},
        {
            **head,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "namespace": where, "name": account}],
        },
    ]


@pytest.mark.parametrize("by_webhook", [True, False], ids=["by the webhook", "by a policy alone"])
def test_who_binds_cpus_is_said_by_tenure_alone(
    plane: ControlPlane, node: str, *, by_webhook: bool
) -> None:
    """Neither users nor kubelet set the label; anybody takes it off, which closes the node."""
    apply(plane, rights_on_nodes())
    users, agent = plane.api(MALLORY), plane.api(AGENT_ACCOUNT)
    with serving(plane) if by_webhook else in_force(plane):
        refused = marked_by(users, node, "true")
        assert refused.status == 422, refused.message
        assert LABEL in refused.message
        marked = marked_by(agent, node, "true")
        assert marked.ok, marked.message
        assert not marked_by(users, node, "false").ok
        assert marked_by(users, node, None).ok
        assert not marked_by(users, node, "true").ok


def test_admission_and_check_warn_of_cpus_that_nothing_may_bind(
    plane: ControlPlane, namespace: Callable[..., str], tmp_path: Path
) -> None:
    """A warning, in the same words; none where the settings name koordlet."""
    body = pod("a", **DIALECTS["cpuset"])
    file, config = tmp_path / "pod.yaml", tmp_path / "admission.yaml"
    file.write_text(json.dumps(body))
    config.write_text(f"{SETTINGS.replace('Scheduler', 'Admission')}cpu: {{boundBy: koordlet}}\n")
    for arguments in ((), ("--config", str(config))):
        with serving(plane, arguments=arguments):
            made = plane.api(MALLORY).create(pods_in(namespace()), body, dry_run=True)
        assert made.ok, made.message
        done = tenure("check", str(file), "-o", "json", *arguments, cwd=tmp_path)
        (said,) = json.loads(done.stdout)
        about = [text for text in made.warnings if "CPUsNotBound" in text]
        assert bool(about) is not bool(arguments), made.warnings
        assert [text for text in said["warnings"] if "CPUsNotBound" in text] == about
