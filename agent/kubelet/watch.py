"""The Pods of this node in memory: asked for again when somebody wants one that is not there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from agent.decide.pod_words import PodWords, pod_words
from agent.https import NoAnswerError
from agent.kubelet.pods import Pod
from ledger.domain.errors import InputError

ROUND_SECONDS: Final = 30.0
"""Also what keeps our token known to kubelet, which remembers whom it let in for 2 to 5 minutes."""
SOON_SECONDS: Final = 0.02
SOON_SECONDS_MAX: Final = 0.2
"""Kubelet is asked no more often, whoever waits; the longer somebody does, the less often."""

_log: Final = logging.getLogger("tenure.agent.kubelet")


class PodSource(Protocol):
    """Who knows the Pods of this node."""

    async def pods(self) -> Sequence[Pod]:
        """Return them. Raises NoAnswerError, InputError: it can't."""
        ...


class PodsHere:
    """
    The Pods that kubelet told of, with their words.

    Attributes:
        problem: why it did not, the last time; empty when it did.
        pods: the objects as kubelet told them.
    """

    def __init__(self, source: PodSource) -> None:
        self._source = source
        self._words: dict[str, PodWords] = {}
        self._wanted = asyncio.Event()
        self.pods: Sequence[Pod] = ()
        self.problem = "kubelet was not asked yet"

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
