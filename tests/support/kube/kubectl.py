"""
The few commands of `kubectl` that README uses, for machines that have none.

Started as a program; the kubeconfig is the one that `KUBECONFIG` names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.kube.api import Api, Reply
from tests.support.kube.webhooks import collection_of

WAIT_SECONDS: Final = 280.0
_TOKENS: Final = "authentication.k8s.io/v1"


def main(words: list[str]) -> None:
    """Do what the words say; anything refused is an error, as kubectl's is."""
    api = _connected()
    match words:
        case ["create", "namespace", name]:
            _check(api.create("/api/v1/namespaces", {"metadata": {"name": name}}))
        case ["label", "namespace", name, pair]:
            key, _, value = pair.partition("=")
            labels = {"metadata": {"labels": {key: value}}}
            _check(api.patch(f"/api/v1/namespaces/{name}", labels))
        case ["config", "view", "--raw", "--minify", "--flatten"]:
            sys.stdout.write(Path(os.environ["KUBECONFIG"]).read_text())
        case ["create", "token", account, "--namespace", namespace, "--duration", _]:
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            made = api.create(path, {"kind": "TokenRequest", "apiVersion": _TOKENS, "spec": {}})
            _check(made)
            sys.stdout.write(made.body["status"]["token"])
        case ["config", "set-credentials", user, token, "--kubeconfig", file]:
            said = {"name": user, "user": {"token": token.removeprefix("--token=")}}
            _configure(Path(file), lambda config: config["users"].append(said))
        case ["config", "set-context", "--current", user, "--kubeconfig", file]:
            said = {"user": user.removeprefix("--user=")}
            _configure(Path(file), lambda config: config["contexts"][0]["context"].update(said))
        case ["wait", what, pod, "--namespace", namespace, _]:
            _wait(api, f"/api/v1/namespaces/{namespace}/{pod.replace('pod/', 'pods/')}", what)
        case ["apply", "-f", place]:
            text = sys.stdin.read() if place == "-" else Path(place).read_text()
            for thing in filter(None, yaml.safe_load_all(text)):
                _check(api.create(collection_of(thing), thing))
        case _:
            raise SystemExit(f"not a command that is known here: {words}")


def _connected() -> Api:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    ca_file = Path(cluster["certificate-authority"])
    return Api(cluster["server"], ca_file=ca_file, token=user["token"])


def _configure(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a kubeconfig."""
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config))


def _wait(api: Api, path: str, what: str) -> None:
    """Wait until a Pod's condition is there."""
    name, until = what.removeprefix("--for=condition="), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        conditions = api.get(path).body.get("status", {}).get("conditions") or ()
        if any((one["type"], one["status"]) == (name, "True") for one in conditions):
            return
        time.sleep(0.2)
    raise SystemExit(f"timed out waiting for {what}: {conditions}")


def _check(reply: Reply) -> None:
    if not reply.ok:
        raise SystemExit(reply.message)


if __name__ == "__main__":
    main(sys.argv[1:])
