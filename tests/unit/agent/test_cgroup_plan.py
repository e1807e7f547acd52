from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from agent.decide.cgroup_plan import plan, plan_removal
from agent.decide.cgroups import (
    CgroupNow,
    CgroupTree,
    CgroupVersion,
    ContainerPlanned,
    Plan,
    PodPlanned,
    UnboundReason,
)
from agent.decide.container_cpus import KubeQos
from agent.decide.pools import NodeCpus, PodCpus
from agent.decide.wanted_cpus import NodePlanned, wanted_of
from ledger.domain.annotations.cpu import (
    CpuSharedPool,
    NumaNodeResources,
    ResourceStatus,
    decode_resource_status,
)
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, parse_cpuset
from ledger.domain.quantity import parse_quantity
from tests.support.topologies import MACHINE_X

LSE, LSR, LS, BE, NO = QosClass.LSE, QosClass.LSR, QosClass.LS, QosClass.BE, QosClass.NONE
GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQos.GUARANTEED, KubeQos.BURSTABLE, KubeQos.BEST_EFFORT
V1, V2 = CgroupVersion.V1, CgroupVersion.V2
EVERY: Final = "0-23"
NODE_X: Final = NodeCpus(topology=MACHINE_X, reserved=parse_cpuset("0"))
PLAIN_X: Final = NodeCpus(topology=MACHINE_X)
STATIC_X: Final = NodeCpus(
    topology=MACHINE_X, kubelet_reserved=parse_cpuset("0,12"), kubelet_static=True
)


def status(text: str) -> ResourceStatus:
    """Return what a `resource-status` says."""
    return decode_resource_status(text)


def pod(uid: str, qos: QosClass, kube_qos: KubeQos = GUARANTEED, **more: Any) -> PodPlanned:  # noqa: ANN401 - fields of PodPlanned
    """Return a Pod of one container, `c-UID`; its sandbox is `s-UID`."""
    one = {name: more.pop(name) for name in ("whole_cpus", "limit_milli", "given") if name in more}
    fields = {
        "status": ResourceStatus(),
        "containers": (ContainerPlanned(name="main", id=f"c-{uid}", **one),),
        **more,
    }
    return PodPlanned(uid=uid, qos=qos, kube_qos=kube_qos, **fields)


def tree(*pods: PodPlanned, version: CgroupVersion = V2, **more: Any) -> CgroupTree:  # noqa: ANN401 - fields of CgroupTree
    """Return the cgroups of new Pods as kubelet makes them: nobody is narrowed yet."""
    asked = parse_cpuset(EVERY) if version is V1 else EMPTY
    mems = parse_cpuset("0-1")
    fresh = CgroupNow(
        path="",
        cpus=asked,
        effective=parse_cpuset(EVERY),
        mems=mems if version is V1 else EMPTY,
        effective_mems=mems,
        partition="member" if version is V2 else "",
    )
    found = [fresh, replace(fresh, path="burstable"), replace(fresh, path="besteffort")]
    for one in pods:
        part = "" if one.kube_qos is GUARANTEED else f"{one.kube_qos.lower()}/"
        path = f"{part}pod{one.uid}"
        quota = sum(container.limit_milli for container in one.containers) * 100 or -1
        found.append(replace(fresh, path=path, pod_uid=one.uid, quota=quota))
        for leaf in [*(container.id for container in one.containers), f"s-{one.uid}"]:
            of_leaf = quota if not leaf.startswith("s-") else -1
            found.append(
                replace(
                    fresh, path=f"{path}/{leaf}", pod_uid=one.uid, container=leaf, quota=of_leaf
                )
            )
    return CgroupTree(version=version, kernel=(6, 12), cgroups=tuple(found), **more)


def own(**cpus: tuple[str, QosClass]) -> dict[str, PodCpus]:
    """Return who has which CPUs by the ledger."""
    return {uid: PodCpus(cpus=parse_cpuset(text), qos=qos) for uid, (text, qos) in cpus.items()}


def writes(tree: CgroupTree, node: NodePlanned) -> list[tuple[str, str, str]]:
    """Return what is written."""
    return [(one.path, one.file.value, one.value) for one in plan(tree, node).writes]


def cpus_written(tree: CgroupTree, node: NodePlanned) -> dict[str, str]:
    """Return the CPUs that each cgroup is written at last."""
    return {path: value for path, file, value in writes(tree, node) if file == "cpuset.cpus"}


