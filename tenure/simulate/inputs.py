"""Manifests as a run: the cluster that they describe, and its pending Pods as arrivals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ledger.domain.annotations.volcano_vgpu import VGPU_NUMBER
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.extended import by_number, without
from ledger.domain.request.near_names import near_names, offers_of
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.cluster.claim_asks import ClaimWorld, claim_world
from scheduler.cluster.constraints import (
    by_other_pods,
    by_quotas,
    is_placed_elsewhere,
    keeps_others_off,
    not_decided,
    not_looked_at,
)
from scheduler.cluster.documents import Document
from scheduler.cluster.mending import asked_as_far_as_read, cluster_as_far_as_read
from scheduler.cluster.model import Cluster, Pod, asking
from scheduler.cluster.objects import asked_by, cluster_of, node_reader, pending_of
from scheduler.cluster.snapshot import of_files, stored_as
from scheduler.decide.settings import SchedulingSettings
from tenure.manifests import Manifests, as_admitted, read_manifests
from tenure.simulate.claiming import alone_in, decided_in
from tenure.simulate.model import Arrival, Run
from tenure.simulate.schedule import Labels, Subjects, read_schedule, with_labels
from tenure.simulate.vgpus import by_card, chosen_by, vgpus_asked


def read_manifest_run(
    paths: Sequence[str],
    *,
    settings: SchedulingSettings,
    start_us: int,
    schedule: Path | None = None,
) -> Run:
    """Read files as a run. Raises InputError: as `manifest_run` and `read_schedule`."""
    manifests = as_admitted(read_manifests(paths))
    settings = of_files(settings, manifests)
    run = manifest_run(
        manifests, settings=settings, start_us=start_us, is_timed=schedule is not None
    )
    return run if schedule is None else _scheduled(run, manifests, schedule, settings)


def manifest_run(
    manifests: Manifests,
    *,
    settings: SchedulingSettings,
    start_us: int,
    as_far_as_read: bool = False,
    is_timed: bool = False,
) -> Run:
    """
    Return the run that these objects describe.

    Rule: cli.md, `tenure simulate`, Input.

    Args:
        as_far_as_read: an object that can't be read is left out and named, as for `tenure map`.
        is_timed: no Pod with claims is decided.

    Raises:
        InputError: an object that can't be read; with file, line and field.
    """
    read_cluster = cluster_as_far_as_read if as_far_as_read else cluster_of
    asks = asked_as_far_as_read if as_far_as_read else asked_by
    settings = of_files(settings, manifests)
    cluster = read_cluster(manifests, settings)
    pending = pending_of(manifests)
    offers = frozenset(name for node in cluster.nodes for name in node.extended)
    asked = [asks(document, settings.vocabulary) for document in pending]
    nodes = {node.name: node for node in cluster.nodes}
    pairs = tuple(zip(pending, asked, strict=True))
    world = ClaimWorld() if is_timed else claim_world(nodes, manifests, pairs)
    asked = [
        without(pod, world.asked[pod.uid].served)
        if isinstance(pod, PodRequest) and pod.uid in world.asked
        else pod
        for pod in asked
    ]
    asked = [
        replace(by_number(pod, offers), stored=stored_as(document, settings.vocabulary))
        if isinstance(pod, PodRequest)
        else pod
        for document, pod in zip(pending, asked, strict=True)
    ]
    world = decided_in(world, asked)
    alone = frozenset() if is_timed else alone_in(asked) - world.asked.keys()
    bodies = {document.uid: document.body for document in pending}
    vgpus = {uid: found for uid in alone if (found := vgpus_asked(bodies[uid]))}
    pods = [
        asking(
            by_card(pod) if pod.uid in vgpus else pod,
            tuple(
                not_decided(
                    document.body,
                    world.why_not(document),
                    "" if pod.uid in vgpus else _by_card(pod, document.body, cluster.nodes),
                )
            ),
        )
        if isinstance(pod, PodRequest)
        else pod
        for document, pod in zip(pending, asked, strict=True)
    ]
    quotas = manifests.of_kind("ResourceQuota")
    unread = [
        (f"{document.namespace}/{document.name}", words)
        for document in pending
        if (words := (*not_looked_at(document.body), *by_quotas(document, quotas)))
    ]
    repelling = sum(keeps_others_off(document.body) for document in manifests.of_kind("Pod"))
    if repelling:
        fact = f"not looked at: pod anti-affinity of running Pods: pods={repelling}"
        cluster = replace(cluster, warnings=(*cluster.warnings, fact))
    undecided = _undecided(zip(pending, pods, strict=True))
    cluster = replace(cluster, warnings=(*cluster.warnings, *undecided))
    return Run(
        source="manifests",
        vocabulary=settings.vocabulary,
        unread=unread,
        claims_there=world,
        vgpus=vgpus,
        arrivals=tuple(Arrival(at_us=start_us, pod=pod) for pod in pods),
        start_us=start_us,
        inputs_hash=hashlib.sha256(f"manifests {manifests.digest}".encode()).hexdigest(),
        **{field.name: getattr(cluster, field.name) for field in fields(Cluster)},
    )


def _by_card(pod: PodRequest, body: Mapping[str, Any], nodes: Sequence[NodeFacts]) -> str:
    """Return what a Pod asks for that nobody offers, and its own scheduler reckons by card."""
    names = {name for name, _ in pod.extended}
    if VGPU_NUMBER in names:
        return chosen_by(body) or f"spec.containers[{VGPU_NUMBER}]"
    rest = names.difference(*map(offers_of, nodes)) if is_placed_elsewhere(body) else set()
    near = rest and near_names(names, nodes, lambda *_: None, DEFAULT_VOCABULARY)
    return "" if any(near) or not rest else f"spec.containers[{min(rest)}]"


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
