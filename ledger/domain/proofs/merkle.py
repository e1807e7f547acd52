"""
The Merkle tree over the events: one root that commits to every leaf, and short proofs against it.

Rule: RFC 6962 section 2.1 (hashing), RFC 9162 sections 2.1.3 and 2.1.4 (proofs). The leaves are the
events' own leaf hashes; the event at position p is the leaf with index p - 1.

Worked example: seven leaves d0..d6, split at the largest power of two below the count each time.

    root = (k, l)            k: 4 leaves, i: 2, d6: 1; these three are all that is kept of it
       k = (g, h)            (`CompactRange`)
          g = (d0, d1)
          h = (d2, d3)
       l = (i, d6)
          i = (d4, d5)

>>> d = [hashlib.sha256(bytes([number])).digest() for number in range(7)]
>>> read = lambda level, index: perfect_root(d[index << level : index + 1 << level])
>>> g, h, i = read(1, 0), read(1, 1), read(1, 2)
>>> k, l = node_hash(g, h), node_hash(i, d[6])
>>> range_root(read, 0, 7) == node_hash(k, l)
True
>>> compact_range(read, 7).to_bytes() == k + i + d[6]
True

What shows that d3 is in the tree is what it meets on its way up: its neighbour, g, and l.

>>> path = inclusion_proof(read, 3, 7)
>>> path == [d[2], g, l]
True
>>> includes(leaf=d[3], index=3, size=7, root=node_hash(k, l), proof=path)
True

What shows that the tree of six grew into that of seven: i, which both have, then what is new beside
it, then k.

>>> consistency_proof(read, 6, 7) == [i, d[6], k]
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
"""The root of a tree without leaves."""

_NODE: Final = b"\x01"
_sha256 = hashlib.sha256

NodeReader = Callable[[int, int], bytes]
"""
(level, index) -> the root of the perfect subtree of 2**level leaves, the `index`th from the left.
"""


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return SHA-256(0x01 || left || right): the hash of an inner node (RFC 6962 section 2.1)."""
    return _sha256(_NODE + left + right).digest()


class CompactRange:
    """
    A tree that only grows, as little of it as its root needs: the roots of its perfect subtrees.

    There is one for every bit that is set in the size, largest first, so at most 64.
    """

    __slots__ = ("_roots", "size")

    def __init__(self, size: int = 0, hashes: bytes = b"") -> None:
        """Take a range as `to_bytes` gave it. Raises ValueError: too few or too many hashes."""
        if size < 0 or len(hashes) != size.bit_count() * HASH_BYTES:
            raise ValueError(f"not a compact range: size={size}, bytes={len(hashes)}")
        self.size = size
        self._roots = split_hashes(hashes)

    def append(self, root: bytes, level: int = 0) -> None:
        """Add a leaf hash, or the root over 2**level leaves, which divide the size."""
        roots, size = self._roots, self.size >> level
        while size & 1:
            root = _sha256(_NODE + roots.pop() + root).digest()
            size >>= 1
        roots.append(root)
        self.size += 1 << level

    def root(self) -> bytes:
        """Return the root of the whole tree."""
        if not self._roots:
            return EMPTY_ROOT
        root = self._roots[-1]
        for left in reversed(self._roots[:-1]):
            root = node_hash(left, root)
        return root

    def to_bytes(self) -> bytes:
        """Return the roots of the perfect subtrees, largest first, 32 bytes each."""
        return b"".join(self._roots)


def split_hashes(hashes: bytes) -> list[bytes]:
    """Return hashes that were written one behind the other."""
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def perfect_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root above a number of hashes that is a power of two."""
    assert hashes, "an empty tree has no perfect root"
    assert len(hashes) & (len(hashes) - 1) == 0, len(hashes)
    row = list(hashes)
    while len(row) > 1:
        row = [
            _sha256(_NODE + left + right).digest()
            for left, right in zip(row[::2], row[1::2], strict=True)
        ]
    return row[0]


def range_root(read: NodeReader, start: int, end: int) -> bytes:
    """
    Return the root over the leaves start..end-1, MTH(D[start:end]).

    Rule: RFC 9162 section 2.1.1. `start` is a multiple of the largest power of two below the count,
    as it is for every range that a tree is split into.
    """
    count = end - start
    if count == 0:
        return EMPTY_ROOT
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return read(level, start >> level)
    middle = start + _left_count(count)
    return node_hash(range_root(read, start, middle), range_root(read, middle, end))


def compact_range(read: NodeReader, size: int) -> CompactRange:
    """Return the compact range of the first `size` leaves of a tree."""
    start, roots = 0, []
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            roots.append(read(level, start >> level))
            start += 1 << level
    return CompactRange(size, b"".join(roots))


def inclusion_proof(read: NodeReader, index: int, size: int) -> list[bytes]:
    """Return the audit path of the leaf `index`, lowest hash first (RFC 9162 section 2.1.3.1)."""
    assert 0 <= index < size, (index, size)
    start, end = 0, size
    path: list[bytes] = []
    while end - start > 1:
        middle = start + _left_count(end - start)
        if index < middle:
            path.append(range_root(read, middle, end))
            end = middle
        else:
            path.append(range_root(read, start, middle))
            start = middle
    return path[::-1]


def consistency_proof(read: NodeReader, first: int, second: int) -> list[bytes]:
    """
    Return the proof that the tree of `first` leaves is a prefix of the one of `second`.

    Rule: RFC 9162 section 2.1.4.1. Empty for equal sizes, and from the empty tree, which is a
    prefix of every tree.
    """
    assert 0 <= first <= second, (first, second)
    start, end = 0, second
    path: list[bytes] = []
    while first not in (0, end):
        middle = start + _left_count(end - start)
        if first <= middle:
            path.append(range_root(read, middle, end))
            end = middle
        else:
            path.append(range_root(read, start, middle))
            start = middle
    if start > 0:
        path.append(range_root(read, start, first))
    return path[::-1]


def includes(*, leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Tell whether `proof` shows `leaf` to be a tree's `index`th (RFC 9162 section 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    node, last, value = index, size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            value = node_hash(each, value)
            node, last = _to_odd(node, last)
        else:
            value = node_hash(value, each)
        node, last = node >> 1, last >> 1
    return last == 0 and value == root


def is_prefix(
    *, first: int, first_root: bytes, second: int, second_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Tell whether `proof` shows that `second` grew out of `first` (RFC 9162 section 2.1.4.2)."""
    if not 0 <= first <= second:
        return False
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == EMPTY_ROOT
    path = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    if not path or not proof:
        return False
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = path[0]
    for each in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(each, old), node_hash(each, new)
            node, last = _to_odd(node, last)
        else:
            new = node_hash(new, each)
        node, last = node >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root


def _left_count(count: int) -> int:
    """Return the largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def _to_odd(node: int, last: int) -> tuple[int, int]:
    """Climb until the node is a right child or the leftmost of its row."""
    while node and not node & 1:
        node, last = node >> 1, last >> 1
    return node, last
