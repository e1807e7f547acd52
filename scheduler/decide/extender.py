"""kube-scheduler's extender protocol: its question in, our answer out, as bytes of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import add
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from ledger.domain.annotations.wire import an_object, each, wrong
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import text_at
from scheduler.decide.bounded import NESTED_MAX, check_values, decode_bounded, decode_checked
from scheduler.decide.filter.filtering import Filtered
from scheduler.decide.nodes.arrays import BoolArray, IntArray

SCORE_MAX: Final = 1000
"""The best node's score; every further one has one less, so that no two are alike."""

_SCORED: Final = [f',"Score":{score}}}' for score in range(SCORE_MAX, 0, -1)]
_NAMES: Final = b',"NodeNames":['
_NULL: Final = msgspec.Raw(b"null")

LARGE_BYTES: Final = 512 << 10
"""A larger question has whole nodes, or very long names: 16,000 usual ones have half of it."""
NODES_MAX: Final = 1 << 14
"""Of a question; Kubernetes supports 5,000."""
MEMBER_BYTES_MAX: Final = 8 << 20
"""A Pod of 1.5 MiB, escaped, or the longest names of so many nodes."""
POD_VALUES_MAX: Final = 1 << 18
"""Commas of a Pod that a larger question has, outside of texts: one in six of its 1.5 MiB."""
WHOLE_NESTED_MAX: Final = 1 << 20
WHOLE_VALUES_MAX: Final = 1 << 21
"""Brackets and commas of whole nodes: 64 MiB have two thirds as many. Of victims a third."""

UNKNOWN_NODE: Final = "NodeNotInInventory"

Texts = npt.NDArray[np.object_]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderArguments:
    """
    The Pod to place, as JSON says it, and the names of the nodes that are left for it.

    Attributes:
        nodes: name -> the whole node as it came, from a kube-scheduler that wants these back.
    """

    pod: Mapping[str, object]
    node_names: Sequence[str]
    nodes: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedNodes:
    """
    The nodes of a question.

    Attributes:
        nodes: number of each node that is known, in the order asked.
        unknown: names that are not.
    """

    nodes: IntArray
    unknown: tuple[str, ...] = ()


# {"Pod": {...}, "Nodes": null, "NodeNames": ["n-0", "n-1"]}


class _Metadata(msgspec.Struct, gc=False):
    name: str


class _Node(msgspec.Struct, gc=False):
    metadata: _Metadata


class _Nodes(msgspec.Struct, gc=False):
    items: msgspec.Raw = _NULL


class _Member(Enum):
    """Members of a question, in any letter case; one is had of all others, however many come."""

    POD = "Pod"
    NODES = "Nodes"
    NODE_NAMES = "NodeNames"
    OTHER = ""

    @classmethod
    def _missing_(cls, value: object) -> _Member:
        return _FOLDED.get(str(value).lower(), cls.OTHER)


_FOLDED: Final = {one.value.lower(): one for one in _Member}


def read_arguments(body: bytes) -> ExtenderArguments:
    """Return the question of a body. Raises InputError: it is none, or beyond a bound."""
    read = arguments_of if len(body) <= LARGE_BYTES else _read_large
    arguments = read(body)
    count = len(arguments.node_names)
    if count > NODES_MAX:
        raise InputError(f"too many nodes: count={count}, most={NODES_MAX}", field="NodeNames")
    return arguments


def _read_large(body: bytes) -> ExtenderArguments:
    """Read a question of whole nodes, of which no more than their names is decoded."""
    check_values(body, WHOLE_NESTED_MAX, WHOLE_VALUES_MAX)
    found = decode_checked(body, dict[_Member, msgspec.Raw])
    pod = _member(found, dict[str, Any], _Member.POD, POD_VALUES_MAX)
    names = _member(found, object, _Member.NODE_NAMES, NODES_MAX)
    if isinstance(names, list):
        return ExtenderArguments(pod=pod, node_names=names)
    items = decode_checked(found.get(_Member.NODES, _NULL), _Nodes, "Nodes").items
    names = [one.metadata.name for one in decode_checked(items, list[_Node], "Nodes.items")]
    if len(names) > NODES_MAX:
        return ExtenderArguments(pod=pod, node_names=names)
    nodes = dict(zip(names, decode_checked(items, list[msgspec.Raw]), strict=True))
    return ExtenderArguments(pod=pod, node_names=list(nodes), nodes=nodes)


