from __future__ import annotations

from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.nodes.node_arrays import _LOG_LENGTH
from scheduler.decide.score.rows import RatingRows
from tests.support.clusters import engine, gpu_node, placed, pod, rated_anew, share


def _rows(cluster: Engine, bytes_max: int = 1 << 20) -> RatingRows:
    rows = cluster._rows
    return RatingRows(rows.arrays, rows.predicates, rows.policy, {}, bytes_max)


def _current(cluster: Engine, rows: RatingRows, request: PodRequest) -> list[int]:
    shape = cluster._shapes.shape_of(request)
    ratings: list[int] = rows.current(shape).tolist()
    assert ratings == rated_anew(rows, shape).tolist()
    return ratings


def test_rows_are_dropped_when_they_take_too_much() -> None:
    """A dropped row is made anew when its shape comes back; answers stay the same."""
    cluster = engine(gpu_node("a"), gpu_node("b"), gpu_node("c"))
    rows = _rows(cluster, bytes_max=2 * 3 * 4)
    requests = [pod("p", share(percent)) for percent in (10, 20, 30)]
    before = [_current(cluster, rows, request) for request in requests]

    assert len(rows._rows) == 2
    assert [_current(cluster, rows, request) for request in requests] == before


def test_a_row_that_is_too_far_behind_is_rated_anew() -> None:
    """When the log has forgotten what changed, everything may have."""
    cluster = engine(gpu_node("a"), gpu_node("b"))
    request = pod("p", share(50))
    _current(cluster, cluster._rows, request)
    placed(cluster, pod("q", share(100, 2), cpu_milli=0))
    for _ in range(_LOG_LENGTH):
        cluster._arrays.log.append(1, gave_back=False)

    assert _current(cluster, cluster._rows, request)[0] == -1


def test_a_full_cluster_is_looked_at_again_when_something_is_given_back() -> None:
    """Until then a shape that fits nowhere keeps fitting nowhere."""
    cluster = engine(gpu_node("a", 1), gpu_node("b", 1))
    request = pod("late", share(60))
    for uid in ("p", "q"):
        placed(cluster, pod(uid, share(70)))
    cluster.decide(request)
    placed(cluster, pod("r", share(10)))
    assert _current(cluster, cluster._rows, request) == [-1, -1]
    cluster.release("q")

    assert placed(cluster, request).node_name == "b"
