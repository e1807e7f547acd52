"""Beside kubelet's static policy: 200 Pods of all kinds, and who writes their CPUs how often."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final

import pytest

from ledger.domain.cpuset import parse_cpuset
from tests.node.test_served_cpus import (
    BY_AMOUNT,
    LSR,
    QOS,
    STATIC,
    WHOLE,
    asking,
    expect_bound,
    given,
    granted,
)
from tests.support.node.clusters import Cluster
from tests.support.node.cpu_processes import CpuProcess, binding, main_process, polled
from tests.support.node.pods import Pods, container

BATCHES: Final = 5
OTHERS: Final = 39
"""In each batch, beside one Pod with a CPU alone."""
SETTLE_SECONDS: Final = 3.0
"""Kubelet looks at its containers once a second, and sets the CPUs of each once."""
QUIET_SECONDS: Final = 10.0
HALF: Final = {"limits": {"cpu": "500m", "memory": "64Mi"}}
PART: Final = {"limits": {"cpu": "50m", "memory": "64Mi"}}
FEW: Final = {"requests": {"cpu": "5m"}}
KINDS: Final[dict[str, tuple[dict[str, str], dict[str, Any]]]] = {
    "ls": ({QOS: "LS"}, FEW),
    "burstable": ({}, FEW),
    "part": ({}, PART),
    "be": ({QOS: "BE"}, {}),
    "best-effort": ({}, {}),
}


def writes(own: CpuProcess) -> dict[str, int]:
    """Return how many writes there were so far, by what came of them."""
    found = re.findall(r'tenure_cpus_writes_total\{result="(\w+)"\} (\S+)', own.says("metrics"))
    return {result: int(float(count)) for result, count in found}


@pytest.mark.slow
@pytest.mark.usefixtures("two_cpus")
def test_200_pods_beside_kubelets_static_policy(cluster: Cluster, pods: Pods) -> None:
    """
    Batch by batch: beside a Pod that kubelet pins, or one that the ledger gave what kubelet keeps.

    What kubelet pinned runs where kubelet put it at each moment. Each container is written a few
    times, and once all is as planned nothing is written for ten of kubelet's own rounds.
    """
    machine, lines, made = cluster.machine, [], 0
    with (
        machine.configured(**STATIC, **BY_AMOUNT),
        cluster.served() as served,
        cluster.scheduling(served),
        binding(cluster) as own,
    ):
        for batch in range(BATCHES):
            began, before = time.monotonic(), writes(own)
            with ExitStack() as stack:
                pinned, shared = batch % 2 == 0, "0"
                if pinned:
                    pods.make("alone", [asking(WHOLE)])
                    uid = pods.running("alone")["metadata"]["uid"]
                    assert given(machine) == {uid: {"main": parse_cpuset("1")}}
                    ran = stack.enter_context(polled(main_process(pods, "alone")))
                else:
                    halves = [asking(HALF), asking(HALF, "other")]
                    pods.make("alone", halves, labels=LSR, scheduler="tenure")
                    assert granted(pods.running("alone")) == "0"
                    shared = "1"
                names = {}
                for number, kind in zip(range(OTHERS), cycle(KINDS), strict=False):
                    (labels, resources), name = KINDS[kind], f"{kind}-{number}"
                    own_one = asking(resources) if resources else container()
                    names[name] = "0-1" if "be" in kind and not pinned else shared
                    pods.make(name, [own_one], labels=labels)
                for name in names:
                    pods.running(name)
                expect_bound(pods, **names)
                time.sleep(SETTLE_SECONDS)
                expect_bound(pods, **names)
                made += 1 + len(names)
                bound, settled = writes(own), time.monotonic()
                time.sleep(QUIET_SECONDS)
                assert writes(own) == bound, "it flaps"
                assert "RewrittenByAnother" not in own.says()
                pods.remove_all()
            if pinned:
                assert ran == {frozenset({1})}
            count = bound.get("done", 0) - before.get("done", 0)
            minutes = (settled - began) / 60
            lines.append(f"batch {batch}: {count} writes in {minutes * 60:.0f} s, then none")
            assert count <= 4 * len(names) + 8
        refused = {key: count for key, count in writes(own).items() if key != "done"}
    assert made == 200
    total = sum(int(re.findall(r": (\d+) writes", line)[0]) for line in lines)
    sys.stderr.write("\n".join(["", *lines, f"{made} Pods, {total} writes, refused {refused}\n"]))
