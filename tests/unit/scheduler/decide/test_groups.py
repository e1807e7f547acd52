from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.request.requests import CpuSetDemand, DeviceDemand, GangRef, GroupRef, PodRequest
from ledger.domain.topology import Cpu, LinkMatrix, cpu_topology_of
from scheduler.decide.cards.view import NodeView
from scheduler.decide.group import cover as group_cover
from scheduler.decide.group import groups
from scheduler.decide.group.groups import GroupPlan, place_beside, plan
from tests.support import clusters
from tests.support.cards import GIB, card, mgpu_pod, minors_of, node_of, part, pod, whole
from tests.support.links import TWO_BY_FOUR_PCIE
from tests.support.topologies import EIGHT_GPU_NVLINK, MACHINE_X
from tests.support.trial_cluster import ListCluster

GROUP = GroupRef(name="job", replica=2)


def member(
    name: str,
    demand: DeviceDemand,
    *,
    group: GroupRef | None = GROUP,
    gang: GangRef | None = None,
    cpu_milli: int = 0,
) -> PodRequest:
    """Return a Pod of the group."""
    return pod(demand, uid=f"uid-{name}", name=name, group=group, gang=gang, cpu_milli=cpu_milli)


def gang(needed: int, count: int, demand: DeviceDemand) -> list[PodRequest]:
    """Return `count` Pods of a gang that starts with at least `needed`."""
    ref = GangRef(name="g", min_available=needed, waiting_seconds=600)
    return [member(f"w{i}", demand, group=None, gang=ref) for i in range(count)]


def machine(gpus: int, *, used: int = 0, links: LinkMatrix | None = None) -> NodeView:
    """Return a node with so many GPUs, the first `used` of them held."""
    return node_of(
        *(card(minor, core_used=100 * (minor < used)) for minor in range(gpus)), links=links
    )


def nodes_of(answer: GroupPlan) -> list[int | None]:
    """Return the node of each member."""
    return [None if placed is None else placed.node for placed in answer.placements]


def minors(answer: GroupPlan) -> list[tuple[int, ...]]:
    """Return the GPUs of each member."""
    return [() if placed is None else minors_of(placed.shares) for placed in answer.placements]


def test_two_members_share_the_best_four_gpus() -> None:
    """GPU-topology proposal, Motivation: two Pods of two GPUs get {0,1,2,3}, 96 GB/s each."""
    cluster = ListCluster([machine(8, links=EIGHT_GPU_NVLINK)])

    answer = plan([member("a", whole(2)), member("b", whole(2))], cluster)

    assert minors(answer) == [(0, 3), (1, 2)]
    assert answer.whole
    assert [placed.visible_minors for placed in answer.placements if placed] == [(0, 1, 2, 3)] * 2


def test_the_cluster_is_left_as_it_was() -> None:
    """A plan reserves nothing; the caller does."""
    cluster = ListCluster([machine(8, links=EIGHT_GPU_NVLINK), machine(4)])
    before = list(cluster.nodes)

    plan([member("a", whole(2)), member("b", whole(8))], cluster)

    assert cluster.nodes == before


def test_a_member_made_anew_goes_beside_its_peers() -> None:
    """GPU-topology proposal, Goal 4: GPUs 6 and 7 are slow and beside them; n1 has fast ones."""
    cluster = ListCluster(
        [machine(8, links=EIGHT_GPU_NVLINK), machine(8, used=6, links=EIGHT_GPU_NVLINK)]
    )

    answer = plan([member("w3", whole(2))], cluster, running=3, in_use=frozenset({1}))

    assert (nodes_of(answer), minors(answer)) == ([1], [(6, 7)])
    assert nodes_of(plan([member("w3", whole(2))], cluster)) == [0]


def test_what_fits_beside_its_peers_does_so_and_the_rest_takes_the_fewest_nodes() -> None:
    """One of three finds room where the group is; the others share one new node, not two."""
    cluster = ListCluster([machine(4), machine(8, used=6), machine(5)])

    answer = plan([member(name, whole(2)) for name in "abc"], cluster, in_use=frozenset({1}))

    assert nodes_of(answer) == [1, 0, 0]
    assert answer.whole


