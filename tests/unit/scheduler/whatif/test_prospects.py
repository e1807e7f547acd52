from __future__ import annotations

from scheduler.cluster.model import ClusterSnapshot
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.prospects import prospects_of
from tenure.query.prospects import lines_of
from tests.support.clusters import gpu_node, pod, share


def test_on_nodes_that_nobody_described_nothing_is_decided() -> None:
    """It would be of another cluster; what is not told is named."""
    cluster = ClusterSnapshot(
        nodes=(gpu_node("n"),),
        holders=(),
        settings=SchedulingSettings(),
        requests={"w": pod("w", share(100))},
        untold=("of nodes: taints",),
        knows_nodes=False,
    )

    found = prospects_of("w", cluster)

    assert (found.is_known, found.nearest, found.untold) == (True, None, ("of nodes: taints",))
    assert (found.message, found.findings, found.fragmentation) == ("", (), None)


def test_the_third_pod_does_not_fit_on_two_free_cards_that_two_wait_for() -> None:
    """Those that come first get their places first; a Pod that nobody gives one takes none."""
    names = ("a", "huge", "b", "c")
    cluster = ClusterSnapshot(
        nodes=(gpu_node("n", 2),),
        holders=(),
        settings=SchedulingSettings(),
        requests={name: pod(name, share(100, 9 if name == "huge" else 1)) for name in names},
        waiting=names,
    )

    found = {name: prospects_of(name, cluster) for name in names}

    assert [each.nearest is not None and each.nearest.fits for each in found.values()] == [
        *(0, None, 0, None),
    ]
    assert found["c"].ahead == (("default/a", "n"), ("default/b", "n"))
    assert next(lines_of(found["c"])) == (
        "decided after 2 Pods that wait too: default/a on n, default/b on n"
    )
