"""What the CPU process confirms at the service: docs/contracts/agents.md, "CPUs"."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from agent.cpus.binder import CALLED_GONE, TOO_MANY, Problem, Round
from agent.decide.confirming import Confirming, answered, unanswered
from agent.decide.confirming_cpus import CpusHere, said_of_cpus
from agent.decide.planned_pods import GONE
from agent.durable import write_durably
from agent.https import NoAnswerError
from agent.service.link import RefusedError
from agent.witness.confirmer import GONE_FILE, gone_in
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_in
from tenure.serving.agent_words import Told

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class CpuWords:
    """Confirms what the last round found; `state` has whom we called gone, as on disk."""

    def __init__(self, told: Told, folder: Path) -> None:
        """Know whom this node called gone before."""
        self._told, self._folder, self.state = told, folder, Confirming()
        self.again: Callable[[], None] = lambda: None  # called where a round is to follow
        self.begin()
        self._look: tuple[Round, int | None] | None = None
        self._sequence: int | None = None

    def begin(self) -> None:
        """Know it anew: until we have the lock, another process of this node calls Pods gone."""
        gone, is_lost = gone_in(self._folder)
        known = self._told.link.holdings
        if is_lost and known is not None:  # it may be any of them
            gone = frozenset(uid for uid, _ in known.held)
        self.state = Confirming(gone=gone)

    def gone(self) -> frozenset[str]:
        """Return whom the service may think gone: they get no CPUs of their own."""
        return self.state.gone

    def problems(self) -> tuple[Problem, ...]:
        """Return who runs here without its own CPUs, for it was called gone."""
        late = sorted(self.state.gone & self._running().keys())
        words = "it was called gone, and that is not taken back yet"
        return tuple(Problem(about=uid, reason=CALLED_GONE, words=words) for uid in late)

    def take(self, made: Round) -> None:
        """Take what a round found; it follows what was taken before the round at the latest."""
        self._look, self._sequence = (made, self._sequence), self._told.link.sequence

    async def say(self) -> None:
        """Confirm it. Raises NoAnswerError, RefusedError, InputError, OSError: said again."""
        link = self._told.link
        known = link.holdings
        if self._look is None or self._look[1] is None or known is None or not link.is_heard:
            return
        made, before = self._look
        self._look = None  # a word of what was is none of what is
        owners = {
            key.removeprefix(GONE).partition("/")[0]: cpus for key, cpus in made.node.held.items()
        }
        state, message = said_of_cpus(
            self.state, known, self._here(made), owners, now=time.monotonic()
        )
        if message.is_empty:
            return
        self._become(state)
        try:
            verdicts = await link.confirm(
                message.assigned,
                message.gone,
                here=message.here,
                after=before,
                crossing=message.crossing,
            )
        except (NoAnswerError, RefusedError, InputError):
            self.state = unanswered(state, message)
            raise
        self._sequence = link.sequence
        if verdicts.taken:
            self._become(answered(state, message, frozenset(uid for uid, _ in known.held)))
        else:  # another process of this node has spoken since
            self.state = unanswered(state, message)
        if message.here or not verdicts.taken:
            self.again()

    def _become(self, state: Confirming) -> None:
        """Know this from now on; whom we call gone is on disk before anybody is told."""
        if state.gone != self.state.gone:
            write_durably(self._folder / GONE_FILE, msgspec.json.encode(sorted(state.gone)))
        self.state = state

    def _running(self) -> dict[str, Mapping[str, str]]:
        """Return by UID where the containers are of each Pod that kubelet runs or will."""
        pods = self._told.pods
        runs = [pod for pod in pods.pods if text_in(pod, "status", "phase") not in _ENDED]
        found = {uid: pods.words(uid) for uid in (str(pod["metadata"]["uid"]) for pod in runs)}
        return {uid: {} if word is None else word.places for uid, word in found.items()}

    def _here(self, made: Round) -> CpusHere:
        pods, own, places = self._told.pods, self._told.own_pod[1], self._running()
        return CpusHere(
            tree=made.tree,
            planned=made.node.pods,
            places=None if pods.problem or (own and own not in places) else places,
            online=made.node.cpus.topology.cpuset,
            complete=all(one.reason != TOO_MANY for one in made.problems),
        )
