"""The fields that every Kubernetes object has, read as what they are."""

from __future__ import annotations

import pytest

from certs.ports import ApiError, api_path
from ledger.domain.kube.object_fields import is_label, is_name, version_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4711", 4711),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("x9", None),
        ("٣", None),
        ("²", None),
        (str(2**63 - 1), 2**63 - 1),
        ("9" * 20, None),
        ("9" * 5_000, None),
    ],
)
def test_a_resource_version_is_a_number_or_tells_nothing(text: str, number: int | None) -> None:
    """Digits of ASCII alone are; what others write them with is not guessed at."""
    assert version_number(text) == number


@pytest.mark.parametrize(
    ("text", "label", "name"),
    [
        ("a", True, True),
        ("n-1", True, True),
        ("139cdb46-f989-4f17-9561-ca10cfb509a6", True, True),
        ("a" * 63, True, True),
        ("a" * 64, False, True),
        ("n1.example.com", False, True),
        (".".join(["a" * 62] * 4), False, True),
        ("a" * 254, False, False),
        ("", False, False),
        ("-a", False, False),
        ("a-", False, False),
        ("a..b", False, False),
        (".a", False, False),
        ("A", False, False),
        ("a_b", False, False),
        ("a\n", False, False),
        ("ä", False, False),
        ("a/b", False, False),
        ("a%zz", False, False),
    ],
)
def test_names_are_those_that_an_api_server_takes(text: str, *, label: bool, name: bool) -> None:
    """Labels and subdomains of RFC 1123."""
    assert (is_label(text), is_name(text)) == (label, name)


def test_a_path_is_of_the_objects_that_it_names() -> None:
    """Each word is quoted."""
    path = api_path("v1", "namespaces", "ml?a=b", "pods", "p q#1")

    assert path == "/api/v1/namespaces/ml%3Fa%3Db/pods/p%20q%231"
    assert api_path("apps/v1", "deployments") == "/apis/apps/v1/deployments"


@pytest.mark.parametrize("word", ["", ".", "..", "a/b", "../nodes/n-1", "a%2Fb"])
def test_no_path_is_of_a_name_that_is_another_path(word: str) -> None:
    """The API server reads a quoted slash as one, and an HTTP client leaves dots out."""
    with pytest.raises(ApiError, match="no object is called so"):
        api_path("v1", "namespaces", word)
