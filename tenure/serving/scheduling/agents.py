"""What agents and webhooks are answered on the listener, and what is ordered there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.domain.errors import InputError, LedgerError
from ledger.signing import Checkpoint, Note, PrivateKey, is_lost, sign_note, with_lost
from ledger.store.mending.recover import incarnations
from ledger.store.open import open_ledger
from ledger.store.proving.checkpoints import checkpoint_at, prove_consistency
from ledger.store.threaded import in_thread
from scheduler.service.api.acts import ActRoutes
from scheduler.service.api.agents import AgentRoutes
from scheduler.service.api.http import Route
from scheduler.service.api.refusals import RefusalRoutes
from scheduler.service.api.words import AGENT_ACCOUNT, CPUS_ACCOUNT, WEBHOOK_ACCOUNT, user_of
from scheduler.service.budgets import Budgets
from scheduler.service.witnesses import not_grown
from tenure.keys import private_key
from tenure.serving.scheduling.process import Process
from tenure.serving.scheduling.standing import Standing

SIGN_SECONDS: Final = 2.0
"""A checkpoint of this age is signed anew when somebody asks."""
RECENT: Final = 64
"""Proofs that a checkpoint has at once: agents keep one of the last 80 s. One look gives all."""
LOOKS_BURST: Final = 4
LOOK_SECONDS: Final = 20.0
"""
So many sizes without a proof an agent may ask about, and one more after so long: a look at a large
ledger takes 0.1 s. An agent has one such size after a start of the service.
"""
OURS: Final = "this service"

_log: Final = logging.getLogger("tenure.scheduler.checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """
    The ledger's tree as it is now.

    Attributes:
        lost: positions that recoveries have named as lost, first and last.
        older: size -> root of so many events, and the proof that the tree grew out of it.
    """

    checkpoint: Checkpoint
    lost: tuple[tuple[int, int], ...]
    older: dict[int, tuple[bytes, list[bytes]]]

    def lacks(self, one: Checkpoint | None) -> bool:
        """Tell whether the proof of an older one is still to be read."""
        return one is not None and one.size not in self.older and one.size <= self.checkpoint.size


def tree_of(url: str, sizes: list[int], size: int | None = None) -> Tree:
    """
    Read a ledger's tree, with proofs of its own size and of as many of these older ones as it has.

    Args:
        size: of the tree; None = all of it.

    Raises:
        LedgerError: it can't be read.
        InputError: nobody ever wrote to it, or it is shorter than that.
    """
    with open_ledger(url, mode="read") as ledger:
        checkpoint = checkpoint_at(ledger, size)
        lost = tuple((one.first, one.last) for one in incarnations(ledger)[1])
        there = {each for each in (*sizes, checkpoint.size) if each <= checkpoint.size}
        proofs = prove_consistency(ledger, there, checkpoint.size)
        older = {one.size: (one.root, list(one.proof)) for one in proofs}
    return Tree(checkpoint=checkpoint, lost=lost, older=older)


@dataclass(slots=True, eq=False)
class Checkpoints:
    """
    What agents are told of the ledger's tree.

    Attributes:
        url: of the ledger.
        key: signs, and signed what agents have kept.
        now: seconds that only grow.
        disproved: told why nothing may be granted any more.
    """

    url: str
    key: PrivateKey
    now: Callable[[], float]
    disproved: Callable[[str], None]
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tree: Tree | None = None
    _note: str = ""
    _signed_at: float = 0.0
    _looks: Budgets = field(init=False)

    def __post_init__(self) -> None:
        self._looks = Budgets(self.now, burst=LOOKS_BURST, seconds=LOOK_SECONDS)

    async def answer(self, kept: str, by: str) -> dict[str, Any]:
        """
        Return a signed checkpoint, and the proof that it grew out of what an agent has kept.

        Args:
            kept: the agent's note; empty = it has none.
            by: whose it is, for people.

        Raises:
            InputError: what was kept is no checkpoint.
            LedgerError: the ledger can't be read, or not so often for this one.
        """
        older, is_ours = None, False
        if kept:
            try:
                note = Note.parse(kept)
                older, is_ours = Checkpoint.parse(note.text), note.is_signed_by(self.key.public)
            except InputError as error:
                raise error.within("kept") from error
        async with self._one:
            tree = self._tree
            if tree is not None and tree.lacks(older) and not self._looks.take(by):
                raise LedgerError(f"asked about too many sizes: by={by}")
            await self._read(older)
            tree = self._tree
            assert tree is not None, "it was read"
        answer: dict[str, Any] = {"checkpoint": self._note, "consistency": None}
        if older is None:
            return answer
        root, proof = tree.older.get(older.size, (None, []))
        now = tree.checkpoint
        why = not_grown(older, now.origin, now.size, root, by)
        if not why:
            answer["consistency"] = [each.hex() for each in proof]
        elif is_ours and not is_lost(self._text(tree), older.size):
            self._tell(why)
        return answer

    async def _read(self, older: Checkpoint | None) -> None:
        """Have a tree that is new enough, with the proof that is asked for."""
        tree, sizes = self._tree, [] if older is None else [older.size]
        if tree is not None and self.now() - self._signed_at < SIGN_SECONDS:
            if not tree.lacks(older):
                return
            with suppress(InputError):  # it is shorter by now, which is looked at below
                more = await in_thread(tree_of, self.url, sizes, tree.checkpoint.size)
                if more.checkpoint == tree.checkpoint:
                    tree.older.update(more.older)
                    return
        before = [] if tree is None else [tree.checkpoint.size, *sorted(tree.older)[-RECENT:]]
        try:
            new = await in_thread(tree_of, self.url, [*before, *sizes])
        except InputError as error:  # nobody ever wrote to it: it was put back as it began
            if tree is not None:
                last = tree.checkpoint
                self._tell(not_grown(last, last.origin, 0, None, OURS))
            raise LedgerError(str(error)) from error
        if tree is not None:
            last = tree.checkpoint
            root, _ = new.older.get(last.size, (None, []))
            why = not_grown(last, new.checkpoint.origin, new.checkpoint.size, root, OURS)
            if why and not is_lost(self._text(new), last.size):
                self._tell(why)
        self._tree, self._signed_at = new, self.now()
        self._note = sign_note(self._text(new), self.key)

    def _text(self, tree: Tree) -> str:
        return with_lost(tree.checkpoint.text(), tree.lost)

    def _tell(self, why: str) -> None:
        _log.error("the ledger is not the one that was signed", extra={"reason": why})
        self.disproved(why)


def agent_routes(process: Process, standing: Standing) -> list[Route]:
    """
    Return the routes of agents, of acts and of webhooks.

    Whoever records what ends answers them, with the Lease or without: an agent that is not heard
    there counts as silent.
    """
    live, why_not = process.live, process.leading.why_unrecorded
    if process.options.api is None:
        return []
    namespace = process.options.namespace

    def disproved(why: str) -> None:
        # Else nothing is granted, and who takes it over looks for himself.
        if process.leading.epoch:
            standing.disproved = process.freshness.quarantine = why

    checkpoints = Checkpoints(
        process.options.ledger,
        private_key(process.options.ledger_key),
        now=process.clock.monotonic,
        disproved=disproved,
    )

    async def checkpoint(kept: str, by: str) -> Mapping[str, Any]:
        if why := process.leading.why_unshown():
            raise LedgerError(why)
        return await checkpoints.answer(kept, by)

    agents = AgentRoutes(
        live.agents,
        live.view,
        proofs=process.signing(live.view),
        user=user_of(AGENT_ACCOUNT, namespace),
        reader=user_of(CPUS_ACCOUNT, namespace),
        why_not=why_not,
        checkpoint=checkpoint,
    )
    acts = ActRoutes(live.releasing, live.guard.gate, live.agents, process.objects, why_not=why_not)
    webhook = user_of(WEBHOOK_ACCOUNT, namespace)
    refusals = RefusalRoutes(
        process.recorder, live.books.recorded, process.clock, user=webhook, why_not=why_not
    )
    words = "Refusals that webhooks told of, by what became of them."
    process.metrics.count("tenure_admission_refusals", words, "what", refusals.counts.copy)
    return [*agents.routes(), *acts.routes(), *refusals.routes()]
