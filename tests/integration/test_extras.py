"""Without the extra `service`, what needs no cluster works and the rest says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

BARE = """
import sys
for name in ("aiohttp", "orjson", "prometheus_client", "kubernetes_asyncio"):
    sys.modules[name] = None  # as if it were not installed
from tenure.cli import main
main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line without the extra's packages."""
    command = [sys.executable, "-c", BARE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments", [("serve", "webhook"), ("certs", "status"), ("certs", "rotate")], ids=" ".join
)
def test_what_needs_a_cluster_says_what_to_install(arguments: tuple[str, ...]) -> None:
    """One message with the command, and no traceback."""
    done = run(*arguments)
    assert done.returncode == 2
    assert "needs the extra `service`" in done.stderr
    assert 'pip install "tenure[service]"' in done.stderr


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
