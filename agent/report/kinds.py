"""
The kinds that a cluster without Koordinator lacks: Device and NodeResourceTopology.

Rule: Koordinator contract 3.1 and 3.2, and the GPU-topology proposal for `spec.topologies`, which
the released Device does not have.
"""

from __future__ import annotations

import json
from typing import Any, Final

Thing = dict[str, Any]

_TEXT: Final[Thing] = {"type": "string"}
_FLAG: Final[Thing] = {"type": "boolean"}
_INT32: Final[Thing] = {"type": "integer", "format": "int32"}
_TEXTS: Final[Thing] = {"type": "object", "additionalProperties": _TEXT}
_QUANTITY: Final[Thing] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_APPROVED: Final = "https://github.com/kubernetes/enhancements/pull/1870"
"""Where the group under `k8s.io` was agreed on, as its own definition says."""


def kinds() -> list[Thing]:
    """Return the definitions to apply; where Koordinator is installed its own serve as well."""
    made: list[Thing] = json.loads(json.dumps([_device(), _topology()]))
    return made  # no part of it twice: YAML would print it once and refer to that


def _object(required: tuple[str, ...] = (), **properties: Thing) -> Thing:
    made: Thing = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def _list(items: Thing) -> Thing:
    return {"type": "array", "items": items}


def _device() -> Thing:
    condition = _object(
        ("type", "status"),
        type=_TEXT,
        status=_TEXT,
        reason=_TEXT,
        message=_TEXT,
        lastTransitionTime={"type": "string", "format": "date-time"},
    )
    function = _object(minor=_INT32, busID=_TEXT)
    device = _object(
        ("health", "type"),
        type=_TEXT,
        id=_TEXT,
        minor=_INT32,
        moduleID=_INT32,
        health={**_FLAG, "default": False},
        labels=_TEXTS,
        resources={"type": "object", "additionalProperties": _QUANTITY},
        topology=_object(
            ("socketID", "nodeID"), socketID=_INT32, nodeID=_INT32, pcieID=_TEXT, busID=_TEXT
        ),
        vfGroups=_list(_object(labels=_TEXTS, vfs=_list(function))),
        conditions=_list(condition),
    )
    links = _object(("name", "topology"), name=_TEXT, topology=_TEXT)
    entry = _object(namespace=_TEXT, name=_TEXT, uuid=_TEXT, minors=_list(_INT32))
    schema = _object(
        apiVersion=_TEXT,
        kind=_TEXT,
        metadata={"type": "object"},
        spec=_object(
            devices=_list(device),
            topologies={"type": "object", "additionalProperties": _list(links)},
        ),
        status=_object(allocations=_list(_object(type=_TEXT, entries=_list(entry)))),
    )
    names = {"kind": "Device", "listKind": "DeviceList", "plural": "devices", "singular": "device"}
    version = _version("v1alpha1", schema, storage=True)
    return _definition(
        "scheduling.koordinator.sh", names, [{**version, "subresources": {"status": {}}}]
    )


def _topology() -> Thing:
    named = _list(_object(("name", "value"), name=_TEXT, value=_TEXT))
    costs = _list(_object(("name", "value"), name=_TEXT, value={"type": "integer"}))
    resource = _object(
        ("name", "capacity", "allocatable", "available"),
        name=_TEXT,
        capacity=_QUANTITY,
        allocatable=_QUANTITY,
        available=_QUANTITY,
    )
    zone = _object(
        ("name", "type"),
        name=_TEXT,
        type=_TEXT,
        parent=_TEXT,
        costs=costs,
        attributes=named,
        resources=_list(resource),
    )
    fields = {
        "apiVersion": _TEXT,
        "kind": _TEXT,
        "metadata": {"type": "object"},
        "topologyPolicies": _list(_TEXT),
        "zones": _list(zone),
    }
    first = _object(("topologyPolicies", "zones"), **fields)
    second = _object(("zones",), **fields, attributes=named)
    names = {
        "kind": "NodeResourceTopology",
        "listKind": "NodeResourceTopologyList",
        "plural": "noderesourcetopologies",
        "singular": "noderesourcetopology",
        "shortNames": ["node-res-topo"],
    }
    made = _definition(
        "topology.node.k8s.io",
        names,
        [
            _version("v1alpha1", first, storage=False),
            _version("v1alpha2", second, storage=True),
        ],
    )
    made["metadata"]["annotations"] = {"api-approved.kubernetes.io": _APPROVED}
    return made


def _version(name: str, schema: Thing, *, storage: bool) -> Thing:
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
    }


def _definition(group: str, names: Thing, versions: list[Thing]) -> Thing:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}"},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": versions},
    }