def _member(
    found: Mapping[_Member, msgspec.Raw], kind: type[T], key: _Member, values_max: int
) -> T:
    raw, field = found.get(key, _NULL), key.value
    size = memoryview(raw).nbytes
    if size > MEMBER_BYTES_MAX:
        raise InputError(f"too large: bytes={size}, most={MEMBER_BYTES_MAX}", field=field)
    check_values(_without_texts(bytes(raw)), NESTED_MAX, values_max, field)
    return decode_checked(raw, kind, field)


def _without_texts(body: bytes) -> bytes:
    """Return JSON without what is between quotes."""
    marks = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    return marks[~np.logical_xor.accumulate(marks == ord('"'))].tobytes()


def without_names(body: bytes) -> tuple[bytes, bytes] | None:
    """
    Return a message without its names, and its end with them; None where they are not its end.

    So kube-scheduler writes its questions and we our answers. If the first is an object by itself,
    the names are those of the message: a member that is nested leaves no whole object before it.
    """
    at = body.rfind(_NAMES)
    return None if at < 0 or not body.endswith(b"]}") else (body[:at] + b"}", body[at:])


def arguments_of(body: bytes) -> ExtenderArguments:
    """
    Return the question that a body says.

    Rule: kube-scheduler v1, ExtenderArgs; GPU-sharing contract C.2: names with `nodeCacheCapable`,
    whole nodes without; keys in any letter case.

    Raises:
        InputError: another shape.
    """
    arguments = decode_bounded(body, dict[str, object])
    pod = member(arguments, "Pod")
    if not isinstance(pod, dict):
        wrong("an object", pod, "Pod")
    names = member(arguments, "NodeNames")
    if names is not None:
        if not isinstance(names, list):
            wrong("a list", names, "NodeNames")
        return ExtenderArguments(pod=pod, node_names=names)
    whole = member(arguments, "Nodes")
    if whole is None:
        raise InputError("missing, as are Nodes", field="NodeNames")
    nodes = dict(each(an_object(whole, "Nodes").get("items"), "Nodes.items", _named))
    return ExtenderArguments(pod=pod, node_names=list(nodes), nodes=nodes)


def member(value: Mapping[str, T], key: str) -> T | None:
    """Return a member of a message by its key, in whatever letter case that is; None without."""
    if key in value:
        return value[key]
    folded = key.lower()
    return next((found for name, found in value.items() if name.lower() == folded), None)


def _named(value: object, path: str) -> tuple[str, object]:
    metadata = an_object(an_object(value, path).get("metadata"), f"{path}.metadata")
    return text_at(metadata, "name", f"{path}.metadata"), value


