"""kube-scheduler's calls answered from memory: bytes in, bytes out, nothing waits but a bind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import found_in, is_label, is_name, text_at
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import RefusedPod
from scheduler.decide import extender
from scheduler.decide.bounded import decode_bounded
from scheduler.decide.nodes.arrays import IntArray
from scheduler.service.groups import LiveGroups
from scheduler.service.ports import BindCall, WhyNot
from scheduler.service.preempting import Places, Preempting, read_victims
from scheduler.service.view import ClusterView, Judged


class NotNowError(Exception):
    """Nothing is answered now; kube-scheduler tries again."""


class Binds(Protocol):
    """Who binds Pods; see `scheduler.service.binding.Binder`."""

    async def bind(self, call: BindCall) -> str:
        """Bind a Pod; return why not, empty when it is bound there."""


class Refusals(Protocol):
    """Who keeps why Pods wait; see `scheduler.service.refusing.Refusing`."""

    def noted(self, asked: PodRequest | RefusedPod, offered: IntArray | None = None) -> None:
        """Take note that a filter left a Pod no node; nothing waits."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A filter that was answered: the end of the answer, and `NodeDirectory.changes` then."""

    judged: Judged
    names: bytes
    changes: int


@dataclass(slots=True, eq=False)
class Extender:
    """
    Answers filter, prioritize, preempt and bind.

    Rule: GPU-sharing contract C.3 to C.5; design section 5.2. The expected winner gets a soft hold
    once prioritize was answered, or filter with one node: then kube-scheduler asks no further.

    Raises:
        InputError: from each call, if it can't be read.
        NotNowError: from prioritize and preempt, if nothing is answered now.
    """

    view: ClusterView
    binds: Binds
    why_not: WhyNot
    groups: LiveGroups
    holds: Places
    refusals: Refusals
    preempting: Preempting
    _answered: _Answered | None = None

    def filter(self, body: bytes, arguments: extender.ExtenderArguments | None = None) -> bytes:
        """Answer which nodes may take a Pod, with a reason for every other."""
        arguments = arguments or extender.read_arguments(body)
        why = self.why_not()
        if why:
            return extender.failed_filter(why)
        view = self.view
        try:
            request = view.requests.read(arguments.pod)
        except InputError as error:
            unread = _unread(arguments.pod, error)
            if unread is not None:
                self.refusals.noted(unread)
            return view.directory.refusal(view.directory.ask(arguments.node_names), str(error))
        if isinstance(request, RefusedPod):
            self.refusals.noted(request)
            asked = view.directory.ask(arguments.node_names)
            return view.directory.refusal(asked, request.message)
        self.holds.asked_again(request.uid)
        why = self.groups.why_not_yet(request)
        if why:
            return extender.failed_filter(why)
        judged = self._judge(request, arguments.node_names)
        self.preempting.take_filter(request.uid)
        best = judged.filtered.best
        if not len(judged.filtered.passing) and not _is_nominated(arguments):
            self.refusals.noted(request, judged.asked.nodes)
        if best is not None and len(judged.filtered.passing) == 1:
            self.holds.expected(best, arguments.pod, judged.decided_at)
        answer = view.directory.filter_result(judged.asked, judged.filtered, arguments.nodes)
        cut = extender.without_names(answer)
        if cut is not None:
            self._answered = _Answered(judged, cut[1], view.directory.changes)
        return answer

    def prioritize(self, body: bytes, arguments: extender.ExtenderArguments | None = None) -> bytes:
        """
        Answer how good the nodes are that are left, by what the filter before found.

        Raises:
            InputError: also of a Pod that no node can take.
        """
        pod = None if arguments else self._pod_of_last(body)
        if pod is not None and self._answered is not None:
            judged = self._answered.judged
        else:
            arguments = arguments or extender.read_arguments(body)
            self._check_now()
            pod, judged = arguments.pod, self._judged(arguments)
        best = judged.filtered.best
        if best is not None:
            self.holds.expected(best, pod, judged.decided_at)
        return self.view.directory.priorities(judged.asked, judged.filtered)

    def _pod_of_last(self, body: bytes) -> Mapping[str, object] | None:
        """
        Return the Pod of a question that ends as the last filter's answer did, which was its.

        Thousands of names are then neither read nor looked up again. None: all has to be read, as
        after a node came, went or closed.
        """
        last, cut = self._answered, extender.without_names(body)
        if last is None or cut is None or cut[1] != last.names:
            return None
        if last.changes != self.view.directory.changes:
            return None
        try:
            pod = found_in(decode_bounded(cut[0], dict[str, object]), "Pod")
        except InputError:
            return None
        if not isinstance(pod, dict):
            return None
        self._check_now()
        request = self.view.requests.read(pod)
        judged = None if isinstance(request, RefusedPod) else self.view.judged(request.uid)
        return pod if judged is last.judged else None

    def _judged(self, arguments: extender.ExtenderArguments) -> Judged:
        view = self.view
        request = view.requests.read(arguments.pod)
        if isinstance(request, RefusedPod):
            raise InputError(request.message, field="Pod")
        judged = view.judged(request.uid)
        if judged is not None:
            asked = view.directory.ask(arguments.node_names)
            passing = judged.asked.nodes.take(judged.filtered.passing)
            if not asked.unknown and np.array_equal(asked.nodes, passing):
                return judged
        self.holds.asked_again(request.uid)
        return self._judge(request, arguments.node_names)

    def _judge(self, request: PodRequest, names: Sequence[str]) -> Judged:
        self.groups.plans.lead()
        self.preempting.renew(request)
        judge = self.groups.judge if group_name(request) else self.view.judge
        return judge(request, names)

    def preempt(self, body: bytes, value: Mapping[str, object] | None = None) -> bytes:
        """Answer which Pods would have to go, node by node."""
        value = value or read_victims(body)
        self._check_now()
        self.groups.plans.lead()
        return json.dumps({"NodeNameToMetaVictims": self.preempting.answer(value)}).encode()

    async def bind(self, body: bytes) -> bytes:
        """Bind a Pod, or say why not."""
        value = decode_bounded(body, dict[str, object])
        words = {
            key: text_at({key: extender.member(value, key)}, key, "")
            for key in ("PodNamespace", "PodName", "PodUID", "Node")
        }
        for key, word in words.items():
            is_one = is_label if key in {"PodNamespace", "PodUID"} else is_name
            if not is_one(word):
                fact = f"no object is called so: value={word[:40]!r}" if word else "missing"
                raise InputError(fact, field=key)
        error = self.why_not()
        if not error:
            call = BindCall(
                namespace=words["PodNamespace"],
                pod_name=words["PodName"],
                pod_uid=words["PodUID"],
                node_name=words["Node"],
            )
            error = await self.binds.bind(call)
        return json.dumps({"Error": error}).encode()

    def _check_now(self) -> None:
        why = self.why_not()
        if why:
            raise NotNowError(why)


def _is_nominated(arguments: extender.ExtenderArguments) -> bool:
    nominated = found_in(arguments.pod, "status", "nominatedNodeName")
    return bool(nominated) and list(arguments.node_names) == [nominated]


def _unread(pod: Mapping[str, object], error: InputError) -> RefusedPod | None:
    """Return a Pod that can't be read as one that is refused; None where it has no name even."""
    uid, namespace, name = (found_in(pod, "metadata", key) for key in ("uid", "namespace", "name"))
    if not (isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str) and uid):
        return None
    why = FieldError(field=error.field, reason="FieldValueInvalid", message=error.message)
    return RefusedPod(uid=uid, namespace=namespace, name=name, errors=(why,))
