"""Certificates that somebody else keeps: whatever API servers would take, and no half of a pair."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from certs.material import CertificateError, KeyPair, facts_of, issue_authority, issue_leaf
from certs.serving import Folder, Serving
from tests.support.certs import START, Clock
from tests.support.leaves import foreign_authority, foreign_leaf

NAME = "tenure-webhook.tenure-system.svc"
DAY = timedelta(days=1)


def write(folder: Path, pair: KeyPair, authority: bytes | None = None) -> None:
    """Write a pair, and what clients trust."""
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    if authority is not None:
        (folder / "ca.crt").write_bytes(authority)


def ours(name: str = NAME) -> tuple[KeyPair, bytes]:
    """Return a leaf with the authority that signed it."""
    authority = issue_authority("test", now=START, lifetime=DAY)
    return issue_leaf(authority, [name], now=START, lifetime=DAY), authority.certificate


def folder_of(path: Path, clock: Clock | None = None) -> tuple[Folder, Serving]:
    """Return a folder with the server that serves it."""
    serving = Serving()
    return Folder(path, serving, names=(NAME,), clock=clock or Clock()), serving


def test_another_leaf_is_served_and_the_same_one_left_alone(tmp_path: Path) -> None:
    """Looking often costs nothing."""
    folder, serving = folder_of(tmp_path)
    for _ in range(2):
        pair, authority = ours()
        write(tmp_path, pair, authority)
        assert (folder.look(), folder.look()) == (True, False)
        assert serving.leaf == facts_of(pair.certificate)


def test_a_mounted_secret_is_read_as_a_whole(tmp_path: Path) -> None:
    """Kubelet swaps `..data`: certificate and key come from the same side of it."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    folder, serving = folder_of(mounted)
    for number in range(2):
        pair, authority = ours()
        write(mounted / f"..{number}", pair, authority)
        (mounted / "..new").symlink_to(f"..{number}")
        (mounted / "..new").rename(mounted / "..data")
        for name in ("tls.crt", "tls.key", "ca.crt"):
            if not (mounted / name).is_symlink():
                (mounted / name).symlink_to(f"..data/{name}")
        assert folder.look()
        assert serving.leaf == facts_of(pair.certificate)


@pytest.mark.parametrize("damage", ["key", "certificate", "name", "authority", "gone", "ended"])
def test_a_pair_that_clients_would_refuse_never_replaces_one_that_they_take(
    tmp_path: Path, damage: str
) -> None:
    """Its words say which file or what is wrong, and never what the key is."""
    clock = Clock()
    folder, serving = folder_of(tmp_path, clock)
    pair, authority = ours()
    write(tmp_path, pair, authority)
    folder.look()
    served = serving.leaf
    other, other_authority = ours("elsewhere.svc" if damage == "name" else NAME)
    write(tmp_path, other, authority if damage == "authority" else other_authority)
    if damage == "key":
        (tmp_path / "tls.key").write_bytes(pair.key)
    elif damage == "certificate":
        (tmp_path / "tls.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\nx\n")
    elif damage == "gone":
        (tmp_path / "tls.key").unlink()
    elif damage == "ended":
        clock.pass_by(days=2)
    with pytest.raises(CertificateError) as refused:
        folder.look()
    assert serving.leaf == served
    assert b"PRIVATE" not in str(refused.value).encode()


@pytest.mark.parametrize("with_authority", [True, False])
@pytest.mark.parametrize("signed", [True, False])
def test_leaves_as_others_make_them_are_served(
    tmp_path: Path, *, signed: bool, with_authority: bool
) -> None:
    """RSA keys, no key usage, no key identifier: cert-manager's default and openssl's are such."""
    authority = foreign_authority(START)
    leaf = foreign_leaf(authority if signed else None, NAME, START).pair
    trusted = (authority.pair if signed else leaf).certificate
    write(tmp_path, leaf, trusted if with_authority else None)
    folder, serving = folder_of(tmp_path)
    assert folder.look()
    assert serving.leaf is not None
    assert serving.leaf.names == (NAME,)


def test_without_an_authority_name_and_time_still_count(tmp_path: Path) -> None:
    """Whom clients trust is not known then; the rest is."""
    clock = Clock()
    folder, _ = folder_of(tmp_path, clock)
    write(tmp_path, foreign_leaf(None, "elsewhere.svc", START).pair)
    with pytest.raises(CertificateError, match="not for it"):
        folder.look()
    write(tmp_path, foreign_leaf(None, NAME, START).pair)
    clock.pass_by(days=40)
    with pytest.raises(CertificateError, match="not valid now"):
        folder.look()
    clock.pass_by(days=-30)
    write(tmp_path, foreign_leaf(None, "*.tenure-system.svc", START).pair)
    assert folder.look()
