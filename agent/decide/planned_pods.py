"""Kubelet's Pods as planning their CPUs needs them, and the holdings that a node believes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agent.decide.believing import Believing, is_granted
from agent.decide.cgroups import ContainerPlanned, PodPlanned, Problem
from agent.decide.container_cpus import KubeQos
from agent.decide.node_cpus import FoundCpus, claim_names, find_cpu_holders
from agent.decide.node_holdings import GRANTED, CpuClaim, HeldByPod, HoldingKey, NodeHoldings
from agent.decide.pools import NodeCpus, PodCpus, claimed_cpus
from agent.decide.wanted_cpus import NodePlanned
from ledger.domain import resources
from ledger.domain.annotations.cpu import ResourceStatus, decode_resource_status
from ledger.domain.annotations.node_cpu import decode_system_qos_resource
from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.annotations.wire import decoded
from ledger.domain.cpuset import EMPTY, CpuSet, union
from ledger.domain.errors import InputError
from ledger.domain.kube.nrt_objects import read_node_reserve
from ledger.domain.kube.object_fields import items_in, text_in
from ledger.domain.kube.pod_spec import ENDED, PodSpec, read_pod
from ledger.domain.request.cpus import is_guaranteed
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

Object = Mapping[str, Any]
Memo = dict[str, tuple[tuple[object, ...], PodPlanned | None]]
"""UID -> of what a Pod was planned, and the Pod; None = it has ended."""
_STATUSES: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_WHOLE: Final = 1000
NO_MEMORY_MANAGER: Final = "None"
_CLASSES: Final = {str(qos): qos for qos in KubeQos}


DOUBTED: Final = "NotBelieved"
"""Reason of a problem: what of a Pod is not believed, or can't be read."""


def planned_pods(
    pods: Iterable[Object],
    pinned: Mapping[str, Mapping[str, CpuSet]],
    claims: Sequence[CpuClaim],
    memo: Memo | None = None,
) -> tuple[tuple[PodPlanned, ...], tuple[Problem, ...]]:
    """
    Return the Pods that run or will run, and why some are left alone: they can't be read.

    Args:
        pinned: UID -> container -> what kubelet's static policy gave to it.
        claims: those with CPUs.
        memo: what was made of Pods before: of hundreds, one changes at a time.
    """
    listed, memo = [*pods], {} if memo is None else memo
    known = {text_in(pod, "metadata", "uid") for pod in listed}
    found, doubted = [], []
    for pod in listed:
        uid = text_in(pod, "metadata", "uid")
        key = (pod, pinned.get(uid, {}), claims)
        try:
            if uid not in memo or memo[uid][0] != key:
                memo[uid] = (key, _planned(*key))
        except InputError as error:
            doubted.append(_doubted(uid, error))
            memo.pop(uid, None)
            continue
        if (one := memo[uid][1]) is not None:
            found.append(one)
    for uid in memo.keys() - known:
        del memo[uid]
    return (*found, *(PodPlanned(uid=one.about, stays=True) for one in doubted)), tuple(doubted)


def node_planned(
    found: FoundCpus,
    pods: Sequence[Object],
    held: Sequence[HeldByPod],
    doubted: Iterable[Problem],
    words: Mapping[str, str],
    *,
    memo: Memo | None = None,
) -> tuple[NodePlanned, tuple[Problem, ...]]:
    """
    Return what is planned for, and which Pods can't be read.

    Args:
        words: annotations of the Node, which say what it keeps back.

    Raises:
        InputError: these can't be read, or who has CPUs; or see `FoundCpus.claims`.
    """
    topology, kubelet = found.machine.topology, found.managers.cpu
    found = replace(found, pods=pods)
    claims = found.claims
    planned, unread = planned_pods(pods, found.pinned, claims, memo)
    alone = {one.about for one in doubted}
    system = decoded(words, resources.ANNOTATION_SYSTEM_QOS_RESOURCE, decode_system_qos_resource)
    holders = find_cpu_holders(found, held)
    node = NodePlanned(
        cpus=NodeCpus(
            topology=topology,
            kubelet_reserved=kubelet.reserved_cpus,
            reserved=read_node_reserve(words, topology),
            kubelet_static=kubelet.is_static,
        ),
        held={one.uid: own for one, own in holders}
        | {f"{one.claim_uid}/{one.position}": claimed_cpus(one.cpus) for one in claims},
        pods=tuple(
            PodPlanned(uid=one.uid, stays=True) if one.uid in alone else one for one in planned
        ),
        system=EMPTY if system is None else system.cpus,
        binds_memory=found.managers.memory_policy == NO_MEMORY_MANAGER,
    )
    return node, unread


