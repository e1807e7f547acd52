"""Rounds of binding: look, plan, write, and look again where the kernel refused something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from agent.cpus.applying import Applied, apply
from agent.cpus.nri import Standing
from agent.cpus.tree import Kubepods
from agent.decide.cgroup_plan import plan, plan_removal
from agent.decide.cgroups import CgroupTree, Plan, Problem, UnboundReason, Write
from agent.decide.wanted_cpus import NodePlanned
from agent.durable import write_durably
from agent.report.condition import Condition

MARK: Final = "cpus-bound"
"""The file of `--state` that is there while something that we wrote may be in force."""
SETTLE_SECONDS: Final = 5.0
"""A container that the runtime was told to bind may be made so long after."""
TRIES_MAX: Final = 5
REWRITES_MAX: Final = 5
REWRITE_SECONDS: Final = 60.0
BOUND, NOT_BOUND = "Bound", "CPUsNotBound"
REWRITTEN, TOO_MANY = "RewrittenByAnother", "TooManyCgroups"
CALLED_GONE: Final = "CalledGone"
_NOTED: Final = {UnboundReason.NO_PARTITION, Standing.AWAY, Standing.OFF}
_WORDS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round found, planned and did."""

    tree: CgroupTree
    node: NodePlanned
    plan: Plan
    applied: Applied
    problems: tuple[Problem, ...]

    def in_words(self, names: Callable[[str], str]) -> list[str]:
        """Return the problems; `names` says of a UID whose it is."""
        return [f"{names(one.about)}: {one.reason}: {one.words}" for one in self.problems]

    def condition(self, names: Callable[[str], str]) -> Condition:
        """Return what the Node is told; `names` as for `in_words`."""
        said = self.in_words(names)
        listed = f"{len(said)} in all: {'; '.join(said[:_WORDS_MAX])}"
        if any(one.reason not in _NOTED for one in self.problems):
            return Condition(status="False", reason=NOT_BOUND, message=listed)
        fact = "containers run on the CPUs that are theirs"
        note = f", with this to note: {listed}" if said else ""
        return Condition(status="True", reason=BOUND, message=fact + note)


@dataclass(slots=True, kw_only=True)
class Binder:
    """
    Binds the containers of a node; it blocks for as long as the kernel takes.

    Attributes:
        state: folder of the mark.
    """

    tree: Kubepods
    state: Path
    clock: Callable[[], float]
    _wrote: dict[tuple[str, str], tuple[str, list[float]]] = field(default_factory=dict)
    _bound_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin: another process may have bound until now."""
        self._bound_at = self.clock()

    @property
    def is_marked(self) -> bool:
        """Tell whether something that we wrote may be in force."""
        return (self.state / MARK).exists()

    def round(
        self,
        node: NodePlanned,
        *,
        allowed: bool | None,
        whole: bool = False,
        doubted: Iterable[Problem] = (),
    ) -> Round:
        """
        Bring cgroups to what the node's Pods are to have; give back what is not allowed any more.

        Args:
            allowed: None = only plan.
            whole: look at every cgroup.

        Raises:
            InputError: the tree can't be read.
            OSError: the mark can't be written; nothing else was.
        """
        removes = allowed is False and self.is_marked
        planner = plan_removal if removes else plan
        applied, left, done = Applied(), list[Write](), list[Write]()
        for _ in range(TRIES_MAX):
            tree, whole = self.tree.look(whole=whole or removes), False
            made = planner(tree, node)
            if not (allowed or removes):
                break
            left = [one for one in made.writes if self._is_taken_back(one)]
            tried = [one for one in made.writes if one not in left]
            if tried and not self.is_marked:
                write_durably(self.state / MARK, b"")
            applied = apply(self.tree, tried)
            self._note(applied.done, tree)
            done += applied.done
            if not applied.refused:
                break
        if made.writes or not removes:
            self._bound_at = self.clock()
        elif self.clock() - self._bound_at >= SETTLE_SECONDS:
            (self.state / MARK).unlink(missing_ok=True)
        rewritten = (Problem(about=str(write), reason=REWRITTEN) for write in left)
        cut = (Problem(about=one or "kubepods", reason=TOO_MANY) for one in sorted(self.tree.cut))
        return Round(
            tree=tree,
            node=node,
            plan=made,
            applied=replace(applied, done=tuple(done)),
            problems=(*doubted, *made.unbound, *applied.refused, *rewritten, *cut),
        )

    def _is_taken_back(self, write: Write) -> bool:
        """Tell whether somebody else keeps a file otherwise: two that fight would never end."""
        value, times = self._wrote.get((write.path, write.file), ("", []))
        recent = [one for one in times if one >= self.clock() - REWRITE_SECONDS]
        return value == write.value and len(recent) > REWRITES_MAX

    def _note(self, done: Iterable[Write], tree: CgroupTree) -> None:
        for one in done:
            value, times = self._wrote.get((one.path, one.file), ("", []))
            kept = times[-REWRITES_MAX:] if value == one.value else []
            self._wrote[one.path, one.file] = (one.value, [*kept, self.clock()])
        there = {one.path for one in tree.cgroups}
        self._wrote = {key: one for key, one in self._wrote.items() if key[0] in there}
