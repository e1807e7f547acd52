"""
Which Pods of a node have to go for another, of those that may: as few and as cheap as can be.

Rule: GPU-sharing contract C.5, "Ours"; docs/adr/0041.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from math import inf
from typing import Final

from ledger.domain.log.state import Holding
from ledger.domain.request.requests import PodRequest
from scheduler.service.kept import PodSeen
from scheduler.service.view import ClusterView
from scheduler.whatif.preemption import Cost, Search, cost_of

TRIES_MAX: Final = 300
"""
Sets of victims that are tried for one question, on all nodes together: about 0.2 s. Then the nodes
that were not looked at are left out, and no smaller sets are looked for.
"""
TRIES_WITHOUT_ANSWER_MAX: Final = 3_000
"""Sets that are tried while no node has an answer: about 2 s, a fifth of `httpTimeout`."""


ENDS_MAX: Final = 10  # Pods that we end by ourselves within a minute; no set has more


@dataclass(slots=True)
class Tries:
    """How many sets of victims were tried for one question."""

    spent: int = 0


@dataclass(frozen=True, slots=True)
class Candidates:
    """
    The Pods that hold something on a node, as far as they may go for a Pod of a priority.

    Attributes:
        keeps: kube-scheduler's victims all go: it counts what holdings do not.
        ending: whose end is due there anyway; what they hold counts as free.
    """

    view: ClusterView
    name: str
    priority: int
    together: Callable[[str], frozenset[str]]
    tries: Tries
    keeps: bool
    ending: frozenset[str]

    def victims(self, request: PodRequest, wanted: Sequence[str]) -> list[str]:
        """Return which Pods have to go for one to fit, the highest first; none: that is no help."""
        if self.view.directory.number(self.name) is None:
            return []
        gone = self._with_gangs(wanted)
        if gone is None:
            return []
        if not self._fits(request, gone):
            gone = self._least(request, gone)
        return list(gone) if gone == list(wanted) else self._highest_first(gone)

    def _fits(self, request: PodRequest, gone: Collection[str]) -> bool:
        self.tries.spent += 1
        return fits_without(self.view, self.name, request, self.ending.union(gone))

    def broken(self, gone: Sequence[str], more: Sequence[str]) -> int:
        """Return how many of further victims break a disruption budget beside the others."""
        return self.view.disruptions.broken(self._known(gone), self._known(more))

    def _with_gangs(self, pods: Sequence[str]) -> list[str] | None:
        """Return these victims and the rest of their gangs, None where not all of one may go."""
        gone = list(pods)
        for uid in pods:
            others = self.together(uid) - frozenset(gone)
            if not all(map(self._may_go, others)):
                return None
            gone += sorted(others)
        return gone

    def _may_go(self, uid: str) -> bool:
        pod = self.view.pods.seen.get(uid)
        is_here = pod is not None and pod.node == self.name and not (pod.ended or pod.leaving)
        return pod is not None and is_here and pod.priority < self.priority

    def _least(self, request: PodRequest, wanted: Sequence[str]) -> list[str]:
        """Return which of all that may go can't stay for the Pod to fit; none: that is no help."""
        holdings = self._holdings()
        ordered, anyway = self._able(holdings, wanted)
        least = _sum(holdings, wanted)
        going = set(chain(*ordered))
        with self.view.without(self.name, self.ending.union(anyway, going)) as lifted:
            self.tries.spent += 1 + len(ordered)
            if not self.view.fits(request, self.name):
                return []
            for crew in ordered:
                if least - _sum(holdings, (*anyway, *going.difference(crew))):
                    continue  # kube-scheduler wants more back
                lifted.put_back(crew)
                if self.view.fits(request, self.name):
                    going.difference_update(crew)
                else:
                    lifted.lift(crew)
        return [*anyway, *sorted(going)]

    def smaller(
        self, request: PodRequest, wanted: Sequence[str], found: Sequence[str]
    ) -> list[str]:
        """Return the victims that were found, or fewer or cheaper ones, while tries are left."""
        wanted = self._with_gangs(wanted) or []
        if len(found) <= len(wanted) or self.tries.spent >= TRIES_MAX:
            return list(found)
        holdings = self._holdings()
        ordered, anyway = self._able(holdings, wanted)
        least, cost = _sum(holdings, wanted), self._cost(found)
        ordered.reverse()
        for size in range(1, min(len(ordered) + 1, len(found) - len(anyway))):
            if size + len(anyway) < len(wanted):
                continue  # kube-scheduler spared all that it could
            for crews in combinations(ordered, size):
                if self.tries.spent >= TRIES_MAX:
                    return list(found)
                self.tries.spent += 1
                gone = [*anyway, *chain(*crews)]
                is_enough = not least - _sum(holdings, gone)
                if is_enough and self._cost(gone) < cost and self._fits(request, gone):
                    return self._highest_first(gone)
        return list(found)

    def look(self, request: PodRequest, search: Search[str], able: Callable[[str], bool]) -> bool:
        """Look here for cheaper Pods, of those able to go; tell whether. No budget is broken."""
        if self.view.directory.number(self.name) is None:
            return False
        crews, _ = self._able(self._holdings(), ())

        def cost(gone: Sequence[str]) -> Cost | None:
            price = self._cost(gone)
            return None if price[0] or len(gone) > ENDS_MAX else price

        crews = [crew for crew in crews if all(map(able, crew))]
        return search.look(crews, partial(self._fits, request), cost)

    def _cost(self, gone: Sequence[str]) -> Cost:
        """Return what kube-scheduler compares nodes by: the least is the best."""
        since = {uid: each.opened_position for uid, each in self._holdings().items()}
        known = ((pod.priority, since.get(pod.uid, 0)) for pod in self._known(gone))
        return self.broken((), gone), *cost_of(known)

    def _able(
        self, holdings: Mapping[str, Holding], wanted: Sequence[str]
    ) -> tuple[list[tuple[str, ...]], list[str]]:
        """
        Return which Pods may go, each alone or with all of its gang, the dearest first.

        With them those of kube-scheduler's victims that go anyway.
        """
        crews = {tuple(sorted(self.together(each))) for each in holdings}
        able = {crew for crew in crews if all(map(self._may_go, crew))}
        if self.keeps:
            able = {crew for crew in able if not set(crew).issubset(wanted)}
        may_go = frozenset(chain(*able))
        return self._dearest_first(able, holdings), [uid for uid in wanted if uid not in may_go]

    def _dearest_first(
        self, crews: Collection[tuple[str, ...]], holdings: Mapping[str, Holding]
    ) -> list[tuple[str, ...]]:
        """Return those whose end costs most in front: they break budgets that others have spent."""
        pods = self.view.pods.seen

        def worth(crew: tuple[str, ...]) -> tuple[int, int, int, tuple[str, ...]]:
            found = [holdings[each] for each in crew if each in holdings]
            since = min(each.opened_position for each in found)
            return max(pods[each].priority for each in crew), -sum(map(_size, found)), -since, crew

        cheapest_first = sorted(crews, key=worth)
        broken = self.view.disruptions.broken_in_turn(map(self._known, cheapest_first))
        breaks = dict(zip(cheapest_first, broken, strict=True))
        cheapest_first.reverse()
        return sorted(cheapest_first, key=lambda crew: -breaks[crew])

    def _highest_first(self, uids: Sequence[str]) -> list[str]:
        """Return victims by falling priority; one of which nothing is known stays in front."""
        known = self.view.pods.seen
        return sorted(uids, key=lambda uid: -known[uid].priority if uid in known else -inf)

    def _known(self, uids: Sequence[str]) -> list[PodSeen]:
        known = self.view.pods.seen
        return [known[uid] for uid in uids if uid in known]

    def _holdings(self) -> dict[str, Holding]:
        return {holding.pod_uid: holding for holding in holdings_on(self.view, self.name)}


def holdings_on(view: ClusterView, name: str) -> Collection[Holding]:
    """Return what Pods hold on the node of a name."""
    uid = view.uid(name)
    return () if uid is None else view.holdings(uid).values()


def fits_without(view: ClusterView, name: str, request: PodRequest, gone: Collection[str]) -> bool:
    """Tell whether a Pod fits on a node with these gone."""
    if view.uid(name) is None:
        return False
    with view.without(name, gone):
        return view.fits(request, name, gone)


def _size(holding: Holding) -> int:
    return sum(share.core_percent for share in holding.shares) + len(holding.cpuset)


def _sum(holdings: Mapping[str, Holding], uids: Collection[str]) -> Counter[str]:
    """Count what these give back of all that kube-scheduler may count."""
    total: Counter[str] = Counter()
    for holding in (holdings[uid] for uid in uids if uid in holdings):
        total["cpu"] += holding.cpu_milli
        total["memory"] += holding.memory_bytes
        for share in holding.shares:
            total[f"{share.device_type} number"] += 1
            total[f"{share.device_type} core"] += share.core_percent
            total[f"{share.device_type} memory"] += share.memory_bytes
    return total
