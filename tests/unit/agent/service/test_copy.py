"""The copy on the node's disk, and the files by which a node knows itself and whom it believes."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.decide.node_holdings import CpuClaim
from agent.https import token_in
from agent.service.keeping import Copy, CopyFile
from agent.service.own_node import ProofKeys, node_of_token, pod_of_token
from agent.service.wire import written
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from ledger.signing import published
from tests.support.proofs import KEY, OTHER_KEY, held, holds, word

COPY = Copy(
    known=replace(
        word(40, held("p", 30, holds("0", "y")), held("q", 35)),
        ended={"z": 41},
        cpu_claims=(
            CpuClaim(claim_uid="c", position=7, namespace="ml", name="c", cpus=parse_cpuset("2-3")),
        ),
    ),
    at=7,
    boot_id="now",
)


def test_what_was_written_is_read_and_nobody_else_may(tmp_path: Path) -> None:
    """Whole, in the place of the last one, and for its owner alone."""
    file = CopyFile(tmp_path)
    assert file.read() is None
    file.write(replace(COPY, at=1))
    file.write(COPY)
    assert file.read() == COPY
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file.path]


def test_a_copy_from_before_claims_were_told_does_not_say_that_there_are_none(
    tmp_path: Path,
) -> None:
    """Until the service is heard that is not known."""
    old = msgspec.json.decode(written(COPY.known, at=1, boot_id="b", ended={}))
    del old["cpu_claims"]
    body = msgspec.json.encode(old)
    head = json.dumps({"format": 1, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    file = CopyFile(tmp_path)
    file.path.write_bytes(head + b"\n" + body + b"\n")
    file.path.chmod(0o600)
    copy = file.read()
    assert copy is not None
    assert (copy.known.cpu_claims, copy.known.held) == (None, COPY.known.held)


def test_a_copy_that_was_cut_or_changed_is_none(tmp_path: Path) -> None:
    """At any byte; the next word that is heard is written in its place."""
    file = CopyFile(tmp_path)
    file.write(COPY)
    whole = file.path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        for torn in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            file.path.write_bytes(torn)
            with pytest.raises(InputError):
                file.read()
    file.write(COPY)
    assert file.read() == COPY


def test_a_link_or_a_folder_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """Whatever put it there."""
    file, elsewhere = CopyFile(tmp_path), tmp_path / "elsewhere"
    file.write(COPY)
    file.path.rename(elsewhere)
    file.path.symlink_to(elsewhere)
    with pytest.raises(InputError, match="can't be read"):
        file.read()
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(InputError):
        file.read()


def token(claims: object) -> str:
    """Return a token with these claims."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


def test_a_token_says_which_node_we_are(tmp_path: Path) -> None:
    """Without anybody being asked."""
    path = tmp_path / "token"
    path.write_text(token({"kubernetes.io": {"node": {"name": "a", "uid": "u"}, "pod": {}}}))
    assert (node_of_token(path), pod_of_token(path)) == (("a", "u"), ("", ""))
    path.write_text(
        token({"kubernetes.io": {"node": {"name": "a"}, "pod": {"name": "x", "uid": "p"}}})
    )
    assert pod_of_token(path) == ("x", "p")
    assert token_in(path) == path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "a.b.c",
        "a.!.c",
        "a b",
        token([]),
        token({}),
        token({"kubernetes.io": {"node": {"name": "a"}}}),
    ],
    ids=str,
)
def test_a_token_of_no_node_is_refused(tmp_path: Path, text: str) -> None:
    """With what to do."""
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(InputError):
        node_of_token(path)


def test_keys_are_those_that_are_published_now(tmp_path: Path) -> None:
    """One that was taken back is trusted no more, and a folder without one trusts nobody."""
    message, signature = b"words", KEY.sign(b"words")
    keys = ProofKeys(tmp_path)
    with pytest.raises(InputError, match="no public key"):
        keys.check(KEY.public.key_id, message, signature)
    for key in (KEY, OTHER_KEY):
        for name, text in published([key.public]).items():
            (tmp_path / name).write_text(text + "\n")
    assert keys.check(KEY.public.key_id, message, signature)
    assert not keys.check(OTHER_KEY.public.key_id, message, signature)
    (tmp_path / next(iter(published([KEY.public])))).unlink()
    assert not keys.check(KEY.public.key_id, message, signature)
    (tmp_path / "bad.vkey").write_text("bad")
    with pytest.raises(InputError, match=r"bad\.vkey"):
        keys.check(KEY.public.key_id, message, signature)
