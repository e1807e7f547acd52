"""Keys, notes and checkpoints: the published forms, and nothing that was changed passes."""

from __future__ import annotations

import base64

import pytest

from ledger.domain.errors import InputError
from ledger.signing import (
    Checkpoint,
    Note,
    OwnKey,
    PrivateKey,
    PublicKey,
    is_rotation,
    rotation_text,
    sign_note,
)

# The example keys, text and signature in the documentation of Go's sumdb/note.
GO_SIGNER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
GO_NOTE = (
    GO_TEXT + "\n\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZS"
    "NXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
# RFC 8032 section 7.1, test 2.
RFC_SEED = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
RFC_PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
RFC_SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)
CHECKPOINT = Checkpoint(origin="ledger/c-1", size=3, root=bytes(range(32)))


def key_of(seed: str, name: str = "test") -> PrivateKey:
    """Return the signer of a seed in hex, through the text form."""
    public = key_text(seed, name)
    return PrivateKey.parse(public)


def key_text(seed: str, name: str) -> str:
    """Return the text form of a seed, its hash taken from the refusal-free parts."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = bytes.fromhex(seed)
    verifier = PublicKey(
        name=name, key=Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw()
    )
    encoded = base64.b64encode(b"\x01" + raw).decode()
    return f"PRIVATE+KEY+{name}+{verifier.key_hash.hex()}+{encoded}"


def test_go_notes_are_ours() -> None:
    """The documented note of Go's checksum database: same keys, same bytes."""
    signer, verifier = PrivateKey.parse(GO_SIGNER), PublicKey.parse(GO_VERIFIER)

    assert signer.text() == GO_SIGNER
    assert str(signer.public) == str(verifier) == GO_VERIFIER
    assert sign_note(GO_TEXT, signer) == GO_NOTE
    assert Note.parse(GO_NOTE).is_signed_by(verifier)
    assert Note.parse(GO_NOTE).text == GO_TEXT


def test_signatures_are_those_of_rfc_8032() -> None:
    """Section 7.1, test 2: the key and the signature over one byte."""
    key = key_of(RFC_SEED)

    assert key.public.key.hex() == RFC_PUBLIC
    assert key.sign(b"\x72").hex() == RFC_SIGNATURE


def test_a_checkpoint_survives_its_text() -> None:
    """Three lines; a fourth is somebody's extension."""
    text = CHECKPOINT.text()

    assert text == "ledger/c-1\n3\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
    assert Checkpoint.parse(text) == CHECKPOINT == Checkpoint.parse(text + "more\n")


def test_every_changed_character_of_a_note_is_refused() -> None:
    """Whatever character changes, the note is no note, or no longer signed."""
    key = PrivateKey.new("cluster-1")
    note = sign_note(CHECKPOINT.text(), key)
    assert Note.parse(note).is_signed_by(key.public)

    for at, character in enumerate(note):
        for other in {"A", "b", "0", "\n", " ", chr(ord(character) ^ 1)} - {character}:
            changed = note[:at] + other + note[at + 1 :]
            assert not passes(changed, key.public), (at, other)
        assert not passes(note[:at] + note[at + 1 :], key.public), at


def passes(note: str, key: PublicKey) -> bool:
    """Tell whether a note is one and is signed."""
    try:
        return Note.parse(note).is_signed_by(key)
    except InputError:
        return False


def test_another_key_of_the_same_name_is_not_the_signer() -> None:
    """The name alone proves nothing."""
    note = sign_note(CHECKPOINT.text(), PrivateKey.new("same"))

    assert not Note.parse(note).is_signed_by(PrivateKey.new("same").public)


def test_a_note_may_have_several_signers() -> None:
    """Each is found by name and hash; strangers are passed over."""
    first, second = PrivateKey.new("a"), PrivateKey.new("b")
    note = Note.parse(sign_note(CHECKPOINT.text(), first, second))

    assert note.is_signed_by(first.public)
    assert note.is_signed_by(second.public)
    assert not note.is_signed_by(PrivateKey.new("c").public)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000+AA==",
        GO_VERIFIER[:-1],
        GO_VERIFIER.replace("c74f20a3", "c74f20a4"),
        GO_VERIFIER.replace("Peter", "Paul"),
        GO_VERIFIER + "=",
        "a b" + GO_VERIFIER[12:],
        GO_SIGNER,
    ],
    ids=[
        "nothing",
        "a name alone",
        "too short a key",
        "a cut key",
        "another hash",
        "another name",
        "a character more",
        "a name with a space",
        "a private key",
    ],
)
def test_what_is_no_verifier_key_is_refused(text: str) -> None:
    """A key that was mistyped is told from a good one."""
    with pytest.raises(InputError):
        PublicKey.parse(text)


