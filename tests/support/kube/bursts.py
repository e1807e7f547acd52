"""Bursts of Pods of every dialect, and what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod

SETTLE_SECONDS: Final = 300.0
DIALECTS: Final[dict[str, dict[str, Any]]] = {
    "nvidia": {"amounts": {"nvidia.com/gpu": "1"}},
    "koordinator": {
        "amounts": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    },
    "mgpu": {
        "amounts": {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "4096"},
        "annotations": {"vke.volcengine.com/mgpu-compute-policy": "native-burst-share"},
    },
    "gpushare": {"amounts": {"aliyun.com/gpu-mem": "8138"}},
    "hami": {
        "amounts": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"}
    },
    "cpuset": {
        "amounts": {"cpu": "4", "memory": "1Gi"},
        "labels": {
            "koordinator.sh/qosClass": "LSR",
            "koordinator.sh/priority-class": "koord-prod",
        },
    },
}

GROUPED: Final[dict[str, dict[str, Any]]] = {
    "group": {
        "amounts": {"nvidia.com/gpu": "1"},
        "labels": {
            "gputopology.scheduling.koordinator.sh/name": "job",
            "gputopology.scheduling.koordinator.sh/replica": "4",
        },
    },
    "gang": {
        "amounts": {"nvidia.com/gpu": "1"},
        "annotations": {
            "gang.scheduling.koordinator.sh/name": "gang",
            "gang.scheduling.koordinator.sh/min-available": "4",
        },
        "schedulingGates": [{"name": "tenure.sh/gang"}],
    },
}
"""Four Pods each that belong together, as admission leaves them."""
GROUPED_SIZE: Final = 4


def burst(
    plane: ControlPlane,
    where: str,
    each: int,
    grouped: Iterable[str] = (),
    *,
    prefix: str = "",
) -> list[str]:
    """Submit that many Pods of every dialect, mixed, and then these that belong together."""
    wanted = [
        (f"{prefix}{dialect}-{number}", asked)
        for number in range(each)
        for dialect, asked in DIALECTS.items()
    ]
    wanted += [
        (f"{prefix}{kind}-{number}", GROUPED[kind])
        for kind in grouped
        for number in range(GROUPED_SIZE)
    ]
    for name, asked in wanted:
        made = plane.api().create(where, pod(name, schedulerName="tenure", **asked))
        assert made.ok, made.message
    return [name for name, _ in wanted]


def settled(plane: ControlPlane, where: str, count: int) -> list[dict[str, Any]]:
    """Return the Pods once that many have a node."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        found: list[dict[str, Any]] = plane.api().get(where).body["items"]
        bound = [one for one in found if one["spec"].get("nodeName")]
        if len(bound) >= count or time.monotonic() > until:
            return bound
        time.sleep(0.2)


def eventually(claim: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the claim finds
    """Return what a claim finds as soon as it finds something."""
    until = time.monotonic() + SETTLE_SECONDS
    while not (found := claim()):
        assert time.monotonic() < until, claim
        time.sleep(0.1)
    return found


def remove_pods(plane: ControlPlane, where: str, names: Iterable[str]) -> None:
    """Delete Pods at once."""
    for name in names:
        plane.api().delete(f"{where}/{name}")
