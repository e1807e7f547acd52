"""`tenure serve cpus --nri`: the runtime binds containers as it makes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from agent.cpus.binder import Round
from agent.cpus.nri import Nri, Snapshot, snapshot_of
from agent.cpus.nri_messages import Call, Happening
from agent.cpus.switch import Switch
from agent.decide.cgroup_plan import with_strays
from agent.decide.cgroups import CgroupVersion, Problem
from agent.decide.wanted_cpus import wanted_of
from agent.kubelet.watch import PodsHere

_MOVES: Final = {
    Happening.RUN_POD_SANDBOX,
    Happening.STOP_POD_SANDBOX,
    Happening.REMOVE_CONTAINER,
}


class ByRuntime:
    """Has the runtime bind containers as the last round was planned, where that is allowed."""

    def __init__(self, path: Path, switch: Switch, pods: PodsHere, soon: asyncio.Event) -> None:
        self.nri = Nri(path, self._act)
        self._switch, self._pods, self._soon = switch, pods, soon
        self._publishes = False

    def publish(self, made: Round) -> None:
        """Take what a round was planned by, once it is written: a Pod's cgroup comes first."""
        node, snapshot = made.node, Snapshot()
        if self._switch.allowed:
            self._publishes = True
            binds = node.cpus.kubelet_static or not node.binds_memory
            v1 = made.tree.version is CgroupVersion.V1
            wanted = wanted_of(with_strays(made.tree.cgroups, node))
            snapshot = snapshot_of(wanted, kubelet_binds=binds, v1=v1)
        if self._publishes:
            self.nri.publish(snapshot)

    def withdraw(self) -> None:
        """Bind nobody from now on: what is bound is about to be given back."""
        if self._publishes:
            self.nri.publish(Snapshot())

    def problems(self) -> tuple[Problem, ...]:
        """Return why the runtime binds nobody, though it should."""
        state = self.nri.state
        return (state,) if self._switch.allowed and state.words else ()

    def _act(self, call: Call | None) -> None:
        """Have a Pod that starts planned for, if it can be before its containers are made."""
        if call is None or call.happening in _MOVES:
            self._pods.somebody_came()
            self._soon.set()
