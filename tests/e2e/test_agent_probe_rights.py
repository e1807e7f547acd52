"""What an agent's right to make a Pod is worth, in the mode `env`: its own probe alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from agent.decide.env_proof import ProbePod
from tests.support.kube.agents import agent_token
from tests.support.kube.api import Api, Reply
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.webhooks import apply, expect_taken, remove
from tests.support.manifests import AGENT_ACCOUNT, printed_agent

OURS: Final = "tenure-probing"
IMAGE: Final = "registry.test/tenure:1"
PODS: Final = pods_in(OURS)

Json = dict[str, Any]


def things() -> list[Json]:
    """Return all that is printed for the mode."""
    return printed_agent("--namespace", OURS, "--env", image=IMAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mine:
    """The API as the agent of a node reaches it, and the probe that it makes."""

    api: Api
    probe: ProbePod

    def create(self, change: Callable[[Json], object] = lambda _: None) -> Reply:
        """Create the probe with a change."""
        return self.api.create(PODS, made_by(self.probe, change))

    @property
    def path(self) -> str:
        """Where the probe is."""
        return f"{PODS}/{self.probe.name}"


@pytest.fixture(scope="module")
def mine(plane: ControlPlane) -> Iterator[Mine]:
    """The agent of node `agent-a`, with all that is printed in force."""
    for name in (OURS, "elsewhere"):
        plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    runtime = {**kind, "metadata": {"name": "other"}, "handler": "other"}
    made = things()
    reply = plane.api().create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
    assert reply.ok, reply.message
    apply(plane, made)
    words = pod("agent", {"cpu": "1m"}, nodeName="agent-a", serviceAccountName=AGENT_ACCOUNT)
    running = plane.api().create(PODS, words)
    assert running.ok, running.message
    token = agent_token(plane, OURS, running.body)
    api = Api(plane.url, ca_file=plane.ca_file, token=token)
    other = Api(plane.url, ca_file=plane.ca_file, token=agent_token(plane, OURS, None))
    meta = running.body["metadata"]
    own = ProbePod(node="agent-a", namespace=OURS, image=IMAGE, owner=(meta["name"], meta["uid"]))
    tried = f"{PODS}?dryRun=All"
    eventually(lambda: "bound to no Pod" in other.create(tried, own.made()).message)
    yield Mine(api=api, probe=own)
    for name in ("agent", own.name):
        plane.api().delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    plane.api().delete("/apis/node.k8s.io/v1/runtimeclasses/other")
    remove(plane, made)


def made_by(probe: ProbePod, change: Callable[[Json], object]) -> Json:
    """Return the probe's object with a change."""
    made: Json = deepcopy(dict(probe.made()))
    change(made)
    return made


def test_the_api_server_takes_all_that_is_printed(plane: ControlPlane, mine: Mine) -> None:
    """The policies compile without a warning."""
    assert mine
    expect_taken(plane, things())


def test_an_agent_makes_binds_and_deletes_its_own_probe(plane: ControlPlane, mine: Mine) -> None:
    """The API server writes the Binding's annotation and the node into the Pod at once."""
    made = mine.create()
    assert made.ok, made.message
    for shown in ("all", "GPU-a,GPU-b"):
        more = mine.probe.bound(made.body["metadata"]["uid"], shown)
        reply = mine.api.create(f"{mine.path}/binding", more)
        assert (reply.status, "one card" in reply.message) == (403, True), reply.message
    sound = mine.probe.bound(made.body["metadata"]["uid"], "GPU-a")
    labelled = {**sound, "metadata": {**sound["metadata"], "labels": {"app": "tenure-api"}}}
    reply = mine.api.create(f"{mine.path}/binding", labelled)
    assert (reply.status, "no label" in reply.message) == (403, True), reply.message
    bound = mine.api.create(f"{mine.path}/binding", sound)
    assert bound.ok, bound.message
    there = plane.api().get(mine.path).body
    assert there["spec"]["nodeName"] == "agent-a"
    assert there["metadata"]["annotations"] == {"tenure.sh/visible.0": "GPU-a"}
    deleted = mine.api.delete(f"{mine.path}?gracePeriodSeconds=0")
    assert deleted.ok, deleted.message


