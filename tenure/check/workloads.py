"""Where a workload keeps the template of its Pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.annotations.wire import an_object

_PATHS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "Deployment": ("apps", ("spec", "template")),
    "StatefulSet": ("apps", ("spec", "template")),
    "DaemonSet": ("apps", ("spec", "template")),
    "ReplicaSet": ("apps", ("spec", "template")),
    "Job": ("batch", ("spec", "template")),
    "CronJob": ("batch", ("spec", "jobTemplate", "spec", "template")),
    "ReplicationController": ("", ("spec", "template")),
    "PodTemplate": ("", ("template",)),
}
"""Kind -> API group, and the way to its template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """
    The Pod template of a workload.

    Attributes:
        path: `spec.template`, which field errors begin with.
        pod: a Pod as the workload's controller would create it.
    """

    steps: tuple[str, ...]
    workload: Mapping[str, Any]
    body: Mapping[str, Any]
    pod: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Return the field path of the template."""
        return ".".join(self.steps)

    def with_pod(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Return the workload whose template makes this Pod."""
        template = dict(self.body)
        for key in ("metadata", "spec"):
            if key in pod and pod[key] is not self.pod.get(key):
                template[key] = {
                    name: value
                    for name, value in pod[key].items()
                    if not (key == "metadata" and name in _added(self))
                }
        return _replaced(self.workload, self.steps, template)


def template_of(workload: Mapping[str, Any], *, name: str) -> Template | None:
    """
    Return the Pod template of a workload; None where there is none, or an empty one.

    A DaemonSet's Pods carry their owner, for each of them is bound to one node.

    Raises:
        InputError: a wrong type on the way to the template.
    """
    kind, version = workload.get("kind"), workload.get("apiVersion")
    group, steps = _PATHS.get(str(kind), ("", ()))
    if not steps or (isinstance(version, str) and version.rpartition("/")[0] != group):
        return None
    body: Mapping[str, Any] = workload
    for number, step in enumerate(steps):
        body = an_object(body.get(step), ".".join(steps[: number + 1]))
    if not body:
        return None
    path = ".".join(steps)
    metadata = an_object(body.get("metadata"), f"{path}.metadata")
    added: dict[str, Any] = {} if metadata.get("name") else {"generateName": f"{name}-"}
    if kind == "DaemonSet":
        added["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    spec = an_object(body.get("spec"), f"{path}.spec")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, **added}, "spec": spec}
    return Template(steps=steps, workload=workload, body=body, pod=pod)


def _added(template: Template) -> frozenset[str]:
    written = an_object(template.body.get("metadata"), "metadata")
    return frozenset(template.pod["metadata"].keys() - written.keys())


def _replaced(
    parent: Mapping[str, Any], steps: tuple[str, ...], value: dict[str, Any]
) -> dict[str, Any]:
    step, *rest = steps
    below = _replaced(parent[step], tuple(rest), value) if rest else value
    return {**parent, step: below}