def test_of_two_nodes_with_peers_the_faster_links_count() -> None:
    """Nodes where the group is are compared as new ones are."""
    cluster = ListCluster(
        [machine(4), machine(8, used=6, links=EIGHT_GPU_NVLINK), machine(8, links=EIGHT_GPU_NVLINK)]
    )

    answer = plan([member("a", whole(2))], cluster, in_use=frozenset({1, 2}))

    assert nodes_of(answer) == [2]


def test_members_that_are_placed_one_by_one_go_beside_their_peers_first() -> None:
    """The group does not fit whole: who fits goes where the group is, if it can."""
    cluster = ListCluster([machine(2), machine(8, used=6)])

    answer = plan([member(name, whole(2)) for name in "abc"], cluster, in_use=frozenset({1}))

    assert nodes_of(answer) == [1, 0, None]


BESIDE = {
    "the first of the two": (frozenset({1, 2}), 1),
    "the only one": (frozenset({2}), 2),
    "none of them takes it": (frozenset({3}), None),
    "no peers": (frozenset(), None),
}


@pytest.mark.parametrize(("in_use", "expected"), BESIDE.values(), ids=BESIDE)
def test_one_member_is_placed_beside_its_peers(
    in_use: frozenset[int], expected: int | None
) -> None:
    """Best first as the cluster ranks them; nothing is held afterwards."""
    cluster = ListCluster([machine(8), machine(8, used=6), machine(8), machine(8, used=7)])
    before = list(cluster.nodes)

    found = place_beside(member("w3", whole(2)), cluster, in_use)

    assert (None if found is None else found.node) == expected
    assert cluster.nodes == before


def test_one_node_is_taken_before_two() -> None:
    """The first node could take one member; the second takes both."""
    cluster = ListCluster([machine(4), machine(8)])

    assert nodes_of(plan([member("a", whole(4)), member("b", whole(4))], cluster)) == [1, 1]


def test_of_single_nodes_the_faster_links_win() -> None:
    """Largest bottleneck first, before the least left over."""
    slow = LinkMatrix(rows=((20.0,) * 4,) * 4)
    cluster = ListCluster([machine(4, links=slow), machine(8, links=EIGHT_GPU_NVLINK)])

    assert nodes_of(plan([member("a", whole(1)), member("b", whole(1))], cluster)) == [1, 1]


def test_of_equal_single_nodes_the_one_with_less_left_wins() -> None:
    """GPU-topology proposal: the combination with less remaining GPU resources is preferred."""
    cluster = ListCluster([machine(8), machine(8, used=4), machine(8)])

    assert nodes_of(plan([member("a", whole(2)), member("b", whole(2))], cluster)) == [1, 1]


def test_a_group_too_large_for_one_node_takes_the_fewest() -> None:
    """Five Pods of two GPUs: one node of eight, then the tightest that holds the rest."""
    cluster = ListCluster([machine(4), machine(8), machine(8), machine(2)])
    members = [member(f"w{i}", whole(2)) for i in range(5)]

    answer = plan(members, cluster)

    assert nodes_of(answer) == [1, 1, 1, 1, 3]
    assert minors(answer)[4] == (0, 1)
    assert answer.whole


def test_large_members_are_placed_first_and_small_ones_fill_up() -> None:
    """In file order the small Pod would block the only node that holds the large one."""
    cluster = ListCluster([machine(8), machine(1)])

    answer = plan([member("small", whole(1)), member("large", whole(8))], cluster)

    assert nodes_of(answer) == [1, 0]


def test_members_on_one_node_take_its_gpus_in_their_order() -> None:
    """The larger member is placed first, but the GPUs are dealt in the members' order."""
    cluster = ListCluster([machine(8, links=EIGHT_GPU_NVLINK)])

    answer = plan([member("small", whole(1)), member("large", whole(3))], cluster)

    assert minors(answer) == [(0,), (1, 2, 3)]


