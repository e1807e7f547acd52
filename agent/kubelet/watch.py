"""
The Pods of this node in memory, out of kubelet's own listener: `GET /pods`.

An agent has no right to list Pods in the API: what is on its node, kubelet tells it, whom nobody
else's Pods reach (docs/agent.md). It is asked again when somebody wants a Pod that is not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from agent.decide.pod_words import PodWords, pod_words
from agent.https import Caller, NoAnswerError
from ledger.domain.dialects.names import FOREIGN_WORDS
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_in
from ledger.domain.kube.pod_spec import ENDED_PHASES
from ledger.domain.resources import (
    ANNOTATION_RESOURCE_STATUS,
    ANNOTATION_TENURE_PROOF,
    LABEL_QOS_CLASS,
)

PATH: Final = "/pods"
CALL_SECONDS: Final = 5.0
_GOOD: Final = 200
SOURCE: Final = "kubernetes.io/config.source"
KEYS: Final = {
    *(SOURCE, ANNOTATION_TENURE_PROOF, ANNOTATION_RESOURCE_STATUS, LABEL_QOS_CLASS),
    *(key for words in FOREIGN_WORDS for key in words.allocation_annotations),
}
"""Of the annotations and labels that are read here."""

Pod = Mapping[str, Any]
"""An object as the API has it, with the spec that kubelet runs, as far as it is read here."""

ROUND_SECONDS: Final = 30.0
"""Also what keeps our token known to kubelet, which remembers whom it let in for 2 to 5 minutes."""
SOON_SECONDS: Final = 0.02
SOON_SECONDS_MAX: Final = 0.2
"""Kubelet is asked no more often, whoever waits; the longer somebody does, the less often."""

_log: Final = logging.getLogger("tenure.agent.kubelet")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPods:
    """Asks kubelet for its Pods."""

    caller: Caller

    async def pods(self) -> Sequence[Pod]:
        """
        Return the Pods that kubelet knows, also those that it has not started.

        Raises:
            NoAnswerError: kubelet does not answer, or not to us.
            InputError: its answer can't be read, or we have no token.
        """
        return read_pods(await ask(self.caller, PATH))


async def ask(caller: Caller, path: str) -> bytes:
    """Return what kubelet answers. Raises NoAnswerError, InputError: nothing, or we can't ask."""
    answer = await caller.call(path, seconds=CALL_SECONDS)
    if answer.status != _GOOD:
        words = answer.body[:200].decode(errors="replace").strip()
        raise NoAnswerError(f"kubelet refuses: {answer.status}: {words}")
    return answer.body


def read_pods(body: bytes) -> Sequence[Pod]:
    """Return the Pods of a list in JSON. Raises InputError: it is none."""
    try:
        pods: list[Pod] = msgspec.to_builtins(_DECODER.decode(body).items or [])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a list of Pods: {error}", place="kubelet") from error
    return pods


class _Part(msgspec.Struct, rename="camel", omit_defaults=True):
    """Of what a team writes, such as variables, nothing else stays in memory."""


class _Metadata(_Part):
    uid: str
    name: Any = None
    namespace: Any = None
    annotations: dict[str, Any] | None = None
    labels: dict[str, Any] | None = None
    deletion_timestamp: Any = None

    def __post_init__(self) -> None:
        written, labels = self.annotations or {}, self.labels or {}
        self.annotations = {key: written[key] for key in written.keys() & KEYS}
        self.labels = {key: labels[key] for key in labels.keys() & KEYS} or None


class _Container(_Part):
    name: Any = None
    resources: Any = None
    restart_policy: Any = None


class _Spec(_Part):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: Any = None


class _Pod(_Part):
    metadata: _Metadata
    spec: _Spec
    status: Any = None


class _Pods(_Part):
    items: list[_Pod] | None = None


_DECODER: Final = msgspec.json.Decoder(_Pods)


class PodSource(Protocol):
    """Who knows the Pods of this node."""

    async def pods(self) -> Sequence[Pod]:
        """Return them. Raises NoAnswerError, InputError: it can't."""


class PodsHere:
    """The Pods that kubelet returned; `problem` is why it did not the last time, else empty."""

    def __init__(self, source: PodSource) -> None:
        self._source = source
        self._words: dict[str, PodWords] = {}
        self._wanted = asyncio.Event()
        self.pods: Sequence[Pod] = ()
        self.problem = "kubelet was not asked yet"
        self.changed: list[Callable[[], None]] = []
        """Called after each answer."""

    def running(self) -> list[Pod]:
        """Return the Pods that kubelet runs or will."""
        return [pod for pod in self.pods if text_in(pod, "status", "phase") not in ENDED_PHASES]

    def places(self) -> dict[str, Mapping[str, str]]:
        """Return by UID of each of them where its containers are, as far as that is known."""
        found = {uid: self.words(uid) for uid in (pod["metadata"]["uid"] for pod in self.running())}
        return {uid: {} if word is None else word.places for uid, word in found.items()}

    def words(self, pod_uid: str) -> PodWords | None:
        """Return what is said of a Pod; None = not known yet, and kubelet is asked soon."""
        found = self._words.get(pod_uid)
        if found is None:
            self._wanted.set()
        return found

    def somebody_came(self) -> None:
        """Have kubelet asked soon: a Pod is new here, whichever."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask kubelet again and again, until cancelled."""
        seconds = SOON_SECONDS
        while True:
            self._wanted.clear()
            await self.look()
            await asyncio.sleep(seconds)
            waits = self._wanted.is_set()
            seconds = min(2 * seconds, SOON_SECONDS_MAX) if waits else SOON_SECONDS
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Ask kubelet once; what it told before stays where it does not answer."""
        try:
            pods = await self._source.pods()
        except (NoAnswerError, InputError) as error:
            if str(error) != self.problem:
                _log.warning("kubelet tells no Pods", extra={"reason": str(error)})
            self.problem = str(error)
            return
        words = {}
        for pod in pods:
            try:
                found = pod_words(pod)
            except InputError as error:
                uid = pod["metadata"]["uid"]
                _log.warning("a Pod can't be read", extra={"pod_uid": uid, "reason": str(error)})
                continue
            words[found.pod_uid] = found
        self.pods, self._words, self.problem = pods, words, ""
        for tell in self.changed:
            tell()