def test_what_the_api_servers_own_plugins_add_to_a_probe_is_let_in(
    plane: ControlPlane, mine: Mine
) -> None:
    """A LimitRange of the namespace gives containers CPUs, and says so in an annotation."""
    limits = {
        "metadata": {"name": "usual"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]},
    }
    path = f"/api/v1/namespaces/{OURS}/limitranges"
    reply = plane.api().create(path, limits)
    assert reply.ok, reply.message
    tried = f"{PODS}?dryRun=All"

    def added() -> Json:
        made = mine.api.create(tried, mine.probe.made())
        assert made.ok, made.message
        return dict(made.body)

    try:
        eventually(lambda: "annotations" in added()["metadata"])
        [first, _] = added()["spec"]["containers"]
        assert first["resources"]["limits"] == {"cpu": "1", "memory": "256Mi"}
    finally:
        plane.api().delete(f"{path}/usual")


def _container(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["spec"]["containers"][0].update(fields)


def _spec(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["spec"].update(fields)


def _security(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["spec"]["containers"][1]["securityContext"].update(fields)


def _metadata(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["metadata"].update(fields)


OWNER: Final = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}
OTHERS: Final = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "u"}
SECRET: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {}}}
FILES: Final = {"name": "host", "hostPath": {"path": "/"}}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda made: made["metadata"].update(name="other"), id="another name"),
        pytest.param(
            lambda made: made["metadata"].update(name="tenure-agent-probe-agent-a"),
            id="another agent's name",
        ),
        pytest.param(_metadata(labels={"app": "tenure"}), id="behind a Service of ours"),
        pytest.param(_metadata(ownerReferences=[OWNER]), id="as another's replica"),
        pytest.param(_metadata(ownerReferences=[OTHERS]), id="that goes with another Pod"),
        pytest.param(
            lambda made: made["metadata"]["ownerReferences"][0].update(controller=True),
            id="that its agent controls",
        ),
        pytest.param(_metadata(finalizers=["a.test/b"]), id="one that stays"),
        pytest.param(
            _metadata(annotations={"tenure.sh/visible.1": "all"}), id="shown cards as it is made"
        ),
        pytest.param(_spec(restartPolicy="Always"), id="one that runs again and again"),
        pytest.param(_spec(activeDeadlineSeconds=None), id="one without an end"),
        pytest.param(_spec(activeDeadlineSeconds=86400), id="one that ends late"),
        pytest.param(_spec(nodeName="agent-a"), id="bound as it is made"),
        pytest.param(_spec(schedulerName="default-scheduler"), id="for a scheduler"),
        pytest.param(_spec(volumes=[FILES]), id="the host's files"),
        pytest.param(_spec(hostPID=True), id="the host's processes"),
        pytest.param(_spec(hostIPC=True), id="the host's shared memory"),
        pytest.param(_spec(hostNetwork=False), id="an address of its own"),
        pytest.param(
            _spec(hostAliases=[{"ip": "127.0.0.1", "hostnames": ["a"]}]), id="names of hosts"
        ),
        pytest.param(_spec(shareProcessNamespace=True), id="one namespace of processes"),
        pytest.param(_spec(resources={"limits": {"memory": "1Ti"}}), id="amounts of the whole Pod"),
        pytest.param(_spec(securityContext={"supplementalGroups": [0]}), id="groups of the host's"),
        pytest.param(
            _spec(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}),
            id="settings of the kernel",
        ),
        pytest.param(
            lambda made: made["spec"]["containers"].append(
                {**made["spec"]["containers"][0], "name": "third"}
            ),
            id="a third container",
        ),
        pytest.param(_spec(serviceAccountName=AGENT_ACCOUNT), id="an account with rights"),
        pytest.param(_spec(automountServiceAccountToken=True), id="a token"),
        pytest.param(_spec(runtimeClassName="other"), id="another runtime"),
        pytest.param(_spec(priorityClassName="system-node-critical"), id="that others give way to"),
        pytest.param(
            _spec(initContainers=[{"name": "i", "image": "evil"}]), id="a container before"
        ),
        pytest.param(_container(image="evil"), id="another image"),
        pytest.param(_container(command=["sh"]), id="another command"),
        pytest.param(_container(args=["--debug"]), id="more words"),
        pytest.param(
            _container(env=[{"name": "LD_PRELOAD", "value": "/x"}]), id="another variable"
        ),
        pytest.param(
            _container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]), id="all cards"
        ),
        pytest.param(
            _container(envFrom=[{"secretRef": {"name": "s"}}]), id="a Secret in its environment"
        ),
        pytest.param(_container(lifecycle={"preStop": {"exec": {"command": ["sh"]}}}), id="a hook"),
        pytest.param(
            _container(env=[{**SECRET, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
            id="the variable from elsewhere",
        ),
        pytest.param(_container(resources={}), id="memory without an end"),
        pytest.param(_container(resources={"limits": {"memory": "64Gi"}}), id="much memory"),
        pytest.param(
            _container(resources={"limits": {"memory": "256Mi", "cpu": "64"}}), id="many CPUs"
        ),
        pytest.param(
            _container(resources={"limits": {"memory": "256Mi", "nvidia.com/gpu": "1"}}),
            id="a card of a device plugin",
        ),
        pytest.param(_security(allowPrivilegeEscalation=True), id="more privilege than it has"),
        pytest.param(_security(capabilities={"add": ["SYS_ADMIN"]}), id="a capability"),
        pytest.param(_security(capabilities={"drop": ["NET_RAW"]}), id="capabilities kept"),
        pytest.param(_security(readOnlyRootFilesystem=False), id="a root that is written to"),
        pytest.param(_security(seccompProfile={"type": "Unconfined"}), id="any system call"),
        pytest.param(_security(appArmorProfile={"type": "Unconfined"}), id="any file"),
        pytest.param(_security(runAsUser=0), id="the user that somebody names"),
    ],
)
def test_an_agent_makes_no_other_pod(mine: Mine, change: Callable[[Json], object]) -> None:
    """Whatever somebody with the token of one node would like to run, there or elsewhere."""
    reply = mine.create(change)
    assert (reply.status, "an agent" in reply.message) == (403, True), reply.message


def test_an_agent_makes_none_elsewhere_and_binds_and_deletes_no_other(
    plane: ControlPlane, mine: Mine
) -> None:
    """Neither in another namespace, nor to another node, nor a Pod of somebody else's."""
    elsewhere = made_by(mine.probe, lambda made: made["metadata"].update(namespace="elsewhere"))
    assert mine.api.create(pods_in("elsewhere"), elsewhere).status == 403
    assert mine.api.delete(f"{PODS}/agent").status == 403
    made = mine.create()
    assert made.ok, made.message
    uid = made.body["metadata"]["uid"]
    away = dict(mine.probe.bound(uid, "GPU-a"))
    away["target"] = {**away["target"], "name": "agent-b"}
    reply = mine.api.create(f"{mine.path}/binding", away)
    assert (reply.status, "own node alone" in reply.message) == (403, True), reply.message
    waiting = plane.api().create(PODS, pod("waits", {"cpu": "1m"}))
    assert waiting.ok, waiting.message
    named = {"name": "waits", "uid": waiting.body["metadata"]["uid"]}
    taken = {**mine.probe.bound(uid, "GPU-a"), "metadata": {**named, "namespace": OURS}}
    reply = mine.api.create(f"{PODS}/waits/binding", taken)
    assert (reply.status, "own node alone" in reply.message) == (403, True), reply.message
    for name in ("waits", mine.probe.name):
        plane.api().delete(f"{PODS}/{name}?gracePeriodSeconds=0")


def test_agents_of_one_node_have_probes_of_their_own(plane: ControlPlane, mine: Mine) -> None:
    """At an upgrade there are two: neither makes, binds or deletes the other's."""
    words = pod("agent-new", {"cpu": "1m"}, nodeName="agent-a", serviceAccountName=AGENT_ACCOUNT)
    running = plane.api().create(PODS, words)
    assert running.ok, running.message
    newer = Api(plane.url, ca_file=plane.ca_file, token=agent_token(plane, OURS, running.body))
    made = mine.create()
    assert made.ok, made.message
    assert newer.create(PODS, mine.probe.made()).status == 403
    assert newer.delete(mine.path).status == 403
    bound = mine.probe.bound(made.body["metadata"]["uid"], "GPU-a")
    assert newer.create(f"{mine.path}/binding", bound).status == 403
    own = replace(mine.probe, owner=("agent-new", running.body["metadata"]["uid"]))
    beside = newer.create(PODS, own.made())
    assert beside.ok, beside.message
    for name in ("agent-new", own.name, mine.probe.name):
        plane.api().delete(f"{PODS}/{name}?gracePeriodSeconds=0")
