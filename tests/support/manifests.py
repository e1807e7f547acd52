"""What `tenure manifests` prints, as objects."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from tempfile import NamedTemporaryFile
from typing import Any, Final

import yaml

from tenure.cli import app
from tenure.exits import run
from tests.support.proofs import KEY

AGENT_ACCOUNT: Final = "tenure-agent"


def printed(*arguments: str) -> list[dict[str, Any]]:
    """Return the objects that `tenure manifests` prints."""
    out = StringIO()
    with redirect_stdout(out):
        code = run(app, ["manifests", *arguments])
    assert code == 0, arguments
    return list(yaml.safe_load_all(out.getvalue()))


def printed_scheduler(*options: str, authority: bytes = b"") -> list[dict[str, Any]]:
    """Return what is printed of the service; with an authority also the APIService."""
    if not authority:
        of_gate = [one for one in options if one.startswith("--driver")]
        is_closed = of_gate and "--host-network" not in options
        more = ["--control-plane", "10.0.0.0/28"] if is_closed else []
        return printed("scheduler", "--kube-version", "v1.36.3", *more, *options)
    with NamedTemporaryFile() as file:
        file.write(authority)
        file.flush()
        return printed_scheduler(*options, "--api-service", "--api-ca", file.name)


def printed_cpus(*options: str) -> list[dict[str, Any]]:
    """Return what is printed of what binds CPUs, which trusts the key of the tests."""
    return _printed_for_nodes("cpus", "i", *options)


def printed_agent(*options: str, image: str = "i") -> list[dict[str, Any]]:
    """Return what is printed of the agents, who trust the key of the tests."""
    return _printed_for_nodes("agent", image, *options)


def _printed_for_nodes(name: str, image: str, *options: str) -> list[dict[str, Any]]:
    with NamedTemporaryFile() as authority:
        authority.write(b"PEM")
        authority.flush()
        files = ("--api-ca", authority.name, "--proof-key", str(KEY.public))
        return printed(name, "--image", image, *files, *options)


def kube_scheduler(url: str, folder: str, kubeconfig: str) -> dict[str, Any]:
    """
    Return the printed configuration of kube-scheduler for one that runs outside of the cluster.

    Args:
        url: of the extender.
        folder: with its `tls.crt`, `tls.key` and `ca.crt`.
    """
    [text] = (one["data"]["config.yaml"] for one in printed_scheduler() if "data" in one)
    config: dict[str, Any] = yaml.safe_load(text.replace("/etc/tenure/certs", folder))
    config["clientConnection"]["kubeconfig"] = kubeconfig
    config["leaderElection"]["leaderElect"] = False
    for entry in config["extenders"]:
        entry["urlPrefix"] = url
    return config