LSR_POD: Final = pod("lsr", LSR, whole_cpus=True, limit_milli=4000)
LSE_POD: Final = pod("lse", LSE, whole_cpus=True, limit_milli=4000)
LS_POD: Final = pod("ls", LS, BURSTABLE)
BE_POD: Final = pod("be", BE, BEST_EFFORT)
WORKED: Final = NodePlanned(
    cpus=NODE_X,
    held=own(lsr=("2-3,14-15", LSR), lse=("6-7,18-19", LSE)),
    pods=(LSR_POD, LSE_POD, LS_POD, BE_POD),
)
SHARED: Final = "1,4-5,8-13,16-17,20-23"
BEST: Final = "1-5,8-17,20-23"


def test_the_worked_example_on_v2() -> None:
    """Koordinator contract 9.4: pools by the classes' cgroups, own CPUs by the Pods', LSE apart."""
    assert writes(tree(*WORKED.pods), WORKED) == [
        ("burstable", "cpuset.cpus", SHARED),
        ("besteffort", "cpuset.cpus", BEST),
        ("podlsr", "cpuset.cpus", "2-3,14-15"),
        ("podlse", "cpuset.cpus", "6-7,18-19"),
        ("", "cpuset.cpus.exclusive", "6-7,18-19"),
        ("podlse", "cpuset.cpus.exclusive", "6-7,18-19"),
        ("podlse", "cpuset.cpus.partition", "root"),
        ("podlsr", "cpu.max", "max"),
        ("podlsr/c-lsr", "cpu.max", "max"),
        ("podlse", "cpu.max", "max"),
        ("podlse/c-lse", "cpu.max", "max"),
    ]


def test_the_worked_example_on_v1() -> None:
    """Who gives up begins below, on every level; kernels without partitions are told of."""
    found = plan(tree(*WORKED.pods, version=V1), WORKED)
    cpus = [(one.path, one.value) for one in found.writes if one.file == "cpuset.cpus"]

    assert dict(cpus) == {
        **dict.fromkeys(("podlsr", "podlsr/c-lsr", "podlsr/s-lsr"), "2-3,14-15"),
        **dict.fromkeys(("podlse", "podlse/c-lse", "podlse/s-lse"), "6-7,18-19"),
        **{f"burstable{path}": SHARED for path in ("", "/podls", "/podls/c-ls", "/podls/s-ls")},
        **{f"besteffort{path}": BEST for path in ("", "/podbe", "/podbe/c-be", "/podbe/s-be")},
    }
    assert len(cpus) == 14, "each once"
    order = [path for path, _ in cpus]
    assert all(
        order.index(path) < order.index(path.rpartition("/")[0]) for path in order if "/" in path
    )
    assert ("podlsr", "cpu.cfs_quota_us", "-1") in [(o.path, o.file, o.value) for o in found.writes]
    assert [(one.about, one.reason) for one in found.unbound] == [
        ("lse", UnboundReason.NO_PARTITION)
    ]


def test_systemds_names_are_read() -> None:
    """The class is told by the slice, whatever the driver calls it."""
    burstable = "kubepods-burstable.slice"
    there = tree()
    top, below = there.cgroups[0], there.cgroups[1]
    slices = (
        top,
        replace(below, path=burstable),
        replace(below, path=f"{burstable}/kubepods-burstable-podls.slice", pod_uid="ls"),
        replace(
            below,
            path=f"{burstable}/kubepods-burstable-podls.slice/cri-containerd-c.scope",
            pod_uid="ls",
            container="c-ls",
        ),
    )
    there = replace(there, cgroups=slices)

    assert writes(there, WORKED) == [(burstable, "cpuset.cpus", SHARED)]


HALF: Final = ResourceStatus(cpu_shared_pools=(CpuSharedPool(socket=0, node=1),))
BY_CPU: Final = ResourceStatus(
    numa_node_resources=(NumaNodeResources(node=0, resources=(("cpu", parse_quantity("1")),)),)
)


