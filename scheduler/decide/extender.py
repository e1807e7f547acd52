"""kube-scheduler's extender protocol: its question in, our answer out, as bytes of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.annotations.wire import an_object, wrong
from ledger.domain.errors import InputError
from scheduler.decide.filter.filtering import Filtered
from scheduler.decide.nodes.arrays import BoolArray, IntArray

SCORE_MAX: Final = 1000
"""The best node's score; every further one has one less, so that no two are alike."""

UNKNOWN_NODE: Final = "NodeNotInInventory"

Texts = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderArguments:
    """The Pod to place, as JSON says it, and the names of the nodes that are left for it."""

    pod: Mapping[str, object]
    node_names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    The nodes of a question.

    Attributes:
        nodes: number of each node that is known, in the order asked.
        unknown: names that are not.
    """

    nodes: IntArray
    unknown: tuple[str, ...] = ()


# {"Pod": {...}, "Nodes": null, "NodeNames": ["n-0", "n-1"]}


def read_arguments(body: bytes) -> ExtenderArguments:
    """
    Read the body of a filter or prioritize call.

    Raises:
        InputError: no such JSON, or whole nodes instead of names.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}") from error
    return arguments_of(value)


def arguments_of(value: object) -> ExtenderArguments:
    """
    Return the question that a body says which someone has parsed.

    Rule: kube-scheduler v1, ExtenderArgs with `nodeCacheCapable`: names, never whole nodes.

    Raises:
        InputError: another shape, or whole nodes instead of names.
    """
    arguments = an_object(value, "")
    names = arguments.get("NodeNames")
    if names is None:
        raise InputError("missing; set nodeCacheCapable on the extender", field="NodeNames")
    if not isinstance(names, list):
        wrong("a list", names, "NodeNames")
    pod = arguments.get("Pod")
    if not isinstance(pod, dict):
        wrong("an object", pod, "Pod")
    return ExtenderArguments(pod=pod, node_names=names)


class NodeDirectory:
    """
    The names of an engine's nodes, ready to be written.

    Args:
        names: in the engine's order, distinct.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # Fresh copies lie side by side in memory: a look-up of thousands then costs half.
        copies: list[str] = json.loads(json.dumps(list(names)))
        self._number_of = {name: number for number, name in enumerate(copies)}
        self._quoted: Texts = np.empty(len(names), dtype=np.object_)
        self._quoted[:] = [json.dumps(name) for name in names]

    def ask(self, names: Sequence[str]) -> Asked:
        """
        Return the engine's numbers of these nodes.

        Raises:
            InputError: a name that is no text.
        """
        try:
            return Asked(nodes=self._numbers(map(self._number_of.__getitem__, names), len(names)))
        except KeyError:
            known = [name for name in names if name in self._number_of]
            unknown = tuple(name for name in names if name not in self._number_of)
            numbers = self._numbers(map(self._number_of.__getitem__, known), len(known))
            return Asked(nodes=numbers, unknown=unknown)
        except TypeError as error:
            raise InputError("expected texts", field="NodeNames") from error

    @staticmethod
    def _numbers(numbers: Iterable[int], count: int) -> IntArray:
        return np.fromiter(numbers, dtype=np.int64, count=count)

    def filter_result(self, asked: Asked, filtered: Filtered) -> bytes:
        """
        Write the answer of a filter: the nodes that pass, and a reason for every other.

        Rule: kube-scheduler v1, ExtenderFilterResult; Koordinator contract 13: nodes where the end
        of other Pods can't help go to `FailedAndUnresolvableNodes`.
        """
        quoted = self._quoted.take(asked.nodes)
        failed = quoted.take(filtered.failing)
        hopeless = self._reasons(filtered, failed, filtered.hopeless)
        hopeless += [f"{json.dumps(name)}:{_UNKNOWN_TEXT}" for name in asked.unknown]
        helped = self._reasons(filtered, failed, ~filtered.hopeless)
        return _filter_result(hopeless, helped, quoted.take(filtered.passing).tolist())

    def refusal(self, asked: Asked, message: str) -> bytes:
        """Write the answer for a Pod that no node can take, whatever is on it: broken rules."""
        text = json.dumps(message)
        failed = [f"{name}:{text}" for name in self._quoted.take(asked.nodes).tolist()]
        failed += [f"{json.dumps(name)}:{text}" for name in asked.unknown]
        return _filter_result(failed, (), ())

    def priorities(self, asked: Asked, filtered: Filtered) -> bytes:
        """
        Write the answer of a prioritize call: the best nodes with falling scores, no two alike.

        Rule: design section 5.2; kube-scheduler v1, HostPriorityList, where a node that is not
        listed counts 0.
        """
        best = self._quoted.take(asked.nodes.take(_ranked(filtered, SCORE_MAX))).tolist()
        scores = range(SCORE_MAX, SCORE_MAX - len(best), -1)
        items = [
            f'{{"Host":{name},"Score":{score}}}' for name, score in zip(best, scores, strict=True)
        ]
        return f"[{','.join(items)}]".encode()

    @staticmethod
    def _reasons(filtered: Filtered, failed: Texts, which: BoolArray) -> list[str]:
        """Return `"name":"reason"` for the chosen of the failing nodes, those alike in one text."""
        parts = []
        codes = np.where(which, filtered.codes, -1)
        used = np.flatnonzero(np.bincount(codes + 1)).tolist()
        for code in used:
            if code == 0:
                continue
            text = json.dumps(filtered.reasons[code - 1])
            names = failed[codes == code - 1].tolist()
            parts.append(f":{text},".join(names) + f":{text}")
        return parts


_UNKNOWN_TEXT: Final = json.dumps(UNKNOWN_NODE)


def _filter_result(hopeless: Iterable[str], failed: Iterable[str], passing: Iterable[str]) -> bytes:
    """Return an ExtenderFilterResult out of members and elements that are JSON already."""
    return (
        f'{{"Error":"","FailedAndUnresolvableNodes":{{{",".join(hopeless)}}},'
        f'"FailedNodes":{{{",".join(failed)}}},"NodeNames":[{",".join(passing)}]}}'
    ).encode()


def _ranked(filtered: Filtered, most: int) -> IntArray:
    """Return the best of the passing nodes, best first; equals in the order asked."""
    passing = filtered.passing
    count = len(passing)
    keys = filtered.ratings * count + np.arange(count - 1, -1, -1)
    if count > most:
        top = np.argpartition(keys, count - most)[count - most :]
        passing, keys = passing.take(top), keys.take(top)
    ranked: IntArray = passing.take(np.argsort(-keys, kind="stable"))
    return ranked
