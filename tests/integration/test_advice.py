"""What is proposed to a Pod that waits, taken at its word: it is done, and the Pod gets a place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from ledger.domain.log.events import RefusalReason
from ledger.domain.quantity import parse_quantity
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import ClusterSnapshot
from scheduler.cluster.snapshot import read_objects, snapshot_of_objects
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.nearest import alternatives
from scheduler.whatif.prospects import prospects_of
from scheduler.whatif.smaller import dimensions
from scheduler.whatif.what_if import WhatIf, what_if_of
from tenure.manifests import read_manifests
from tests.support.corpus import CORPUS, one_of_each, truth_of

SETTINGS = SchedulingSettings()
AT_MOST = re.compile(r"ask for at most (\S+) (GPU|cpu|memory)")


def cluster_of(dump: str, folder: Path) -> ClusterSnapshot:
    """Return a dump's cluster, with the Pods beside it that are asked about."""
    items = json.loads((CORPUS / dump / "dump.json").read_text("utf-8"))["items"]
    items += [question["pod"] for question in truth_of(dump).get("simulate", ())]
    path = folder / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), "utf-8")
    return snapshot_of_objects(read_objects(read_manifests([str(path)]), SETTINGS), SETTINGS)


@pytest.mark.parametrize("dump", one_of_each())
def test_every_proposal_makes_room(dump: str, tmp_path: Path) -> None:
    """Of every Pod of the corpus that waits."""
    cluster = cluster_of(dump, tmp_path)
    holding = {holder.uid for holder in cluster.holders}
    for uid, request in cluster.requests.items():
        if uid not in holding:
            assert list(in_vain(cluster, request)) == []


def in_vain(cluster: ClusterSnapshot, request: PodRequest) -> Iterator[str]:
    """Yield what is proposed and does not help."""
    what_if = what_if_of(cluster, request.uid)
    answer = what_if.decide(request)
    if not isinstance(answer, Unplaced):
        return
    for reason in answer.reasons:
        if answer.never and reason.remedy.startswith("release "):
            yield f"{request.path}: never, and {reason.remedy}"
        if not helps(cluster, request, reason):
            yield f"{request.path}: {reason.reason}: {reason.detail}: {reason.remedy}"
    found = prospects_of(request.uid, cluster).nearest
    assert found is not None
    if answer.never and found.ending:
        yield f"{request.path}: never, and Pods are to end"
    by_name = {each.name: each for each in dimensions(request)}
    for smaller in found.smaller:
        if not isinstance(what_if.decide(by_name[smaller.name].apply(smaller.fits)), Placement):
            yield f"{request.path}: {smaller}"
    wishes = dict(alternatives(request, cluster.nodes))
    for other in found.others:
        wish = wishes.get(other.text)
        if wish and not isinstance(what_if.decide(wish), Placement):
            yield f"{request.path}: {other.text}"
    if found.ending and not fits(cluster, request, {each.uid for each in found.ending.holders}):
        yield f"{request.path}: {found.ending}"


def fits(cluster: ClusterSnapshot, request: PodRequest, gone: set[str]) -> bool:
    """Tell whether a request has a place once these Pods have ended."""
    left = tuple(holder for holder in cluster.holders if holder.uid not in gone)
    what_if = what_if_of(replace(cluster, holders=left), request.uid)
    return isinstance(what_if.decide(request), Placement)


def helps(cluster: ClusterSnapshot, request: PodRequest, reason: RefusalReason) -> bool:
    """Tell whether a node takes the Pod once what a remedy says is done there, others gone."""
    names = [node.name for node in cluster.nodes]
    number = names.index(reason.nearest_node)
    nodes, remedy = list(cluster.nodes), reason.remedy
    if remedy.startswith("open "):
        devices = tuple(replace(each, healthy=True) for each in nodes[number].devices)
        nodes[number] = replace(nodes[number], devices=devices)
    elif found := AT_MOST.match(remedy):
        request = with_less(request, found[1], found[2])
    elif not remedy.startswith(("release ", "end ", "free ")):
        return True
    empty = WhatIf(nodes, (), cluster.settings, by_count=cluster.by_count)
    return empty.fits_on(request, number)


def with_less(request: PodRequest, amount: str, what: str) -> PodRequest:
    """Return the request with what a remedy says it should ask for at most."""
    match what:
        case "cpu":
            return replace(request, cpu_milli=int(Decimal(amount) * 1000))
        case "memory":
            return replace(request, memory_bytes=parse_quantity(amount).ceil())
        case _:
            count = int(amount)
            devices = tuple(replace(each, count=min(each.count, count)) for each in request.devices)
            return replace(request, devices=devices, containers=())
