"""What an agent's right to make a Pod is worth, in the mode `env`: its own probe alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import pytest

from agent.decide.env_proof import ProbePod
from agent.manifests import ACCOUNT, AgentManifests, manifests
from ledger.signing import published
from tests.support.kube.agents import agent_token
from tests.support.kube.api import Api
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.webhooks import apply, expect_taken, remove
from tests.support.proofs import KEY

OURS: Final = "tenure-probing"
OPTIONS: Final = AgentManifests(
    image="registry.test/tenure:1",
    authority="PEM",
    keys=published([KEY.public]),
    namespace=OURS,
    by_environment=True,
    probe_runtime_class="",
)
OWN: Final = ProbePod(node="agent-a", namespace=OURS, image=OPTIONS.image)
PODS: Final = pods_in(OURS)

Json = dict[str, Any]


@pytest.fixture(scope="module")
def mine(plane: ControlPlane) -> Iterator[Api]:
    """The API as the agent of node `agent-a` reaches it, with all that is printed in force."""
    for name in (OURS, "elsewhere"):
        plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    runtime = {**kind, "metadata": {"name": "other"}, "handler": "other"}
    made = manifests(OPTIONS)
    reply = plane.api().create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
    assert reply.ok, reply.message
    apply(plane, made)
    words = pod("agent", {"cpu": "1m"}, nodeName="agent-a", serviceAccountName=ACCOUNT)
    running = plane.api().create(PODS, words)
    assert running.ok, running.message
    token = agent_token(plane, OURS, running.body)
    api = Api(plane.url, ca_file=plane.ca_file, token=token)
    other = Api(plane.url, ca_file=plane.ca_file, token=agent_token(plane, OURS, None))
    tried, own = f"{PODS}?dryRun=All", made_by(lambda _: None)
    eventually(lambda: "bound to no Pod" in other.create(tried, own).message)
    yield api
    for name in ("agent", OWN.name):
        plane.api().delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    plane.api().delete("/apis/node.k8s.io/v1/runtimeclasses/other")
    remove(plane, made)


def made_by(change: Callable[[Json], object]) -> Json:
    """Return the probe's object with a change."""
    made: Json = deepcopy(dict(OWN.made()))
    change(made)
    return made


def test_the_api_server_takes_all_that_is_printed(plane: ControlPlane, mine: Api) -> None:
    """The policies compile without a warning."""
    assert mine
    expect_taken(plane, manifests(OPTIONS))


def test_an_agent_makes_binds_and_deletes_its_own_probe(plane: ControlPlane, mine: Api) -> None:
    """The API server writes the Binding's annotation and the node into the Pod at once."""
    made = mine.create(PODS, made_by(lambda _: None))
    assert made.ok, made.message
    bound = mine.create(
        f"{PODS}/{OWN.name}/binding", OWN.bound(made.body["metadata"]["uid"], "GPU-a")
    )
    assert bound.ok, bound.message
    there = plane.api().get(f"{PODS}/{OWN.name}").body
    assert there["spec"]["nodeName"] == "agent-a"
    assert there["metadata"]["annotations"] == {"tenure.sh/visible.0": "GPU-a"}
    deleted = mine.delete(f"{PODS}/{OWN.name}?gracePeriodSeconds=0")
    assert deleted.ok, deleted.message


def _container(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["spec"]["containers"][0].update(fields)


def _spec(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["spec"].update(fields)


def _security(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["spec"]["containers"][1]["securityContext"].update(fields)


def _metadata(**fields: Any) -> Callable[[Json], object]:  # noqa: ANN401 - JSON
    return lambda made: made["metadata"].update(fields)


OWNER: Final = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}
SECRET: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {}}}
FILES: Final = {"name": "host", "hostPath": {"path": "/"}}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda made: made["metadata"].update(name="other"), id="another name"),
        pytest.param(
            lambda made: made["metadata"].update(name="tenure-agent-probe-agent-b"),
            id="another node's name",
        ),
        pytest.param(_metadata(labels={"app": "tenure"}), id="behind a Service of ours"),
        pytest.param(_metadata(ownerReferences=[OWNER]), id="as another's replica"),
        pytest.param(_metadata(finalizers=["a.test/b"]), id="one that stays"),
        pytest.param(_spec(restartPolicy="Always"), id="one that runs again and again"),
        pytest.param(_spec(activeDeadlineSeconds=None), id="one without an end"),
        pytest.param(_spec(activeDeadlineSeconds=86400), id="one that ends late"),
        pytest.param(_spec(nodeName="agent-a"), id="bound as it is made"),
        pytest.param(_spec(schedulerName="default-scheduler"), id="for a scheduler"),
        pytest.param(_spec(volumes=[FILES]), id="the host's files"),
        pytest.param(_spec(hostPID=True), id="the host's processes"),
        pytest.param(_spec(serviceAccountName=ACCOUNT), id="an account with rights"),
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
        pytest.param(_security(allowPrivilegeEscalation=True), id="more privilege than it has"),
        pytest.param(_security(capabilities={"add": ["SYS_ADMIN"]}), id="a capability"),
    ],
)
def test_an_agent_makes_no_other_pod(mine: Api, change: Callable[[Json], object]) -> None:
    """Whatever somebody with the token of one node would like to run, there or elsewhere."""
    reply = mine.create(PODS, made_by(change))
    assert (reply.status, "an agent" in reply.message) == (403, True), reply.message


def test_an_agent_makes_none_elsewhere_and_binds_and_deletes_no_other(
    plane: ControlPlane, mine: Api
) -> None:
    """Neither in another namespace, nor to another node, nor a Pod of somebody else's."""
    elsewhere = made_by(lambda made: made["metadata"].update(namespace="elsewhere"))
    assert mine.create(pods_in("elsewhere"), elsewhere).status == 403
    assert mine.delete(f"{PODS}/agent").status == 403
    made = mine.create(PODS, made_by(lambda _: None))
    assert made.ok, made.message
    uid = made.body["metadata"]["uid"]
    away = dict(OWN.bound(uid, "GPU-a"))
    away["target"] = {**away["target"], "name": "agent-b"}
    reply = mine.create(f"{PODS}/{OWN.name}/binding", away)
    assert (reply.status, "own node alone" in reply.message) == (403, True), reply.message
    waiting = plane.api().create(PODS, pod("waits", {"cpu": "1m"}))
    assert waiting.ok, waiting.message
    named = {"name": "waits", "uid": waiting.body["metadata"]["uid"]}
    taken = {**OWN.bound(uid, "GPU-a"), "metadata": {**named, "namespace": OURS}}
    reply = mine.create(f"{PODS}/waits/binding", taken)
    assert (reply.status, "own node alone" in reply.message) == (403, True), reply.message
    for name in ("waits", OWN.name):
        plane.api().delete(f"{PODS}/{name}?gracePeriodSeconds=0")
