"""A ledger out of a cluster's objects, for questions to a ledger; it is gone afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ledger.domain.errors import InputError
from tenure.exits import note, warn
from tenure.opening import clock_us
from tenure.units import MICROSECONDS
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.store.open import Ledger


@contextmanager
def ledger_of_files(files: Sequence[str], *, decide: bool = False) -> Iterator[Ledger]:
    """
    Open a ledger of what these files say; its `url` is their names.

    It has `began`. Holders that no object dates are recorded in the first second after all moments
    that the objects tell, and so is who is on a lost node. With `decide` the Pods that wait are
    decided as `tenure simulate` does, a second later; without it the ledger has none of them.

    Raises:
        InputError: the input can't be read, or has no Node.
    """
    from ledger.store.open import open_ledger
    from scheduler.cluster.constraints import in_sum
    from scheduler.cluster.documents import is_ended
    from scheduler.decide.settings import SchedulingSettings
    from tenure.manifests import as_admitted, read_manifests, warn_of
    from tenure.simulate.inputs import manifest_run
    from tenure.simulate.runner import RunRecord, run_simulation, unlike_service

    manifests, settings = as_admitted(read_manifests(files)), SchedulingSettings()
    pods = manifests.of_kind("Pod")
    told = {each.uid: _moments(each.body) for each in (*manifests.of_kind("Node"), *pods)}
    newest_us = max((newest for _, newest in told.values()), default=0) or clock_us()
    now_us = (newest_us // MICROSECONDS + 1) * MICROSECONDS
    run = manifest_run(
        manifests,
        settings=settings,
        start_us=now_us + MICROSECONDS,
        as_far_as_read=True,
    )
    warn_of(run, files)
    if not decide:
        run = replace(run, arrivals=(), unread=())
    elif ended := sum(is_ended(pod.body) for pod in pods):
        note(f"not listed: Pods that ended: {ended}")
    for text in in_sum(run.unread):
        warn(text)
    lost = {node.uid for node in run.nodes if node.lost}
    dark = {pod.pod_uid for pod in run.adopted if pod.node_uid in lost}
    began = {uid: began for uid, (began, _) in told.items() if began and uid not in dark}
    began[""] = now_us
    held = [began[pod.pod_uid] for pod in run.adopted if pod.pod_uid in began]
    with TemporaryDirectory(prefix="tenure-") as folder:
        result = run_simulation(
            replace(run, began=began, start_us=min((*held, now_us - MICROSECONDS))),
            settings=settings,
            seed=42,  # as of `tenure simulate`; no policy but `random` draws
            version=tenure_version(),
            clock=time.perf_counter,
            record=RunRecord(ledger=f"{folder}/ledger.db", batch=1000),
        )
        for text in unlike_service(result.outcomes, run.nodes):
            warn(text)
        with open_ledger(f"{folder}/ledger.db", mode="read") as ledger:
            ledger.url, ledger.began = ", ".join(files), began
            yield ledger


def _moments(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return since when a Pod has its node, or waits, and the newest moment told; 0 = none."""
    from ledger.domain.kube.object_fields import items_in, section, time_us

    def moment(parent: Mapping[str, Any], key: str) -> int:
        try:
            return time_us(parent.get(key), key)
        except InputError:
            return 0

    status, spec = section(body, "status"), section(body, "spec")
    created = moment(section(body, "metadata"), "creationTimestamp")
    began, newest = moment(status, "startTime") if spec.get("nodeName") else created, created
    for each in items_in(status, "conditions"):
        changed = moment(each, "lastTransitionTime")
        newest = max(newest, changed, moment(each, "lastHeartbeatTime"))
        if (each.get("type"), each.get("status")) == ("PodScheduled", "True"):
            began = changed or began
    return began, max(began, newest)
