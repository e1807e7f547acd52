from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.request.requests import GroupRef, PodRequest
from scheduler.decide.group.groups import plan
from tests.support.cards import card, node_of, pod, whole
from tests.support.trial_cluster import ListCluster


def member(place: int, gpus: int, cpu_milli: int) -> PodRequest:
    """Return a member with whole GPUs and cpu."""
    group = GroupRef(name="job", replica=4)
    return pod(whole(gpus), uid=f"uid-{place}", name=f"w{place}", cpu_milli=cpu_milli, group=group)


def fewest_nodes(members: list[PodRequest], gpus: list[int], cpus: list[int]) -> int | None:
    """Return the least number of nodes over all assignments, None when there is none."""
    best = None
    for assignment in product(range(len(gpus)), repeat=len(members)):
        gpus_left, cpus_left = list(gpus), list(cpus)
        for request, node in zip(members, assignment, strict=True):
            gpus_left[node] -= request.devices[0].count
            cpus_left[node] -= request.cpu_milli
        if min(gpus_left) >= 0 and min(cpus_left) >= 0:
            used = len(set(assignment))
            best = used if best is None else min(best, used)
    return best


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([0, 1000])), min_size=1, max_size=4
    ),
    machines=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([1000, 2000])), min_size=1, max_size=4
    ),
)
def test_a_group_is_placed_on_the_fewest_nodes(
    shapes: list[tuple[int, int]], machines: list[tuple[int, int]]
) -> None:
    """Brute force agrees on whether the whole group fits and on the number of nodes."""
    members = [member(place, *shape) for place, shape in enumerate(shapes)]
    gpus = [count for count, _ in machines]
    cpus = [cpu for _, cpu in machines]
    cluster = ListCluster([node_of(*(card(i) for i in range(count))) for count in gpus], cpus)
    before = (list(cluster.nodes), list(cluster.cpu_milli))

    answer = plan(members, cluster)

    expected = fewest_nodes(members, gpus, cpus)
    assert answer.whole == (expected is not None)
    assert (cluster.nodes, cluster.cpu_milli) == before
    if expected is not None:
        assert len({placed.node for placed in answer.placements if placed}) == expected
    for placed in answer.placements:
        if placed is not None:
            cluster.reserve(placed)
    assert all(
        view.core_free >= 0 and view.tenants <= 1 for node in cluster.nodes for view in node.cards
    )
    assert min(cluster.cpu_milli) >= 0