def test_without_measured_links_places_decide() -> None:
    """A group gets the GPUs that sit together, as far as the inventory tells."""
    used = [card(minor, core_used=100 * (minor == 0)) for minor in range(8)]
    cluster = ListCluster([node_of(*used, derived_links=TWO_BY_FOUR_PCIE)])

    answer = plan([member(f"w{i}", whole(2)) for i in range(2)], cluster)

    assert minors(answer) == [(4, 5), (6, 7)]


def test_cpu_limits_the_members_of_a_node() -> None:
    """What the cards allow the cluster may still refuse."""
    cluster = ListCluster([machine(8), machine(8)], cpu_milli=[4000, 4000])
    members = [member(f"w{i}", whole(1), cpu_milli=3000) for i in range(2)]

    assert nodes_of(plan(members, cluster)) == [0, 1]


def test_a_group_that_does_not_fit_whole_is_placed_singly() -> None:
    """Proposal, Non-Goals: some members may run while others wait."""
    cluster = ListCluster([machine(2), machine(2)])
    members = [member(f"w{i}", whole(2)) for i in range(3)]

    answer = plan(members, cluster)

    assert nodes_of(answer) == [0, 1, None]
    assert (answer.whole, answer.refusal) == (False, None)


def test_parts_of_cards_are_placed_together_too() -> None:
    """Members that share a card have no links between them; each chooses."""
    cluster = ListCluster([machine(1, links=EIGHT_GPU_NVLINK)])
    members = [member(f"w{i}", part(50, ratio=50)) for i in range(2)]

    answer = plan(members, cluster)

    assert minors(answer) == [(0,), (0,)]
    assert [placed.visible_minors for placed in answer.placements if placed] == [(0,), (0,)]


def test_mgpu_members_choose_for_themselves() -> None:
    """Whole mGPU cards on a node with links: the dialect's own search decides."""
    cluster = ListCluster([machine(4, links=EIGHT_GPU_NVLINK)])
    members = [mgpu_pod(whole(1), uid=f"uid-{i}", name=f"w{i}", group=GROUP) for i in range(2)]

    assert minors(plan(members, cluster)) == [(0,), (1,)]


def test_a_gang_that_fits_starts_whole() -> None:
    """All members placed; a gang without a topology group sees its own cards only."""
    cluster = ListCluster([machine(4), machine(4)])

    answer = plan(gang(3, 3, whole(2)), cluster)

    assert nodes_of(answer) == [0, 0, 1]
    assert all(placed and placed.visible_minors == () for placed in answer.placements)


def test_a_gang_below_its_minimum_gets_nothing() -> None:
    """All or nothing: three of four must start, two fit."""
    cluster = ListCluster([machine(2), machine(2)])

    answer = plan(gang(3, 4, whole(2)), cluster)

    assert answer.placements == (None,) * 4
    assert answer.refusal is not None
    assert answer.refusal.reason == "GangUnfit"
    assert (answer.refusal.requested, answer.refusal.available) == (3, 2)


def test_a_refused_gang_says_how_many_of_it_would_fit() -> None:
    """The smallest members first, each on the first node that takes it: a number for people."""
    demands = (whole(4), whole(1), whole(2), whole(1))
    ref = GangRef(name="g", min_available=4, waiting_seconds=600)
    members = [member(f"w{i}", demand, group=None, gang=ref) for i, demand in enumerate(demands)]
    cluster = ListCluster([machine(1), machine(3)])
    before = list(cluster.nodes)

    answer = plan(members, cluster)

    assert answer.refusal is not None
    assert answer.refusal.available == 3
    assert cluster.nodes == before