class NodeDirectory:
    """
    The names of an engine's nodes as they come and go, ready to be written.

    Args:
        names: in the engine's order, distinct.

    Attributes:
        changes: grows whenever a name means another node, or none.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._number_of = {name: number for number, name in enumerate(names)}
        self.changes = 0
        self._scattered = True
        self._quoted: Texts = np.empty(len(names), dtype=np.object_)
        self._quoted[:] = [json.dumps(name) for name in names]
        self._closed: dict[str, str] = {}

    def put(self, number: int, name: str) -> None:
        """Name a node that came, or one that is open again."""
        if number >= len(self._quoted):
            grown: Texts = np.empty(max(64, 2 * (number + 1)), dtype=np.object_)
            grown[: len(self._quoted)] = self._quoted
            self._quoted = grown
        if self._number_of.get(name) != number:
            self._quoted[number] = json.dumps(name)
            self._number_of[name] = number
            self._scattered = True
            self.changes += 1
        self._closed.pop(name, None)

    def drop(self, name: str) -> None:
        """Forget a name whose node went."""
        self.changes += self._number_of.pop(name, None) is not None
        self._closed.pop(name, None)

    def close(self, name: str, reason: str) -> None:
        """Let a node take nothing, for a reason that is about none of its Pods."""
        self.changes += self._number_of.pop(name, None) is not None
        self._closed[name] = reason

    def number(self, name: str) -> int | None:
        """Return the engine's number of a node that is open, None for any other."""
        return self._number_of.get(name)

    def numbers(self) -> frozenset[int]:
        """Return the engine's numbers of all nodes that are open."""
        return frozenset(self._number_of.values())

    def names(self) -> tuple[str, ...]:
        """Return the names of all nodes that are open."""
        return tuple(self._number_of)

    def closed(self, name: str) -> str:
        """Return why a name can't be asked about."""
        return self._closed.get(name, UNKNOWN_NODE)

    def all_closed(self) -> Mapping[str, str]:
        """Return why nodes take nothing, by name, of those that are closed."""
        return self._closed

    def ask(self, names: Sequence[str]) -> AskedNodes:
        """Return the engine's numbers of these nodes. Raises InputError: a name that is no text."""
        if self._scattered:
            # Fresh copies lie side by side in memory: a look-up of thousands then costs half.
            copies: list[str] = json.loads(json.dumps(list(self._number_of)))
            self._number_of = dict(zip(copies, self._number_of.values(), strict=True))
            self._scattered = False
        try:
            return AskedNodes(
                nodes=self._numbers(map(self._number_of.__getitem__, names), len(names))
            )
        except (KeyError, TypeError):
            if not all(isinstance(name, str) for name in names):
                raise InputError("expected texts", field="NodeNames") from None
            known = [name for name in names if name in self._number_of]
            unknown = tuple(name for name in names if name not in self._number_of)
            numbers = self._numbers(map(self._number_of.__getitem__, known), len(known))
            return AskedNodes(nodes=numbers, unknown=unknown)

    @staticmethod
    def _numbers(numbers: Iterable[int], count: int) -> IntArray:
        return np.fromiter(numbers, dtype=np.int64, count=count)

    def filter_result(
        self, asked: AskedNodes, filtered: Filtered, nodes: Mapping[str, object] | None = None
    ) -> bytes:
        """
        Write the answer of a filter: the nodes that pass, and a reason for every other.

        Rule: kube-scheduler v1, ExtenderFilterResult; Koordinator contract 13: nodes where the end
        of other Pods can't help go to `FailedAndUnresolvableNodes`.
        """
        quoted = self._quoted.take(asked.nodes)
        failed = quoted.take(filtered.failing)
        hopeless = self._reasons(filtered, failed, filtered.hopeless)
        hopeless += [
            f"{json.dumps(name)}:{json.dumps(self.closed(name))}" for name in asked.unknown
        ]
        helped = self._reasons(filtered, failed, ~filtered.hopeless)
        return _filter_result(hopeless, helped, quoted.take(filtered.passing).tolist(), nodes)

    def refusal(self, asked: AskedNodes, message: str) -> bytes:
        """Write the answer for a Pod that no node can take, whatever is on it: broken rules."""
        text = json.dumps(message)
        failed = [f"{name}:{text}" for name in self._quoted.take(asked.nodes).tolist()]
        failed += [f"{json.dumps(name)}:{text}" for name in asked.unknown]
        return _filter_result(failed, (), ())

    def priorities(self, asked: AskedNodes, filtered: Filtered) -> bytes:
        """
        Write the answer of a prioritize call: the best nodes with falling scores, no two alike.

        Rule: design section 5.2; kube-scheduler v1, HostPriorityList, where a node that is not
        listed counts 0.
        """
        best = self._quoted.take(asked.nodes.take(_ranked(filtered, SCORE_MAX))).tolist()
        if not best:
            return b"[]"
        items = ',{"Host":'.join(map(add, best, _SCORED))
        return f'[{{"Host":{items}]'.encode()

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


def failed_filter(error: str) -> bytes:
    """Write the answer of a filter that could not be made: the Pod's attempt ends with this."""
    return json.dumps({"Error": error}).encode()


def _filter_result(
    hopeless: Iterable[str],
    failed: Iterable[str],
    passing: Sequence[str],
    nodes: Mapping[str, object] | None = None,
) -> bytes:
    """Return an ExtenderFilterResult out of members and elements that are JSON already."""
    whole = ""
    if nodes is not None:
        items = [nodes[json.loads(name)] for name in passing]
        whole = f',"Nodes":{msgspec.json.encode({"items": items}).decode()}'
    return (
        f'{{"Error":"","FailedAndUnresolvableNodes":{{{",".join(hopeless)}}},'
        f'"FailedNodes":{{{",".join(failed)}}},"NodeNames":[{",".join(passing)}]{whole}}}'
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