@pytest.mark.parametrize(
    ("planned", "path", "cpus"),
    [
        pytest.param(LS_POD, "burstable", SHARED, id="an LS Pod: all shared pools"),
        pytest.param(
            pod("a", LS, BURSTABLE, status=HALF),
            "burstable/poda",
            "8-11,20-23",
            id="an LS Pod that ConstrainedBurst put into one pool",
        ),
        pytest.param(
            pod("a", LS, GUARANTEED, status=BY_CPU),
            "poda",
            "1,4-5,12-13,16-17",
            id="NUMA nodes with cpu",
        ),
        pytest.param(pod("a", NO, BURSTABLE), "burstable", SHARED, id="no class, Burstable"),
        pytest.param(pod("a", NO), "poda", SHARED, id="no class, Guaranteed"),
        pytest.param(BE_POD, "besteffort", BEST, id="a BE Pod: all but LSE's"),
        pytest.param(
            pod("a", BE, BEST_EFFORT, status=HALF),
            "besteffort/poda",
            "8-11,20-23",
            id="a BE Pod in one of its pools",
        ),
        pytest.param(pod("a", NO, BEST_EFFORT), "besteffort", BEST, id="no class, BestEffort"),
        pytest.param(pod("a", QosClass.SYSTEM), "poda", "0", id="a SYSTEM Pod"),
    ],
)
def test_where_pods_run(planned: PodPlanned, path: str, cpus: str) -> None:
    """Koordinator contract 9.3, rule by rule."""
    node = replace(WORKED, pods=(planned,), system=parse_cpuset("0"))

    assert cpus_written(tree(planned), node)[path] == cpus


def test_kubelets_static_policy_keeps_what_it_gave() -> None:
    """Its container and the Pod's cgroup stay; nobody else gets these CPUs, whoever says so."""
    pinned = pod("g", NO, whole_cpus=True, given=parse_cpuset("4-5"))
    lsr = replace(LSR_POD, containers=())
    node = replace(WORKED, cpus=STATIC_X, pods=(pinned, lsr, LS_POD), held=own(lsr=("3-4", LSR)))
    there = tree(pinned, lsr, LS_POD)
    there = replace(
        there,
        cgroups=tuple(
            replace(one, cpus=parse_cpuset("4-5"), effective=parse_cpuset("4-5"))
            if one.container == "c-g"
            else one
            for one in there.cgroups
        ),
    )
    found = plan(there, node)

    assert {one.path: one.value for one in found.writes if one.file == "cpuset.cpus"} == {
        "burstable": "0-2,6-23",
        "besteffort": "0-3,6-23",
        "podlsr": "3",
    }
    assert [(one.about, one.reason, one.words) for one in found.unbound] == [
        ("lsr", UnboundReason.KUBELET_GAVE, "4")
    ]


def test_a_container_that_kubelet_may_pin_is_left_alone() -> None:
    """Until its id and its CPUs are known, whatever its label."""
    new = PodPlanned(uid="g", qos=LS, kube_qos=GUARANTEED, status=ResourceStatus())
    there = tree(pod("g", LS))

    assert not cpus_written(there, replace(WORKED, cpus=STATIC_X, pods=(new,), held={})).keys() & {
        "podg",
        "podg/c-g",
        "podg/s-g",
    }


@pytest.mark.parametrize(
    ("planned", "best_effort"),
    [
        pytest.param(pod("a", NO, BURSTABLE, whole_cpus=True), False, id="Burstable"),
        pytest.param(pod("a", NO), False, id="parts of CPUs"),
        pytest.param(pod("a", LS), False, id="LS"),
        pytest.param(pod("a", NO, BEST_EFFORT), True, id="BestEffort"),
        pytest.param(BE_POD, True, id="BE"),
    ],
)
def test_kubelets_own_shared_pool_binds_nobody(planned: PodPlanned, *, best_effort: bool) -> None:
    """
    CPU proposal, "Take over kubelet CPU management policies": kubelet's is replaced by ours.

    Its static policy writes every other container's CPUs, and does not know what we gave away.
    """
    node = NodePlanned(cpus=STATIC_X, held=own(lsr=("2-3", LSR)), pods=(planned,))

    wanted = "0-23" if best_effort else "0-1,4-23"
    assert str(wanted_of(node).pods[planned.uid].containers["main"]) == wanted


@pytest.mark.parametrize("of", [plan, plan_removal])
def test_each_container_has_what_kubelet_gave_to_it(
    of: Callable[[CgroupTree, NodePlanned], Plan],
) -> None:
    """And no CPU of the other containers of its Pod."""
    pinned = pod("g", NO, whole_cpus=True, given=parse_cpuset("4"))
    [first] = pinned.containers
    other = replace(first, name="other", id="c-other", given=parse_cpuset("5"))
    pinned = replace(pinned, containers=(first, other))
    found = of(tree(pinned, version=V1), NodePlanned(cpus=STATIC_X, held={}, pods=(pinned,)))

    written = {one.path: one.value for one in found.writes if one.file == "cpuset.cpus"}
    assert (written["podg/c-g"], written["podg/c-other"]) == ("4", "5")