def test_a_gang_starts_with_its_minimum_and_takes_what_else_fits() -> None:
    """Two must start, three fit, the fourth waits."""
    cluster = ListCluster([machine(6)])

    answer = plan(gang(2, 4, whole(2)), cluster)

    assert nodes_of(answer) == [0, 0, 0, None]
    assert (answer.whole, answer.refusal) == (False, None)


def test_a_gang_whose_members_are_not_there_waits() -> None:
    """Fewer Pods than `min-available` exist: preemption could not help."""
    answer = plan(gang(4, 3, whole(1)), ListCluster([machine(8)]))

    assert answer.refusal is not None
    assert (answer.refusal.reason, answer.refusal.preemptible) == ("GangMembersMissing", False)
    assert (answer.refusal.requested, answer.refusal.available) == (4, 3)


def test_running_members_count_for_the_minimum() -> None:
    """Three of four run: the last one may come alone, or not at all without a refusal."""
    fits = plan(gang(4, 1, whole(1)), ListCluster([machine(1)]), running=3)
    waits = plan(gang(4, 1, whole(2)), ListCluster([machine(1)]), running=4)

    assert nodes_of(fits) == [0]
    assert waits == GroupPlan(placements=(None,))


def test_a_search_that_is_cut_still_places_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that take less than can be counted: after the bound members are dealt in turn."""
    monkeypatch.setattr(groups, "TRIALS_MAX", 1)
    members = [member(f"w{i}", part(60, ratio=60)) for i in range(4)]

    answer = plan(members, ListCluster([machine(2) for _ in range(4)]))

    assert nodes_of(answer) == [0, 0, 1, 1]
    assert (answer.whole, answer.search_cut) == (True, True)


def test_a_group_of_too_many_shapes_is_dealt_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """More combinations than are counted: the largest first, on nodes in use before others."""
    monkeypatch.setattr(groups, "CELLS_MAX", 1)

    answer = plan(
        [member("a", whole(1)), member("b", whole(4)), member("c", whole(3))],
        ListCluster([machine(4), machine(4)]),
    )

    assert nodes_of(answer) == [1, 0, 1]
    assert (answer.whole, answer.search_cut) == (True, True)


def test_a_search_with_too_much_work_takes_the_roomiest_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members of one shape still get the fewest nodes; the least left over is not looked for."""
    monkeypatch.setattr(group_cover, "WORK_MAX", 1)
    members = [member(f"w{i}", whole(2)) for i in range(5)]

    answer = plan(members, ListCluster([machine(4), machine(8), machine(8), machine(2)]))

    assert nodes_of(answer) == [1, 1, 1, 1, 0]
    assert (answer.whole, answer.search_cut) == (True, True)


def test_what_a_node_really_takes_is_learned_once_for_nodes_alike() -> None:
    """By the sums one node could hold all four: tried once, that is known of all forty."""
    cluster = ListCluster([machine(2) for _ in range(40)])
    members = [member(f"w{i}", part(core, ratio=core)) for i, core in enumerate((70, 40, 40, 40))]

    answer = plan(members, cluster)

    assert nodes_of(answer) == [0, 0, 0, 1]
    assert answer.whole
    assert cluster.trials < 30


def test_the_bottleneck_of_a_plan_is_its_slowest_nodes() -> None:
    """Two nodes are needed; the fast pair is taken, though a slow node has less left over."""
    slow = LinkMatrix(rows=((20.0,) * 4,) * 4)
    fast = LinkMatrix(rows=((50.0,) * 4,) * 4)
    cluster = ListCluster([machine(4, links=slow), machine(4, links=fast), machine(4, links=fast)])

    answer = plan([member("a", whole(4)), member("b", whole(3))], cluster)

    assert nodes_of(answer) == [1, 2]


def test_of_equally_fast_nodes_those_with_less_left_over_win() -> None:
    """The combination with less remaining GPU resources is preferred, over several nodes too."""
    cluster = ListCluster([machine(8), machine(8, used=1), machine(8, used=4), machine(8, used=5)])

    answer = plan([member("a", whole(4)), member("b", whole(8))], cluster)

    assert nodes_of(answer) == [2, 0]


