"""Kubelet's configuration, by its answer and by its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.decide.node_cpus import KubeletManagers
from agent.kubelet.managers import read_configuration, read_configz
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError

CONFIGURED: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
    "reservedSystemCPUs": "0,4",
    "memoryManagerPolicy": "Static",
    "topologyManagerPolicy": "single-numa-node",
    "topologyManagerScope": "pod",
    "syncFrequency": "1m0s",
    "systemReserved": {"memory": "300Mi"},
}
FOUND = KubeletManagers(
    cpu=KubeletCpuPolicy(
        policy="static",
        options=(("distribute-cpus-across-numa", "true"), ("full-pcpus-only", "true")),
        reserved_cpus=parse_cpuset("0,4"),
    ),
    memory_policy="Static",
    topology_policy="single-numa-node",
    topology_scope="pod",
)


def configz(fields: object) -> KubeletManagers:
    """Read an answer with these fields."""
    return read_configz(json.dumps({"kubeletconfig": fields}).encode())


def in_file(path: Path, text: str) -> KubeletManagers:
    """Read a file with this text."""
    path.write_text(text)
    return read_configuration(path)


def test_kubelets_answer_and_its_file_are_read_alike(tmp_path: Path) -> None:
    """All policies, options and reserved CPUs; what else is in it is not read."""
    assert configz(CONFIGURED) == FOUND
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    assert in_file(tmp_path / "config.yaml", json.dumps({**kind, **CONFIGURED})) == FOUND


def test_what_is_left_out_or_empty_is_kubelets_default(tmp_path: Path) -> None:
    """No static policy, no reserved CPU, alignment by container."""
    bare = KubeletManagers()
    assert (bare.cpu.policy, bare.topology_policy, bare.topology_scope) == (
        "none",
        "none",
        "container",
    )
    assert in_file(tmp_path / "config.yaml", "kind: KubeletConfiguration\n") == bare
    assert configz({"cpuManagerPolicy": "", "topologyManagerScope": "", "a": 1}) == bare


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kubeletconfig": []}',
        b'{"kubeletconfig": {"cpuManagerPolicy": 1}}',
        b'{"kubeletconfig": {"cpuManagerPolicy": "none", "cpuManagerPolicy": "static"}}',
        b'{"kubeletconfig": {"reservedSystemCPUs": "3-0"}}',
    ],
)
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    """Rather than read as the defaults."""
    with pytest.raises(InputError):
        read_configz(body)


@pytest.mark.parametrize(
    "text",
    ["", "kind: Pod", "[1", "kind: KubeletConfiguration\ncpuManagerPolicyOptions: [a]", "\x00"],
)
def test_a_file_that_is_none_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    """Likewise."""
    path = tmp_path / "config.yaml"
    with pytest.raises(InputError, match=str(path)):
        in_file(path, text)
    path.unlink()
    with pytest.raises(InputError, match=str(path)):
        read_configuration(path)
