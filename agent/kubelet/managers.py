"""
What kubelet's own CPU, memory and topology managers are told to do.

Kubelet is asked, or its configuration file is read, which lacks what flags and files beside it say
otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import yaml

from agent.decide.node_cpus import KubeletManagers
from agent.documents import json_document, yaml_document
from agent.durable import read_regular
from agent.https import Caller
from agent.kubelet.watch import ask
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in

PATH: Final = "/configz"
BYTES_MAX: Final = 1 << 20
_KIND: Final = "KubeletConfiguration"


class _Configuration(msgspec.Struct, rename="camel"):
    cpu_manager_policy: str = ""
    cpu_manager_policy_options: dict[str, str] | None = None
    reserved: str = msgspec.field(default="", name="reservedSystemCPUs")
    memory_manager_policy: str = ""
    topology_manager_policy: str = ""
    topology_manager_scope: str = ""


async def ask_managers(caller: Caller) -> KubeletManagers:
    """Return what kubelet says. Raises NoAnswerError, InputError: nothing, or unreadable."""
    return read_configz(await ask(caller, PATH))


def read_configz(body: bytes) -> KubeletManagers:
    """Return what an answer of kubelet's says. Raises InputError: it is none."""
    try:
        return _managers(found_in(json_document(body), "kubeletconfig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", place=PATH) from error


def read_configuration(path: Path) -> KubeletManagers:
    """Return what kubelet's configuration file says. Raises InputError: it can't be read."""
    try:
        document = yaml_document(read_regular(path, BYTES_MAX, follows=True).decode())
        return _managers(document if found_in(document, "kind") == _KIND else None)
    except InputError as error:
        raise error.at(str(path)) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"can't be read: {error}", place=str(path)) from error


def _managers(document: object) -> KubeletManagers:
    """Return what a configuration says; an empty field means kubelet's default."""
    try:
        found = msgspec.convert(document, type=_Configuration)
    except msgspec.ValidationError as error:
        raise InputError(f"not a {_KIND}: {error}") from error
    cpu = KubeletCpuPolicy(
        policy=found.cpu_manager_policy or "none",
        options=tuple(sorted((found.cpu_manager_policy_options or {}).items())),
        reserved_cpus=parse_cpuset(found.reserved),
    )
    return KubeletManagers(
        cpu=cpu,
        memory_policy=found.memory_manager_policy or "None",
        topology_policy=found.topology_manager_policy or "none",
        topology_scope=found.topology_manager_scope or "container",
    )
