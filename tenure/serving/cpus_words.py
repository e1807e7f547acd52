"""What the CPU process confirms at the service: docs/contracts/agents.md, "CPUs"."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from agent.cpus.binder import CALLED_GONE, TOO_MANY, Round
from agent.decide.cgroups import Problem
from agent.decide.confirming_cpus import CpusHere, of_cpus, said_of_cpus
from agent.witness.confirmer import Speaker
from tenure.serving.agent_words import Told


class CpuWords:
    """Confirms what the last round found; `soon`: set where one is to follow."""

    def __init__(self, told: Told, folder: Path) -> None:
        """Know whom this node called gone before."""
        self._told, self._folder, self.soon = told, folder, asyncio.Event()
        self._speaker = Speaker(folder)
        self._look: tuple[Round, int | None] | None = None
        self._sequence: int | None = None

    def begin(self) -> None:
        """Know it anew: until we have the lock, another process of this node calls Pods gone."""
        self._speaker = Speaker(self._folder)

    def gone(self) -> frozenset[str]:
        """Return whom the service may think gone: they get no CPUs of their own."""
        known = self._told.link.holdings
        if self._speaker.forgot:
            self._speaker.hear_other(known and of_cpus(known))
        return self._speaker.state.gone

    def problems(self) -> tuple[Problem, ...]:
        """Return who runs here without its own CPUs, for it was called gone."""
        gone = self._speaker.state.gone
        late = sorted(gone and gone & self._told.pods.places().keys())
        words = "it was called gone, and that is not taken back yet"
        return tuple(Problem(about=uid, reason=CALLED_GONE, words=words) for uid in late)

    def take(self, made: Round) -> None:
        """Take what a round found; it follows what was taken before the round at the latest."""
        self._look, self._sequence = (made, self._sequence), self._told.link.sequence

    async def say(self) -> None:
        """Confirm it. Raises NoAnswerError, RefusedError, InputError, OSError: said again."""
        link, speaker = self._told.link, self._speaker
        known, before = link.holdings, speaker.state
        if self._look is None or self._look[1] is None or known is None or not link.is_heard:
            return
        made, after = self._look
        self._look = None  # a word of what was is none of what is
        now, owners = time.monotonic(), made.node.held
        state, message = said_of_cpus(before, known, self._here(made), owners, now=now)
        speaker.become(state)
        if message.is_empty and state.runs_at == before.runs_at:
            return
        verdicts = await speaker.say(link, message, after, {uid for uid, _ in of_cpus(known).held})
        self._sequence = link.sequence
        if message.here or not verdicts.taken:
            self.soon.set()

    def _here(self, made: Round) -> CpusHere:
        """Below a container nothing has to be read: its own cgroup tells of tasks there."""
        pods, own, places = self._told.pods, self._told.own_pod[1], self._told.pods.places()
        containers = {one.path for one in made.tree.cgroups if one.container}
        cut = {one.about for one in made.problems if one.reason == TOO_MANY}
        return CpusHere(
            tree=made.tree,
            planned=made.node.pods,
            places=None if pods.problem or (own and own not in places) else places,
            online=made.node.cpus.topology.cpuset,
            complete=cut <= containers,
        )
