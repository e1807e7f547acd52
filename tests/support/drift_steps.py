"""What can be planted in a cluster, mended again, and happen in between; and what must be named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from ledger.domain.log import drift
from ledger.domain.resources import ANNOTATION_DEVICE_ALLOCATED, ANNOTATION_TENURE_PROOF
from tests.support.reconciled import Cluster

SETTLED_SECONDS: Final = 150
STEP_SECONDS: Final = 5.0
Step = tuple[str, int]
"""What happens, and to which of it or for how long."""


def _forge(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.annotate("p", **{ANNOTATION_DEVICE_ALLOCATED: "{}"})


def _unforge(cluster: Cluster, given: dict[str, str]) -> None:
    cluster.annotate("p", **given)


def _strip(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.annotate("q", **{ANNOTATION_TENURE_PROOF: None})


def _unstrip(cluster: Cluster, given: dict[str, str]) -> None:
    cluster.annotate("q", **given)


def _past(cluster: Cluster, _given: dict[str, str]) -> None:
    if cluster.server.read("/api/v1/namespaces/ml/pods/x") is None:
        cluster.put_pod("x", percent=0, nodeName="n0")


def _unpast(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.delete_pod("x")


def _rob(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.put_device("n1", [])


def _unrob(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.put_device("n1", ["GPU-n1-0", "GPU-n1-1"])


def _skew(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.skew = 9.0


def _unskew(cluster: Cluster, _given: dict[str, str]) -> None:
    cluster.skew = 0.0


Act = Callable[[Cluster, dict[str, str]], None]
PLANTS: Final[Sequence[tuple[str, str, Act, Act]]] = (
    (drift.ANNOTATION_DIFFERS, "p", _forge, _unforge),
    (drift.PROOF_MISSING, "q", _strip, _unstrip),
    (drift.BOUND_PAST_TENURE, "p", _past, _unpast),
    (drift.DEVICE_GONE, "q", _rob, _unrob),
    (drift.CLOCK_SKEW, "p", _skew, _unskew),
)
"""Kind, whose words mend it, what plants it, what mends it."""
OF_WORDS: Final = (drift.ANNOTATION_DIFFERS, drift.PROOF_MISSING)
STEPS: Final = (
    *("plant", "plant", "mend", "wait", "wait", "wait"),
    *("lag", "flicker", "deliver", "shuffle", "restart"),
)


def play(cluster: Cluster, steps: Sequence[Step], seed: int = 0) -> None:
    """
    Let all of it happen, then let all go well; look that everything planted is named, once.

    A disagreement that nobody mends is open in the end, and each was found no more often than it
    was planted; what was never planted was never found.
    """
    rng = Random(seed)
    given = {name: cluster.words(name) for name in ("p", "q")}
    planted: Counter[str] = Counter()
    there: set[str] = set()
    for what, number in steps:
        kind, pod, plant, mend = PLANTS[number % len(PLANTS)]
        match what:
            case "plant":
                plant(cluster, given[pod])
                planted[kind] += kind not in there
                there.add(kind)
            case "mend":
                mend(cluster, given[pod])
                there.discard(kind)
            case "wait":
                cluster.wait(number, step=STEP_SECONDS)
            case "lag":
                cluster.lags = True
            case "flicker" if kind in OF_WORDS and kind not in there:
                cluster.lags = False
                cluster.deliver()
                plant(cluster, given[pod])
                cluster.lags = True  # the watch does not tell that it is mended
                mend(cluster, given[pod])
            case "flicker":
                pass
            case "deliver":
                cluster.lags = False
                cluster.deliver()
            case "shuffle":
                rng.shuffle(cluster.waiting)
                cluster.waiting += cluster.waiting[:2]
            case "restart":
                cluster.start()
            case _:
                raise AssertionError(what)
    cluster.lags = False
    cluster.deliver()
    cluster.relist()
    cluster.wait(SETTLED_SECONDS, step=STEP_SECONDS)
    found = Counter(cluster.kinds)
    named = sorted(drift_id.partition("/")[0] for drift_id in cluster.open)
    assert named == sorted(there), (named, there)
    assert found <= planted, (found, planted)