def test_what_can_be_counted_is_not_tried() -> None:
    """Many nodes whose cpu ends before their cards do: each member is tried where it goes."""
    count = 40
    cluster = ListCluster([machine(8) for _ in range(count)], cpu_milli=[1500] * count)
    members = [member(f"w{i}", whole(1), cpu_milli=1000) for i in range(6)]

    answer = plan(members, cluster)

    assert answer.whole
    assert not answer.search_cut
    assert cluster.trials == len(members)


def test_a_gang_may_start_with_its_smaller_members() -> None:
    """Two must start: the first two do not fit together, the last two do."""
    demands = (whole(4), whole(4), whole(1), whole(1))
    ref = GangRef(name="g", min_available=2, waiting_seconds=600)
    members = [member(f"w{i}", demand, group=None, gang=ref) for i, demand in enumerate(demands)]

    answer = plan(members, ListCluster([machine(3)]))

    assert nodes_of(answer) == [None, None, 0, 0]
    assert (answer.whole, answer.refusal) == (False, None)


def test_members_without_devices_are_a_group_as_well() -> None:
    """A gang of CPU Pods: the cluster's own limits decide."""
    cluster = ListCluster([machine(0), machine(0)], cpu_milli=[2000, 2000])
    ref = GangRef(name="g", min_available=3, waiting_seconds=600)
    members = [pod(uid=f"uid-{i}", name=f"w{i}", gang=ref, cpu_milli=1000) for i in range(3)]

    assert nodes_of(plan(members, cluster)) == [0, 0, 1]


def test_memory_shares_of_a_group_need_room_in_bytes() -> None:
    """Two halves of a card by bytes fill it; the third opens another node."""
    cluster = ListCluster([machine(1), machine(1)])
    members = [member(f"w{i}", part(memory=20 * GIB)) for i in range(3)]

    assert nodes_of(plan(members, cluster)) == [0, 0, 1]


ALL_BUT_EIGHT = CpuSetDemand(
    cpus=16, bind_policy="FullPCPUs", required=True, exclusive_policy="None"
)
"""More of machine X's 24 CPUs than one of its NUMA nodes has."""


def test_what_a_numa_policy_refuses_is_not_held_against_nodes_without_one() -> None:
    """Equal cards and CPUs, but only one of the two nodes has a policy that is in the way."""
    strict = replace(
        clusters.gpu_node("a", cpu_milli=24_000, cpu_topology=MACHINE_X),
        numa_policy=NumaPolicy.SINGLE_NUMA_NODE,
    )
    free = clusters.gpu_node("b", cpu_milli=24_000, cpu_topology=MACHINE_X)
    wide = replace(
        clusters.pod("w", clusters.share(100), cpu_milli=16_000, cpuset=ALL_BUT_EIGHT),
        gang=GangRef(name="g", min_available=1, waiting_seconds=600),
    )

    assert nodes_of(plan([wide], clusters.engine(strict, free))) == [1]


def test_members_with_numa_policies_of_their_own_are_not_like_others() -> None:
    """Only the one that may spread over NUMA nodes can go on the first node."""
    one_numa = cpu_topology_of(Cpu(id=i, core=i // 2, socket=0, numa=0) for i in range(24))
    two = clusters.gpu_node("a", 1, cpu_milli=24_000, cpu_topology=MACHINE_X)
    one = clusters.gpu_node("b", 1, cpu_milli=24_000, cpu_topology=one_numa)
    wide = replace(
        clusters.pod("w", clusters.share(100), cpu_milli=16_000, cpuset=ALL_BUT_EIGHT),
        gang=GangRef(name="g", min_available=2, waiting_seconds=600),
    )
    narrow = replace(
        wide, uid="n", name="n", numa=NumaTopologySpec(policy=NumaPolicy.SINGLE_NUMA_NODE)
    )

    assert nodes_of(plan([narrow, wide], clusters.engine(two, one))) == [1, 0]