def by_their_own_words(node: NodePlanned) -> NodePlanned:
    """Return a node whose Pods have what their status says: to give back, not to give."""
    own = {
        pod.uid: PodCpus(cpus=pod.status.cpuset, qos=pod.qos)
        for pod in node.pods
        if pod.status.cpuset
    }
    return replace(node, held={**node.held, **own})


def believed_cpus(
    believing: Believing, known: NodeHoldings, pods: Sequence[Object], *, is_heard: bool
) -> tuple[tuple[HeldByPod, ...], tuple[Problem, ...]]:
    """
    Return the holdings with CPUs that count, by whosever word, and those that are not believed.

    Nobody else gets the CPUs of one that is not believed: it stays among the holdings.
    """
    found: dict[HoldingKey, HeldByPod] = {}
    doubted = []
    for one in known.pods():
        if not any(part.cpus for part in one.containers):
            continue
        try:
            if is_granted(one):
                believing.holding(one, known)
        except InputError as error:
            doubted.append(_doubted(one.pod_uid, error))
        found[one.key] = one
    for pod in () if is_heard else pods:
        uid = text_in(pod, "metadata", "uid")
        try:
            believed = believing.of_pod(
                uid, known, is_heard=False, annotations=pod["metadata"].get("annotations") or {}
            )
        except InputError as error:
            doubted.append(_doubted(uid, error))
            continue
        if believed is None or not any(part.cpus for part in believed.proof.containers):
            continue
        proof = believed.proof
        found[uid, proof.attempt] = HeldByPod(
            pod_uid=uid,
            namespace=text_in(pod, "metadata", "namespace"),
            pod_name=text_in(pod, "metadata", "name"),
            containers=proof.containers,
            attempt=proof.attempt,
            kind=GRANTED,
            phase="bound",
            position=proof.position,
        )
    return tuple(found.values()), tuple(doubted)


def _doubted(pod_uid: str, error: InputError) -> Problem:
    return Problem(about=pod_uid, reason=DOUBTED, words=str(error))


def _planned(
    pod: Object, given: Mapping[str, CpuSet], claims: Sequence[CpuClaim]
) -> PodPlanned | None:
    """Return one Pod; None = it has ended. Raises InputError: it can't be read."""
    spec = read_pod(pod, DEFAULT_VOCABULARY)
    if spec.stage == ENDED:
        return None
    text = spec.annotations.get(resources.ANNOTATION_RESOURCE_STATUS)
    ids = {
        text_in(one, "name"): text_in(one, "containerID").rpartition("://")[2]
        for field in _STATUSES
        for one in items_in(pod, "status", field)
    }
    containers = {name: ContainerPlanned(name=name, id=own) for name, own in ids.items()}
    for one in spec.containers:
        request, limit = one.requests.get(resources.CPU), one.limits.get(resources.CPU)
        milli = 0 if request is None else request.milli()
        containers[one.name] = ContainerPlanned(
            name=one.name,
            id=ids.get(one.name, ""),
            whole_cpus=milli > 0 and not milli % _WHOLE,
            limit_milli=0 if limit is None else limit.milli(),
            given=given.get(one.name, EMPTY),
        )
    used = {(spec.namespace, name) for name in claim_names(pod)}
    claimed = union(one.cpus for one in claims if (one.namespace, one.name) in used)
    return PodPlanned(
        uid=spec.uid,
        qos=read_qos_class(spec.labels),
        kube_qos=_CLASSES.get(spec.kube_qos) or _kube_qos(spec),
        status=ResourceStatus() if text is None else decode_resource_status(text),
        containers=tuple(containers.values()),
        stays=bool(claimed),
        claimed=claimed,
    )


def _kube_qos(spec: PodSpec) -> KubeQos:
    """Return the class by requests and limits: kubelet does not say it of every static Pod."""
    if all(map(is_guaranteed, spec.containers)):
        return KubeQos.GUARANTEED
    asks = any(
        {resources.CPU, resources.MEMORY} & {*one.requests, *one.limits} for one in spec.containers
    )
    return KubeQos.BURSTABLE if asks else KubeQos.BEST_EFFORT
