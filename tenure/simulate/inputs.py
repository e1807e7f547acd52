"""Manifests as a run: the cluster that they describe, and its pending Pods as arrivals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.extended import by_number
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.claim_asks import ClaimWorld, claim_world
from scheduler.cluster.constraints import CLAIMS, by_other_pods, keeps_others_off, not_looked_at
from scheduler.cluster.documents import Document
from scheduler.cluster.mending import asked_as_far_as_read, cluster_as_far_as_read
from scheduler.cluster.model import Cluster, Pod, RefusedPod
from scheduler.cluster.objects import asked_by, cluster_of, node_reader, pending_of
from scheduler.cluster.snapshot import objects_of
from scheduler.decide.settings import SchedulingSettings
from tenure.manifests import Manifests, as_admitted, read_manifests
from tenure.simulate.claiming import decided_in
from tenure.simulate.model import Arrival, Run
from tenure.simulate.schedule import Labels, Subjects, read_schedule, with_labels


def read_manifest_run(
    paths: Sequence[str],
    *,
    settings: SchedulingSettings,
    start_us: int,
    schedule: Path | None = None,
) -> Run:
    """Read files as a run. Raises InputError: as `manifest_run` and `read_schedule`."""
    manifests = as_admitted(read_manifests(paths))
    run = manifest_run(
        manifests, settings=settings, start_us=start_us, may_ask_by_claims=schedule is None
    )
    return run if schedule is None else _scheduled(run, manifests, schedule, settings)


def manifest_run(
    manifests: Manifests,
    *,
    settings: SchedulingSettings,
    start_us: int,
    as_far_as_read: bool = False,
    may_ask_by_claims: bool = False,
) -> Run:
    """
    Return the run that these objects describe.

    Rule: cli.md, `tenure simulate`, Input.

    Args:
        as_far_as_read: an object that can't be read is left out and named, as for `tenure map`.
        may_ask_by_claims: Pods with claims are decided with them where that can be.

    Raises:
        InputError: an object that can't be read; with file, line and field.
    """
    read_cluster = cluster_as_far_as_read if as_far_as_read else cluster_of
    asks = asked_as_far_as_read if as_far_as_read else asked_by
    cluster = read_cluster(manifests, settings)
    pending = pending_of(manifests)
    offers = frozenset(name for node in cluster.nodes for name in node.extended)
    asked = [asks(document, settings.vocabulary) for document in pending]
    pods = [pod if isinstance(pod, RefusedPod) else by_number(pod, offers) for pod in asked]
    world = ClaimWorld()
    if may_ask_by_claims:
        nodes = {node.name: node for node in cluster.nodes}
        world = decided_in(claim_world(nodes, manifests, pending), pods)
    unread = [
        (f"{document.namespace}/{document.name}", words)
        for document in pending
        if (words := _unread(document, world))
    ]
    repelling = sum(keeps_others_off(document.body) for document in manifests.of_kind("Pod"))
    if repelling:
        fact = f"not looked at: pod anti-affinity of running Pods: pods={repelling}"
        cluster = replace(cluster, warnings=(*cluster.warnings, fact))
    undecided = _undecided(zip(pending, pods, strict=True))
    cluster = replace(cluster, warnings=(*cluster.warnings, *undecided))
    return Run(
        source="manifests",
        unread=unread,
        claims_there=world,
        arrivals=tuple(Arrival(at_us=start_us, pod=pod) for pod in pods),
        start_us=start_us,
        inputs_hash=hashlib.sha256(f"manifests {manifests.digest}".encode()).hexdigest(),
        **{field.name: getattr(cluster, field.name) for field in fields(Cluster)},
    )


def as_stored(run: Run, manifests: Manifests, settings: SchedulingSettings) -> Run:
    """Return the run with the names that its Pods are stored with, as nodes advertise them."""
    requests = objects_of(run, manifests, settings).requests
    arrivals = [
        replace(each, pod=replace(each.pod, stored=requests[each.pod.uid].stored))
        if isinstance(each.pod, PodRequest) and each.pod.uid in requests
        else each
        for each in run.arrivals
    ]
    return replace(run, arrivals=arrivals)


def _undecided(pods: Iterable[tuple[Document, Pod]]) -> Iterator[str]:
    """Yield the gangs of which kube-scheduler may refuse members by where the others are."""
    gangs: dict[str, set[str]] = {}
    for document, pod in pods:
        if isinstance(pod, PodRequest) and pod.gang is not None:
            gangs.setdefault(f"{pod.namespace}/{pod.gang.name}", set()).update(
                by_other_pods(document.body)
            )
    for name, constraints in sorted(gangs.items()):
        if constraints:
            yield f"gang {name}: not decided: {', '.join(sorted(constraints))}"


def _unread(document: Document, world: ClaimWorld) -> tuple[str, ...]:
    """Return what of a Pod is not looked at, its claims with what is beyond us of them."""
    found, why = not_looked_at(document.body), world.beyond.get(document.uid, "")
    said = [] if document.uid in world.asked else [f"{CLAIMS} ({why})" if why else CLAIMS]
    return tuple(word for each in found for word in (said if each == CLAIMS else [each]))


def _scheduled(run: Run, manifests: Manifests, schedule: Path, settings: SchedulingSettings) -> Run:
    """Return the run with what happens when; a Pod that it does not name is there at once."""
    pending = {
        f"{document.namespace}/{document.name}": document for document in pending_of(manifests)
    }
    node = node_reader(manifests, settings)

    def node_with(name: str, labels: Labels) -> NodeFacts:
        return node(name, lambda body: with_labels(body, labels))

    def pod_with(path: str, labels: Labels) -> Pod:
        document = pending[path]
        return asked_by(document, settings.vocabulary, with_labels(document.body, labels))

    subjects = Subjects(
        nodes=run.nodes,
        pods=dict(zip(pending, (arrival.pod for arrival in run.arrivals), strict=True)),
        node_with=node_with,
        pod_with=pod_with,
    )
    read = read_schedule(schedule, subjects, run.start_us, all_arrive=True)
    text = f"{run.inputs_hash} schedule {hashlib.sha256(schedule.read_bytes()).hexdigest()}"
    return replace(
        run,
        arrivals=read.arrivals,
        changes=read.changes,
        timed=True,
        inputs_hash=hashlib.sha256(text.encode()).hexdigest(),
    )
