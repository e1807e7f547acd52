"""
The few commands of `kubectl` that README uses, for machines that have none.

Started as a program; the kubeconfig is the one that `KUBECONFIG` names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from tests.support.kube.api import Api, Reply
from tests.support.kube.webhooks import collection_of


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


def _check(reply: Reply) -> None:
    if not reply.ok:
        raise SystemExit(reply.message)


if __name__ == "__main__":
    main(sys.argv[1:])
