"""The tree is the one of RFC 6962, and its proofs prove nothing but what is so."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from ledger.domain.proofs.merkle import (
    EMPTY_ROOT,
    CompactRange,
    compact_range,
    consistency_proof,
    includes,
    inclusion_proof,
    is_prefix,
    node_hash,
    perfect_root,
    range_root,
)

# The eight leaves and the roots that the Certificate Transparency projects test with.
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
CT_ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
SIZES = range(1, 65)


def leaf(data: bytes) -> bytes:
    """Return the leaf hash of some data."""
    return hashlib.sha256(b"\x00" + data).digest()


LEAVES = [leaf(bytes([number])) for number in range(64)]


def read(level: int, index: int) -> bytes:
    """Read a node of the tree over LEAVES."""
    return perfect_root(LEAVES[index << level : (index + 1) << level])


def plain_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root by the definition, word for word."""
    if len(leaves) == 0:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    left, right = plain_root(leaves[:k]), plain_root(leaves[k:])
    return hashlib.sha256(b"\x01" + left + right).digest()


def grown(size: int) -> CompactRange:
    """Return the range after appending that many leaves."""
    tree = CompactRange()
    for each in LEAVES[:size]:
        tree.append(each)
    return tree


def flips(value: bytes) -> list[bytes]:
    """Return the value with each byte changed, one at a time."""
    return [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(len(value))]


@pytest.mark.parametrize("size", range(1, 9), ids=lambda size: f"the root over {size} leaves")
def test_the_roots_are_those_of_certificate_transparency(size: int) -> None:
    """The eight-leaf vectors of RFC 6962's implementations hold at every size."""
    tree = CompactRange()
    for data in CT_LEAVES[:size]:
        tree.append(leaf(data))

    assert tree.root().hex() == CT_ROOTS[size - 1]


def test_an_empty_tree_has_the_hash_of_nothing() -> None:
    """RFC 6962: the hash of an empty list is the hash of an empty text."""
    assert CompactRange().root() == EMPTY_ROOT == hashlib.sha256(b"").digest()
    assert range_root(read, 0, 0) == EMPTY_ROOT


def test_a_range_is_the_tree_at_every_size() -> None:
    """Grown, read from nodes, or taken from its bytes: the same root by the definition."""
    for size in range(65):
        tree = grown(size)
        again = CompactRange(size, tree.to_bytes())

        assert tree.root() == plain_root(LEAVES[:size]) == range_root(read, 0, size)
        assert compact_range(read, size).to_bytes() == tree.to_bytes()
        assert len(tree.to_bytes()) == 32 * size.bit_count()
        again.append(leaf(b"next"))
        tree.append(leaf(b"next"))
        assert again.root() == tree.root()


def test_bytes_of_another_size_are_no_range() -> None:
    """A range that can't belong to the size is refused."""
    with pytest.raises(ValueError, match="not a compact range: size=3, bytes=32"):
        CompactRange(3, bytes(32))


def test_every_leaf_is_proved_at_every_size() -> None:
    """Each index in each tree of up to 64 leaves has a proof, and only for itself."""
    for size in SIZES:
        root = grown(size).root()
        for index in range(size):
            proof = inclusion_proof(read, index, size)
            ours = LEAVES[index]
            assert len(proof) <= (size - 1).bit_length()
            assert includes(leaf=ours, index=index, size=size, root=root, proof=proof)
            for other in range(size):
                assert (other == index) == includes(
                    leaf=ours, index=other, size=size, root=root, proof=proof
                )


def test_every_prefix_is_proved_at_every_size() -> None:
    """Each pair of sizes up to 64 has a proof that one grew out of the other."""
    for second in range(65):
        new = grown(second).root()
        for first in range(second + 1):
            old = grown(first).root()
            proof = consistency_proof(read, first, second)
            assert is_prefix(
                first=first, first_root=old, second=second, second_root=new, proof=proof
            )
            if 0 < first < second:
                assert not is_prefix(
                    first=first, first_root=new, second=second, second_root=new, proof=proof
                )


def test_the_roots_shown_by_a_proof_are_the_only_ones() -> None:
    """A changed byte in a leaf, a root or a proof, a hash more or less: nothing is proved."""
    for size in (1, 2, 3, 7, 8, 21):
        root = grown(size).root()
        for index in range(size):
            proof = inclusion_proof(read, index, size)
            ours = LEAVES[index]
            wrong = [
                [*proof[:at], each, *proof[at + 1 :]]
                for at in range(len(proof))
                for each in flips(proof[at])
            ]
            for other in [*wrong, [*proof, bytes(32)], *([proof[:-1]] if proof else [])]:
                assert not includes(leaf=ours, index=index, size=size, root=root, proof=other)
            for changed in flips(root):
                assert not includes(leaf=ours, index=index, size=size, root=changed, proof=proof)
            for changed in flips(ours):
                assert not includes(leaf=changed, index=index, size=size, root=root, proof=proof)


def test_a_changed_consistency_proof_proves_nothing() -> None:
    """A changed byte in a root or a proof, a hash more or less: not a prefix."""
    for first, second in ((1, 2), (3, 7), (4, 8), (6, 8), (8, 21), (21, 64)):
        old, new = grown(first).root(), grown(second).root()
        proof = consistency_proof(read, first, second)
        wrong = [
            [*proof[:at], each, *proof[at + 1 :]]
            for at in range(len(proof))
            for each in flips(proof[at])
        ]
        for other in [*wrong, [*proof, bytes(32)], proof[:-1], []]:
            assert not is_prefix(
                first=first, first_root=old, second=second, second_root=new, proof=other
            )
        for changed in flips(old):
            assert not is_prefix(
                first=first, first_root=changed, second=second, second_root=new, proof=proof
            )
        for changed in flips(new):
            assert not is_prefix(
                first=first, first_root=old, second=second, second_root=changed, proof=proof
            )


def test_what_is_outside_of_the_tree_is_not_proved() -> None:
    """Indices and sizes that can't be are an answer of no, not an error."""
    root = grown(4).root()
    assert not includes(leaf=LEAVES[0], index=4, size=4, root=root, proof=[])
    assert not includes(leaf=LEAVES[0], index=-1, size=4, root=root, proof=[])
    assert not is_prefix(first=5, first_root=root, second=4, second_root=root, proof=[])
    assert is_prefix(first=4, first_root=root, second=4, second_root=root, proof=[])
    assert not is_prefix(first=0, first_root=root, second=4, second_root=root, proof=[])


def test_a_node_is_told_from_a_leaf() -> None:
    """Two hashes as data are no inner node: the prefixes differ."""
    left, right = LEAVES[:2]
    assert node_hash(left, right) != leaf(left + right)
