"""Without the extras, what needs no cluster works and the rest says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

BARE = """
import sys
for name in sys.argv.pop(1).split():
    sys.modules[name] = None  # as if it were not installed
from tenure.cli import main
main()
"""
SERVICE = "aiohttp h2 kubernetes_asyncio orjson prometheus_client uvloop zstandard"
AGENT = "google.protobuf grpc pynvml"


def run(*arguments: str, without: str = f"{SERVICE} {AGENT}") -> subprocess.CompletedProcess[str]:
    """Run the command line without the packages of extras."""
    command = [sys.executable, "-c", BARE, without, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "webhook"),
        ("certs", "status"),
        ("certs", "rotate"),
        ("doctor",),
        ("map", "--live"),
        ("release", "ml/a", "--force", "--reason", "gone", "--live"),
    ],
    ids=" ".join,
)
def test_what_needs_a_cluster_says_what_to_install(arguments: tuple[str, ...]) -> None:
    """One message with the command, and no traceback."""
    done = run(*arguments)
    assert done.returncode == 2
    assert "needs the extra `service`" in done.stderr
    assert_names_our_own(done.stderr, "service")


@pytest.mark.parametrize("without", [SERVICE, AGENT], ids=["service", "agent"])
def test_what_runs_on_a_node_says_that_it_needs_both_extras(without: str) -> None:
    """Whichever of them is missing."""
    done = run("serve", "agent", "--node", "a", without=without)
    assert done.returncode == 2
    assert_names_our_own(done.stderr, "agent,service")


def test_parquet_says_what_to_install() -> None:
    """And what works without."""
    done = run("usage", "-o", "parquet", "--out", "x", without="pyarrow")
    assert done.returncode == 2
    assert_names_our_own(done.stderr, "parquet")
    assert "-o csv" in done.stderr


def assert_names_our_own(words: str, extra: str) -> None:
    """Assert that nothing is installed by a name that is somebody else's on an index."""
    assert f'pip install ".[{extra}]"' in words
    assert f'.whl[{extra}]"' in words
    assert '"tenure[' not in words


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "examples/koordinator.yaml"),
        ("manifests", "webhook"),
        ("manifests", "policies"),
        ("manifests", "rbac"),
    ],
    ids=" ".join,
)
def test_what_needs_none_works_without(arguments: tuple[str, ...]) -> None:
    """Files in, text out."""
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
