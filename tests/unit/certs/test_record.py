"""The Secret: written, read back, and refused when it contradicts itself."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from certs.material import CertificateError, issue_authority, issue_leaf
from certs.plan import Phase
from certs.record import REQUESTED, ROTATION, SecretRecord, new_secret, read_record, write_record
from tests.support.certs import START

DAY = timedelta(days=1)
OLD = issue_authority("old", now=START, lifetime=100 * DAY)
NEW = issue_authority("new", now=START, lifetime=100 * DAY)
LEAF = issue_leaf(OLD, ["a.svc"], now=START, lifetime=DAY)
STABLE = SecretRecord(phase=Phase.STABLE, since=START, published_at=None, authority=OLD, leaf=LEAF)
PUBLISHING = replace(STABLE, phase=Phase.PUBLISHING, other=NEW, published_at=START + DAY)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(STABLE, id="stable"),
        pytest.param(PUBLISHING, id="publishing"),
        pytest.param(replace(PUBLISHING, phase=Phase.SERVING), id="serving"),
    ],
)
def test_what_is_written_is_read_back(record: SecretRecord) -> None:
    """Keys, times and phase, whatever else is in the Secret."""
    secret = new_secret("n", "s")
    secret["metadata"] |= {"resourceVersion": "7", "annotations": {"theirs": "stays"}}
    written = write_record(record, secret)
    assert read_record(written) == record
    assert written["metadata"]["resourceVersion"] == "7"
    assert written["metadata"]["annotations"]["theirs"] == "stays"
    assert base64.b64decode(written["data"]["ca.crt"]) == record.bundle


def test_a_request_stays_until_its_rotation_begins() -> None:
    """It is a mark that users set and the beginning of a rotation removes."""
    secret = write_record(STABLE, new_secret("n", "s"))
    secret["metadata"]["annotations"][REQUESTED] = "now"
    record = read_record(secret)
    assert record is not None
    assert record.requested
    assert REQUESTED in write_record(record, secret)["metadata"]["annotations"]
    begun = write_record(replace(record, requested=False), secret)
    assert REQUESTED not in begun["metadata"]["annotations"]


def test_a_secret_without_certificates_is_not_one_yet() -> None:
    """So that an installer may create it empty, to restrict rights by its name."""
    assert read_record(new_secret("n", "s")) is None
    assert read_record({**new_secret("n", "s"), "data": {"tls.crt": "", "tls.key": ""}}) is None


def _without(field: str) -> Callable[[dict[str, Any]], None]:
    return lambda secret: secret["data"].pop(field)


def _with(field: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda secret: secret["data"].update({field: value})


def _rotation(text: str) -> Callable[[dict[str, Any]], None]:
    return lambda secret: secret["metadata"]["annotations"].update({ROTATION: text})


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        pytest.param(_without("tls.key"), "field=data.tls.key", id="no key"),
        pytest.param(_without("authority.crt"), "field=data.authority.crt", id="no authority"),
        pytest.param(_with("tls.key", "%"), "field=data.tls.key", id="no base64"),
        pytest.param(_without("other.crt"), "contradicts itself", id="nothing to publish"),
        pytest.param(_rotation("{}"), "rotation can't be read", id="no phase"),
        pytest.param(_rotation("soon"), "rotation can't be read", id="no JSON"),
        pytest.param(
            _rotation('{"phase":"resting","since":"2026-01-01T00:00:00+00:00","published_at":""}'),
            "rotation can't be read",
            id="no such phase",
        ),
    ],
)
def test_a_damaged_secret_is_refused_with_its_place(
    damage: Callable[[dict[str, Any]], None], fact: str
) -> None:
    """Never replaced in silence: somebody may still be served by what was in it."""
    secret = write_record(PUBLISHING, new_secret("n", "s"))
    damage(secret)
    with pytest.raises(CertificateError, match=fact) as caught:
        read_record(secret)
    assert "secret=n/s" in str(caught.value)
