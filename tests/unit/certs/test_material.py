"""Keys and certificates, as a TLS client sees them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from certs.material import (
    CertificateError,
    KeyPair,
    bundle_facts,
    check_pair,
    facts_of,
    issue_authority,
    issue_leaf,
)
from tests.support.certs import START

NAMES = ("tenure-webhook.tenure-system.svc", "127.0.0.1")
DAY = timedelta(days=1)
AUTHORITY = issue_authority("one", now=START, lifetime=100 * DAY)
STRANGER = issue_authority("two", now=START, lifetime=100 * DAY)
LEAF = issue_leaf(AUTHORITY, NAMES, now=START, lifetime=10 * DAY)


def test_a_leaf_is_accepted_under_every_name_it_was_issued_for() -> None:
    """By whoever trusts its authority, among others too."""
    check_pair(LEAF, STRANGER.certificate + AUTHORITY.certificate, NAMES, now=START)


def test_a_leaf_says_who_signed_it_and_for_which_names() -> None:
    """So that a plan can compare without keys."""
    facts, signer = facts_of(LEAF.certificate), facts_of(AUTHORITY.certificate)
    assert facts.authority_key == signer.subject_key != ""
    assert facts.names == tuple(sorted(NAMES))
    assert facts.not_after == START + 10 * DAY
    assert facts.not_before < START


def test_a_leaf_ends_with_its_authority_at_the_latest() -> None:
    """A chain is not valid for longer than its shortest part."""
    long = issue_leaf(AUTHORITY, NAMES, now=START + 95 * DAY, lifetime=90 * DAY)
    assert facts_of(long.certificate).not_after == START + 100 * DAY


def test_a_key_is_never_shown() -> None:
    """Neither in a log nor in a traceback."""
    assert LEAF.key.decode() not in repr(LEAF)
    assert "key=b" not in repr(LEAF)


@pytest.mark.parametrize(
    ("pair", "bundle", "names", "at", "fact"),
    [
        pytest.param(
            KeyPair(certificate=LEAF.certificate, key=STRANGER.key),
            AUTHORITY.certificate,
            NAMES,
            START,
            "the key does not belong",
            id="another one's key",
        ),
        pytest.param(
            LEAF, STRANGER.certificate, NAMES, START, "clients would refuse", id="not trusted"
        ),
        pytest.param(
            LEAF, AUTHORITY.certificate, ("other.svc",), START, "other.svc", id="another name"
        ),
        pytest.param(
            LEAF,
            AUTHORITY.certificate,
            NAMES,
            START + 11 * DAY,
            "clients would refuse",
            id="no longer valid",
        ),
        pytest.param(
            LEAF,
            AUTHORITY.certificate,
            NAMES,
            START - DAY,
            "clients would refuse",
            id="not valid yet",
        ),
        pytest.param(LEAF, b"no bundle", NAMES, START, "bundle can't be read", id="no bundle"),
        pytest.param(
            KeyPair(certificate=b"x", key=LEAF.key),
            AUTHORITY.certificate,
            NAMES,
            START,
            "certificate can't be read",
            id="no certificate",
        ),
        pytest.param(
            KeyPair(certificate=LEAF.certificate, key=b"x"),
            AUTHORITY.certificate,
            NAMES,
            START,
            "private key can't be read",
            id="no key",
        ),
    ],
)
def test_a_pair_that_clients_would_refuse_is_refused_first(
    pair: KeyPair, bundle: bytes, names: tuple[str, ...], at: object, fact: str
) -> None:
    """With the reason, and before it is served."""
    assert isinstance(at, type(START))
    with pytest.raises(CertificateError, match=fact):
        check_pair(pair, bundle, names, now=at)


def test_a_leaf_needs_a_name() -> None:
    """A certificate for nothing is a mistake."""
    with pytest.raises(CertificateError, match="needs a name"):
        issue_leaf(AUTHORITY, (), now=START, lifetime=DAY)


def test_a_bundle_is_read_whole_and_may_be_empty() -> None:
    """An unregistered webhook trusts nobody yet."""
    both = bundle_facts(AUTHORITY.certificate + STRANGER.certificate)
    assert [one.fingerprint for one in both] == [
        facts_of(AUTHORITY.certificate).fingerprint,
        facts_of(STRANGER.certificate).fingerprint,
    ]
    assert bundle_facts(b"\n") == ()