def test_an_lsr_pod_keeps_its_cpus_though_kubelet_gave_it_others() -> None:
    """CPU proposal, "Take over", 3.1: the `resource-status` replaces what kubelet would bind."""
    lsr = pod("lsr", LSR, whole_cpus=True, given=parse_cpuset("8-9"))
    node = NodePlanned(cpus=STATIC_X, held=own(lsr=("2-3", LSR)), pods=(lsr,))

    assert str(wanted_of(node).pods["lsr"].containers["main"]) == "2-3"


@pytest.mark.parametrize("version", [V1, V2])
def test_who_the_ledger_does_not_know_stays(version: CgroupVersion) -> None:
    """Its status is not believed, and nothing is taken from it either; it is told."""
    stranger = pod("x", LSR, status=status('{"cpuset": "2-3"}'), whole_cpus=True)
    node = NodePlanned(cpus=PLAIN_X, held={}, pods=(stranger,))
    found = plan(tree(stranger, version=version), node)

    assert not [one for one in found.writes if one.path.startswith("podx")]
    assert [(one.reason, one.words) for one in found.unbound] == [
        (UnboundReason.NOT_RECORDED, "2-3")
    ]


@pytest.mark.parametrize(
    ("qos", "best_effort"), [(LSE, "0-1,4-23"), (LSR, EVERY)], ids=["LSE", "LSR"]
)
def test_nobody_else_gets_the_cpus_of_a_pod_that_the_ledger_does_not_know_yet(
    qos: QosClass, best_effort: str
) -> None:
    """As before koordlet's Pods are adopted: they run alone on the CPUs of their status."""
    stranger = pod("x", qos, status=status('{"cpuset": "2-3"}'), whole_cpus=True)
    node = NodePlanned(cpus=PLAIN_X, held={}, pods=(stranger, LS_POD, BE_POD))
    written = {"burstable": "0-1,4-23", "besteffort": best_effort}

    assert cpus_written(tree(stranger, LS_POD, BE_POD), node) == {
        path: cpus for path, cpus in written.items() if cpus != EVERY
    }


def test_a_status_never_takes_what_the_ledger_gave_to_another() -> None:
    """Its Pod leaves them, and the rest of its CPUs is in the pools."""
    stranger = pod("x", LSR, status=status('{"cpuset": "2-5"}'), whole_cpus=True)
    node = NodePlanned(cpus=PLAIN_X, held=own(lsr=("2-3", LSR)), pods=(stranger, LSR_POD))

    assert cpus_written(tree(stranger, LSR_POD), node)["podx"] == "0-1,4-23"


CLAIMING: Final = pod("d", LS, BURSTABLE, stays=True, claimed=parse_cpuset("2-3"))


@pytest.mark.parametrize("version", [V1, V2])
def test_a_pod_with_a_claim_on_cpus_is_the_claims_drivers(version: CgroupVersion) -> None:
    """No CPU of its claim is taken from it: the driver binds its containers to them."""
    node = NodePlanned(cpus=PLAIN_X, held=own(claim=("2-3", LSE)), pods=(CLAIMING, BE_POD))

    written = cpus_written(tree(CLAIMING, BE_POD, version=version), node)
    assert [path for path in written if "/" not in path] == ["besteffort"]


def on(there: CgroupTree, **cpus: str) -> CgroupTree:
    """Return a tree where cgroups have these CPUs, by the last part of their paths."""
    by_name = {name.replace("_", "-"): parse_cpuset(text) for name, text in cpus.items()}
    return replace(
        there,
        cgroups=tuple(
            replace(one, cpus=by_name[name], effective=by_name[name])
            if (name := one.path.rpartition("/")[2]) in by_name
            else one
            for one in there.cgroups
        ),
    )


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize(
    ("alone", "wanted"),
    [(CLAIMING, EVERY), (pod("d", NO, BURSTABLE, stays=True), "0-1,4-23")],
    ids=["it has a claim", "it can't be read"],
)
def test_a_pod_that_is_left_alone_opens_its_class_for_no_more_than_it_has(
    alone: PodPlanned, wanted: str, version: CgroupVersion
) -> None:
    """An LSR Pod's CPUs stay closed to who is born beside it; those of its claim are open."""
    pools = "0-1,4-23"
    there = on(
        tree(alone, LSR_POD, version=version), burstable=pools, podd=pools, c_d="5", s_d=pools
    )
    held = own(lsr=("2-3", LSR))
    if alone is CLAIMING:
        held = own(claim=("2-3", LSE))
    node = NodePlanned(cpus=PLAIN_X, held=held, pods=(alone, LSR_POD))

    written = cpus_written(there, node)
    assert written.get("burstable", pools) == wanted
    on_v1 = alone is CLAIMING
    assert written.get("burstable/podd") == (EVERY if on_v1 else None), "room for its driver"
    assert not written.keys() & {"burstable/podd/c-d", "burstable/podd/s-d"}


