"""Two replicas of the live scheduler: one leads, the other takes over, no card is given twice."""

from __future__ import annotations

import json
import signal
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from scheduler.service.leading import NOT_LEADER
from tests.e2e.test_scheduler import NODES, check
from tests.support.kube.balancer import Backend, balancing
from tests.support.kube.bursts import DIALECTS, burst, remove_pods, settled
from tests.support.kube.control_plane import SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.webhooks import NAMESPACE
from tests.support.relay import Relay, relay_to, through
from tests.support.stores import PostgresStore

OURS = pods_in(NAMESPACE)
LEADER = "tenure.sh/leader"
PATIENCE_SECONDS = 180.0
"""A Lease that lapses, calls that hang for ten seconds, Pods that back off; on a busy machine."""


@pytest.fixture(autouse=True)
def nodes(plane: ControlPlane) -> Iterator[None]:
    """Nodes with eight cards each, and no Pod that waits for a scheduler of this name."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for one in plane.api().get("/api/v1/pods").body["items"]:
        remove_pods(plane, pods_in(one["metadata"]["namespace"]), [one["metadata"]["name"]])
    for name in NODES:
        add_gpu_node(plane, name)
    yield
    for name in NODES:
        remove_node(plane, name)


@pytest.fixture
def ledger(empty_postgres: PostgresStore) -> Iterator[str]:
    """A new ledger on Postgres."""
    copy = empty_postgres.copy()
    yield copy.url
    copy.server.run(f"DROP DATABASE {copy.database} WITH (FORCE)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled(Backend):
    """A replica that the Service selects by its Pod's label."""

    plane: ControlPlane
    pod: str

    def is_ready(self) -> bool:
        """Tell whether it has the leader's label."""
        return is_labelled(self.plane, self.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Two replicas, of which the first leads; it reaches API server and Postgres by these links."""

    first: Served
    links: tuple[Relay, Relay]
    second: Served
    port: int
    ledger: str
    identities: Identities


def is_labelled(plane: ControlPlane, name: str) -> bool:
    """Tell whether a Pod of ours has the leader's label."""
    labels = plane.api().get(f"{OURS}/{name}").body["metadata"].get("labels") or {}
    return labels.get(LEADER) == "true"


@pytest.fixture
def replicas(plane: ControlPlane, ledger: str, identities: Identities) -> Iterator[Replicas]:
    """Two replicas behind one Service, the first of them leading."""
    names = ("scheduler-a", "scheduler-b")
    api = urlsplit(plane.url).port
    assert api is not None
    with ExitStack() as stack:
        links = [stack.enter_context(relay_to(where)) for where in (api, make_url(ledger))]
        to_api, to_ledger = links
        reached = plane.kubeconfig(SCHEDULER_ACCOUNT, f"https://127.0.0.1:{to_api.port}")
        served: list[Served] = []
        for name, labels in zip(names, ({"app": "tenure"}, {}), strict=True):
            made = plane.api().create(OURS, pod(name, {}, schedulerName="nobody", labels=labels))
            assert made.ok, made.message
            stack.callback(remove_pods, plane, OURS, [name])
            leading = not served
            entered = extender(
                plane,
                through(ledger, to_ledger.port) if leading else ledger,
                identities,
                replica=name,
                pod=name,
                leading=leading,
                kubeconfig=reached if leading else None,
                forked=True,
            )
            served.append(stack.enter_context(entered))
        wait(lambda: is_labelled(plane, names[0]))
        assert not is_labelled(plane, names[1])
        backends: list[Backend] = [
            Labelled(port=one.port, probes=one.probes, plane=plane, pod=name)
            for one, name in zip(served, names, strict=True)
        ]
        balancer = stack.enter_context(balancing(backends))
        yield Replicas(
            first=served[0],
            links=(to_api, to_ledger),
            second=served[1],
            port=balancer.port,
            ledger=ledger,
            identities=identities,
        )


def wait(claim: Callable[[], object]) -> None:
    """Wait until a claim holds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not claim():
        assert time.monotonic() < until, claim
        time.sleep(0.1)


def all_bound(plane: ControlPlane, where: str, names: list[str], words: Callable[[], str]) -> None:
    """Wait until every Pod of a burst has a node."""
    until = time.monotonic() + PATIENCE_SECONDS
    while len(bound := settled(plane, where, len(names))) < len(names):
        missing = set(names) - {one["metadata"]["name"] for one in bound}
        assert time.monotonic() < until, f"{sorted(missing)}\n{words()}"


def asked(served: Served, identities: Identities, verb: str = "filter", **message: object) -> str:
    """Ask a replica itself which node takes a Pod; return its error, or that it can't be asked."""
    tls = ssl.create_default_context(cafile=str(identities.server / "ca.crt"))
    tls.load_cert_chain(identities.client / "tls.crt", identities.client / "tls.key")
    message = message or {"Pod": pod("asked", {}, uid="asked"), "NodeNames": list(NODES)}
    body = json.dumps(message).encode()
    request = urllib.request.Request(f"https://127.0.0.1:{served.port}/{verb}", body)
    try:
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
            found = json.loads(answer.read())
    except OSError as error:
        return f"can't be asked: {error}"
    assert found["Error"], f"it answered as the leader: {found}"
    return str(found["Error"])


def test_a_standby_takes_over_from_a_leader_that_is_killed_in_a_burst(
    plane: ControlPlane, namespace: Callable[..., str], replicas: Replicas, tmp_path: Path
) -> None:
    """SIGKILL: who stood by says so until then, has the label after, and settles what was begun."""
    where = pods_in(namespace(managed=False))
    first, second = replicas.first, replicas.second
    assert asked(second, replicas.identities) == NOT_LEADER
    with plane.scheduler(asking(plane, replicas, replicas.identities)):
        names = burst(plane, where, 6)
        settled(plane, where, len(names) // 4)
        began = time.monotonic()
        first.kill()
        wait(second.leads)
        sys.stdout.write(f"SIGKILL to takeover: {time.monotonic() - began:.1f} s\n")
        all_bound(plane, where, names, second.words)
        bound = settled(plane, where, len(names))
    wait(lambda: is_labelled(plane, "scheduler-b"))
    assert not is_labelled(plane, "scheduler-a")
    check(replicas.ledger, bound, tmp_path)
    remove_pods(plane, where, names)


def test_a_leader_that_wakes_up_after_a_takeover_gives_nothing(
    plane: ControlPlane, namespace: Callable[..., str], replicas: Replicas, tmp_path: Path
) -> None:
    """SIGSTOP, SIGCONT: it is silent from the first call on, ends, and no card is given twice."""
    where = pods_in(namespace(managed=False))
    first, second = replicas.first, replicas.second
    with plane.scheduler(asking(plane, replicas, replicas.identities)):
        names = burst(plane, where, 6)
        settled(plane, where, len(names) // 4)
        first.process.send_signal(signal.SIGSTOP)
        try:
            wait(second.leads)
        finally:
            first.process.send_signal(signal.SIGCONT)
        asked(first, replicas.identities)
        all_bound(plane, where, names, second.words)
        bound = settled(plane, where, len(names))
    wait(lambda: first.process.poll() is not None)
    assert "another writer took over" in first.words()
    assert second.leads()
    wait(lambda: is_labelled(plane, "scheduler-b"))  # who woke up may have taken it off first
    assert not is_labelled(plane, "scheduler-a")
    check(replicas.ledger, bound, tmp_path)
    remove_pods(plane, where, names)


def test_of_two_that_believe_to_lead_one_alone_gives(
    plane: ControlPlane, namespace: Callable[..., str], replicas: Replicas, tmp_path: Path
) -> None:
    """
    The leader hears of nothing, and its Lease is another's before it has ended for it.

    Neither API server nor Postgres tells it: only silent links. It is asked to bind meanwhile, and
    what it has sent arrives once the links are back, long after it was deposed.
    """
    where = pods_in(namespace(managed=False))
    first, second = replicas.first, replicas.second
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/tenure-scheduler"
    with ExitStack() as stack:
        with ExitStack() as silence:
            made = plane.api().create(
                where, pod("both", schedulerName="tenure", **DIALECTS["nvidia"])
            )
            assert made.ok, made.message
            wait(lambda: 'tenure_scheduler_view{what="waiting_pods"} 3.0' in first.probe("metrics"))
            for link in replicas.links:
                silence.enter_context(link.fallen_silent())
            assert plane.api().delete(lease).ok
            wait(second.leads)
            call = {"PodNamespace": where.split("/")[4], "PodName": "both", "Node": NODES[0]}
            said = asked(
                first, replicas.identities, "bind", PodUID=made.body["metadata"]["uid"], **call
            )
            sys.stdout.write(f"the deposed one says: {said}\n")
            stack.enter_context(plane.scheduler(asking(plane, replicas, replicas.identities)))
            names = ["both", *burst(plane, where, 2)]
            all_bound(plane, where, names, second.words)
        wait(lambda: first.process.poll() is not None)
        bound = settled(plane, where, len(names))
    assert "another writer took over" in first.words()
    assert second.leads()
    check(replicas.ledger, bound, tmp_path)
    remove_pods(plane, where, names)
