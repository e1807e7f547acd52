from __future__ import annotations

from scheduler.cluster.model import ClusterSnapshot
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.prospects import prospects_of
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