@pytest.mark.parametrize("version", [V1, V2])
def test_on_v2_a_class_is_narrowed_beside_a_pod_that_is_left_alone(version: CgroupVersion) -> None:
    """It asks for nothing itself, so that it follows; on v1 it does, and nobody takes that."""
    alone = pod("d", NO, BURSTABLE, stays=True)
    node = NodePlanned(cpus=PLAIN_X, held=own(lse=("2-3", LSE)), pods=(alone, LSE_POD))

    written = cpus_written(tree(alone, LSE_POD, version=version), node)
    assert written.get("burstable") == ("0-1,4-23" if version is V2 else None)


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize(
    "alone", [CLAIMING, pod("d", LSR, BURSTABLE, status=status('{"cpuset":"2-3"}'))]
)
def test_removal_leaves_alone_whom_others_bound(alone: PodPlanned, version: CgroupVersion) -> None:
    """A claim's driver, or whoever bound a Pod that the ledger does not have."""
    there = on(tree(alone, LS_POD, version=version), c_d="2-3", podls="0-1", c_ls="0-1", s_ls="0-1")
    node = NodePlanned(cpus=PLAIN_X, held={}, pods=(alone, LS_POD))

    written = {one.path for one in plan_removal(there, node).writes}
    assert "burstable/podls/c-ls" in written
    assert not [path for path in written if path.startswith("burstable/podd")]


def test_an_empty_shared_pool_moves_nobody() -> None:
    """No CPU is left for LS Pods: they stay where they are, and the plan says so."""
    node = NodePlanned(cpus=PLAIN_X, held=own(lsr=(EVERY, LSR)), pods=(LS_POD,))
    found = plan(tree(LS_POD), node)

    assert not [one for one in found.writes if one.path.startswith("burstable")]
    assert [one.reason for one in found.unbound] == [UnboundReason.NO_CPUS_LEFT]


def test_memory_nodes_follow_the_reservation() -> None:
    """Of Pods with CPUs of their own, unless kubelet's memory manager binds Pods itself."""
    text = '{"cpuset": "2-3", "numaNodeResources": [{"node": 0, "resources": {"memory": "1Gi"}}]}'
    lsr = replace(LSR_POD, status=status(text))
    node = NodePlanned(cpus=PLAIN_X, held=own(lsr=("2-3", LSR)), pods=(lsr,))

    assert ("podlsr", "cpuset.mems", "0") in writes(tree(lsr), node)
    assert ("podlsr/s-lsr", "cpuset.mems", "0") in writes(tree(lsr, version=V1), node)
    kubelets = replace(node, binds_memory=False)
    assert not [one for one in writes(tree(lsr), kubelets) if one[1] == "cpuset.mems"]


def test_where_no_partition_can_be_narrowing_holds_alone() -> None:
    """It is told of each LSE Pod."""
    there = replace(tree(*WORKED.pods), kernel=(6, 6))
    found = plan(there, WORKED)

    assert [one.words for one in found.unbound] == ["cgroup v2, kernel 6.6"]
    assert not [one for one in found.writes if "exclusive" in one.file or "partition" in one.file]