@pytest.mark.parametrize("text", ["", GO_VERIFIER, GO_SIGNER[:-4], GO_SIGNER.replace("a3", "a4")])
def test_what_is_no_signer_key_is_refused_without_telling_it(text: str) -> None:
    """The refusal names no part of the key."""
    with pytest.raises(InputError) as caught:
        PrivateKey.parse(text)

    assert GO_SIGNER[-20:] not in str(caught.value)
    assert GO_SIGNER[-20:-4] not in repr(PrivateKey.parse(GO_SIGNER))


@pytest.mark.parametrize(
    "text",
    [
        "ledger/c-1\n3\n",
        "\n3\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
        "ledger/c-1\n03\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
        "ledger/c-1\n-3\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
        "ledger/c-1\n3\nAAECAwQF\n",
        "ledger/c-1\n3\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    ],
    ids=["no root", "no origin", "a leading zero", "a sign", "a short root", "no last newline"],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    """There is one way to write a checkpoint."""
    with pytest.raises(InputError):
        Checkpoint.parse(text)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb"])
def test_a_key_has_a_name_of_one_word(name: str) -> None:
    """Spaces and plus signs would break the forms."""
    with pytest.raises(InputError):
        PrivateKey.new(name)


def test_a_rotation_is_signed_by_both() -> None:
    """One signature is not enough, nor are two under another ledger or other keys."""
    old, new, other = (PrivateKey.new(name) for name in ("k-1", "k-2", "k-3"))
    text = rotation_text("ledger/c-1", old.public, new.public)
    keys = {"old_key": str(old.public), "new_key": str(new.public)}

    assert is_rotation(sign_note(text, old, new), origin="ledger/c-1", **keys)
    assert not is_rotation(sign_note(text, old), origin="ledger/c-1", **keys)
    assert not is_rotation(sign_note(text, new, other), origin="ledger/c-1", **keys)
    assert not is_rotation(sign_note(text, old, new), origin="ledger/c-2", **keys)
    swapped = {"old_key": keys["new_key"], "new_key": keys["old_key"]}
    assert not is_rotation(sign_note(text, old, new), origin="ledger/c-1", **swapped)
    assert not is_rotation("nothing", origin="ledger/c-1", **keys)


def test_only_what_our_key_signed_comes_back_as_ours() -> None:
    """Known again or verified, the answer is the same; a changed letter or key is refused."""
    own, other = OwnKey(PrivateKey.new("proofs")), PrivateKey.new("proofs")
    message = b"a Pod holds this"
    signature = own.sign(message)
    foreign = other.sign(message)
    turned = bytes([signature[0] ^ 1]) + signature[1:]

    assert not own.check(own.public.key_id, message + b"!", signature)
    assert not own.check(own.public.key_id, message, turned)
    assert not own.check(own.public.key_id, message[1:], message[:1] + signature)
    assert not own.check(own.public.key_id, message, foreign)
    assert not own.check(other.public.key_id, message, signature)
    assert own.check(own.public.key_id, message, signature)  # known again
    assert own.check(own.public.key_id, message, signature)  # verified
    assert not own.check(own.public.key_id, message, turned)


def test_what_our_older_key_signed_holds_and_an_unpublished_one_s_does_not() -> None:
    """A rotated key is believed on Pods for as long as it is named."""
    older = PrivateKey.new("proofs")
    signature = older.sign(b"before")

    assert OwnKey(PrivateKey.new("proofs"), [older.public]).check(
        older.public.key_id, b"before", signature
    )
    assert not OwnKey(PrivateKey.new("proofs")).check(older.public.key_id, b"before", signature)


def test_more_signatures_than_are_known_again_all_hold() -> None:
    """The oldest is verified in place of being known again."""
    own = OwnKey(PrivateKey.new("proofs"))
    signed = [(b"%d" % number, own.sign(b"%d" % number)) for number in range(4_100)]

    for message, signature in (signed[0], signed[3], signed[4], signed[-1]):
        assert own.check(own.public.key_id, message, signature)
        assert not own.check(own.public.key_id, message + b" ", signature)