def test_what_the_kernel_says_of_a_partition_is_told_and_not_tried_for_ever() -> None:
    """It is tried again only with other writes."""
    node = replace(WORKED, pods=(LSE_POD,), held=own(lse=("6-7", LSE)))
    own_cpus = parse_cpuset("6-7")
    there = tree(LSE_POD)
    pools = {"burstable": "1-5,8-23", "besteffort": "1-5,8-23"}

    def refused(one: CgroupNow) -> CgroupNow:
        if one.path in pools:
            cpus = parse_cpuset(pools[one.path])
            return replace(one, cpus=cpus, effective=cpus)
        one = replace(one, quota=-1)
        if not one.path:
            return replace(one, exclusive=own_cpus)
        if one.container:
            return replace(one, effective=own_cpus)
        why = "root invalid (Cpu list in cpuset.cpus not exclusive)"
        return replace(one, cpus=own_cpus, effective=own_cpus, exclusive=own_cpus, partition=why)

    invalid = replace(there, cgroups=tuple(refused(one) for one in there.cgroups))
    found = plan(invalid, node)
    assert not found.writes
    assert [one.words for one in found.unbound] == [
        "root invalid (Cpu list in cpuset.cpus not exclusive)"
    ]

    moved = replace(
        invalid,
        cgroups=tuple(
            replace(one, cpus=EMPTY, effective=parse_cpuset(EVERY))
            if one.path == "burstable"
            else one
            for one in invalid.cgroups
        ),
    )
    assert writes(moved, node)[-1] == ("podlse", "cpuset.cpus.partition", "root")


@pytest.mark.parametrize("version", [V1, V2])
def test_a_cgroup_that_a_container_made_follows(version: CgroupVersion) -> None:
    """On v1 it would keep the container's from being narrowed."""
    there = tree(LSR_POD, version=version)
    inner = next(one for one in there.cgroups if one.container == "c-lsr")
    there = replace(there, cgroups=(*there.cgroups, replace(inner, path=f"{inner.path}/inner")))
    node = NodePlanned(cpus=PLAIN_X, held=own(lsr=("2-3", LSR)), pods=(LSR_POD,))
    written = cpus_written(there, node)

    assert written.get("podlsr/c-lsr/inner") == ("2-3" if version is V1 else None)


def test_nothing_is_planned_for_a_tree_that_is_not_there() -> None:
    """Nor for a cgroup whose parent was gone when it was read."""
    nothing = CgroupTree(version=V2)
    assert not plan(nothing, WORKED).writes
    assert not plan_removal(nothing, WORKED).writes
    torn = tree(LS_POD)
    torn = replace(torn, cgroups=(torn.cgroups[0], *torn.cgroups[3:]))
    assert not plan(torn, WORKED).writes


def test_a_pod_that_nobody_listed_yet_runs_as_its_class_does() -> None:
    """Its cgroup is made before it is listed."""
    there = tree(pod("new", NO))

    assert cpus_written(there, replace(WORKED, pods=()))["podnew"] == SHARED


@pytest.mark.parametrize("version", [V1, V2])
def test_removal_gives_quotas_back_from_below(version: CgroupVersion) -> None:
    """On v1 the kernel refuses a Pod's quota below its containers'."""
    there = tree(LSR_POD, version=version)
    bound = replace(there, cgroups=tuple(replace(one, quota=-1) for one in there.cgroups))
    node = NodePlanned(cpus=PLAIN_X, held=own(lsr=("2-3", LSR)), pods=(LSR_POD,))
    found = [(one.path, one.value) for one in plan_removal(bound, node).writes]

    assert found == [("podlsr/c-lsr", "400000"), ("podlsr", "400000")]


def test_suppression_narrows_what_best_effort_pods_have() -> None:
    """One write on v2; a pool that is named is used as far as suppression leaves it."""
    node = replace(WORKED, best_effort=parse_cpuset("1-2,8,20"))
    named = pod("a", BE, BEST_EFFORT, status=HALF)

    assert cpus_written(tree(BE_POD), replace(node, pods=(BE_POD,)))["besteffort"] == "1-2,8,20"
    assert cpus_written(tree(named), replace(node, pods=(named,)))["besteffort/poda"] == "8,20"


@pytest.mark.parametrize("version", [V1, V2])
def test_what_a_runtime_keeps_beside_containers_is_bound_as_the_pod(version: CgroupVersion) -> None:
    """CRI-O's conmon has a cgroup in the Pod's: no container, no partition, no quota of its own."""
    there = tree(LSE_POD, version=version)
    conmon = replace(
        next(one for one in there.cgroups if one.path == "podlse"),
        path="podlse/crio-conmon-0.scope",
        quota=-1,
    )
    there = replace(there, cgroups=(*there.cgroups, conmon))
    node = replace(WORKED, pods=(LSE_POD,))
    found = plan(there, node)

    assert cpus_written(there, node).get(conmon.path) == ("6-7,18-19" if version is V1 else None)
    assert len(found.unbound) == (1 if version is V1 else 0)
    assert conmon.path not in {one.path for one in plan_removal(there, node).writes}
